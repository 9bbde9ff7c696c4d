"""Draws from distributions between bounds, one number at a time, for compiled loops."""

__all__ = ["compiled_draw"]

import math

import numpy as np

from pyro_structured.optima.ops.compiled import compiled
from pyro_structured.optima.ops.compiled_quantile import compiled_quantile
from pyro_structured.optima.ops.density_family import DensityFamily


@compiled
def compiled_draw(uniform: float, family: DensityFamily, base: np.ndarray, low: float, high: float) -> float:
    """The quantile of a variable between bounds, to which a number is added.

    :param uniform: A probability between 0 and 1.
    :param DensityFamily family: What the variable is.
    :param np.ndarray base: Its location, scale, and own bounds, and what is added to it, shape ``(5,)``.
    :param low: Another lower bound, or -inf, of the sum.
    :param high: Another upper bound, or +inf, of the sum.
    """
    loc: float = base[0]
    scale: float = base[1]
    shift: float = base[4]
    low = max(low - shift, base[2])
    # Rounding must not reverse the bounds.
    high = max(low, min(high - shift, base[3]))
    if family == DensityFamily.UNIFORM:
        return low + (high - low) * uniform + shift
    if family == DensityFamily.EXPONENTIAL:
        found = low - scale * math.log1p(uniform * math.expm1((low - high) / scale))
    elif family == DensityFamily.LOG_NORMAL:
        least = (math.log(low) - loc) / scale if low > 0 else -math.inf
        most = (math.log(high) - loc) / scale if high > 0 else -math.inf
        found = math.exp(loc + scale * compiled_quantile(uniform, least, most))
    else:
        found = loc + scale * compiled_quantile(uniform, (low - loc) / scale, (high - loc) / scale)
    return max(min(found, high), low) + shift
