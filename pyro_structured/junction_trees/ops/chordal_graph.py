"""Elimination of the nodes of a graph, its chordal completions, and their cliques."""

__all__ = [
    "clique_forest",
    "elimination_cliques",
    "elimination_order",
    "eliminations",
    "is_chordal",
    "maximum_cardinality_order",
    "neighbor_sets",
    "width_of",
]

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

Neighbors = list[set[int]]
HEURISTICS = ("min_fill", "min_weight")


def neighbor_sets(num_nodes: int, edges: Iterable[Sequence[int]]) -> Neighbors:
    """The neighbours of every node; loops do not count.

    :param int num_nodes: Number of nodes.
    :param edges: Pairs of nodes.
    """
    neighbors: Neighbors = [set() for _ in range(num_nodes)]
    for one, other in edges:
        if one != other:
            neighbors[one].add(other)
            neighbors[other].add(one)
    return neighbors


def elimination_order(
    neighbors: Neighbors, log_sizes: Sequence[float] | None = None, heuristic: str = "min_fill"
) -> list[int]:
    """An order in which to eliminate nodes that makes small cliques, found greedily.

    :param neighbors: As of :func:`neighbor_sets`.
    :param log_sizes: Logarithms of the numbers of states of the nodes; ``None``: all are alike.
    :param str heuristic: ``"min_fill"``: next is a node that adds the fewest edges; of these, one of the smallest table
        of states. ``"min_weight"``: the other way round.
    :return: All nodes. Cost :math:`O(n w^2 d)` for cliques of w nodes that d nodes are close to.

    Example::

        >>> elimination_order(neighbor_sets(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]))
        [1, 0, 2, 3]
    """
    return [node for node, _ in eliminations(neighbors, log_sizes, heuristic)]


def eliminations(
    neighbors: Neighbors, log_sizes: Sequence[float] | None = None, heuristic: str = "min_fill"
) -> Iterator[tuple[int, set[int]]]:
    """Nodes as :func:`elimination_order` has them, each with the neighbours that it has left when it is its turn."""
    sizes = [math.log(2)] * len(neighbors) if log_sizes is None else list(log_sizes)
    graph = [set(near) for near in neighbors]
    fills = _fills(graph)

    def key(node: int) -> tuple[float, float]:
        # Exact, so that it does not depend on the order of a set.
        weight = sizes[node] + math.fsum(map(sizes.__getitem__, graph[node]))
        return (fills[node], weight) if heuristic == "min_fill" else (weight, fills[node])

    keys = {node: key(node) for node in range(len(graph))}
    heap = [(*keys[node], node) for node in keys]
    heapq.heapify(heap)
    while heap:
        *found, node = heapq.heappop(heap)
        if keys.get(node) != tuple(found):
            continue
        del keys[node]
        for other in _eliminate(graph, fills, node):
            if keys[other] != (new := key(other)):
                keys[other] = new
                heapq.heappush(heap, (*new, other))
        yield node, graph[node]


def _fills(graph: Neighbors) -> list[int]:
    """The number of edges that the elimination of each node would add."""
    twice = [0] * len(graph)
    for one, near in enumerate(graph):
        for other in near:
            if one < other:
                common = len(near & graph[other])
                twice[one] += len(near) - 1 - common
                twice[other] += len(graph[other]) - 1 - common
    return [each // 2 for each in twice]


def _eliminate(graph: Neighbors, fills: list[int], node: int) -> set[int]:
    """Removes a node from its neighbours, and joins them; returns nodes whose fill or neighbours are others now."""
    near = graph[node]
    touched = set(near)
    for other in near:
        graph[other].discard(node)
        joined = len(near) - 1 if not fills[node] else len(graph[other] & near)
        fills[other] -= len(graph[other]) - joined
    for one, other in combinations(near, 2) if fills[node] else ():
        if other not in graph[one]:
            common = graph[one] & graph[other]
            for each in common:
                fills[each] -= 1
            fills[one] += len(graph[one]) - len(common)
            fills[other] += len(graph[other]) - len(common)
            graph[one].add(other)
            graph[other].add(one)
            touched |= common
    return touched


def elimination_cliques(neighbors: Neighbors, order: Sequence[int]) -> list[frozenset[int]]:
    """Cliques of the nodes of an order: each node with the neighbours that are left at its turn.

    These are cliques of a chordal graph, all its maximal ones among them. Cost :math:`O(n w^2)`.
    """
    place = {node: number for number, node in enumerate(order)}
    later = [{other for other in near if place[other] > place[node]} for node, near in enumerate(neighbors)]
    for node in order:
        if later[node]:
            # The first remaining neighbour takes over the edges that elimination of the node adds.
            first = min(later[node], key=place.__getitem__)
            later[first] |= later[node] - {first}
    return [frozenset(later[node] | {node}) for node in order]


def width_of(neighbors: Neighbors, order: Sequence[int]) -> int:
    """The largest number of neighbours that a node has left when it is its turn: an upper bound of the treewidth."""
    return max(len(clique) for clique in elimination_cliques(neighbors, order)) - 1


def maximum_cardinality_order(neighbors: Neighbors) -> list[int]:
    """An order in which chordal graphs are eliminated without a new edge: maximum cardinality search, backwards."""
    visited, weights = [False] * len(neighbors), [0] * len(neighbors)
    heap = [(0, node) for node in range(len(neighbors))]
    order = []
    while heap:
        weight, node = heapq.heappop(heap)
        if visited[node] or -weight != weights[node]:
            continue
        visited[node] = True
        order.append(node)
        for other in neighbors[node]:
            if not visited[other]:
                weights[other] += 1
                heapq.heappush(heap, (-weights[other], other))
    return order[::-1]


def is_chordal(neighbors: Neighbors) -> bool:
    """Whether every cycle of more than three nodes has a chord. Cost :math:`O(n w^2)`."""
    cliques = elimination_cliques(neighbors, maximum_cardinality_order(neighbors))
    return sum(len(clique) - 1 for clique in cliques) == sum(len(near) for near in neighbors) // 2


def clique_forest(cliques: Sequence[frozenset[int]]) -> list[int] | None:
    """Parents that make cliques a junction tree: all those with a common node are connected through others with it.

    :param cliques: Sets of nodes, at least one.
    :return: The parent of each clique; that of a root is itself. Trees hang from their centres, so that they have few
        levels. ``None`` if there is no junction tree: a spanning forest of most common nodes would be one.
    """
    members = [(index, node) for index, clique in enumerate(cliques) for node in clique]
    rows, columns = (np.array(part, dtype=int) for part in (zip(*members, strict=True) if members else ((), ())))
    nodes, columns = np.unique(columns, return_inverse=True)
    incidence = csr_array((np.ones(len(rows)), (rows, columns)), (len(cliques), len(nodes)))
    shared = incidence @ incidence.T
    shared.setdiag(0)
    shared.eliminate_zeros()
    forest = minimum_spanning_tree(-shared)
    if -forest.sum() != len(rows) - len(nodes):
        return None
    number, labels = connected_components(forest, directed=False)
    parents = np.arange(len(cliques))
    for start in (int((labels == label).argmax()) for label in range(number)):
        order, above = breadth_first_order(forest, _centre(forest, start), directed=False)
        parents[order[1:]] = above[order[1:]]
    return [int(parent) for parent in parents]


def _centre(forest: Any, start: int) -> int:
    """The middle of a longest path of a node's tree."""
    end = breadth_first_order(forest, start, directed=False)[0][-1]
    order, above = breadth_first_order(forest, end, directed=False)
    path = [int(order[-1])]
    while path[-1] != end:
        path.append(int(above[path[-1]]))
    return path[len(path) // 2]
