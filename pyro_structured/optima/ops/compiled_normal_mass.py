"""Logarithms of normal probabilities of many intervals, by vector instructions; imported only where numba is."""

__all__ = ["log_normal_masses", "scaled_tails"]

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.foundation.ops.compiled_exponentials import exponentials, logarithms

# Coefficients of powers of t = (x - POLE) / (x + POLE), the highest one first, of (x + POLE) exp(x**2 / 2) times the
# normal probability above x, for all x from 0 on: the interpolation at 64 nodes of Chebyshev, in 40 digits. Powers
# above 24 do not count.
POLE = 6.0
SCALED_TAIL = (
    7.038111375958135e-11,
    -3.403350501945896e-10,
    -7.828191936665439e-10,
    4.6664643925858215e-09,
    3.9361952129522875e-09,
    -4.10380431659102e-08,
    5.175950303086143e-09,
    3.0702367893627545e-07,
    -4.2792082812200157e-07,
    -1.7969945618258692e-06,
    6.795697883730602e-06,
    1.0742840107015701e-06,
    -6.475182912359327e-05,
    0.00018136081565295003,
    3.286999093017252e-05,
    -0.002131605285716135,
    0.010029820643608887,
    -0.03098531549895509,
    0.07517191566872725,
    -0.15268023206503917,
    0.2679742458416649,
    -0.4139035857755745,
    0.5689688918147835,
    -0.7010090295908656,
    0.7773517718933622,
)
# Numbers of which as many are taken together as stay in fast memory; numbers beyond the farthest count as this.
TOGETHER, FARTHEST = 256, 1e100


@compiled
def log_normal_masses(low: np.ndarray, high: np.ndarray, masses: np.ndarray) -> None:
    """Fills in logarithms of the probabilities of a standard normal variable between bounds: -inf where these coincide,
    and -inf or no numbers where they cross.

    :param np.ndarray low: Lower bounds, -inf included, float64 and contiguous, as all others, shape ``(N,)``.
    :param np.ndarray high: Upper bounds, +inf included.
    :param np.ndarray masses: Another array of this shape.

    Probabilities have relative errors of some units in the last place of the larger one of the tails whose difference
    they are. O(N).
    """
    near, far, peak = np.zeros(TOGETHER), np.zeros(TOGETHER), np.zeros(TOGETHER)
    ratio, space = np.zeros(TOGETHER), np.zeros(TOGETHER)
    near_tail, far_tail = np.zeros(TOGETHER), np.zeros(TOGETHER)
    for start in range(0, len(low), TOGETHER):
        count = min(TOGETHER, len(low) - start)
        for i in range(count):
            first, last = low[start + i], high[start + i]
            # The bound next to zero, and the other one.
            one, other = (first, last) if first + last > 0.0 else (last, first)
            near[i], far[i] = min(abs(one), FARTHEST), min(abs(other), FARTHEST)
        scaled_tails(near, near_tail, space)
        scaled_tails(far, far_tail, space)
        for i in range(TOGETHER):
            space[i] = (near[i] - far[i]) * (near[i] + far[i]) / 2
            peak[i] = -near[i] * near[i] / 2
        exponentials(space, ratio, near)
        for i in range(TOGETHER):
            far_tail[i] *= ratio[i]
        exponentials(peak, ratio, near)
        for i in range(count):
            # Zero is between the bounds, or not.
            if low[start + i] < 0.0 < high[start + i]:
                space[i] = 1.0 - (near_tail[i] + far_tail[i]) * ratio[i]
                peak[i] = 0.0
            else:
                space[i] = near_tail[i] - far_tail[i]
        logarithms(space, ratio, near)
        for i in range(count):
            masses[start + i] = peak[i] + ratio[i]


@compiled
def scaled_tails(x: np.ndarray, tails: np.ndarray, space: np.ndarray) -> None:
    """Fills in exp(x**2 / 2) times normal probabilities above x, which are not negative; ``space`` is overwritten."""
    for i in range(len(x)):
        space[i] = (x[i] - POLE) / (x[i] + POLE)
        tails[i] = SCALED_TAIL[0]
    for degree in range(1, len(SCALED_TAIL)):
        coefficient = SCALED_TAIL[degree]
        for i in range(len(x)):
            tails[i] = tails[i] * space[i] + coefficient
    for i in range(len(x)):
        tails[i] /= x[i] + POLE
