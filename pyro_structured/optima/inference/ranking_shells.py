"""Costs of rankings that grow by one item at a time."""

__all__ = ["RankingShells"]

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.optima.ops.truncated_normal import truncated_quantile
from pyro_structured.optima.structures.ranking import Ranking

# In units of the scale: normal variables are larger than minus this number; steps to find a slack; and slacks after
# which there is none, whatever that does to the weights.
CERTAIN, HALVINGS, MOST_SLACKS = 10.0, 40, 100


class RankingShells:
    r"""Particles: normal costs of the first items of a ranking, in ascending order.

    The next item's cost is normal given those before it, and has to be larger than the last one, less a slack; the
    probability of that is the weight of a particle. The slack goes to zero as fast as half of the particles can follow:
    few would be left of an item that hardly ever comes last.

    :param base: Distribution of the costs: jointly or independently normal.
    :param Ranking problem: The problem, of the batch shape of the values.
    :param Tensor value: Rankings, shape ``(..., items)``.
    :param shape: Numbers of groups, and of particles in each, for each ranking.
    """

    def __init__(self, base: Any, problem: Ranking, value: Tensor, shape: tuple[int, int]) -> None:
        joint = _jointly_normal(base)
        if joint is None:
            raise NotImplementedError(
                f"base: expected normal costs for ShellSMC of rankings, got {type(base).__name__}; use Splitting, or, "
                "for independent costs, log_prob without an estimator"
            )
        count, batch = problem.num_items, value.shape[:-1]
        order = value.long().reshape(-1, count)
        self._order = order.flip(-1) if problem.maximize else order
        loc, covariance = (moment.double() for moment in joint)
        self._loc = loc.expand(*batch, -1).reshape(-1, count).gather(-1, self._order)
        covariance = covariance.expand(*batch, -1, -1).reshape(-1, count, count)
        rows = covariance.gather(-2, self._order.unsqueeze(-1).expand(covariance.shape))
        self._covariance = rows.gather(-1, self._order.unsqueeze(-2).expand(covariance.shape))
        self._tril = torch.linalg.cholesky(self._covariance)
        self._costs = torch.zeros(*shape, *self._loc.shape, dtype=torch.double, device=value.device)

    def __len__(self) -> int:
        return self._costs.shape[-1]

    def grow(self, step: int) -> Iterator[Tensor]:
        """Adds an item with less and less slack; yields log-factors of weights, ``(groups, particles, rankings)``.

        Particles may be selected and moved in between.
        """
        scale, self._slack = self._tril[:, step, step], torch.full_like(self._loc[:, 0], torch.inf)
        for remaining in reversed(range(MOST_SLACKS)):
            before = (self._costs[..., :step] - self._loc[:, :step]).unsqueeze(-1)
            noise = torch.linalg.solve_triangular(self._tril[:, :step, :step], before, upper=False).squeeze(-1)
            loc = self._loc[:, step] + (self._tril[:, step, :step] * noise).sum(-1)
            distance = (self._costs[..., step - 1] - loc) / scale if step else torch.full_like(loc, -torch.inf)
            slack = _least_slack(distance, self._slack) if remaining else torch.zeros_like(self._slack)
            self._costs[..., step] = loc + scale * _above(distance - slack)
            increments = _log_above(distance - slack) - _log_above(distance - self._slack)
            self._slack = slack
            yield increments
            if not bool(slack.any()):
                break

    def select(self, chosen: Tensor) -> None:
        """Replaces particles by others of their group."""
        self._costs = self._costs.gather(1, chosen.unsqueeze(-1).expand(self._costs.shape))

    def move(self, step: int) -> None:
        """One update of all costs so far, of which the last may be too small by the slack.

        From each item on all costs move together: in turn, every gap between neighbours is drawn given all others.
        """
        size = step + 1
        added = torch.zeros_like(self._loc[:, :size])
        added[:, step] = self._slack * self._tril[:, step, step]
        costs, loc = self._costs[..., :size] + added, self._loc[:, :size] + added
        together = self._covariance[:, :size, :size].inverse().flip(-1).cumsum(-1).flip(-1)
        for first in range(size):
            along = together[..., first]
            curvature = along[..., first:].sum(-1)
            mean = (along * (loc - costs)).sum(-1) / curvature
            closed = (costs[..., first - 1] - costs[..., first]).clamp(max=0.0)
            low = closed if first else torch.full_like(mean, -torch.inf)
            distance = mean + curvature.rsqrt() * _above((low - mean) * curvature.sqrt())
            costs[..., first:] += distance.maximum(low).unsqueeze(-1)
        self._costs[..., :size] = costs - added

    def finish(self) -> Tensor:
        """The costs of all particles, shape ``(*shape, rankings, items)``."""
        return self._costs.gather(-1, self._order.argsort(-1).expand(self._costs.shape))


def _least_slack(distance: Tensor, before: Tensor) -> Tensor:
    """Least slacks, shape ``(N,)``, that keep half of the particles effective, in the mean over the groups.

    :param Tensor distance: Distances of the bounds from the locations in units of the scale, shape
        ``(groups, particles, N)``.
    :param Tensor before: Present slacks, shape ``(N,)``.
    """
    present = _log_above(distance - before)

    def suffices(slack: Tensor) -> Tensor:
        weights = (_log_above(distance - slack) - present).softmax(1)
        return 1 / weights.square().sum(1).mean(0) >= distance.shape[1] / 2

    none = torch.zeros_like(before)
    least, most = none, torch.minimum(before, distance.amax((0, 1)).clamp(min=0.0) + CERTAIN)
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        good = suffices(middle)
        least, most = torch.where(good, least, middle), torch.where(good, middle, most)
    return torch.where(suffices(none), none, most)


def _log_above(bound: Tensor) -> Tensor:
    log_tail: Tensor = torch.special.log_ndtr(-bound)
    return log_tail


def _above(bound: Tensor) -> Tensor:
    """Draws of standard normal variables given that they exceed a bound."""
    zero = torch.zeros_like(bound)
    return truncated_quantile(torch.rand_like(bound), zero, zero + 1, bound, zero + torch.inf)


def _jointly_normal(base: Any) -> tuple[Tensor, Tensor] | None:
    """Mean and covariance matrix of normal costs, independent or joint; ``None`` for others."""
    if isinstance(base, MultivariateNormal):
        return base.loc, base.covariance_matrix
    entry = entry_distribution(base)
    return (entry.loc, torch.diag_embed(entry.scale**2)) if isinstance(entry, Normal) else None
