"""Pairs of point sets that are to be matched."""

__all__ = ["matching_task"]

import numpy as np

from pyro_structured.datasets.argument_checks import check_name, check_noise, seeded_generator
from pyro_structured.foundation.structures.argument_checks import check_size

# Lowest value and number of dimensions of position, size and color; the highest value is 1.
PROPERTIES = ((-1, 2), (0, 1), (0, 3))
# Features that a matched point may take over: one row for each equally likely choice.
RELEVANT = {
    "unimodal": np.array([[True, True, False]]),
    "multimodal": np.array([[True, False, False], [False, False, True]]),
}


def matching_task(
    name: str,
    num_pairs: int,
    num_points: int = 5,
    *,
    seed: int,
    position_noise: float = 0.25,
    size_noise: float = 0.25,
    color_noise: float = 0.25,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Generates pairs of sets A and B of points whose true matching is known.

    Every point has a position, uniform on :math:`[-1, 1]^2`, a size, uniform on :math:`[0, 1]`, and a color, uniform on
    :math:`[0, 1]^3`. Of a point of A and its partner in B, the relevant properties differ by normal noise only; the
    others are independent.

    ==============  ==============================================================================
    name            relevant
    ==============  ==============================================================================
    ``unimodal``    position and size
    ``multimodal``  of half of the pairs of sets the position alone, of the others the color alone
    ==============  ==============================================================================

    The points of B come in random order. The paper states neither the ranges of size and color nor the noise. With the
    default noise, Bayes' rule for the process gives a true matching the log-probability -0.49 on average for
    ``unimodal`` and -1.32 for ``multimodal`` (if the latter ignores the ranges); the best models of the paper have
    -0.44 and -0.97. Cost O(num_pairs num_points²).

    :param str name: One of the names above: the paper's Dataset 1 and Dataset 2.
    :param int num_pairs: Number of pairs of sets, at least 1; 10 in the paper.
    :param int num_points: Number J of points in every set, at least 1.
    :param int seed: Seed of the generator, at least 0. Training and test pairs need different seeds.
    :param float position_noise: Standard deviation of positions in each dimension, at least 0.
    :param float size_noise: Standard deviation of sizes, at least 0.
    :param float color_noise: Standard deviation of colors in each channel, at least 0.
    :return: Squared distances of positions, of sizes and of colors between the points of A and those of B, float64,
        shape ``(num_pairs, J, J, 3)``; and for every point of A the index of its partner in B, int64, shape
        ``(num_pairs, J)``, a value of :class:`~pyro_structured.structures.Matching`.
    :raises ValueError: if the name is unknown, or a number is out of range.

    **References**

    Tarlow, Adams, Zemel (2012): Randomized optimum models for structured prediction. AISTATS. Section 5.

    Example::

        >>> features, matchings = matching_task("unimodal", num_pairs=10, seed=0, position_noise=0)
        >>> features.shape, matchings.shape
        ((10, 5, 5, 3), (10, 5))
        >>> bool((features[..., 0].argmin(-1) == matchings).all())
        True
    """
    check_name(name, RELEVANT)
    check_size("num_pairs", num_pairs)
    check_size("num_points", num_points)
    noises = {"position_noise": position_noise, "size_noise": size_noise, "color_noise": color_noise}
    for argument, noise in noises.items():
        check_noise(argument, noise)
    generator = seeded_generator(seed)
    choices = RELEVANT[name]
    relevant = choices[generator.integers(len(choices), size=num_pairs)]
    matchings = generator.permuted(np.tile(np.arange(num_points), (num_pairs, 1)), axis=1)
    features = np.empty((num_pairs, num_points, num_points, len(PROPERTIES)))
    for column, ((low, dimensions), noise) in enumerate(zip(PROPERTIES, noises.values(), strict=True)):
        shape = (num_pairs, num_points, dimensions)
        a, other = generator.uniform(low, 1, shape), generator.uniform(low, 1, shape)
        near = a + noise * generator.standard_normal(shape)
        b = np.empty(shape)
        np.put_along_axis(b, matchings[..., None], np.where(relevant[:, column, None, None], near, other), axis=1)
        features[..., column] = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
    return features, matchings
