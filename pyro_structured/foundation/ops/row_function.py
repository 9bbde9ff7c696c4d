"""Functions of matrices, row by row, under all transforms of functions: derivatives of any order in both modes.

A hand-written ``torch.autograd.Function`` has derivatives of its forward derivatives only if its ``jvp`` does nothing
but call another such function: torch treats everything else there as a constant of outer transforms.
"""

__all__ = ["RowFunction", "apply_rows", "known_tangents", "pull_back", "tangents_of"]

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.vmap_rows import merge_mapped

RowFunction = Callable[..., tuple[Tensor, ...]]


def apply_rows(function: RowFunction, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Computes a function under ``torch.func``'s transforms, even if it depends on values.

    :param function: Function of tensors of shape ``(rows, ...)``, or ``(1, ...)`` if they are the same in all rows,
        that returns tensors of shape ``(rows, ...)`` in operations that support reverse-mode differentiation. It may
        branch on values, and write to tensors that it made.
    :param tensors: Arguments of the function.
    :return: Results of the function. All derivatives, forward ones too, come from automatic differentiation of it.
    """
    results: tuple[Tensor, ...] = _Rows.apply(function, *tensors)  # type: ignore[no-untyped-call]
    return results


def pull_back(function: RowFunction, inputs: tuple[Tensor, ...], cotangents: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Products of cotangents of a function's results with its derivatives, in the shapes of the inputs."""
    return apply_rows(partial(_pull_back, function, len(inputs)), *inputs, *cotangents)


def tangents_of(function: RowFunction, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Products of a function's derivatives with tangents, itself a function of rows: for :func:`apply_rows`.

    :param number: Number of the tensors that are inputs; the others are tangents of these.
    :return: Tensors in the shapes of the results: the gradients of a pullback, which is linear in the cotangents, with
        respect to them.
    """
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    with torch.enable_grad():
        inputs = tuple(_alone(tensor, recorded) for tensor in tensors[:number])
        results = function(*inputs)
        cotangents = tuple(torch.zeros_like(result).requires_grad_() for result in results)
        pulled = _gradients(results, inputs, cotangents, True)
        return _gradients(pulled, cotangents, tensors[number:], recorded)


def known_tangents(inputs: tuple[Tensor, ...], tangents: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Tangents of all inputs, zeros for inputs that have none."""
    return tuple(torch.zeros_like(x) if t is None else t for x, t in zip(inputs, tangents, strict=True))


class _Rows(DifferentiableFunction):
    @staticmethod
    def forward(function: RowFunction, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(*tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *pull_back(ctx.function, ctx.saved_tensors, grads)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return apply_rows(
            partial(tangents_of, ctx.function, len(tangents)),
            *ctx.saved_tensors,
            *known_tangents(ctx.saved_tensors, tangents),
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], function: RowFunction, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        results = apply_rows(function, *merge_mapped(info.batch_size, in_dims[1:], *tensors))
        return tuple(tensor.unflatten(0, (info.batch_size, -1)) for tensor in results), (0,) * len(results)


def _pull_back(function: RowFunction, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    with torch.enable_grad():
        inputs = tuple(_alone(tensor, recorded) for tensor in tensors[:number])
        return _gradients(function(*inputs), inputs, tensors[number:], recorded)


def _alone(tensor: Tensor, recorded: bool) -> Tensor:
    """A tensor's values as an input of a graph of its own, which continues that of the tensor if ``recorded``."""
    return tensor.view_as(tensor) if recorded and tensor.requires_grad else tensor.detach().requires_grad_()


def _gradients(
    outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...], weights: tuple[Tensor, ...], create_graph: bool
) -> tuple[Tensor, ...]:
    used = [(output, weight) for output, weight in zip(outputs, weights, strict=True) if output.requires_grad]
    if not used:
        return tuple(torch.zeros_like(x) for x in inputs)
    results, cotangents = zip(*used, strict=True)
    gradients = torch.autograd.grad(results, inputs, cotangents, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True))
