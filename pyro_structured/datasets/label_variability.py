"""Variability of label fields."""

__all__ = ["label_variability"]

import numpy as np
from scipy.special import entr

from pyro_structured.datasets.argument_checks import checked_labels
from pyro_structured.foundation.structures.argument_checks import check_size


def label_variability(labels: np.ndarray, num_clusters: int = 32, *, seed: int) -> float:
    r"""Computes the mean entropy of a pixel within clusters of similar label fields.

    .. math::
        V_K = \sum_{k=1}^K \mu_k \frac{1}{D} \sum_i H(q_i^k),

    where :math:`\mu_k` is the share of the fields in cluster k, of k-means, and :math:`q_i^k` that of ones of pixel i
    among them, H the entropy in nats. A local optimum of k-means: the best of four starts.

    :param np.ndarray labels: Zeros and ones, shape ``(N, ...)``.
    :param int num_clusters: Number of clusters K, at least 1 and at most N.
    :param int seed: Seed of k-means, at least 0.
    :raises ValueError: if an argument is out of range.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Section 5.1.

    Example::

        >>> label_variability(np.array([[0, 0], [0, 1], [1, 1], [1, 1]]), num_clusters=2, seed=0)
        0.173...
    """
    from sklearn.cluster import KMeans

    given = checked_labels(labels)
    if given.ndim < 2 or not given.size:
        raise ValueError(f"labels: expected shape (N, ...), not empty, got {given.shape}")
    fields = given.reshape(len(given), -1).astype(float)
    check_size("num_clusters", num_clusters)
    check_size("seed", seed, 0)
    if num_clusters > len(fields):
        raise ValueError(f"num_clusters: expected at most {len(fields)}, the number of fields, got {num_clusters}")
    clusters = KMeans(num_clusters, n_init=4, random_state=seed).fit_predict(fields)
    total = 0.0
    for cluster in np.unique(clusters):
        inside = fields[clusters == cluster]
        share = inside.mean(0)
        total += len(inside) * float((entr(share) + entr(1 - share)).mean())
    return total / len(fields)
