"""Learning the parameters of models that observe optima."""

__all__ = ["CostBatch", "CostLearner"]

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.foundation.inference.learner import Learner, ObservedBatch
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.foundation.inference.masked_sites import OWN_MASK
from pyro_structured.foundation.inference.nonfinite_error import ADVICE, NonFiniteError
from pyro_structured.foundation.inference.row_state import row_places
from pyro_structured.optima.inference.cost_dependents import find_dependents
from pyro_structured.optima.inference.cost_sites import CostSite, find_cost_sites, optima_of
from pyro_structured.optima.inference.cost_start import check_feasible


@dataclass(frozen=True)
class CostBatch(ObservedBatch):
    """A run of a model with the present parameters, in which costs are drawn from their distributions.

    :ivar sites: Pairs of costs and observed optima.
    :ivar bool has_dependents: Whether sites other than the optima depend on costs.
    """

    sites: list[CostSite]
    has_dependents: bool

    @property
    def others(self) -> dict[str, Tensor]:
        """Values of all latent sites but the costs, and the rows of plates."""
        costs = {site.costs for site in self.sites}
        nodes = self.trace.iter_stochastic_nodes()
        return {name: node["value"].detach() for name, node in nodes if name not in costs} | self.rows


class CostLearner(Learner[CostBatch]):
    """Base class of learners of models with latent costs of observed optima; parameters as for :class:`Learner`."""

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim | None,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, on_nonfinite)
        self._observed_model = self._named = NamedLatents(self._observed_model)
        self._has_dependents: bool | None = None

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "has_dependents": self._has_dependents}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        super()._load_own_state(state)
        self._has_dependents = state["has_dependents"]

    @abstractmethod
    def _cost_loss(self, costs: Any, optimum: Any, inferred: Tensor) -> Tensor:
        """Loss of every row, from the trace's nodes of costs and of their optimum, and from the inferred result."""

    def _inferred_sites(self, trace: Any) -> set[str]:
        sites = find_cost_sites(trace)
        if not sites:
            raise ValueError("model: expected an observed RandOM or Argmin site, got none")
        return {site.costs for site in sites}

    def _observe(self, args: Any, kwargs: Any) -> CostBatch:
        trace, rows = self._trace(args, kwargs)
        sites = find_cost_sites(trace)
        for site in sites:
            if bool(trace.nodes[site.costs]["value"].isnan().any()):
                raise NonFiniteError(f"{site.costs}: expected costs that are numbers, got nan; {ADVICE}", math.nan)
            check_feasible(site, trace, row_places(trace.nodes[site.costs], rows)[0])
        if self._has_dependents is None:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                self._has_dependents = any(find_dependents(self._named, trace, site, args, kwargs) for site in sites)
        for site in sites:
            _check_masks(trace, site, self._has_dependents)
        return CostBatch(args, kwargs, trace, rows, sites, self._has_dependents)

    def _loss(self, batch: CostBatch, inferred: dict[str, Tensor]) -> Tensor:
        traces = [self._run(batch, costs) for costs in self._completions(batch, inferred)]
        log_prior = torch.stack([self._log_prior(trace, batch) for trace in traces]).mean()
        return self._cost_losses(traces[0], batch, inferred) - log_prior

    def _completions(self, batch: CostBatch, inferred: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Values of the costs, by site, over which the log-density of all other sites is averaged."""
        if batch.has_dependents:
            raise NotImplementedError(
                f"model: expected no sites other than optima that depend on costs for {type(self).__name__}, got some; "
                "use MCEM"
            )
        return [{site.costs: batch.trace.nodes[site.costs]["value"] for site in batch.sites}]

    def _cost_losses(self, trace: Any, batch: CostBatch, inferred: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(())
        # Costs may have several optima.
        for site in {site.costs: site for site in batch.sites}.values():
            node = trace.nodes[site.costs]
            loss = self._cost_loss(node, trace.nodes[site.optimum], inferred[site.costs])
            total = total + scale_and_mask(loss, node["scale"], node["mask"]).sum()
        return total

    def _check_single(self, batch: CostBatch, site: CostSite) -> None:
        """Raises a NotImplementedError unless costs and optima belong together one by one."""
        rows, optima = batch.trace.nodes[site.costs]["fn"].batch_shape, optima_of(batch.trace, site.costs)
        if len(optima) > 1 or batch.trace.nodes[site.optimum]["fn"].batch_shape != rows:
            raise NotImplementedError(
                f"{site.costs}: expected costs with one observed optimum each for {type(self).__name__}, got several "
                "that share them; use MCEM"
            )

    def _log_prior(self, trace: Any, batch: CostBatch) -> Tensor:
        """The log-density of all sites but the costs and their optima."""
        return self._log_density(trace, {name for site in batch.sites for name in site})


def _check_masks(trace: Any, site: CostSite, has_dependents: bool) -> None:
    """Raises a NotImplementedError unless costs have the mask of their optimum.

    :param trace: Trace of a :class:`MaskedSites` model.
    """
    costs, optimum = trace.nodes[site.costs], trace.nodes[site.optimum]
    masks, shape = (costs["mask"], optimum["infer"].get(OWN_MASK)), costs["fn"].batch_shape
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
