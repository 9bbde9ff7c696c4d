"""Estimates of log partition functions of fields."""

__all__ = ["FieldEstimate", "FieldEstimator"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from pyro_structured.fields.ops.field import Field


class FieldEstimate(NamedTuple):
    """Estimated log partition functions of the rows of a field, in double precision, and weighted draws of the field.

    :ivar Tensor log_partition: Estimates of log Z without the base, shape ``(rows,)``.
    :ivar Tensor standard_error: Standard errors of these estimates, shape ``(rows,)``.
    :ivar Tensor labels: Draws, integers of shape ``(S, rows, D)``.
    :ivar Tensor log_weights: Log-weights of the draws, up to a constant, shape ``(S, rows)``.
    """

    log_partition: Tensor
    standard_error: Tensor
    labels: Tensor
    log_weights: Tensor


class FieldEstimator(ABC):
    """A method to estimate log partition functions of fields under patterns; stateless and picklable."""

    @abstractmethod
    def estimate(self, field: Field, sample: Callable[[int], Tensor]) -> FieldEstimate:
        """Estimates log Z of each row.

        :param Field field: The fields, with one layer of hidden units.
        :param sample: Function that takes a number and returns this number of exact samples of each row, labels of
            shape ``(number, rows, D)``; it raises NotImplementedError where none can be drawn.
        :raises NotImplementedError: if the method does not apply to the fields.
        """
