"""Goodness-of-fit tests of samples against probabilities or densities.

As in :mod:`pyro.distributions.testing.gof`, the p-values of good samples are about uniform, those of bad ones close to
zero. The survival function of chi square is scipy's: that of Pyro 1.9 sums a truncated series, and tends to 1, not to
0, for statistics above about 150.
"""

__all__ = ["density_goodness_of_fit", "discrete_goodness_of_fit"]

import math

import numpy as np
import torch
from scipy.spatial import cKDTree
from scipy.stats import chi2
from torch import Tensor

# Number of expected draws of a cell for which Pearson's statistic is close to its limit.
_EXPECTED_DRAWS = 5.0


def discrete_goodness_of_fit(probs: Tensor, counts: Tensor) -> float:
    """P-value of Pearson's chi-square test; rare values are pooled.

    :param Tensor probs: Probabilities of all values, shape ``(n,)``.
    :param Tensor counts: Numbers of draws of all values, shape ``(n,)``.
    :return: The p-value; 0 if an impossible value was drawn.

    Example::

        >>> discrete_goodness_of_fit(torch.tensor([0.5, 0.5]), torch.tensor([100, 100]))
        1.0
        >>> discrete_goodness_of_fit(torch.tensor([0.5, 0.5]), torch.tensor([500, 1000])) < 1e-30
        True
    """
    probs, counts = probs.detach().double().cpu(), counts.double().cpu()
    if bool((counts[probs == 0] > 0).any()):
        return 0.0
    expected, order = (probs * counts.sum()).sort(descending=True)
    drawn = counts[order]
    # The rarest values are pooled, with the smallest other one if they are too rare even together.
    tail = expected.flip(0).cumsum(0).flip(0)
    num_cells = int(((expected >= _EXPECTED_DRAWS) & (tail - expected >= _EXPECTED_DRAWS)).sum()) + 1
    last = num_cells - 1
    expected = torch.cat([expected[:last], expected[last:].sum()[None]])
    drawn = torch.cat([drawn[:last], drawn[last:].sum()[None]])
    return _chi_square(drawn.numpy(), expected.numpy())


def density_goodness_of_fit(samples: Tensor, densities: Tensor) -> float:
    """P-value of a test that compares distances of neighbouring samples with those expected from their densities.

    :param Tensor samples: Samples, shape ``(n,)`` or ``(n, dim)``.
    :param Tensor densities: Probability densities at the samples, shape ``(n,)``.
    :return: The p-value, approximate in more than one dimension: small ones are more frequent than they should be.

    Example::

        >>> samples = torch.linspace(0.0, 1.0, 1000) ** 2
        >>> density_goodness_of_fit(samples, torch.ones(1000)) < 1e-10  # they are not uniform
        True
    """
    points = samples.detach().double().cpu().numpy()
    heights = densities.detach().double().cpu().numpy()
    if points.ndim == 1:
        order = np.argsort(points)
        gaps, sparsity = np.diff(points[order]), 1 / heights[order]
        surprise = gaps * len(points) / (0.5 * (sparsity[1:] + sparsity[:-1]))
    else:
        dim = points.shape[1]
        distance = cKDTree(points).query(points, k=2)[0][:, 1]
        unit_ball = math.pi ** (0.5 * dim) / math.gamma(0.5 * dim + 1)
        surprise = len(points) * heights * unit_ball * distance**dim
    # The surprise is standard exponential for good samples, so that these numbers are uniform.
    uniform = np.exp(-surprise)
    drawn, _ = np.histogram(uniform, bins=max(7, round(len(uniform) ** (1 / 3))), range=(0.0, 1.0))
    return _chi_square(drawn.astype(np.float64), np.full(len(drawn), len(uniform) / len(drawn)))


def _chi_square(drawn: np.ndarray, expected: np.ndarray) -> float:
    if len(drawn) < 2:
        return 1.0
    return float(chi2.sf(((drawn - expected) ** 2 / expected).sum(), len(drawn) - 1))
