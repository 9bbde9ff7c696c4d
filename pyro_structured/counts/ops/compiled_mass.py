"""Mass function of a sum of independent binary variables, far tails included, in compiled loops; imported only where
numba is.
"""

__all__ = ["log_mass"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled, compiled_in_any_order
from pyro_structured.foundation.ops.compiled_exponentials import logarithms

# Powers of 2 by which numbers may have grown or shrunk before they get new scales, and steps before that.
MOST_BITS, MOST_STEPS = 900, 64
MOST, LEAST = 2.0**MOST_BITS, 2.0**-MOST_BITS
# Variables that are added in one step, and their least probabilities: their product times a number is a number of
# ordinary size, where there is room for it.
TOGETHER, MODERATE = 4, 2.0**-50
ROOM = LEAST / MODERATE**TOGETHER
LOG_2 = math.log(2.0)
# A number between 1/2 and 1 has these bits of a mantissa below this exponent.
MANTISSA_BITS, MANTISSA, HALF = 52, 2**52 - 1, 1022


@compiled
def log_mass(logits: np.ndarray, masses: np.ndarray, solved: np.ndarray) -> None:
    r"""Fills the log-probabilities of all counts, and whether they are known; all -inf and false before.

    Variables are added one after the other, or four in one step, which moves fewer numbers, if none is nearly certain.
    Every count has a scale of its own, a power of 2, so that numbers are neither too large nor too small; bounds on
    their growth tell when scales have to be chosen anew. All terms are positive: relative errors are at most four
    roundings for each variable. Rows with log-odds so large that a single step would leave the range of numbers
    are not solved.

    :param logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are certainties.
    :param masses: Shape ``(rows, num_variables + 1)``.
    :param solved: Shape ``(rows,)``.
    """
    num_rows, num_variables = logits.shape
    # Zeros on both sides of the counts stand for counts that are impossible.
    now, after = np.zeros(num_variables + 1 + 2 * TOGETHER), np.zeros(num_variables + 1 + 2 * TOGETHER)
    # Mass of a count is 2**exponent times a number; the mass of one fewer has this number times the ratio of scales.
    exponents = np.zeros(num_variables + 1, np.int64)
    padded_ratios = np.ones(num_variables + 1 + TOGETHER)
    ratios = padded_ratios[TOGETHER:]
    # Probabilities of the counts of variables that wait for others.
    chances = np.zeros(TOGETHER + 1)
    for row in range(num_rows):
        certain, number, waiting, steps = 0, 0, 0, 0
        grown, shrunk, largest = 1.0, 1.0, 1.0
        now[:], after[:], chances[:] = 0.0, 0.0, 0.0
        now[TOGETHER], exponents[0], chances[0] = 1.0, 0, 1.0
        exponents[1 : MOST_STEPS + 1], ratios[: MOST_STEPS + 1] = 0, 1.0
        is_fine, is_alone = True, False
        for d in range(num_variables):
            logit = logits[row, d]
            if math.isinf(logit):
                certain += logit > 0.0
                continue
            odds = math.exp(-abs(logit))
            likely = 1.0 / (1.0 + odds)
            on, off = (likely, odds * likely) if logit > 0.0 else (odds * likely, likely)
            is_extreme = min(on, off) < MODERATE
            is_full = is_alone or is_extreme or waiting == TOGETHER or shrunk < ROOM
            for attempt in range(2):
                growth = max(off + on * largest, 1.0)
                shrinkage = min(off, on, on * ratios[number + waiting + 1])
                fits = steps < MOST_STEPS and grown * growth < MOST and shrunk * shrinkage > LEAST
                if waiting and (is_full or not fits):
                    _add_variables(now, padded_ratios, chances, after[TOGETHER : TOGETHER + number + waiting + 1])
                    now, after, number, waiting = after, now, number + waiting, 0
                if fits or attempt:
                    break
                counts = now[TOGETHER : TOGETHER + number + 1]
                largest = _rescale(counts, exponents, ratios, min(MOST_STEPS, num_variables - number))
                grown, shrunk, steps = 1.0, 0.5, 0
            if not fits or not largest < math.inf:
                is_fine = False
                break
            grown, shrunk, steps = grown * growth, shrunk * shrinkage, steps + 1
            waiting, is_alone = waiting + 1, is_extreme
            for count in range(waiting, 0, -1):
                chances[count] = off * chances[count] + on * chances[count - 1]
            chances[0] *= off
        solved[row] = is_fine
        if is_fine:
            if waiting:
                _add_variables(now, padded_ratios, chances, after[TOGETHER : TOGETHER + number + waiting + 1])
                now, after, number = after, now, number + waiting
            known = masses[row, certain : certain + number + 1]
            logarithms(now[TOGETHER : TOGETHER + number + 1], known, after[: number + 1])
            for count in range(number + 1):
                known[count] += exponents[count] * LOG_2


@compiled
def _rescale(masses: np.ndarray, exponents: np.ndarray, ratios: np.ndarray, more: int) -> float:
    """Moves the size of all numbers into their scales, and extends these to so many more counts.

    :return: The largest ratio of scales; infinite if some are too different.
    """
    number = len(masses)
    # Exponents are bits of numbers that are positive, neither tiny nor huge, which is faster than frexp and ldexp.
    bits, powers = masses.view(np.int64), ratios[1 : number + more].view(np.int64)
    for count in range(number):
        exponents[count] += (bits[count] >> MANTISSA_BITS) - HALF
        bits[count] = (bits[count] & MANTISSA) | (HALF << MANTISSA_BITS)
    for count in range(number, number + more):
        exponents[count] = 2 * exponents[count - 1] - exponents[count - 2] if count > 1 else exponents[0]
    least, most = 0, 0
    for count in range(number + more - 1):
        change = exponents[count] - exponents[count + 1]
        least, most = min(least, change), max(most, change)
        powers[count] = (change + HALF + 1) << MANTISSA_BITS
    return math.ldexp(1.0, most) if max(most, -least) <= MOST_BITS else math.inf


@compiled_in_any_order
def _add_variables(masses: np.ndarray, ratios: np.ndarray, chances: np.ndarray, sums: np.ndarray) -> None:
    """Adds four variables or fewer, whose count has given chances, to a sum, whose counts have masses in scales of
    given ratios; then chances are those of no variable.

    :param masses: Those of the counts from -4 on; ``ratios``, too.
    :param sums: Those of the counts from 0 on.
    """
    number = len(sums)
    none, one, two, three, four = chances[0], chances[1], chances[2], chances[3], chances[4]
    # Loops whose indices are those of slices are vectorised.
    same, less_1, less_2, less_3, less_4 = masses[4:], masses[3:], masses[2:], masses[1:], masses
    step, step_1, step_2, step_3 = ratios[4:], ratios[3:], ratios[2:], ratios[1:]
    for count in range(number):
        below = three * less_3[count] + step_3[count] * (four * less_4[count])
        below = one * less_1[count] + step_1[count] * (two * less_2[count] + step_2[count] * below)
        sums[count] = none * same[count] + step[count] * below
    chances[1:] = 0.0
    chances[0] = 1.0
