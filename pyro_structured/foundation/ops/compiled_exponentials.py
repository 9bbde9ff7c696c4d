"""Exponentials and logarithms of many numbers by vector instructions; imported only where numba is.

Loops without branches, which compilers vectorise; those of the standard library are called one after the other.
"""

__all__ = ["exponentials", "logarithms"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled

# Log 2 as the sum of a number whose products with exponents are exact, and a rest.
LOG_TWO, LOG_TWO_REST = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Added to a small number, it rounds this to an integer, which stands in the last bits of the sum.
ROUNDING = 1.5 * 2.0**52
# Bits of the fraction of a double; bits of the root of 1/2; and an exponent that keeps differences of exponents
# positive, with the double in whose last bits an integer is a number.
FRACTION, ROOT, LIFT, INTEGER = 52, 0x3FE6A09E667F3BCD, 2048, 0x4330000000000000
# Range of normal doubles, and of numbers whose exponentials are such.
LEAST, MOST, LOWEST, HIGHEST = 2.0**-1022, 2.0**1023, -708.0, 709.0
# Coefficients of the power series of (exp(r) - 1 - r) / r**2, and of (artanh(s) - s) / s**3 in powers of s**2.
POWERS = tuple(1 / math.factorial(degree) for degree in range(2, 14))
ODD = tuple(1 / degree for degree in range(3, 23, 2))


@compiled
def exponentials(x: np.ndarray, results: np.ndarray, space: np.ndarray) -> None:
    """Fills exponentials, with an error of at most 2 units in the last place. O(N).

    :param x: Numbers, infinite ones included, float64 and contiguous, as all others, shape ``(N,)``.
    :param results: Another array of this shape.
    :param space: Another one, which is overwritten.
    """
    for i in range(len(x)):
        shifted = x[i] * (1.0 / 0.6931471805599453) + ROUNDING
        space[i] = shifted
        power = shifted - ROUNDING
        r = (x[i] - power * LOG_TWO) - power * LOG_TWO_REST
        series = POWERS[11]
        series = series * r + POWERS[10]
        series = series * r + POWERS[9]
        series = series * r + POWERS[8]
        series = series * r + POWERS[7]
        series = series * r + POWERS[6]
        series = series * r + POWERS[5]
        series = series * r + POWERS[4]
        series = series * r + POWERS[3]
        series = series * r + POWERS[2]
        series = series * r + POWERS[1]
        series = series * r + POWERS[0]
        results[i] = 1.0 + (r + r * r * series)
    bits, powers = results.view(np.int64), space.view(np.int64)
    for i in range(len(x)):
        bits[i] += powers[i] << FRACTION
    for i in range(len(x)):
        if not LOWEST <= x[i] <= HIGHEST:
            results[i] = math.exp(x[i])


@compiled
def logarithms(x: np.ndarray, results: np.ndarray, space: np.ndarray) -> None:
    """Fills natural logarithms of numbers that are not negative; arguments and errors as of :func:`exponentials`."""
    bits, fractions, powers = x.view(np.uint64), results.view(np.uint64), space.view(np.uint64)
    for i in range(len(x)):
        # The power of 2 that leaves a fraction between the root of 1/2 and that of 2.
        power = (bits[i] + np.uint64((LIFT << FRACTION) - ROOT)) >> np.uint64(FRACTION)
        powers[i] = power | np.uint64(INTEGER)
        fractions[i] = bits[i] - ((power - np.uint64(LIFT)) << np.uint64(FRACTION))
    for i in range(len(x)):
        power, rest = space[i] - (2.0**FRACTION + LIFT), results[i] - 1.0
        s = rest / (2.0 + rest)
        square = s * s
        series = ODD[9]
        series = series * square + ODD[8]
        series = series * square + ODD[7]
        series = series * square + ODD[6]
        series = series * square + ODD[5]
        series = series * square + ODD[4]
        series = series * square + ODD[3]
        series = series * square + ODD[2]
        series = series * square + ODD[1]
        series = series * square + ODD[0]
        # 2 s = rest - s rest.
        results[i] = power * LOG_TWO + (rest - (s * rest - 2.0 * s * (square * series) - power * LOG_TWO_REST))
    for i in range(len(x)):
        if not LEAST <= x[i] <= MOST:
            results[i] = math.log(x[i])
