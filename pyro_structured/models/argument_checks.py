"""Checks of data that learners share."""

__all__ = ["check_binary"]

from typing import Any

from torch import Tensor


def check_binary(values: Any, fewest_columns: int = 1) -> None:
    """Raises ValueError unless values are a matrix of zeros and ones."""
    if not isinstance(values, Tensor) or values.dim() != 2 or len(values) < 1 or values.shape[1] < fewest_columns:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"values: expected a tensor of shape (N, n) with n of at least {fewest_columns}, got {got}")
    if not bool(((values == 0) | (values == 1)).all()):
        raise ValueError("values: expected zeros and ones, got other numbers")
