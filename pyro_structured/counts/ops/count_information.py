"""Information that two groups of binary variables have about each other through their counts."""

__all__ = ["count_information"]

import torch
from torch import Tensor


def count_information(left: Tensor, right: Tensor, total: Tensor, rounds: int = 50) -> Tensor:
    r"""Least mutual information I of two counts, given the distributions of both and of their sum.

    .. math::
        I = \min_q \mathrm{KL}\big(q(i, j) \,\|\, p_l(i)\, p_r(j)\big) \quad\text{subject to}\quad
        q(i) = p_l(i),\; q(j) = p_r(j),\; q(i + j = c) = p_t(c).

    A tree of counts gains :math:`I` in mean log-likelihood by a potential on the sum: in the
    :class:`~pyro_structured.distributions.RecursiveCardinality` of largest likelihood, all tables have the counts'
    observed distributions, so the joint distribution of the counts of two children is the minimiser above, whatever
    the rest of the tree is. The mean log-likelihood of a binary tree is therefore that of independent variables plus
    the sum of :math:`I` over its branchings.

    The minimiser has the form :math:`q = p_l p_r\, g(i)\, h(j)\, F(i+j)` and is found by iterative proportional
    fitting. After finitely many rounds the result is a lower bound, which rises to :math:`I`: at once for few counts,
    slowly for tables of hundreds of cells some of which should be empty.

    :param Tensor left: Distribution of the first count, shape ``(..., n + 1)``, float64.
    :param Tensor right: Distribution of the second count, shape ``(..., m + 1)``.
    :param Tensor total: Distribution of the sum, shape ``(..., n + m + 1)``; all three have to be margins of one joint
        distribution.
    :param int rounds: Number of rounds. Cost :math:`O(nm)` each.
    :return: Nats, shape ``(...)``.

    **References**

    Csiszár (1975): I-divergence geometry of probability distributions and minimization problems. Annals of Probability.

    Example::

        >>> even = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> count_information(even, even, torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64))  # always the same
        tensor(0.6931, dtype=torch.float64)
    """
    counts = torch.arange(total.shape[-1], device=total.device)
    cells = (counts[: left.shape[-1], None] + counts[: right.shape[-1]]).flatten()
    joint = left.unsqueeze(-1) * right.unsqueeze(-2)
    zeros = torch.zeros_like(total)
    factors = [torch.ones_like(margin) for margin in (left, right, total)]
    for _ in range(rounds):
        present = zeros.index_add(-1, cells, joint.flatten(-2))
        step = _ratio(total, present)
        joint = joint * step[..., cells].view(joint.shape)
        factors[2] = factors[2] * step
        step = _ratio(right, joint.sum(-2))
        joint = joint * step.unsqueeze(-2)
        factors[1] = factors[1] * step
        step = _ratio(left, joint.sum(-1))
        joint = joint * step.unsqueeze(-1)
        factors[0] = factors[0] * step
    # Log-likelihood gain of the model with these factors: never more than that of the best factors.
    gains = (torch.special.xlogy(p, g).sum(-1) for p, g in zip((left, right, total), factors, strict=True))
    return sum(gains, -joint.sum((-2, -1)).log())


def _ratio(wanted: Tensor, present: Tensor) -> Tensor:
    # Where the product of two tiny probabilities has underflowed, there is nothing left to scale.
    return torch.where(present > 0, wanted / present, 1.0)
