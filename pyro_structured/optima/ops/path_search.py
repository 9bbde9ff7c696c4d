"""Searches for shortest paths, compiled."""

__all__ = ["Labels", "Queue", "new_queue", "put", "renew", "settle", "shortest_paths"]

import math
from typing import NamedTuple

import numpy as np

from pyro_structured.optima.ops.adjacency import Adjacency
from pyro_structured.optima.ops.compiled import compiled


class Labels(NamedTuple):
    """What searches know about nodes.

    :ivar np.ndarray lengths: Of the shortest paths to them, +inf where none is known.
    :ivar np.ndarray entries: The last edges of these paths, or -1.
    :ivar np.ndarray potentials: What the rest of a path costs, at least. Longer paths are not wanted where length and
        potential together are larger than a bound.
    """

    lengths: np.ndarray
    entries: np.ndarray
    potentials: np.ndarray


class Queue(NamedTuple):
    """Nodes in a binary heap, the one with the least key first.

    :ivar np.ndarray nodes: The heap, with room for all nodes.
    :ivar np.ndarray places: Where each node is in it, or -1.
    :ivar np.ndarray keys: Of each node.
    """

    nodes: np.ndarray
    places: np.ndarray
    keys: np.ndarray


@compiled
def new_queue(num_nodes: int) -> Queue:
    """An empty one."""
    return Queue(np.empty(num_nodes, np.int64), np.full(num_nodes, -1, np.int64), np.empty(num_nodes))


@compiled
def put(queue: Queue, count: int, node: int, key: float) -> int:
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
def _take(queue: Queue, count: int) -> int:
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
def settle(
    network: Adjacency,
    costs: np.ndarray,
    labels: Labels,
    bound: float,
    target: int,
    queue: Queue,
    count: int,
) -> None:
    """Lowers lengths to those of the shortest paths that go on from the nodes in the queue.

    :param Adjacency network: The edges; reversed ones for paths that end in the queue's nodes.
    :param np.ndarray costs: At least 0, shape ``(E,)``; +inf closes an edge.
    :param Labels labels: The lengths of the queue's nodes are final. Nodes come in the order of their lengths and
        potentials; if these never fall along an edge by more than it costs, each comes only once.
    :param float bound: Where length and potential are larger, paths are not wanted.
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
                count = put(queue, count, head, length + potentials[head])
    for place in range(count):
        queue.places[queue.nodes[place]] = -1


@compiled
def renew(
    network: Adjacency,
    costs: np.ndarray,
    labels: Labels,
    bound: float,
    node: int,
    queue: Queue,
    affected: np.ndarray,
) -> None:
    """Corrects the lengths that a search has found after costs of edges into a node have changed.

    Arguments as for :func:`settle`, and room for all nodes. Only the nodes whose shortest paths have changed are
    visited: those behind the node, and those that are nearer through it now.

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
        settle(network, costs, labels, bound, -1, queue, put(queue, 0, node, length + potentials[node]))
    elif entry >= 0 and lengths[network.tails[entry]] + costs[entry] > present:
        size, visited = 1, 0
        affected[0] = node
        while visited < size:
            tail, visited = affected[visited], visited + 1
            for place in range(network.leaving_from[tail], network.leaving_from[tail + 1]):
                edge = network.leaving[place]
                if entries[network.heads[edge]] == edge:
                    affected[size], size = network.heads[edge], size + 1
        for each in affected[:size]:
            lengths[each], entries[each] = math.inf, -1
        count = 0
        for each in affected[:size]:
            lengths[each], entries[each] = _best_entry(network, costs, labels, bound, each)
            if entries[each] >= 0:
                count = put(queue, count, each, lengths[each] + potentials[each])
        settle(network, costs, labels, bound, -1, queue, count)


@compiled
def _best_entry(network: Adjacency, costs: np.ndarray, labels: Labels, bound: float, node: int) -> tuple[float, int]:
    """Length and last edge of the shortest path to a node, given the lengths of those to all others."""
    least, found = math.inf, -1
    for place in range(network.entering_from[node], network.entering_from[node + 1]):
        edge = network.entering[place]
        length = labels.lengths[network.tails[edge]] + costs[edge]
        if length < least:
            least, found = length, edge
    return (least, found) if least + labels.potentials[node] <= bound else (math.inf, -1)


@compiled
def shortest_paths(
    network: Adjacency, costs: np.ndarray, owners: np.ndarray, sources: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Edges of shortest paths, one for every pair of a source and another node that it leads to.

    :param np.ndarray costs: Vectors of costs, at least 0 and finite, shape ``(V, E)``.
    :param np.ndarray owners: Which of them each pair has, integers of shape ``(pairs,)``.
    :return: Booleans of shape ``(pairs, E)``. One search for each pair, which ends with the target.
    """
    num_nodes = len(network.leaving_from) - 1
    queue, found = new_queue(num_nodes), np.zeros((len(owners), costs.shape[1]), np.bool_)
    labels = Labels(np.empty(num_nodes), np.empty(num_nodes, np.int64), np.zeros(num_nodes))
    for pair in range(len(owners)):
        source, node = sources[pair], targets[pair]
        labels.lengths[:] = math.inf
        labels.lengths[source] = 0.0
        settle(network, costs[owners[pair]], labels, math.inf, node, queue, put(queue, 0, source, 0.0))
        while node != source:
            edge = labels.entries[node]
            found[pair, edge], node = True, network.tails[edge]
    return found
