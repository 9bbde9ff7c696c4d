"""Laws of counts whose polynomials have real roots only, for which Bethe's approximation is a lower bound."""

__all__ = ["has_real_roots", "real_rooted_below"]

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

# Differences of logarithms that rounding makes.
ROUNDING = 1e-12
# Largest degree of a polynomial whose roots are counted in whole numbers.
MOST_ROOTS = 128
# Binary digits of coefficients.
DIGITS = 52


@lru_cache(maxsize=256)
def _log_binomials(size: int) -> np.ndarray:
    return np.array([math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1) for k in range(size + 1)])


def has_real_roots(log_weights: np.ndarray) -> bool:
    r"""Whether all roots of :math:`\sum_k e^{f_k} \binom{n}{k} t^k` are proved to be real.

    Then :math:`\sum_y e^{f(|y|)} \prod_d t_d^{y_d}` is a real stable polynomial (by Grace, Walsh and Szegő). Proofs are
    Kurtz' condition :math:`a_k^2 > 4 a_{k-1} a_{k+1}`, or Sturm's chain in whole numbers, of coefficients in double
    precision; laws without a preference, :math:`f_k = a k`, are powers. False is no proof of the contrary.

    :param numpy.ndarray log_weights: :math:`f_0, \dots, f_n`, less than +inf.

    **References**

    Kurtz (1992): A sufficient condition for all the roots of a polynomial to be real. American Mathematical Monthly 99.
    Straszak, Vishnoi (2017): Belief propagation, Bethe approximation and polynomials. Allerton. Theorem 1.

    Example::

        >>> one_or_two = np.array([-np.inf, 0.0, 0.0, -np.inf])
        >>> has_real_roots(one_or_two), has_real_roots(np.array([0.0, 0.0, 0.0, -np.inf]))  # at most two
        (True, False)
    """
    return _has_real_roots(np.ascontiguousarray(log_weights, dtype=np.float64).tobytes())


@lru_cache(maxsize=4096)
def _has_real_roots(given: bytes) -> bool:
    law = np.frombuffer(given)
    finite = np.flatnonzero(np.isfinite(law))
    if not len(finite) or finite[-1] - finite[0] + 1 > len(finite):
        return False
    if len(finite) <= 2:
        return True
    inside = law[finite]
    rounding = ROUNDING * (1 + np.abs(inside).max())
    if len(finite) == len(law) and (np.abs(np.diff(inside, 2)) <= rounding).all():
        return True
    logs = inside + _log_binomials(len(law) - 1)[finite]
    bends = -np.diff(logs, 2)
    if (bends > math.log(4.0) + rounding).all():
        return True
    degree = len(finite) - 1
    # Newton's inequalities, which are necessary.
    if degree > MOST_ROOTS or (bends < -np.diff(_log_binomials(degree), 2) - rounding).any():
        return False
    return _have_regular_chain(logs)


def _have_regular_chain(logs: np.ndarray) -> bool:
    """Whether Sturm's chain proves that all roots are real: its degrees fall by one, and leading coefficients are
    positive.
    """
    degree = len(logs) - 1
    exponents = (logs - (logs[-1] - logs[0]) / degree * np.arange(degree + 1)) / math.log(2.0)
    powers = np.floor(exponents)
    mantissas = np.rint(2.0 ** (exponents - powers + DIGITS))
    shifts = (powers - powers.min()).astype(int)
    # Leading coefficients come first.
    first = [int(mantissa) << int(shift) for mantissa, shift in zip(mantissas, shifts, strict=True)][::-1]
    second = [(degree - k) * a for k, a in enumerate(first[:-1])]
    while len(second) > 1:
        remainder = first
        for _ in range(2):
            leading = remainder[0]
            padded = second + [0] * (len(remainder) - len(second))
            remainder = [second[0] * a - leading * b for a, b in zip(remainder, padded, strict=True)][1:]
        if not any(remainder):
            return True
        if remainder[0] >= 0:
            return False
        common = math.gcd(*remainder)
        first, second = second, [-a // common for a in remainder]
    return True


def real_rooted_below(tables: Tensor, centres: Tensor) -> Tensor:
    """Laws with real roots that are nowhere larger than the given ones, and as large at one count.

    A law that is proved to have real roots is returned as it is. Of another, the counts around the centre that no gap
    separates from it stay possible, and are lowered as far as Kurtz' condition wants.

    :param Tensor tables: Log-potentials, shape ``(..., n + 1)``.
    :param Tensor centres: Counts of finite log-potential, integers of shape ``(...)``.
    """
    size = tables.shape[-1]
    flat = tables.reshape(-1, size)
    unique, place = np.unique(flat.detach().cpu().numpy(), axis=0, return_inverse=True)
    proved = np.array([has_real_roots(law) for law in unique], dtype=bool)[place.reshape(-1)]
    binomials = torch.from_numpy(_log_binomials(size - 1)).to(flat)
    padded = torch.nn.functional.pad(flat + binomials, (1, 1), value=-math.inf)
    centre = centres.reshape(-1, 1) + 1
    top = padded.gather(-1, centre)
    bend = math.log(4.0) + 2 * ROUNDING * (1 + _largest(flat.detach()))
    # Slopes from the centre to both sides, which have to add up to minus the bend.
    slopes = [padded.gather(-1, centre + direction) - top for direction in (-1, 1)]
    missing = (sum(slopes) + bend).clamp(min=0.0) / 2
    lowered = torch.full_like(padded, -math.inf).scatter(-1, centre, top)
    for direction, slope in zip((-1, 1), slopes, strict=True):
        slope, last, place_now = slope - missing, top, centre
        for _ in range(size):
            place_now = (place_now + direction).clamp(0, size + 1)
            goal = padded.gather(-1, place_now)
            ends = (goal == -math.inf) | (last == -math.inf)
            slope = torch.minimum(slope, goal - last.masked_fill(ends, 0.0))
            last = (last + slope).masked_fill(ends, -math.inf)
            lowered = lowered.scatter(-1, place_now, torch.maximum(last, lowered.gather(-1, place_now)))
            slope = slope - bend
    lowered = lowered[:, 1:-1]
    lowered = torch.minimum(lowered - binomials, flat)
    return torch.where(torch.from_numpy(proved).to(flat.device).unsqueeze(-1), flat, lowered).reshape(tables.shape)


def _largest(tables: Tensor) -> Tensor:
    return tables.masked_fill(tables == -math.inf, 0.0).abs().amax(-1, keepdim=True)
