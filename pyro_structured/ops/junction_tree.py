"""Partition functions and marginals of junction trees: exact, differentiable, batched."""

__all__ = ["TreeBeliefs", "infer_tree", "log_partition_of_tree", "maximize_tree", "sample_tree"]

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.ops import clique_passes
from pyro_structured.ops.clique_plan import CliquePlan
from pyro_structured.ops.rows import merge_mapped

# Numbers that the passes hold for a group of rows at a time: they stay in the cache.
NUMBERS_AT_ONCE = 2**19


class TreeBeliefs(NamedTuple):
    """``log_partition`` of shape ``(rows,)``, ``marginals``, probabilities of all single states, of shape ``(rows,
    num_states)``, and ``clique_marginals``, of all entries of the tables, of shape ``(rows, table_size)``.
    """

    log_partition: Tensor
    marginals: Tensor
    clique_marginals: Tensor


def log_partition_of_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> Tensor:
    """Logarithm of the sum of all weights, shape ``(rows,)``; arguments as for :func:`infer_tree`."""
    # Its derivatives need the marginals, which are cheapest now.
    marginals = torch.is_grad_enabled() and (clique_logits.requires_grad or evidence.requires_grad)
    found: Tensor = _TreeInference.apply(clique_logits, evidence, plan, marginals)[0]  # type: ignore[no-untyped-call]
    return found


def infer_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan) -> TreeBeliefs:
    """Computes the log partition function and all marginals.

    :param Tensor clique_logits: Log-weights of the entries of all tables, shape ``(rows, table_size)``, or ``(1,
        table_size)`` if they are the same in all rows; -inf is allowed.
    :param Tensor evidence: Log-weights of the states of all variables, one after the other, shape ``(rows,
        num_states)`` or ``(1, num_states)``, -inf where a state is excluded; with no columns if there is none.
    :param CliquePlan plan: The tree.
    :return: Differentiable results; marginals are zero in rows where nothing is possible. Cost O(table_size) a row.
    """
    return TreeBeliefs(*_TreeInference.apply(clique_logits, evidence, plan, True))  # type: ignore[no-untyped-call]


@torch.no_grad()
def sample_tree(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, num_samples: int) -> Tensor:
    """Exact samples, integers of shape ``(num_samples, rows, n)``; arguments as for :func:`infer_tree`."""
    parts = []
    for tables, weights in _parts(clique_logits, evidence, plan, num_samples):
        _, conditionals = clique_passes.upward(plan, tables, weights)
        parts.append(clique_passes.sample_states(plan, conditionals, num_samples))
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


def _solve(clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, marginals: bool) -> TreeBeliefs:
    found = []
    for tables, weights in _parts(clique_logits, evidence, plan):
        log_z, conditionals = clique_passes.upward(plan, tables, weights)
        if not marginals:
            found.append(TreeBeliefs(log_z, log_z.new_zeros(len(log_z), 0), log_z.new_zeros(len(log_z), 0)))
            continue
        joint = clique_passes.joint_marginals(plan, conditionals)
        single = clique_passes.single_marginals(plan, joint)
        packed = torch.cat([table.flatten(0, 2) for level in joint for table in level])
        found.append(TreeBeliefs(log_z, single.T, packed.index_select(0, plan.order(packed.device)).T))
    return found[0] if len(found) == 1 else TreeBeliefs(*(torch.cat(parts) for parts in zip(*found, strict=True)))


class _TreeInference(torch.autograd.Function):
    """Marginals are the derivatives of log Z; only theirs go through automatic differentiation."""

    @staticmethod
    def forward(
        clique_logits: Tensor, evidence: Tensor, plan: CliquePlan, marginals: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _solve(clique_logits, evidence, plan, marginals)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        clique_logits, evidence, ctx.plan, ctx.marginals = inputs
        ctx.save_for_backward(clique_logits, evidence, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_log_z: Tensor | None, grad_single: Tensor | None, grad_joint: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        clique_logits, evidence, single, joint = ctx.saved_tensors
        grads = [torch.zeros_like(clique_logits), torch.zeros_like(evidence)]
        if grad_log_z is not None:
            if not ctx.marginals:
                _, single, joint = infer_tree(clique_logits, evidence, ctx.plan)
            weight = grad_log_z.unsqueeze(-1)
            grads[0] = (weight * joint).sum_to_size(clique_logits.shape)
            if evidence.shape[-1]:
                grads[1] = (weight * single).sum_to_size(evidence.shape)
        if grad_single is not None or grad_joint is not None:
            cotangents = (
                torch.zeros_like(values) if grad is None else grad
                for grad, values in ((grad_single, single), (grad_joint, joint))
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
        marginals: bool,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        flat = _merge(info.batch_size, in_dims, clique_logits, evidence)
        results = _TreeInference.apply(*flat, plan, marginals)  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0, 0)


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
        results = _MarginalPullback.apply(*_merge(info.batch_size, in_dims, *tensors), plan)  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0)


def _merge(batch_size: int, in_dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """As :func:`merge_mapped`, for tensors some of which have a single row in place of many."""
    rows = max(
        tensor.shape[0] if dim is None else tensor.movedim(dim, 0).shape[1]
        for tensor, dim in zip(tensors, in_dims, strict=False)
    )
    full = [
        tensor.expand(rows, -1) if dim is None else tensor.movedim(dim, 0).expand(-1, rows, -1)
        for tensor, dim in zip(tensors, in_dims, strict=False)
    ]
    return merge_mapped(batch_size, tuple(None if dim is None else 0 for dim in in_dims), *full)


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
        beliefs = _solve(*parameters, plan, marginals=True)
        return _gradients(beliefs[1:], parameters, cotangents, create_graph)


def _gradients(
    outputs: tuple[Tensor, ...], inputs: Any, weights: Any, create_graph: bool = False
) -> tuple[Tensor, ...]:
    # Without evidence, nothing depends on it.
    used = [(output, weight) for output, weight in zip(outputs, weights, strict=True) if output.requires_grad]
    results, cotangents = zip(*used, strict=True)
    found = torch.autograd.grad(results, inputs, cotangents, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True))
