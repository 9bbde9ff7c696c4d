"""Curves through truncated normal costs whose bounds do not follow their locations and scales."""

__all__ = ["BoundedPath", "BoundedTrack", "log_mass_between", "reach_of"]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.optima.ops.truncated_normal import (
    log_interval_mass,
    truncated_from_log_odds,
    truncated_log_odds,
    truncated_quantile,
)

# Number of places at which densities along a line are tabulated; each takes a chord.
PLACES = 17
# Standard deviations from its likeliest place at which a row's coordinate of the noise has no probability.
REACH = 40.0
# Tails of costs that are held have logarithms of at least the negative of this.
MOST_LOG_ODDS = 700.0


class BoundedPath(NamedTuple):
    """Locations, scales and bounds of truncated normal costs along a line of parameters, tensors of one shape.

    Locations change by ``change`` with each unit of the distance t, logarithms of scales by ``growth``. Bounds follow
    both, but for those that ``has_low`` and ``has_high`` mark, which change by ``low_change`` and ``high_change``.
    """

    loc: Tensor
    scale: Tensor
    change: Tensor
    growth: Tensor
    low: Tensor
    high: Tensor
    low_change: Tensor
    high_change: Tensor
    has_low: Tensor
    has_high: Tensor

    @classmethod
    def between(
        cls, base: Any, other: Any, distance: float, change: Tensor, growth: Tensor, rounding: float
    ) -> "BoundedPath":
        """The path through two distributions.

        :param float distance: Distance of the second one.
        :param float rounding: Error that rounding explains, relative to changes and scales.
        """
        entries = entry_distribution(base)
        loc, scale = (each.detach().double().expand(change.shape) for each in (entries.loc, entries.scale))
        error, ends, changes, apart = rounding * (change.abs() + scale), [], [], []
        for pair in zip(support_bounds(base), support_bounds(other), strict=True):
            bound, there = (each.detach().double().expand(change.shape) for each in pair)
            followed = loc + distance * change + (bound - loc) * torch.exp(distance * growth)
            follows, stays = ((there == place) | ((there - place).abs() <= error) for place in (followed, bound))
            ends.append(bound)
            apart.append(~follows)
            changes.append(((there - bound) / distance).masked_fill(follows | stays, 0.0))
        return cls(loc, scale, change, growth, *ends, *changes, *apart)

    @property
    def is_apart(self) -> bool:
        """Whether some bound of a cost does not follow its location and scale."""
        return bool((self.has_low | self.has_high).any())

    @property
    def stays(self) -> bool:
        """Whether bounds that do not follow stay where they are."""
        return not bool(((self.low_change != 0) | (self.high_change != 0)).any())

    def at(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Locations, scales, and bounds at distances that broadcast with the costs."""
        loc, factor = self.loc + distance * self.change, torch.exp(distance * self.growth)
        low = torch.where(self.has_low, self.low + distance * self.low_change, loc + (self.low - self.loc) * factor)
        high = torch.where(
            self.has_high, self.high + distance * self.high_change, loc + (self.high - self.loc) * factor
        )
        return loc, self.scale * factor, low, high

    def of(self, chosen: Tensor) -> "BoundedPath":
        """The path of some of the costs, which booleans mark."""
        return BoundedPath(*(part[chosen] for part in self))

    def leads_to(self, base: Any, distance: float, rounding: float) -> bool:
        """Whether a distribution of costs at a distance has the bounds of the path."""
        *_, low, high = self.at(self.loc.new_tensor(distance))
        size = self.change.abs() + self.scale
        for there, place, rate in zip(
            support_bounds(base), (low, high), (self.low_change, self.high_change), strict=True
        ):
            error = (there - place).abs()
            if not bool(((there == place) | (error <= rounding * (size + rate.abs()))).all()):
                return False
        return True


class BoundedTrack:
    r"""Truncated normal costs of one site on surfaces through the present ones, one for each row, and their density as
    parameters and bounds move.

    Costs that the optimum does not incur hold their quantile as the distance t grows. Those that it incurs hold their
    place between the bounds, :math:`w(x, t) = o(t) + u(t) ((w - o) / u + x)`: the origin o is the lower bound, and the
    unit u the distance to the upper one; where there is no upper bound, the scale; o is the upper bound where there is
    no lower one, and the location where there is none. Given t, the density of x is that of a normal variable between
    two numbers, which bounds and a chord of the inverse set give: x is summed out in closed form.

    :param BoundedPath path: Locations, scales and bounds along the line.
    :param Tensor costs: Present costs w, double precision, shape ``rows + cost_shape``.
    :param Problem problem: The problem, whose coefficients are zeros and ones.
    :param Tensor value: Optima of the costs.
    :param Tensor incidence: Incidence of the optima, of the shape of the costs; some in each row are not zero.
    :param float rounding: Deviation from the path that rounding explains, relative to changes and scales.

    A distance takes one quantile of each cost, and a chord.

    :ivar int num_places: Number of places at which densities along the line are to be tabulated.
    """

    num_places = PLACES

    def __init__(
        self, path: BoundedPath, costs: Tensor, problem: Any, value: Tensor, incidence: Tensor, rounding: float
    ) -> None:
        self._path, self._costs, self._problem, self._value = path, costs, problem, value
        self._incidence, self._rounding = incidence, rounding
        self._axes = tuple(range(costs.dim() - len(problem.cost_shape), costs.dim()))
        self._incurred, self._known = incidence != 0, dict[float, tuple[Tensor, Tensor, Tensor]]()
        held = path.of(~self._incurred)
        self._held, self._log_odds = held, truncated_log_odds(costs[~self._incurred], *held[:2], held.low, held.high)
        origin, unit = _origin_and_unit(path.loc, path.scale, path.low, path.high)
        self._share = (costs - origin) / unit
        # Least and largest x with which costs are between bounds.
        least, most = ((bound - origin) / unit - self._share for bound in (path.low, path.high))
        self._least = least.masked_fill(~self._incurred, -math.inf).amax(self._axes)
        self._most = most.masked_fill(~self._incurred, math.inf).amin(self._axes)

    @property
    def is_complete(self) -> bool:
        """Whether costs that are held have quantiles which numbers hold."""
        return bool((self._log_odds.abs() <= MOST_LOG_ODDS).all())

    def log_mass(self, distance: Tensor) -> Tensor:
        """Logarithm of the probability that x is in its interval in all rows, up to a constant, at distances t of shape
        ``(M,)``.
        """
        t = distance.to(self._costs).reshape(-1, *(1,) * self._costs.dim())
        center, width, low, high, log_peak = self._given(t)
        is_empty = low >= high
        first, last = (low - center) / width, (high - center) / width
        ends = first.masked_fill(is_empty, -1.0), last.masked_fill(is_empty, 1.0)
        mass = log_interval_mass(*ends, ((high - low) / width).masked_fill(is_empty, 2.0))
        mass = (mass + log_peak).masked_fill(is_empty, -math.inf)
        return mass.flatten(1).sum(1)

    def draw(self, distance: float) -> tuple[Tensor, Tensor]:
        """Numbers x given the distance t, shape ``rows``, or NaN, and the logarithm of their density."""
        center, width, low, high, _ = (part.squeeze(0) for part in self._given(self._at(distance)))
        # A distance between the places of a table may have no interval; nothing is drawn there.
        is_empty = low >= high
        low, high = low.masked_fill(is_empty, -1.0), high.masked_fill(is_empty, 1.0)
        ends = (low - center) / width, (high - center) / width
        x = truncated_quantile(torch.rand_like(center), center, width, low, high)
        return x.masked_fill(is_empty, math.nan), self._log_density(x, center, width, *ends)

    def log_density_here(self) -> Tensor:
        """Logarithm of the density with which :meth:`draw` gives the present costs, x = 0, at the distance t = 0; -inf
        if it never does, as they are too improbable.
        """
        center, width, low, high, _ = (part.squeeze(0) for part in self._given(self._at(0.0)))
        if bool((low >= high).any()):
            return low.new_full((), -math.inf)
        ends = (low - center) / width, (high - center) / width
        return self._log_density(torch.zeros_like(center), center, width, *ends)

    def costs_at(self, x: Tensor, distance: float) -> Tensor:
        """Costs w(x, t), shape ``rows + cost_shape``."""
        origin, unit, held = self._moved_to(distance)
        share = self._share + x.reshape(x.shape + (1,) * len(self._axes))
        return torch.where(self._incurred, origin + unit * share, held).squeeze(0)

    def log_weight(self, base: Any, x: Tensor, distance: float) -> Tensor:
        """Logarithm of the density of costs w(x, t), given their distribution, and of the Jacobian, up to a constant;
        -inf outside of the support.
        """
        costs, entries = self.costs_at(x, distance), entry_distribution(base)
        if not bool(entries.support.check(costs).all()):
            return x.new_full((), -math.inf)
        _, unit, _ = self._moved_to(distance)
        # The density of quantiles is always the same.
        weight: Tensor = (entries.log_prob(costs).double() + unit.squeeze(0).log())[self._incurred].sum()
        return weight

    def fits(self, base: Any, distance: float) -> bool:
        """Whether a distribution of costs at a distance t is the one that this track expects."""
        entries = entry_distribution(base)
        loc, scale, *_ = self._path.at(self._at(distance).squeeze(0))
        rounding = self._rounding * max(1.0, abs(distance))
        bend = (entries.loc.double() - loc).abs()
        is_straight = bool((bend <= rounding * (self._path.change.abs() + self._path.scale)).all())
        return (
            is_straight
            and torch.allclose(entries.scale.double().expand(scale.shape), scale, rounding, 0.0)
            and self._path.leads_to(base, distance, rounding)
        )

    def _at(self, distance: float) -> Tensor:
        """Distance with a leading axis, and as many as costs have."""
        return self._costs.new_tensor(distance).reshape((1,) * (1 + self._costs.dim()))

    def _moved_to(self, distance: float) -> tuple[Tensor, Tensor, Tensor]:
        """What :meth:`_moved` gives at a single distance, kept."""
        if distance not in self._known:
            t = self._at(distance)
            self._known[distance] = self._moved(t, *self._path.at(t))
        return self._known[distance]

    def _moved(self, t: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Origins and units of costs, and costs with which those in it that are not incurred hold their quantile, shape
        ``(M, *rows, *cost_shape)``, at distances of shape ``(M, 1, ...)``, with locations, scales and bounds there.
        """
        origin, unit = _origin_and_unit(loc, scale, low, high)
        held = origin.clone()
        held[:, ~self._incurred] = _quantiles(self._log_odds, *self._held.at(t.reshape(-1, 1)))
        return origin, unit, held

    def _given(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Center and width of the normal density of x, least and largest x, and the logarithm of the integral of
        densities and Jacobians over all x, each of shape ``(M, *rows)``, at distances of shape ``(M, 1, ...)``.
        """
        loc, scale, first, last = self._path.at(t)
        origin, unit, held = self._moved(t, loc, scale, first, last)
        here = torch.where(self._incurred, origin + unit * self._share, held)
        # Quantiles may overflow at some distances, which are out of reach then.
        is_lost = ~here.isfinite()
        here = here.masked_fill(is_lost, 0.0)
        slope = (unit / scale).masked_fill(~self._incurred, 0.0)
        noise = ((here - loc) / scale).masked_fill(~self._incurred, 0.0)
        precision = slope.square().sum(self._trailing)
        center, width = -(noise * slope).sum(self._trailing) / precision, precision.rsqrt()
        is_lost = is_lost.flatten(center.dim()).any(-1) | ~(center.isfinite() & (width > 0) & width.isfinite())
        center, width = center.masked_fill(is_lost, 0.0), width.masked_fill(is_lost, 1.0)
        rest = noise + center.reshape(center.shape + (1,) * len(self._axes)) * slope
        log_scale, incurred = torch.zeros_like(slope), self._incurred
        ends = (((end - loc) / scale)[:, incurred] for end in (first, last))
        log_scale[:, incurred] = slope[:, incurred].log() - log_mass_between(*ends)
        log_peak = (log_scale - rest.square() / 2).sum(self._trailing) + width.log()
        low, high = (end.expand(center.shape) for end in (self._least, self._most))
        # From where the optimum is the surest of all x that have a probability; if it is none there, of all x.
        is_most, direction = self._problem.maximize, unit * self._incidence
        nearest = torch.maximum(center, low) + REACH * width if is_most else torch.minimum(center, high) - REACH * width
        start = nearest.maximum(low).minimum(high)
        while True:
            there = here + start.reshape(start.shape + (1,) * len(self._axes)) * direction
            sign, surest = (-1, high) if is_most else (1, low)
            distance, is_far = reach_of(self._problem, there, self._value, sign * direction)
            end = start + sign * distance
            is_none = (end == start) & (start != surest) & surest.isfinite() & ~is_lost
            if not bool(is_none.any()):
                break
            start = torch.where(is_none, surest, start)
        is_lost = is_lost | is_far
        low, high = (torch.maximum(low, end), high) if is_most else (low, torch.minimum(high, end))
        return center, width, low, torch.where(is_lost, low, high), log_peak

    @property
    def _trailing(self) -> tuple[int, ...]:
        """Axes of the costs of a row, behind an axis of distances."""
        return tuple(axis + 1 for axis in self._axes)

    @staticmethod
    def _log_density(x: Tensor, center: Tensor, width: Tensor, low: Tensor, high: Tensor) -> Tensor:
        heights = -((x - center) / width).square() / 2 - width.log() - math.log(2 * math.pi) / 2
        return (heights - log_interval_mass(low, high)).sum()


def _origin_and_unit(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Origins and units of places between bounds."""
    has_low, has_high = low.isfinite(), high.isfinite()
    origin = torch.where(has_low, low, torch.where(has_high, high, loc))
    return origin, torch.where(has_low & has_high, high - low, scale)


def _quantiles(log_odds: Tensor, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Truncated normal variables whose distribution functions have given log-odds, shape ``(N,)``, from parameters of
    shape ``(M, N)``.
    """
    run = compiled_function("optima.ops.compiled_quantile", "fill_quantiles")
    if run is None or log_odds.device.type != "cpu":
        return truncated_from_log_odds(log_odds, loc, scale, low, high)
    tails = torch.sigmoid(log_odds), torch.sigmoid(-log_odds)
    quantiles, ends = torch.empty_like(loc), ((bound - loc) / scale for bound in (low, high))
    run(*(part.numpy() for part in tails), *(end.numpy() for end in ends), quantiles.numpy())
    return torch.maximum(torch.minimum(loc + scale * quantiles, high), low)


def log_mass_between(low: Tensor, high: Tensor) -> Tensor:
    """Logarithms of normal probabilities between bounds, with fewer digits where these are close to each other than
    :func:`~pyro_structured.optima.ops.truncated_normal.log_interval_mass` has, in less time.

    :param Tensor low: Lower bounds, double precision.
    :param Tensor high: Upper bounds, of the same shape.
    """
    run = compiled_function("optima.ops.compiled_normal_mass", "log_normal_masses")
    if run is not None and low.device.type == "cpu":
        masses = torch.empty_like(low, memory_format=torch.contiguous_format)
        run(*(part.reshape(-1).numpy() for part in (low, high, masses)))
        return masses
    is_upper = low + high > 0
    low, high = torch.where(is_upper, -high, low), torch.where(is_upper, -low, high)
    below: Tensor = torch.special.log_ndtr(high)
    return below + (-torch.expm1(torch.special.log_ndtr(low) - below)).log()


def reach_of(problem: Any, costs: Tensor, value: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """The largest distance along a line up to which values stay optimal, of costs that may have overflown.

    :param Problem problem: The problem.
    :param Tensor costs: Costs, shape ``(..., *cost_shape)``. Those that rounding has led below the least ones that the
        solver takes are put there.
    :param Tensor value: Optima, shape ``(..., *event_shape)``.
    :param Tensor direction: Direction of the line, of the shape of the costs.
    :return: Distances, and booleans: whether costs or direction are not finite, so that distances mean nothing; each of
        shape ``(...)``.
    """
    axes, low = tuple(range(-len(problem.cost_shape), 0)), torch.as_tensor(problem.cost_low).to(costs)
    # A sum that is finite shows that all its terms are.
    if bool((costs.sum() + direction.sum()).isfinite()):
        end = problem.reach(torch.maximum(costs, low), value, direction)
        return end, torch.zeros_like(end, dtype=torch.bool)
    is_far = ~(costs.isfinite() & direction.isfinite()).flatten(axes[0]).all(-1)
    lost = is_far.reshape(is_far.shape + (1,) * len(axes))
    costs = torch.maximum(costs, low).masked_fill(lost, 1.0)
    return problem.reach(costs, value, direction.masked_fill(lost, 0.0)), is_far
