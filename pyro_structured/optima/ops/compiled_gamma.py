"""Draws from gamma distributions between bounds, one number at a time, for compiled loops."""

__all__ = ["compiled_gamma_quantile"]

import math

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.compiled_quantile import compiled_quantile, log_mix

# From this distance above the concentration on, the continued fraction is the faster one.
SPLIT = 3.0
# In units of the scale of the tail there: the error after a step is the cube of that before, nearly.
LAST_STEP, MOST_STEPS = 1e-5, 60
# Below this number, a double cannot hold the exponential with all digits.
LEAST_LOGARITHM = -600.0
TINY = 1e-300
# Here, neighbouring numbers are farther apart than values from the lower bound.
GRAINS = 1e20
# Two units in the last place: smaller changes need not end.
ROUNDING = 2.0**-51


@compiled
def compiled_gamma_quantile(uniform: float, concentration: float, low: float, high: float) -> float:
    r"""Quantiles of a gamma variable of scale 1 between two bounds.

    As :func:`~pyro_structured.optima.ops.gamma_quantile.gamma_quantile`: the logarithm of the probability below, or
    above, is solved by Halley's method, where it is concave; that of both tails is the logarithm of the density, plus
    that of a series or a continued fraction, and underflows nowhere.

    :param uniform: A probability between 0 and 1.
    :param concentration: The concentration, larger than 0 and at most 1e6.
    :param low: A number of at least 0.
    :param high: A larger number or +inf.
    :return: A number between the bounds.

    **References**

    Press, Teukolsky, Vetterling, Flannery (2007): *Numerical recipes.* Cambridge. Section 6.2.
    """
    if low > GRAINS:
        return low if uniform < 1 else high
    a, split = concentration, concentration + SPLIT
    peak = _log_peak(a)
    if high <= split:
        most = _log_below(high, a, peak)
        log_below = most + log_mix(uniform, 1 - uniform, _log_below(low, a, peak) - most)
        return max(min(_lower(log_below, a, peak, high), high), low)
    if low >= split:
        most = _log_above(low, a, peak)
        log_above = most + log_mix(1 - uniform, uniform, _log_above(high, a, peak) - most)
        return max(min(_upper(log_above, a, peak, low), high), low)
    below, above = math.exp(_log_below(low, a, peak)), math.exp(_log_above(high, a, peak))
    mass = 1 - below - above
    left, right = below + uniform * mass, above + (1 - uniform) * mass
    if right > math.exp(_log_above(split, a, peak)):
        log_below = math.log(left) if left < 0.5 else math.log1p(-right)
        return max(min(_lower(log_below, a, peak, split), high), low)
    return max(min(_upper(math.log(right), a, peak, split), high), low)


@compiled
def _log_peak(a: float) -> float:
    """Logarithm of the density of the variable's logarithm at its mode, the logarithm of the concentration."""
    if a < 15:
        return a * math.log(a) - a - math.lgamma(a)
    t = a**-2
    return 0.5 * math.log(a / (2 * math.pi)) - (1 - t * (1 / 30 - t * (1 / 105 - t / 140))) / (12 * a)


@compiled
def _log_density(y: float, a: float, peak: float) -> float:
    return a * math.log(y / a) - (y - a) + peak


@compiled
def _log_below(y: float, a: float, peak: float) -> float:
    return _log_density(y, a, peak) + math.log(_below(y, a)) if y > 0 else -math.inf


@compiled
def _log_above(y: float, a: float, peak: float) -> float:
    return _log_density(y, a, peak) + math.log(_above(y, a)) if y * TINY < 1 else -math.inf


@compiled
def _below(y: float, a: float) -> float:
    """Probability below a number, divided by the density of the variable's logarithm."""
    term = total = 1 / a
    while term > 1e-17 * total:
        a += 1
        term *= y / a
        total += term
    return total


@compiled
def _above(y: float, a: float) -> float:
    """Probability above a number, divided by the density of the variable's logarithm."""
    bottom, top, step, count = y + 1 - a, 1 / TINY, 0.0, 0
    inverse = 1 / bottom
    total = inverse
    while abs(step - 1) > ROUNDING:
        count += 1
        numerator = count * (a - count)
        bottom += 2
        inverse = numerator * inverse + bottom
        inverse = 1 / (inverse if inverse != 0 else TINY)
        top = bottom + numerator / top
        top = top if top != 0 else TINY
        step = inverse * top
        total *= step
    return total


@compiled
def _lower(log_below: float, a: float, peak: float, start: float) -> float:
    """The number below which the variable lies with a probability, found from an upper bound of it."""
    y = start
    if log_below == -math.inf:
        return 0.0
    if log_below > LEAST_LOGARITHM:
        # The distribution function near zero, and the cube root of the variable, which is nearly normal.
        near = a * math.exp((log_below + math.log(a) - a - peak) / a)
        y = min(max(near, _cube(a, compiled_quantile(math.exp(log_below), -math.inf, math.inf))), start)
    for _ in range(MOST_STEPS):
        if y <= 0:
            break
        ratio = _below(y, a)
        gap = (log_below - _log_density(y, a, peak) - math.log(ratio)) * ratio
        step = gap / max(1 - gap * (1 / ratio - a + y) / 2, 0.5)
        y *= math.exp(step)
        if abs(step) < LAST_STEP * min(ratio, 1.0):
            break
    return y


@compiled
def _upper(log_above: float, a: float, peak: float, start: float) -> float:
    """The number above which the variable lies with a probability, found from a lower bound of it."""
    y = start
    if log_above == -math.inf:
        return math.inf
    if log_above > LEAST_LOGARITHM:
        y = max(_cube(a, -compiled_quantile(math.exp(log_above), -math.inf, math.inf)), start)
    for _ in range(MOST_STEPS):
        ratio = _above(y, a)
        gap = (_log_density(y, a, peak) + math.log(ratio) - log_above) * y * ratio
        step = gap / min(max(1 + gap * ((a - 1) / y - 1 + 1 / (y * ratio)) / 2, 0.5), 2.0)
        y = max(y + step, start)
        if abs(step) < LAST_STEP * y * ratio:
            break
    return y


@compiled
def _cube(a: float, normal: float) -> float:
    """A gamma variable from a normal one, nearly, by the cube root."""
    root = 1 - 1 / (9 * a) + normal / (3 * math.sqrt(a))
    return a * max(root, 0.0) ** 3
