"""Constraints of all entries of values."""

__all__ = ["EveryEntry"]

from typing import Any

from torch import Tensor
from torch.distributions import constraints


class EveryEntry(constraints.independent):  # type: ignore[misc]
    """Values all of whose entries satisfy a constraint, as torch's ``independent``; also of batches without rows, which
    that cannot check.

    :param constraints.Constraint entry: Of single entries.
    :param int rank: Number of axes of a value.
    """

    def __init__(self, entry: Any, rank: int) -> None:
        super().__init__(entry, rank)

    def check(self, value: Tensor) -> Tensor:
        """Booleans of the shape of the value without its last axes."""
        found: Tensor = super().check(value) if value.numel() else value.new_ones(self._rows(value)).bool()
        return found

    def _rows(self, value: Tensor) -> Any:
        return value.shape[: value.dim() - self.reinterpreted_batch_ndims]

    def __repr__(self) -> str:
        return f"EveryEntry({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"
