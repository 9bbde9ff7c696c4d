"""Noisy images of labels."""

__all__ = ["noisy_observations"]

import numpy as np

from pyro_structured.datasets.argument_checks import check_noise, checked_labels, seeded_generator
from pyro_structured.foundation.structures.argument_checks import check_size

# Discs of five pixels across.
RADIUS = 2.0


def noisy_observations(
    labels: np.ndarray, *, noise: float = 0.5, num_discs: int = 10, contrast: float = 1.5, seed: int
) -> np.ndarray:
    r"""Adds Gaussian noise to labels, and discs that are brighter or darker.

    Without discs, the log-odds of a label given its pixel x are :math:`(x - 1/2) / \sigma^2`.

    :param np.ndarray labels: Zeros and ones, shape ``(N, H, W)``.
    :param float noise: The noise's standard deviation :math:`\sigma`, at least 0.
    :param int num_discs: Number of discs of five pixels across for each image, anywhere, at least 0.
    :param float contrast: Number added in a disc, or subtracted, one as likely as the other; at least 0. Where discs
        overlap, everything is added.
    :param int seed: Seed of the generator, at least 0.
    :return: Pixels, float64, shape ``(N, H, W)``.
    :raises ValueError: if an argument is of another shape or out of range.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Section 5.1, where number and contrast of the discs are not given.

    Example::

        >>> noisy_observations(np.ones((1, 1, 2)), noise=0.0, num_discs=0, seed=0).tolist()
        [[[1.0, 1.0]]]
    """
    labels = checked_labels(labels)
    if labels.ndim != 3 or 0 in labels.shape[1:]:
        raise ValueError(f"labels: expected shape (N, H, W), got {labels.shape}")
    check_size("num_discs", num_discs, 0)
    check_noise("noise", noise)
    check_noise("contrast", contrast)
    generator = seeded_generator(seed)
    number, height, width = labels.shape
    pixels = labels + noise * generator.normal(size=labels.shape)
    rows, columns = (generator.integers(size, size=(number, num_discs)) for size in (height, width))
    signs = generator.choice([-1.0, 1.0], size=(number, num_discs))
    y, x = np.mgrid[:height, :width]
    for disc in range(num_discs):
        distance = (y - rows[:, disc, None, None]) ** 2 + (x - columns[:, disc, None, None]) ** 2
        pixels += contrast * signs[:, disc, None, None] * (distance <= RADIUS**2 + 1)
    return pixels
