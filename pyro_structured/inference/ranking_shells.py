"""Costs of rankings that grow by one item at a time."""

__all__ = ["RankingShells"]

from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from pyro_structured.distributions.entries import entry_distribution
from pyro_structured.inference.bounded_normals import BoundedNormals
from pyro_structured.inference.cost_conditionals import GaussianCosts
from pyro_structured.inference.cost_sweep import sweep
from pyro_structured.structures.ranking import Ranking


class RankingShells:
    r"""Particles: normal costs of the first items of a ranking, in ascending order.

    The next item's cost is normal given those before it, and has to be larger than the last one; the probability of
    that is the weight of a particle.

    :param base: Distribution of the costs: jointly or independently normal.
    :param Ranking problem: Of the same batch shape as the values.
    :param Tensor value: Rankings, shape ``(..., items)``.
    :param shape: Of the particles of each ranking.
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
        loc, covariance = (each.double() for each in joint)
        self._loc = loc.expand(*batch, -1).reshape(-1, count).gather(-1, self._order)
        covariance = covariance.expand(*batch, -1, -1).reshape(-1, count, count)
        rows = covariance.gather(-2, self._order.unsqueeze(-1).expand(covariance.shape))
        self._covariance = rows.gather(-1, self._order.unsqueeze(-2).expand(covariance.shape))
        self._tril = torch.linalg.cholesky(self._covariance)
        self._costs = torch.zeros(*shape, *self._loc.shape, dtype=torch.double, device=value.device)

    def __len__(self) -> int:
        return self._costs.shape[-1]

    def grow(self, step: int) -> Tensor:
        """Adds an item; the logarithms of the particles' weights."""
        before = (self._costs[..., :step] - self._loc[:, :step]).unsqueeze(-1)
        noise = torch.linalg.solve_triangular(self._tril[:, :step, :step], before, upper=False).squeeze(-1)
        loc = self._loc[:, step] + (self._tril[:, step, :step] * noise).sum(-1)
        unbounded = torch.full_like(loc, torch.inf)
        scale = self._tril[:, step, step].expand(loc.shape)
        entry = BoundedNormals(loc, scale, -unbounded, unbounded, torch.zeros_like(loc))
        bound = self._costs[..., step - 1] if step else -unbounded
        self._costs[..., step] = entry.draw_above(bound)
        return entry.log_above(bound)

    def select(self, chosen: Tensor) -> None:
        """Replaces particles by others of their group."""
        self._costs = self._costs.gather(1, chosen.unsqueeze(-1).expand(self._costs.shape))

    def move(self, step: int) -> None:
        """One update of all costs so far."""
        size = step + 1
        part, covariance = self._costs[..., :size], self._covariance[:, :size, :size]
        conditionals = GaussianCosts(self._loc[:, :size], covariance.inverse(), self._tril[:, :size, :size])
        part.copy_(sweep(part, torch.arange(size, device=part.device), Ranking(size), conditionals, 1)[0])

    def finish(self) -> Tensor:
        """The costs of all particles, shape ``(*shape, rankings, items)``."""
        return self._costs.gather(-1, self._order.argsort(-1).expand(self._costs.shape))


def _jointly_normal(base: Any) -> tuple[Tensor, Tensor] | None:
    """Mean and covariance matrix."""
    if isinstance(base, MultivariateNormal):
        return base.loc, base.covariance_matrix
    entry = entry_distribution(base)
    return (entry.loc, torch.diag_embed(entry.scale**2)) if isinstance(entry, Normal) else None
