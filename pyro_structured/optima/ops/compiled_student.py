"""Draws from Student's t distributions between bounds, one number at a time, for compiled loops."""

__all__ = ["compiled_student_quantile"]

import math

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.compiled_quantile import compiled_quantile, log_mix

# In units of the scale of the tail there: the error after a step is the cube of that before, nearly.
LAST_STEP, MOST_STEPS = 1e-5, 60
# Two units in the last place: smaller changes need not end.
ROUNDING = 2.0**-51
# Squares of larger numbers leave the range of numbers.
LARGEST = 1e150


@compiled
def compiled_student_quantile(uniform: float, freedom: float, low: float, high: float) -> float:
    r"""Quantiles of a variable with Student's t distribution of scale 1 between two bounds.

    As :func:`~pyro_structured.optima.ops.student_quantile.student_quantile`, by Halley's method for the logarithm of
    the probability of a tail, which underflows nowhere.

    :param uniform: A probability between 0 and 1.
    :param freedom: Degrees of freedom, larger than 0 and at most 1e5.
    :param low: A number or -inf.
    :param high: A larger number or +inf.
    :return: A number between the bounds.

    **References**

    Press, Teukolsky, Vetterling, Flannery (2007): *Numerical recipes.* Cambridge. Section 6.4.
    """
    share, rest, sign = uniform, 1 - uniform, 1.0
    if low + high > 0:
        share, rest, sign = rest, share, -1.0
        low, high = -high, -low
    peak = _log_peak(freedom)
    if high <= 0:
        most = _log_tail(-high, freedom, peak)
        log_tail = most + log_mix(share, rest, _log_tail(-low, freedom, peak) - most)
        return -sign * max(min(_point(log_tail, freedom, peak), -low), -high)
    below, above = math.exp(_log_tail(-low, freedom, peak)), math.exp(_log_tail(high, freedom, peak))
    mass = 1 - below - above
    left, right = below + share * mass, above + rest * mass
    if left < right:
        return -sign * min(_point(math.log(left), freedom, peak), -low)
    return sign * min(_point(math.log(right), freedom, peak), high)


@compiled
def _log_peak(freedom: float) -> float:
    """Logarithm of the density at zero."""
    if freedom < 100:
        ratio = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
        return ratio - 0.5 * math.log(freedom * math.pi)
    t = 1 / freedom
    return -0.5 * math.log(2 * math.pi) - t / 4 * (1 - t**2 / 6 * (1 - t**2 * 6 / 5))


@compiled
def _log_density(x: float, freedom: float, peak: float) -> float:
    if x > LARGEST:
        return peak - (freedom + 1) * (math.log(x) - 0.5 * math.log(freedom))
    return peak - (freedom + 1) / 2 * math.log1p(x * x / freedom)


@compiled
def _is_central(x: float, freedom: float) -> bool:
    """Whether a series from zero is faster than the continued fraction of the tail."""
    return x < LARGEST and x * x <= 3 * freedom / (freedom + 2)


@compiled
def _log_tail(x: float, freedom: float, peak: float) -> float:
    """Logarithm of the probability above a number that is not negative."""
    if x == math.inf:
        return -math.inf
    if _is_central(x, freedom):
        return math.log(0.5 - x * math.exp(_log_density(x, freedom, peak)) * _inner(x, freedom))
    return _log_density(x, freedom, peak) + math.log(x / freedom * _outer(x, freedom))


@compiled
def _inner(x: float, freedom: float) -> float:
    """Probability between zero and a number, divided by the number and the density there."""
    ratio, term, total, count = x * x / (freedom + x * x), 1.0, 1.0, 0
    while term > 1e-17 * total:
        term *= ratio * (freedom / 2 + 0.5 + count) / (1.5 + count)
        total += term
        count += 1
    return total


@compiled
def _outer(x: float, freedom: float) -> float:
    """Probability above a number, divided by its density and by the number, times the degrees of freedom."""
    a, z = freedom / 2, freedom / (freedom + x * x) if x < LARGEST else 0.0
    top, inverse = 1.0, 1 / (1 - (a + 0.5) * z / (a + 1))
    total, step, count = inverse, 0.0, 0
    while abs(step - 1) > ROUNDING:
        count += 1
        place = a + 2 * count
        numerator = count * (0.5 - count) * z / ((place - 1) * place)
        inverse, top = 1 / (1 + numerator * inverse), 1 + numerator / top
        total *= inverse * top
        numerator = -(a + count) * (a + 0.5 + count) * z / (place * (place + 1))
        inverse, top = 1 / (1 + numerator * inverse), 1 + numerator / top
        step = inverse * top
        total *= step
    return total


@compiled
def _point(log_tail: float, freedom: float, peak: float) -> float:
    """The number above which the variable lies with a probability of at most one half."""
    if log_tail == -math.inf:
        return math.inf
    # The normal variable with nearly this tail, moved to the other distribution.
    normal = (
        -compiled_quantile(math.exp(log_tail), -math.inf, math.inf) if log_tail > -600 else math.sqrt(-2 * log_tail)
    )
    power = normal * normal / freedom
    x = math.sqrt(freedom * math.expm1(power)) if power < 600 else math.exp(power / 2) * math.sqrt(freedom)
    x = min(x, 1e300)
    central = math.sqrt(3 * freedom / (freedom + 2))
    if log_tail >= _log_tail(central, freedom, peak):
        mass, x = 0.5 - math.exp(log_tail), min(x, central)
        for _ in range(MOST_STEPS):
            density = math.exp(_log_density(x, freedom, peak))
            step = mass / density - x * _inner(x, freedom)
            step /= max(1 - step * x * (freedom + 1) / (freedom + x * x) / 2, 0.5)
            x = max(min(x + step, central), 0.0)
            if abs(step) < LAST_STEP * central:
                break
        return x
    x = max(x, central)
    for _ in range(MOST_STEPS):
        ratio = _outer(x, freedom) / freedom
        gap = (_log_density(x, freedom, peak) + math.log(x * ratio) - log_tail) * ratio
        slope = 1 - (freedom + 1) / (1 + freedom / (x * x)) if x < LARGEST else -freedom
        step = gap / min(max(1 + gap * (slope + 1 / ratio) / 2, 0.5), 2.0)
        x = max(x * math.exp(min(step, 600.0)), central)
        if abs(step) < LAST_STEP * min(ratio, 1.0) or x >= 1e300:
            break
    return x
