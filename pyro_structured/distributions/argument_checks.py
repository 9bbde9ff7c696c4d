"""Errors that name the argument, what was expected and what came."""

__all__ = ["check_entries", "check_vector", "common_batch", "expanded_batch"]

from typing import Any

import torch
from torch import Tensor


def check_vector(name: str, tensor: Tensor, smallest: int = 1) -> None:
    """Raises a ValueError, with the argument's name, unless it is a floating point tensor with a long last axis."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise NotImplementedError(
            f"{name}: cannot be traced, because certificates choose the algorithm by the numbers: use "
            "jit_compile=False, or Trace_ELBO in place of JitTrace_ELBO"
        )
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ValueError(f"{name}: expected a floating point tensor, got {tensor!r}")
    if tensor.dim() < 1 or tensor.shape[-1] < smallest:
        shape = tuple(tensor.shape)
        raise ValueError(
            f"{name}: expected at least one axis, the last of at least {smallest} entries, got shape {shape}"
        )


def common_batch(logits: torch.Size, count_logits: torch.Size, log_weight: torch.Size) -> torch.Size:
    """The batch shape of parameters, or a ValueError if they do not broadcast."""
    try:
        return torch.Size(torch.broadcast_shapes(logits, count_logits, log_weight))
    except RuntimeError:
        raise ValueError(
            f"count_logits: expected a batch shape that broadcasts with that of logits, {tuple(logits)}, got "
            f"{tuple(count_logits)}"
        ) from None


def expanded_batch(batch: torch.Size, wanted: Any) -> torch.Size:
    """The wanted batch shape, or a ValueError if the present one does not expand to it."""
    shape = torch.Size(wanted)
    extra = len(shape) - len(batch)
    fits = extra >= 0 and all(old in (1, new) for old, new in zip(batch, shape[extra:], strict=True))
    if not fits or min(shape, default=0) < 0:
        raise ValueError(f"batch_shape: expected a shape to which {tuple(batch)} expands, got {tuple(shape)}")
    return shape


def check_entries(shape: torch.Size, **tensors: Tensor) -> None:
    """Raises a ValueError unless tensors broadcast with each other and with vectors of a shape.

    :param torch.Size shape: Batch and event shape; the last axis is not expanded.
    :param tensors: By the names of the arguments; one that is called ``observed`` has to be boolean.
    """
    for name, tensor in tensors.items():
        kind = "a boolean tensor" if name == "observed" else "a tensor"
        if not isinstance(tensor, Tensor) or (name == "observed" and tensor.dtype != torch.bool):
            raise ValueError(f"{name}: expected {kind}, got {getattr(tensor, 'dtype', tensor)!r}")
        try:
            joined = torch.Size(torch.broadcast_shapes(shape, tensor.shape))
        except RuntimeError:
            joined = torch.Size()
        if joined[-1:] != shape[-1:]:
            raise ValueError(
                f"{name}: expected a shape that broadcasts with vectors of shape {tuple(shape)}, got "
                f"{tuple(tensor.shape)}"
            )
        shape = joined
