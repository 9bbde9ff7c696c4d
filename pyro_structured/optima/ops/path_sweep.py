"""Costs of edges given that paths are the shortest: one update of all edges, compiled."""

__all__ = ["path_sweep", "shortest_paths"]

import math
from typing import NamedTuple

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.adjacency import Adjacency
from pyro_structured.optima.ops.compiled_draw import compiled_draw
from pyro_structured.optima.ops.density_family import DensityFamily


class _Labels(NamedTuple):
    """Labels of all n nodes in a search, each of shape ``(n,)``.

    :ivar np.ndarray lengths: Lengths of the shortest known paths to the nodes, +inf where none is known.
    :ivar np.ndarray entries: Last edges of these paths, or -1.
    :ivar np.ndarray potentials: Lower bounds of the cost of the rest of a path. Paths are not wanted where length and
        potential together are larger than a bound.
    """

    lengths: np.ndarray
    entries: np.ndarray
    potentials: np.ndarray


class _Queue(NamedTuple):
    """Nodes in a binary heap, the one with the least key first.

    :ivar np.ndarray nodes: The heap, with room for all nodes.
    :ivar np.ndarray places: Place of each node in the heap, or -1.
    :ivar np.ndarray keys: Key of each node.
    """

    nodes: np.ndarray
    places: np.ndarray
    keys: np.ndarray


@compiled
def _new_queue(num_nodes: int) -> _Queue:
    """An empty queue with room for all nodes."""
    return _Queue(np.empty(num_nodes, np.int64), np.full(num_nodes, -1, np.int64), np.empty(num_nodes))


@compiled
def _put(queue: _Queue, count: int, node: int, key: float) -> int:
    """Puts a node in the queue of ``count`` nodes, or moves it forward; returns the new number of nodes."""
    place = queue.places[node]
    if place < 0:
        place, count = count, count + 1
    queue.keys[node] = key
    while place > 0:
        above = queue.nodes[(place - 1) // 2]
        if queue.keys[above] <= key:
            break
        queue.nodes[place], queue.places[above] = above, place
        place = (place - 1) // 2
    queue.nodes[place], queue.places[node] = node, place
    return count


@compiled
def _take(queue: _Queue, count: int) -> int:
    """Takes the first of ``count`` nodes out of the queue."""
    first, last, count, place = queue.nodes[0], queue.nodes[count - 1], count - 1, 0
    queue.places[first] = -1
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and queue.keys[queue.nodes[below + 1]] < queue.keys[queue.nodes[below]]:
            below += 1
        moved = queue.nodes[below]
        if queue.keys[last] <= queue.keys[moved]:
            break
        queue.nodes[place], queue.places[moved] = moved, place
        place = below
    if count:
        queue.nodes[place], queue.places[last] = last, place
    return int(first)


@compiled
def _settle(
    network: Adjacency,
    costs: np.ndarray,
    labels: _Labels,
    bound: float,
    target: int,
    queue: _Queue,
    count: int,
) -> None:
    """Lowers lengths to those of the shortest paths that go on from the nodes in the queue.

    :param Adjacency network: The edges; reversed ones for paths that end in the queue's nodes.
    :param np.ndarray costs: Costs, at least 0, shape ``(E,)``; +inf closes an edge.
    :param _Labels labels: The lengths of the queue's nodes are final. Nodes come in the order of their lengths and
        potentials; if these never fall along an edge by more than it costs, each comes only once.
    :param float bound: Upper bound of length and potential of the paths that are wanted.
    :param int target: A node with which the search ends, or -1.
    :param int count: Number of nodes in the queue; afterwards it is empty.
    """
    lengths, entries, potentials = labels
    while count:
        node, count = _take(queue, count), count - 1
        if node == target:
            break
        for place in range(network.leaving_from[node], network.leaving_from[node + 1]):
            edge = network.leaving[place]
            head, length = network.heads[edge], lengths[node] + costs[edge]
            if length < lengths[head] and length + potentials[head] <= bound:
                lengths[head], entries[head] = length, edge
                count = _put(queue, count, head, length + potentials[head])
    for place in range(count):
        queue.places[queue.nodes[place]] = -1


@compiled
def _renew(
    network: Adjacency,
    costs: np.ndarray,
    labels: _Labels,
    bound: float,
    node: int,
    queue: _Queue,
    affected: np.ndarray,
) -> None:
    """Corrects the lengths that a search has found after costs of edges into a node have changed.

    Arguments as for :func:`_settle`, and memory ``affected`` for all nodes. Only the nodes whose shortest paths have
    changed are visited: those behind the node, and those that are nearer through it now.

    **References**

    Ramalingam, Reps (1996): *An incremental algorithm for a generalization of the shortest-path problem.* Journal of
    Algorithms.
    """
    lengths, entries, potentials = labels
    present, entry = lengths[node], entries[node]
    is_start = entry < 0 and present < math.inf
    if is_start or potentials[node] == math.inf:
        return
    length, best = _best_entry(network, costs, labels, bound, node)
    if length < present:
        lengths[node], entries[node] = length, best
        _settle(network, costs, labels, bound, -1, queue, _put(queue, 0, node, length + potentials[node]))
    elif entry >= 0 and lengths[network.tails[entry]] + costs[entry] > present:
        size, visited = 1, 0
        affected[0] = node
        while visited < size:
            tail, visited = affected[visited], visited + 1
            for place in range(network.leaving_from[tail], network.leaving_from[tail + 1]):
                edge = network.leaving[place]
                if entries[network.heads[edge]] == edge:
                    affected[size], size = network.heads[edge], size + 1
        for changed in affected[:size]:
            lengths[changed], entries[changed] = math.inf, -1
        count = 0
        for changed in affected[:size]:
            lengths[changed], entries[changed] = _best_entry(network, costs, labels, bound, changed)
            if entries[changed] >= 0:
                count = _put(queue, count, changed, lengths[changed] + potentials[changed])
        _settle(network, costs, labels, bound, -1, queue, count)


@compiled
def _best_entry(network: Adjacency, costs: np.ndarray, labels: _Labels, bound: float, node: int) -> tuple[float, int]:
    """Length and last edge of the shortest path to a node, given the lengths of those to all others."""
    least, best = math.inf, -1
    for place in range(network.entering_from[node], network.entering_from[node + 1]):
        edge = network.entering[place]
        length = labels.lengths[network.tails[edge]] + costs[edge]
        if length < least:
            least, best = length, edge
    return (least, best) if least + labels.potentials[node] <= bound else (math.inf, -1)


@compiled
def shortest_paths(
    network: Adjacency, costs: np.ndarray, owners: np.ndarray, sources: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Edges of shortest paths, one for every pair of a source and another node that it leads to.

    :param np.ndarray costs: Vectors of costs, at least 0 and finite, shape ``(V, E)``.
    :param np.ndarray owners: Index of the vector of costs of each pair, integers of shape ``(pairs,)``.
    :return: Booleans of shape ``(pairs, E)``. One search for each pair, which ends with the target.
    """
    num_nodes = len(network.leaving_from) - 1
    queue, paths = _new_queue(num_nodes), np.zeros((len(owners), costs.shape[1]), np.bool_)
    labels = _Labels(np.empty(num_nodes), np.empty(num_nodes, np.int64), np.zeros(num_nodes))
    for pair in range(len(owners)):
        source, node = sources[pair], targets[pair]
        labels.lengths[:] = math.inf
        labels.lengths[source] = 0.0
        _settle(network, costs[owners[pair]], labels, math.inf, node, queue, _put(queue, 0, source, 0.0))
        while node != source:
            edge = labels.entries[node]
            paths[pair, edge], node = True, network.tails[edge]
    return paths


# Share of its length by which the path may become longer before distances are searched for again.
SLACK = 0.1
ROUNDING = 1e-9


class _Work(NamedTuple):
    """Memory for searches.

    Distances from the source (``there``) and to the target (``back``) are kept up to date while costs change, but only
    where they matter: where the rest of the way, one edge of which is free, can make it shorter than the path. Their
    potentials are lower bounds of the cost of this rest.
    """

    there: _Labels
    back: _Labels
    detour: _Labels
    zeros: np.ndarray
    floors: np.ndarray
    fresh: np.ndarray
    queue: _Queue
    affected: np.ndarray


@compiled
def path_sweep(
    network: Adjacency,
    backward: Adjacency,
    costs: np.ndarray,
    paths: np.ndarray,
    sources: np.ndarray,
    targets: np.ndarray,
    family: DensityFamily,
    base: np.ndarray,
    uniform: np.ndarray,
) -> None:
    r"""Draws all costs in place, node by node, from independent distributions given that paths are the shortest.

    The bounds are those of :func:`~pyro_structured.optima.solvers.path_intervals.path_intervals`, and nodes come in the
    same order. An out-edge with cost w that leads from u to v keeps a path of length C the shortest as long as :math:`w
    \ge C - D_u - R_v`, where D and R are the distances from the source and to the target; whether they use out-edges of
    u makes no difference where this bound is positive. They are corrected whenever a cost changes. An edge of the path
    may become as expensive as the shortest path without it allows, which a search finds whose potentials are lower
    bounds of R.

    :param Adjacency network: The edges.
    :param Adjacency backward: The edges, reversed.
    :param np.ndarray costs: Costs for which the paths are the shortest, at least 0, float64, shape ``(N, E)``.
    :param np.ndarray paths: The paths' edges, booleans of shape ``(N, E)``.
    :param np.ndarray sources: First nodes of the paths, integers of shape ``(N,)``.
    :param np.ndarray targets: Last nodes of the paths, integers of shape ``(N,)``.
    :param DensityFamily family: The distributions of all costs.
    :param np.ndarray base: Location, scale, lower bound of at least 0, upper bound, or +inf, and additive constant of
        at least 0 of all costs; float64, shape ``(N, E, 5)``.
    :param np.ndarray uniform: Uniform variables, one for every cost, float64, shape ``(N, E)``.

    O(N · n · (E + n log n)) for n nodes at worst; in large networks nearly O(N · E), since few nodes matter to a path,
    and few distances change with a node's costs. Exact up to rounding.
    """
    num_nodes, num_edges = len(network.leaving_from) - 1, costs.shape[1]
    work = _new_work(num_nodes, num_edges)
    exits = np.empty(num_nodes, np.int64)
    for n in range(len(costs)):
        for edge in range(num_edges):
            work.fresh[edge] = compiled_draw(uniform[n, edge], family, base[n, edge], 0.0, math.inf)
        path = _trace(network, paths[n], exits, sources[n])
        order = _order(network, path, targets[n])
        _sweep_row(network, backward, costs[n], path, exits, order, family, base[n], uniform[n], work)


@compiled
def _new_work(num_nodes: int, num_edges: int) -> _Work:
    numbers, integers = np.zeros((7, num_nodes)), np.empty((4, num_nodes), np.int64)
    there, back, detour = (
        _Labels(numbers[0], integers[0], numbers[1]),
        _Labels(numbers[2], integers[1], numbers[3]),
        _Labels(numbers[4], integers[2], numbers[5]),
    )
    floors, fresh = np.empty((2, num_edges))
    return _Work(there, back, detour, numbers[6], floors, fresh, _new_queue(num_nodes), integers[3])


@compiled
def _trace(network: Adjacency, used: np.ndarray, exits: np.ndarray, source: int) -> np.ndarray:
    """Edges of a path in order; fills in ``exits``, the edges with which the path leaves the nodes, or -1."""
    exits[:] = -1
    for edge in np.flatnonzero(used):
        exits[network.tails[edge]] = edge
    path, node = np.empty(np.sum(used), np.int64), source
    for place in range(len(path)):
        path[place] = exits[node]
        node = network.heads[path[place]]
    return path


@compiled
def _order(network: Adjacency, path: np.ndarray, target: int) -> np.ndarray:
    """Nodes, sorted by the place of the path's node from which the fewest edges lead to them, and by their number."""
    num_nodes, size = len(network.leaving_from) - 1, len(path) + 1
    queue, stops = np.empty(num_nodes, np.int64), np.full(num_nodes, size)
    numbers = np.full(num_nodes, num_nodes)
    for stop in range(size):
        node = network.tails[path[stop]] if stop < len(path) else target
        queue[stop], stops[node], numbers[node] = node, stop, 0
    visited = 0
    while visited < size:
        node, visited = queue[visited], visited + 1
        for place in range(network.leaving_from[node], network.leaving_from[node + 1]):
            head = network.heads[network.leaving[place]]
            # Nodes enter the queue by number, and by stop among equals, so that the first stop to reach one is its.
            if numbers[head] == num_nodes:
                queue[size], stops[head], numbers[head], size = head, stops[node], numbers[node] + 1, size + 1
    return np.argsort(stops * (num_nodes + 1) + numbers, kind="mergesort")


@compiled
def _sweep_row(
    network: Adjacency,
    backward: Adjacency,
    costs: np.ndarray,
    path: np.ndarray,
    exits: np.ndarray,
    order: np.ndarray,
    family: DensityFamily,
    base: np.ndarray,
    uniform: np.ndarray,
    work: _Work,
) -> None:
    """Updates the costs of a row; ``work.fresh`` has unconditional draws, new costs of edges without a restriction."""
    there, back, fresh, queue, affected = work.there, work.back, work.fresh, work.queue, work.affected
    first = least = most = length = np.sum(costs[path])
    bound = _search(network, backward, costs, path, length, work)
    position = 0
    for node in order:
        chosen = exits[node]
        if chosen >= 0:
            high = _detour(network, costs, path, position, work) - (length - costs[chosen])
            costs[chosen] = compiled_draw(uniform[chosen], family, base[chosen], 0.0, high)
            position, length = position + 1, np.sum(costs[path])
            least, most = min(least, length), max(most, length)
            # Distances that did not matter must not matter now, be it because of this edge or of those before.
            if max(most, length + first - least) > bound * (1 - ROUNDING):
                first = least = most = length
                bound = _search(network, backward, costs, path, length, work)
            else:
                _renew(network, costs, there, bound, network.heads[chosen], queue, affected)
                _renew(backward, costs, back, bound, node, queue, affected)
        places, reach = range(network.leaving_from[node], network.leaving_from[node + 1]), there.lengths[node]
        for place in places:
            edge = network.leaving[place]
            low = length - reach - back.lengths[network.heads[edge]]
            if low > 0 and edge != chosen:
                fresh[edge] = compiled_draw(uniform[edge], family, base[edge], low, math.inf)
        for place in places:
            edge = network.leaving[place]
            if edge != chosen:
                costs[edge] = fresh[edge]
                if reach < math.inf:
                    _renew(network, costs, there, bound, network.heads[edge], queue, affected)
        if back.potentials[node] < math.inf:
            _renew(backward, costs, back, bound, node, queue, affected)


@compiled
def _search(
    network: Adjacency, backward: Adjacency, costs: np.ndarray, path: np.ndarray, length: float, work: _Work
) -> float:
    """Finds all distances that matter as long as the path is hardly longer than now; returns how long it may be."""
    bound, floors, queue = length * (1 + SLACK), work.floors, work.queue
    source, target = network.tails[path[0]], network.heads[path[-1]]
    # Off the path edges never cost less than this: they cost what they do now, and then at least the fresh draw.
    floors[:] = np.minimum(costs, work.fresh)
    floors[path] = costs[path]
    rest, entries = work.detour.potentials, work.detour.entries
    _find(backward, floors, _Labels(rest, entries, work.zeros), bound, target, queue)
    _find_skipping(backward, floors, rest, _Labels(work.there.potentials, entries, work.zeros), bound, queue)
    nearest = work.there.lengths
    _find(network, floors, _Labels(nearest, entries, work.there.potentials), bound, source, queue)
    _find_skipping(network, floors, nearest, _Labels(work.back.potentials, entries, rest), bound, queue)
    _find(network, costs, work.there, bound, source, queue)
    _find(backward, costs, work.back, bound, target, queue)
    rest[:] = np.minimum(rest, bound)
    return bound


@compiled
def _find(network: Adjacency, costs: np.ndarray, labels: _Labels, bound: float, start: int, queue: _Queue) -> None:
    """Fills in the distances from node ``start``."""
    labels.lengths[:] = math.inf
    labels.entries[:] = -1
    labels.lengths[start] = 0.0
    _settle(network, costs, labels, bound, -1, queue, _put(queue, 0, start, labels.potentials[start]))


@compiled
def _find_skipping(
    network: Adjacency, costs: np.ndarray, distances: np.ndarray, labels: _Labels, bound: float, queue: _Queue
) -> None:
    """Fills in the lengths of the shortest paths one edge of which is free, from the distances of all nodes."""
    labels.lengths[:] = math.inf
    for edge in range(len(costs)):
        head = network.heads[edge]
        labels.lengths[head] = min(labels.lengths[head], distances[network.tails[edge]])
    count = 0
    for node in range(len(labels.lengths)):
        if labels.lengths[node] + labels.potentials[node] <= bound:
            count = _put(queue, count, node, labels.lengths[node] + labels.potentials[node])
        else:
            labels.lengths[node] = math.inf
    _settle(network, costs, labels, bound, -1, queue, count)


@compiled
def _detour(network: Adjacency, costs: np.ndarray, path: np.ndarray, position: int, work: _Work) -> float:
    """Length of the shortest path without the edge at a position of the present path."""
    labels, queue, chosen, target = work.detour, work.queue, path[position], network.heads[path[-1]]
    labels.lengths[:] = math.inf
    length, count = 0.0, 0
    for edge in path[: position + 1]:
        node = network.tails[edge]
        labels.lengths[node] = length
        count, length = _put(queue, count, node, length + labels.potentials[node]), length + costs[edge]
    present = costs[chosen]
    costs[chosen] = math.inf
    _settle(network, costs, labels, math.inf, target, queue, count)
    costs[chosen] = present
    return float(labels.lengths[target])
