"""Checks of data that learners share."""

__all__ = ["check_binary", "checked_weights"]

from typing import Any

import numpy as np
from torch import Tensor

# Sums of larger ones, times log-probabilities, might overflow. Smoothing and evidence are in the same units as weights:
# scaled, these would mean something else.
MOST_WEIGHT = 1e290


def check_binary(values: Any, fewest_columns: int = 1) -> None:
    """Raises ValueError unless values are a matrix of zeros and ones."""
    if not isinstance(values, Tensor) or values.dim() != 2 or len(values) < 1 or values.shape[1] < fewest_columns:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"values: expected a tensor of shape (N, n) with n of at least {fewest_columns}, got {got}")
    if not bool(((values == 0) | (values == 1)).all()):
        raise ValueError("values: expected zeros and ones, got other numbers")


def checked_weights(sample_weight: Any, number: int) -> np.ndarray:
    """Weights of so many rows, all 1 for ``None``, or a ValueError."""
    try:
        weights = np.asarray(1.0 if sample_weight is None else sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight: expected numbers, got others: {error}") from None
    if weights.shape not in ((), (number,)):
        raise ValueError(f"sample_weight: expected shape ({number},), got {weights.shape}")
    if not ((weights >= 0) & (weights <= MOST_WEIGHT)).all() or not weights.any():
        raise ValueError(f"sample_weight: expected numbers from 0 to {MOST_WEIGHT:g}, not all zero, got others")
    return np.broadcast_to(weights, number)
