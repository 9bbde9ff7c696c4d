"""Draws of some costs given all others, and bounds, for any distribution of costs."""

__all__ = ["cost_conditionals"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Exponential,
    LogNormal,
    MultivariateNormal,
    Normal,
    Uniform,
)

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
from pyro_structured.optima.inference.cost_family import CostFamily, line_between
from pyro_structured.optima.inference.independent_costs import (
    ExponentialCosts,
    LogNormalCosts,
    NormalCosts,
    UniformCosts,
)
from pyro_structured.optima.ops.slice_sampling import slice_sample
from pyro_structured.optima.structures.box import Box


class GaussianCosts(CostFamily):
    """Jointly normal costs: exact draws of one entry after the other."""

    def __init__(self, loc: Tensor, precision: Tensor, scale_tril: Tensor) -> None:
        self.loc, self.precision, self.scale_tril = loc, precision, scale_tril

    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
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
            low, high = box.low[..., place, None], box.high[..., place, None]
            # Rounding must not reverse the bounds.
            ends = low, torch.maximum(low, high)
            found = NormalCosts.quantile(uniform.gather(-1, entry), mean, curvature.rsqrt(), *ends)
            costs.scatter_(-1, entry, torch.where(free[..., place, None], found, present))
        return costs.gather(-1, index)

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Normal along every line."""
        change = (self.precision @ direction.unsqueeze(-1)).squeeze(-1)
        curvature = (direction * change).sum(-1)
        mean = (change * (self.loc - costs)).sum(-1) / curvature
        return NormalCosts.quantile(torch.rand_like(low), mean, curvature.rsqrt(), low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal with the costs' covariance."""
        return (self.scale_tril @ torch.randn_like(costs).unsqueeze(-1)).squeeze(-1)


class SlicedCosts(CostFamily):
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

    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
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
        least, most, width = (
            tensor.expand(costs.shape).gather(-1, index) for tensor in (self.low, self.high, self.width)
        )
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
        low, high = line_between(costs, direction, self.low, self.high, low, high)
        return self.slice_along(self.log_density, costs, direction, low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal with the typical sizes of steps."""
        return torch.randn_like(costs) * self.width


def cost_conditionals(
    base: Distribution, cost_rank: int, likelihood: Callable[[Tensor], Tensor] | None = None
) -> CostFamily:
    """:class:`CostFamily` of the costs of a base distribution.

    :param base: Base distribution of batch shape ``(...)``, and of an event shape with ``cost_rank`` axes.
    :param likelihood: Function of costs of shape ``batch_shape + event_shape``: the other terms of the log-density, one
        number for each row.
    """
    entries = entry_distribution(base)

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
    if not entries.event_shape and issubclass(kind, LogNormal):
        return LogNormalCosts(flat(entries.loc), flat(entries.scale))
    if not entries.event_shape and issubclass(kind, Exponential):
        return ExponentialCosts(flat(1 / entries.rate.double()))
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
        drawn = base.sample((64,)).double()
        # Torch warns of deviations of nothing.
        deviation = drawn.std(0) if drawn.numel() else drawn[0]
        width = flat(2 * deviation.clamp(min=torch.finfo(torch.double).tiny))

    def log_density(costs: Tensor) -> Tensor:
        shaped = costs.reshape(costs.shape[:-1] + base.event_shape)
        found: Tensor = base.log_prob(shaped).double()
        return found if likelihood is None else found + likelihood(shaped)

    def entry_log_density(costs: Tensor) -> Tensor:
        found: Tensor = entries.log_prob(costs.reshape(costs.shape[:-1] + base.event_shape)).double()
        return found.flatten(-cost_rank)

    independent = likelihood is None and not entries.event_shape and entries is not base
    return SlicedCosts(log_density, entry_log_density if independent else None, low, high, width)
