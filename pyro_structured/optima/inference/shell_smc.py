"""Log-probabilities of optima by sequential Monte Carlo over growing problems."""

__all__ = ["ShellSMC"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.optima.distributions.optimum_estimate import OptimumEstimate, OptimumEstimator
from pyro_structured.optima.inference.matching_shells import MatchingShells
from pyro_structured.optima.inference.particle_groups import ParticleGroups, check_groups
from pyro_structured.optima.inference.ranking_shells import RankingShells
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.optima.structures.problem import Problem
from pyro_structured.optima.structures.ranking import Ranking


class ShellSMC(OptimumEstimator):
    r"""Estimates probabilities of matchings and rankings by sequential Monte Carlo over growing problems.

    .. math::
        P(y) = \prod_{j=1}^J P(w_{1:j} \in F_j^{-1}(y_{1:j}) \mid w_{1:j-1} \in F_{j-1}^{-1}(y_{1:j-1})),

    where the j-th problem has the first j rows of a matching and their columns, or the first j items of a ranking. Each
    shell of new costs is drawn from its exact conditional distribution, particles are weighted, resampled, and moved by
    one Gibbs sweep inside their inverse set, of a ranking's gaps. A ranking's next item may cost too little by a slack,
    which goes to zero in as many steps as it takes. The probability of some 1e-12 of a matching of 30 rows takes 500
    particles, that of some 1e-9 of a ranking of 10 items takes 400; plain draws would never meet them.

    The estimate of :math:`P(y)` is unbiased (up to a share of 1e-10 for each row, and to the dependence of rankings'
    slacks on the particles), so that of :math:`\log P(y)` is too small by about half of its variance in the mean.
    Particles are in independent groups, whose spread tells the standard error of :math:`\log P(y)`: the jackknife's,
    times Student's factor. Where it is larger than 0.5, neither it nor the estimate can be relied on, which an
    :class:`~pyro_structured.distributions.EstimateWarning` says: take more particles, another order of the rows, or
    :class:`~pyro_structured.inference.Splitting`.

    :param int num_particles: Number of particles for each value.
    :param int num_groups: Number of independent groups, at least 2; divides the number of particles.
    :raises ValueError: if numbers are of another kind.

    Costs must be independent normal, truncated normal or uniform variables for matchings, jointly normal for rankings.
    Memory is O(particles · costs) for each value; time O(particles · rows² · columns²) for a matching, most of it for
    sweeps, which the extra ``fast`` compiles, and O(particles · items³) for a ranking.

    **References**

    Del Moral, Doucet, Jasra (2006): Sequential Monte Carlo samplers. JRSS B 68. For rankings, without moves: Geweke,
    Hajivassiliou, Keane (1991).

    Example::

        >>> import pyro.distributions as dist
        >>> from pyro_structured.distributions import RandOM
        >>> from pyro_structured.structures import Matching
        >>> base = dist.Normal(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 1.0).to_event(2)
        >>> value, error = RandOM(base, Matching(2), estimator=ShellSMC(200)).estimate_log_prob(torch.tensor([0, 1]))
        >>> exact = RandOM(base, Matching(2)).log_prob(torch.tensor([0, 1]))
        >>> bool((value - exact).abs() < 5 * error)
        True
    """

    def __init__(self, num_particles: int = 1000, num_groups: int = 10) -> None:
        check_groups(num_particles, num_groups)
        self.num_particles, self.num_groups = num_particles, num_groups

    def __repr__(self) -> str:
        return f"ShellSMC(num_particles={self.num_particles}, num_groups={self.num_groups})"

    @torch.no_grad()
    def estimate(self, base: Any, problem: Problem, value: Tensor) -> OptimumEstimate:
        """Estimates for matchings and rankings; arguments and result are those of :meth:`OptimumEstimator.estimate`."""
        batch = value.shape[: value.dim() - len(problem.event_shape)]
        shape = (self.num_groups, self.num_particles // self.num_groups)
        shells: MatchingShells | RankingShells
        if isinstance(problem, Matching):
            shells = MatchingShells(base, problem, value, shape)
        elif isinstance(problem, Ranking):
            shells = RankingShells(base, problem, value, shape)
        else:
            raise NotImplementedError(
                f"problem: expected a Matching or a Ranking for ShellSMC, got {type(problem).__name__}; use Splitting"
            )
        groups = ParticleGroups(shape, torch.Size([batch.numel()]), value.device)
        for step in range(len(shells)):
            for increments in shells.grow(step):
                chosen = groups.reweight(increments)
                if chosen is not None:
                    shells.select(chosen)
                shells.move(step)
        return groups.estimate(shells.finish(), batch)
