"""Draws of some costs given all others, and bounds."""

__all__ = ["CostConditionals", "cost_conditionals"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, Uniform

from pyro_structured.distributions import TruncatedNormal
from pyro_structured.distributions.support_bounds import support_bounds
from pyro_structured.ops.slice_sampling import slice_sample
from pyro_structured.ops.truncated_normal import truncated_quantile
from pyro_structured.structures.box import Box


class CostConditionals(ABC):
    """The distribution of costs, flattened to shape ``(..., P)`` in double precision, one entry or line at a time.

    :ivar int num_stuck: Updates that left an entry where it was, because a search was given up.
    """

    num_stuck = 0

    def truncated_normal(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Locations, scales and bounds of independent truncated normal costs; of uniform ones the scale is infinite.

        ``None`` for any other costs.
        """
        return None

    @abstractmethod
    def draw(self, costs: Tensor, box: Box) -> Tensor:
        """New entries for a box, given all other entries; shape ``(..., b)``. Entries that are not free stay."""

    @abstractmethod
    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """How far to go along a direction, between two bounds; all of shape ``(...)``."""

    @abstractmethod
    def random_direction(self, costs: Tensor) -> Tensor:
        """A direction drawn at random, of the costs' shape, independent of the costs."""


class NormalCosts(CostConditionals):
    """Independent normal costs, between bounds: exact draws."""

    def __init__(self, loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> None:
        self.loc, self.scale, self.low, self.high = loc, scale, low, high

    def truncated_normal(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As they are."""
        return self.loc, self.scale, self.low, self.high

    def draw(self, costs: Tensor, box: Box) -> Tensor:
        """One quantile for each entry."""
        loc, scale, least, most, present = _entries(box, costs, self.loc, self.scale, self.low, self.high, costs)
        low, high = _proper(torch.maximum(box.low, least), torch.minimum(box.high, most))
        found = _truncated(loc, scale, low, high)
        return found if box.free is None else torch.where(box.free, found, present)

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Normal along every line."""
        low, high = _within(costs, direction, self.low, self.high, low, high)
        precision = (direction / self.scale).square().sum(-1)
        mean = (direction * (self.loc - costs) / self.scale**2).sum(-1) / precision
        return _truncated(mean, precision.rsqrt(), low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal with the costs' scales."""
        return torch.randn_like(costs) * self.scale


class UniformCosts(CostConditionals):
    """Independent uniform costs: exact draws."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high

    def truncated_normal(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """With a density that is constant."""
        return self.low, torch.full_like(self.low, torch.inf), self.low, self.high

    def draw(self, costs: Tensor, box: Box) -> Tensor:
        """Uniform between the tighter bounds."""
        least, most, present = _entries(box, costs, self.low, self.high, costs)
        low, high = _proper(torch.maximum(box.low, least), torch.minimum(box.high, most))
        found = low + (high - low) * torch.rand_like(low)
        return found if box.free is None else torch.where(box.free, found, present)

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Uniform along every line."""
        low, high = _within(costs, direction, self.low, self.high, low, high)
        return low + (high - low) * torch.rand_like(low)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal with the widths of the intervals."""
        return torch.randn_like(costs) * (self.high - self.low)


class GaussianCosts(CostConditionals):
    """Jointly normal costs: exact draws of one entry after the other."""

    def __init__(self, loc: Tensor, precision: Tensor, scale_tril: Tensor) -> None:
        self.loc, self.precision, self.scale_tril = loc, precision, scale_tril

    def draw(self, costs: Tensor, box: Box) -> Tensor:
        """Normal given all other entries, also those of the box."""
        costs = costs.clone()
        index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
        free = torch.ones_like(index, dtype=torch.bool) if box.free is None else box.free.expand(index.shape)
        precision = self.precision.expand(costs.shape + costs.shape[-1:])
        for place in range(index.shape[-1]):
            entry = index[..., place, None]
            row = precision.gather(-2, entry.unsqueeze(-1).expand(entry.shape[:-1] + (1, costs.shape[-1]))).squeeze(-2)
            curvature = row.gather(-1, entry)
            present = costs.gather(-1, entry)
            mean = present - (row * (costs - self.loc)).sum(-1, keepdim=True) / curvature
            low, high = _proper(box.low[..., place, None], box.high[..., place, None])
            found = _truncated(mean, curvature.rsqrt(), low, high)
            costs.scatter_(-1, entry, torch.where(free[..., place, None], found, present))
        return costs.gather(-1, index)

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Normal along every line."""
        change = (self.precision @ direction.unsqueeze(-1)).squeeze(-1)
        curvature = (direction * change).sum(-1)
        return _truncated((change * (self.loc - costs)).sum(-1) / curvature, curvature.rsqrt(), low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal with the costs' covariance."""
        return (self.scale_tril @ torch.randn_like(costs).unsqueeze(-1)).squeeze(-1)


class SlicedCosts(CostConditionals):
    """Any other costs: slice sampling between the bounds.

    :param log_density: From costs of shape ``(..., P)`` to log-densities of shape ``(...)``.
    :param entry_log_density: The same for each entry, shape ``(..., P)``, if they are independent; all entries of a box
        are drawn at once then.
    :param Tensor low: Lower bounds of the costs, or -inf.
    :param Tensor high: Upper bounds of the costs, or +inf.
    :param Tensor width: Typical sizes of steps, shape ``(..., P)``.
    """

    def __init__(
        self,
        log_density: Callable[[Tensor], Tensor],
        entry_log_density: Callable[[Tensor], Tensor] | None,
        low: Tensor,
        high: Tensor,
        width: Tensor,
    ) -> None:
        self.log_density, self.entry_log_density = log_density, entry_log_density
        self.low, self.high, self.width = low, high, width

    def draw(self, costs: Tensor, box: Box) -> Tensor:
        """One update of every entry."""
        index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
        free = torch.ones_like(index, dtype=torch.bool) if box.free is None else box.free.expand(index.shape)
        if self.entry_log_density is not None:
            return self._update(costs, index, box, free, self.entry_log_density)
        costs = costs.clone()
        for place in range(index.shape[-1]):
            some = Box(index[..., place, None], box.low[..., place, None], box.high[..., place, None])

            def log_density(values: Tensor) -> Tensor:
                found: Tensor = self.log_density(values).unsqueeze(-1).expand(values.shape)
                return found

            found = self._update(costs, some.index, some, free[..., place, None], log_density)
            costs.scatter_(-1, some.index, found)
        return costs.gather(-1, index)

    def _update(
        self, costs: Tensor, index: Tensor, box: Box, free: Tensor, log_density: Callable[[Tensor], Tensor]
    ) -> Tensor:
        least, most, width = (each.expand(costs.shape).gather(-1, index) for each in (self.low, self.high, self.width))
        present = costs.gather(-1, index)

        def of_entries(entries: Tensor) -> Tensor:
            return log_density(costs.scatter(-1, index, entries)).gather(-1, index)

        low, high = torch.maximum(box.low, least), torch.minimum(box.high, most)
        low, high = torch.where(free, torch.minimum(low, present), present), torch.where(free, high, present)
        found, stuck = slice_sample(of_entries, present, low, torch.maximum(high, present), width)
        self.num_stuck += int(stuck.sum())
        return found

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """One update along every line."""
        low, high = _within(costs, direction, self.low, self.high, low, high)
        zero = torch.zeros_like(low)

        def log_density(distance: Tensor) -> Tensor:
            return self.log_density(costs + distance.unsqueeze(-1) * direction)

        found, stuck = slice_sample(log_density, zero, low.clamp(max=0), high.clamp(min=0), torch.ones_like(low))
        self.num_stuck += int(stuck.sum())
        return found

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal with the typical sizes of steps."""
        return torch.randn_like(costs) * self.width


def cost_conditionals(
    base: Distribution, cost_rank: int, likelihood: Callable[[Tensor], Tensor] | None = None
) -> CostConditionals:
    """What :class:`CostConditionals` says about the costs of a base distribution.

    :param base: Of batch shape ``(...)``, and of an event shape with ``cost_rank`` axes.
    :param likelihood: From costs of shape ``batch_shape + event_shape`` to what else the log-density depends on, one
        number for each row.
    """
    entries: Any = base
    while isinstance(entries, Independent):
        entries = entries.base_dist

    def flat(tensor: Tensor) -> Tensor:
        shape = base.batch_shape + base.event_shape
        return tensor.detach().double().expand(shape).flatten(-cost_rank)

    if likelihood is not None:
        return _sliced(base, entries, flat, cost_rank, likelihood)
    infinity = torch.tensor(torch.inf, dtype=torch.double)
    kind = type(entries)
    if not entries.event_shape and issubclass(kind, Normal):
        return NormalCosts(flat(entries.loc), flat(entries.scale), flat(-infinity), flat(infinity))
    if not entries.event_shape and issubclass(kind, TruncatedNormal):
        return NormalCosts(*(flat(getattr(entries, name)) for name in ("loc", "scale", "low", "high")))
    if not entries.event_shape and issubclass(kind, Uniform):
        return UniformCosts(flat(entries.low), flat(entries.high))
    if entries is base and issubclass(kind, MultivariateNormal) and cost_rank == 1:
        precision, scale_tril = (getattr(base, name).detach().double() for name in ("precision_matrix", "scale_tril"))
        return GaussianCosts(flat(base.loc), precision, scale_tril)
    return _sliced(base, entries, flat, cost_rank)


def _sliced(
    base: Any,
    entries: Any,
    flat: Callable[[Tensor], Tensor],
    cost_rank: int,
    likelihood: Callable[[Tensor], Tensor] | None = None,
) -> SlicedCosts:
    low, high = map(flat, support_bounds(base))
    # Steps only have to have the right order of magnitude; they must not depend on the present costs.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        width = flat(2 * base.sample((64,)).double().std(0).clamp(min=torch.finfo(torch.double).tiny))

    def log_density(costs: Tensor) -> Tensor:
        shaped = costs.reshape(costs.shape[:-1] + base.event_shape)
        found: Tensor = base.log_prob(shaped).double()
        return found if likelihood is None else found + likelihood(shaped)

    def entry_log_density(costs: Tensor) -> Tensor:
        found: Tensor = entries.log_prob(costs.reshape(costs.shape[:-1] + base.event_shape)).double()
        return found.flatten(-cost_rank)

    independent = likelihood is None and not entries.event_shape and entries is not base
    return SlicedCosts(log_density, entry_log_density if independent else None, low, high, width)


def _entries(box: Box, costs: Tensor, *tensors: Tensor) -> list[Tensor]:
    """The entries of a box, of tensors that expand to the costs' shape."""
    index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
    return [tensor.expand(costs.shape).gather(-1, index) for tensor in tensors]


def _truncated(loc: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Draws normal variables between bounds; rounding does not leave them."""
    uniform = torch.rand(torch.broadcast_shapes(loc.shape, low.shape), dtype=torch.double, device=loc.device)
    found = loc + scale * truncated_quantile(uniform, (low - loc) / scale, (high - loc) / scale)
    return torch.maximum(torch.minimum(found, high), low)


def _proper(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds whose order rounding has not reversed."""
    return low, torch.maximum(low, high)


def _within(
    costs: Tensor, direction: Tensor, least: Tensor, most: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """The part of a line on which all costs are between their bounds too."""
    ends = [((bound - costs) / direction).masked_fill(direction == 0, torch.inf) for bound in (least, most)]
    upper = torch.maximum(*ends)
    lower = torch.minimum(*(end.masked_fill(direction == 0, -torch.inf) for end in ends))
    low, high = torch.maximum(low, lower.amax(-1)), torch.minimum(high, upper.amin(-1))
    return _proper(low, high)
