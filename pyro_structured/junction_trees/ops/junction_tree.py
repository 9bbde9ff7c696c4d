"""Partition functions and marginals of junction trees: exact, differentiable, batched."""

__all__ = ["TreeBeliefs", "infer_tree", "log_partition_of_tree", "maximize_tree", "sample_tree"]

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.ops.marginal_inference import MarginalPlan, infer_marginals
from pyro_structured.junction_trees.ops import clique_passes
from pyro_structured.junction_trees.ops.clique_plan import CliquePlan
from pyro_structured.junction_trees.ops.table_budget import check_table_entries

# What to compute, each with all before it.
LOG_PARTITION, MARGINALS, CLIQUE_MARGINALS = range(3)
# Numbers that the passes hold for a group of rows at a time: they stay in the cache.
NUMBERS_AT_ONCE = 2**19


class TreeBeliefs(NamedTuple):
    """``log_partition`` of shape ``(rows,)``, ``marginals``, probabilities of all single states, of shape ``(rows,
    num_states)``, and ``clique_marginals``, of all entries of the tables, of shape ``(rows, table_size)``, or ``(rows,
    0)`` where they were not needed.
    """

    log_partition: Tensor
    marginals: Tensor
    clique_marginals: Tensor


def log_partition_of_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> Tensor:
    """Logarithm of the sum of all weights, shape ``(rows,)``; arguments as for :func:`infer_tree`."""
    return infer_marginals(_Tree(plan), clique_logits, evidence, marginals=False)[0]


def infer_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, clique_marginals: bool = True) -> TreeBeliefs:
    """Computes the log partition function and all marginals.

    :param Tensor clique_logits: Log-weights of the entries of all tables, shape ``(rows, table_size)``, or ``(1,
        table_size)`` if they are the same in all rows; -inf is allowed.
    :param Tensor evidence: Log-weights of the states of all variables, one after the other, shape ``(rows,
        num_states)`` or ``(1, num_states)``, -inf where a state is excluded; with no columns if there is none.
    :param CliquePlan plan: The tree.
    :param bool clique_marginals: Whether they are needed, which takes longer.
    :return: Differentiable results; marginals are zero in rows where nothing is possible. Cost O(table_size) a row.
    """
    constant = not (torch.is_grad_enabled() and (clique_logits.requires_grad or evidence.requires_grad))
    if constant and not clique_marginals and not torch._C._are_functorch_transforms_active():
        return _solve(clique_logits, evidence, plan, MARGINALS)
    log_z, joint, single = infer_marginals(_Tree(plan), clique_logits, evidence)
    return TreeBeliefs(log_z, single, joint)


@torch.no_grad()
def sample_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, num_samples: int) -> Tensor:
    """Exact samples, integers of shape ``(num_samples, rows, n)``; arguments as for :func:`infer_tree`."""
    parts = []
    for tables, weights in _parts(clique_logits, evidence, plan, num_samples):
        parts.append(clique_passes.sample_states(plan, clique_passes.upward(plan, tables, weights), num_samples))
    return torch.cat(parts, -1).movedim(0, -1)


@torch.no_grad()
def maximize_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> Tensor:
    """A most probable value of every row, integers of shape ``(rows, n)``; arguments as for :func:`infer_tree`."""
    parts = (
        clique_passes.most_probable_states(plan, tables, weights)
        for tables, weights in _parts(clique_logits, evidence, plan)
    )
    return torch.cat(list(parts), -1).T


def _parts(
    clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, copies: int = 1
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Groups of rows, which become the last axis."""
    (rows,) = torch.broadcast_shapes(clique_logits.shape[:1], evidence.shape[:1])
    step = max(1, NUMBERS_AT_ONCE // (plan.table_size * max(1, copies)))
    for start in range(0, max(1, rows), step):
        tables, weights = (
            (each if len(each) == 1 else each[start : start + step]).T.contiguous()
            for each in (clique_logits, evidence)
        )
        yield tables, weights if len(weights) else None


def _solve(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, queries: int) -> TreeBeliefs:
    rows = max(len(clique_logits), len(evidence))
    if queries >= CLIQUE_MARGINALS and rows > len(clique_logits):
        what = f"the probabilities of all cliques' states in {rows} rows of evidence, of which fewer may be asked for"
        check_table_entries("value", f"{what} at a time", rows * plan.table_size)
    found = []
    for tables, weights in _parts(clique_logits, evidence, plan):
        passed = clique_passes.upward(plan, tables, weights)
        single = packed = passed.log_partition.new_zeros(0, len(passed.log_partition))
        if queries >= MARGINALS:
            joint = clique_passes.joint_marginals(plan, passed)
            single = clique_passes.single_marginals(plan, joint)
        if queries >= CLIQUE_MARGINALS:
            packed = torch.cat(joint).index_select(0, plan.order(packed.device))
        found.append((passed.log_partition, single, packed))
    log_z, single, packed = found[0] if len(found) == 1 else (torch.cat(p, -1) for p in zip(*found, strict=True))
    return TreeBeliefs(log_z, single.T, packed.T)


class _Tree(MarginalPlan):
    def __init__(self, plan: CliquePlan) -> None:
        self.plan = plan

    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        log_z, single, joint = _solve(
            parameters[0], parameters[1], self.plan, CLIQUE_MARGINALS if marginals else LOG_PARTITION
        )
        return (log_z, joint, single) if marginals else (log_z,)
