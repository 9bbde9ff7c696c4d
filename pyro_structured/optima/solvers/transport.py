"""Cheapest assignments of several columns to every row."""

__all__ = ["has_matching", "has_transport", "solve_assignment", "solve_transport"]

from typing import Any

import numpy as np


def solve_transport(costs: np.ndarray, row_counts: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Cheapest assignment of a number of columns to every row, and of no more rows to a column than it has places.

    A minimum-cost flow in whole numbers: a row's costs, less their minimum, are counted in units of
    ``range * 2 ** -(60 - b)``, where ``2 ** b`` is more than the number of nodes, the most that the solver allows.
    Rounding makes the total worse by at most one unit for each assigned pair, which is below 1e-9 times the range for
    fewer than ``2 ** (30 - b)`` pairs. The range is that of the pairs that an optimum may have, which O(log(rows *
    columns)) maximum flows find.

    :param np.ndarray costs: Shape ``(N, rows, columns)``; +inf forbids a pair.
    :param np.ndarray row_counts: Numbers of columns, shape ``(N, rows)``.
    :param np.ndarray capacities: Largest numbers of rows, shape ``(N, columns)``.
    :return: Booleans of shape ``(N, rows, columns)``.
    """
    from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

    assignments = np.zeros(costs.shape, dtype=bool)
    for matrix, counts, places, assigned in zip(costs, row_counts, capacities, assignments, strict=True):
        differences = matrix - matrix.min(1, keepdims=True)
        flow, allowed = SimpleMinCostFlow(), _affordable(differences, counts, places)
        arcs, last = _arcs(allowed, places), sum(matrix.shape)
        spread = differences[allowed]
        units = np.zeros(len(arcs[0]), dtype=np.int64)
        _, exponent = np.frexp(spread.max())
        units[: len(spread)] = np.rint(np.ldexp(spread, 60 - (last + 1).bit_length() - exponent))
        names = flow.add_arcs_with_capacity_and_unit_cost(*arcs, units)
        supplies = np.concatenate([counts, np.zeros(matrix.shape[1], dtype=np.int64), [-counts.sum()]])
        flow.set_nodes_supplies(np.arange(last + 1, dtype=np.int32), supplies)
        if (status := flow.solve()) != flow.OPTIMAL:
            raise RuntimeError(f"no assignment was found: {status.name}")
        assigned[allowed] = flow.flows(names[: len(spread)]) > 0
    return assignments


def _affordable(differences: np.ndarray, counts: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Pairs that a cheapest assignment may have, from costs less the minima of rows: all assigned pairs together cost
    no more than as many of the dearest one that some assignment needs.
    """
    levels = np.unique(differences[np.isfinite(differences)])
    first, last = 0, len(levels) - 1
    while first < last:
        middle = (first + last) // 2
        if has_transport((differences <= levels[middle])[None], counts[None], places[None])[0]:
            last = middle
        else:
            first = middle + 1
    affordable: np.ndarray = np.isfinite(differences) & (differences <= counts.sum() * levels[first])
    return affordable


def has_transport(allowed: np.ndarray, row_counts: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Whether allowed pairs, counts and capacities leave an assignment, booleans of shape ``(N,)``.

    :param np.ndarray allowed: Pairs that may be assigned, booleans of shape ``(N, rows, columns)``.
    :param np.ndarray row_counts: Numbers of columns of the rows, shape ``(N, rows)``.
    :param np.ndarray capacities: Largest numbers of rows of the columns, shape ``(N, columns)``.
    """
    from ortools.graph.python.max_flow import SimpleMaxFlow

    feasible = np.zeros(len(allowed), dtype=bool)
    for row, (pairs, counts, places) in enumerate(zip(allowed, row_counts, capacities, strict=True)):
        flow, sink = SimpleMaxFlow(), sum(pairs.shape)
        rows = np.arange(len(counts), dtype=np.int32)
        flow.add_arcs_with_capacity(*_arcs(pairs, places))
        flow.add_arcs_with_capacity(np.full(len(rows), sink + 1, dtype=np.int32), rows, counts)
        feasible[row] = flow.solve(sink + 1, sink) == flow.OPTIMAL and flow.optimal_flow() == counts.sum()
    return feasible


def _arcs(allowed: np.ndarray, capacities: np.ndarray) -> tuple[Any, Any, Any]:
    """Tails, heads and capacities of arcs: the allowed pairs, and then from all columns to a last node."""
    rows, columns = np.nonzero(allowed)
    last = np.arange(len(allowed), sum(allowed.shape))
    tails, heads = np.append(rows, last), np.append(columns + len(allowed), np.full(len(last), sum(allowed.shape)))
    return tails.astype(np.int32), heads.astype(np.int32), np.append(np.ones(len(rows), np.int64), capacities)


def solve_assignment(costs: np.ndarray) -> np.ndarray:
    """Cheapest assignment of a column of its own to every row.

    :param np.ndarray costs: Shape ``(N, rows, columns)``, with no more rows than columns; +inf forbids a pair.
    :return: Columns, int64, shape ``(N, rows)``. Cost O(rows² columns) each.
    :raises ValueError: if there is no matching, or a NaN.
    """
    from scipy.optimize import linear_sum_assignment

    assignments = np.empty(costs.shape[:2], dtype=np.int64)
    for matrix, columns in zip(costs, assignments, strict=True):
        columns[:] = linear_sum_assignment(matrix)[1]
    return assignments


def has_matching(allowed: np.ndarray) -> np.ndarray:
    """Whether all rows can have columns of their own, booleans of shape ``(N,)`` from shape ``(N, rows, columns)``."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return np.array(
        [(maximum_bipartite_matching(csr_array(pairs), perm_type="column") >= 0).all() for pairs in allowed]
    )
