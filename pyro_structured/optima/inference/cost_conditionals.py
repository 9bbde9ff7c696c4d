"""Conditional distributions of some costs given all others and bounds, for any distribution of costs."""

__all__ = ["MixtureCosts", "cost_conditionals"]

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from pyro.distributions import InverseGamma, Logistic
from torch import Tensor
from torch.distributions import (
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
    Uniform,
    Weibull,
)

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.inference.random_state import same_random_state
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
from pyro_structured.optima.inference.cost_family import CostFamily, line_between
from pyro_structured.optima.inference.independent_costs import (
    CauchyCosts,
    ExponentialCosts,
    GammaCosts,
    GumbelCosts,
    IndependentCosts,
    InverseGammaCosts,
    LaplaceCosts,
    LogisticCosts,
    LogNormalCosts,
    NormalCosts,
    ShiftedCosts,
    StudentCosts,
    UniformCosts,
    WeibullCosts,
)
from pyro_structured.optima.ops.density_family import DensityFamily
from pyro_structured.optima.ops.gamma_quantile import MOST_CONCENTRATION
from pyro_structured.optima.ops.interval_mass import WITH_MASS, interval_mass
from pyro_structured.optima.ops.slice_sampling import slice_sample
from pyro_structured.optima.ops.student_quantile import MOST_FREEDOM
from pyro_structured.optima.structures.box import Box

INFINITY = torch.tensor(torch.inf, dtype=torch.double)
ZERO = torch.zeros((), dtype=torch.double)
# Distributions of single numbers, and costs that are drawn by inversion, of parameters with the shape of the costs.
INVERTED: dict[Any, Callable[[Any, Callable[[Tensor], Tensor]], CostFamily]] = {
    Normal: lambda d, flat: NormalCosts(flat(d.loc), flat(d.scale), flat(-INFINITY), flat(INFINITY)),
    HalfNormal: lambda d, flat: NormalCosts(flat(ZERO), flat(d.scale), flat(ZERO), flat(INFINITY)),
    TruncatedNormal: lambda d, flat: NormalCosts(flat(d.loc), flat(d.scale), flat(d.low), flat(d.high)),
    Uniform: lambda d, flat: UniformCosts(flat(d.low), flat(d.high)),
    LogNormal: lambda d, flat: LogNormalCosts(flat(d.loc), flat(d.scale)),
    Exponential: lambda d, flat: ExponentialCosts(flat(1 / d.rate.double())),
    Weibull: lambda d, flat: WeibullCosts(flat(d.concentration), flat(d.scale)),
    Gamma: lambda d, flat: GammaCosts(flat(d.concentration), flat(1 / d.rate.double())),
    InverseGamma: lambda d, flat: InverseGammaCosts(flat(d.concentration), flat(d.rate)),
    Laplace: lambda d, flat: LaplaceCosts(flat(d.loc), flat(d.scale)),
    Logistic: lambda d, flat: LogisticCosts(flat(d.loc), flat(d.scale)),
    Gumbel: lambda d, flat: GumbelCosts(flat(d.loc), flat(d.scale)),
    Cauchy: lambda d, flat: CauchyCosts(flat(d.loc), flat(d.scale), flat(-INFINITY)),
    StudentT: lambda d, flat: ShiftedCosts(StudentCosts(flat(d.df), flat(d.scale)), flat(d.loc)),
    HalfCauchy: lambda d, flat: CauchyCosts(flat(ZERO), flat(d.scale), flat(ZERO)),
}


class GaussianCosts(CostFamily):
    """Jointly normal costs: exact draws of one entry after the other."""

    def __init__(self, loc: Tensor, precision: Tensor, scale_tril: Tensor) -> None:
        self.loc, self.precision, self.scale_tril = loc, precision, scale_tril

    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
        """Entries of the box, one after the other, truncated normal given all other entries."""
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
            drawn = NormalCosts.quantile(uniform.gather(-1, entry), mean, curvature.rsqrt(), *ends)
            costs.scatter_(-1, entry, torch.where(free[..., place, None], drawn, present))
        return costs.gather(-1, index)

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Distances along every line, truncated normal."""
        change = (self.precision @ direction.unsqueeze(-1)).squeeze(-1)
        curvature = (direction * change).sum(-1)
        mean = (change * (self.loc - costs)).sum(-1) / curvature
        return NormalCosts.quantile(torch.rand_like(low), mean, curvature.rsqrt(), low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal direction with the costs' covariance."""
        return (self.scale_tril @ torch.randn_like(costs).unsqueeze(-1)).squeeze(-1)


class SlicedCosts(CostFamily):
    """Costs of any other distribution: slice sampling between the bounds.

    :param log_density: From costs of shape ``(..., P)`` to log-densities of shape ``(...)``.
    :param entry_log_density: From costs to the log-densities of their entries, both of shape ``(..., P)``, if entries
        are independent; all entries of a box are drawn at once then.
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
        """Entries of the box after one slice sampling update each, shape ``(..., b)``."""
        index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
        free = torch.ones_like(index, dtype=torch.bool) if box.free is None else box.free.expand(index.shape)
        if self.entry_log_density is not None:
            return self._update(costs, index, box, free, self.entry_log_density)
        costs = costs.clone()
        for place in range(index.shape[-1]):
            single = Box(index[..., place, None], box.low[..., place, None], box.high[..., place, None])

            def log_density(values: Tensor) -> Tensor:
                total: Tensor = self.log_density(values).unsqueeze(-1).expand(values.shape)
                return total

            updated = self._update(costs, single.index, single, free[..., place, None], log_density)
            costs.scatter_(-1, single.index, updated)
        return costs.gather(-1, index)

    def _update(
        self, costs: Tensor, index: Tensor, box: Box, free: Tensor, log_density: Callable[[Tensor], Tensor]
    ) -> Tensor:
        least, most, width = (
            parameter.expand(costs.shape).gather(-1, index) for parameter in (self.low, self.high, self.width)
        )
        present = costs.gather(-1, index)

        def of_entries(entries: Tensor) -> Tensor:
            return log_density(costs.scatter(-1, index, entries)).gather(-1, index)

        low, high = torch.maximum(box.low, least), torch.minimum(box.high, most)
        low, high = torch.where(free, torch.minimum(low, present), present), torch.where(free, high, present)
        updated, stuck = slice_sample(of_entries, present, low, torch.maximum(high, present), width)
        self.num_stuck += int(stuck.sum())
        return updated

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Distances along every line after one slice sampling update."""
        low, high = line_between(costs, direction, self.low, self.high, low, high)
        return self.slice_along(self.log_density, costs, direction, low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """Normal direction with the typical sizes of steps."""
        return torch.randn_like(costs) * self.width


class MixtureCosts(SlicedCosts):
    """Independent costs that are mixtures of K components: exact draws in boxes, of a component and of its costs.

    :cvar DensityFamily family: Mixtures.
    :param IndependentCosts components: Distributions of the components, of parameters of shape ``(..., P, K)``.
    :param Tensor logits: Logarithms of the weights, shape ``(..., P, K)``.
    :param sliced: Arguments of :class:`SlicedCosts`, for lines.
    """

    family = DensityFamily.MIXTURE

    def __init__(self, components: IndependentCosts, logits: Tensor, *sliced: Any) -> None:
        super().__init__(*sliced)
        self.components = components
        parameters = components.loc, components.scale, components.low, components.high
        # Weights are those of components that are truncated already.
        logits = logits - interval_mass(components.family, *parameters)
        self._parts = torch.stack(torch.broadcast_tensors(logits, *parameters), -1)

    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
        """Quantiles of the components that uniform variables choose, by the rest of these variables, shape
        ``(..., b)``.
        """
        index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
        number = self._parts.shape[-2]
        parts = self._parts.expand(costs.shape + (number, 5))
        parts = parts.gather(-3, index[..., None, None].expand(index.shape + (number, 5)))
        logits, loc, scale, least, most = parts.unbind(-1)
        # Rounding must not lead out of the costs' own bounds.
        low = torch.minimum(torch.maximum(box.low.unsqueeze(-1), least), most)
        high = torch.minimum(box.high.unsqueeze(-1), most)
        masses = torch.softmax(logits + interval_mass(self.components.family, loc, scale, low, high), -1).nan_to_num()
        share, below = uniform.gather(-1, index).unsqueeze(-1), masses.cumsum(-1)
        places = torch.arange(number, device=costs.device)
        last = torch.where(masses > 0, places, 0).amax(-1, keepdim=True)
        chosen = (share >= below).sum(-1, keepdim=True).minimum(last)
        mass, before = masses.gather(-1, chosen), (below - masses).gather(-1, chosen)
        rest = ((share - before) / mass).nan_to_num().clamp(0.0, 1.0)
        loc, scale, low, high = (each.gather(-1, chosen) for each in (loc, scale, low, high))
        # Rounding must not reverse the bounds.
        high = torch.maximum(low, high)
        drawn = torch.where(low < high, self.components.quantile(rest, loc, scale, low, high), low).squeeze(-1)
        return drawn if box.free is None else torch.where(box.free, drawn, costs.gather(-1, index))

    @cached_property
    def base(self) -> Tensor:
        """Family and number of components, two numbers of no use, and 0, an additive constant; logarithm of the weight,
        location, scale and bounds of each component; shape ``(..., P, 5 + 5 K)``.
        """
        number = self._parts.shape[-2]
        head = self._parts.new_tensor([self.components.family, number, 0.0, 0.0, 0.0])
        return torch.cat([head.expand(self._parts.shape[:-2] + (5,)), self._parts.flatten(-2)], -1)


def cost_conditionals(
    base: Distribution, cost_rank: int, likelihood: Callable[[Tensor], Tensor] | None = None
) -> CostFamily:
    """Conditional distributions of the costs of a base distribution, with parameters on the processor.

    :param base: Distribution of the costs, of batch shape ``(...)`` and an event shape with ``cost_rank`` axes.
    :param likelihood: From costs of shape ``batch_shape + event_shape`` to the log-likelihoods of dependent sites,
        shape ``batch_shape``, which are added to the log-density.
    """
    entries = entry_distribution(base)

    def flat(tensor: Tensor) -> Tensor:
        shape = base.batch_shape + base.event_shape
        return tensor.detach().double().cpu().expand(shape).flatten(-cost_rank)

    if likelihood is not None:
        return _sliced(base, entries, flat, cost_rank, likelihood)
    kind = type(entries)
    inverted = _inverted(kind)
    if not entries.event_shape and inverted is not None and not _is_nearly_normal(entries):
        return inverted(entries, flat)
    if entries is base and issubclass(kind, MultivariateNormal) and cost_rank == 1:
        precision, scale_tril = (
            getattr(base, name).detach().double().cpu() for name in ("precision_matrix", "scale_tril")
        )
        return GaussianCosts(flat(base.loc), precision, scale_tril)
    if not entries.event_shape and isinstance(entries, MixtureSameFamily):
        return _mixed(base, entries, flat, cost_rank)
    return _sliced(base, entries, flat, cost_rank)


def _inverted(kind: type) -> Callable[[Any, Callable[[Tensor], Tensor]], CostFamily] | None:
    return next((INVERTED[known] for known in INVERTED if issubclass(kind, known)), None)


def _mixed(base: Any, entries: Any, flat: Callable[[Tensor], Tensor], cost_rank: int) -> SlicedCosts:
    """Mixtures; by slices if intervals of their components have no probabilities in closed form, or components have
    different bounds: torch takes what all of them support for the support of the mixture.
    """
    logits, components = entries.mixture_distribution.logits, entries.component_distribution

    def flat_components(tensor: Tensor) -> Tensor:
        shape = base.batch_shape + base.event_shape + logits.shape[-1:]
        return tensor.detach().double().cpu().expand(shape).flatten(-cost_rank - 1, -2)

    inverted = _inverted(type(components))
    costs = None if inverted is None else inverted(components, flat_components)
    if not isinstance(costs, IndependentCosts) or costs.family not in WITH_MASS or not _has_one_support(costs):
        return _sliced(base, entries, flat, cost_rank)
    return _sliced(base, entries, flat, cost_rank, kind=partial(MixtureCosts, costs, flat_components(logits)))


def _has_one_support(components: IndependentCosts) -> bool:
    return all(bool((bound == bound[..., :1]).all()) for bound in (components.low, components.high))


def _is_nearly_normal(entries: Any) -> bool:
    """Whether quantiles would lose digits, where gamma and Student variables are next to normal."""
    if isinstance(entries, (Gamma, InverseGamma)):
        return bool((entries.concentration > MOST_CONCENTRATION).any())
    return isinstance(entries, StudentT) and bool((entries.df > MOST_FREEDOM).any())


def _sliced(
    base: Any,
    entries: Any,
    flat: Callable[[Tensor], Tensor],
    cost_rank: int,
    likelihood: Callable[[Tensor], Tensor] | None = None,
    kind: Callable[..., SlicedCosts] = SlicedCosts,
) -> SlicedCosts:
    low, high = map(flat, support_bounds(base))
    # Steps only have to have the right order of magnitude; they must not depend on the present costs.
    with same_random_state():
        torch.manual_seed(0)
        drawn = base.sample((64,)).double()
        # Torch warns of standard deviations of empty tensors.
        deviation = drawn.std(0) if drawn.numel() else drawn[0]
        width = flat(2 * deviation.clamp(min=torch.finfo(torch.double).tiny))

    def shaped(costs: Tensor) -> Tensor:
        return costs.reshape(costs.shape[:-1] + base.event_shape).to(drawn.device)

    def log_density(costs: Tensor) -> Tensor:
        total: Tensor = base.log_prob(shaped(costs)).double().cpu()
        return total if likelihood is None else total + likelihood(shaped(costs)).cpu()

    def entry_log_density(costs: Tensor) -> Tensor:
        terms: Tensor = entries.log_prob(shaped(costs)).double().cpu()
        return terms.flatten(-cost_rank)

    independent = likelihood is None and not entries.event_shape and entries is not base
    return kind(log_density, entry_log_density if independent else None, low, high, width)
