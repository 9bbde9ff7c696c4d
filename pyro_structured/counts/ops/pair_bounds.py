"""Upper bounds of sums over pairs of binary variables by counts in groups of pairs and by single variables."""

__all__ = ["PairBound", "PairPlan", "plan_pairs", "tightest_bound"]

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Sums of probabilities that differ by less are taken for equal.
ROUNDING = 1e-9


class PairBound(NamedTuple):
    r"""A function that is nowhere less than :math:`\sum_p w_p y_{a(p)} y_{b(p)}`; averages of such are such.

    ``levels``, shape ``(..., G)``, are weights of all pairs of a group, times their count; ``constant`` has the shape
    ``(...)``; ``unary``, shape ``(..., D)``, are weights of single variables; ``kept``, shape ``(..., E)``, those of
    edges, where both variables are 1.
    """

    levels: Tensor
    constant: Tensor
    unary: Tensor
    kept: Tensor


class PairPlan(NamedTuple):
    """Pairs in the order of their groups: a group is the pairs inside a subset of which no smaller subset has both.

    ``ends``, shape ``(2, P)``, holds the variables of the pairs that are no edges: all those of the G groups in which
    any of them has a weight, and then those that have a weight and are in no subset. ``group`` holds the numbers of the
    groups, in ascending order, of the first pairs, ``edge_group`` those of the E edges, or G, and ``sizes`` the numbers
    of pairs in the groups, without edges. ``places`` are the places of the given pairs among the P and the E. The count
    of a group, edges included, is a sum of such counts of subsets, with the coefficients ``of_subsets``, shape ``(S,
    G)``: 1 for the subset itself, -1 for the largest ones inside.
    """

    num_variables: int
    ends: Tensor
    group: Tensor
    edge_group: Tensor
    sizes: Tensor
    places: Tensor
    of_subsets: Tensor


def plan_pairs(
    subsets: Sequence[np.ndarray],
    edges: Sequence[tuple[int, int]],
    pairs: np.ndarray,
    num_variables: int,
    device: torch.device,
) -> PairPlan:
    """Finds the groups of pairs of variables.

    :param subsets: Members of nested subsets, sorted arrays.
    :param edges: Pairs of variables whose products need no bound.
    :param numpy.ndarray pairs: Pairs of variables that have weights, shape ``(number, 2)``.
    :param int num_variables: Number of variables D.
    :param torch.device device: Where the plan is used.
    :return: The plan. Cost O(D^2 + sum of the squares of the subsets' sizes).
    """
    owner, parents = np.full((num_variables, num_variables), -1), {}
    for index in sorted(range(len(subsets)), key=lambda i: -len(subsets[i])):
        members = subsets[index]
        if len(members) < 2:
            continue
        parent = int(owner[members[0], members[1]])
        if parent < 0 or len(subsets[parent]) > len(members):
            parents[index] = parent
            owner[np.ix_(members, members)] = index
    low, high = np.sort(pairs, -1).T
    edge_low, edge_high = np.sort(np.array(edges, dtype=np.int64).reshape(-1, 2), -1).T
    bounded, place = np.zeros_like(owner, dtype=bool), np.zeros_like(owner)
    bounded[low, high], bounded[edge_low, edge_high] = True, False
    used = np.setdiff1d(owner[bounded], [-1])
    bounded |= np.triu(np.isin(owner, used), 1)
    bounded[edge_low, edge_high] = False
    first, second = np.nonzero(bounded)
    group_of_owner = np.full(len(subsets) + 1, len(used))
    group_of_owner[used] = np.arange(len(used))
    group = group_of_owner[owner[first, second]]
    order = np.argsort(group, kind="stable")
    first, second, group = first[order], second[order], group[order]
    place[first, second] = np.arange(len(first))
    place[edge_low, edge_high] = len(first) + np.arange(len(edges))
    of_subsets = np.zeros((len(subsets), len(used)))
    for number, index in enumerate(used.tolist()):
        of_subsets[index, number] = 1
        of_subsets[[inner for inner, parent in parents.items() if parent == index], number] = -1
    arrays = (
        np.stack([first, second]),
        group[group < len(used)],
        group_of_owner[owner[edge_low, edge_high]],
        np.bincount(group, minlength=len(used) + 1)[: len(used)],
        place[low, high],
        of_subsets,
    )
    return PairPlan(num_variables, *(torch.from_numpy(array).to(device) for array in arrays))


def tightest_bound(plan: PairPlan, weights: Tensor, means: Tensor, counts: Tensor) -> PairBound:
    r"""Computes the bound with the smallest expectation under a distribution; a linear program in closed form.

    With levels :math:`\lambda` of the groups, 0 outside of them, and :math:`r = w - \lambda`, a product is at most

    .. math::
        r\, y_a y_b \le r\, (\nu y_a + (1 - \nu) y_b) \quad (r \ge 0), \qquad
        r\, y_a y_b \le r \mu\, (y_a + y_b - 1) \quad (r \le 0), \qquad \nu, \mu \in [0, 1],

    and edges lose nothing. The best :math:`\nu` and :math:`\mu` are 0 or 1, as the means say; expectations are then
    those under the joint distributions of two variables that are worst for their means. They are convex in
    :math:`\lambda` with a kink at each weight, so that the best level is one of the weights.

    :param PairPlan plan: The pairs.
    :param Tensor weights: Of pairs and edges, shape ``(..., P + E)``.
    :param Tensor means: Probabilities of 1, shape ``(..., D)``.
    :param Tensor counts: Expected numbers of pairs in each group, without edges, that are both 1, shape ``(..., G)``.
    :return: A bound, whatever the numbers in ``means`` and ``counts`` are; minus the bound of -w is one from below. It
        is differentiable along the weights, with all choices held fixed. Cost O(P log P).
    """
    number = len(plan.group)
    weights, on_edges = weights.split([plan.ends.shape[1], len(plan.edge_group)], -1)
    first, second = means[..., plan.ends[0]], means[..., plan.ends[1]]
    most, least = torch.minimum(first, second), (first + second - 1).clamp(min=0)
    ranked, order = weights[..., :number].expand(*most.shape[:-1], number).sort(-1)
    by_group = plan.group[order].argsort(dim=-1, stable=True)
    start = plan.sizes.cumsum(0) - plan.sizes
    slope = counts - torch.zeros_like(counts).index_add(-1, plan.group, most[..., :number])
    rises = (most - least)[..., :number].gather(-1, order.gather(-1, by_group)).cumsum(-1)
    before = torch.nn.functional.pad(rises, (1, 0))[..., start]
    falling = rises + (slope - before)[..., plan.group] < -ROUNDING
    passed = torch.zeros_like(counts).index_add(-1, plan.group, falling.to(counts.dtype)).long()
    levels = ranked.gather(-1, by_group).gather(-1, start + torch.minimum(passed, plan.sizes - 1))
    rest = weights - torch.nn.functional.pad(levels[..., plan.group], (0, weights.shape[-1] - number))
    share, overlap = (1 + (second - first).sign()) / 2, (1 + (first + second - 1).sign()) / 2
    above, below = rest.where(rest > 0, 0.0), overlap * -rest.where(rest < 0, 0.0)
    unary = below.new_zeros((*below.shape[:-1], plan.num_variables))
    unary = unary.index_add(-1, plan.ends[0], above * share - below)
    unary = unary.index_add(-1, plan.ends[1], above * (1 - share) - below)
    kept = on_edges - torch.nn.functional.pad(levels, (0, 1))[..., plan.edge_group]
    return PairBound(levels, below.sum(-1), unary, kept)
