"""Learning the parameters of models, step by step."""

__all__ = ["Learner", "ObservedBatch"]

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from torch import Tensor
from tqdm import trange

from pyro_structured.foundation.inference.distributed_optim import DistributedOptim, taking_part
from pyro_structured.foundation.inference.learning_state import LearningState
from pyro_structured.foundation.inference.masked_sites import MaskedSites
from pyro_structured.foundation.inference.nonfinite_error import (
    NonFiniteError,
    check_gradients,
    check_loss,
    check_values,
)
from pyro_structured.foundation.inference.peer_processes import rank_and_size
from pyro_structured.foundation.inference.row_state import RowState
from pyro_structured.foundation.inference.united_state import own_state, united_state
from pyro_structured.foundation.ops.private_members import is_plate
from pyro_structured.foundation.structures.argument_checks import check_choice, check_size
from pyro_structured.foundation.structures.representation import represent


@dataclass(frozen=True)
class ObservedBatch:
    """A run of a model with the present parameters.

    :ivar args: Positional arguments of the model.
    :ivar kwargs: Keyword arguments of the model.
    :ivar trace: Trace of the model; latent sites are drawn from their distributions, or from the guide.
    :ivar rows: Indices of the rows of every plate, by its name.
    """

    args: Any
    kwargs: Any
    trace: Any
    rows: dict[str, Tensor]


# Largest number of L-BFGS iterations of a step without an optimiser.
MOST_ITERATIONS = 100
ON_NONFINITE = ("raise", "skip")

Batch = TypeVar("Batch", bound=ObservedBatch)


class Learner(ABC, Generic[Batch]):
    """Base class of learners, with steps like those of ``pyro.infer.SVI`` and a state that can be saved.

    :param model: A Pyro model.
    :param guide: A Pyro guide for the latent sites that the learner does not infer itself, whose sites are all Delta:
        ``AutoDelta``, or an empty function if the model has parameters only. Priors are part of the objective.
    :param optim: A Pyro optimiser, in several processes a :class:`DistributedOptim`; or ``None``: every step minimises
        its loss by L-BFGS, to convergence or 100 iterations.
    :param str on_nonfinite: Action of a step whose loss or gradient is infinite or not a number: ``"raise"`` a
        ValueError that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim | None,
        on_nonfinite: str = "raise",
    ) -> None:
        for name, function in (("model", model), ("guide", guide)):
            if not callable(function):
                raise ValueError(f"{name}: expected a Pyro {name}, got {function!r}")
        if not (optim is None or isinstance(optim, PyroOptim)):
            raise ValueError(f"optim: expected an optimiser of pyro.optim, or None, got {optim!r}")
        check_choice("on_nonfinite", on_nonfinite, ON_NONFINITE)
        self.model, self.guide, self.optim, self.on_nonfinite = model, guide, optim, on_nonfinite
        self.num_skipped = 0
        self._state = LearningState(model, guide, optim)
        # State of the rows of plates, if steps keep any.
        self._chains: RowState | None = None
        # The model with masks of distributions as masks of their sites.
        self._observed_model: Callable[..., Any] = MaskedSites(model)

    @abstractmethod
    def _observe(self, args: Any, kwargs: Any) -> Batch:
        """Run of the model, whose observed values are checked."""

    def _inferred_sites(self, trace: Any) -> set[str]:
        """Names of the latent sites that need no guide."""
        return set()

    @abstractmethod
    def _infer(self, batch: Batch) -> dict[str, Tensor]:
        """Inferred values that the loss needs, by names of sites."""

    @abstractmethod
    def _loss(self, batch: Batch, inferred: dict[str, Tensor]) -> Tensor:
        """Loss that a step decreases, a scalar."""

    def step(self, *args: Any, **kwargs: Any) -> float:
        """One step on the arguments' data, or on a random part of it if the model's plates are subsampled.

        :return: The loss before the parameters changed; of a skipped step, the loss that is not finite, or at which a
            gradient is not finite.
        :raises ValueError: if an observed value has no probability, or, unless such steps are skipped, if the loss or a
            gradient is not finite; in several processes, if this happens in any of them, or if there is no
            :class:`DistributedOptim`. After any error parameters, buffers of modules, the optimiser and chains are as
            before.
        """
        if self._chains is not None:
            self._chains.discard()
        try:
            with taking_part(self.optim):
                self._state.resume(args, kwargs)
                with self._state.attempt():
                    batch = self._observe(args, kwargs)
                    loss = self._improve(batch, self._infer(batch))
        except NonFiniteError as error:
            if self.on_nonfinite == "raise":
                raise
            self.num_skipped += 1
            return error.loss
        if self._chains is not None:
            self._chains.commit()
        return loss

    def run(self, num_steps: int, *args: Any, **kwargs: Any) -> list[float]:
        """Runs some steps, with a progress bar on terminals, and returns their losses."""
        check_size("num_steps", num_steps, 0)
        losses = []
        # Of several processes one shows its progress.
        with trange(num_steps, desc=type(self).__name__, disable=None if rank_and_size()[0] == 0 else True) as bar:
            for _ in bar:
                losses.append(self.step(*args, **kwargs))
                bar.set_postfix(loss=f"{losses[-1]:.4g}", refresh=False)
        return losses

    def __repr__(self) -> str:
        return represent(self)

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on as if there had been no interruption.

        Keep it every few steps,

        .. code-block:: python

            torch.save(learner.state_dict(), "state.part")
            os.replace("state.part", "state")  # the process may end at any time

        and in a new process, with the same model and a learner made in the same way, go on after

        .. code-block:: python

            learner.load_state_dict(torch.load("state"))

        It is plain data, which ``torch.load`` reads with ``weights_only=True``: all parameters in Pyro's store with
        their constraints, buffers of the modules that the model calls, the optimiser and its schedule, chains of rows,
        and the states of PyTorch's, NumPy's and Python's generators, on CUDA devices too. On the processor a run that
        goes on gives the same numbers, bit for bit. What a model or its data keep elsewhere, as a data loader in the
        middle of an epoch, is not in it.

        In several processes, all have to call it, and each has the state of all. One keeps it; all load it. As many
        processes go on as if there had been no interruption; with another number each has the chains of its own rows,
        the buffers of process 0, and new random numbers.

        :raises ValueError: if a parameter has a constraint of your own, or an optimiser has a state that is no data.
        :raises NotImplementedError: with the setting ``module_local_params`` of Pyro.
        """
        with taking_part(self.optim):
            return united_state(self.optim, self._own_state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state.

        Parameters are in Pyro's store at once. Guides and modules of a new process take theirs over when the first step
        begins, for which the model is run once more.

        :raises ValueError: if it is the state of another kind of learner.
        """
        with taking_part(self.optim):
            if isinstance(state, dict):
                state = own_state(self.optim, state)
            self._load_own_state(state)

    def _own_state(self) -> dict[str, Any]:
        """State of this process."""
        state = {"learner": type(self).__name__, "num_skipped": self.num_skipped, **self._state.state_dict()}
        return state if self._chains is None else {**state, "chains": self._chains.state_dict()}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.get("learner") != type(self).__name__:
            got = state.get("learner") if isinstance(state, dict) else state
            raise ValueError(f"state: expected that of a learner of class {type(self).__name__}, got {got!r}")
        self._state.load_state_dict(state)
        self.num_skipped = state["num_skipped"]
        if self._chains is not None:
            self._chains.load_state_dict(state["chains"])

    @torch.no_grad()
    def _trace(self, args: Any, kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """Trace of the model with values of the guide, and indices of the rows of every plate, by its name."""
        guide: Any = poutine.trace(self.guide).get_trace(*args, **kwargs)
        _check_guide(guide)
        trace: Any = poutine.trace(poutine.replay(self._observed_model, trace=guide)).get_trace(*args, **kwargs)
        _check_latent(trace, {*guide.nodes, *self._inferred_sites(trace)})
        _check_observed(trace)
        nodes = trace.nodes.items()
        rows = {name: node["value"] for name, node in nodes if is_plate(node.get("fn"))}
        return trace, {name: torch.as_tensor(numbers) for name, numbers in rows.items()}

    def _run(self, batch: Batch, values: dict[str, Tensor]) -> Any:
        """Trace of the model on the same rows, with some values given, as a function of the parameters."""
        guide = poutine.trace(poutine.condition(self.guide, data=batch.rows))
        guide_trace: Any = guide.get_trace(*batch.args, **batch.kwargs)
        model = poutine.condition(self._observed_model, data={**batch.rows, **values})
        return poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*batch.args, **batch.kwargs)

    # Also where gradients are switched off.
    @torch.enable_grad()
    def _improve(self, batch: Batch, inferred: dict[str, Tensor]) -> float:
        with poutine.trace(param_only=True) as capture:
            loss = self._loss(batch, inferred)
        params, number = _params(capture), float(loss.detach())
        check_loss(number)
        if not loss.requires_grad:
            raise ValueError("model: expected parameters on which the loss depends, got none")
        try:
            loss.backward()
            check_gradients(params, number)
            if self.optim is None:
                self._minimise(params, batch, inferred)
            elif isinstance(self.optim, DistributedOptim):
                plates = (node["fn"] for node in batch.trace.nodes.values() if is_plate(node.get("fn")))
                number = self.optim.take_step(params.values(), number, sizes=[plate.size for plate in plates])
            else:
                self.optim(list(params.values()))
        finally:
            for param in params.values():
                param.grad = None
        return number

    def _minimise(self, params: dict[str, Tensor], batch: Batch, inferred: dict[str, Tensor]) -> None:
        optimiser = torch.optim.LBFGS(list(params.values()), max_iter=MOST_ITERATIONS, line_search_fn="strong_wolfe")
        before = [param.detach().clone() for param in params.values()]

        def closure() -> Tensor:
            check_values(params)
            optimiser.zero_grad()
            loss = self._loss(batch, inferred)
            loss.backward()
            return loss

        try:
            optimiser.step(closure)
            with torch.no_grad():
                check_loss(float(self._loss(batch, inferred)))
        except BaseException:
            with torch.no_grad():
                for param, value in zip(params.values(), before, strict=True):
                    param.copy_(value)
            raise

    @staticmethod
    def _log_density(trace: Any, apart: set[str]) -> Tensor:
        """Log-density of all sites of a trace but those in ``apart``, a scalar."""
        trace.compute_log_prob(lambda name, _: name not in apart)
        nodes = (node for name, node in trace.nodes.items() if node["type"] == "sample" and name not in apart)
        total: Tensor = sum((node["log_prob_sum"] for node in nodes), torch.zeros(()))
        return total


def _params(capture: Any) -> dict[str, Tensor]:
    """Unconstrained parameters of a trace, by name; one name for each tensor."""
    params = {name: node["value"].unconstrained() for name, node in capture.trace.nodes.items()}
    return dict({id(param): (name, param) for name, param in params.items()}.values())


def _is_fixed(fn: Any) -> bool:
    """Whether a distribution is a Delta, or the choice of a plate's rows."""
    while isinstance(fn, torch.distributions.Independent):
        fn = fn.base_dist
    return isinstance(fn, dist.Delta) or is_plate(fn)


def _check_observed(trace: Any) -> None:
    for name in trace.observation_nodes:
        value = trace.nodes[name]["value"]
        if not isinstance(value, Tensor):
            raise ValueError(f"{name}: expected a tensor of observed values, got {type(value).__name__}")


def _check_latent(trace: Any, known: set[str]) -> None:
    for name, node in trace.iter_stochastic_nodes():
        if name in known or _is_fixed(node["fn"]):
            continue
        # Pyro's names for the two halves of a site with obs_mask.
        site, hidden, _ = name.partition("_unobserved")
        if hidden and f"{site}_observed" in trace.nodes:
            raise ValueError(
                f"{site}: expected a site without obs_mask, by which rows that are not observed become latent; "
                "use poutine.mask(mask=...), or leave these rows out of the plate"
            )
        if node["fn"].support.is_discrete:
            raise NotImplementedError(
                f"{name}: expected an observed site, or a continuous latent one, for which a guide such as AutoDelta "
                f"finds values, got a latent {type(node['fn']).__name__}; give obs=, or sum over its values in the "
                "model, or by SVI with TraceEnum_ELBO where log_prob is exact"
            )
        raise ValueError(f"guide: expected a site for every latent site of the model, got none for {name!r}")


def _check_guide(trace: Any) -> None:
    for name, node in trace.iter_stochastic_nodes():
        fn = node["fn"]
        if not _is_fixed(fn):
            raise NotImplementedError(
                f"guide: expected Delta sites, as those of AutoDelta, got {type(fn).__name__} for {name!r}; for "
                "posteriors, run MCMC with a kernel of pyro_structured.inference, or SVI where log_prob can be computed"
            )
