"""Regions of dependent variables, and trees of regions."""

__all__ = ["maximum_spanning_trees", "pair_information", "variable_regions"]

import numpy as np
import torch
from torch import Tensor


def variable_regions(values: Tensor, weights: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Joins variables by average linkage of their mutual information, and the regions by a tree of largest information.

    :param Tensor values: Zeros and ones, floating point, shape ``(N, n)``.
    :param Tensor weights: Weights of the rows, shape ``(N,)``.
    :param int largest: Largest number of variables in a region.
    :return: Regions of the variables, shape ``(n,)``; and parents of the regions, shape ``(G,)``, with smaller numbers
        than their children; the root is region 0, its own parent.
    """
    both = values.mT @ (values * (weights / weights.sum()).unsqueeze(-1))
    information = pair_information(both.diagonal(), both)
    members = _link(information.numpy(), largest)
    strongest = torch.tensor([[float(information[a][:, b].max()) for b in members] for a in members])
    (order,), (parents,) = maximum_spanning_trees(strongest.fill_diagonal_(0.0).unsqueeze(0))
    place = order.argsort()
    regions = torch.empty(values.shape[1], dtype=torch.long)
    for region, variables in enumerate(members):
        regions[variables] = place[region]
    return regions, place[parents[order]]


def pair_information(single: Tensor, both: Tensor) -> Tensor:
    """Mutual information of pairs of binary variables, zeros on the diagonal.

    :param Tensor single: Probabilities of ones, shape ``(..., n)``.
    :param Tensor both: Probabilities of two ones, shape ``(..., n, n)``.
    """
    first, second = single.unsqueeze(-1), single.unsqueeze(-2)
    total = torch.zeros_like(both)
    for joint, product in (
        (both, first * second),
        (first - both, first * (1 - second)),
        (second - both, (1 - first) * second),
        (1 - first - second + both, (1 - first) * (1 - second)),
    ):
        # Rounding makes tiny shares negative.
        share = joint.clamp(min=torch.finfo(joint.dtype).tiny)
        total += share * (share / product.clamp(min=torch.finfo(joint.dtype).tiny)).log()
    return total - torch.diag_embed(total.diagonal(dim1=-2, dim2=-1))


def maximum_spanning_trees(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Trees of largest total weight, by Prim's algorithm for all of them at once.

    :param Tensor weights: Symmetric weights of at least 0, shape ``(K, n, n)``.
    :return: ``(order, parents)``, integers of shape ``(K, n)``: nodes in an order in which parents come first; the
        parents of the nodes, the root being its own.
    """
    rows = torch.arange(len(weights))
    node = weights.sum(-1).argmax(-1)
    parents = node.unsqueeze(-1).repeat(1, weights.shape[-1])
    strongest = weights[rows, node]
    order = [node]
    for _ in range(weights.shape[-1] - 1):
        strongest[rows, node] = -torch.inf
        node = strongest.argmax(-1)
        order.append(node)
        edges = weights[rows, node]
        better = (edges > strongest) & (strongest > -torch.inf)
        better[rows, node] = False
        parents = torch.where(better, node.unsqueeze(-1), parents)
        strongest = torch.where(better, edges, strongest)
    return torch.stack(order, -1), parents


def _link(similarity: np.ndarray, largest: int) -> list[list[int]]:
    """Average linkage: joins the two most similar sets of variables, as long as the union is small enough."""
    members = [[d] for d in range(len(similarity))]
    average = similarity.astype(np.float64)
    np.fill_diagonal(average, -np.inf)
    while True:
        sizes = np.array([len(variables) for variables in members])
        allowed = np.where(sizes[:, None] + sizes <= largest, average, -np.inf)
        first, second = sorted(np.unravel_index(allowed.argmax(), allowed.shape))
        if allowed[first, second] == -np.inf:
            return [variables for variables in members if variables]
        joined = (sizes[first] * average[first] + sizes[second] * average[second]) / (sizes[first] + sizes[second])
        average[first], average[:, first] = joined, joined
        average[first, first] = -np.inf
        average[second], average[:, second] = -np.inf, -np.inf
        members[first] += members[second]
        members[second] = []
