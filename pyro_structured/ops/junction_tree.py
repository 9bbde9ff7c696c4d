"""Partition functions and marginals of junction trees: exact, differentiable, batched."""

__all__ = ["TreeBeliefs", "infer_tree", "log_partition_of_tree", "maximize_tree", "sample_tree"]

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.ops import clique_passes
from pyro_structured.ops.clique_plan import CliquePlan
from pyro_structured.ops.rows import merge_mapped

# What to compute, each with all before it.
LOG_PARTITION, MARGINALS, CLIQUE_MARGINALS = range(3)
# Numbers that the passes hold for a group of rows at a time: they stay in the cache.
NUMBERS_AT_ONCE = 2**19


class TreeBeliefs(NamedTuple):
    """``log_partition`` of shape ``(rows,)``, ``marginals``, probabilities of all single states, of shape ``(rows,
    num_states)``, and ``clique_marginals``, of all entries of the tables, of shape ``(rows, table_size)``, or ``(rows,
    0)`` where they were not asked for.
    """

    log_partition: Tensor
    marginals: Tensor
    clique_marginals: Tensor


def log_partition_of_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> Tensor:
    """Logarithm of the sum of all weights, shape ``(rows,)``; arguments as for :func:`infer_tree`."""
    # Its derivatives need the marginals, which are cheapest now.
    derivatives = torch.is_grad_enabled() and (clique_logits.requires_grad or evidence.requires_grad)
    queries = CLIQUE_MARGINALS if derivatives else LOG_PARTITION
    found: Tensor = _TreeInference.apply(clique_logits, evidence, plan, queries)[0]  # type: ignore[no-untyped-call]
    return found


def infer_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, clique_marginals: bool = True) -> TreeBeliefs:
    """Computes the log partition function and all marginals.

    :param Tensor clique_logits: Log-weights of the entries of all tables, shape ``(rows, table_size)``, or ``(1,
        table_size)`` if they are the same in all rows; -inf is allowed.
    :param Tensor evidence: Log-weights of the states of all variables, one after the other, shape ``(rows,
        num_states)`` or ``(1, num_states)``, -inf where a state is excluded; with no columns if there is none.
    :param CliquePlan plan: The tree.
    :param bool clique_marginals: Whether to return them, which takes longer.
    :return: Differentiable results; marginals are zero in rows where nothing is possible. Cost O(table_size) a row.
    """
    queries = CLIQUE_MARGINALS if clique_marginals else MARGINALS
    return TreeBeliefs(*_TreeInference.apply(clique_logits, evidence, plan, queries))  # type: ignore[no-untyped-call]


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


class _TreeInference(torch.autograd.Function):
    """Marginals are the derivatives of log Z; only theirs go through automatic differentiation."""

    @staticmethod
    def forward(
        clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, queries: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _solve(clique_logits, evidence, plan, queries)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        clique_logits, evidence, ctx.plan, ctx.queries = inputs
        ctx.save_for_backward(clique_logits, evidence, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_log_z: Tensor | None, grad_single: Tensor | None, grad_joint: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        clique_logits, evidence, single, joint = ctx.saved_tensors
        grads = [torch.zeros_like(clique_logits), torch.zeros_like(evidence)]
        if grad_log_z is not None:
            if ctx.queries < CLIQUE_MARGINALS:
                _, single, joint = infer_tree(clique_logits, evidence, ctx.plan)
            grads[0] = _weighted(grad_log_z, joint, len(clique_logits))
            if evidence.shape[-1]:
                grads[1] = _weighted(grad_log_z, single, len(evidence))
        if grad_single is not None or grad_joint is not None:
            cotangents = (
                single.new_zeros(len(single), size) if grad is None else grad
                for grad, size in ((grad_single, ctx.plan.num_states), (grad_joint, ctx.plan.table_size))
            )
            second = _MarginalPullback.apply(clique_logits, evidence, *cotangents, ctx.plan)  # type: ignore[no-untyped-call]
            grads = [first + other for first, other in zip(grads, second, strict=True)]
        return grads[0], grads[1], None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        clique_logits: Tensor,
        evidence: Tensor,
        plan: CliquePlan,
        queries: int,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        flat = merge_mapped(info.batch_size, in_dims, clique_logits, evidence)
        results = _TreeInference.apply(*flat, plan, queries)  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0, 0)


def _weighted(weights: Tensor, values: Tensor, rows: int) -> Tensor:
    """Rows times weights, or their sum if there is to be one row."""
    return weights.unsqueeze(-1) * values if rows == len(values) else weights.unsqueeze(0) @ values


class _MarginalPullback(torch.autograd.Function):
    """Derivatives of the marginals, as a function of its own so that function transforms nest."""

    @staticmethod
    def forward(
        clique_logits: Tensor, evidence: Tensor, grad_single: Tensor, grad_joint: Tensor, plan: CliquePlan
    ) -> tuple[Tensor, ...]:
        return _pull_back((clique_logits, evidence), (grad_single, grad_joint), plan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.plan = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            outputs = _pull_back((inputs[0], inputs[1]), (inputs[2], inputs[3]), ctx.plan, create_graph=True)
            found = _gradients(outputs, inputs, grads)
        return *found, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, plan = inputs
        results = _MarginalPullback.apply(*merge_mapped(info.batch_size, in_dims, *tensors), plan)  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0)


def _pull_back(
    parameters: tuple[Tensor, Tensor],
    cotangents: tuple[Tensor, Tensor],
    plan: CliquePlan,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Pulls cotangents of the marginals back to the parameters, by automatic differentiation of the passes."""
    with torch.enable_grad():
        if not create_graph:
            parameters = (parameters[0].detach().requires_grad_(), parameters[1].detach().requires_grad_())
        beliefs = _solve(*parameters, plan, CLIQUE_MARGINALS)
        return _gradients(beliefs[1:], parameters, cotangents, create_graph)


def _gradients(
    outputs: tuple[Tensor, ...], inputs: Any, weights: Any, create_graph: bool = False
) -> tuple[Tensor, ...]:
    # Without evidence, nothing depends on it.
    used = [(output, weight) for output, weight in zip(outputs, weights, strict=True) if output.requires_grad]
    results, cotangents = zip(*used, strict=True)
    found = torch.autograd.grad(results, inputs, cotangents, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True))
