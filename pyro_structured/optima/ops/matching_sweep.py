"""Costs of matchings given that the matchings are optimal: one update of all entries, compiled."""

__all__ = ["matching_sweep"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.compiled_draw import compiled_draw
from pyro_structured.optima.ops.density_family import DensityFamily


@compiled
def matching_sweep(
    costs: np.ndarray,
    columns: np.ndarray,
    allowed: np.ndarray,
    maximize: bool,
    family: DensityFamily,
    base: np.ndarray,
    uniform: np.ndarray,
) -> None:
    r"""Draws all costs in place, row by row, from independent distributions given that matchings are optimal.

    A matching stays optimal exactly as long as :math:`w_{jc} - w_{jk} \le d_k` for a row j, its column c and all others
    k, where :math:`d_k` is the least cost at which the other rows free k if they may use c. The :math:`d_k` are lengths
    of shortest paths, which Dijkstra's algorithm finds with those of the row before as potentials.

    :param np.ndarray costs: Costs for which the matchings are optimal, float64, shape ``(N, rows, columns)``.
    :param np.ndarray columns: The columns of all rows, integers of shape ``(N, rows)``.
    :param np.ndarray allowed: Pairs that may be matched, booleans of shape ``(N, rows, columns)``. The costs of others
        are drawn without a condition.
    :param bool maximize: Whether the costs are rewards.
    :param DensityFamily family: The distributions of all costs.
    :param np.ndarray base: Location, scale, lower bound, or -inf, upper bound, or +inf, and additive constant of all
        costs; float64, shape ``(N, rows, columns, 5)``.
    :param np.ndarray uniform: Uniform variables, one for every cost, float64, shape ``(N, rows, columns)``.

    O(N · rows · columns²), and exact up to rounding.
    """
    count = costs.shape[2]
    arcs, work = np.empty((count, count)), np.empty((3, count))
    sign = -1.0 if maximize else 1.0
    for n in range(len(costs)):
        _fill_arcs(arcs, costs[n], columns[n], allowed[n], sign)
        potentials, distances = work[0], work[1]
        _find_potentials(arcs, potentials)
        for row in range(costs.shape[1]):
            own, entries, usable = columns[n, row], costs[n, row], allowed[n, row]
            _find_distances(arcs, own, potentials, distances, work[2])
            _draw_row(entries, own, usable, distances, sign, family, base[n, row], uniform[n, row])
            _fill_arcs_from(arcs, entries, own, usable, sign)
            _lift(arcs, own, distances, potentials)


@compiled
def _fill_arcs(arcs: np.ndarray, costs: np.ndarray, columns: np.ndarray, allowed: np.ndarray, sign: float) -> None:
    """Fills in the costs of moves of the row in a column (second axis) to another column (first axis)."""
    # Columns that no row has belong to rows without costs.
    arcs[:] = 0.0
    for row in range(len(costs)):
        _fill_arcs_from(arcs, costs[row], columns[row], allowed[row], sign)


@compiled
def _fill_arcs_from(arcs: np.ndarray, entries: np.ndarray, own: int, usable: np.ndarray, sign: float) -> None:
    for column in range(len(entries)):
        arcs[column, own] = sign * (entries[column] - entries[own]) if usable[column] else math.inf


@compiled
def _find_potentials(arcs: np.ndarray, potentials: np.ndarray) -> None:
    """Fills in the costs of the cheapest moves from every column to any other, by Bellman and Ford."""
    potentials[:] = 0.0
    # Rounding must not make a cycle of moves look worthwhile for ever.
    for _ in range(len(arcs)):
        improved = False
        for target in range(len(arcs)):
            for column in range(len(arcs)):
                length = arcs[target, column] + potentials[target]
                if length < potentials[column]:
                    potentials[column] = length
                    improved = True
        if not improved:
            break


@compiled
def _find_distances(
    arcs: np.ndarray, own: int, potentials: np.ndarray, distances: np.ndarray, labels: np.ndarray
) -> None:
    """Fills in the lengths of the shortest paths from every column to ``own``, by Dijkstra, also as new potentials."""
    distances[:] = math.inf
    # Reduced lengths of the best paths so far, and -inf for columns that are settled. As unsigned integers, numbers
    # from zero on keep their order, and -inf is the largest; minima of integers take one instruction for several.
    labels[:] = math.inf
    keys = labels.view(np.uint64)
    distances[own], target, reach = 0.0, own, 0.0
    for _ in range(1, len(arcs)):
        labels[target] = -math.inf
        moves, potential, distance = arcs[target], potentials[target], distances[target]
        for column in range(len(arcs)):
            known = labels[column]
            label = reach + max(moves[column] + potential - potentials[column], 0.0)
            better = label < known
            labels[column] = label if better else known
            # Lengths themselves are summed up, so that rounding errors of potentials are not handed on.
            distances[column] = moves[column] + distance if better else distances[column]
        least = keys[0]
        for column in range(1, len(arcs)):
            least = min(least, keys[column])
        target = 0
        while keys[target] != least:
            target += 1
        if labels[target] == math.inf:
            break
        reach = labels[target]
    level = reach - potentials[own]
    for column in range(len(arcs)):
        reached = distances[column] < math.inf
        potentials[column] = distances[column] if reached else potentials[column] + level


@compiled
def _lift(arcs: np.ndarray, own: int, distances: np.ndarray, potentials: np.ndarray) -> None:
    """Raises the potentials of columns that cannot reach ``own``, so that no move from there has a negative cost."""
    least = 0.0
    for column in range(len(arcs)):
        if distances[column] == math.inf:
            least = min(least, arcs[column, own] + potentials[column])
    for column in range(len(arcs)):
        if distances[column] == math.inf:
            potentials[column] -= least


@compiled
def _draw_row(
    entries: np.ndarray,
    own: int,
    usable: np.ndarray,
    distances: np.ndarray,
    sign: float,
    family: DensityFamily,
    base: np.ndarray,
    uniform: np.ndarray,
) -> None:
    """Draws the matched entry given the others, and then the others given the matched entry."""
    bound = math.inf
    for column in range(len(entries)):
        if usable[column] and column != own:
            bound = min(bound, sign * entries[column] + distances[column])
    low, high = (-math.inf, bound) if sign > 0 else (-bound, math.inf)
    entries[own] = compiled_draw(uniform[own], family, base[own], low, high)
    for column in range(len(entries)):
        if column != own:
            bound = sign * entries[own] - distances[column] if usable[column] else -math.inf
            low, high = (bound, math.inf) if sign > 0 else (-math.inf, -bound)
            entries[column] = compiled_draw(uniform[column], family, base[column], low, high)
