"""Directed networks with costs on their edges."""

__all__ = ["Network"]

from typing import Any

import numpy as np


class Network:
    """A directed network, arranged for Dijkstra's algorithm.

    :param np.ndarray edges: Tails and heads, integers of shape ``(E, 2)``, at least one; parallel edges are allowed.
    :param int num_nodes: Number of nodes n.
    """

    def __init__(self, edges: np.ndarray, num_nodes: int) -> None:
        self.tails, self.heads = edges.T
        self.num_nodes = num_nodes
        # Parallel edges lie side by side and make one arc.
        self._order = np.lexsort((self.heads, self.tails))
        keys = (self.tails.astype(np.int64) * num_nodes + self.heads)[self._order]
        is_first = np.diff(keys, prepend=-1) > 0
        self._starts, self._arc = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        self._keys = keys[is_first]

    def distances(self, costs: np.ndarray, starts: Any, backward: bool = False, limit: float = np.inf) -> np.ndarray:
        """Lengths of the shortest paths from one node, or several, to all nodes; or from all nodes to them.

        :param np.ndarray costs: Lengths of the edges, at least 0, shape ``(E,)``; +inf closes an edge.
        :param starts: The node, or nodes, from which paths start.
        :param bool backward: Whether the paths end at the starts instead.
        :param float limit: Larger distances are not wanted: they may be +inf.
        :return: Shape ``(n,)``, or ``(starts, n)``, in O(E + n log n) for each start.
        """
        from scipy.sparse.csgraph import dijkstra

        matrix = self._matrix(costs)
        lengths: np.ndarray = dijkstra(matrix.T.tocsr() if backward else matrix, indices=starts, limit=limit)
        return lengths

    def nearest(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start from which the fewest edges lead to each node, and their number.

        :return: Places of the starts, the first one of several, or ``len(starts)`` where no start leads to the node;
            and numbers, at most n, which stands for no path; both of shape ``(n,)``.
        """
        start, count = np.full(self.num_nodes, len(starts)), np.full(self.num_nodes, self.num_nodes)
        start[starts], count[starts] = np.arange(len(starts)), 0
        for number in range(self.num_nodes):
            reached = (count[self.tails] == number) & (count[self.heads] > number)
            if not reached.any():
                break
            np.minimum.at(start, self.heads[reached], start[self.tails[reached]])
            count[self.heads[reached]] = number + 1
        return start, count

    def shortest_paths(
        self, costs: np.ndarray, owners: np.ndarray, sources: np.ndarray, targets: np.ndarray
    ) -> np.ndarray:
        """Edges of shortest paths, one for every pair of a source and another node that it leads to.

        :param np.ndarray costs: Vectors of costs, at least 0 and finite, shape ``(V, E)``.
        :param np.ndarray owners: Index of the vector of costs of each pair, integers of shape ``(pairs,)``.
        :return: Booleans of shape ``(pairs, E)``. One search for each vector and each different source.
        """
        path = np.zeros((len(owners), costs.shape[1]), dtype=bool)
        for number, vector in enumerate(costs):
            pairs = np.flatnonzero(owners == number)
            self._mark_paths(path, vector, pairs, sources[pairs], targets[pairs])
        return path

    def _mark_paths(
        self, path: np.ndarray, costs: np.ndarray, pairs: np.ndarray, sources: np.ndarray, nodes: np.ndarray
    ) -> None:
        """Marks the paths from sources to nodes for some pairs that share their costs."""
        from scipy.sparse.csgraph import dijkstra

        starts, search = np.unique(sources, return_inverse=True)
        _, before = dijkstra(self._matrix(costs), indices=starts, return_predecessors=True)
        cheapest = self._order[self._starts]
        ordered = costs[self._order]
        is_least = ordered == np.minimum.reduceat(ordered, self._starts)[self._arc]
        cheapest[self._arc[is_least]] = self._order[is_least]
        while len(pairs):
            tails = before[search, nodes]
            path[pairs, cheapest[np.searchsorted(self._keys, tails.astype(np.int64) * self.num_nodes + nodes)]] = True
            going = tails != sources
            pairs, search, sources, nodes = pairs[going], search[going], sources[going], tails[going]

    def _matrix(self, costs: np.ndarray) -> Any:
        """Sparse matrix of the arcs' costs; costs of 0 are stored explicitly, so that searches take them as arcs."""
        from scipy.sparse import csr_array

        tails, heads = np.divmod(self._keys, self.num_nodes)
        rows = np.searchsorted(tails, np.arange(self.num_nodes + 1))
        data = np.minimum.reduceat(costs[self._order], self._starts)
        return csr_array((data, heads, rows), shape=(self.num_nodes, self.num_nodes))
