"""Random draws: of indices from weights, and for the rows of matrices, under ``torch.vmap`` too."""

__all__ = ["draw", "draw_log", "draw_rows", "refuse_mapped_draws"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.ops.vmap_rows import merge_mapped


def draw(weights: Tensor) -> Tensor:
    """Draws an index from non-negative weights along the last axis, by inverting their cumulative sums.

    :param Tensor weights: Shape ``(..., n)``, not all zero.
    :return: Indices of shape ``(...)`` (long); one of weight zero is never drawn.
    """
    cumulative = weights.cumsum(-1)
    # Rounding must not carry the threshold to the total itself.
    threshold = torch.rand_like(cumulative[..., :1]) * (cumulative[..., -1:] * (1 - 2.0**-52))
    return (cumulative <= threshold).sum(-1)


def draw_log(log_weights: Tensor) -> Tensor:
    """Draws an index from logarithms of weights along the last axis, as :func:`draw` from weights."""
    return draw((log_weights - log_weights.amax(-1, keepdim=True)).exp())


def draw_rows(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Draws with torch's generator; under ``torch.vmap``, according to its argument ``randomness``.

    :param function: Function of tensors of shape ``(rows, ...)``, or ``(1, ...)`` if they are the same in all rows,
        that returns random numbers of shape ``(num_samples, rows, ...)``. It may depend on values.
    :param tensors: Arguments of the function.
    :return: Result of the function, without derivatives.
    """
    if not is_transformed():
        return function(*tensors)
    # Random number that has a mapped axis if draws are to be different; torch refuses it if they are forbidden.
    marker = torch.rand(())
    drawn: Tensor = _Draws.apply(function, marker, *tensors)  # type: ignore[no-untyped-call]
    return drawn


def refuse_mapped_draws() -> None:
    """Raises a NotImplementedError under ``torch.vmap`` and other transforms of functions."""
    if is_transformed():
        raise NotImplementedError(
            "sample: cannot be called under torch.vmap; parameters with a batch axis, or sample(sample_shape), draw as "
            "many values at once"
        )


class _Draws(torch.autograd.Function):
    """Draws that depend on values, whatever function transforms are active outside."""

    @staticmethod
    def forward(function: Callable[..., Tensor], marker: Tensor, *tensors: Tensor) -> Tensor:
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], function: Callable[..., Tensor], marker: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, int]:
        size, dims = info.batch_size, in_dims[2:]
        if info.randomness == "different":
            alone = marker if in_dims[1] is None else marker.select(in_dims[1], 0)
            drawn = _Draws.apply(function, alone, *merge_mapped(size, dims, *tensors))  # type: ignore[no-untyped-call]
            return drawn.unflatten(1, (size, -1)), 1
        device = tensors[0].device
        draws = []
        for index in range(size):
            with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=index < size - 1):
                parts = (t if dim is None else t.select(dim, index) for t, dim in zip(tensors, dims, strict=True))
                draws.append(_Draws.apply(function, marker, *parts))  # type: ignore[no-untyped-call]
        return torch.stack(draws), 0
