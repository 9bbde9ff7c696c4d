"""Curves through costs along which one coordinate of their noise is summed out while parameters move."""

__all__ = ["CostTrack", "cost_track"]

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.optima.inference.noncentered_costs import location_and_scale, noise_log_density
from pyro_structured.optima.ops.piecewise_exponential import PiecewiseExponential

Chord = Callable[[Tensor], tuple[Tensor, Tensor]]

# Deviation from a straight line that rounding explains, relative to the change.
STRAIGHT = {torch.float32: 1e-4, torch.float64: 1e-9}
# Distance of the places of a table, in standard deviations of normal noise; places on either side of the present one at
# first, and at most; and fall of the logarithm behind which nothing is tabulated.
SPACING, FIRST_PLACES, MOST_PLACES, DROP = 0.3, 40, 1280, 33.0
# Number of costs whose densities are asked for at once: as many as stay in fast memory.
AT_ONCE = 30_000


class CostTrack:
    r"""Costs of one site on curves through the present ones, one for each row, and their density as parameters move.

    Along a line of parameters, with distance t, either locations move, :math:`\mu + t v` with scales that stay, and
    curves are straight lines, :math:`w(x) = w + x v`; or the scale of each row grows, :math:`\sigma e^{c t}`, while
    locations stay, and curves are rays, :math:`w(x) = \mu + e^x (w - \mu)`. Both ways, the density of x at distance t,
    with the Jacobian of the curve, is one function of :math:`x - c t` (c = 1 for locations), tabulated here. The
    inverse set allows an interval of x. So x can be summed out of the density of t, and be drawn afterwards; what the
    table misses is known from densities of the draws.

    The places of the table of each row are a lattice with a random phase, so that from all points of a curve, the same
    tables are as likely, but for where they begin and end, which is where the density has fallen by exp(-33).

    :param base: Distribution of the costs at t = 0.
    :param Tensor costs: Present costs w, double precision, shape ``rows + cost_shape``; the batch shape of their
        distribution begins with ``rows``.
    :param Tensor change: v, zero where locations stay, the same shape.
    :param Tensor growth: c, the change of the logarithms of the scales, shape ``rows``; zero where scales stay.
    :param chord: Function from directions to both ends, of shape ``rows``, of the interval of distances s for which w
        plus s times the direction stays in the inverse set.
    :param dtype: Dtype whose rounding the parameters of the distribution show.

    A track takes 80 evaluations of the density of the costs, or some more in few dimensions, and one chord.
    """

    def __init__(
        self, base: Any, costs: Tensor, change: Tensor, growth: Tensor, chord: Chord, dtype: torch.dtype
    ) -> None:
        self._base, self._costs, self._change, self._growth, self._dtype = base, costs, change, growth, dtype
        self._axes = tuple(range(growth.dim(), costs.dim()))
        self._is_ray = not bool(change.any())
        self._loc, self._scale = _parameters(base, costs)
        self._direction = costs - self._loc if self._is_ray else change
        self._speed = growth if self._is_ray else torch.ones_like(growth)
        self._moves = (self._speed != 0) & (self._direction != 0).flatten(growth.dim()).any(-1)
        self._table: PiecewiseExponential | None = None
        if bool(self._moves.any()):
            self._noise, self._drift = (_divided(part, self._scale) for part in (costs - self._loc, change))
            self._log_density = noise_log_density(base)
            self._low, self._high = self._along(*chord(self._direction))
            self._table = self._tabulate()

    @property
    def is_complete(self) -> bool:
        """Whether no part of the density is missing in the table."""
        return self._table is not None or not bool(self._moves.any())

    def log_mass(self, distance: Tensor) -> Tensor:
        """Logarithm of the probability that x is in its interval in all rows, up to a constant, at distances t of shape
        ``(M,)``.
        """
        if self._table is None:
            return torch.zeros_like(distance)
        shift = self._speed.unsqueeze(-1) * distance
        mass = self._table.log_mass(self._low.unsqueeze(-1) - shift, self._high.unsqueeze(-1) - shift)
        return mass.masked_fill(~self._moves.unsqueeze(-1), 0.0).reshape(-1, len(distance)).sum(0)

    def draw(self, distance: float) -> tuple[Tensor, Tensor]:
        """Numbers x given the distance t, shape ``rows``, and the logarithm of their density."""
        if self._table is None:
            return torch.zeros_like(self._speed), self._speed.new_zeros(())
        shift = self._speed * distance
        place, log_density = self._table.draw(self._low - shift, self._high - shift)
        x = (place + shift).maximum(self._low).minimum(self._high)
        return x.masked_fill(~self._moves, 0.0), log_density.masked_fill(~self._moves, 0.0).sum()

    def log_density_here(self) -> Tensor:
        """Logarithm of the density with which :meth:`draw` gives the present costs, x = 0, at the distance t = 0."""
        if self._table is None:
            return self._speed.new_zeros(())
        log_density = self._table.log_density(torch.zeros_like(self._low), self._low, self._high)
        return log_density.masked_fill(~self._moves, 0.0).sum()

    def costs_at(self, x: Tensor) -> Tensor:
        """Costs w(x), shape ``rows + cost_shape``."""
        x = x.reshape(x.shape + (1,) * len(self._axes))
        return self._costs + (torch.expm1(x) if self._is_ray else x) * self._direction

    def log_weight(self, base: Any, x: Tensor) -> Tensor:
        """Logarithm of the density of costs w(x), given their distribution, and of the Jacobian; -inf outside of the
        support.
        """
        costs = self.costs_at(x)
        low, high = support_bounds(base)
        if not bool(((costs >= low) & (costs <= high)).all()):
            return x.new_full((), -torch.inf)
        weight: Tensor = base.log_prob(costs).sum() + (self._dimension() * x.masked_fill(~self._moves, 0.0)).sum()
        return weight

    def fits(self, base: Any, distance: float) -> bool:
        """Whether a distribution of costs at a distance t is the one that this track expects."""
        if not _is_alike(base, self._base):
            return False
        loc, scale = _parameters(base, self._costs)
        rounding = STRAIGHT[self._dtype] * max(1.0, abs(distance))
        growth = self._growth.reshape(self._growth.shape + (1,) * (scale.dim() - self._growth.dim()))
        bend = (loc - self._loc - distance * self._change).abs()
        is_straight = bool((bend <= rounding * (self._change.abs() + _deviations(self._scale, bend))).all())
        return is_straight and torch.allclose(scale, self._scale * torch.exp(distance * growth), rounding, 0.0)

    def _dimension(self) -> int:
        """Power of the radius in the Jacobian of a ray."""
        return math.prod(self._costs.shape[self._axes[0] :]) if self._is_ray else 0

    def _tabulate(self) -> PiecewiseExponential | None:
        """The density of x - c t on lattices whose phases are at random, or ``None`` if it does not fall to nothing."""
        spacing = self._spacing().unsqueeze(-1)
        phase = torch.rand_like(spacing)
        first, last = (end.unsqueeze(-1) for end in self._support())
        count = FIRST_PLACES
        while count <= MOST_PLACES:
            lattice = torch.arange(-count, count + 1, dtype=torch.double, device=spacing.device) + phase
            places = (lattice * spacing).maximum(first).minimum(last)
            heights = self._heights(places)
            least = heights.amax(-1, keepdim=True) - DROP
            is_low = (places[..., :1] <= first) | (heights[..., :1] < least)
            is_high = (places[..., -1:] >= last) | (heights[..., -1:] < least)
            if bool(((is_low & is_high).squeeze(-1) | ~self._moves).all()):
                return PiecewiseExponential.of(places, heights)
            count *= 2
        return None

    def _heights(self, places: Tensor) -> Tensor:
        """Logarithms of the density at t = 0 of x, shape ``rows + (P,)``, up to a constant."""
        slab = max(1, AT_ONCE // max(1, self._costs.numel()))
        heights = []
        for part in places.movedim(-1, 0).split(slab):
            x = part.reshape(part.shape + (1,) * len(self._axes))
            noise = self._noise * x.exp() if self._is_ray else self._noise + x * self._drift
            axes = tuple(axis + 1 for axis in self._axes)
            heights.append(self._log_density(noise).sum(axes) + self._dimension() * part)
        return torch.cat(heights).movedim(0, -1).masked_fill(~self._moves.unsqueeze(-1), 0.0)

    def _spacing(self) -> Tensor:
        """Distance of the places of each row, the same from all points of its curve."""
        if self._is_ray:
            deviation = torch.full_like(self._speed, (2 * self._dimension()) ** -0.5)
        else:
            deviation = (self._drift**2).sum(self._axes).masked_fill(~self._moves, 1.0).rsqrt()
        return SPACING * deviation

    def _support(self) -> tuple[Tensor, Tensor]:
        """Least and largest x - c t that the support of the costs allows."""
        low, high = support_bounds(self._base)
        rises = self._direction > 0
        steps = self._direction.masked_fill(self._direction == 0, torch.nan)
        first, last = ((torch.where(rises == is_last, high, low) - self._costs) / steps for is_last in (False, True))
        return self._along(
            first.nan_to_num(-torch.inf, neginf=-torch.inf).amax(self._axes),
            last.nan_to_num(torch.inf, posinf=torch.inf).amin(self._axes),
        )

    def _along(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Ends of x from those of the distance along the direction."""
        return (torch.log1p(low.clamp(min=-1.0)), torch.log1p(high)) if self._is_ray else (low, high)


def cost_track(
    base: Any, other: Any, distance: float, costs: Tensor, chord: Chord, rows: int, dtype: torch.dtype
) -> CostTrack | None:
    """The track of costs along a line of parameters, or ``None`` where neither locations nor scales stay, scales of a
    row grow by different factors, a distribution does not tell rows apart, or the family of costs has no tracks.

    :param base: Distribution of the costs at the present parameters.
    :param other: Distribution at other parameters of the line.
    :param float distance: Distance of these.
    :param Tensor costs: Present costs, double precision, shape ``rows + cost_shape``.
    :param chord: As for :class:`CostTrack`.
    :param int rows: Number of axes of rows.
    :param dtype: As for :class:`CostTrack`.
    """
    if location_and_scale(base) is None or not _is_alike(base, other) or len(base.batch_shape) < rows:
        return None
    (loc, scale), (other_loc, other_scale) = _parameters(base, costs), _parameters(other, costs)
    rounding = STRAIGHT[dtype]
    same_scale = torch.allclose(other_scale, scale, rtol=rounding, atol=0.0)
    same_loc = bool(((other_loc - loc).abs() <= rounding * _deviations(scale, loc)).all())
    if not same_scale and not same_loc:
        return None
    change = torch.zeros_like(costs) if same_loc else (other_loc - loc) / distance
    growth = costs.new_zeros(costs.shape[:rows])
    if not same_scale:
        factors = (other_scale / scale).masked_fill(scale == 0, 0.0).flatten(rows)
        factor = factors.amax(-1)
        alike = (factors - factor.unsqueeze(-1)).abs().masked_fill((scale == 0).flatten(rows), 0.0).amax(-1)
        if not bool((factor > 0).all()) or not bool((alike <= rounding * factor).all()):
            return None
        growth = factor.log() / distance
    track = CostTrack(base, costs, change, growth, chord, dtype)
    return track if track.is_complete else None


def _is_alike(base: Any, other: Any) -> bool:
    return type(entry_distribution(base)) is type(entry_distribution(other))


def _parameters(base: Any, costs: Tensor) -> tuple[Tensor, Tensor]:
    """Location and scale of costs that have them, expanded to all costs."""
    known = location_and_scale(base)
    assert known is not None
    loc, scale = known
    is_joint = isinstance(entry_distribution(base), MultivariateNormal)
    return loc.expand(costs.shape), scale.expand(costs.shape + costs.shape[-1:] if is_joint else costs.shape)


def _deviations(scale: Tensor, loc: Tensor) -> Tensor:
    """Scales of all costs, of the shape of their locations."""
    return torch.linalg.vector_norm(scale, dim=-1) if scale.dim() > loc.dim() else scale


def _divided(change: Tensor, scale: Tensor) -> Tensor:
    """Noise, or changes of the noise, that make changes of the costs."""
    if scale.dim() == change.dim():
        return change / scale
    solved: Tensor = torch.linalg.solve_triangular(scale, change.unsqueeze(-1), upper=False)
    return solved.squeeze(-1)
