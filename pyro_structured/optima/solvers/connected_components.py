"""Connected components of subgraphs."""

__all__ = ["connected_components"]

import numpy as np


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
