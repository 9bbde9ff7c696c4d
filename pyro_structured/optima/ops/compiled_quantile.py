"""Quantiles and probabilities of standard normal variables between bounds, for compiled loops."""

__all__ = ["compiled_quantile", "compiled_quantiles", "fill_quantiles", "log_mix", "log_normal_mass"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.foundation.ops.compiled_exponentials import exponentials, logarithms
from pyro_structured.optima.ops.compiled_normal_mass import TOGETHER, scaled_tails
from pyro_structured.optima.ops.truncated_normal import NARROW, NARROWEST, NEWTON_STEPS

# Below this number, tail probabilities become too small for a double.
FAR = -36.0
LOG_ROOT, HALF = 0.5 * math.log(2 * math.pi), 1 / math.sqrt(2)
# Probabilities from which on, and as far from 1, the fraction of the centre, and that of tails, is enough.
CENTRE_FROM, TAIL_FROM = 0.075, math.exp(-25.0)
# Tails of numbers that are larger count as those of this one, which are nothing beside those of other bounds.
FARTHEST = 37.5
# Wichura (1988), Algorithm AS 241, PPND16: numerators and denominators, highest powers first.
CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457)
    + (13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867)
    + (5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)
TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258)
    + (3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459)
    + (0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)
FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093)
    + (0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4)
    + (0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)


@compiled
def compiled_quantile(uniform: float, low: float, high: float) -> float:
    r"""Quantiles of a standard normal variable between two bounds.

    As :func:`~pyro_structured.optima.ops.truncated_normal.truncated_quantile`, by probabilities of tails wherever a
    double can hold them, and by the same Newton's method for the distance from the bound beyond.

    :param uniform: A probability between 0 and 1.
    :param low: A number or -inf.
    :param high: A larger number or +inf.
    :return: A number between the bounds; it differs from the other function's by less than 1e-14 of its size plus 1.

    **References**

    Wichura (1988): *Algorithm AS 241: the percentage points of the normal distribution.* Applied Statistics.
    """
    return _quantile(uniform, 1 - uniform, low, high)


@compiled
def fill_quantiles(below: np.ndarray, above: np.ndarray, low: np.ndarray, high: np.ndarray, found: np.ndarray) -> None:
    """Fills in quantiles of standard normal variables between two bounds.

    :param np.ndarray below: Probabilities below them, float64, shape ``(N,)``; ``above``, those above.
    :param np.ndarray low: Numbers or -inf, float64, shape ``(M, N)``; ``high``, larger numbers or +inf.
    :param np.ndarray found: Shape ``(M, N)``.

    O(M · N).
    """
    space = np.empty((9, min(len(below), TOGETHER)))
    for m in range(len(found)):
        for n in range(0, len(below), TOGETHER):
            end = n + TOGETHER
            compiled_quantiles(below[n:end], above[n:end], low[m, n:end], high[m, n:end], found[m, n:end], space)


@compiled
def compiled_quantiles(
    below: np.ndarray, above: np.ndarray, low: np.ndarray, high: np.ndarray, found: np.ndarray, space: np.ndarray
) -> None:
    """Fills in quantiles of standard normal variables between two bounds, most of them by vector instructions.

    :param np.ndarray below: Probabilities below them, float64 and contiguous, as all others, shape ``(N,)``; ``above``,
        those above.
    :param np.ndarray low: Numbers or -inf, shape ``(N,)``; ``high``, larger numbers or +inf.
    :param np.ndarray found: Shape ``(N,)``; they differ from :func:`compiled_quantile` by less than 1e-14 of their size
        plus 1.
    :param np.ndarray space: Memory of shape ``(9, N)``, or more columns.
    """
    count = len(found)
    outer, inner, outer_tail, inner_tail = space[0, :count], space[1, :count], space[2, :count], space[3, :count]
    centred, nearer, point = space[4, :count], space[5, :count], space[6, :count]
    top, bottom = space[7, :count], space[8, :count]
    has_outer = False
    for i in range(count):
        # Mirrored so that the middle is not positive: the bounds are -outer, and inner or -inner.
        is_mirrored = low[i] + high[i] > 0
        outer[i] = min(high[i] if is_mirrored else -low[i], FARTHEST)
        inner[i] = min(abs(low[i] if is_mirrored else high[i]), FARTHEST)
        has_outer |= outer[i] < FARTHEST
    _fill_tails(inner, inner_tail, top, bottom)
    if has_outer:
        _fill_tails(outer, outer_tail, top, bottom)
    else:
        outer_tail[:] = 0.0
    for i in range(count):
        is_mirrored = low[i] + high[i] > 0
        share, rest = (above[i], below[i]) if is_mirrored else (below[i], above[i])
        is_tail = (-low[i] if is_mirrored else high[i]) <= 0
        first, last = outer_tail[i], inner_tail[i]
        mass = last - first if is_tail else 1 - first - last
        left = first + share * mass
        right = 1.0 if is_tail else last + rest * mass
        centred[i] = left - 0.5
        nearer[i] = left if left < right else right
    logarithms(nearer, point, top)
    for i in range(count):
        inner[i] = math.sqrt(max(-point[i], 0.0)) - 1.6
        outer[i] = 0.180625 - centred[i] * centred[i]
    _fractions(CENTRE, outer, top, bottom)
    for i in range(count):
        point[i] = centred[i] * (top[i] / bottom[i])
    _fractions(TAIL, inner, top, bottom)
    for i in range(count):
        tail = top[i] / bottom[i]
        quantile = point[i] if nearer[i] >= CENTRE_FROM else -tail if centred[i] < 0 else tail
        quantile = -quantile if low[i] + high[i] > 0 else quantile
        found[i] = max(min(quantile, high[i]), low[i])
    for i in range(count):
        is_far = (-low[i] if low[i] + high[i] > 0 else high[i]) < FAR
        if is_far or not nearer[i] >= TAIL_FROM or (high[i] - low[i]) * (1 + abs(low[i])) < NARROWEST:
            found[i] = _quantile(below[i], above[i], low[i], high[i])


@compiled
def _fill_tails(x: np.ndarray, tails: np.ndarray, peaks: np.ndarray, space: np.ndarray) -> None:
    """Fills in probabilities above numbers that are not negative; overwrites all other arrays."""
    scaled_tails(x, tails, space)
    for i in range(len(x)):
        x[i] = -x[i] * x[i] / 2
    exponentials(x, peaks, space)
    for i in range(len(x)):
        tails[i] *= peaks[i]


@compiled
def _fractions(
    coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: np.ndarray, top: np.ndarray, bottom: np.ndarray
) -> None:
    """Fills in numerators and denominators."""
    for i in range(len(x)):
        top[i], bottom[i] = coefficients[0][0], coefficients[1][0]
    for degree in range(1, 8):
        above, below = coefficients[0][degree], coefficients[1][degree]
        for i in range(len(x)):
            top[i], bottom[i] = top[i] * x[i] + above, bottom[i] * x[i] + below


@compiled
def _quantile(share: float, rest: float, low: float, high: float) -> float:
    width = high - low
    if width * (1 + abs(low)) < NARROWEST:
        rate = (low + high) / 2 * width
        bend = (rest - share) * (rate * rate / 6 + width * width / 12)
        return low + width * (share - share * rest * (rate / 2 - bend))
    if low + high > 0:
        quantile = -_lower_quantile(rest, share, -high, -low)
    else:
        quantile = _lower_quantile(share, rest, low, high)
    return max(min(quantile, high), low)


@compiled
def _lower_quantile(share: float, rest: float, low: float, high: float) -> float:
    """Quantile between bounds whose middle is not positive, from a probability and its complement."""
    if high < FAR:
        return high - _distance(share, rest, low, high)
    below = _tail_mass(low)
    if high <= 0:
        return -_upper_point(below + share * (_tail_mass(high) - below))
    above = _tail_mass(-high)
    mass = 1 - below - above
    left, right = below + share * mass, above + rest * mass
    if min(left, right) >= CENTRE_FROM:
        return _centre(left - 0.5)
    return -_upper_point(left) if left < right else _upper_point(right)


@compiled
def _tail_mass(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2)) if x > -math.inf else 0.0


@compiled
def _upper_point(mass: float) -> float:
    """The number above which a standard normal variable lies with a probability of at most one half."""
    if mass >= CENTRE_FROM:
        return _centre(0.5 - mass)
    if mass <= 0:
        return math.inf
    root = math.sqrt(-math.log(mass))
    return _fraction(TAIL, root - 1.6) if root <= 5 else _fraction(FAR_TAIL, root - 5)


@compiled
def _centre(centred: float) -> float:
    """Quantile of a probability, less one half, where it is not near 0 or 1."""
    return centred * _fraction(CENTRE, 0.180625 - centred**2)


@compiled
def _fraction(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: float) -> float:
    top = bottom = 0.0
    for above, below in zip(coefficients[0], coefficients[1]):  # noqa: B905 (numba knows no strict)
        top, bottom = top * x + above, bottom * x + below
    return top / bottom


@compiled
def _distance(share: float, rest: float, low: float, high: float) -> float:
    """Distance of the quantile from the upper bound, which is far below zero."""
    ratio = _log_ratio(low, high)
    below = share + rest * math.exp(ratio)
    if below <= 0:
        return math.inf
    gap = -math.log(below) if below < 0.5 else -math.log1p(rest * math.expm1(ratio))
    distance = 2 * gap / (math.sqrt(high**2 + 2 * gap) - high)
    for _ in range(NEWTON_STEPS):
        hazard = (distance - high) / _mills(distance - high)
        distance = max(distance + (gap + _log_ratio(high - distance, high)) / hazard, 0.0)
    return distance


@compiled
def _log_ratio(low: float, high: float) -> float:
    """Logarithm of the ratio of the tails below two numbers far below zero."""
    if low == -math.inf:
        return -math.inf
    return (high - low) * (high + low) / 2 + math.log(_mills(-low) * high / (_mills(-high) * low))


@compiled
def _mills(x: float) -> float:
    """Tail probability divided by the density, times x: the asymptotic series, exact up to rounding beyond 36."""
    t = x**-2
    return 1 - t * (1 - t * (3 - t * (15 - t * (105 - t * (945 - t * 10395)))))


@compiled
def log_normal_mass(low: float, high: float, width: float) -> float:
    """Logarithm of the probability between two numbers, as
    :func:`~pyro_structured.optima.ops.truncated_normal.log_interval_mass` gives it.

    :param low: A number or -inf.
    :param high: A larger number or +inf.
    :param width: Their difference.
    """
    if low + high > 0:
        low, high = -high, -low
    if width * (1 + abs(low)) < NARROW:
        middle = (low + high) / 2
        square, part = middle**2, width**2
        series = (square - 1) * part / 24 + (square**2 - 6 * square + 3) * part**2 / 1920
        return math.log(width) + math.log1p(series) - square / 2 - LOG_ROOT
    if high <= 0:
        below = _log_tail(high)
        return below + math.log(-math.expm1(_log_tail_ratio(low, high) if low > -math.inf else -math.inf))
    outside = _tail_mass(low) + _tail_mass(-high)
    return math.log1p(-outside) if outside < 0.5 else math.log((math.erf(high * HALF) + math.erf(-low * HALF)) / 2)


@compiled
def _log_tail(x: float) -> float:
    """Logarithm of the probability below a number that is not positive."""
    return math.log(_tail_mass(x)) if x >= FAR else math.log(_mills(-x) / -x) - x * x / 2 - LOG_ROOT


@compiled
def _log_tail_ratio(low: float, high: float) -> float:
    """Logarithm of the ratio of the tails below two numbers that are not positive."""
    return _log_ratio(low, high) if high < FAR else _log_tail(low) - _log_tail(high)


@compiled
def log_mix(share: float, rest: float, ratio: float) -> float:
    """Logarithm of ``share + rest * exp(ratio)``, where both add up to 1 and the ratio is not positive."""
    return math.log1p(rest * math.expm1(ratio)) if ratio > -0.5 else math.log(share + rest * math.exp(ratio))
