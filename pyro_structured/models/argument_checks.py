"""Checks of data that learners share."""

__all__ = ["check_binary", "check_weights"]

from typing import Any

import torch
from torch import Tensor


def check_binary(values: Any, fewest_columns: int = 1) -> None:
    """Raises ValueError unless values are a matrix of zeros and ones."""
    if not isinstance(values, Tensor) or values.dim() != 2 or len(values) < 1 or values.shape[1] < fewest_columns:
        raise ValueError(
            f"values: expected a tensor of shape (N, n) with n of at least {fewest_columns}, got {_shape(values)}"
        )
    if not bool(((values == 0) | (values == 1)).all()):
        raise ValueError("values: expected zeros and ones, got other numbers")


def check_weights(weights: Any, number: int) -> None:
    """Raises ValueError unless there is a finite weight of at least 0 for each of a number of rows."""
    if not isinstance(weights, Tensor) or weights.shape[-1:] != (number,):
        raise ValueError(f"weights: expected a tensor of shape (..., {number}), got {_shape(weights)}")
    if not bool(((weights >= 0) & (weights < torch.inf)).all()):
        raise ValueError("weights: expected finite numbers of at least 0, got others")


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
