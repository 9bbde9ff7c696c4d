"""Costs of matchings given that the matchings are optimal: one update of all entries, compiled."""

__all__ = ["fill_arcs", "matching_sweep"]

import math

import numpy as np
from llvmlite.binding import get_host_cpu_features

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.compiled_draw import compiled_draw, compiled_draws
from pyro_structured.optima.ops.density_family import DensityFamily

# Columns are taken together whose distances differ by this share of the largest one of the row before.
SHARE = 1 / 32
# Whether vector instructions that store some numbers only, with which smaller numbers are put in the place of others,
# are as fast as those that store all.
STORES_SOME = bool(get_host_cpu_features().get("avx512vl"))


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
    of shortest paths, which are found with those of the row before as potentials.

    :param np.ndarray costs: Costs for which the matchings are optimal, float64, shape ``(N, rows, columns)``.
    :param np.ndarray columns: The columns of all rows, integers of shape ``(N, rows)``.
    :param np.ndarray allowed: Pairs that may be matched, booleans of shape ``(N, rows, columns)``. The costs of others
        are drawn without a condition.
    :param bool maximize: Whether the costs are rewards.
    :param DensityFamily family: The distributions of all costs.
    :param np.ndarray base: Location, scale, lower bound, or -inf, upper bound, or +inf, and additive constant of all
        costs; float64, shape ``(N, rows, columns, 5)``;
        for mixtures as :func:`~pyro_structured.optima.ops.compiled_draw.compiled_draw` takes it.
    :param np.ndarray uniform: Uniform variables, one for every cost, float64, shape ``(N, rows, columns)``.

    O(N · rows · columns²), and exact up to rounding.
    """
    count = costs.shape[2]
    arcs, work, places = np.empty((count, count)), np.empty((5, count)), np.empty(count + 1, np.int64)
    bounds, space = np.empty((2, count)), np.empty((13, count))
    # Padded to words of eight.
    flags = np.zeros(-(-count // 8) * 8, np.uint8)
    sign = -1.0 if maximize else 1.0
    for n in range(len(costs)):
        fill_arcs(arcs, costs[n], columns[n], allowed[n], sign)
        potentials, distances, reach = work[0], work[1], 0.0
        _find_potentials(arcs, potentials)
        for row in range(costs.shape[1]):
            own, entries, usable = columns[n, row], costs[n, row], allowed[n, row]
            reach = _find_distances(arcs, own, potentials, distances, work[2:5], flags, places, SHARE * reach)
            _draw_row(entries, own, usable, distances, sign, family, base[n, row], uniform[n, row], bounds, space)
            _fill_arcs_from(arcs, entries, own, usable, sign)
            _lift(arcs, own, distances, potentials)


@compiled
def fill_arcs(arcs: np.ndarray, costs: np.ndarray, columns: np.ndarray, allowed: np.ndarray, sign: float) -> None:
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
    arcs: np.ndarray,
    own: int,
    potentials: np.ndarray,
    distances: np.ndarray,
    memory: np.ndarray,
    flags: np.ndarray,
    places: np.ndarray,
    spread: float,
) -> float:
    """Fills in the lengths of the shortest paths from every column to ``own``, also as new potentials.

    Dijkstra's algorithm, but for columns that are followed by others with lengths up to ``spread`` larger, all at once,
    and again, if they turn out to be nearer: vector instructions compute lengths of 300 columns in the time in which
    the next column is found.

    :param np.ndarray memory: Memory of shape ``(3, columns)``: for lengths to come; for lengths that paths have gone on
        with; and for lengths less potentials, from 0 on, of columns that paths have not gone on from.
    :param np.ndarray flags: Memory, zeros behind the last column, of a length that eight divides: whether paths go on
        from a column.
    :param np.ndarray places: Memory for one column more than there are.
    :return: The largest of the lengths less potentials.
    """
    count, start = len(arcs), potentials[own]
    current, following, seen, keys = distances, memory[0], memory[1], memory[2]
    current[:] = math.inf
    seen[:] = math.inf
    current[own] = 0.0
    # As unsigned integers, numbers from zero on keep their order; minima of integers take one instruction for several.
    integers, words, least = keys.view(np.uint64), flags.view(np.uint64), np.zeros(1)
    while True:
        for column in range(count):
            key = max(current[column] - potentials[column] + start, 0.0)
            keys[column] = key if current[column] < seen[column] else math.inf
        first = integers[0]
        for column in range(1, count):
            first = min(first, integers[column])
        least.view(np.uint64)[0] = first
        if least[0] == math.inf:
            break
        level, size = least[0] + spread, 0
        for column in range(count):
            flags[column] = keys[column] <= level
        for word in range(len(words)):
            if words[word] > 0:
                for column in range(8 * word, 8 * word + 8):
                    places[size] = column
                    size += flags[column]
        for column in places[:size]:
            length = current[column]
            if length < seen[column]:
                # The least length is final, whatever rounding makes of it.
                seen[column] = length if keys[column] > least[0] else -math.inf
                if STORES_SOME:
                    for other in range(count):
                        through, known = arcs[column, other] + length, current[other]
                        current[other] = through if through < known else known
                else:
                    _go_on(arcs[column], length, current, following)
                    current, following = following, current
    distances[:] = current
    reach = -start
    for column in range(count):
        if distances[column] < math.inf:
            reach = max(reach, float(distances[column] - potentials[column]))
    for column in range(count):
        reached = distances[column] < math.inf
        potentials[column] = distances[column] if reached else potentials[column] + reach
    return float(reach + start)


@compiled
def _go_on(arcs: np.ndarray, length: float, lengths: np.ndarray, following: np.ndarray) -> None:
    """Fills in the lengths with paths that go on from a column, in another place."""
    for column in range(len(arcs)):
        through = arcs[column] + length
        following[column] = through if through < lengths[column] else lengths[column]


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
    bounds: np.ndarray,
    space: np.ndarray,
) -> None:
    """Draws the matched entry given the others, and then the others given the matched entry.

    :param np.ndarray bounds: Memory of shape ``(2, columns)``.
    :param np.ndarray space: Memory of shape ``(13, columns)``.
    """
    bound = math.inf
    for column in range(len(entries)):
        if usable[column] and column != own:
            bound = min(bound, sign * entries[column] + distances[column])
    low, high = (-math.inf, bound) if sign > 0 else (-bound, math.inf)
    matched = compiled_draw(uniform[own], family, base[own], low, high)
    bounds[0], bounds[1] = -math.inf, math.inf
    for column in range(len(entries)):
        if usable[column] and column != own:
            bound = sign * matched - distances[column]
            bounds[0 if sign > 0 else 1, column] = sign * bound
    compiled_draws(uniform, family, base, bounds, entries, space)
    entries[own] = matched
