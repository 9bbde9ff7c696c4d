"""Spanning trees of smallest total cost."""

__all__ = ["connected_components", "solve_spanning_tree"]

import numpy as np


def solve_spanning_tree(edges: np.ndarray, costs: np.ndarray, num_nodes: int) -> np.ndarray:
    """Finds the cheapest edges that connect all nodes of a connected graph.

    :param np.ndarray edges: Both ends of the edges, integers of shape ``(E, 2)``; there may be parallel ones.
    :param np.ndarray costs: Shape ``(N, E)``, of any sign.
    :param int num_nodes: Number of nodes.
    :return: Whether edges belong to the tree, booleans of shape ``(N, E)``. Cost O(E log E) each.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    # Only the order of the costs counts. As costs, numbers from 1 on are exact, never zero, which would mean no edge,
    # and say which edge they belong to. The graphs of all rows side by side are one graph, and one call.
    order = costs.argsort(axis=1, kind="stable")
    numbers = np.empty_like(order)
    np.put_along_axis(numbers, order, np.arange(1, costs.size + 1).reshape(costs.shape), axis=1)
    # A sparse matrix would add parallel edges up.
    pairs = edges[:, 0] * num_nodes + edges[:, 1]
    by_pair = pairs.argsort()
    starts = np.flatnonzero(np.diff(pairs[by_pair], prepend=-1))
    cheapest = np.minimum.reduceat(numbers[:, by_pair], starts, axis=1)
    first = np.arange(len(costs))[:, None] * num_nodes
    tails, heads = (first + edges[by_pair[starts], end] for end in (0, 1))
    size = len(costs) * num_nodes
    graph = csr_array((cheapest.ravel(), (tails.ravel(), heads.ravel())), shape=(size, size))
    rows, places = np.divmod(minimum_spanning_tree(graph).data.astype(np.int64) - 1, len(edges))
    chosen = np.zeros(costs.shape, dtype=bool)
    chosen[rows, order[rows, places]] = True
    return chosen


def connected_components(edges: np.ndarray, is_open: np.ndarray, num_nodes: int) -> np.ndarray:
    """Labels the nodes of subgraphs of a graph with the smallest node of their components.

    :param np.ndarray edges: Both ends of the graph's edges, integers of shape ``(E, 2)``.
    :param np.ndarray is_open: The edges of every subgraph, booleans of shape ``(N, E)``.
    :param int num_nodes: Number of nodes.
    :return: Labels, int64, shape ``(N, num_nodes)``. Cost O(E + num_nodes) each.
    """
    from scipy.sparse import csgraph, csr_array

    # The subgraphs side by side are one graph, and one call.
    rows, present = is_open.nonzero()
    tails, heads = (rows * num_nodes + edges[present, end] for end in (0, 1))
    size = len(is_open) * num_nodes
    graph = csr_array((np.ones(len(rows)), (tails, heads)), shape=(size, size))
    count, components = csgraph.connected_components(graph, directed=False)
    smallest = np.full(count, num_nodes)
    np.minimum.at(smallest, components, np.arange(size) % num_nodes)
    labels: np.ndarray = smallest[components].reshape(-1, num_nodes)
    return labels
