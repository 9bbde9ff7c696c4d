"""Learning the parameters of models that observe optima."""

__all__ = ["CostLearner"]

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.optim import PyroOptim
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor
from tqdm import trange

from pyro_structured.inference.cost_dependents import find_dependents
from pyro_structured.inference.cost_sites import CostSite, find_cost_sites, optima_of
from pyro_structured.inference.live_model import NamedCosts
from pyro_structured.inference.observed_batch import ObservedBatch

# Of the M-step without an optimiser.
MOST_ITERATIONS = 100


class CostLearner(ABC):
    """What learners share: steps as those of ``pyro.infer.SVI``, for models whose costs of observed optima are latent.

    :param model: A Pyro model.
    :param guide: A Pyro guide for the latent sites other than the costs, whose sites are all Delta: ``AutoDelta``, or
        an empty function if the model has parameters only. Priors are part of the objective.
    :param optim: A Pyro optimiser; or ``None``: every step minimises its loss to convergence, by L-BFGS.
    """

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], optim: PyroOptim | None) -> None:
        for name, function in (("model", model), ("guide", guide)):
            if not callable(function):
                raise ValueError(f"{name}: expected a Pyro {name}, got {function!r}")
        if not (optim is None or isinstance(optim, PyroOptim)):
            raise ValueError(f"optim: expected an optimiser of pyro.optim, or None, got {optim!r}")
        self.model, self.guide, self.optim = model, guide, optim
        self._named = NamedCosts(model)
        self._has_dependents: bool | None = None

    @abstractmethod
    def _infer(self, batch: ObservedBatch) -> dict[str, Tensor]:
        """What the loss needs, for every site of costs."""

    @abstractmethod
    def _cost_loss(self, costs: Any, optimum: Any, inferred: Tensor) -> Tensor:
        """The loss of every row, from the trace's nodes of a site and of its optimum, and from what was inferred."""

    def step(self, *args: Any, **kwargs: Any) -> float:
        """One step on the arguments' data, or on a random part of it if the model's plates say so.

        :return: The loss before the parameters changed.
        :raises ValueError: if an observed optimum is infeasible; the state is then as before.
        """
        batch = self._observe(args, kwargs)
        inferred = self._infer(batch)
        return self._improve(batch, inferred)

    def run(self, num_steps: int, *args: Any, **kwargs: Any) -> list[float]:
        """Some steps with a progress bar; their losses."""
        losses = []
        with trange(num_steps, desc=type(self).__name__) as bar:
            for _ in bar:
                losses.append(self.step(*args, **kwargs))
                bar.set_postfix(loss=f"{losses[-1]:.4g}", refresh=False)
        return losses

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on as if there had been no interruption; for ``torch.save``."""
        state = {
            "params": pyro.get_param_store().get_state(),
            "optim": None if self.optim is None else self.optim.get_state(),
            "random": torch.get_rng_state(),
        }
        # Later steps change parameters in place.
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to a state."""
        state = copy.deepcopy(state)
        pyro.get_param_store().set_state(state["params"])
        if self.optim is not None:
            self.optim.set_state(state["optim"])
        torch.set_rng_state(state["random"])

    @torch.no_grad()
    def _observe(self, args: Any, kwargs: Any) -> ObservedBatch:
        guide: Any = poutine.trace(self.guide).get_trace(*args, **kwargs)
        _check_guide(guide)
        trace: Any = poutine.trace(poutine.replay(self._named, trace=guide)).get_trace(*args, **kwargs)
        sites = find_cost_sites(trace)
        if not sites:
            raise ValueError("model: expected an observed RandOM or Argmin site, got none")
        nodes = trace.nodes.items()
        rows = {name: node["value"] for name, node in nodes if isinstance(node.get("fn"), _Subsample)}
        if self._has_dependents is None:
            # A learner that was interrupted looks again, and must not use other random numbers for that.
            with torch.random.fork_rng(devices=[]):
                self._has_dependents = any(find_dependents(self._named, trace, site, args, kwargs) for site in sites)
        return ObservedBatch(args, kwargs, trace, sites, rows, self._has_dependents)

    def _improve(self, batch: ObservedBatch, inferred: dict[str, Tensor]) -> float:
        if self.optim is None:
            return self._minimise(batch, inferred)
        with poutine.trace(param_only=True) as capture:
            loss = self._loss(batch, inferred)
        loss.backward()
        params = _params(capture)
        self.optim(params)
        for param in params:
            param.grad = None
        return float(loss.detach())

    def _minimise(self, batch: ObservedBatch, inferred: dict[str, Tensor]) -> float:
        with poutine.trace(param_only=True) as capture:
            first = float(self._loss(batch, inferred).detach())
        params = _params(capture)
        optimiser = torch.optim.LBFGS(params, max_iter=MOST_ITERATIONS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = self._loss(batch, inferred)
            loss.backward()
            return loss

        optimiser.step(closure)
        optimiser.zero_grad()
        return first

    def _loss(self, batch: ObservedBatch, inferred: dict[str, Tensor]) -> Tensor:
        traces = [self._run(batch, costs) for costs in self._completions(batch, inferred)]
        log_prior = torch.stack([_log_prior(trace, batch) for trace in traces]).mean()
        return self._cost_losses(traces[0], batch, inferred) - log_prior

    def _completions(self, batch: ObservedBatch, inferred: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Costs for which all other sites are looked at."""
        if batch.has_dependents:
            raise NotImplementedError(
                f"model: expected no sites other than optima that depend on costs for {type(self).__name__}, got some; "
                "use MCEM"
            )
        return [{site.costs: batch.trace.nodes[site.costs]["value"] for site in batch.sites}]

    def _cost_losses(self, trace: Any, batch: ObservedBatch, inferred: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(())
        # Costs may have several optima.
        for site in {site.costs: site for site in batch.sites}.values():
            node = trace.nodes[site.costs]
            loss = self._cost_loss(node, trace.nodes[site.optimum], inferred[site.costs])
            total = total + scale_and_mask(loss, node["scale"], node["mask"]).sum()
        return total

    def _check_single(self, batch: ObservedBatch, site: CostSite) -> None:
        """Raises a NotImplementedError unless costs and optima belong together one by one."""
        rows, optima = batch.trace.nodes[site.costs]["fn"].batch_shape, optima_of(batch.trace, site.costs)
        if len(optima) > 1 or batch.trace.nodes[site.optimum]["fn"].batch_shape != rows:
            raise NotImplementedError(
                f"{site.costs}: expected costs with one observed optimum each for {type(self).__name__}, got several "
                "that share them; use MCEM"
            )

    def _run(self, batch: ObservedBatch, costs: dict[str, Tensor]) -> Any:
        """A trace of the model on the same rows, as a function of the parameters."""
        guide = poutine.trace(poutine.condition(self.guide, data=batch.rows))
        guide_trace: Any = guide.get_trace(*batch.args, **batch.kwargs)
        model = poutine.replay(poutine.condition(self._named, data={**batch.rows, **costs}), trace=guide_trace)
        return poutine.trace(model).get_trace(*batch.args, **batch.kwargs)


def _log_prior(trace: Any, batch: ObservedBatch) -> Tensor:
    """The log-density of all sites but the costs and their optima."""
    apart = {name for site in batch.sites for name in site}
    trace.compute_log_prob(lambda name, _: name not in apart)
    nodes = (node for name, node in trace.nodes.items() if node["type"] == "sample" and name not in apart)
    total: Tensor = sum((node["log_prob_sum"] for node in nodes), torch.zeros(()))
    return total


def _params(capture: Any) -> list[Tensor]:
    found = {id(param): param for param in (node["value"].unconstrained() for node in capture.trace.nodes.values())}
    return list(found.values())


def _check_guide(trace: Any) -> None:
    for name, node in trace.iter_stochastic_nodes():
        fn = node["fn"]
        while isinstance(fn, torch.distributions.Independent):
            fn = fn.base_dist
        if not isinstance(fn, (dist.Delta, _Subsample)):
            raise NotImplementedError(
                f"guide: expected Delta sites, as those of AutoDelta, got {type(fn).__name__} for {name!r}; for "
                "posteriors, run MCMC(ConstrainedSlice(model)), or SVI with RandOM(..., estimator=ShellSMC(1000))"
            )
