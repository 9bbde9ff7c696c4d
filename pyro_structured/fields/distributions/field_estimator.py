"""Estimates of log partition functions of fields."""

__all__ = ["FieldEstimate", "FieldEstimator"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from pyro_structured.fields.ops.field import Field


class FieldEstimate(NamedTuple):
    """Estimated log partition functions of the rows of a field, in double precision, and draws that stand for it.

    :ivar Tensor log_partition: Estimates of log Z without the base, shape ``(rows,)``.
    :ivar Tensor standard_error: Their standard errors, shape ``(rows,)``.
    :ivar Tensor labels: Integers, shape ``(S, rows, D)``.
    :ivar Tensor log_weights: Weights with which the labels follow the field, up to a factor, shape ``(S, rows)``.
    """

    log_partition: Tensor
    standard_error: Tensor
    labels: Tensor
    log_weights: Tensor


class FieldEstimator(ABC):
    """A method to estimate log partition functions of fields under patterns; stateless and picklable."""

    @abstractmethod
    def estimate(self, field: Field, sample: Callable[[int], Tensor]) -> FieldEstimate:
        """Estimates log Z.

        :param Field field: The fields, with one layer of hidden units.
        :param sample: Takes a number and returns so many exact samples of each, labels of shape ``(number, rows, D)``;
            raises NotImplementedError where none can be drawn.
        :raises NotImplementedError: if the method does not apply to the fields.
        """
