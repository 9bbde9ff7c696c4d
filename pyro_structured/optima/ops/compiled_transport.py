"""Cheapest assignments of several columns to every row of many matrices, compiled."""

__all__ = ["cheapest_transports"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled


@compiled
def cheapest_transports(costs: np.ndarray, row_counts: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Cheapest assignment of a number of columns to every row, and of no more rows to a column than it has places.

    One column after the other is added to a row, by the cheapest sequence of moves that makes room for it, which
    Dijkstra's algorithm finds, with the lengths of those before as potentials.

    :param np.ndarray costs: Costs, +inf for pairs that may not be assigned, float64, shape ``(N, rows, columns)``.
    :param np.ndarray row_counts: Numbers of columns, int64, shape ``(N, rows)``.
    :param np.ndarray capacities: Largest numbers of rows, int64, shape ``(N, columns)``.
    :return: Booleans of shape ``(N, rows, columns)``. Rows get fewer columns where there is no assignment. Cost O(rows
        columns) for every pair that is assigned; exact up to the rounding of sums of costs.

    **References**

    Ahuja, Magnanti, Orlin (1993): *Network flows.* Section 9.7.
    """
    num_rows, num_columns = costs.shape[1:]
    assigned, potentials = np.zeros(costs.shape, np.bool_), np.empty(num_rows + num_columns)
    lengths, before = np.empty(num_rows + num_columns), np.empty(num_rows + num_columns, np.int64)
    settled = np.empty(num_rows + num_columns, np.bool_)
    for n in range(len(costs)):
        room = capacities[n].copy()
        potentials[:] = 0.0
        for column in range(num_columns):
            least = np.min(costs[n, :, column])
            potentials[num_rows + column] = least if least < math.inf else 0.0
        sink = np.min(potentials[num_rows:])
        for row in range(num_rows):
            for _ in range(row_counts[n, row]):
                last, length = _cheapest_moves(
                    costs[n], assigned[n], room, row, potentials, sink, lengths, before, settled
                )
                if last < 0:
                    break
                for node in range(len(lengths)):
                    potentials[node] += min(lengths[node], length)
                sink += length
                room[last] -= 1
                _change(assigned[n], last, row, before)
    return assigned


@compiled
def _cheapest_moves(
    costs: np.ndarray,
    assigned: np.ndarray,
    room: np.ndarray,
    start: int,
    potentials: np.ndarray,
    sink: float,
    lengths: np.ndarray,
    before: np.ndarray,
    settled: np.ndarray,
) -> tuple[int, float]:
    """The column with room where the cheapest sequence of moves ends, or -1, and its length less potentials.

    Nodes are rows, and then columns; ``before`` has the node from which each was reached.
    """
    num_rows, num_columns = costs.shape
    lengths[:], settled[:] = math.inf, False
    lengths[start], last, best = 0.0, -1, math.inf
    while True:
        node, least = -1, best
        for other in range(num_rows + num_columns):
            if not settled[other] and lengths[other] < least:
                node, least = other, lengths[other]
        if node < 0:
            return last, best
        settled[node] = True
        if node < num_rows:
            for column in range(num_columns):
                if not assigned[node, column]:
                    gap = costs[node, column] + potentials[node] - potentials[num_rows + column]
                    _relax(num_rows + column, least + max(gap, 0.0), node, lengths, before)
        else:
            column = node - num_rows
            if room[column] > 0 and least + max(potentials[node] - sink, 0.0) < best:
                last, best = column, least + max(potentials[node] - sink, 0.0)
            for row in range(num_rows):
                if assigned[row, column]:
                    gap = potentials[node] - potentials[row] - costs[row, column]
                    _relax(row, least + max(gap, 0.0), node, lengths, before)


@compiled
def _relax(node: int, length: float, origin: int, lengths: np.ndarray, before: np.ndarray) -> None:
    if length < lengths[node]:
        lengths[node], before[node] = length, origin


@compiled
def _change(assigned: np.ndarray, last: int, start: int, before: np.ndarray) -> None:
    """Assigns the column to the row before it, which gives up the column before it, and so on."""
    column = last
    while True:
        row = before[len(assigned) + column]
        assigned[row, column] = True
        if row == start:
            break
        column = before[row] - len(assigned)
        assigned[row, column] = False
