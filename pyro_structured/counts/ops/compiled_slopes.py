"""Derivatives of posteriors under one potential on a count, in compiled loops; imported only where numba is.

Second derivatives of log Z are symmetric: products of cotangents with the derivatives of the posteriors are changes of
the posteriors themselves along a direction. So one pass up a tree of the variables and one down carry, beside every
message, its change along this direction. Rows are computed side by side in memory.
"""

__all__ = ["pull_back_posteriors"]

import math

import numpy as np

from pyro_structured.counts.ops.compiled_cells import child_messages, level_starts, message_width, num_nodes
from pyro_structured.counts.ops.compiled_counts import weigh_counts
from pyro_structured.foundation.ops.compiled import compiled, compiled_in_place

# Largest numbers of rows, and of their entries of messages, that are computed side by side.
LANES, ENTRIES = 32, 2**20


@compiled
def pull_back_posteriors(
    logits: np.ndarray,
    tables: np.ndarray,
    tilts: np.ndarray,
    odds: np.ndarray,
    grad_odds: np.ndarray,
    grad_counts: np.ndarray,
    limit: int,
    grad_logits: np.ndarray,
    grad_tables: np.ndarray,
) -> None:
    """Fills products of cotangents with the derivatives of posteriors; all zeros before.

    :param logits: Log-odds, shape ``(rows, num_variables)``, float64 and contiguous, as all others; infinite ones are
        clamps.
    :param tables: Log-potential of every count, at most 0, shape ``(rows, num_variables + 1)``.
    :param tilts: By which log-odds are shifted, shape ``(rows,)``.
    :param odds: Posterior log-odds, of the shape of ``logits``; ``grad_odds``, their cotangents, and ``grad_logits``,
        results, too.
    :param grad_counts: Cotangents of the probabilities of the counts, of the shape of ``tables``; ``grad_tables``,
        results, too.
    :param limit: Largest count that is possible.
    """
    num_rows, num_variables = logits.shape
    starts = level_starts(num_variables, 1, limit)
    top, end = starts[-2], starts[-2] + limit + 1
    side = max(min(LANES, num_rows, ENTRIES // starts[-1]), 1)
    # Messages and their changes.
    inside, outside = np.zeros((starts[-1], 2, side)), np.zeros((starts[-1], 2, side))
    weights, space = np.zeros(limit + 1), np.zeros((2, limit + 1))
    for first in range(0, num_rows, side):
        lanes = min(side, num_rows - first)
        for lane in range(lanes):
            row = first + lane
            for d in range(num_variables):
                message = inside[2 * d : 2 * d + 2, :, lane]
                _start(logits[row, d] + tilts[row], odds[row, d], grad_odds[row, d], message)
            weigh_counts(tables[row], tilts[row], weights, space)
            for count in range(limit + 1):
                outside[top + count, 0, lane] = weights[count]
                outside[top + count, 1, lane] = weights[count] * grad_counts[row, count]
        _upward(inside, num_variables, limit)
        _downward(inside, outside, num_variables, limit)
        for lane in range(lanes):
            row = first + lane
            mass, change = 0.0, 0.0
            for cell in range(top, end):
                joint, changed = _joint(inside[cell, :, lane], outside[cell, :, lane])
                mass, change = mass + joint, change + changed
            change /= mass
            for count in range(limit + 1):
                joint, changed = _joint(inside[top + count, :, lane], outside[top + count, :, lane])
                grad_tables[row, count] = (changed - joint * change) / mass
            for d in range(num_variables):
                if math.isinf(logits[row, d]):
                    # Its posterior is the clamp itself.
                    grad_logits[row, d] = grad_odds[row, d]
                    continue
                # Next to the smaller probability, differences do not cancel.
                is_on = odds[row, d] < 0.0
                joint, changed = _joint(inside[2 * d + is_on, :, lane], outside[2 * d + is_on, :, lane])
                grad_logits[row, d] = (1.0 if is_on else -1.0) * (changed - joint * change) / mass


@compiled
def _start(logit: float, odds: float, grad: float, message: np.ndarray) -> None:
    """Fills the message of a variable, shape ``(values, 2)``, with a change of the value that is less likely.

    The change is the cotangent of the posterior log-odds over the variance, as a share of the posterior probability.
    """
    ratio, other = math.exp(-abs(logit)), math.exp(-abs(odds))
    likely = 1.0 / (1.0 + ratio)
    message[0, 0], message[1, 0] = (ratio * likely, likely) if logit > 0.0 else (likely, ratio * likely)
    message[0, 1], message[1, 1] = 0.0, 0.0
    if not math.isinf(logit):
        is_on = odds < 0.0
        # Logarithm of the ratio of the prior and the posterior probability.
        gain = (min(logit, 0.0) if is_on else min(-logit, 0.0)) - math.log1p(ratio) + abs(odds) + math.log1p(other)
        message[int(is_on), 1] = (grad if is_on else -grad) * math.exp(gain) * (1.0 + other)


@compiled
def _upward(inside: np.ndarray, num_variables: int, limit: int) -> None:
    """Messages of all nodes with their changes, shape ``(cells, 2, lanes)``, from those of the variables."""
    starts = level_starts(num_variables, 1, limit)
    for level in range(len(starts) - 2):
        for node in range(num_nodes(num_variables, level + 1)):
            parent = starts[level + 1] + node * message_width(2 << level, limit)
            left, right = child_messages(num_variables, limit, starts, level, node)
            width = min(left[1] + max(right[1], 1) - 1, limit + 1)
            if not right[1]:
                inside[parent : parent + width] = inside[left[0] : left[0] + width]
                continue
            inside[parent : parent + width] = 0.0
            for i in range(left[1]):
                for j in range(min(right[1], width - i)):
                    _add_product(inside[left[0] + i], inside[right[0] + j], inside[parent + i + j])


@compiled
def _downward(inside: np.ndarray, outside: np.ndarray, num_variables: int, limit: int) -> None:
    """Expected weights of all nodes with their changes, shape ``(cells, 2, lanes)``, from those of the last one."""
    starts = level_starts(num_variables, 1, limit)
    for level in range(len(starts) - 3, -1, -1):
        for node in range(num_nodes(num_variables, level + 1)):
            parent = starts[level + 1] + node * message_width(2 << level, limit)
            left, right = child_messages(num_variables, limit, starts, level, node)
            width = min(left[1] + max(right[1], 1) - 1, limit + 1)
            if not right[1]:
                outside[left[0] : left[0] + width] = outside[parent : parent + width]
                continue
            for own, sibling in ((left, right), (right, left)):
                for i in range(own[1]):
                    outside[own[0] + i] = 0.0
                    for j in range(min(sibling[1], width - i)):
                        _add_product(outside[parent + i + j], inside[sibling[0] + j], outside[own[0] + i])


@compiled_in_place
def _add_product(one: np.ndarray, other: np.ndarray, product: np.ndarray) -> None:
    """Adds products of entries of messages, and their changes, shape ``(2, lanes)``."""
    for lane in range(product.shape[1]):
        product[0, lane] += one[0, lane] * other[0, lane]
        product[1, lane] += one[0, lane] * other[1, lane] + one[1, lane] * other[0, lane]


@compiled
def _joint(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float]:
    """Weight of all vectors that have a count, and its change."""
    return inside[0] * outside[0], inside[0] * outside[1] + inside[1] * outside[0]
