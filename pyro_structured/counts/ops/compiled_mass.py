"""Mass function of a sum of independent binary variables, far tails included, in compiled loops; imported only where
numba is.
"""

__all__ = ["log_mass"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled, compiled_in_any_order

# Powers of 2 by which numbers may have grown or shrunk before they get new scales, and steps before that.
MOST_BITS, MOST_STEPS = 900.0, 64
# Probabilities of a variable between which two variables are added in one step.
MODERATE = 2.0**-30
LOG_2 = math.log(2.0)


@compiled
def log_mass(logits: np.ndarray, masses: np.ndarray, solved: np.ndarray) -> None:
    r"""Fills the log-probabilities of all counts, and whether they are known; all -inf and false before.

    Variables are added one after the other, or two in one step, which moves fewer numbers, if neither is nearly
    certain. Every count has a scale of its own, a power of 2, so that numbers are neither too large nor too small;
    bounds on their growth tell when scales have to be chosen anew. All terms are positive: relative errors are at most
    four roundings for each variable. Rows with log-odds so large that a single step would leave the range of numbers
    are not solved.

    :param logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are certainties.
    :param masses: Shape ``(rows, num_variables + 1)``.
    :param solved: Shape ``(rows,)``.
    """
    num_rows, num_variables = logits.shape
    now, after = np.zeros(num_variables + 1), np.zeros(num_variables + 1)
    # Mass of a count is 2**exponent times a number; the mass of one fewer has this number times the ratio of scales.
    exponents = np.zeros(num_variables + 1, np.int64)
    ratios = np.ones(num_variables + 1)
    for row in range(num_rows):
        certain, number, steps = 0, 0, 0
        grown, shrunk, largest = 0.0, 0.0, 1.0
        # A variable that waits for another one, 1, or none, 0, and its probabilities.
        waiting, first_on, first_off = 0, 0.0, 1.0
        now[0], exponents[0] = 1.0, 0
        exponents[1 : MOST_STEPS + 1], ratios[: MOST_STEPS + 1] = 0, 1.0
        is_fine = True
        for d in range(num_variables):
            logit = logits[row, d]
            if math.isinf(logit):
                certain += logit > 0.0
                continue
            odds = math.exp(-abs(logit))
            likely = 1.0 / (1.0 + odds)
            on, off = (likely, odds * likely) if logit > 0.0 else (odds * likely, likely)
            for attempt in range(2):
                growth = math.log2(off + on * largest)
                shrinkage = -math.log2(min(off, on * ratios[number + waiting + 1]))
                if steps < MOST_STEPS and grown + max(growth, 0.0) < MOST_BITS and shrunk + shrinkage < MOST_BITS:
                    break
                if attempt:
                    is_fine = False
                    break
                if waiting:
                    _add_variable(now[: number + 1], ratios[: number + 2], first_on, first_off, after[: number + 2])
                    now, after, number, waiting = after, now, number + 1, 0
                largest = _rescale(now[: number + 1], exponents, ratios, min(MOST_STEPS, num_variables - number))
                grown, shrunk, steps = 0.0, 1.0, 0
            if not is_fine or not largest < math.inf:
                is_fine = False
                break
            grown, shrunk, steps = grown + max(growth, 0.0), shrunk + max(shrinkage, 0.0), steps + 1
            if not waiting and min(on, off) > MODERATE:
                waiting, first_on, first_off = 1, on, off
                continue
            if waiting and min(on, off) > MODERATE:
                both = first_on, first_off, on, off
                _add_pair(now[: number + 1], ratios[: number + 3], *both, after[: number + 3])
                now, after, number, waiting = after, now, number + 2, 0
                continue
            if waiting:
                _add_variable(now[: number + 1], ratios[: number + 2], first_on, first_off, after[: number + 2])
                now, after, number, waiting = after, now, number + 1, 0
            _add_variable(now[: number + 1], ratios[: number + 2], on, off, after[: number + 2])
            now, after, number = after, now, number + 1
        solved[row] = is_fine
        if is_fine:
            if waiting:
                _add_variable(now[: number + 1], ratios[: number + 2], first_on, first_off, after[: number + 2])
                now, after, number = after, now, number + 1
            for count in range(number + 1):
                masses[row, certain + count] = math.log(now[count]) + exponents[count] * LOG_2


@compiled
def _rescale(masses: np.ndarray, exponents: np.ndarray, ratios: np.ndarray, more: int) -> float:
    """Moves the size of all numbers into their scales, and extends these to so many more counts.

    :return: The largest ratio of scales; infinite if some are too different.
    """
    largest, number = 1.0, len(masses)
    for count in range(number):
        masses[count], exponent = math.frexp(masses[count])
        exponents[count] += exponent
    for count in range(1, number + more):
        if count >= number:
            exponents[count] = 2 * exponents[count - 1] - exponents[count - 2] if count > 1 else exponents[0]
        bits = exponents[count - 1] - exponents[count]
        if abs(bits) > MOST_BITS:
            return math.inf
        ratios[count] = math.ldexp(1.0, bits)
        largest = max(largest, ratios[count])
    return largest


@compiled_in_any_order
def _add_variable(masses: np.ndarray, ratios: np.ndarray, on: float, off: float, sums: np.ndarray) -> None:
    """Adds a variable to a sum, whose counts 0 to n - 1 have masses, in scales of given ratios."""
    number = len(masses)
    sums[0] = off * masses[0]
    for count in range(1, number):
        sums[count] = off * masses[count] + on * (ratios[count] * masses[count - 1])
    sums[number] = on * (ratios[number] * masses[number - 1])


@compiled_in_any_order
def _add_pair(
    masses: np.ndarray,
    ratios: np.ndarray,
    first_on: float,
    first_off: float,
    on: float,
    off: float,
    sums: np.ndarray,
) -> None:
    """Adds two variables to a sum, whose counts 0 to n - 1 have masses, in scales of given ratios."""
    number = len(masses)
    none, one, both = first_off * off, first_on * off + first_off * on, first_on * on
    sums[0] = none * masses[0]
    # Loops whose indices are those of slices are vectorised.
    second, third, upper, steps = masses[1:], masses[2:], sums[2:], ratios[1:]
    higher = ratios[2:]
    for count in range(number - 2):
        below = one * second[count] + steps[count] * (both * masses[count])
        upper[count] = none * third[count] + higher[count] * below
    if number > 1:
        sums[1] = none * masses[1] + ratios[1] * (one * masses[0])
        below = one * masses[number - 1] + ratios[number - 1] * (both * masses[number - 2])
    else:
        below = one * masses[0]
    sums[number] = ratios[number] * below
    sums[number + 1] = ratios[number + 1] * (ratios[number] * (both * masses[number - 1]))
