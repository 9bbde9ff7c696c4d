"""Latent costs whose optima are observed."""

__all__ = ["CostSite", "find_cost_sites"]

from typing import Any, NamedTuple

import torch
from pyro.distributions import MaskedDistribution

from pyro_structured.distributions import Argmin


class CostSite(NamedTuple):
    """Names of two sites.

    :ivar str costs: A latent site.
    :ivar str optimum: An observed site, the optimum for these costs.
    """

    costs: str
    optimum: str


def find_cost_sites(trace: Any) -> list[CostSite]:
    """All pairs of costs and observed optima in a trace.

    :raises ValueError: if an optimum's costs are not the value of a sample site.
    """
    found = []
    for name, node in trace.nodes.items():
        fn = node["fn"] if node["type"] == "sample" and node["is_observed"] else None
        while isinstance(fn, (torch.distributions.Independent, MaskedDistribution)):
            fn = fn.base_dist
        if not isinstance(fn, Argmin):
            continue
        if fn is not node["fn"] or node["mask"] is not None:
            raise ValueError(
                f"{name}: expected an Argmin that is neither masked nor declared an event, got {node['fn']}"
            )
        found.append(CostSite(_owner(trace, name, fn), name))
    return found


def _owner(trace: Any, name: str, fn: Argmin) -> str:
    for other, node in trace.nodes.items():
        if node["type"] == "sample" and other != name and node["value"] is fn.given_costs:
            return str(other)
    raise ValueError(
        f"{name}: expected costs that are the value of a sample site itself, as in Argmin(pyro.sample(...), problem), "
        "got a tensor that no site returned"
    )
