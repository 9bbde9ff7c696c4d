"""Partition functions whose derivatives, the marginals, come from an explicit pass: twice differentiable, in rows."""

__all__ = ["MarginalPlan", "infer_marginals"]

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.row_function import apply_rows, known_tangents, pull_back, tangents_of
from pyro_structured.foundation.ops.vmap_rows import merge_mapped


class MarginalPlan(ABC):
    """Algorithm that sums weights over all values of a structure."""

    @abstractmethod
    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        """Sums weights, in operations that support automatic differentiation.

        :param parameters: Tensors of shape ``(rows, size)``, or ``(1, size)`` if they are the same in all rows.
        :param bool marginals: Whether to return the marginals.
        :return: Logarithms of the sums, shape ``(rows,)``, and, if ``marginals``, their derivatives along all
            parameters, shape ``(rows, size)``, also where a parameter has one row, or no columns, in place of zeros.
        """


def infer_marginals(plan: MarginalPlan, *parameters: Tensor, marginals: bool = True) -> tuple[Tensor, ...]:
    """Logarithms of sums of weights and, if ``marginals``, their derivatives, all of them differentiable.

    :param MarginalPlan plan: Algorithm that sums the weights.
    :param parameters: As for :meth:`MarginalPlan.solve`.
    :param bool marginals: Whether to return the marginals.
    """
    # Derivatives of log Z need the marginals, which are cheapest now.
    derivatives = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
    results: tuple[Tensor, ...] = _Inference.apply(plan, marginals or derivatives, *parameters)  # type: ignore[no-untyped-call]
    return results if marginals else results[:1]


class _Inference(DifferentiableFunction):
    """Log Z with marginals as its derivatives; only the derivatives of marginals use automatic differentiation."""

    @staticmethod
    def forward(plan: MarginalPlan, marginals: bool, *parameters: Tensor) -> tuple[Tensor, ...]:
        return plan.solve(parameters, marginals)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.plan, _, *parameters = inputs
        ctx.number = len(parameters)
        ctx.save_for_backward(*parameters, *output[1:])
        ctx.save_for_forward(*parameters, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_log_z: Tensor | None, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        parameters, marginals = ctx.saved_tensors[: ctx.number], ctx.saved_tensors[ctx.number :]
        gradients = tuple(torch.zeros_like(parameter) for parameter in parameters)
        if grad_log_z is not None:
            marginals = marginals or infer_marginals(ctx.plan, *parameters)[1:]
            # A parameter without columns has no derivatives; the zeros that it stands for may have marginals.
            gradients = tuple(
                _weighted(grad_log_z, m, len(p)) if p.shape[-1] else zero
                for m, p, zero in zip(marginals, parameters, gradients, strict=True)
            )
        if any(grad is not None for grad in grads):
            second = pull_back(partial(_marginals, ctx.plan), parameters, known_tangents(marginals, grads))
            gradients = tuple(first + added for first, added in zip(gradients, second, strict=True))
        return None, None, *gradients

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        parameters, wanted = ctx.saved_tensors[: ctx.number], len(ctx.saved_tensors) > ctx.number
        return apply_rows(partial(_tangents, ctx.plan, wanted), *parameters, *known_tangents(parameters, tangents))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], plan: MarginalPlan, marginals: bool, *parameters: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        flat = merge_mapped(info.batch_size, in_dims[2:], *parameters)
        results = _Inference.apply(plan, marginals, *flat)  # type: ignore[no-untyped-call]
        return tuple(tensor.unflatten(0, (info.batch_size, -1)) for tensor in results), (0,) * len(results)


def _marginals(plan: MarginalPlan, *parameters: Tensor) -> tuple[Tensor, ...]:
    return plan.solve(parameters, True)[1:]


def _tangents(plan: MarginalPlan, marginals: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Forward derivatives of log Z and, if ``marginals``, of the marginals."""
    number = len(tensors) // 2
    derivatives = _marginals(plan, *tensors[:number])
    products = [(m * t).sum(-1) for m, t in zip(derivatives, tensors[number:], strict=True) if t.shape[-1]]
    along = torch.stack(products).sum(0)
    return (along, *tangents_of(partial(_marginals, plan), number, *tensors)) if marginals else (along,)


def _weighted(weights: Tensor, values: Tensor, rows: int) -> Tensor:
    """Rows times weights, or the sum of these products if ``rows`` is 1 and there are several."""
    return weights.unsqueeze(-1) * values if rows == len(values) else weights.unsqueeze(0) @ values
