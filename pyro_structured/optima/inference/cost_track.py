"""Curves through costs along which one coordinate of their noise is summed out while parameters move."""

__all__ = ["CostTrack", "cost_track"]

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from pyro.distributions import InverseGamma
from torch import Tensor
from torch.distributions import (
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    LogNormal,
    MultivariateNormal,
    Uniform,
    Weibull,
)

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
from pyro_structured.optima.inference.bounded_track import (
    BoundedPath,
    BoundedTrack,
    log_mass_between,
    reach_of,
)
from pyro_structured.optima.inference.noncentered_costs import (
    location_and_scale,
    noise_curvature,
    noise_family,
    noise_log_density,
    noise_shape,
)
from pyro_structured.optima.ops.density_family import DensityFamily
from pyro_structured.optima.ops.piecewise_exponential import PiecewiseExponential

# Deviation from a straight line that rounding explains, relative to the change.
STRAIGHT = {torch.float32: 1e-4, torch.float64: 1e-9}
# Distance of the places of a table, in standard deviations of normal noise; places on either side of the middle one at
# first, and at most; falls of the logarithm behind which nothing is tabulated, and behind which intervals are tails.
SPACING, FIRST_PLACES, MOST_PLACES, DROP, TAIL = 0.3, 56, 1792, 33.0, 16.0
# Rounds of the search for a mode that is not next to the present costs; share of the noise, and of the distances of
# ends of tails, of which differences of densities have digits; and share of the spacing over which tails are straight.
ROUNDS, APART, SHORT = 100, 2.0**-30, 2.0**-10
# Families whose sums of log-densities along lines have many modes.
HEAVY_TAILED = (DensityFamily.STUDENT, DensityFamily.CAUCHY)
# Ends of tables from which inverse sets are looked for are so many times as far from the mode.
BEYOND = 2.0**16
# Number of costs whose densities are asked for at once: as many as stay in fast memory.
AT_ONCE = 30_000
# Numbers of places at which densities along a line are tabulated.
PLACES, FEW_PLACES = 33, 17
# Number of uniform costs of a row with which a curve along all of them leaves room enough.
FEW_COSTS = 8
# Largest logarithm of the growth of a scale: products of larger scales would overflow.
MOST_GROWTH = 300.0
# Logarithm of the growth of noise below which present costs and their change cancel.
SHRUNK = -1.0


class _Tails(NamedTuple):
    """Densities that fall exponentially from the ends of intervals, tensors of one shape.

    :ivar Tensor is_tail: Whether intervals are tails; the rest holds for those alone.
    :ivar Tensor end: The likeliest end.
    :ivar Tensor sign: Direction of the other one.
    :ivar Tensor slope: Fall of the logarithm of the density.
    :ivar Tensor width: Widths, infinite ones included.
    :ivar Tensor log_mass: Logarithm of the integral.
    """

    is_tail: Tensor
    end: Tensor
    sign: Tensor
    slope: Tensor
    width: Tensor
    log_mass: Tensor

    def draw(self) -> Tensor:
        """Numbers of the intervals."""
        uniform = torch.rand_like(self.end)
        return self.end - self.sign * torch.log1p(uniform * torch.expm1(-self.slope * self.width)) / self.slope

    def log_density(self, x: Tensor) -> Tensor:
        """Logarithm of the normalised density."""
        inside = torch.log(-torch.expm1(-self.slope * self.width))
        return self.slope.log() - inside - self.slope * (x - self.end).abs()


class CostTrack:
    r"""Costs of one site on curves through the present ones, one for each row, and their density as parameters move.

    Along a line of parameters, with distance t, locations move, :math:`\mu + t v`, or scales grow, :math:`\sigma
    e^{c t}`. Costs are :math:`w(x, t) = \mu + t v + e^{c t} (e^{r x} (w - \mu) + x u)`, of which either r or u is zero:
    x multiplies noise, or is added to it. The density of x, with the Jacobian of the curve, is the same at all t,
    tabulated here. The inverse set allows an interval of x, which depends on t. So x can be summed out of the density
    of t, and be drawn afterwards; what the table misses is known from densities of the draws.

    Where locations move and scales stay, or scales of a row grow alike and locations stay, the curve is that of the
    costs as t moves, u = v or r = c: the interval of x + t is the same for all t then. Elsewhere, x moves the costs
    alone that the optimum incurs, which has to be of zeros and ones, and a chord is asked for at each t; as it is where
    many uniform costs would leave x little room along the other curve, as none of a row may leave its bounds.

    Bounds of truncated normal costs move as their locations and scales would move them, or stay. Those that stay leave
    an interval of x, as inverse sets do, and the probability between bounds, a function of t, divides the density.
    Where bounds stay while x moves along the incidence of optima, or move by themselves, there is another track, a
    :class:`~pyro_structured.optima.inference.bounded_track.BoundedTrack`.

    The places of the table of each row are a lattice with a random phase, so that from all points of a curve, the same
    tables are as likely. They begin and end where the density has fallen by exp(-33). Intervals all of which is below
    exp(-16) have a density that falls exponentially from the likeliest end instead, so that chains leave places where
    costs are improbable. Additive noise of Student's and Cauchy costs, whose density has many modes, has no tables
    farther than 537 scales from its mode.

    :param base: Distribution of the costs at t = 0.
    :param Tensor costs: Present costs w, double precision, shape ``rows + cost_shape``; the batch shape of their
        distribution begins with ``rows``.
    :param Tensor change: v, zero where locations stay, the same shape.
    :param Tensor growth: c, the change of the logarithms of the scales, the same shape; zero where scales stay.
    :param BoundedPath path: Locations, scales and bounds of truncated normal costs; ``None`` for others.
    :param Problem problem: The problem.
    :param Tensor value: Optima of the costs.
    :param incidence: Incidence of the optima of all rows, of the shape of the costs, if these are to move along it;
        ``None``: costs move as the parameters move them.
    :param dtype: Dtype whose rounding the parameters of the distribution show.

    A track takes 113 evaluations of the density of the costs, or some more in few dimensions or if present costs are
    improbable, and, as soon as it is asked for masses, one chord, or a chord for each t along the incidence of optima,
    and two evaluations for each t if there are tails.

    :ivar int num_places: Number of places at which densities along the line are to be tabulated.
    """

    def __init__(
        self,
        base: Any,
        costs: Tensor,
        change: Tensor,
        growth: Tensor,
        path: BoundedPath | None,
        problem: Any,
        value: Tensor,
        incidence: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        self._base, self._costs, self._change, self._growth, self._dtype = base, costs, change, growth, dtype
        self._path, self._incidence = path, incidence
        self._is_apart = path is not None and path.is_apart
        self._step, self._rate = change, growth
        # Fewer where each takes more work: a chord, or the probabilities between bounds.
        self.num_places = PLACES if incidence is None and not self._is_apart else FEW_PLACES
        self._axes = tuple(range(costs.dim() - len(problem.cost_shape), costs.dim()))
        self._loc, self._scale = _parameters(base, costs)
        self._offset = costs - self._loc
        self._grows = self._multiplies = bool(growth.any())
        if incidence is not None:
            none = torch.zeros_like(costs)
            # Positive noise has more room in multiples of it.
            self._multiplies = self._grows and _is_positive(base) and _is_scalable(problem)
            step = none if self._multiplies else incidence * _deviations(self._scale, costs)
            self._step, self._rate = step, incidence if self._multiplies else none
        direction = self._rate * self._offset if self._multiplies else self._step
        self._moves = (direction != 0).flatten(self._axes[0]).any(-1)
        self._volume = self._rate.sum(self._axes)
        self._table: PiecewiseExponential | None = None
        if bool(self._moves.any()):
            self._noise, self._drift = (_divided(part, self._scale) for part in (self._offset, self._step))
            self._table = self._tabulate()
        self._problem, self._value = problem, value

    @cached_property
    def _bounded(self) -> BoundedPath:
        """The path of costs with bounds of their own."""
        assert self._path is not None
        return self._path.of(self._path.has_low | self._path.has_high)

    @property
    def is_complete(self) -> bool:
        """Whether no part of the density is missing in the table."""
        return self._table is not None or not bool(self._moves.any())

    def log_mass(self, distance: Tensor) -> Tensor:
        """Logarithm of the probability that x is in its interval in all rows, up to a constant, at distances t of shape
        ``(M,)``.
        """
        distance = distance.to(self._costs.device)
        if self._table is None:
            return torch.zeros_like(distance)
        ends = self._ends_at(distance)
        mass, tails = self._table.log_mass(*ends), self._tails(*ends)
        mass = mass if tails is None else torch.where(tails.is_tail, tails.log_mass, mass)
        total = mass.masked_fill(~self._moves.unsqueeze(-1), 0.0).reshape(-1, len(distance)).sum(0)
        return total - self._log_normaliser(distance) if self._is_apart else total

    def draw(self, distance: float) -> tuple[Tensor, Tensor]:
        """Numbers x given the distance t, shape ``rows``, and the logarithm of their density."""
        if self._table is None:
            return self._costs.new_zeros(self._moves.shape), self._costs.new_zeros(())
        ends = self._ends_at(self._costs.new_tensor([distance]))
        low, high = (end.squeeze(-1) for end in ends)
        place, log_density = self._table.draw(low, high)
        tails = self._tails(*ends)
        if tails is not None:
            drawn = tails.draw()
            place = torch.where(tails.is_tail, drawn, place.unsqueeze(-1)).squeeze(-1)
            log_density = torch.where(tails.is_tail, tails.log_density(drawn), log_density.unsqueeze(-1)).squeeze(-1)
        x = place.maximum(low).minimum(high)
        return x.masked_fill(~self._moves, 0.0), log_density.masked_fill(~self._moves, 0.0).sum()

    def log_density_here(self) -> Tensor:
        """Logarithm of the density with which :meth:`draw` gives the present costs, x = 0, at the distance t = 0."""
        if self._table is None:
            return self._costs.new_zeros(())
        ends = self._ends_at(self._costs.new_zeros(1))
        here = torch.zeros_like(self._volume)
        log_density, tails = self._table.log_density(here, *(end.squeeze(-1) for end in ends)), self._tails(*ends)
        if tails is not None:
            known = tails.log_density(here.unsqueeze(-1)).squeeze(-1)
            log_density = torch.where(tails.is_tail.squeeze(-1), known, log_density)
        return log_density.masked_fill(~self._moves, 0.0).sum()

    def costs_at(self, x: Tensor, distance: float) -> Tensor:
        """Costs w(x, t), shape ``rows + cost_shape``."""
        x = x.reshape(x.shape + (1,) * len(self._axes))
        costs = self._costs + distance * self._change
        if not self._grows:
            return costs + x * self._step
        growth = distance * self._growth
        total = growth + x * self._rate
        # At no distance, costs are the present ones to the last digit.
        moved = torch.where(
            total < SHRUNK,
            self._loc + distance * self._change + torch.exp(total) * self._offset,
            costs + torch.expm1(total) * self._offset,
        )
        return moved + torch.exp(growth) * x * self._step

    def log_weight(self, base: Any, x: Tensor, distance: float) -> Tensor:
        """Logarithm of the density of costs w(x, t), given their distribution, and of the Jacobian; -inf outside of the
        support.
        """
        costs = self.costs_at(x, distance)
        if not bool(entry_distribution(base).support.check(costs).all()):
            return x.new_full((), -torch.inf)
        weight: Tensor = base.log_prob(costs).sum()
        if not self._grows:
            return weight
        return weight + distance * self._growth.sum() + (self._volume * x.masked_fill(~self._moves, 0.0)).sum()

    def fits(self, base: Any, distance: float) -> bool:
        """Whether a distribution of costs at a distance t is the one that this track expects."""
        if not _is_alike(base, self._base, STRAIGHT[self._dtype]):
            return False
        loc, scale = _parameters(base, self._costs)
        rounding = STRAIGHT[self._dtype] * max(1.0, abs(distance))
        growth = self._growth.reshape(self._growth.shape + (1,) * (scale.dim() - loc.dim()))
        bend = (loc - self._loc - distance * self._change).abs()
        is_straight = bool((bend <= rounding * (self._change.abs() + _deviations(self._scale, bend))).all())
        if not is_straight or not torch.allclose(scale, self._scale * torch.exp(distance * growth), rounding, 0.0):
            return False
        return self._path is None or self._path.leads_to(base, distance, rounding)

    def _ends_at(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Ends of the intervals of x at distances t of shape ``(M,)``, shape ``rows + (M,)``."""
        if self._incidence is None:
            low, high = (end.unsqueeze(-1) - distance for end in self._ends)
            return low, high
        # From where the optimum is the surest: if it is no optimum there, it is nowhere one, and chords have no length.
        t = distance.reshape(distance.shape + (1,) * self._costs.dim())
        factor = torch.exp((t * self._growth).clamp(-MOST_GROWTH, MOST_GROWTH)) if self._grows else torch.ones_like(t)
        loc, offset = self._loc + t * self._change, factor * self._offset
        if self._multiplies:
            end = self._end_of_multiples(loc + offset * (1 - self._incidence), offset * self._incidence)
        else:
            surest = self._high if self._problem.maximize else self._low
            origin = self._mode + BEYOND * (surest - self._mode)
            origin = origin.maximum(self._first).minimum(self._last).squeeze(-1)
            direction, sign = factor * self._step, -1 if self._problem.maximize else 1
            start = loc + offset + origin.reshape(origin.shape + (1,) * len(self._axes)) * direction
            forth, is_far = reach_of(self._problem, start, self._value, sign * direction)
            end = origin + sign * forth
            nowhere = is_far | (end == origin)
            end = end.masked_fill(nowhere, torch.inf if self._problem.maximize else -torch.inf)
        low, high = torch.full_like(end, -torch.inf), torch.full_like(end, torch.inf)
        low, high = (end, high) if self._problem.maximize else (low, end)
        return low.movedim(0, -1).contiguous(), high.movedim(0, -1).contiguous()

    def _end_of_multiples(self, rest: Tensor, noise: Tensor) -> Tensor:
        """The x at which the optimum of costs, a rest and :math:`e^x` times noise that it incurs, is one no longer.

        Optima are the surest without noise, or, of maximal costs, without the rest: from there on, multiples of the one
        or of the other keep all digits.
        """
        start, direction = (noise, rest) if self._problem.maximize else (rest, noise)
        forth, is_far = reach_of(self._problem, start, self._value, direction)
        end = forth.masked_fill(is_far, 0.0).log()
        return -end if self._problem.maximize else end

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """Ends of the interval of x + t that the inverse set allows, and bounds that stay."""
        low, high = self._inverse_set_ends()
        if self._path is None or not self._is_apart:
            return low, high
        first, last = self._interval(*self._bounds(self._path.has_low, self._path.has_high), self._costs, self._step)
        return torch.maximum(low, first), torch.minimum(high, last)

    def _inverse_set_ends(self) -> tuple[Tensor, Tensor]:
        problem, value = self._problem, self._value
        if not self._grows:
            low, high = problem.chord(self._costs, value, self._change)
            return low, high
        low, high = problem.chord(self._costs, value, self._offset)
        rate = self._growth.amax(self._axes)
        rate = rate.masked_fill(rate == 0, 1.0)
        ends = torch.log1p(low.clamp(min=-1.0)) / rate, torch.log1p(high) / rate
        return torch.minimum(*ends), torch.maximum(*ends)

    def _tabulate(self) -> PiecewiseExponential | None:
        """The density of x on lattices whose phases are at random, or ``None`` if it does not fall to nothing."""
        spacing = self._spacing().unsqueeze(-1)
        path = self._path
        bounds = support_bounds(self._base) if path is None else self._bounds(~path.has_low, ~path.has_high)
        ends = self._interval(*bounds, self._costs, self._step)
        self._first, self._last = (end.unsqueeze(-1) for end in ends)
        table = self._tabulate_around(torch.zeros_like(spacing), spacing)
        # Elsewhere other modes would be missed.
        if table is None and (self._multiplies or noise_family(self._base) not in HEAVY_TAILED):
            if not self._multiplies:
                # Nearer places have the same density, up to rounding.
                size = torch.linalg.vector_norm(self._noise.flatten(self._axes[0]), dim=-1, keepdim=True)
                spacing = spacing * (APART * size).clamp(min=1.0)
            table = self._tabulate_around(self._search(spacing), spacing)
        return table

    def _tabulate_around(self, middle: Tensor, spacing: Tensor) -> PiecewiseExponential | None:
        phase, count = torch.rand_like(spacing), FIRST_PLACES
        self._width = spacing
        while count <= MOST_PLACES:
            lattice = torch.arange(-count, count + 1, dtype=torch.double, device=spacing.device) + phase
            places = ((middle / spacing).round() + lattice) * spacing
            places = places.maximum(self._first).minimum(self._last)
            heights = self._heights(places)
            top, likeliest = heights.max(-1, keepdim=True)
            first, last = _around(heights >= top - DROP)
            is_low = (first >= 0) | (places[..., :1] <= self._first)
            is_high = (last <= 2 * count) | (places[..., -1:] >= self._last)
            if bool(((is_low & is_high).squeeze(-1) | ~self._moves).all()):
                indices = torch.cat([likeliest, *_around(heights >= top - TAIL)], -1).clamp(0, 2 * count)
                self._mode, self._low, self._high = places.gather(-1, indices).split(1, -1)
                # The same table from all points of a curve.
                inside = torch.arange(2 * count + 1, device=heights.device).maximum(first.clamp(min=0))
                inside = inside.minimum(last.clamp(max=2 * count))
                return PiecewiseExponential.of(places.gather(-1, inside), heights.gather(-1, inside))
            count *= 2
        return None

    def _search(self, spacing: Tensor) -> Tensor:
        """Modes of the density of x, up to the spacing."""
        lattice = torch.arange(-FIRST_PLACES, FIRST_PLACES + 1, dtype=torch.double, device=spacing.device)
        middle, step = torch.zeros_like(spacing), spacing * FIRST_PLACES
        for _ in range(ROUNDS):
            places = (middle + step * lattice).maximum(self._first).minimum(self._last)
            likeliest = self._heights(places).argmax(-1, keepdim=True)
            middle = places.gather(-1, likeliest)
            is_inside = (likeliest > 0) & (likeliest < len(lattice) - 1)
            is_inside = is_inside | (middle <= self._first) | (middle >= self._last)
            is_found = is_inside & (step <= spacing)
            if bool((is_found.squeeze(-1) | ~self._moves).all()):
                break
            step = torch.where(is_found, step, torch.where(is_inside, step * 2 / FIRST_PLACES, step * FIRST_PLACES))
        return middle

    def _tails(self, low: Tensor, high: Tensor) -> _Tails | None:
        """Densities in intervals that are tails, of ends of shape ``rows + (M,)``; ``None`` where no row has any."""
        is_above, is_below = low > self._high, high < self._low
        is_tail = (is_above | is_below) & self._moves.unsqueeze(-1)
        if not bool(is_tail.any()):
            return None
        low, high = low.maximum(self._first), high.minimum(self._last)
        is_tail = is_tail & (low < high)
        end = torch.where(is_tail, torch.where(is_above, low, high), self._mode)
        sign = torch.where(is_above, 1.0, -1.0).to(end)
        step = torch.maximum(self._width * SHORT, APART * (end - self._mode).abs())
        further = (end + sign * step).maximum(self._first).minimum(self._last)
        here, there = self._heights(torch.cat([end, further], -1)).chunk(2, -1)
        step = (further - end).abs()
        tiny = torch.finfo(step.dtype).tiny
        slope = ((here - there) / step.clamp(min=tiny)).nan_to_num(0.0)
        # Next to another mode, less likely than the table's, nothing is known of the rest.
        is_falling = slope > 0
        slope, width = slope.clamp(min=tiny), high - low
        log_mass = (here + torch.log(-torch.expm1(-slope * width)) - slope.log()).masked_fill(~is_falling, -torch.inf)
        return _Tails(is_tail, end, sign, slope, width, log_mass)

    def _heights(self, places: Tensor) -> Tensor:
        """Logarithms of the density at t = 0 of x, shape ``rows + (P,)``, up to constants of the rows."""
        run = compiled_function("optima.ops.compiled_noise", "noise_heights")
        if run is not None and self._costs.device.type == "cpu":
            return self._compiled_heights(run, places)
        log_density = noise_log_density(self._base)
        slab = max(1, AT_ONCE // max(1, self._costs.numel()))
        heights = []
        for part in places.movedim(-1, 0).split(slab):
            x = part.reshape(part.shape + (1,) * len(self._axes))
            noise = self._noise * torch.exp(self._rate * x) if self._multiplies else self._noise + x * self._drift
            axes = tuple(axis + 1 for axis in self._axes)
            heights.append(log_density(noise).sum(axes) + self._volume * part)
        return torch.cat(heights).movedim(0, -1).masked_fill(~self._moves.unsqueeze(-1), 0.0)

    def _compiled_heights(self, run: Callable[..., Any], places: Tensor) -> Tensor:
        shape, heights = noise_shape(self._base), torch.empty_like(places)
        change = self._rate if self._multiplies else self._drift
        entries = [self._noise, change, self._noise if shape is None else shape]
        count = self._moves.numel()
        run(
            int(noise_family(self._base)),
            self._multiplies,
            *(part.expand(self._costs.shape).reshape(count, -1).numpy() for part in entries),
            self._volume.reshape(count).numpy(),
            *(part.view(count, -1).numpy() for part in (places, heights)),
        )
        return heights

    def _spacing(self) -> Tensor:
        """Distance of the places of each row, the same from all points of its curve."""
        curvature = noise_curvature(self._base) * self._rate**2 if self._multiplies else self._drift**2
        return SPACING * curvature.sum(self._axes).masked_fill(~self._moves, 1.0).rsqrt()

    def _bounds(self, has_low: Tensor, has_high: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of some of the costs, and infinite ones of the others."""
        low, high = support_bounds(self._base)
        return torch.where(has_low, low, -torch.inf), torch.where(has_high, high, torch.inf)

    def _interval(self, low: Tensor, high: Tensor, costs: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Least and largest x with which costs are between bounds, from costs at x = 0 and their change with x, if it
        is the same everywhere.
        """
        if not bool((low.isfinite() | high.isfinite()).any()):
            nowhere = torch.full_like(self._volume, torch.inf)
            return -nowhere, nowhere
        if self._multiplies:
            # Costs move away from their location, or towards it: between the farther bound, and the nearer one if the
            # location is not between them.
            is_above, size = self._offset > 0, self._offset.abs()
            farther = torch.where(is_above, high - self._loc, self._loc - low) / size
            nearer = torch.where(is_above, low - self._loc, self._loc - high) / size
            rises, steps = self._rate > 0, self._rate.masked_fill(self._rate == 0, torch.nan)
            first, last = (torch.where(rises == is_last, farther, nearer).log() / steps for is_last in (False, True))
        else:
            rises, steps = step > 0, step.masked_fill(step == 0, torch.nan)
            first, last = ((torch.where(rises == is_last, high, low) - costs) / steps for is_last in (False, True))
        axes = tuple(range(-len(self._axes), 0))
        return (
            first.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(axes),
            last.nan_to_num(torch.inf, torch.inf, -torch.inf).amin(axes),
        )

    def _log_normaliser(self, distance: Tensor) -> Tensor:
        """Logarithms of the probability between bounds, all costs together, at distances t of shape ``(M,)``."""
        path, masses = self._bounded, []
        for part in distance.split(max(1, AT_ONCE // max(1, len(path.loc)))):
            loc, scale, low, high = path.at(part.unsqueeze(-1))
            masses.append(log_mass_between((low - loc) / scale, (high - loc) / scale).sum(-1))
        return torch.cat(masses)


def cost_track(
    base: Any,
    other: Any,
    distance: float,
    costs: Tensor,
    problem: Any,
    value: Tensor,
    dtype: torch.dtype,
) -> CostTrack | BoundedTrack | None:
    """The track of costs along a line of parameters, or ``None`` where a distribution does not tell rows apart, or the
    family of costs has no tracks; and where neither locations nor scales stay, scales of a row grow by different
    factors, or bounds of truncated normal costs move by themselves, if coefficients of the problem are other than zeros
    and ones, some optimum incurs no costs, or, for different factors, costs of a row are jointly normal.

    :param base: Distribution of the costs at the present parameters.
    :param other: Distribution at other parameters of the line.
    :param float distance: Distance of these.
    :param Tensor costs: Present costs, double precision, shape ``rows + cost_shape``.
    :param Problem problem: The problem of the costs.
    :param Tensor value: Optima of the costs.
    :param dtype: As for :class:`CostTrack`.
    """
    rounding, rows = STRAIGHT[dtype], costs.dim() - len(problem.cost_shape)
    if location_and_scale(base) is None or not _is_alike(base, other, rounding) or len(base.batch_shape) < rows:
        return None
    (loc, scale), (other_loc, other_scale) = _parameters(base, costs), _parameters(other, costs)
    same_scale = torch.allclose(other_scale, scale, rtol=rounding, atol=0.0)
    same_loc = bool(((other_loc - loc).abs() <= rounding * _deviations(scale, loc)).all())
    is_straight = same_scale or same_loc
    change = torch.zeros_like(costs) if same_loc else (other_loc - loc) / distance
    growth = torch.zeros_like(costs)
    if not bool(change.isfinite().all()):
        return None
    if not same_scale:
        # A Cholesky factor has entries that are zero.
        is_zero = scale == 0
        factors = (other_scale / scale).masked_fill(is_zero, 0.0)
        factor = factors.flatten(rows).amax(-1).reshape(factors.shape[:rows] + (1,) * (factors.dim() - rows))
        is_uniform = bool(((factors - factor).abs() <= rounding * factor).logical_or(is_zero).all())
        if not is_uniform and factors.dim() > costs.dim():
            return None
        is_straight = is_straight and is_uniform
        factors = factor.reshape(factor.shape[: costs.dim()]).expand(costs.shape) if is_uniform else factors
        if not bool((factors > 0).all()) or not bool(factors.isfinite().all()):
            return None
        growth = factors.log() / distance
    path = None
    if isinstance(entry_distribution(base), TruncatedNormal):
        path = BoundedPath.between(base, other, distance, change, growth, rounding)
    incidence = None
    is_apart = path is not None and path.is_apart and not (is_straight and path.stays)
    if is_apart or not is_straight or _is_narrow(base, problem):
        incidence = _incidence(costs, problem, value)
        if incidence is None and (is_apart or not is_straight):
            return None
    track: CostTrack | BoundedTrack
    if path is not None and incidence is not None and is_apart:
        track = BoundedTrack(path, costs, problem, value, incidence, rounding)
    else:
        track = CostTrack(base, costs, change, growth, path, problem, value, incidence, dtype)
    return track if track.is_complete else None


def _around(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Last index before all places that count, and first one behind them, shape ``(..., 1)``."""
    counts = counts.byte()
    return counts.argmax(-1, keepdim=True) - 1, counts.shape[-1] - counts.flip(-1).argmax(-1, keepdim=True)


def _is_narrow(base: Any, problem: Any) -> bool:
    """Whether costs are so many uniform ones that they leave a curve along all of them little room."""
    return isinstance(entry_distribution(base), Uniform) and problem.cost_shape.numel() > FEW_COSTS


def _is_scalable(problem: Any) -> bool:
    """Whether multiples of costs have the same optima, all of them that a solver takes."""
    low = torch.as_tensor(problem.cost_low)
    return bool(((low == 0) | low.isinf()).all())


def _is_positive(base: Any) -> bool:
    """Whether the noise of costs is positive, whatever their parameters."""
    positive = (Exponential, Gamma, HalfCauchy, HalfNormal, InverseGamma, LogNormal, Uniform, Weibull)
    return isinstance(entry_distribution(base), positive)


def _incidence(costs: Tensor, problem: Any, value: Tensor) -> Tensor | None:
    """Incidence of optima, of the shape of the costs, if it is of zeros and ones, and none of them incurs nothing."""
    if not problem.is_binary:
        return None
    incidence: Tensor = problem.incidence(value).to(costs).expand(costs.shape)
    rows = costs.dim() - len(problem.cost_shape)
    return incidence if bool((incidence != 0).flatten(rows).any(-1).all()) else None


def _is_alike(base: Any, other: Any, rounding: float) -> bool:
    """Whether two distributions have the same noise."""
    if type(entry_distribution(base)) is not type(entry_distribution(other)):
        return False
    shape, other_shape = noise_shape(base), noise_shape(other)
    return shape is None or other_shape is None or torch.allclose(shape, other_shape, rtol=rounding, atol=0.0)


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
