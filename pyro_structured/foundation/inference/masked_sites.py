"""Masks of sites, however they were given."""

__all__ = ["MaskedSites", "check_masks"]

from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_structured.optima.distributions.argmin import Argmin
from pyro_structured.optima.distributions.randomized_optimum import RandOM
from pyro_structured.optima.inference.cost_sites import CostSite

# Of an observed optimum, in the node's ``infer``.
KEY = "_optimum_mask"


class MaskedSites:
    """A model in which ``fn.mask(...)`` is a mask of the site, as that of ``poutine.mask``.

    Observed optima have none: they are right or wrong, and what counts is the density of their costs, which has the
    mask as well; :func:`check_masks` sees to that.

    :param model: A Pyro model.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        with _Masks():
            return self.model(*args, **kwargs)


class _Masks(Messenger):
    def __init__(self) -> None:
        super().__init__()
        self._of_costs: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        own = self._of_costs.pop(msg["name"], None)
        while isinstance(msg["fn"], MaskedDistribution):
            own = _both(own, msg["fn"]._mask)
            msg["fn"] = msg["fn"].base_dist
        msg["mask"] = _both(msg["mask"], own)
        if msg["is_observed"] and isinstance(msg["fn"], (RandOM, Argmin)):
            # Costs that do not have a site yet will be inside of the same handlers.
            self._of_costs[f"{msg['name']}_costs"] = own
            msg["infer"] = {**msg["infer"], KEY: msg["mask"]}
            msg["mask"] = None


def _both(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def check_masks(trace: Any, site: CostSite, has_dependents: bool) -> None:
    """Raises a NotImplementedError unless costs count where their optimum does.

    :param trace: Of a model that is :class:`MaskedSites`.
    """
    costs, optimum = trace.nodes[site.costs], trace.nodes[site.optimum]
    masks, shape = (costs["mask"], optimum["infer"].get(KEY)), costs["fn"].batch_shape
    if all(mask is None for mask in masks):
        return
    if optimum["fn"].batch_shape != shape or not torch.equal(*(_expanded(mask, shape) for mask in masks)):
        raise NotImplementedError(
            f"{site.optimum}: expected the mask that its costs {site.costs!r} have, as rows count with their costs or "
            "not at all, got another one; put poutine.mask around both, or mask a RandOM"
        )
    if has_dependents:
        raise NotImplementedError(
            f"{site.optimum}: expected no mask, as other sites depend on the costs {site.costs!r}, got one; leave the "
            "rows out, by a subsample of the plate"
        )


def _expanded(mask: Any, shape: torch.Size) -> Tensor:
    return torch.as_tensor(True if mask is None else mask).expand(shape)
