"""Constraints of all entries of values."""

__all__ = ["EveryEntry"]

from typing import Any

from torch import Tensor
from torch.distributions import constraints


class EveryEntry(constraints.independent):
    """Constraint of all entries of a value, as torch's ``independent``, which cannot check batches without rows.

    :param constraints.Constraint entry: Constraint of single entries.
    :param int rank: Number of axes of a value.
    """

    def __init__(self, entry: Any, rank: int) -> None:
        super().__init__(entry, rank)  # type: ignore[no-untyped-call]

    def check(self, value: Tensor) -> Tensor:
        """Booleans of the shape of the value without its last axes."""
        if not value.numel():
            return value.new_ones(value.shape[: value.dim() - self.reinterpreted_batch_ndims]).bool()
        satisfied: Tensor = super().check(value)  # type: ignore[no-untyped-call]
        return satisfied

    def __repr__(self) -> str:
        return f"EveryEntry({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"
