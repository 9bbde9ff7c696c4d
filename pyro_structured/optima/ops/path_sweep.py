"""Costs of edges given that paths are the shortest: one update of all edges, compiled."""

__all__ = ["path_sweep", "shortest_paths"]

import math
from typing import NamedTuple

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.adjacency import Adjacency
from pyro_structured.optima.ops.compiled_draw import compiled_draw
from pyro_structured.optima.ops.density_family import DensityFamily


class _Queue(NamedTuple):
    """Nodes in a binary heap, the one with the least key first.

    :ivar np.ndarray nodes: The heap, with room for all nodes.
    :ivar np.ndarray places: Place of each node in the heap, or -1.
    :ivar np.ndarray keys: Key of each node.
    :ivar np.ndarray size: Number of nodes in the heap, shape ``(1,)``.
    """

    nodes: np.ndarray
    places: np.ndarray
    keys: np.ndarray
    size: np.ndarray


@compiled
def _new_queue(num_nodes: int) -> _Queue:
    """An empty queue with room for all nodes."""
    places = np.full(num_nodes, -1, np.int64)
    return _Queue(np.empty(num_nodes, np.int64), places, np.empty(num_nodes), np.zeros(1, np.int64))


@compiled
def _clear(queue: _Queue) -> None:
    for place in range(queue.size[0]):
        queue.places[queue.nodes[place]] = -1
    queue.size[0] = 0


@compiled
def _put(queue: _Queue, node: int, key: float) -> None:
    """Puts a node in the queue, or moves it to where its new key belongs."""
    place = queue.places[node]
    if place < 0:
        place = queue.size[0]
        queue.size[0] += 1
    queue.keys[node] = key
    while place > 0:
        above = queue.nodes[(place - 1) // 2]
        if queue.keys[above] <= key:
            break
        queue.nodes[place], queue.places[above] = above, place
        place = (place - 1) // 2
    _sink(queue, node, place)


@compiled
def _sink(queue: _Queue, node: int, place: int) -> None:
    """Puts a node at a place, or below it, after those with smaller keys."""
    count, key = queue.size[0], queue.keys[node]
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and queue.keys[queue.nodes[below + 1]] < queue.keys[queue.nodes[below]]:
            below += 1
        moved = queue.nodes[below]
        if key <= queue.keys[moved]:
            break
        queue.nodes[place], queue.places[moved] = moved, place
        place = below
    queue.nodes[place], queue.places[node] = node, place


@compiled
def _take(queue: _Queue) -> int:
    """Takes the first node out of the queue."""
    first, last = queue.nodes[0], queue.nodes[queue.size[0] - 1]
    queue.places[first] = -1
    queue.size[0] -= 1
    if queue.size[0]:
        _sink(queue, last, 0)
    return int(first)


@compiled
def _least_key(queue: _Queue) -> float:
    return float(queue.keys[queue.nodes[0]]) if queue.size[0] else math.inf


class _Search(NamedTuple):
    """A search for the shortest paths from a node, which may be interrupted, and goes on while costs change.

    No path is shorter than both its last node's length here and the least key in the queue: shorter lengths are final,
    larger ones those of some path. What other nodes in the queue make of the rest has not been found yet.

    :ivar Adjacency network: The edges; reversed ones for paths that end in a node.
    :ivar np.ndarray lengths: Lengths of the shortest known paths to the n nodes, or +inf, shape ``(n,)``.
    :ivar np.ndarray entries: Last edges of these paths, or -1, shape ``(n,)``.
    :ivar _Queue queue: Nodes from which paths have to go on, by their lengths.
    """

    network: Adjacency
    lengths: np.ndarray
    entries: np.ndarray
    queue: _Queue


@compiled
def _new_search(network: Adjacency) -> _Search:
    num_nodes = len(network.leaving_from) - 1
    return _Search(network, np.empty(num_nodes), np.empty(num_nodes, np.int64), _new_queue(num_nodes))


@compiled
def _start(search: _Search, node: int) -> None:
    _clear(search.queue)
    search.lengths[:] = math.inf
    search.entries[:] = -1
    search.lengths[node] = 0.0
    _put(search.queue, node, 0.0)


@compiled
def _find(search: _Search, costs: np.ndarray, target: int, bound: float) -> float:
    """The length of the shortest path to a node, or a number of at least ``bound``, if the length is."""
    network, lengths, entries, queue = search
    while _least_key(queue) < min(lengths[target], bound):
        node = _take(queue)
        for place in range(network.leaving_from[node], network.leaving_from[node + 1]):
            edge = network.leaving[place]
            head, length = network.heads[edge], lengths[node] + costs[edge]
            if length < lengths[head]:
                lengths[head], entries[head] = length, edge
                _put(queue, head, length)
    return _least_length(search, target)


@compiled
def _least_length(search: _Search, node: int) -> float:
    """Lower bound of the length of the shortest path to a node; the length itself, if it is final."""
    return min(float(search.lengths[node]), _least_key(search.queue))


@compiled
def _renew(search: _Search, costs: np.ndarray, node: int, affected: np.ndarray) -> None:
    r"""Corrects lengths after costs of edges into a node have changed, as far as this does not take a search.

    :param np.ndarray affected: Memory for all nodes. Only those are visited whose shortest paths led through the edge
        of a path that has become longer: their lengths are not known any more, and many will not be needed again.

    **References**

    Ramalingam, Reps (1996): *An incremental algorithm for a generalization of the shortest-path problem.* Journal of
    Algorithms. Koenig, Likhachev, Furcy (2004): *Lifelong planning A\*.* Artificial Intelligence.
    """
    network, lengths, entries, queue = search
    present, entry = lengths[node], entries[node]
    if entry < 0 and present < math.inf:
        return
    length, best = _best_entry(search, costs, node)
    if length < present:
        lengths[node], entries[node] = length, best
        _put(queue, node, length)
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
        for changed in affected[:size]:
            lengths[changed], entries[changed] = _best_entry(search, costs, changed)
            if entries[changed] >= 0 or queue.places[changed] >= 0:
                _put(queue, changed, lengths[changed])


@compiled
def _best_entry(search: _Search, costs: np.ndarray, node: int) -> tuple[float, int]:
    """Length and last edge of the shortest path to a node by way of nodes from which all paths have gone on."""
    network, least, best = search.network, math.inf, -1
    for place in range(network.entering_from[node], network.entering_from[node + 1]):
        edge = network.entering[place]
        tail, length = network.tails[edge], search.lengths[network.tails[edge]] + costs[edge]
        if length < least and search.queue.places[tail] < 0:
            least, best = length, edge
    return least, best


@compiled
def shortest_paths(
    network: Adjacency, costs: np.ndarray, owners: np.ndarray, sources: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Edges of shortest paths, one for every pair of a source and another node that it leads to.

    :param np.ndarray costs: Vectors of costs, at least 0 and finite, shape ``(V, E)``.
    :param np.ndarray owners: Index of the vector of costs of each pair, integers of shape ``(pairs,)``.
    :return: Booleans of shape ``(pairs, E)``. One search for each pair, which ends with the target.
    """
    search, paths = _new_search(network), np.zeros((len(owners), costs.shape[1]), np.bool_)
    for pair in range(len(owners)):
        source, node = sources[pair], targets[pair]
        _start(search, source)
        _find(search, costs[owners[pair]], node, math.inf)
        while node != source:
            edge = search.entries[node]
            paths[pair, edge], node = True, network.tails[edge]
    return paths


class _Work(NamedTuple):
    """Searches from the source, to the target, and for the shortest path without an edge; and other memory."""

    there: _Search
    back: _Search
    detour: _Search
    fresh: np.ndarray
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
    u makes no difference where this bound is positive. Both searches go on only as far as it may be. An edge of the
    path may become as expensive as the shortest path without it allows: from where the search from the source has come
    to, that is the cheapest way on, which lower bounds of R lead to the target.

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

    O(N · n · (E + n log n)) for n nodes at worst; in large networks nearly O(N · (E + n log n)), since nodes come from
    the source to the target, and a cost changes the distances from the source behind its edge, and to the target before
    it: they are hardly needed before, and after that, respectively. Exact up to rounding.
    """
    num_nodes, num_edges = len(network.leaving_from) - 1, costs.shape[1]
    work = _Work(
        _new_search(network),
        _new_search(backward),
        _new_search(network),
        np.empty(num_edges),
        np.empty(num_nodes, np.int64),
    )
    exits = np.empty(num_nodes, np.int64)
    for n in range(len(costs)):
        for edge in range(num_edges):
            work.fresh[edge] = compiled_draw(uniform[n, edge], family, base[n, edge], 0.0, math.inf)
        path = _trace(network, paths[n], exits, sources[n])
        order = _order(network, path, targets[n])
        _start(work.there, sources[n])
        _start(work.back, targets[n])
        _sweep_row(costs[n], path, exits, order, family, base[n], uniform[n], work)


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
    there, back, fresh, affected = work.there, work.back, work.fresh, work.affected
    network, length = there.network, np.sum(costs[path])
    for node in order:
        chosen = exits[node]
        if chosen >= 0:
            high = _detour(costs, chosen, network.heads[path[-1]], work) - (length - costs[chosen])
            costs[chosen] = compiled_draw(uniform[chosen], family, base[chosen], 0.0, high)
            length = np.sum(costs[path])
            _renew(there, costs, network.heads[chosen], affected)
            _renew(back, costs, node, affected)
        places, rest = range(network.leaving_from[node], network.leaving_from[node + 1]), math.inf
        for place in places:
            edge = network.leaving[place]
            if edge != chosen:
                rest = min(rest, _least_length(back, network.heads[edge]))
        reach = _least_length(there, node)
        if reach + rest < length:
            reach = _find(there, costs, node, length - rest)
            for place in places:
                edge = network.leaving[place]
                if edge != chosen:
                    low = length - reach - _find(back, costs, network.heads[edge], length - reach)
                    if low > 0:
                        fresh[edge] = compiled_draw(uniform[edge], family, base[edge], low, math.inf)
        for place in places:
            edge = network.leaving[place]
            if edge != chosen:
                head, costs[edge] = network.heads[edge], fresh[edge]
                if there.entries[head] == edge or there.lengths[node] + costs[edge] < there.lengths[head]:
                    _renew(there, costs, head, affected)
        _renew(back, costs, node, affected)


@compiled
def _detour(costs: np.ndarray, chosen: int, target: int, work: _Work) -> float:
    """Length of the shortest path without an edge of the path, which is closed for the search from the source."""
    there, back, (network, lengths, _, queue) = work.there, work.back, work.detour
    present, costs[chosen] = costs[chosen], math.inf
    _renew(there, costs, network.heads[chosen], work.affected)
    lengths[:] = math.inf
    _clear(queue)
    best: float = there.lengths[target]
    for node in there.queue.nodes[: there.queue.size[0]]:
        lengths[node] = there.lengths[node]
        if lengths[node] + _least_length(back, node) < best:
            _put(queue, node, lengths[node] + _least_length(back, node))
    while _least_key(queue) < best:
        node = _take(queue)
        for place in range(network.leaving_from[node], network.leaving_from[node + 1]):
            edge = network.leaving[place]
            head, length = network.heads[edge], lengths[node] + costs[edge]
            if length < min(lengths[head], there.lengths[head]):
                lengths[head] = length
                if head == target:
                    best = length
                elif length + _least_length(back, head) < best:
                    _put(queue, head, length + _least_length(back, head))
    costs[chosen] = present
    return best
