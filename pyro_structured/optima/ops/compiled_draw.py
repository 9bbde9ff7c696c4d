"""Draws from distributions between bounds, for compiled loops."""

__all__ = ["compiled_draw", "compiled_draws"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.compiled_gamma import compiled_gamma_quantile
from pyro_structured.optima.ops.compiled_interval import compiled_interval_mass
from pyro_structured.optima.ops.compiled_quantile import compiled_quantile, compiled_quantiles, log_mix
from pyro_structured.optima.ops.compiled_student import compiled_student_quantile
from pyro_structured.optima.ops.density_family import EXPONENTIAL_FROM, FLAT_BELOW, LARGEST_EXPONENT, DensityFamily

# Fewer normal variables are drawn one at a time.
MANY = 16


@compiled
def _laplace_quantile(uniform: float, low: float, high: float) -> float:
    share, rest, sign = uniform, 1 - uniform, 1.0
    if low + high > 0:
        share, rest, sign = rest, share, -1.0
        low, high = -high, -low
    if high <= 0:
        return sign * (high + log_mix(share, rest, low - high))
    below, above = -math.expm1(low), -math.expm1(-high)
    part = share * (below + above)
    if part < below:
        return sign * log_mix(part / below, 1 - part / below, low)
    part = rest * (below + above) / above
    return -sign * log_mix(part, 1 - part, -high)


@compiled
def _logistic_quantile(uniform: float, low: float, high: float) -> float:
    least, most = _log_sigmoid(low), _log_sigmoid(high)
    below = most + log_mix(uniform, 1 - uniform, least - most)
    least, most = _log_sigmoid(-low), _log_sigmoid(-high)
    return below - least - log_mix(1 - uniform, uniform, most - least)


@compiled
def _weibull_quantile(uniform: float, concentration: float, scale: float, low: float, high: float) -> float:
    least: float = (low / scale) ** concentration
    most: float = (high / scale) ** concentration
    if least == math.inf:
        return low
    if most < FLAT_BELOW:
        share: float = (low / high) ** concentration if high > 0 else 1.0
        root: float = (share + uniform * (1 - share)) ** (1 / concentration)
        return high * root
    root = (least - math.log1p(uniform * math.expm1(least - most))) ** (1 / concentration)
    return scale * root


@compiled
def _log_sigmoid(x: float) -> float:
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


@compiled
def _gumbel_quantile(uniform: float, low: float, high: float) -> float:
    if low > EXPONENTIAL_FROM:
        return low - math.log1p(uniform * math.expm1(low - high))
    if high >= 0:
        ratio = math.exp(-high) - (math.exp(-low) if low > -LARGEST_EXPONENT else math.inf)
        return -math.log(math.exp(-high) - log_mix(uniform, 1 - uniform, ratio))
    if high == low or high < -LARGEST_EXPONENT:
        return high
    gap = high - low
    ratio = -math.exp(-high) * math.expm1(gap) if gap < LARGEST_EXPONENT else -math.inf
    return high - math.log1p(-log_mix(uniform, 1 - uniform, ratio) * math.exp(high))


@compiled
def _cauchy_quantile(uniform: float, low: float, high: float) -> float:
    below, above = math.atan2(1.0, -low), math.atan2(1.0, high)
    if high <= 0:
        mass = math.atan2(1.0, -high) - below
    elif low >= 0:
        mass = math.atan2(1.0, low) - above
    else:
        mass = math.pi - below - above
    left, right = below + uniform * mass, above + (1 - uniform) * mass
    return -1 / math.tan(left) if left < right else 1 / math.tan(right)


@compiled
def _truncated(
    uniform: float, family: int, loc: float, scale: float, least: float, most: float, low: float, high: float
) -> float:
    """Quantile of a variable with its own bounds between two others."""
    # Rounding must not reverse the bounds, nor lead out of the variable's own.
    low = min(max(low, least), most)
    high = max(low, min(high, most))
    if low == high:
        return low
    if family == DensityFamily.NORMAL:
        quantile = loc + scale * compiled_quantile(uniform, (low - loc) / scale, (high - loc) / scale)
    elif family == DensityFamily.UNIFORM:
        quantile = low + (high - low) * uniform
    elif family == DensityFamily.EXPONENTIAL:
        quantile = low - scale * math.log1p(uniform * math.expm1((low - high) / scale))
    elif family == DensityFamily.WEIBULL:
        quantile = _weibull_quantile(uniform, loc, scale, low, high)
    elif family == DensityFamily.GAMMA:
        quantile = scale * compiled_gamma_quantile(uniform, loc, low / scale, high / scale)
    elif family == DensityFamily.INVERSE_GAMMA:
        quantile = scale / compiled_gamma_quantile(1 - uniform, loc, scale / high, scale / low)
    elif family == DensityFamily.CAUCHY:
        quantile = loc + scale * _cauchy_quantile(uniform, (low - loc) / scale, (high - loc) / scale)
    elif family == DensityFamily.STUDENT:
        quantile = scale * compiled_student_quantile(uniform, loc, low / scale, high / scale)
    elif family == DensityFamily.LAPLACE:
        quantile = loc + scale * _laplace_quantile(uniform, (low - loc) / scale, (high - loc) / scale)
    elif family == DensityFamily.LOGISTIC:
        quantile = loc + scale * _logistic_quantile(uniform, (low - loc) / scale, (high - loc) / scale)
    elif family == DensityFamily.GUMBEL:
        quantile = loc + scale * _gumbel_quantile(uniform, (low - loc) / scale, (high - loc) / scale)
    else:
        start = (math.log(low) - loc) / scale if low > 0 else -math.inf
        end = (math.log(high) - loc) / scale if high > 0 else -math.inf
        quantile = math.exp(loc + scale * compiled_quantile(uniform, start, end))
    return max(min(quantile, high), low)


@compiled
def _of_mixture(uniform: float, base: np.ndarray, low: float, high: float) -> float:
    """A variable of the component that a uniform variable chooses, whose rest draws it."""
    family, number = int(base[0]), int(base[1])
    masses = np.empty(number)
    for place in range(number):
        weight, loc, scale, least, most = _component(base, place)
        masses[place] = weight + compiled_interval_mass(family, loc, scale, max(low, least), min(high, most))
    largest = masses.max()
    if largest == -math.inf:
        return min(max(low, float(base[8])), float(base[9]))
    total = 0.0
    for place in range(number):
        masses[place] = math.exp(masses[place] - largest)
        total += masses[place]
    rest, chosen = uniform * total, 0
    for place in range(number):
        if masses[place] > 0:
            chosen = place
            if rest < masses[place]:
                break
            rest -= masses[place]
    weight, loc, scale, least, most = _component(base, chosen)
    return _truncated(min(rest / masses[chosen], 1.0), family, loc, scale, least, most, low, high)


@compiled
def _component(base: np.ndarray, place: int) -> tuple[float, float, float, float, float]:
    """Logarithm of the weight, location, scale and bounds of a component."""
    first = 5 * (place + 1)
    return base[first], base[first + 1], base[first + 2], base[first + 3], base[first + 4]


@compiled
def compiled_draw(uniform: float, family: DensityFamily, base: np.ndarray, low: float, high: float) -> float:
    """Quantile of a variable between bounds, plus a constant.

    :param uniform: A probability between 0 and 1.
    :param DensityFamily family: Family of the variable's distribution.
    :param np.ndarray base: Location, scale and own bounds of the variable, and the constant, shape ``(5,)``. For
        mixtures the family of K components, K, two numbers of no use and the constant, followed by the logarithm of the
        weight, location, scale and own bounds of each component, shape ``(5 + 5 K,)``.
    :param low: Another lower bound, or -inf, of the sum.
    :param high: Another upper bound, or +inf, of the sum.
    """
    shift: float = base[4]
    if family == DensityFamily.MIXTURE:
        return _of_mixture(uniform, base, low - shift, max(low, high) - shift) + shift
    return _truncated(uniform, family, base[0], base[1], base[2], base[3], low - shift, high - shift) + shift


@compiled
def compiled_draws(
    uniform: np.ndarray,
    family: DensityFamily,
    base: np.ndarray,
    bounds: np.ndarray,
    drawn: np.ndarray,
    space: np.ndarray,
) -> None:
    """Fills in quantiles of variables between bounds, plus constants, as :func:`compiled_draw`.

    :param np.ndarray uniform: Probabilities between 0 and 1, float64 and contiguous, as all others, shape ``(N,)``.
    :param np.ndarray base: Shape ``(N, 5)`` or ``(N, 5 + 5 K)``.
    :param np.ndarray bounds: Lower and upper ones, shape ``(2, N)``, which are overwritten.
    :param np.ndarray drawn: Shape ``(N,)``.
    :param np.ndarray space: Memory of shape ``(13, N)``.
    """
    lows, highs = bounds[0], bounds[1]
    if family != DensityFamily.NORMAL or len(drawn) < MANY:
        for i in range(len(drawn)):
            drawn[i] = compiled_draw(uniform[i], family, base[i], lows[i], highs[i])
        return
    starts, ends, above, quantiles = space[0], space[1], space[2], space[3]
    for i in range(len(drawn)):
        shift = base[i, 4]
        low = min(max(lows[i] - shift, base[i, 2]), base[i, 3])
        high = max(low, min(highs[i] - shift, base[i, 3]))
        lows[i], highs[i], above[i] = low, high, 1 - uniform[i]
        starts[i], ends[i] = (low - base[i, 0]) / base[i, 1], (high - base[i, 0]) / base[i, 1]
    compiled_quantiles(uniform, above, starts, ends, quantiles, space[4:])
    for i in range(len(drawn)):
        quantile = base[i, 0] + base[i, 1] * quantiles[i]
        drawn[i] = max(min(quantile, highs[i]), lows[i]) + base[i, 4]
