"""The cycles that edges close in spanning trees."""

__all__ = ["fundamental_cycles"]

import torch
from torch import Tensor


def fundamental_cycles(edges: Tensor, trees: Tensor, num_nodes: int) -> Tensor:
    """Which edges of spanning trees lie on the path between the two ends of every edge.

    :param Tensor edges: Both ends of a graph's edges, integers of shape ``(E, 2)``.
    :param Tensor trees: The edges of every tree, integers of shape ``(N, num_nodes - 1)``.
    :param int num_nodes: Number of nodes.
    :return: Booleans of shape ``(N, E, num_nodes - 1)``. Cost O(E num_nodes) each.
    """
    tails, heads = edges[trees].unbind(-1)
    # The path from node 0 to a node is its parent's, and the edge between them. All trees grow at the same time.
    paths = torch.zeros(len(trees), num_nodes, num_nodes - 1, dtype=torch.bool, device=edges.device)
    reached = torch.zeros_like(paths[..., 0])
    reached[:, 0] = True
    for _ in range(num_nodes - 1):
        from_tail = reached.gather(-1, tails)
        rows, grown = (from_tail != reached.gather(-1, heads)).nonzero(as_tuple=True)
        forward, ends = from_tail[rows, grown], (tails[rows, grown], heads[rows, grown])
        parents, children = torch.where(forward, *ends), torch.where(forward, *ends[::-1])
        paths[rows, children] = paths[rows, parents]
        paths[rows, children, grown] = True
        reached[rows, children] = True
    return paths[:, edges[:, 0]] ^ paths[:, edges[:, 1]]
