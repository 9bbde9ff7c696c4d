"""Estimates of partition functions of fields."""

__all__ = ["FieldEstimator"]

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from pyro_structured.fields.ops.field import Field


class FieldEstimator(ABC):
    """A method to estimate log partition functions of fields under patterns; stateless and picklable."""

    @abstractmethod
    def estimate(self, field: Field, sample: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
        """Estimates log Z and its standard error, in double precision, both of shape ``(rows,)``.

        :param Field field: The fields, with one layer of hidden units.
        :param sample: Takes a number and returns so many exact samples of each, labels of shape ``(number, rows,
            D)``; raises NotImplementedError where none can be drawn.
        :raises NotImplementedError: if the method does not apply to the fields.
        """
