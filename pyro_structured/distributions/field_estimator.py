"""Estimates of partition functions of fields."""

__all__ = ["FieldEstimator"]

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from pyro_structured.ops.field_rows import FieldRows


class FieldEstimator(ABC):
    """A method to estimate log partition functions of binary fields under patterns; stateless and picklable."""

    @abstractmethod
    def estimate(self, field: FieldRows, sample: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
        """Estimates log Z and its standard error, in double precision, both of shape ``(rows,)``.

        :param FieldRows field: The fields.
        :param sample: Takes a number and returns so many exact samples of each, zeros and ones of shape ``(number,
            rows, D)``; raises NotImplementedError where none can be drawn.
        :raises NotImplementedError: if the method does not apply to the fields.
        """
