"""Log-probabilities of optima by splitting."""

__all__ = ["Splitting"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.optima.distributions.optimum_estimate import OptimumEstimate, OptimumEstimator
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import interior_point, sweep
from pyro_structured.optima.inference.independent_costs import ShiftedCosts
from pyro_structured.optima.inference.particle_groups import ParticleGroups, check_groups
from pyro_structured.optima.structures.problem import Problem

# Levels, each half as probable as the one before; doublings of a shift; and halvings of an interval.
LEVELS, DOUBLINGS, HALVINGS = 1000, 1000, 60


class Splitting(OptimumEstimator):
    r"""Estimates probabilities of optima by multilevel splitting, for any problem and any costs.

    .. math::
        A_\lambda = \{w : w + \lambda \delta \in F^{-1}(y)\}, \qquad
        A_\infty \supset \dots \supset A_{\lambda_t} \supset \dots \supset A_0 = F^{-1}(y),

    where :math:`\delta` are the costs that favour y most. Each level is the median of the least levels that the
    particles reach: the farther half is replaced by copies of the nearer one, and all are moved by sweeps of their
    exact conditional distributions inside :math:`A_\lambda`, which is the inverse set for shifted costs. So a
    probability of :math:`2^{-t}` takes t levels.

    Particles are in independent groups with levels of their own, whose spread tells the standard error of
    :math:`\log P(y)`: the jackknife's, times Student's factor. With moves that forget where they came from, the
    estimate of :math:`P(y)` is unbiased, and that of :math:`\log P(y)` too small by about half of its variance in the
    mean; more sweeps bring it closer to that. Values that no costs lead to have the estimate -inf, without an error.

    :param int num_particles: Number of particles for each value, at least two in a group.
    :param int num_groups: Number of independent groups, at least 2; divides the number of particles.
    :param int num_sweeps: Updates of all costs at each level.
    :param int num_lines: Lines of an update, for problems without closed-form restrictions.
    :raises ValueError: if numbers are of another kind.

    Memory is O(particles · costs) for each value. Each level takes the problem's sweeps for all particles, and one or
    two calls of its solver for each of them: milliseconds for paths and cuts, microseconds for matchings, sets and
    rankings. A ``LinearProblem`` needs coefficients of 0 and 1.

    **References**

    Guyader, Hengartner, Matzner-Løber (2011): Simulation and estimation of extreme quantiles and extreme
    probabilities. Applied Mathematics and Optimization 64. Au, Beck (2001): Estimation of small failure probabilities
    in high dimensions by subset simulation. Probabilistic Engineering Mechanics 16.

    Example::

        >>> import pyro.distributions as dist
        >>> from pyro_structured.distributions import RandOM
        >>> from pyro_structured.structures import TopK
        >>> base = dist.Normal(torch.tensor([2.0, 1.0, 0.0]), 1.0).to_event(1)
        >>> y = torch.tensor([1.0, 0.0, 0.0])
        >>> value, error = RandOM(base, TopK(3, 1), estimator=Splitting(400)).estimate_log_prob(y)
        >>> bool((value - RandOM(base, TopK(3, 1)).log_prob(y)).abs() < 5 * error)
        True
    """

    def __init__(
        self, num_particles: int = 1000, num_groups: int = 10, num_sweeps: int = 2, num_lines: int = 10
    ) -> None:
        # A level is the median of at least two particles.
        check_groups(num_particles, num_groups, 2)
        check_size("num_sweeps", num_sweeps)
        check_size("num_lines", num_lines)
        self.num_particles, self.num_groups = num_particles, num_groups
        self.num_sweeps, self.num_lines = num_sweeps, num_lines

    def __repr__(self) -> str:
        numbers = f"num_particles={self.num_particles}, num_groups={self.num_groups}"
        return f"Splitting({numbers}, num_sweeps={self.num_sweeps}, num_lines={self.num_lines})"

    @torch.no_grad()
    def estimate(self, base: Any, problem: Problem, value: Tensor) -> OptimumEstimate:
        """Estimates by splitting; arguments and result are those of :meth:`OptimumEstimator.estimate`."""
        batch, rank = value.shape[: value.dim() - len(problem.event_shape)], len(problem.cost_shape)
        shape = (self.num_groups, self.num_particles // self.num_groups)
        groups = ParticleGroups(shape, batch, value.device)
        costs = base.sample(shape).double()
        possible = interior_point(problem, value, costs[0, 0], *support_bounds(base))[1]
        if not bool(possible.all()):
            substitute = problem.solve(costs[0, 0]).to(value.dtype)
            value = value.where(_with_axes(possible, len(problem.event_shape)), substitute)
        conditionals, favour = cost_conditionals(base, rank), _favour(problem, value, _spread(costs, rank))
        level = _enough(problem, value, costs, favour)
        for _ in range(LEVELS):
            excess = _excess(problem, value, costs, favour, level)
            # The farther half are those from the median on.
            level = excess.sort(1, descending=True).values[:, (shape[1] - 1) // 2, None].clamp(min=0.0)
            alive = torch.where(level > 0, excess < level, excess <= 0)
            chosen = groups.reweight(torch.zeros_like(excess).masked_fill(~alive, -torch.inf))
            if chosen is not None:
                costs = costs.gather(1, _with_axes(chosen, rank).expand(costs.shape))
            added = (_with_axes(level, rank) * favour).expand(costs.shape)
            shifted = ShiftedCosts(conditionals, added.flatten(-rank).cpu())
            for _ in range(self.num_sweeps):
                costs = sweep(costs + added, value, problem, shifted, self.num_lines)[0] - added
            if not bool(level.any()):
                return groups.estimate(costs, batch).only(possible)
        raise RuntimeError(
            f"Splitting: expected particles to come nearer to their inverse sets, got stuck after {LEVELS} levels; use "
            "more sweeps or particles"
        )


def _spread(costs: Tensor, rank: int) -> Tensor:
    """Unit of each row's costs: their median absolute deviation, which the few largest of heavy tails do not change."""
    rows = costs.flatten(-rank).movedim(-1, 0).flatten(0, 2)
    deviation = (rows - rows.median(0).values).abs()
    spread = deviation.median(0).values
    # Most of the costs may be equal, by underflow or by their distribution.
    for instead in (deviation.amax(0), torch.ones_like(spread)):
        spread = torch.where(spread > 0, spread, instead)
    return spread


def _favour(problem: Problem, value: Tensor, unit: Tensor) -> Tensor:
    """Costs delta inside the inverse sets, far from their ends, which may be added to any costs."""
    low = torch.as_tensor(problem.cost_low, dtype=torch.double, device=value.device)
    far = _with_axes(unit, len(problem.cost_shape))
    return problem.feasible_point(value, torch.where(low.isinf(), -far, 0.0), far)


def _enough(problem: Problem, value: Tensor, costs: Tensor, favour: Tensor) -> Tensor:
    """Levels at which all costs are in the inverse sets, shape ``(groups, particles, ...)``; not the least ones."""
    rank = len(problem.cost_shape)
    level = torch.ones(costs.shape[: costs.dim() - rank], dtype=costs.dtype, device=costs.device)
    for _ in range(DOUBLINGS):
        inside = problem.contains(costs + _with_axes(level, rank) * favour, value)
        if bool(inside.all()):
            return level
        level = torch.where(inside, level, 2 * level)
    raise ValueError(f"value: expected values that costs of {type(problem).__name__} lead to, got others")


def _excess(problem: Problem, value: Tensor, costs: Tensor, favour: Tensor, level: Tensor) -> Tensor:
    """Least levels at which all costs are in the inverse sets, given levels that suffice, of the same shape."""
    rank = len(problem.cost_shape)
    if problem.is_linear:
        inside = costs + _with_axes(level, rank) * favour
        return level + problem.chord(inside, value, favour.expand(costs.shape))[0]
    least, most = torch.zeros((), dtype=costs.dtype, device=costs.device), level
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        suffices = problem.contains(costs + _with_axes(middle, rank) * favour, value)
        least, most = torch.where(suffices, least, middle), torch.where(suffices, middle, most)
    return most.masked_fill(problem.contains(costs, value), 0.0)


def _with_axes(tensor: Tensor, rank: int) -> Tensor:
    return tensor.reshape(tensor.shape + (1,) * rank)
