"""Partition functions whose derivatives, the marginals, an explicit pass finds: differentiable twice, for many rows."""

__all__ = ["MarginalPlan", "infer_marginals"]

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from pyro_structured.ops.rows import merge_mapped


class MarginalPlan(ABC):
    """Says how to sum over all values of one structure."""

    @abstractmethod
    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        """Sums weights, in operations that automatic differentiation knows.

        :param parameters: Tensors of shape ``(rows, size)``, or ``(1, size)`` if they are the same in all rows.
        :param bool marginals: Whether the derivatives are wanted.
        :return: Logarithms of the sums, shape ``(rows,)``, and, if they are wanted, their derivatives along all
            parameters, shape ``(rows, size)``, also where a parameter has one row, or no columns, in place of zeros.
        """


def infer_marginals(plan: MarginalPlan, *parameters: Tensor, marginals: bool = True) -> tuple[Tensor, ...]:
    """Logarithms of sums of weights and, if they are wanted, their derivatives, all of them differentiable.

    :param MarginalPlan plan: What to sum.
    :param parameters: As for :meth:`MarginalPlan.solve`.
    :param bool marginals: Whether to return the derivatives.
    """
    # Derivatives of log Z need the marginals, which are cheapest now.
    derivatives = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
    found: tuple[Tensor, ...] = _Inference.apply(plan, marginals or derivatives, *parameters)  # type: ignore[no-untyped-call]
    return found if marginals else found[:1]


class _Inference(torch.autograd.Function):
    """Marginals are the derivatives of log Z; only theirs go through automatic differentiation."""

    @staticmethod
    def forward(plan: MarginalPlan, marginals: bool, *parameters: Tensor) -> tuple[Tensor, ...]:
        return plan.solve(parameters, marginals)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.plan, _, *parameters = inputs
        ctx.number = len(parameters)
        ctx.save_for_backward(*parameters, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_log_z: Tensor | None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        parameters, marginals = ctx.saved_tensors[: ctx.number], ctx.saved_tensors[ctx.number :]
        found = [torch.zeros_like(parameter) for parameter in parameters]
        if grad_log_z is not None:
            marginals = marginals or infer_marginals(ctx.plan, *parameters)[1:]
            # A parameter without columns has no derivatives; what it would have stood for may have marginals.
            found = [
                _weighted(grad_log_z, m, len(p)) if p.shape[-1] else zero
                for m, p, zero in zip(marginals, parameters, found, strict=True)
            ]
        if any(grad is not None for grad in grads):
            cotangents = (torch.zeros_like(m) if g is None else g for g, m in zip(grads, marginals, strict=True))
            second = _Pullback.apply(ctx.plan, *parameters, *cotangents)  # type: ignore[no-untyped-call]
            found = [one + other for one, other in zip(found, second, strict=True)]
        return None, None, *found

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], plan: MarginalPlan, marginals: bool, *parameters: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        flat = merge_mapped(info.batch_size, in_dims[2:], *parameters)
        found = _Inference.apply(plan, marginals, *flat)  # type: ignore[no-untyped-call]
        return _unmerge(info.batch_size, found)


class _Pullback(torch.autograd.Function):
    """Derivatives of the marginals, as a function of its own so that function transforms nest."""

    @staticmethod
    def forward(plan: MarginalPlan, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _pull_back(plan, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.plan, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            tensors = tuple(tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
            found = _gradients(_pull_back(ctx.plan, tensors, create_graph=True), tensors, grads)
        return None, *found

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], plan: MarginalPlan, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        flat = merge_mapped(info.batch_size, in_dims[1:], *tensors)
        return _unmerge(info.batch_size, _Pullback.apply(plan, *flat))  # type: ignore[no-untyped-call]


def _weighted(weights: Tensor, values: Tensor, rows: int) -> Tensor:
    """Rows times weights, or their sum if there is to be one row."""
    return weights.unsqueeze(-1) * values if rows == len(values) else weights.unsqueeze(0) @ values


def _unmerge(batch_size: int, found: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    return tuple(tensor.unflatten(0, (batch_size, -1)) for tensor in found), (0,) * len(found)


def _pull_back(plan: MarginalPlan, tensors: tuple[Tensor, ...], create_graph: bool = False) -> tuple[Tensor, ...]:
    """Pulls cotangents of the marginals, the second half of the tensors, back to the parameters."""
    parameters, cotangents = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
    with torch.enable_grad():
        if not create_graph:
            parameters = tuple(parameter.detach().requires_grad_() for parameter in parameters)
        return _gradients(plan.solve(parameters, True)[1:], parameters, cotangents, create_graph)


def _gradients(
    outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...], weights: tuple[Tensor, ...], create_graph: bool = False
) -> tuple[Tensor, ...]:
    used = [(output, weight) for output, weight in zip(outputs, weights, strict=True) if output.requires_grad]
    results, cotangents = zip(*used, strict=True)
    found = torch.autograd.grad(results, inputs, cotangents, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True))
