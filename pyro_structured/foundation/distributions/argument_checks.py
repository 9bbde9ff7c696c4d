"""Checks of arguments, with errors that name the argument, the expected value and the given one."""

__all__ = [
    "check_data",
    "check_entries",
    "check_memberships",
    "check_rows",
    "check_state_weights",
    "check_validation",
    "check_vector",
    "check_weights",
    "expanded_batch",
    "joined_batch",
]

import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import check_dense, check_flag
from pyro_structured.foundation.structures.representation import shortened


def check_vector(name: str, tensor: Tensor, smallest: int = 1) -> None:
    """Raises a ValueError, with the argument's name, unless it is a floating point tensor with a last axis of at least
    ``smallest`` entries.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise NotImplementedError(
            f"{name}: cannot be traced, because certificates choose the algorithm by the numbers: use "
            "jit_compile=False, or Trace_ELBO in place of JitTrace_ELBO"
        )
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        got = f"one of {tensor.dtype}" if isinstance(tensor, Tensor) else shortened(tensor)
        raise ValueError(f"{name}: expected a floating point tensor, got {got}")
    check_dense(name, tensor)
    if tensor.dim() < 1 or tensor.shape[-1] < smallest:
        shape = tuple(tensor.shape)
        raise ValueError(
            f"{name}: expected at least one axis, the last of at least {smallest} entries, got shape {shape}"
        )


def check_validation(validate_args: object) -> None:
    """Raises a ValueError unless ``validate_args`` is True, False or None."""
    if validate_args is not None:
        check_flag("validate_args", validate_args)


def joined_batch(name: str, tensor: Tensor, shape: Sequence[int], batch: torch.Size) -> torch.Size:
    """Batch shape broadcast with that of a tensor, or a ValueError if these do not broadcast or the tensor's last axes
    do not have the given shape.
    """
    check_vector(name, tensor, min(1, shape[-1]))
    if tensor.shape[-len(shape) :] != torch.Size(shape):
        expected = ", ".join(map(str, shape))
        raise ValueError(f"{name}: expected shape (..., {expected}), got {tuple(tensor.shape)}")
    try:
        return broadcast_shapes(batch, tensor.shape[: -len(shape)])
    except RuntimeError:
        raise ValueError(
            f"{name}: expected a batch that broadcasts with {tuple(batch)}, got shape {tuple(tensor.shape)}"
        ) from None


def expanded_batch(batch: torch.Size, wanted: Any) -> torch.Size:
    """Wanted batch shape, or a ValueError if the present one does not expand to it."""
    try:
        shape = torch.Size(wanted)
    except TypeError:
        raise ValueError(f"batch_shape: expected a sequence of integers, got {wanted!r}") from None
    extra = len(shape) - len(batch)
    fits = extra >= 0 and all(old in (1, new) for old, new in zip(batch, shape[extra:], strict=True))
    if not fits or min(shape, default=0) < 0:
        raise ValueError(f"batch_shape: expected a shape to which {tuple(batch)} expands, got {tuple(shape)}")
    return shape


def check_entries(shape: torch.Size, rank: int = 1, /, **tensors: Tensor) -> None:
    """Raises a ValueError unless tensors broadcast with each other and with values of a shape.

    :param torch.Size shape: Batch and event shape.
    :param int rank: Number of the last axes, which are not expanded.
    :param tensors: Tensors by the names of the arguments; ``observed`` has to be boolean.
    """
    for name, tensor in tensors.items():
        kind = "a boolean tensor" if name == "observed" else "a tensor"
        if not isinstance(tensor, Tensor) or (name == "observed" and tensor.dtype != torch.bool):
            got = tensor.dtype if isinstance(tensor, Tensor) else shortened(tensor)
            raise ValueError(f"{name}: expected {kind}, got {got}")
        try:
            joined = broadcast_shapes(shape, tensor.shape)
        except RuntimeError:
            joined = None
        if joined is None or joined[len(joined) - rank :] != shape[len(shape) - rank :]:
            raise ValueError(
                f"{name}: expected a shape that broadcasts with values of shape {tuple(shape)}, got "
                f"{tuple(tensor.shape)}"
            )
        shape = joined


def check_state_weights(log_weights: Tensor, num_variables: int, num_states: int) -> None:
    """Raises a ValueError unless log-likelihoods have the shape ``(..., num_variables, num_states)``."""
    if not isinstance(log_weights, Tensor) or not log_weights.is_floating_point():
        raise ValueError(f"log_weights: expected a floating point tensor, got {log_weights!r}")
    if log_weights.shape[-2:] != (num_variables, num_states):
        raise ValueError(
            f"log_weights: expected shape (..., {num_variables}, {num_states}), got {tuple(log_weights.shape)}"
        )


def check_rows(values: Tensor, num_variables: int) -> None:
    """Raises a ValueError unless values have the shape ``(N, num_variables)``."""
    if not isinstance(values, Tensor) or values.dim() != 2 or values.shape[1] != num_variables:
        raise ValueError(f"values: expected a tensor of shape (N, {num_variables}), got {_shape(values)}")
    check_dense("values", values)


def check_data(
    values: Tensor, num_variables: int, num_categories: int, smoothing: float, weights: Tensor | None
) -> Tensor:
    """Raises a ValueError unless a distribution can be fitted to data.

    :param Tensor values: Integers in ``range(num_categories)``, shape ``(N, num_variables)``.
    :param float smoothing: A number of at least 0.
    :param Tensor weights: Weights of the rows, shape ``(..., N)``; ``None``: all are 1.
    :return: The weights.
    """
    check_rows(values, num_variables)
    known = (values >= 0) & (values < num_categories) & (values == values.long())
    require(~known, f"values: expected integers in range({num_categories}), got other numbers or NaN")
    if not isinstance(smoothing, Real) or not 0 <= smoothing <= sys.float_info.max:
        raise ValueError(f"smoothing: expected a number of at least 0, got {smoothing!r}")
    if weights is None:
        return values.new_ones(len(values), dtype=torch.double)
    check_weights(weights, len(values))
    return weights


def check_weights(weights: Any, number: int) -> None:
    """Raises a ValueError unless weights are finite and at least 0, with a last axis of ``number`` rows."""
    if not isinstance(weights, Tensor) or weights.shape[-1:] != (number,):
        raise ValueError(f"weights: expected a tensor with a last axis of {number} numbers, got {_shape(weights)}")
    check_dense("weights", weights)
    require(~((weights >= 0) & (weights < torch.inf)), "weights: expected finite numbers of at least 0, got others")


def check_memberships(memberships: Tensor, number: int) -> None:
    """Raises a ValueError unless memberships are probabilities of classes, of shape ``(number, K)``."""
    if not isinstance(memberships, Tensor) or memberships.dim() != 2 or len(memberships) != number:
        raise ValueError(f"memberships: expected a tensor of shape ({number}, K), got {_shape(memberships)}")
    check_dense("memberships", memberships)
    total = memberships.double().sum(-1)
    wrong = (memberships < 0).any(-1) | ~torch.isclose(total, torch.ones_like(total), atol=1e-3)
    require(wrong, "memberships: expected probabilities that add up to 1 in every row, got other numbers")


def _shape(argument: object) -> object:
    return tuple(argument.shape) if isinstance(argument, Tensor) else type(argument).__name__
