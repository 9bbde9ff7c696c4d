"""A line through the parameters of a model, and what happens to the costs along it."""

__all__ = ["ParameterLine", "ParameterPoint", "Setting"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_structured.inference.cost_noise import costs_from_noise, noise_of_costs
from pyro_structured.inference.cost_sites import CostSite

# Relative deviation from a straight line that rounding explains.
STRAIGHT = {torch.float32: 1e-4, torch.float64: 1e-9}


@dataclass(frozen=True)
class Setting:
    """What stays the same during a run.

    :ivar model: A Pyro model given all sites that do not move.
    :ivar args: Arguments of the model.
    :ivar kwargs: Keyword arguments of the model.
    :ivar sites: Costs and optima.
    :ivar transforms: From unconstrained space, for the parameters that move.
    :ivar dtypes: With which the model sees costs.
    """

    model: Callable[..., Any]
    args: Any
    kwargs: Any
    sites: list[CostSite]
    transforms: dict[str, Any]
    dtypes: dict[str, torch.dtype]


class ParameterPoint:
    """Parameters at some place of a line, and the costs that noise makes of them.

    :param dict free: Unconstrained parameters.
    :param dict noise: Noise of all costs; see :func:`noise_of_costs`.
    """

    def __init__(self, setting: Setting, free: dict[str, Tensor], noise: dict[str, Tensor]) -> None:
        self.free, self._setting = free, setting
        self.values = {name: transform(free[name]) for name, transform in setting.transforms.items()}
        model = poutine.condition(setting.model, data=self.values)
        with _Costs(noise, setting.dtypes) as costs:
            self._trace: Any = poutine.trace(model).get_trace(*setting.args, **setting.kwargs)
        self.costs = costs.exact
        self.values.update(self.costs)

    def base(self, site: CostSite) -> Any:
        """The distribution of costs."""
        return self._trace.nodes[site.costs]["fn"]

    def log_density(self) -> float:
        """Of the parameters and of all that depends on them, but for costs and optima."""
        setting, hidden = self._setting, {name for site in self._setting.sites for name in site}
        self._trace.compute_log_prob(lambda name, _: name not in hidden)
        total = sum(float(node["log_prob_sum"]) for node in self._trace.nodes.values() if "log_prob_sum" in node)
        for name, transform in setting.transforms.items():
            total += float(transform.log_abs_det_jacobian(self.free[name], self.values[name]).sum())
        return total

    def feasible(self) -> bool:
        """Whether all costs are in their inverse sets."""
        for site in self._setting.sites:
            node, costs = self._trace.nodes[site.optimum], self.costs[site.costs]
            # Quantiles that round to 0 or 1, and large parameters, make costs that problems refuse.
            if not bool(costs.isfinite().all() and node["fn"].problem.contains(costs, node["value"]).all()):
                return False
        return True

    def optimum(self, site: CostSite) -> tuple[Any, Tensor]:
        """The problem and the observed value."""
        node = self._trace.nodes[site.optimum]
        return node["fn"].problem, node["value"]


class ParameterLine:
    """Unconstrained parameters in some direction from where they are.

    :param dict values: Present values of parameters and costs.
    :param dict free: Present unconstrained parameters.
    :param dict direction: The direction, one tensor for each parameter.
    """

    def __init__(
        self, setting: Setting, values: dict[str, Tensor], free: dict[str, Tensor], direction: dict[str, Tensor]
    ) -> None:
        self._setting, self._free, self._direction = setting, free, direction
        self.origin = {site.costs: values[site.costs] for site in setting.sites}
        conditioned = poutine.condition(setting.model, data=values)
        self._here: Any = poutine.trace(conditioned).get_trace(*setting.args, **setting.kwargs)
        self._noise = {name: noise_of_costs(self._here.nodes[name]["fn"], costs) for name, costs in self.origin.items()}

    def at(self, distance: float) -> ParameterPoint:
        """The point at a distance, with the noise of the present point."""
        free = {name: value + distance * self._direction[name] for name, value in self._free.items()}
        return ParameterPoint(self._setting, free, self._noise)

    def changes(self) -> dict[str, Tensor] | None:
        """How the costs change for each unit of distance if the noise stays, or ``None`` if they are not linear."""
        ahead, behind = self.at(1.0), self.at(-1.0)
        found = {}
        for name, origin in self.origin.items():
            change, back = ahead.costs[name] - origin, origin - behind.costs[name]
            tolerance = STRAIGHT[torch.float64 if self._setting.dtypes[name] == torch.float64 else torch.float32]
            if not torch.allclose(change, back, rtol=tolerance, atol=tolerance * float(change.abs().max())):
                return None
            found[name] = change
        return found

    def base(self, site: CostSite) -> Any:
        """The distribution of costs at the present point."""
        return self._here.nodes[site.costs]["fn"]

    def optimum(self, site: CostSite) -> tuple[Any, Tensor]:
        """The problem and the observed value."""
        node = self._here.nodes[site.optimum]
        return node["fn"].problem, node["value"]


class _Costs(Messenger):
    """Gives cost sites the values that belong to their noise."""

    def __init__(self, noise: dict[str, Tensor], dtypes: dict[str, torch.dtype]) -> None:
        super().__init__()
        self._noise, self._dtypes = noise, dtypes
        self.exact: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if name in self._noise:
            self.exact[name] = costs_from_noise(msg["fn"], self._noise[name]).detach()
            msg["value"] = self.exact[name].to(self._dtypes[name])
            msg["is_observed"] = msg["done"] = True
