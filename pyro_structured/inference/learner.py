"""Learning the parameters of models, step by step."""

__all__ = ["Learner"]

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor
from tqdm import trange

from pyro_structured.inference.observed_batch import ObservedBatch
from pyro_structured.structures.argument_checks import check_size

# Of a step without an optimiser.
MOST_ITERATIONS = 100

Batch = TypeVar("Batch", bound=ObservedBatch)


class Learner(ABC, Generic[Batch]):
    """What learners share: steps as those of ``pyro.infer.SVI``, whose state can be kept.

    :param model: A Pyro model.
    :param guide: A Pyro guide for the latent sites that the learner does not infer itself, whose sites are all Delta:
        ``AutoDelta``, or an empty function if the model has parameters only. Priors are part of the objective.
    :param optim: A Pyro optimiser; or ``None``: every step minimises its loss by L-BFGS, to convergence or
        100 iterations.
    """

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], optim: PyroOptim | None) -> None:
        for name, function in (("model", model), ("guide", guide)):
            if not callable(function):
                raise ValueError(f"{name}: expected a Pyro {name}, got {function!r}")
        if not (optim is None or isinstance(optim, PyroOptim)):
            raise ValueError(f"optim: expected an optimiser of pyro.optim, or None, got {optim!r}")
        self.model, self.guide, self.optim = model, guide, optim
        # What is run to learn.
        self._observed_model: Callable[..., Any] = model

    @abstractmethod
    def _observe(self, args: Any, kwargs: Any) -> Batch:
        """A run of the model, in which what it observes is looked at."""

    def _inferred_sites(self, trace: Any) -> set[str]:
        """Names of the latent sites for which there is no need of a guide."""
        return set()

    @abstractmethod
    def _infer(self, batch: Batch) -> dict[str, Tensor]:
        """What the loss needs, for every site that the learner looks at."""

    @abstractmethod
    def _loss(self, batch: Batch, inferred: dict[str, Tensor]) -> Tensor:
        """What a step makes smaller."""

    def step(self, *args: Any, **kwargs: Any) -> float:
        """One step on the arguments' data, or on a random part of it if the model's plates say so.

        :return: The loss before the parameters changed.
        :raises ValueError: if an observed value has no probability; the state is then as before.
        """
        batch = self._observe(args, kwargs)
        inferred = self._infer(batch)
        return self._improve(batch, inferred)

    def run(self, num_steps: int, *args: Any, **kwargs: Any) -> list[float]:
        """Some steps, with a progress bar on terminals; their losses."""
        check_size("num_steps", num_steps, 0)
        losses = []
        with trange(num_steps, desc=type(self).__name__, disable=None) as bar:
            for _ in bar:
                losses.append(self.step(*args, **kwargs))
                bar.set_postfix(loss=f"{losses[-1]:.4g}", refresh=False)
        return losses

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on as if there had been no interruption, on the processor; for
        ``torch.save``, and ``torch.load`` with ``weights_only=False``, because of Pyro's constraints. Buffers of
        modules and generators of other devices are not in it.
        """
        state = {
            "params": pyro.get_param_store().get_state(),
            "optim": None if self.optim is None else self.optim.get_state(),
            "random": torch.get_rng_state(),
        }
        # Later steps change parameters in place.
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to a state.

        Parameters that there are keep their tensors, which modules hold as well. Where a later process has not run the
        model yet, its modules take them over by ``pyro.module(..., update_module_params=True)``, as after
        ``pyro.get_param_store().load``; a ``PyroModule`` does so by itself.
        """
        state = copy.deepcopy(state)
        _load_parameters(state["params"])
        if self.optim is not None:
            # Those of tensors that stay would not look at the state.
            self.optim.optim_objs.clear()
            self.optim.grad_clip.clear()
            self.optim.set_state(state["optim"])
        torch.set_rng_state(state["random"])

    @torch.no_grad()
    def _trace(self, args: Any, kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """A trace of the model with values of the guide, and the rows of every plate."""
        guide: Any = poutine.trace(self.guide).get_trace(*args, **kwargs)
        _check_guide(guide)
        trace: Any = poutine.trace(poutine.replay(self._observed_model, trace=guide)).get_trace(*args, **kwargs)
        _check_latent(trace, {*guide.nodes, *self._inferred_sites(trace)})
        nodes = trace.nodes.items()
        rows = {name: node["value"] for name, node in nodes if isinstance(node.get("fn"), _Subsample)}
        return trace, {name: torch.as_tensor(numbers) for name, numbers in rows.items()}

    def _run(self, batch: Batch, values: dict[str, Tensor]) -> Any:
        """A trace of the model on the same rows, with some values given, as a function of the parameters."""
        guide = poutine.trace(poutine.condition(self.guide, data=batch.rows))
        guide_trace: Any = guide.get_trace(*batch.args, **batch.kwargs)
        model = poutine.condition(self._observed_model, data={**batch.rows, **values})
        return poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*batch.args, **batch.kwargs)

    # Also where gradients are switched off.
    @torch.enable_grad()
    def _improve(self, batch: Batch, inferred: dict[str, Tensor]) -> float:
        if self.optim is None:
            return self._minimise(batch, inferred)
        with poutine.trace(param_only=True) as capture:
            loss = self._loss(batch, inferred)
        params = _params(capture)
        if not loss.requires_grad:
            raise ValueError("model: expected parameters on which the loss depends, got none")
        loss.backward()
        self.optim(params)
        for param in params:
            param.grad = None
        return float(loss.detach())

    def _minimise(self, batch: Batch, inferred: dict[str, Tensor]) -> float:
        with poutine.trace(param_only=True) as capture:
            first = float(self._loss(batch, inferred).detach())
        params = _params(capture)
        if not params:
            raise ValueError("model: expected parameters on which the loss depends, got none")
        optimiser = torch.optim.LBFGS(params, max_iter=MOST_ITERATIONS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = self._loss(batch, inferred)
            loss.backward()
            return loss

        optimiser.step(closure)
        optimiser.zero_grad()
        return first

    @staticmethod
    def _log_density(trace: Any, apart: set[str]) -> Tensor:
        """The log-density of all sites of a trace but some."""
        trace.compute_log_prob(lambda name, _: name not in apart)
        nodes = (node for name, node in trace.nodes.items() if node["type"] == "sample" and name not in apart)
        total: Tensor = sum((node["log_prob_sum"] for node in nodes), torch.zeros(()))
        return total


def _params(capture: Any) -> list[Tensor]:
    found = {id(param): param for param in (node["value"].unconstrained() for node in capture.trace.nodes.values())}
    return list(found.values())


def _load_parameters(state: Any) -> None:
    """As ``ParamStoreDict.set_state``, but in place where there is a parameter of the same shape and type."""
    present = pyro.get_param_store().get_state()["params"]
    for name, value in state["params"].items():
        old = present.get(name)
        if old is not None and (old.shape, old.dtype, old.device) == (value.shape, value.dtype, value.device):
            old.data.copy_(value.data)
            state["params"][name] = old
    pyro.get_param_store().set_state(state)


def _is_fixed(fn: Any) -> bool:
    """Whether its value is no matter of chance, or it numbers the rows of a plate."""
    while isinstance(fn, torch.distributions.Independent):
        fn = fn.base_dist
    return isinstance(fn, (dist.Delta, _Subsample))


def _check_latent(trace: Any, known: set[str]) -> None:
    for name, node in trace.iter_stochastic_nodes():
        if name not in known and not _is_fixed(node["fn"]):
            raise ValueError(f"guide: expected a site for every latent site of the model, got none for {name!r}")


def _check_guide(trace: Any) -> None:
    for name, node in trace.iter_stochastic_nodes():
        fn = node["fn"]
        if not _is_fixed(fn):
            raise NotImplementedError(
                f"guide: expected Delta sites, as those of AutoDelta, got {type(fn).__name__} for {name!r}; for "
                "posteriors, run MCMC with a kernel of pyro_structured.inference, or SVI where log_prob can be computed"
            )
