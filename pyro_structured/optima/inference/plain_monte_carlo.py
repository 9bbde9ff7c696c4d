"""Log-probabilities of optima by plain Monte Carlo."""

__all__ = ["PlainMonteCarlo"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.optima.distributions.optimum_estimate import OptimumEstimate, OptimumEstimator
from pyro_structured.optima.structures.problem import Problem


class PlainMonteCarlo(OptimumEstimator):
    r"""Estimates probabilities of optima by the share of draws of the costs that have them, for any problem.

    .. math::
        \hat P(y) = \frac{1}{K} \sum_{k=1}^K 1[F(w_k) = y], \qquad w_k \sim p(w).

    Unbiased, with a standard error of :math:`\sqrt{(1 - P) / (P K)}` for :math:`\log P`. Where no draw has the optimum
    the estimate is -inf and its standard error infinite, and there is no gradient: it is for probabilities well above
    1/K. Optima that are tied do not count. Memory is O(K · costs) for each value.

    :param int num_samples: Number of draws K for each value; as many calls of the problem's solver.
    :raises ValueError: if it is not an integer of at least 1.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 5.

    Example::

        >>> import pyro.distributions as dist
        >>> from pyro_structured.distributions import RandOM
        >>> from pyro_structured.structures import SpanningTree
        >>> tree = SpanningTree(torch.tensor([[0, 1], [1, 2], [2, 0]]), 3)
        >>> d = RandOM(dist.Normal(torch.zeros(3), 1.0).to_event(1), tree, estimator=PlainMonteCarlo(10000))
        >>> d.estimate_log_prob(torch.tensor([1.0, 1.0, 0.0]))  # log(1 / 3) = -1.0986
        (tensor(-1.1...), tensor(0.01...))
    """

    def __init__(self, num_samples: int = 10000) -> None:
        check_size("num_samples", num_samples)
        self.num_samples = num_samples

    def __repr__(self) -> str:
        return f"PlainMonteCarlo(num_samples={self.num_samples})"

    @torch.no_grad()
    def estimate(self, base: Any, problem: Problem, value: Tensor) -> OptimumEstimate:
        """Estimates by shares of draws; arguments and result are those of :meth:`OptimumEstimator.estimate`."""
        costs = base.sample((self.num_samples,)).double()
        axes = tuple(range(-len(problem.event_shape), 0))
        hit = (problem.solve(costs) == value).all(axes)
        share = hit.double().mean(0)
        error = ((1 - share) / (share * self.num_samples)).sqrt()
        log_weights = torch.zeros_like(hit, dtype=torch.double).masked_fill(~hit, -torch.inf)
        return OptimumEstimate(share.log(), error, costs, log_weights)
