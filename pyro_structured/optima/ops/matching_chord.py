"""Cycles of moves of matchings: which are the cheapest, and how far costs can move along a line until they are not, by
ray shooting; compiled.
"""

__all__ = ["matching_is_cheapest", "matching_reach"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.matching_sweep import fill_arcs

# Moves around a cycle that gain less than this share of the costs whose differences they are are ties.
ROUNDING = 64 * 2.0**-52
# Sums of costs that are larger may overflow.
LARGEST = 1e300


@compiled
def matching_reach(
    costs: np.ndarray, columns: np.ndarray, allowed: np.ndarray, direction: np.ndarray, reach: np.ndarray
) -> None:
    r"""Fills in the largest t for which matchings stay the cheapest for the costs :math:`w + t v`.

    A matching is the cheapest as long as no cycle of moves, each of a row to the column of the next one, has a negative
    cost. The cycles of two rows come first. At the t that they leave, a cycle that has a negative cost is found by
    relaxation; t goes back to where it costs nothing, until there is none.

    :param np.ndarray costs: Costs w to be minimised for which the matchings are optimal, finite for allowed pairs,
        float64, shape ``(N, rows, columns)``.
    :param np.ndarray columns: The columns of all rows, integers of shape ``(N, rows)``.
    :param np.ndarray allowed: Pairs that may be matched, booleans of shape ``(N, rows, columns)``.
    :param np.ndarray direction: v, shape ``(N, rows, columns)``.
    :param np.ndarray reach: Shape ``(N,)``: numbers of at least 0, or +inf.

    O(N · rows · columns²) at worst for each cycle, and next to O(N · rows · columns) where cycles are short.
    """
    count = costs.shape[2]
    present, change, moved = np.empty((count, count)), np.empty((count, count)), np.empty((count, count))
    lengths, following, seen = np.empty(count), np.empty(count, np.int64), np.empty(count, np.int64)
    for n in range(len(costs)):
        fill_arcs(change, direction[n], columns[n], allowed[n], 1.0)
        reach[n] = math.inf
        if change.min() >= 0.0:
            continue
        fill_arcs(present, costs[n], columns[n], allowed[n], 1.0)
        reach[n] = _reach_of_exchanges(present, change)
        while True:
            for target in range(count):
                for column in range(count):
                    # Far out on the line only the direction counts.
                    length = change[target, column]
                    slack = ROUNDING * abs(length)
                    if reach[n] < math.inf:
                        slack = ROUNDING * (abs(present[target, column]) + reach[n] * abs(length))
                        length = present[target, column] + reach[n] * length
                    moved[target, column] = length + slack
            start = _negative_cycle(moved, lengths, following, seen)
            if start < 0:
                break
            cost, slope, column = 0.0, 0.0, start
            while True:
                cost += present[following[column], column]
                slope += change[following[column], column]
                column = following[column]
                if column == start:
                    break
            # A step that rounding keeps from going back has found the end.
            if not slope < 0.0 or not max(cost, 0.0) / -slope < reach[n]:
                break
            reach[n] = max(cost, 0.0) / -slope


@compiled
def matching_is_cheapest(costs: np.ndarray, columns: np.ndarray, allowed: np.ndarray, cheapest: np.ndarray) -> None:
    """Fills in which matchings are the cheapest beyond doubt: every cycle of moves costs more than rounding.

    :param np.ndarray costs: Costs to be minimised, float64, shape ``(N, rows, columns)``.
    :param np.ndarray columns: Columns of all rows, integers of shape ``(N, rows)``, which may be none that rows have.
    :param np.ndarray allowed: Pairs that may be matched, booleans of shape ``(N, rows, columns)``.
    :param np.ndarray cheapest: Booleans of shape ``(N,)``: also False where costs of allowed pairs may overflow, or
        columns are no matching.

    O(N · columns³) at worst, and next to O(N · rows · columns) where cheapest paths are short.
    """
    rows, count = costs.shape[1:]
    arcs, lengths = np.empty((count, count)), np.empty(count)
    following, seen = np.empty(count, np.int64), np.empty(count, np.int64)
    for n in range(len(costs)):
        cheapest[n] = _is_matching(costs[n], columns[n], allowed[n], seen)
        if not cheapest[n]:
            continue
        fill_arcs(arcs, costs[n], columns[n], allowed[n], 1.0)
        for row in range(rows):
            own = columns[n, row]
            for column in range(count):
                if column != own:
                    size = abs(costs[n, row, column]) + abs(costs[n, row, own])
                    arcs[column, own] -= count * 2.0**-52 * size if allowed[n, row, column] else 0.0
        cheapest[n] = _negative_cycle(arcs, lengths, following, seen) < 0


@compiled
def _is_matching(costs: np.ndarray, columns: np.ndarray, allowed: np.ndarray, taken: np.ndarray) -> bool:
    """Whether columns are allowed ones that differ, and no costs of allowed pairs may overflow."""
    rows, count = costs.shape
    taken[:] = 0
    for row in range(rows):
        own = columns[row]
        if own < 0 or own >= count or not allowed[row, own] or taken[own]:
            return False
        taken[own] = 1
        for column in range(count):
            if allowed[row, column] and not abs(costs[row, column]) <= LARGEST:
                return False
    return True


@compiled
def _reach_of_exchanges(present: np.ndarray, change: np.ndarray) -> float:
    """The largest t at which no two rows gain by an exchange of their columns."""
    count, reach, steepest = len(present), math.inf, 0.0
    for first in range(count):
        for second in range(count):
            if change[first, second] < math.inf:
                steepest = max(steepest, abs(change[first, second]))
    for first in range(count):
        for second in range(first):
            slope = change[first, second] + change[second, first]
            if slope < -ROUNDING * steepest:
                reach = min(reach, max(present[first, second] + present[second, first], 0.0) / -slope)
    return reach


@compiled
def _negative_cycle(arcs: np.ndarray, lengths: np.ndarray, following: np.ndarray, seen: np.ndarray) -> int:
    """A column on a cycle of moves with a negative cost, or -1; ``following`` leads around it.

    :param np.ndarray arcs: Costs of moves from a column (second axis) to another one (first axis), or +inf.
    """
    count = len(arcs)
    lengths[:] = 0.0
    following[:] = -1
    for _ in range(count):
        improved = False
        for target in range(count):
            for column in range(count):
                length = arcs[target, column] + lengths[target]
                if length < lengths[column]:
                    lengths[column], following[column], improved = length, target, True
        if not improved:
            break
        # Shortest moves that lead back to where they started gain more each time.
        seen[:] = -1
        for first in range(count):
            column = first
            while column >= 0 and seen[column] < 0:
                seen[column] = first
                column = following[column]
            if column >= 0 and seen[column] == first:
                return column
    return -1
