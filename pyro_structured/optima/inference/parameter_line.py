"""A line through the parameters of a model, and the costs along the line."""

__all__ = ["ParameterLine", "ParameterPoint", "Setting"]

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.inference.latent_state import has_density
from pyro_structured.optima.inference.cost_sites import CostSite
from pyro_structured.optima.inference.noncentered_costs import noise_transform
from pyro_structured.optima.inference.observed_optima import observed_optima


@dataclass(frozen=True)
class Setting:
    """A model, its arguments, and its sites, which stay the same during a run.

    :ivar model: A Pyro model given all sites that do not move.
    :ivar args: Arguments of the model.
    :ivar kwargs: Keyword arguments of the model.
    :ivar sites: Pairs of costs and optima.
    :ivar transforms: Transforms from unconstrained space, by the names of the parameters that move.
    :ivar dtypes: Dtypes in which the model sees costs, by the names of their sites.
    :ivar shows_costs: Whether other kernels look at the density of the costs.
    """

    model: Callable[..., Any]
    args: Any
    kwargs: Any
    sites: list[CostSite]
    transforms: dict[str, Any]
    dtypes: dict[str, torch.dtype]
    shows_costs: bool

    def have_same_problems(self, trace: Any, other: Any) -> bool:
        """Whether the optima in two traces are those of the same problems."""
        names = [site.optimum for site in self.sites]
        return all(trace.nodes[name]["fn"].problem == other.nodes[name]["fn"].problem for name in names)


class ParameterPoint:
    """Parameters and costs at a point of a line.

    :param dict free: Unconstrained parameters.
    :param dict kept: Values of sites that do not move, such as discrete ones.
    :param make_costs: From the name of a cost site and its distribution to costs in double precision.
    """

    def __init__(
        self,
        setting: Setting,
        free: dict[str, Tensor],
        kept: dict[str, Tensor],
        make_costs: Callable[[str, Any], Tensor],
    ) -> None:
        self.free, self._setting = free, setting
        self.values = {name: transform(free[name]) for name, transform in setting.transforms.items()}
        model = poutine.condition(setting.model, data={**kept, **self.values})
        with _Costs(make_costs, setting.dtypes) as costs:
            self._trace: Any = poutine.trace(model).get_trace(*setting.args, **setting.kwargs)
        self.costs = costs.exact
        self.values.update(self.costs)

    def with_costs(self, free: dict[str, Tensor], costs: dict[str, Tensor]) -> "ParameterPoint":
        """The point of the same parameters and other costs, on which nothing but optima depends.

        :param dict free: Unconstrained parameters, the present ones up to rounding.
        """
        other = copy.copy(self)
        other.free, other.costs, other.values = free, costs, {**self.values, **costs}
        return other

    def base(self, costs: str) -> Any:
        """The distribution of costs."""
        return self._trace.nodes[costs]["fn"]

    def log_density(self) -> float:
        """Log-density of the unconstrained parameters and all sites that depend on them, but for costs and optima."""
        setting, hidden = self._setting, {name for site in self._setting.sites for name in site}
        self._trace.compute_log_prob(lambda name, _: name not in hidden)
        total = sum(float(node["log_prob_sum"]) for node in self._trace.nodes.values() if "log_prob_sum" in node)
        for name, transform in setting.transforms.items():
            total += float(transform.log_abs_det_jacobian(self.free[name], self.values[name]).sum())
        return total

    def log_prior(self, free: dict[str, Tensor]) -> Tensor:
        """Log-densities of other unconstrained parameters, shape ``(M,)``, if distributions of parameters were those at
        this point.

        :param dict free: M values of each parameter, shape ``(M, ...)``.
        """
        total = torch.zeros((), dtype=torch.double, device="cpu")
        for name, transform in self._setting.transforms.items():
            node, value = self._trace.nodes[name], transform(free[name])
            weights = scale_and_mask(node["fn"].log_prob(value), node["scale"], node["mask"])
            for terms in (weights, transform.log_abs_det_jacobian(free[name], value)):
                total = total + terms.double().reshape(len(value), -1).sum(-1)
        return total

    def optima(self, costs: str) -> tuple[Any, Tensor]:
        """The problem and the value of all observed optima of costs."""
        return observed_optima(self._trace, costs)

    def feasible(self) -> bool:
        """Whether all costs are finite, in their support and in their inverse sets, and, where other kernels look at
        it, have a density which the model can compute in its own precision.
        """
        for site in self._setting.sites:
            (problem, value), costs = self.optima(site.costs), self.costs[site.costs]
            low, high = support_bounds(self.base(site.costs))
            # Costs that overflow are not feasible.
            if not bool((costs.isfinite() & (costs >= low) & (costs <= high)).all()):
                return False
            if self._setting.shows_costs and not has_density(self._trace.nodes[site.costs], costs):
                return False
            if not bool(problem.contains(costs, value).all()):
                return False
        return True

    def has_problems_of(self, other: "ParameterPoint") -> bool:
        """Whether optima are those of the same problems as at another point."""
        return self._setting.have_same_problems(self._trace, other._trace)


class ParameterLine:
    """A line through the present unconstrained parameters.

    :param dict values: Present values of all sites.
    :param dict free: Present unconstrained parameters.
    :param dict direction: The direction, one tensor for each parameter.
    :param ParameterPoint here: The present point, if it is known.
    """

    def __init__(
        self,
        setting: Setting,
        values: dict[str, Tensor],
        free: dict[str, Tensor],
        direction: dict[str, Tensor],
        here: ParameterPoint | None = None,
    ) -> None:
        self._setting, self._free, self._direction = setting, free, direction
        self._points = {} if here is None else {(0.0, False): here}
        self.origin = {site.costs: values[site.costs] for site in setting.sites}
        self._kept = {name: value for name, value in values.items() if name not in free and name not in self.origin}

    def at(self, distance: float, holds_noise: bool = True) -> ParameterPoint:
        """The point at a distance, with the noise of the present point, or else with the present costs; at 0, with
        these themselves.
        """
        # Moves come back to some points, and each takes a run of the model.
        key = distance, holds_noise and distance != 0
        if key not in self._points:
            here = self.free_at(torch.tensor([distance], dtype=torch.double))
            free = {name: value.squeeze(0) for name, value in here.items()}
            make_costs = self._costs if key[1] else self._present_costs
            self._points[key] = ParameterPoint(self._setting, free, self._kept, make_costs)
        return self._points[key]

    def free_at(self, distance: Tensor) -> dict[str, Tensor]:
        """Unconstrained parameters at distances of shape ``(M,)``, shape ``(M, ...)``."""
        return {
            name: value + distance.to(value).reshape(-1, *(1,) * value.dim()) * self._direction[name]
            for name, value in self._free.items()
        }

    def distance_to(self, free: dict[str, Tensor]) -> float:
        """Distance of a point of the line: that of the parameter along which the line is the steepest."""
        steps = [(free[name] - value, self._direction[name]) for name, value in self._free.items()]
        change, slope = (torch.cat([parts.double().flatten() for parts in pair]) for pair in zip(*steps, strict=True))
        place = slope.abs().argmax()
        return float(change[place] / slope[place])

    @cached_property
    def _noise(self) -> dict[str, Tensor]:
        here = self.at(0.0)
        return {name: noise_transform(here.base(name)).inv(costs) for name, costs in self.origin.items()}

    def _costs(self, name: str, base: Any) -> Tensor:
        costs: Tensor = noise_transform(base)(self._noise[name])
        return costs

    def _present_costs(self, name: str, base: Any) -> Tensor:
        return self.origin[name]


class _Costs(Messenger):
    """Messenger that gives cost sites their values."""

    def __init__(self, make_costs: Callable[[str, Any], Tensor], dtypes: dict[str, torch.dtype]) -> None:
        super().__init__()
        self._make_costs, self._dtypes = make_costs, dtypes
        self.exact: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if name in self._dtypes:
            self.exact[name] = self._make_costs(name, msg["fn"]).detach()
            msg["value"] = self.exact[name].to(self._dtypes[name])
            msg["is_observed"] = msg["done"] = True
