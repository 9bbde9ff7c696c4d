"""Estimated log-probabilities of random optima as functions of the costs' parameters."""

__all__ = ["OptimumEstimate", "OptimumEstimator", "estimated_log_prob"]

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.distributions.estimate_warning import warn_of_spread
from pyro_structured.foundation.distributions.fisher_gradient import with_gradient_of
from pyro_structured.foundation.distributions.support_bounds import check_support
from pyro_structured.optima.structures.problem import Problem


class OptimumEstimate(NamedTuple):
    """Result of an estimator, in double precision.

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
        """Estimates where values are possible, and probabilities of zero elsewhere.

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


def estimated_log_prob(
    estimator: OptimumEstimator, base: Any, problem: Problem, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Estimates, -inf for values that are not feasible, and their standard errors.

    :param base: Distribution of the costs, of the batch shape of the values.
    :param Problem problem: Problem of the same batch shape.
    :return: Both of the batch shape; an ``EstimateWarning`` is given where a standard error is above 0.5.
    :raises ValueError: if gradients are asked for with respect to parameters that the costs' support depends on.
    """
    if torch.is_grad_enabled():
        check_support(base)
    feasible = problem.is_feasible(value)
    with torch.no_grad():
        drawn = base.sample()
    dtype = torch.promote_types(drawn.dtype, torch.float32)
    if not feasible.numel():
        return feasible.to(dtype), feasible.to(dtype)
    # Any feasible value stands in for those that have no costs; it has the dtype that the problem's methods expect.
    other = problem.solve(drawn)
    value = value.to(other.dtype).where(_over(feasible, len(problem.event_shape)), other)
    found = estimator.estimate(base, problem, value).only(feasible)
    log_prob, error = found.log_prob, found.standard_error
    warn_of_spread(estimator, error)
    if torch.is_grad_enabled():
        counts = found.log_weights > -torch.inf
        weights = found.log_weights.masked_fill(~counts, torch.finfo(torch.double).min).softmax(0)
        # Costs that do not count may be outside of the support.
        log_density = base.log_prob(found.costs.where(_over(counts, len(problem.cost_shape)), drawn))
        log_prob = with_gradient_of(log_prob, (weights * log_density).masked_fill(~counts, 0.0).sum(0))
    return log_prob.to(dtype), error.to(dtype)


def _over(rows: Tensor, rank: int) -> Tensor:
    return rows.reshape(rows.shape + (1,) * rank)
