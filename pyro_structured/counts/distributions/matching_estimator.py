"""Estimates of log partition functions of generalized matchings."""

__all__ = ["MatchingEstimate", "MatchingEstimator"]

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from pyro_structured.counts.ops.factor_messages import FactorGraph
from pyro_structured.counts.ops.matching_moves import MatrixLaw


class MatchingEstimate(NamedTuple):
    """Estimated log partition functions of R matrices, and weighted draws.

    :ivar Tensor log_partition: Estimates of log Z, shape ``(R,)``.
    :ivar Tensor standard_error: Standard errors of these estimates, shape ``(R,)``.
    :ivar Tensor values: Draws, integers of shape ``(S, R, I, J)``.
    :ivar Tensor log_weights: Log-weights of the draws, up to a constant, shape ``(S, R)``.
    """

    log_partition: Tensor
    standard_error: Tensor
    values: Tensor
    log_weights: Tensor


class MatchingEstimator(ABC):
    """A method to estimate log partition functions of generalized matchings; stateless and picklable."""

    @abstractmethod
    def estimate(self, law: MatrixLaw, graph: FactorGraph) -> MatchingEstimate:
        """Estimates log Z of each matrix.

        :param MatrixLaw law: Laws of R matrices, relative to the heaviest values.
        :param FactorGraph graph: The same laws as factors, whose log Z has no constants.
        :return: Estimates of the log Z of ``graph``.
        """
