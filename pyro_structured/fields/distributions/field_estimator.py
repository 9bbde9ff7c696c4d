"""Estimates of partition functions of fields."""

__all__ = ["FieldEstimator"]

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from pyro_structured.fields.ops.field_rows import FieldRows
from pyro_structured.fields.ops.joint_labels import JointLabels


class FieldEstimator(ABC):
    """A method to estimate log partition functions of fields under patterns; stateless and picklable."""

    @abstractmethod
    def estimate(self, field: FieldRows, sample: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
        """Estimates log Z and its standard error, in double precision, both of shape ``(rows,)``.

        :param FieldRows field: The fields.
        :param sample: Takes a number and returns so many exact samples of each, zeros and ones of shape ``(number,
            rows, D)``; raises NotImplementedError where none can be drawn.
        :raises NotImplementedError: if the method does not apply to the fields.
        """

    @abstractmethod
    def estimate_labels(self, field: JointLabels, sample: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
        """The same for fields of several labels, with one chain in each row; ``sample`` returns integers."""
