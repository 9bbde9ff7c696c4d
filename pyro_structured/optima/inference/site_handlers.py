"""Handlers of the sites of random optima and of their costs, registered for kernels and learners."""

__all__: list[str] = []

from typing import Any

from pyro.infer.reparam.reparam import Reparam
from torch import Tensor

from pyro_structured.foundation.inference.site_handlers import SiteHandler, register_confinement, register_sites
from pyro_structured.optima.distributions.argmin import Argmin
from pyro_structured.optima.distributions.randomized_optimum import RandOM
from pyro_structured.optima.inference.cost_sites import CostSite, check_observed_costs, check_weights, find_cost_sites
from pyro_structured.optima.inference.cost_start import check_feasible, dense_costs, feasible_costs
from pyro_structured.optima.inference.costs_reparam import CostsReparam, costs_name
from pyro_structured.optima.inference.observed_optima import observed_optima
from pyro_structured.optima.structures.problem import Problem


class _Optima(SiteHandler):
    """Sites of optima, whose costs have a site of their own or get one."""

    def mask_heir(self, name: str) -> str:
        return costs_name(name)


class _RandomizedOptima(_Optima):
    def reparam(self, fn: RandOM) -> Reparam:
        return CostsReparam()

    def check_log_likelihood(self, fn: RandOM, value: Tensor) -> None:
        fn.log_prob(value)


class _CertainOptima(_Optima):
    def constant(self, fn: Argmin) -> Problem:
        return fn.problem

    def check_log_likelihood(self, fn: Argmin, value: Tensor) -> None:
        raise NotImplementedError(
            "an Argmin is certain given its costs; a RandOM site sums them out where that has a closed form"
        )


class _ObservedOptima:
    """Confinement of costs to the inverse sets of their observed optima."""

    def check(self, trace: Any) -> None:
        check_observed_costs(trace)
        check_weights(trace)

    def find(self, trace: Any) -> list[CostSite]:
        return find_cost_sites(trace)

    def check_feasible(self, site: tuple[str, str], trace: Any) -> None:
        check_feasible(CostSite(*site), trace)

    def start(self, site: tuple[str, str], trace: Any, is_given: bool) -> Tensor:
        """Costs inside the inverse sets: the given ones, which have to be inside, or others near a draw."""
        costs, optimum = site
        feasible = feasible_costs(CostSite(*site), trace)
        problem, value = observed_optima(trace, costs)
        if is_given and not bool(problem.contains(trace.nodes[costs]["value"], value).all()):
            raise ValueError(
                f"initial_params: expected costs {costs!r} for which the observed {optimum!r} is optimal, got costs "
                "with another optimum; leave them out, and a start is found"
            )
        return feasible if is_given else dense_costs(CostSite(*site), trace, feasible)


register_sites(RandOM, _RandomizedOptima())
register_sites(Argmin, _CertainOptima())
register_confinement(_ObservedOptima())
