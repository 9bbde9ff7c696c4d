"""Probabilities of intervals, one at a time, for compiled loops."""

__all__ = ["compiled_interval_mass"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.compiled_quantile import log_normal_mass
from pyro_structured.optima.ops.density_family import DensityFamily
from pyro_structured.optima.ops.interval_mass import LEAST_LOG_MASS


@compiled
def compiled_interval_mass(family: int, loc: float, scale: float, low: float, high: float) -> float:
    """Logarithm of the probability of an interval, as :func:`~pyro_structured.optima.ops.interval_mass.interval_mass`
    gives it.
    """
    if not low < high:
        return -math.inf
    mass = _log_mass(family, loc, scale, low, high)
    return mass if mass > LEAST_LOG_MASS else LEAST_LOG_MASS


@compiled
def _log_mass(family: int, loc: float, scale: float, low: float, high: float) -> float:
    gap = (high - low) / scale
    least, most = (low - loc) / scale, (high - loc) / scale
    if family == DensityFamily.UNIFORM:
        return float(np.log(gap))
    if family == DensityFamily.NORMAL:
        return log_normal_mass(least, most, gap)
    if family == DensityFamily.LOG_NORMAL:
        if low <= 0:
            return log_normal_mass(-math.inf, (math.log(high) - loc) / scale, math.inf)
        return log_normal_mass(
            (math.log(low) - loc) / scale, (math.log(high) - loc) / scale, math.log1p((high - low) / low) / scale
        )
    if family == DensityFamily.EXPONENTIAL:
        return _exponential(low / scale, gap)
    if family == DensityFamily.WEIBULL:
        start: float = (low / scale) ** loc
        return _exponential(start, (high / scale) ** loc - start)
    if family == DensityFamily.GUMBEL:
        return _exponential(np.exp(-most), -np.exp(-least) * math.expm1(-gap))
    if family == DensityFamily.LAPLACE:
        if most <= 0:
            return _exponential(-most, gap) - math.log(2)
        if least >= 0:
            return _exponential(least, gap) - math.log(2)
        return math.log(-(math.expm1(least) + math.expm1(-most))) - math.log(2)
    if family == DensityFamily.LOGISTIC:
        return _log_sigmoid(most) + _log_sigmoid(-least) + float(np.log(-math.expm1(-gap)))
    if most <= 0:
        angle = math.atan2(1.0, -most) - math.atan2(1.0, -least)
    elif least >= 0:
        angle = math.atan2(1.0, least) - math.atan2(1.0, most)
    else:
        angle = math.pi - math.atan2(1.0, -least) - math.atan2(1.0, most)
    return float(np.log(angle)) - math.log(math.pi)


@compiled
def _exponential(start: float, length: float) -> float:
    return float(np.log(-math.expm1(-length))) - start


@compiled
def _log_sigmoid(x: float) -> float:
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))
