"""Regions of dependent variables, and the tree that joins them."""

__all__ = ["maximum_spanning_trees", "pair_information", "variable_regions"]

import numpy as np
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor


def variable_regions(values: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Joins variables by average linkage of their mutual information, and the regions by a tree of largest information.

    :param Tensor values: Zeros and ones, floating point, shape ``(N, n)``.
    :param int largest: Most variables in a region.
    :return: Regions of the variables, shape ``(n,)``; and the parents of the regions, shape ``(G,)``, smaller than
        they are; the root is region 0, its own parent.
    """
    information = pair_information(values.mean(0), values.mT @ values / len(values))
    members = _link(information.numpy(), largest)
    strongest = torch.tensor([[float(information[a][:, b].max()) for b in members] for a in members])
    order, parents = _breadth_first(strongest.numpy())
    place = np.empty(len(members), dtype=np.int64)
    place[order] = np.arange(len(members))
    regions = torch.empty(values.shape[1], dtype=torch.long)
    for region, variables in enumerate(members):
        regions[variables] = int(place[region])
    return regions, torch.from_numpy(place[parents[order]])


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


def maximum_spanning_trees(weights: Tensor) -> Tensor:
    """Parents in the trees of largest total weight, each root its own parent.

    :param Tensor weights: Symmetric, shape ``(K, n, n)``.
    :return: Integers of shape ``(K, n)``.
    """
    return torch.from_numpy(np.stack([_breadth_first(each)[1] for each in weights.numpy()]))


def _breadth_first(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of the best tree in the order of their distance from the most connected one, and their parents."""
    # The solver takes a zero for a missing edge, so all lengths are kept positive.
    lengths = (weights.max() + 1 - weights).astype(np.float64)
    np.fill_diagonal(lengths, 0.0)
    root = int(weights.sum(0).argmax())
    order, parents = breadth_first_order(minimum_spanning_tree(lengths), root, directed=False)
    parents = parents.astype(np.int64)
    parents[root] = root
    return order, parents


def _link(similarity: np.ndarray, largest: int) -> list[list[int]]:
    """Joins the two most similar sets of variables, as long as the union is small enough."""
    members = [[d] for d in range(len(similarity))]
    average = similarity.astype(np.float64)
    np.fill_diagonal(average, -np.inf)
    while True:
        sizes = np.array([len(each) for each in members])
        allowed = np.where(sizes[:, None] + sizes <= largest, average, -np.inf)
        first, second = sorted(np.unravel_index(allowed.argmax(), allowed.shape))
        if allowed[first, second] == -np.inf:
            return [each for each in members if each]
        joined = (sizes[first] * average[first] + sizes[second] * average[second]) / (sizes[first] + sizes[second])
        average[first], average[:, first] = joined, joined
        average[first, first] = -np.inf
        average[second], average[:, second] = -np.inf, -np.inf
        members[first] += members[second]
        members[second] = []
