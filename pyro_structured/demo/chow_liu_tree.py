"""The tree-shaped distribution that fits pairs of pixels best."""

__all__ = ["ChowLiuTree"]

import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor


class ChowLiuTree:
    """Every pixel depends on one other pixel, its parent in the tree of largest mutual information.

    :param Tensor images: Zeros and ones, shape ``(number, pixels)``.
    :param float pseudocount: Images added, a quarter of them for each of the four values of every pair of pixels.

    **References**

    Chow, Liu (1968): Approximating discrete probability distributions with dependence trees. IEEE Transactions on
    Information Theory.
    """

    def __init__(self, images: Tensor, pseudocount: float) -> None:
        states = torch.stack([1 - images, images])
        pairs = torch.einsum("anc,bnd->abcd", states, states) + pseudocount / 4
        pairs = pairs / (len(images) + pseudocount)
        single = (states.sum(1) + pseudocount / 2) / (len(images) + pseudocount)
        information = (pairs * (pairs / (single[:, None, :, None] * single[None, :, None, :])).log()).sum((0, 1))
        # The solver takes a zero for a missing edge, so all lengths are kept positive.
        lengths = (information.max() + 1 - information).fill_diagonal_(0.0)
        tree = minimum_spanning_tree(lengths.numpy())
        order, parents = breadth_first_order(tree, 0, directed=False)
        self.root = int(order[0])
        self.children = torch.as_tensor(order[1:], dtype=torch.long)
        self.parents = torch.as_tensor(parents[order[1:]], dtype=torch.long)
        self.root_log_probs = single[:, self.root].log()
        joint = pairs[:, :, self.parents, self.children]
        self.log_conditionals = (joint / joint.sum(1, keepdim=True)).log()

    def log_prob(self, images: Tensor) -> Tensor:
        """Log-probability of every image."""
        values = images.long()
        edges = torch.arange(len(self.children))
        conditionals = self.log_conditionals[values[:, self.parents], values[:, self.children], edges]
        return self.root_log_probs[values[:, self.root]] + conditionals.sum(-1)
