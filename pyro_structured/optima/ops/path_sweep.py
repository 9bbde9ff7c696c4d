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
    :ivar np.ndarray keys: Keys of the nodes in the heap.
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
    nodes, places, keys, size = queue
    place = places[node]
    if place < 0:
        place = size[0]
        size[0] += 1
    while place > 0:
        above = (place - 1) >> 1
        if keys[above] <= key:
            break
        nodes[place], keys[place] = nodes[above], keys[above]
        places[nodes[place]] = place
        place = above
    _sink(nodes, places, keys, size[0], node, key, place)


@compiled
def _sink(
    nodes: np.ndarray, places: np.ndarray, keys: np.ndarray, count: int, node: int, key: float, place: int
) -> None:
    """Puts a node at a place, or below it, after those with smaller keys."""
    below = 2 * place + 1
    while below < count:
        if below + 1 < count and keys[below + 1] < keys[below]:
            below += 1
        if key <= keys[below]:
            break
        nodes[place], keys[place] = nodes[below], keys[below]
        places[nodes[place]] = place
        place, below = below, 2 * below + 1
    nodes[place], keys[place], places[node] = node, key, place


@compiled
def _take(queue: _Queue) -> int:
    """Takes the first node out of the queue."""
    nodes, places, keys, size = queue
    first = nodes[0]
    places[first] = -1
    size[0] -= 1
    last = size[0]
    if last:
        _sink(nodes, places, keys, last, nodes[last], keys[last], 0)
    return int(first)


@compiled
def _least_key(queue: _Queue) -> float:
    return float(queue.keys[0]) if queue.size[0] else math.inf


class _Ways(NamedTuple):
    """The edges that leave, or enter, the nodes, one list after the other.

    :ivar np.ndarray starts: Places where the lists of each of n nodes start, and E, shape ``(n + 1,)``.
    :ivar np.ndarray nodes: The nodes whose lists the E edges stand in, shape ``(E,)``.
    :ivar np.ndarray ends: The edges' other nodes, shape ``(E,)``.
    :ivar np.ndarray edges: Numbers of the edges, shape ``(E,)``.
    :ivar np.ndarray twins: Places of the edges in the lists of the other direction, shape ``(E,)``.
    :ivar np.ndarray costs: Present costs, shape ``(E,)``.
    """

    starts: np.ndarray
    nodes: np.ndarray
    ends: np.ndarray
    edges: np.ndarray
    twins: np.ndarray
    costs: np.ndarray


@compiled
def _ways(network: Adjacency) -> tuple[_Ways, _Ways]:
    """Edges that leave the nodes, and those that enter them."""
    count = len(network.tails)
    places = np.empty((2, count), np.int64)
    places[0, network.leaving], places[1, network.entering] = np.arange(count), np.arange(count)
    leaving, entering, tails, heads = network.leaving, network.entering, network.tails, network.heads
    return (
        _Ways(network.leaving_from, tails[leaving], heads[leaving], leaving, places[1][leaving], np.empty(count)),
        _Ways(network.entering_from, heads[entering], tails[entering], entering, places[0][entering], np.empty(count)),
    )


class _Search(NamedTuple):
    """A search for the shortest paths from a node, which may be interrupted, and goes on while costs change.

    No path is shorter than both its last node's length here and the least key in the queue: shorter lengths are final,
    larger ones those of some path. What other nodes in the queue make of the rest has not been found yet.

    :ivar np.ndarray lengths: Lengths of the shortest known paths to the n nodes, or +inf, shape ``(n,)``.
    :ivar np.ndarray entries: Places of the last edges of these paths, or -1, shape ``(n,)``.
    :ivar _Queue queue: Nodes from which paths have to go on, by their lengths.
    """

    lengths: np.ndarray
    entries: np.ndarray
    queue: _Queue


@compiled
def _new_search(num_nodes: int) -> _Search:
    return _Search(np.empty(num_nodes), np.empty(num_nodes, np.int64), _new_queue(num_nodes))


@compiled
def _start(search: _Search, node: int) -> None:
    _clear(search.queue)
    search.lengths[:] = math.inf
    search.entries[:] = -1
    search.lengths[node] = 0.0
    _put(search.queue, node, 0.0)


@compiled
def _find(ways: _Ways, search: _Search, target: int, bound: float) -> float:
    """The length of the shortest path to a node, or a number of at least ``bound``, if the length is.

    :param _Ways ways: Edges that leave the nodes; those that enter them for paths that end in a node.
    """
    starts, _, ends, _, _, costs = ways
    lengths, entries, queue = search
    while _least_key(queue) < min(lengths[target], bound):
        node = _take(queue)
        for place in range(starts[node], starts[node + 1]):
            end, length = ends[place], lengths[node] + costs[place]
            if length < lengths[end]:
                lengths[end], entries[end] = length, place
                _put(queue, end, length)
    return min(float(lengths[target]), _least_key(queue))


@compiled
def _renew(ahead: _Ways, behind: _Ways, search: _Search, node: int, affected: np.ndarray) -> None:
    r"""Corrects lengths after costs of edges into a node have changed, as far as this does not take a search.

    :param _Ways ahead: Edges of the search.
    :param _Ways behind: Edges in the other direction.
    :param np.ndarray affected: Memory for all nodes. Only those are visited whose shortest paths led through the edge
        of a path that has become longer: their lengths are not known any more, and many will not be needed again.

    **References**

    Ramalingam, Reps (1996): *An incremental algorithm for a generalization of the shortest-path problem.* Journal of
    Algorithms. Koenig, Likhachev, Furcy (2004): *Lifelong planning A\*.* Artificial Intelligence.
    """
    lengths, entries, queue = search
    present, entry = lengths[node], entries[node]
    if entry < 0 and present < math.inf:
        return
    length, best = _best_entry(behind, lengths, queue.places, node)
    if length < present:
        lengths[node], entries[node] = length, best
        _put(queue, node, length)
    elif entry >= 0 and lengths[ahead.nodes[entry]] + ahead.costs[entry] > present:
        size, visited = 1, 0
        affected[0] = node
        while visited < size:
            tail, visited = affected[visited], visited + 1
            for place in range(ahead.starts[tail], ahead.starts[tail + 1]):
                if entries[ahead.ends[place]] == place:
                    affected[size], size = ahead.ends[place], size + 1
        for changed in affected[:size]:
            lengths[changed], entries[changed] = math.inf, -1
        for changed in affected[:size]:
            lengths[changed], entries[changed] = _best_entry(behind, lengths, queue.places, changed)
            if entries[changed] >= 0 or queue.places[changed] >= 0:
                _put(queue, changed, lengths[changed])


@compiled
def _best_entry(behind: _Ways, lengths: np.ndarray, places: np.ndarray, node: int) -> tuple[float, int]:
    """Length and last edge of the shortest path to a node by way of nodes from which all paths have gone on."""
    least, best = math.inf, -1
    for place in range(behind.starts[node], behind.starts[node + 1]):
        tail = behind.ends[place]
        length = lengths[tail] + behind.costs[place]
        if length < least and places[tail] < 0:
            least, best = length, place
    return least, behind.twins[best] if best >= 0 else -1


@compiled
def shortest_paths(
    network: Adjacency, costs: np.ndarray, owners: np.ndarray, sources: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Edges of shortest paths, one for every pair of a source and another node that it leads to.

    :param np.ndarray costs: Vectors of costs, at least 0 and finite, shape ``(V, E)``.
    :param np.ndarray owners: Index of the vector of costs of each pair, integers of shape ``(pairs,)``.
    :return: Booleans of shape ``(pairs, E)``. One search for each pair, which ends with the target.
    """
    (leaving, _), num_nodes = _ways(network), len(network.leaving_from) - 1
    search, paths = _new_search(num_nodes), np.zeros((len(owners), costs.shape[1]), np.bool_)
    for pair in range(len(owners)):
        source, node = sources[pair], targets[pair]
        if not pair or owners[pair] != owners[pair - 1]:
            leaving.costs[:] = costs[owners[pair]][leaving.edges]
        _start(search, source)
        _find(leaving, search, node, math.inf)
        while node != source:
            place = search.entries[node]
            paths[pair, leaving.edges[place]], node = True, leaving.nodes[place]
    return paths


@compiled
def path_sweep(
    network: Adjacency,
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
    :param np.ndarray costs: Costs for which the paths are the shortest, at least 0, float64, shape ``(N, E)``.
    :param np.ndarray paths: The paths' edges, booleans of shape ``(N, E)``.
    :param np.ndarray sources: First nodes of the paths, integers of shape ``(N,)``.
    :param np.ndarray targets: Last nodes of the paths, integers of shape ``(N,)``.
    :param DensityFamily family: The distributions of all costs.
    :param np.ndarray base: Location, scale, lower bound of at least 0, upper bound, or +inf, and additive constant of
        at least 0 of all costs; float64, shape ``(N, E, 5)``;
        for mixtures as :func:`~pyro_structured.optima.ops.compiled_draw.compiled_draw` takes it.
    :param np.ndarray uniform: Uniform variables, one for every cost, float64, shape ``(N, E)``.

    O(N · n · (E + n log n)) for n nodes at worst; in large networks nearly O(N · (E + n log n)), since nodes come from
    the source to the target, and a cost changes the distances from the source behind its edge, and to the target before
    it: they are hardly needed before, and after that, respectively. Exact up to rounding.
    """
    num_nodes, num_edges = len(network.leaving_from) - 1, costs.shape[1]
    leaving, entering = _ways(network)
    there, back, detour = _new_search(num_nodes), _new_search(num_nodes), _new_search(num_nodes)
    fresh, affected = np.empty(num_edges), np.empty(num_nodes, np.int64)
    exits = np.empty(num_nodes, np.int64)
    for n in range(len(costs)):
        for place in range(num_edges):
            edge = leaving.edges[place]
            fresh[place] = compiled_draw(uniform[n, edge], family, base[n, edge], 0.0, math.inf)
        leaving.costs[:], entering.costs[:] = costs[n][leaving.edges], costs[n][entering.edges]
        path = _trace(leaving, paths[n], exits, sources[n])
        order = _order(leaving, path, targets[n])
        _start(there, sources[n])
        _start(back, targets[n])
        _sweep_row(
            *(leaving, entering, path, exits, order, family, base[n], uniform[n]),
            *(there, back, detour, fresh, affected),
        )
        costs[n][leaving.edges] = leaving.costs


@compiled
def _trace(leaving: _Ways, used: np.ndarray, exits: np.ndarray, source: int) -> np.ndarray:
    """Places of a path's edges in order; fills in ``exits``, those of the edges that leave the nodes, or -1."""
    exits[:] = -1
    for place in np.flatnonzero(used[leaving.edges]):
        exits[leaving.nodes[place]] = place
    path, node = np.empty(np.sum(used), np.int64), source
    for stop in range(len(path)):
        path[stop] = exits[node]
        node = leaving.ends[path[stop]]
    return path


@compiled
def _order(leaving: _Ways, path: np.ndarray, target: int) -> np.ndarray:
    """Nodes, sorted by the place of the path's node from which the fewest edges lead to them, and by their number."""
    num_nodes, size = len(leaving.starts) - 1, len(path) + 1
    queue, stops = np.empty(num_nodes, np.int64), np.full(num_nodes, size)
    numbers = np.full(num_nodes, num_nodes)
    for stop in range(size):
        node = leaving.nodes[path[stop]] if stop < len(path) else target
        queue[stop], stops[node], numbers[node] = node, stop, 0
    visited = 0
    while visited < size:
        node, visited = queue[visited], visited + 1
        for end in leaving.ends[leaving.starts[node] : leaving.starts[node + 1]]:
            # Nodes enter the queue by number, and by stop among equals, so that the first stop to reach one is its.
            if numbers[end] == num_nodes:
                queue[size], stops[end], numbers[end], size = end, stops[node], numbers[node] + 1, size + 1
    return np.argsort(stops * (num_nodes + 1) + numbers, kind="mergesort")


@compiled
def _sweep_row(
    leaving: _Ways,
    entering: _Ways,
    path: np.ndarray,
    exits: np.ndarray,
    order: np.ndarray,
    family: DensityFamily,
    base: np.ndarray,
    uniform: np.ndarray,
    there: _Search,
    back: _Search,
    detour: _Search,
    fresh: np.ndarray,
    affected: np.ndarray,
) -> None:
    """Updates the costs of a row.

    :param np.ndarray fresh: Unconditional draws by place, new costs of edges without a restriction.
    """
    starts, _, ends, edges, twins, costs = leaving
    length = np.sum(costs[path])
    for node in order:
        chosen, places, rest = exits[node], range(starts[node], starts[node + 1]), math.inf
        if chosen >= 0:
            edge, head, others = edges[chosen], ends[chosen], length - costs[chosen]
            # No path from the source may use the edge.
            costs[chosen] = entering.costs[twins[chosen]] = math.inf
            _renew(leaving, entering, there, head, affected)
            high = _detour(leaving, ends[path[-1]], there, back, detour) - others
            costs[chosen] = compiled_draw(uniform[edge], family, base[edge], 0.0, high)
            entering.costs[twins[chosen]], length = costs[chosen], np.sum(costs[path])
            _renew(leaving, entering, there, head, affected)
            _renew(entering, leaving, back, node, affected)
        for place in places:
            if place != chosen:
                rest = min(rest, back.lengths[ends[place]])
        rest = min(rest, _least_key(back.queue))
        if min(there.lengths[node], _least_key(there.queue)) + rest < length:
            reach = _find(leaving, there, node, length - rest)
            for place in places:
                if place != chosen:
                    low = length - reach - _find(entering, back, ends[place], length - reach)
                    if low > 0:
                        edge = edges[place]
                        fresh[place] = compiled_draw(uniform[edge], family, base[edge], low, math.inf)
        for place in places:
            if place != chosen:
                end, cost = ends[place], fresh[place]
                costs[place] = entering.costs[twins[place]] = cost
                if there.entries[end] == place or there.lengths[node] + cost < there.lengths[end]:
                    _renew(leaving, entering, there, end, affected)
        _renew(entering, leaving, back, node, affected)


@compiled
def _detour(leaving: _Ways, target: int, there: _Search, back: _Search, detour: _Search) -> float:
    """The distance from the source to the target, from where the search from the source has come to.

    :param _Search back: The search to the target, whose lower bounds lead there; some edges may cost more now.
    :param _Search detour: Memory.
    """
    starts, _, ends, _, _, costs = leaving
    lengths, _, queue = detour
    known, rest, limit = there.lengths, back.lengths, _least_key(back.queue)
    lengths[:] = math.inf
    _clear(queue)
    best: float = known[target]
    for node in there.queue.nodes[: there.queue.size[0]]:
        lengths[node] = known[node]
        if lengths[node] + min(rest[node], limit) < best:
            _put(queue, node, lengths[node] + min(rest[node], limit))
    while _least_key(queue) < best:
        node = _take(queue)
        for place in range(starts[node], starts[node + 1]):
            end, length = ends[place], lengths[node] + costs[place]
            if length < min(lengths[end], known[end]):
                lengths[end] = length
                if end == target:
                    best = length
                elif length + min(rest[end], limit) < best:
                    _put(queue, end, length + min(rest[end], limit))
    return best
