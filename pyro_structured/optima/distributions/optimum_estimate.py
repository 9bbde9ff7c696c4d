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
    """Estimated log-probabilities of optima, and weighted draws of their costs, in double precision.

    :ivar Tensor log_prob: Estimated log-probabilities, shape ``(...)``; -inf where no costs of the optimum were drawn.
    :ivar Tensor standard_error: Standard errors of ``log_prob``, shape ``(...)``; infinite where no costs were drawn.
    :ivar Tensor costs: S draws of costs, in the inverse sets if their weights are positive, ``(S, ..., *cost_shape)``.
    :ivar Tensor log_weights: Log-weights with which the draws follow the costs' distribution given the optimum, up to a
        constant, shape ``(S, ...)``; -inf for draws that do not count.
    """

    log_prob: Tensor
    standard_error: Tensor
    costs: Tensor
    log_weights: Tensor

    def only(self, possible: Tensor) -> "OptimumEstimate":
        """The estimate where values are possible, and probability 0, without an error, elsewhere.

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
    """Estimated log-probabilities, -inf for values that are not feasible, and their standard errors.

    :param base: Distribution of the costs, of the batch shape of the values.
    :param Problem problem: The optimisation problem, of the same batch shape.
    :return: Estimates and errors of the batch shape; an ``EstimateWarning`` is given where an error is above 0.5.
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
    # Optima of drawn costs stand in for infeasible values; they have the dtype that the problem's methods expect.
    substitute = problem.solve(drawn)
    value = value.to(substitute.dtype).where(_over(feasible, len(problem.event_shape)), substitute)
    estimate = estimator.estimate(base, problem, value).only(feasible)
    log_prob, error = estimate.log_prob, estimate.standard_error
    warn_of_spread(estimator, error)
    if torch.is_grad_enabled():
        counts = estimate.log_weights > -torch.inf
        weights = estimate.log_weights.masked_fill(~counts, torch.finfo(torch.double).min).softmax(0)
        # Draws that do not count may be outside of the support.
        log_density = base.log_prob(estimate.costs.where(_over(counts, len(problem.cost_shape)), drawn))
        log_prob = with_gradient_of(log_prob, (weights * log_density).masked_fill(~counts, 0.0).sum(0))
    return log_prob.to(dtype), error.to(dtype)


def _over(rows: Tensor, rank: int) -> Tensor:
    return rows.reshape(rows.shape + (1,) * rank)
