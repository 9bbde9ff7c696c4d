"""Latent costs whose optima are observed."""

__all__ = ["UNSEEN_ROWS", "CostSite", "check_observed_costs", "check_weights", "find_cost_sites", "optima_of"]

from typing import Any, NamedTuple

import torch
from pyro.distributions import MaskedDistribution
from torch import Tensor

from pyro_structured.foundation.distributions.independent_parts import unmasked
from pyro_structured.optima.distributions.argmin import Argmin

# Advice in errors that refuse masks.
UNSEEN_ROWS = "leave rows that are not observed out of the plate, in place of masking them"


class CostSite(NamedTuple):
    """Names of a site of costs and of the site of their observed optimum.

    :ivar str costs: Site of the costs.
    :ivar str optimum: Observed site of the optimum for these costs.
    """

    costs: str
    optimum: str


def find_cost_sites(trace: Any) -> list[CostSite]:
    """All pairs of latent costs and observed optima in a trace; a site of costs may occur in several.

    :raises ValueError: if an optimum's costs are not the value of a sample site, or its observed value is no tensor, or
        of another shape.
    """
    return [site for site in _pairs(trace) if not trace.nodes[site.costs]["is_observed"]]


def optima_of(trace: Any, costs: str) -> list[str]:
    """Names of the observed optima of a site of costs, latent or not."""
    return [site.optimum for site in _pairs(trace) if site.costs == costs]


def check_observed_costs(trace: Any) -> None:
    """Raises a ValueError, with the site's name, if an observed optimum is not that of its observed costs."""
    for costs, optimum in _pairs(trace):
        fn, value = trace.nodes[optimum]["fn"], trace.nodes[optimum]["value"]
        if trace.nodes[costs]["is_observed"] and not bool(fn.problem.contains(fn.costs, value).all()):
            raise ValueError(f"{optimum}: expected the optimum of the observed costs {costs!r}, got another value")


def check_weights(trace: Any) -> None:
    """Raises a ValueError, with the site's name, if the log-probability of costs or of their optimum has a weight."""
    for site in find_cost_sites(trace):
        for name in reversed(site):
            node = trace.nodes[name]
            is_masked = node["mask"] is not None or isinstance(node["fn"], MaskedDistribution)
            if is_masked or bool((torch.as_tensor(node["scale"]) != 1).any()):
                raise ValueError(
                    f"{name}: expected a site without a mask or a scale, as costs are drawn from their distribution "
                    "where their optimum is right, got "
                    + (f"a mask; {UNSEEN_ROWS}" if is_masked else f"scale {node['scale']}")
                )


def _pairs(trace: Any) -> list[CostSite]:
    sites = []
    for name, node in trace.nodes.items():
        fn = unmasked(node["fn"]) if node["type"] == "sample" and node["is_observed"] else None
        if not isinstance(fn, Argmin):
            continue
        if fn is not node["fn"] or node["mask"] is not None:
            raise ValueError(
                f"{name}: expected an optimum that is neither masked nor declared an event, got "
                f"{node['fn'] if fn is not node['fn'] else 'a mask'}; {UNSEEN_ROWS}"
            )
        _check_observed(name, fn, node["value"])
        sites.append(CostSite(_owner(trace, name, fn), name))
    return sites


def _check_observed(name: str, fn: Argmin, value: Any) -> None:
    """Pyro does not look at observed values before it computes their density."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name}: expected a tensor of observed values, got {type(value).__name__}")
    expected, shape = fn.batch_shape + fn.event_shape, tuple(value.shape)
    fits = len(shape) <= len(expected) and all(
        size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(expected), strict=False)
    )
    if not fits or shape[len(shape) - len(fn.event_shape) :] != fn.event_shape:
        raise ValueError(f"{name}: expected observed values of shape {tuple(expected)}, got {shape}")


def _owner(trace: Any, name: str, fn: Argmin) -> str:
    for candidate, node in trace.nodes.items():
        is_random = node["type"] == "sample" and not node["infer"].get("_deterministic")
        if is_random and candidate != name and node["value"] is fn.given_costs:
            return str(candidate)
    raise ValueError(
        f"{name}: expected costs that are the value of a sample site itself, as in Argmin(pyro.sample(...), problem), "
        "got a tensor that no site returned"
    )
