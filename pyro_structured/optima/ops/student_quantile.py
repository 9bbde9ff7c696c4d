"""Quantiles of Student's t distribution between bounds."""

__all__ = ["MOST_FREEDOM", "student_point", "student_quantile", "student_tail"]

import numpy as np
import torch
from scipy.special import betainc, betaincinv
from torch import Tensor

# Degrees of freedom up to which probabilities are as precise as it is said.
MOST_FREEDOM = 1e5
# Below this probability, those of tails are ratios of densities, which do not underflow.
LEAST_MASS = 1e-280
NEWTON_STEPS = 30
# Squares of larger numbers leave the range of numbers.
LARGEST = 1e150


def student_quantile(uniform: Tensor, freedom: Tensor, low: Tensor, high: Tensor) -> Tensor:
    r"""Quantiles of variables with Student's t distribution of scale 1 between bounds, by the smaller one of the tails.

    The numbers x of :math:`F(x) = (1 - u) F(l) + u F(h)` for the distribution function F of a density in proportion to
    :math:`(1 + x^2 / \nu)^{-(\nu + 1) / 2}`, on the processor.

    :param Tensor uniform: Probabilities u between 0 and 1, double precision.
    :param Tensor freedom: Degrees of freedom :math:`\nu`, larger than 0 and at most 1e5; shapes broadcast.
    :param Tensor low: Bounds l, numbers or -inf.
    :param Tensor high: Larger bounds h, or +inf.
    :return: Numbers between the bounds. Probabilities have a relative error of about 1e-12 in both tails, however far
        the interval is from zero.

    Example::

        >>> uniform, freedom, high = torch.tensor([0.75, 1.0, torch.inf], dtype=torch.double)
        >>> student_quantile(uniform, freedom, torch.tensor([-torch.inf, 1e200], dtype=torch.double), high)
        tensor([ 1.0000e+00, 4.0000e+200], dtype=torch.float64)
    """
    turned = low + high > 0
    least, most = torch.where(turned, -high, low), torch.where(turned, -low, high)
    share, rest = torch.where(turned, 1 - uniform, uniform), torch.where(turned, uniform, 1 - uniform)
    arrays = (np.asarray(each.detach().cpu()) for each in (share, rest, freedom, least, most))
    found = torch.from_numpy(_inverse(*np.broadcast_arrays(*arrays))).to(uniform.device)
    return torch.maximum(torch.minimum(torch.where(turned, -found, found), high), low)


def _inverse(share: np.ndarray, rest: np.ndarray, freedom: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Between bounds whose middle is not positive."""
    below, end = student_tail(-low, freedom), student_tail(np.abs(high), freedom)
    above, mass = np.where(high > 0, end, 1 - end), np.where(high > 0, 1 - below - end, end - below)
    left, right = below + share * mass, above + rest * mass
    quantile: np.ndarray = np.where(left < right, -student_point(left, freedom), student_point(right, freedom))
    is_far = (high < 0) & (end < LEAST_MASS)
    if is_far.any():
        quantile[is_far] = _far_below(share[is_far], rest[is_far], freedom[is_far], low[is_far], high[is_far])
    return quantile


def student_tail(x: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Probabilities above numbers, of variables with Student's t distribution of scale 1.

    :param np.ndarray x: Numbers of at least 0.
    :param np.ndarray freedom: Degrees of freedom, at most 1e5; shapes broadcast.
    """
    square = np.minimum(x, LARGEST) ** 2 / freedom
    tail: np.ndarray = np.where(
        square < 3 / (freedom + 2),
        0.5 - betainc(0.5, freedom / 2, square / (1 + square)) / 2,
        betainc(freedom / 2, 0.5, 1 / (1 + square)) / 2,
    )
    # A power, up to rounding, beyond.
    tail = tail * (LARGEST / np.maximum(x, LARGEST)) ** freedom
    return tail


def student_point(tail: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Numbers above which variables with Student's t distribution of scale 1 lie with given probabilities.

    :param np.ndarray tail: Probabilities; those of more than 1/2 count as 1/2.
    :param np.ndarray freedom: Degrees of freedom, at most 1e5; shapes broadcast.
    :return: Numbers of at least 0.
    """
    tail = np.minimum(tail, 0.5)
    inner, outer = betaincinv(0.5, freedom / 2, 1 - 2 * tail), betaincinv(freedom / 2, 0.5, 2 * tail)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        square = np.where(tail > 0.25, inner / (1 - inner), (1 - outer) / outer)
        last = student_tail(np.full_like(tail, LARGEST), freedom)
        power = LARGEST * (last / tail) ** (1 / freedom)
    point: np.ndarray = np.where(tail < last, power, np.sqrt(freedom * square))
    return point


def _far_below(
    share: np.ndarray, rest: np.ndarray, freedom: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Newton's method for the logarithm, where the logarithm of the probability of a tail is concave."""

    def ratio(x: np.ndarray) -> np.ndarray:
        """Logarithm of the probability beyond a distance, divided by that beyond the nearer bound."""
        square = (nearest / x) * (nearest / x)
        density = (np.log1p(freedom / x / x) - np.log1p(freedom / nearest / nearest)) * (freedom + 1) / 2
        logarithm: np.ndarray = -density + np.log(square) * freedom / 2 + np.log(_outer(x, freedom) / most)
        return logarithm

    nearest, x = -high, -high
    most = _outer(nearest, freedom)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        log_share = np.log(share + rest * np.exp(np.where(low > -np.inf, ratio(-low), -np.inf)))
        for _ in range(NEWTON_STEPS):
            step = (ratio(x) - log_share) * _outer(x, freedom) / freedom
            x = np.maximum(np.minimum(x * np.exp(np.minimum(step, 600.0)), 1e300), nearest)
    found: np.ndarray = np.where(log_share > -np.inf, -x, low)
    return found


def _outer(x: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Probability above a number, divided by its density and by the number, times the degrees of freedom."""
    a, z = freedom / 2, freedom / (freedom + np.minimum(x, LARGEST) ** 2)
    top, inverse = np.ones_like(z), 1 / (1 - (a + 0.5) * z / (a + 1))
    total: np.ndarray = inverse
    step, count = np.zeros_like(z), 0
    while (np.abs(step - 1) > 2.0**-50).any():
        count += 1
        place = a + 2 * count
        for numerator in (
            count * (0.5 - count) * z / ((place - 1) * place),
            -(a + count) * (a + 0.5 + count) * z / (place * (place + 1)),
        ):
            inverse, top = 1 / (1 + numerator * inverse), 1 + numerator / top
            step = inverse * top
            total = total * step
    return total
