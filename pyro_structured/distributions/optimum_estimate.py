"""Estimated log-probabilities of random optima as functions of the costs' parameters."""

__all__ = ["estimated_log_prob"]

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_structured.distributions.optimum_estimator import OptimumEstimator
from pyro_structured.structures.problem import Problem


def estimated_log_prob(
    estimator: OptimumEstimator, base: Any, problem: Problem, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Estimates, -inf for values that are not feasible, and their standard errors.

    :param base: Distribution of the costs, of the batch shape of the values.
    :param Problem problem: Of the same batch shape.
    """
    feasible = problem.is_feasible(value)
    with torch.no_grad():
        costs = base.sample()
    dtype = torch.promote_types(costs.dtype, torch.float32)
    if not bool(feasible.all()):
        # Any feasible value stands in for those that have no costs.
        other = problem.solve(costs).to(value.dtype)
        value = value.where(feasible[(..., *(None,) * len(problem.event_shape))], other)
    found = estimator.estimate(base, problem, value)
    log_prob, error = found.log_prob, found.standard_error
    if torch.is_grad_enabled():
        counts = found.log_weights > -torch.inf
        weights = found.log_weights.masked_fill(~counts, -1e300).softmax(0).masked_fill(~counts, 0.0)
        log_prob = _Fisher.apply(log_prob, (weights * base.log_prob(found.costs)).sum(0))  # type: ignore[no-untyped-call]
    return log_prob.masked_fill(~feasible, -torch.inf).to(dtype), error.masked_fill(~feasible, 0.0).to(dtype)


class _Fisher(torch.autograd.Function):
    """A number, with the gradient of another one; that gradient has no derivatives."""

    @staticmethod
    def forward(ctx: Any, log_prob: Tensor, log_density: Tensor) -> Tensor:
        return log_prob.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad
