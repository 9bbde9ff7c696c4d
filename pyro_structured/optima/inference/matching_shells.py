"""Costs of matchings that grow by one row and one column at a time."""

__all__ = ["BoundedNormals", "MatchingShells"]

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import sweep
from pyro_structured.optima.inference.independent_costs import NormalCosts, UniformCosts
from pyro_structured.optima.ops.exchange_distances import exchange_distances
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.piecewise_exponential import piecewise_exponential
from pyro_structured.optima.ops.truncated_normal import log_interval_mass, truncated_quantile
from pyro_structured.optima.structures.matching import Matching

# In units of the scale; the probability farther away is neglected.
REACH = 9.0


class BoundedNormals(NamedTuple):
    """Truncated normal variables, or uniform ones, whose scale is infinite; in double precision.

    :ivar Tensor loc: Locations.
    :ivar Tensor scale: Scales.
    :ivar Tensor low: Lower bounds, or -inf.
    :ivar Tensor high: Upper bounds, or +inf.
    :ivar Tensor log_mass: Logarithms of the probabilities between the bounds, or of the lengths of uniform variables.
    """

    loc: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    log_mass: Tensor

    @classmethod
    def between(cls, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> "BoundedNormals":
        """Variables with given bounds and their masses."""
        return cls(loc, scale, low, high, _log_mass(loc, scale, low, high))

    def at(self, *index: Any) -> "BoundedNormals":
        """The variables at an index."""
        return BoundedNormals(*(parameter[index] for parameter in self))

    def expanded(self, shape: torch.Size) -> "BoundedNormals":
        """The variables, expanded to another shape."""
        return BoundedNormals(*(parameter.expand(shape) for parameter in self))

    def negated(self) -> "BoundedNormals":
        """The variables with the opposite sign."""
        return BoundedNormals(-self.loc, self.scale, -self.high, -self.low, self.log_mass)

    @property
    def reach(self) -> tuple[Tensor, Tensor]:
        """Bounds outside of which a variable hardly ever is."""
        nearest = self.loc.maximum(self.low).minimum(self.high)
        distance = ((nearest - self.loc).square() + (REACH * self.scale).square()).sqrt()
        return (self.loc - distance).maximum(self.low), (self.loc + distance).minimum(self.high)

    def log_density(self, x: Tensor) -> Tensor:
        """Log-densities at ``x``; ``IMPOSSIBLE`` outside of the bounds."""
        flat = self.scale.isinf()
        scale = self.scale.masked_fill(flat, 1.0)
        height = -scale.log() - math.log(2 * math.pi) / 2
        log_values = (height - ((x - self.loc) / scale).square() / 2).masked_fill(flat, 0.0) - self.log_mass
        return log_values.masked_fill((x < self.low) | (x > self.high), IMPOSSIBLE)

    def log_above(self, bound: Tensor) -> Tensor:
        """Log-probabilities of more than a bound; ``IMPOSSIBLE`` for probabilities of 0."""
        if self._is_unbounded:
            log_tail: Tensor = torch.special.log_ndtr((self.loc - bound) / self.scale)
            return log_tail
        mass = _log_mass(self.loc, self.scale, bound.maximum(self.low).minimum(self.high), self.high)
        return (mass - self.log_mass).clamp(min=IMPOSSIBLE)

    def draw(self) -> Tensor:
        """Draws of the shape of the parameters."""
        if self._is_unbounded:
            return self.loc + self.scale * torch.randn_like(self.loc)
        return self.draw_above(self.low)

    def draw_above(self, bound: Tensor) -> Tensor:
        """Draws given that they exceed a bound."""
        flat, start = self.scale.isinf(), bound.maximum(self.low).minimum(self.high)
        loc, scale = self.loc.masked_fill(flat, 0.0), self.scale.masked_fill(flat, 1.0)
        share = torch.rand_like(start)
        normal = truncated_quantile(share, loc, scale, start, self.high)
        return torch.where(flat, start + (self.high - start) * share, normal).maximum(start).minimum(self.high)

    @property
    def _is_unbounded(self) -> bool:
        return bool((self.low == -torch.inf).all() & (self.high == torch.inf).all())


def _log_mass(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    flat = scale.isinf()
    loc, scale = loc.masked_fill(flat, 0.0), scale.masked_fill(flat, 1.0)
    return torch.where(flat, (high - low).log(), log_interval_mass((low - loc) / scale, (high - loc) / scale))


class MatchingShells:
    r"""Particles: costs of the first rows, and of their columns, for which these rows' part of a matching is optimal.

    With row j comes its column. The costs of other rows in the new column follow their distribution: no exchange
    without row j can use it. Then the row's own costs must satisfy :math:`w_{jc} - w_{jk} \le d_k` for its column c
    and all others k, where :math:`d_k` are the exchange distances. That has the probability

    .. math::
        \int p_{jc}(x) \prod_k P(w_{jk} \ge x - d_k) \, dx,

    the weight of a particle, estimated without bias from one draw that is close to the integrand; and given the matched
    cost, the others are independent. Columns of no row are there from the start.

    :param base: Distribution of the costs.
    :param Matching problem: The problem, of the batch shape of the values.
    :param Tensor value: Feasible matchings, shape ``(..., rows)``.
    :param shape: Numbers of groups, and of particles in each, for each matching.
    """

    def __init__(self, base: Any, problem: Matching, value: Tensor, shape: tuple[int, int]) -> None:
        family = cost_conditionals(base, 2)
        if not isinstance(family, (NormalCosts, UniformCosts)):
            raise NotImplementedError(
                "base: expected independent normal, truncated normal or uniform costs for ShellSMC, got "
                f"{type(base).__name__}; use Splitting"
            )
        (rows, columns), batch, device = problem.cost_shape, value.shape[:-1], value.device
        matched = value.long().reshape(-1, rows)
        taken = torch.zeros(len(matched), columns, dtype=torch.bool, device=device).scatter(-1, matched, True)
        spare = (~taken).nonzero()[:, 1].reshape(len(matched), columns - rows)
        # The columns of the rows come last, in their rows' order.
        self._order, self._spare = torch.cat([spare, matched], -1).unsqueeze(-2), columns - rows
        self._is_uniform = isinstance(family, UniformCosts)
        scale = torch.full_like(family.scale, torch.inf) if self._is_uniform else family.scale
        parameters = (parameter.to(device) for parameter in (family.loc, scale, family.low, family.high))
        arranged = [
            self._arranged(parameter.expand(*batch, -1).reshape(len(matched), rows, columns))
            for parameter in parameters
        ]
        entries = BoundedNormals.between(*arranged)
        self._entries = entries.negated() if problem.maximize else entries
        self._sign = -1.0 if problem.maximize else 1.0
        self._allowed = self._arranged(
            problem.allowed.to(device).expand(*batch, rows, columns).reshape(len(matched), rows, columns)
        )
        self._is_restricted = not bool(self._allowed.all())
        self._costs = torch.zeros(*shape, len(matched), rows, columns, dtype=torch.double, device=device)

    def __len__(self) -> int:
        return self._costs.shape[-2]

    def _arranged(self, matrix: Tensor) -> Tensor:
        return matrix.gather(-1, self._order.expand(matrix.shape))

    def grow(self, row: int) -> Iterator[Tensor]:
        """Adds a row and its column; yields the particles' log-weights, shape ``(groups, particles, matchings)``."""
        own = self._spare + row
        if row:
            column = self._entries.at(slice(None), slice(row), own)
            self._costs[..., :row, own] = column.expanded(self._costs.shape[:3] + (row,)).draw()
        matched, others = (self._entries.at(slice(None), row, place) for place in (own, slice(own)))
        slack = self._slack(row)

        def log_density(x: Tensor) -> Tensor:
            log_values = matched.log_density(x) + others.log_above(x.unsqueeze(-1) - slack).sum(-1)
            return log_values.clamp(min=IMPOSSIBLE)

        density = piecewise_exponential(log_density, *_bracket(matched, others, slack))
        x, log_q = density.draw(*density.ends)
        self._costs[..., row, own] = x
        if own:
            self._costs[..., row, :own] = others.draw_above(x.unsqueeze(-1) - slack)
        log_p = log_density(x.unsqueeze(0)).squeeze(0)
        yield (log_p - log_q).masked_fill(log_p <= IMPOSSIBLE, -torch.inf)

    def _slack(self, row: int) -> Tensor:
        """Exchange distances :math:`d_k`, by which the other costs of a row may be less than the matched one."""
        size, height, width = self._costs.shape[:3], row + 1, self._spare + row + 1
        allowed, device = self._allowed[:, :height, :width], self._costs.device
        costs = self._costs[..., :height, :width].masked_fill(~allowed, torch.inf).reshape(-1, height, width)
        assigned = torch.eye(height, width, dtype=torch.bool, device=device).roll(self._spare, -1)
        has_room = (torch.arange(width, device=device) < self._spare).expand(len(costs), -1)
        given_up = torch.full((len(costs), 1), width - 1, device=device)
        distances = exchange_distances(costs, assigned.expand(costs.shape), has_room, row, given_up)
        return distances.reshape(*size, width)[..., :-1].masked_fill(~allowed[:, row, :-1], torch.inf)

    def select(self, chosen: Tensor) -> None:
        """Replaces particles by others of their group."""
        self._costs = self._costs.gather(1, chosen[..., None, None].expand(self._costs.shape))

    def move(self, row: int) -> None:
        """One update of all costs so far."""
        height, width = row + 1, self._spare + row + 1
        costs = self._costs[..., :height, :width]
        entries = self._entries.at(slice(None), slice(height), slice(width))
        loc, scale, low, high = (parameter.flatten(-2).cpu() for parameter in entries.expanded(costs.shape)[:4])
        family = UniformCosts(low, high) if self._is_uniform else NormalCosts(loc, scale, low, high)
        problem = Matching(height, width, self._allowed[:, :height, :width] if self._is_restricted else None)
        costs.copy_(sweep(costs, torch.arange(self._spare, width, device=costs.device), problem, family, 1)[0])

    def finish(self) -> Tensor:
        """The costs of all particles, shape ``(*shape, matchings, rows, columns)``."""
        return self._costs.gather(-1, self._order.argsort(-1).expand(self._costs.shape)) * self._sign


def _bracket(matched: BoundedNormals, others: BoundedNormals, slack: Tensor) -> tuple[Tensor, Tensor]:
    """Interval that holds the matched cost, given that the others are larger, up to their slack."""
    (low, high), (others_low, _) = matched.reach, others.reach
    # To the left of all these the others do not matter, and the density of the matched cost is rising.
    first = _least(low, others_low + slack).maximum(matched.low)
    last = torch.maximum(high, first + 1e-3 * (high - low))
    return first, _least(last, others.high + slack).maximum(first)


def _least(bound: Tensor, others: Tensor) -> Tensor:
    return torch.cat([bound.expand(others.shape[:-1]).unsqueeze(-1), others], -1).amin(-1)
