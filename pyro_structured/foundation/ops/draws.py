"""Random draws: of indices from weights, and for the rows of matrices, under ``torch.vmap`` too."""

__all__ = ["Draws", "KeptDraws", "draw", "draw_log", "refuse_mapped_draws"]

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes, merge_mapped


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


class Draws(Protocol):
    """Draws of the rows of some tensors."""

    @property
    def possible(self) -> bool:
        """Whether it is known that all rows have a value of positive probability."""

    def __call__(self, num_samples: int) -> Tensor:
        """Random numbers of shape ``(num_samples, rows, ...)``, without derivatives."""


class KeptDraws:
    """Draws with torch's generator, for which passes over parameters are made once; under ``torch.vmap``, according to
    its argument ``randomness``, and with new passes.

    :param prepare: Function of tensors of shape ``(rows, ...)``, or ``(1, ...)`` if they are the same in all rows, that
        makes the passes. It may depend on values.
    :param tensors: Arguments of the function.
    """

    def __init__(self, prepare: Callable[..., Draws], *tensors: Tensor) -> None:
        self._prepare, self._tensors = prepare, tensors

    @cached_property
    def _prepared(self) -> Draws:
        with torch.no_grad():
            return self._prepare(*self._tensors)

    @property
    def num_rows(self) -> int:
        """Number of different rows."""
        return int(broadcast_shapes(*(tensor.shape[:1] for tensor in self._tensors))[0])

    @property
    def possible(self) -> bool:
        """Whether it is known that all rows have a value of positive probability."""
        return not is_transformed() and self._prepared.possible

    @torch.no_grad()
    def __call__(self, num_samples: int) -> Tensor:
        """Draws, shape ``(num_samples, rows, ...)``."""
        if not is_transformed():
            return self._prepared(num_samples)
        # Random number that has a mapped axis if draws are to be different; torch refuses it if they are forbidden.
        marker = torch.rand(())
        drawn: Tensor = _MappedDraws.apply(  # type: ignore[no-untyped-call]
            lambda *rows: self._prepare(*rows)(num_samples), marker, *self._tensors
        )
        return drawn


def refuse_mapped_draws() -> None:
    """Raises a NotImplementedError under ``torch.vmap`` and other transforms of functions."""
    if is_transformed():
        raise NotImplementedError(
            "sample: cannot be called under torch.vmap; parameters with a batch axis, or sample(sample_shape), draw as "
            "many values at once"
        )


class _MappedDraws(DifferentiableFunction):
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
            drawn = _MappedDraws.apply(function, alone, *merge_mapped(size, dims, *tensors))  # type: ignore[no-untyped-call]
            return drawn.unflatten(1, (size, -1)), 1
        device = tensors[0].device
        draws = []
        for index in range(size):
            with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=index < size - 1):
                parts = (t if dim is None else t.select(dim, index) for t, dim in zip(tensors, dims, strict=True))
                draws.append(_MappedDraws.apply(function, marker, *parts))  # type: ignore[no-untyped-call]
        return torch.stack(draws), 0
