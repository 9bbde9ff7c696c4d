"""Estimates of log-probabilities of random optima."""

__all__ = ["OptimumEstimate", "OptimumEstimator"]

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.optima.structures.problem import Problem


class OptimumEstimate(NamedTuple):
    """What an estimator found, in double precision.

    :ivar Tensor log_prob: Estimated log-probabilities, shape ``(...)``; -inf where nothing was found.
    :ivar Tensor standard_error: Their standard errors, of the same shape; infinite where nothing was found.
    :ivar Tensor costs: Costs in the inverse sets, shape ``(S, ..., *cost_shape)``.
    :ivar Tensor log_weights: Weights with which they follow the costs' distribution given the optimum, up to a factor,
        shape ``(S, ...)``; -inf for costs that do not count.
    """

    log_prob: Tensor
    standard_error: Tensor
    costs: Tensor
    log_weights: Tensor

    def only(self, possible: Tensor) -> "OptimumEstimate":
        """The same where values are possible, and probabilities of zero elsewhere.

        :param Tensor possible: Booleans of shape ``(...)``.
        """
        return OptimumEstimate(
            self.log_prob.masked_fill(~possible, -torch.inf),
            self.standard_error.masked_fill(~possible, 0.0),
            self.costs,
            self.log_weights.masked_fill(~possible, -torch.inf),
        )


class OptimumEstimator(ABC):
    """A method to estimate the probability that random costs have a given optimum; stateless and picklable."""

    @abstractmethod
    def estimate(self, base: Any, problem: Problem, value: Tensor) -> OptimumEstimate:
        """Estimates log-probabilities of values.

        :param base: Distribution of the costs, of event shape ``problem.cost_shape``.
        :param Tensor value: Feasible values of shape ``(..., *problem.event_shape)``, whose leading axes are those of
            the base and of the problem.
        :raises NotImplementedError: if the method does not apply to the problem or to the costs.
        """
