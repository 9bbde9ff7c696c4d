"""Intervals of the costs of edges that keep a path the shortest."""

__all__ = ["path_intervals"]

from collections.abc import Callable, Iterator

import numpy as np

from pyro_structured.optima.solvers.network import Network

# Two sums of the same costs may differ by their rounding.
ROUNDING = 1e-12

Interval = tuple[np.ndarray, np.ndarray, np.ndarray]


def path_intervals(
    network: Network, path: np.ndarray, source: int, target: int, costs: Callable[[], np.ndarray]
) -> Iterator[Interval]:
    r"""Yields edges and the bounds between which their costs keep a path the shortest, until all had their turn.

    The out-edges of one node belong together, since a path uses only one of them. Let D be the distance from the
    source to node u, and :math:`R_k` the distance from the head of the k-th out-edge to the target, both without the
    out-edges of u; let A be the length of the best path that avoids u, and C that of the given path. If it avoids u,
    then it stays the shortest as long as :math:`w_k \ge C - D - R_k` for all k. If it leaves u by edge c, then as long
    as :math:`w_c \le A - D - R_c` and :math:`w_c + R_c \le w_k + R_k`.

    Edges outside the path are unrestricted together if and only if the path is the shortest even when all of them cost
    nothing, since nothing is better for the paths that use them. All out-edges of nodes that are no nearer to the
    source than the target is are an example. Nodes are visited in an order that does not depend on the costs: along
    the path, and from each of its nodes outwards. Consecutive nodes without any restriction are visited at once,
    which is the same as one after the other, whatever costs they are given.

    :param np.ndarray path: A shortest path, booleans of shape ``(E,)``.
    :param costs: Function that returns the present costs, shape ``(E,)``, at least 0.
    :return: Edges, lower bounds (at least 0) and upper bounds, of the same shape; exact for the present costs. Three
        searches at most for every node and box.
    """
    visit = _Visit(network, path, source, target)
    position = 0
    while position < len(visit.order):
        node, present = visit.order[position], costs()
        if visit.exits[node] >= 0:
            yield visit.exit_edge(node, present)
            if len(visit.edges_from(np.array([node]))) > 1:
                yield visit.edges_beside_exit(node, costs())
            count = 1
        elif count := visit.unrestricted(position, present):
            edges = visit.edges_from(visit.order[position : position + count])
            yield edges, np.zeros(len(edges)), np.full(len(edges), np.inf)
        else:
            yield visit.edges_off_path(node, present)
            count = 1
        position += count


class _Visit:
    """The order of nodes for a path, and the bounds at each."""

    def __init__(self, network: Network, path: np.ndarray, source: int, target: int) -> None:
        self.network, self.source, self.target = network, source, target
        self.exits = np.full(network.num_nodes, -1)
        self.exits[network.tails[path]] = np.flatnonzero(path)
        self.path, node = [], source
        while node != target:
            self.path.append(self.exits[node])
            node = network.heads[self.path[-1]]
        self.order = self._order()

    def _order(self) -> np.ndarray:
        stops = np.append(self.network.tails[self.path], self.target)
        start, count = self.network.nearest(stops)
        order = np.lexsort((count, start))
        leaving: np.ndarray = order[np.isin(order, self.network.tails)]
        return leaving

    def edges_from(self, nodes: np.ndarray) -> np.ndarray:
        chosen = np.zeros(self.network.num_nodes, dtype=bool)
        chosen[nodes] = True
        return np.flatnonzero(chosen[self.network.tails])

    def unrestricted(self, position: int, costs: np.ndarray) -> int:
        """Number of next nodes that are unrestricted together: doubled until they are not, or the path is met."""
        following = self.order[position:]
        on_path = np.flatnonzero(self.exits[following] >= 0)
        most = on_path[0] if len(on_path) else len(following)
        length = self._length(costs)
        count, more = 0, 1
        while count < most:
            trial = costs.copy()
            trial[self.edges_from(following[:more])] = 0.0
            distances = self.network.distances(trial, self.source, limit=length)
            if distances[self.target] < length * (1 - ROUNDING):
                break
            count, more = more, min(2 * more, most)
        return count

    def edges_off_path(self, node: int, costs: np.ndarray) -> Interval:
        length = self._length(costs)
        edges, there, back = self._without(node, costs, limit=length)
        low = length - there[node] - back[self.network.heads[edges]]
        return edges, low.clip(min=0.0), np.full(len(edges), np.inf)

    def exit_edge(self, node: int, costs: np.ndarray) -> Interval:
        edges, there, back = self._without(node, costs)
        others, chosen = edges[edges != self.exits[node]], self.exits[node]
        detours = np.append(costs[others] + back[self.network.heads[others]], there[self.target] - there[node])
        return np.array([chosen]), np.zeros(1), detours.min(keepdims=True) - back[self.network.heads[chosen]]

    def edges_beside_exit(self, node: int, costs: np.ndarray) -> Interval:
        edges, _, back = self._without(node, costs)
        others, chosen = edges[edges != self.exits[node]], self.exits[node]
        low = costs[chosen] + back[self.network.heads[chosen]] - back[self.network.heads[others]]
        return others, low.clip(min=0.0), np.full(len(others), np.inf)

    def _length(self, costs: np.ndarray) -> float:
        return float(costs[self.path].sum())

    def _without(
        self, node: int, costs: np.ndarray, limit: float = np.inf
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A node's out-edges, and without them the distances from the source and to the target."""
        edges = self.edges_from(np.array([node]))
        others = costs.copy()
        others[edges] = np.inf
        there = self.network.distances(others, self.source, limit=limit)
        back = self.network.distances(others, self.target, backward=True, limit=limit)
        return edges, there, back
