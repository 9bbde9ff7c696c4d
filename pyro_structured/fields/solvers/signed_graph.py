"""Signed graphs, whose edges require equal or different labels at their ends, and their balance."""

__all__ = ["Unbalanced", "balancing_flips"]

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components


class Unbalanced(ValueError):
    """Error for a graph with a cycle that has an odd number of edges whose ends have to be different.

    :ivar list cycle: Nodes of the cycle.
    """

    def __init__(self, cycle: list[int]) -> None:
        super().__init__(f"a cycle with an odd number of negative edges: {cycle}")
        self.cycle = cycle


def balancing_flips(num_nodes: int, edges: np.ndarray, strengths: np.ndarray) -> np.ndarray:
    """Nodes whose labels have to be exchanged so that all edges require equal labels at their ends.

    :param int num_nodes: Number of nodes n.
    :param np.ndarray edges: Pairs of different nodes, shape ``(E, 2)``.
    :param np.ndarray strengths: Positive where ends are to be alike, negative where they are to be different, zero
        where it does not matter; shape ``(E,)``.
    :return: Booleans of shape ``(n,)``. Cost O(n + E).
    :raises Unbalanced: if no such exchange exists, with a cycle that shows it.

    Example::

        >>> edges = np.array([[0, 1], [1, 2], [0, 2]])
        >>> balancing_flips(3, edges, np.array([-1.0, 2.0, -1.0])).tolist()
        [False, True, True]
    """
    used = strengths != 0
    tails, heads = edges[used].T
    negative = strengths[used] < 0
    # A pair that comes twice with both signs is a cycle of two nodes.
    graph = coo_matrix((np.ones(len(tails)), (tails, heads)), (num_nodes, num_nodes)).tocsr()
    sign = {(int(tail), int(head)): bool(minus) for tail, head, minus in zip(tails, heads, negative, strict=True)}
    flips, parent = np.zeros(num_nodes, dtype=bool), np.full(num_nodes, -1)
    _, labels = connected_components(graph, directed=False)
    for root in np.unique(labels, return_index=True)[1]:
        order, previous = breadth_first_order(graph, root, directed=False)
        for node in order[1:]:
            above = int(previous[node])
            parent[node] = above
            pair = (above, int(node)) if (above, int(node)) in sign else (int(node), above)
            flips[node] = flips[above] ^ sign[pair]
    wrong = ((flips[tails] ^ flips[heads]) != negative).nonzero()[0]
    if len(wrong):
        raise Unbalanced(_cycle(parent, int(tails[wrong[0]]), int(heads[wrong[0]])))
    return flips


def _cycle(parent: np.ndarray, first: int, second: int) -> list[int]:
    """Nodes on the path between two neighbours in a tree."""
    up: list[list[int]] = []
    for node in (first, second):
        path = [node]
        while parent[path[-1]] >= 0:
            path.append(int(parent[path[-1]]))
        up.append(path)
    common = next(node for node in up[0] if node in set(up[1]))
    left, right = (path[: path.index(common)] for path in up)
    return [*left, common, *right[::-1]]
