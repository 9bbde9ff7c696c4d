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
    """Sets of the neighbours of all nodes; loops do not count.

    :param int num_nodes: Number of nodes.
    :param edges: Pairs of nodes.
    """
    neighbors: Neighbors = [set() for _ in range(num_nodes)]
    for first, second in edges:
        if first != second:
            neighbors[first].add(second)
            neighbors[second].add(first)
    return neighbors


def elimination_order(
    neighbors: Neighbors, log_sizes: Sequence[float] | None = None, heuristic: str = "min_fill"
) -> list[int]:
    """Elimination order of the nodes that makes small cliques, found greedily.

    :param neighbors: Neighbours of all nodes, as of :func:`neighbor_sets`.
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
    """Nodes in the order of :func:`elimination_order`, each with its neighbours at the time of its elimination."""
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
        *key_in_heap, node = heapq.heappop(heap)
        if keys.get(node) != tuple(key_in_heap):
            continue
        del keys[node]
        for changed in _eliminate(graph, fills, node):
            if keys[changed] != (new := key(changed)):
                keys[changed] = new
                heapq.heappush(heap, (*new, changed))
        yield node, graph[node]


def _fills(graph: Neighbors) -> list[int]:
    """Numbers of edges that the elimination of each node would add."""
    twice = [0] * len(graph)
    for first, near in enumerate(graph):
        for second in near:
            if first < second:
                common = len(near & graph[second])
                twice[first] += len(near) - 1 - common
                twice[second] += len(graph[second]) - 1 - common
    return [number // 2 for number in twice]


def _eliminate(graph: Neighbors, fills: list[int], node: int) -> set[int]:
    """Removes a node and joins its neighbours, in place; returns the nodes whose fill or neighbours have changed."""
    near = graph[node]
    touched = set(near)
    for second in near:
        graph[second].discard(node)
        joined = len(near) - 1 if not fills[node] else len(graph[second] & near)
        fills[second] -= len(graph[second]) - joined
    for first, second in combinations(near, 2) if fills[node] else ():
        if second not in graph[first]:
            common = graph[first] & graph[second]
            for shared in common:
                fills[shared] -= 1
            fills[first] += len(graph[first]) - len(common)
            fills[second] += len(graph[second]) - len(common)
            graph[first].add(second)
            graph[second].add(first)
            touched |= common
    return touched


def elimination_cliques(neighbors: Neighbors, order: Sequence[int]) -> list[frozenset[int]]:
    """Elimination cliques of an order: every node together with its neighbours at the time of its elimination.

    These are cliques of a chordal graph, all its maximal ones among them. Cost :math:`O(n w^2)`.
    """
    place = {node: number for number, node in enumerate(order)}
    later = [{neighbor for neighbor in near if place[neighbor] > place[node]} for node, near in enumerate(neighbors)]
    for node in order:
        if later[node]:
            # The neighbours are joined by its elimination: the first of them has the others as later neighbours, too.
            first = min(later[node], key=place.__getitem__)
            later[first] |= later[node] - {first}
    return [frozenset(later[node] | {node}) for node in order]


def width_of(neighbors: Neighbors, order: Sequence[int]) -> int:
    """Width of an elimination order, the largest number of neighbours of a node at the time of its elimination: an
    upper bound of the treewidth.
    """
    return max(len(clique) for clique in elimination_cliques(neighbors, order)) - 1


def maximum_cardinality_order(neighbors: Neighbors) -> list[int]:
    """Elimination order that adds no edge to a chordal graph: maximum cardinality search, backwards."""
    visited, weights = [False] * len(neighbors), [0] * len(neighbors)
    heap = [(0, node) for node in range(len(neighbors))]
    order = []
    while heap:
        weight, node = heapq.heappop(heap)
        if visited[node] or -weight != weights[node]:
            continue
        visited[node] = True
        order.append(node)
        for neighbor in neighbors[node]:
            if not visited[neighbor]:
                weights[neighbor] += 1
                heapq.heappush(heap, (-weights[neighbor], neighbor))
    return order[::-1]


def is_chordal(neighbors: Neighbors) -> bool:
    """Whether every cycle of more than three nodes has a chord. Cost :math:`O(n w^2)`."""
    cliques = elimination_cliques(neighbors, maximum_cardinality_order(neighbors))
    return sum(len(clique) - 1 for clique in cliques) == sum(len(near) for near in neighbors) // 2


def clique_forest(cliques: Sequence[frozenset[int]]) -> list[int] | None:
    """Parents that make cliques a junction tree: all cliques with a common node are connected through such cliques.

    :param cliques: Sets of nodes, at least one.
    :return: The parent of each clique; that of a root is itself. Roots are the centres of their trees, so that these
        have few levels. ``None`` if there is no junction tree; if there is one, it is a spanning forest of maximum
        weight, the numbers of common nodes.
    """
    members = [(index, node) for index, clique in enumerate(cliques) for node in clique]
    rows, columns = (np.array(column, dtype=int) for column in (zip(*members, strict=True) if members else ((), ())))
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
    """Middle node of a longest path in the tree of ``start``."""
    end = breadth_first_order(forest, start, directed=False)[0][-1]
    order, above = breadth_first_order(forest, end, directed=False)
    path = [int(order[-1])]
    while path[-1] != end:
        path.append(int(above[path[-1]]))
    return path[len(path) // 2]
