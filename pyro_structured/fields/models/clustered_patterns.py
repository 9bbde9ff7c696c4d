"""Patterns that are clusters of masks."""

__all__ = ["clustered_patterns"]

from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from pyro_structured.foundation.models.argument_checks import checked_array, checked_masks
from pyro_structured.foundation.models.old_spellings import old_spellings
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.structures.argument_checks import check_size


@old_spellings(num_patterns="n_patterns", seed="random_state")
def clustered_patterns(masks: Any, n_patterns: int, *, random_state: Any = None) -> tuple[Tensor, Tensor]:
    r"""Finds patterns for ``PatternCRF(..., composition="min")``: the clusters of k-means.

    .. math::
        w_{ki} = \log \frac{q_{ki}}{1 - q_{ki}}, \qquad c_k = \log \mu_k + \sum_i \log(1 - q_{ki}), \qquad q_{ki} =
        \frac{n_{ki} + 1/2}{n_k + 1},

    where :math:`\mu_k` is the share of masks in cluster k, :math:`n_k` their number, and in :math:`n_{ki}` of them
    pixel i is 1. A field with these patterns alone, no log-odds of pixels and no penalties, is the mixture of the
    clusters, pixels independent, exactly, at temperature 1. With log-odds of an image's pixels it is the posterior of
    the mask, if noise is independent.

    :param masks: Zeros and ones, shape ``(N, H, W)``.
    :param int n_patterns: Number of clusters J, at least 1 and at most N.
    :param random_state: Seed, or ``numpy.random.RandomState``, of k-means: a local optimum, the best of four starts.
    :return: Weights w, shape ``(J, H, W)``, and biases c, shape ``(J,)``, in double precision. Cost O(N·J·H·W) for each
        iteration of k-means.
    :raises ValueError: if an argument is out of range, or there are fewer than ``n_patterns`` different masks.

    **References**

    Rother, Kohli, Feng, Jia (2009): Minimizing sparse higher order energy functions of discrete variables. CVPR. Li
    (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University of
    Toronto. Section 5.3.

    Example::

        >>> from pyro_structured.distributions import PatternCRF
        >>> from pyro_structured.structures import Grid
        >>> masks = np.array([[[0, 1]], [[0, 1]], [[0, 1]], [[1, 0]]])
        >>> weights, biases = clustered_patterns(masks, 2, random_state=0)
        >>> PatternCRF(torch.zeros(1, 2), None, weights, biases, Grid(1, 2), "min").marginals
        tensor([[0.2812, 0.7188]], dtype=torch.float64)
    """
    pictures = checked_array("masks", masks)
    if pictures.ndim != 3 or 0 in pictures.shape:
        raise ValueError(f"masks: expected shape (N, H, W), got {pictures.shape}")
    inside = checked_masks(pictures, pictures.shape).reshape(len(pictures), -1)
    check_size("n_patterns", n_patterns)
    checked_generator(random_state)
    different = len(np.unique(inside, axis=0))
    if n_patterns > different:
        raise ValueError(f"n_patterns: expected at most {different}, the number of different masks, got {n_patterns}")
    cluster = KMeans(n_patterns, n_init=4, random_state=random_state).fit_predict(inside.astype(float))
    member = np.eye(n_patterns)[cluster]
    number = torch.from_numpy(member.sum(0))
    ones = torch.from_numpy(member.T @ inside)
    on, off = ((count + 0.5) / (number.unsqueeze(-1) + 1) for count in (ones, number.unsqueeze(-1) - ones))
    weights = (on.log() - off.log()).unflatten(-1, pictures.shape[1:])
    return weights, (number / len(pictures)).log() + off.log().sum(-1)
