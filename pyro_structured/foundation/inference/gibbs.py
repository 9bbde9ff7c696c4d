"""Compositions of kernels, each for some of the latent variables, and the base class of users' own kernels."""

__all__ = ["Gibbs", "StepKernel"]

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from pyro import poutine
from pyro.infer import HMC, NUTS
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.ops.integrator import potential_grad
from torch import Tensor

from pyro_structured.foundation.inference.checkpoint import Checkpoint
from pyro_structured.foundation.inference.latent_state import LatentState
from pyro_structured.foundation.inference.live_model import LiveModel, NamedLatents
from pyro_structured.foundation.ops.private_members import forget_energy, initial_strategy, is_compiled
from pyro_structured.foundation.structures.representation import represent, shortened

Sites = Sequence[str] | Callable[[Any], Sequence[str]] | None


class StepKernel(MCMCKernel):
    r"""Base class of your own kernels: the interface of ``MCMC``, around a step from values to values.

    A kernel defines how a chain starts, :meth:`prepare`, and how it goes on, :meth:`step`. Starts, unconstrained
    values, chains one after the other or in parallel, and the bookkeeping of draws are done here. It runs alone in
    ``pyro.infer.MCMC``, and as a block of :class:`Gibbs`. A step has to leave the distribution of its sites given the
    data and all other sites invariant; :func:`~pyro_structured.testing.check_kernel` shows whether it does.

    For parallel chains kernels are pickled before they start: make objects that cannot be pickled in ``prepare``.
    :class:`Checkpoint` keeps attributes that change; a kernel with a state of another kind has the methods
    ``state_dict`` and ``load_state_dict``.

    :param model: A Pyro model.
    :cvar bool owns_sites: Whether its sites are updated by no other kernel; False for joint moves.
    :cvar bool moves_costs: Whether it looks at optima of costs, though these are not its own sites.
    :ivar frozenset summed_out: Names of observed sites whose hidden variables, such as the costs of optima, are summed
        out of the model that the kernel sees. They have to be drawn anew, whatever they were, before any kernel that
        sees them takes its turn. None unless set.
    :raises ValueError: if the model is not callable.

    A turn costs what the step costs. Exact as far as the step is.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> import torch
        >>> from pyro.infer import MCMC
        >>> def model(y):
        ...     x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ...     pyro.sample("y", dist.Normal(x, 1.0), obs=y)
        >>> class ExactDraw(StepKernel):
        ...     def prepare(self, model, names, warmup_steps, args, kwargs):
        ...         (self.y,) = args
        ...     def step(self, values):
        ...         return {"x": self.y / 2 + torch.randn(()) / 2**0.5}
        >>> mcmc = MCMC(ExactDraw(model), num_samples=100, warmup_steps=0, disable_progbar=True)
        >>> mcmc.run(torch.tensor(20.0))
        >>> 9 < float(mcmc.get_samples()["x"].mean()) < 11
        True
    """

    owns_sites = True
    moves_costs = False

    def __init__(self, model: Callable[..., Any]) -> None:
        if not callable(model):
            raise ValueError(f"model: expected a Pyro model, got {model!r}")
        self.model = model
        self.summed_out: frozenset[str] = frozenset()
        self.transforms: dict[str, Any] | None = None
        self._given: dict[str, Tensor] | None = None
        self._composed: Any = None

    def __repr__(self) -> str:
        return represent(self)

    @abstractmethod
    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain: also a second one of the same kernel, so counters and adaptation start anew.

        :param model: The model given the present values of all sites but the kernel's own.
        :param names: Names of the kernel's own sites.
        :param warmup_steps: Number of steps that may adapt the kernel, which the kernel has to count itself.
        :param args: Positional arguments of the model.
        :param kwargs: Keyword arguments of the model.
        """

    @abstractmethod
    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """New values of the kernel's sites from the present ones, which must not be changed in place.

        Called without gradients, as ``prepare``. Other sites may have moved since the last step.

        :param dict values: Values of the kernel's own sites, as the model sees them; costs of observed optima in double
            precision.
        """

    def steps(self, values: dict[str, Tensor], num_steps: int) -> list[dict[str, Tensor]]:
        """Values after each of some steps, between which nothing else changes; one :meth:`step` after the other."""
        visited = []
        for _ in range(num_steps):
            values = self.step(values)
            visited.append(values)
        return visited

    def report(self) -> dict[str, Any]:
        """Statistics of the chain since its start, for ``diagnostics``; empty unless overridden."""
        return {}

    def composition(self, args: Any, kwargs: Any) -> list[tuple[MCMCKernel, Any]]:
        """Blocks for :class:`Gibbs` that update all latent sites."""
        if not self.owns_sites:
            raise ValueError(
                f"kernel: expected one that owns its sites, got {type(self).__name__} alone, whose moves are joint "
                "ones; put it into Gibbs beside kernels for all sites, or take one that is composed with it, as "
                "ConstrainedSlice is with Interweave"
            )
        return [(self, None)]

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Starts a chain of the composition."""
        self._composed = Gibbs(self.composition(args, kwargs))
        self._composed.initial_params = self._given
        self._composed.setup(warmup_steps, *args, **kwargs)
        self.transforms = self._composed.transforms

    @property
    def initial_params(self) -> dict[str, Tensor] | None:
        """Unconstrained values to start with; costs and discrete values as they are."""
        return self._given if self._composed is None else self._composed.initial_params

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor] | None) -> None:
        self._given = params

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """One turn of the composition."""
        new_params: dict[str, Tensor] = self._composed.sample(params)
        return new_params

    def logging(self) -> dict[str, str]:
        """Log entries of the composition."""
        return {} if self._composed is None else self._composed.logging()

    def diagnostics(self) -> dict[str, Any]:
        """Diagnostics of the composition."""
        return {} if self._composed is None else self._composed.diagnostics()

    def cleanup(self) -> None:
        """Forgets the chain."""
        if self._composed is not None:
            self._composed.cleanup()
        self._composed, self._given = None, None


class Gibbs(MCMCKernel):
    r"""Composes kernels: each updates its sites given the present values of all others.

    Every kernel leaves the distribution of its sites given the others invariant; so their composition leaves the joint
    distribution invariant. Kernels may be Pyro's (NUTS, HMC, RandomWalkKernel) or this package's, built on the same
    model; each sees the model conditioned on the other sites, as they are at the time.

    :param blocks: Pairs of a kernel and its sites, in the order of their turns: names; or a function from a trace of
        the model to names; or ``None``, for all sites that no other block owns. Blocks own disjoint sets of sites,
        which have to cover all latent sites. Kernels for joint moves (``owns_sites = False``, such as
        :class:`Interweave`) may overlap with others; ``None`` means all sites for them.
    :raises ValueError: if the kernels' models differ, a kernel occurs twice or is compiled; at the start of a run, if
        sites are owned twice or not at all, do not exist, or are subsampled; on the first turn of HMC, or of NUTS
        where no other kernel changes its density, if that has no finite derivatives; on a later turn of NUTS, if it
        has none, and neither this nor another kernel has moved.

    A turn costs what its kernel costs. ``initial_params`` may name some or all latent sites (unconstrained; costs and
    discrete sites as they are; whole numbers are converted).

    **References**

    Geman, Geman (1984): Stochastic relaxation, Gibbs distributions, and the Bayesian restoration of images. IEEE TPAMI.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC, NUTS
        >>> def model():
        ...     x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ...     pyro.sample("y", dist.Normal(x, 1.0))
        >>> mcmc = MCMC(Gibbs([(NUTS(model), ["x"]), (NUTS(model), None)]), num_samples=3, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["y"].shape
        torch.Size([3])
    """

    def __init__(self, blocks: Sequence[tuple[MCMCKernel, Sites]]) -> None:
        pairs = isinstance(blocks, Sequence) and all(isinstance(block, tuple) and len(block) == 2 for block in blocks)
        if not pairs or not blocks:
            raise ValueError(f"blocks: expected pairs of a kernel and its sites, got {blocks!r}")
        models = [getattr(kernel, "model", None) for kernel, _ in blocks]
        if models[0] is None or any(model != models[0] for model in models):
            raise ValueError(f"blocks: expected kernels built on the same model, got kernels on {models}")
        if len({id(kernel) for kernel, _ in blocks}) < len(blocks):
            raise ValueError("blocks: expected different kernels, got one of them twice")
        if any(isinstance(kernel, Checkpoint) for kernel, _ in blocks):
            raise ValueError(
                "blocks: expected no Checkpoint, as it keeps the state of a whole run, got one; put it around all: "
                "Checkpoint(Gibbs(blocks), path)"
            )
        if any(is_compiled(kernel) for kernel, _ in blocks):
            raise ValueError("blocks: expected kernels with jit_compile=False, as the values of other sites change")
        self.model, self.blocks = models[0], tuple(blocks)
        self.transforms: dict[str, Any] | None = None
        self._initial_params: dict[str, Tensor] | None = None
        self._turns: list[_Turn] = []
        self._state: LatentState | None = None

    def __repr__(self) -> str:
        blocks = ", ".join(f"({kernel!r}, {shortened(sites)})" for kernel, sites in self.blocks)
        return f"Gibbs([{blocks}])"

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Finds the latent sites, a start, and prepares all kernels."""
        model = NamedLatents(self.model)
        strategies = [strategy for kernel, _ in self.blocks if (strategy := initial_strategy(kernel)) is not None]
        state = LatentState(model, args, kwargs, self._initial_params, *strategies[:1])
        self._turns = []
        for (kernel, _), names in zip(self.blocks, self._owned(state), strict=True):
            kind = type(kernel).__name__
            number = 1 + sum(type(turn.kernel) is type(kernel) for turn in self._turns)
            label = kind if number == 1 else f"{kind} {number}"
            self._turns.append(_Turn(label, kernel, model, names, state, warmup_steps, args, kwargs))
        for turn in self._turns:
            turn.find_others(state, self._turns)
        self.transforms, self._state = state.transforms, state
        self._initial_params = state.params()

    def _owned(self, state: LatentState) -> list[list[str]]:
        """Names of the sites of every block."""
        wanted: list[list[str] | None] = []
        for _, sites in self.blocks:
            names = sites(state.trace) if callable(sites) else sites
            if isinstance(names, str):
                raise ValueError(f"blocks: expected a list of names, got {names!r}")
            wanted.append(None if names is None else list(names))
            unknown = [name for name in wanted[-1] or () if name not in state.values]
            if unknown:
                raise ValueError(
                    f"blocks: expected latent sites of the model, {sorted(state.values)}, got {unknown}; a model has "
                    "to have the same latent sites at all values"
                )
        owners = [getattr(kernel, "owns_sites", True) for kernel, _ in self.blocks]
        taken = [name for names, owns in zip(wanted, owners, strict=True) if owns for name in names or ()]
        rest = [name for name in state.values if name not in taken]
        num_rests = sum(names is None and owns for names, owns in zip(wanted, owners, strict=True))
        if len(set(taken)) < len(taken) or num_rests > 1 or (rest and not num_rests):
            raise ValueError(
                f"blocks: expected each latent site in one block, got {taken} for those with names, {rest} for none of "
                f"them, and {num_rests} blocks for the rest; a model has to have the same latent sites at all values"
            )
        return [
            (rest if owns else list(state.values)) if names is None else names
            for names, owns in zip(wanted, owners, strict=True)
        ]

    @property
    def initial_params(self) -> dict[str, Tensor] | None:
        """Unconstrained values of all latent sites to start with."""
        return self._initial_params

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor]) -> None:
        self._initial_params = params

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """One turn of every kernel."""
        state = self._state
        assert state is not None
        state.read(params)
        for turn in self._turns:
            turn.take(state)
        return state.params()

    def logging(self) -> dict[str, str]:
        """Log entries of all kernels, with the kernels' names in front."""
        return {f"{turn.name} {key}": value for turn in self._turns for key, value in turn.logging().items()}

    def diagnostics(self) -> dict[str, Any]:
        """Diagnostics of all kernels, with the kernels' names in front; divergences under their own name, for
        summaries.
        """
        diagnostics: dict[str, Any] = {}
        for turn in self._turns:
            for key, value in turn.report().items():
                diagnostics[key if key == "divergences" and key not in diagnostics else f"{turn.name} {key}"] = value
        return diagnostics

    def cleanup(self) -> None:
        """Forgets the chain."""
        for turn in self._turns:
            turn.cleanup()
        self._initial_params = None


class _Turn:
    """A kernel on the model conditioned on all sites but its own."""

    def __init__(
        self,
        name: str,
        kernel: Any,
        model: Any,
        names: list[str],
        state: LatentState,
        warmup_steps: int,
        args: Any,
        kwargs: Any,
    ) -> None:
        self.name, self.names = name, names
        self._args, self._kwargs = args, kwargs
        self.others: dict[str, Tensor] = {}
        # Values that the kernel's density depends on, as it left them; its own ones, unconstrained; and sites that it
        # does not depend on.
        self._left: dict[str, Tensor] = {}
        self._returned: dict[str, Tensor] | None = None
        self._stayed = False
        self._unseen: set[str] = set()
        self.is_alone = False
        self._look(state)
        moves_costs = getattr(kernel, "moves_costs", False) or bool(state.confined.intersection(names))
        self.kernel: Any = kernel
        summed_out: frozenset[str] = getattr(kernel, "summed_out", frozenset())
        if summed_out:
            model = NamedLatents(model.model, summed_out)
        if isinstance(kernel, StepKernel):
            live = LiveModel(model, self.others, not moves_costs)
            with torch.no_grad():
                kernel.prepare(live, names, warmup_steps, args, kwargs)
            return
        if summed_out:
            given = poutine.condition(model, data={name: state.seen(name) for name in state.values})
            self._unseen = state.values.keys() - poutine.trace(given).get_trace(*args, **kwargs).nodes.keys()
        # Sites before the kernel's own do not depend on them.
        constant = list(takewhile(lambda name: name not in names, state.trace.nodes))
        live = LiveModel(model, self.others, not moves_costs, constant)
        # Pyro's kernels keep what they adapted and counted; each chain has its own copy, on the same model.
        self.kernel = copy.deepcopy(kernel, {id(kernel.model): kernel.model})
        if names:
            self.kernel.model, self.kernel.initial_params = live, state.params(names)
            self.kernel.setup(warmup_steps, *args, **kwargs)

    def find_others(self, state: LatentState, turns: "list[_Turn]") -> None:
        """Finds out whether other turns change what this kernel's density depends on."""
        moved = {name for turn in turns if turn is not self for name in turn.names}
        self.is_alone = moved.isdisjoint(state.values.keys() - self._unseen)

    def _look(self, state: LatentState) -> None:
        self.others.clear()
        self.others.update({name: state.seen(name) for name in state.values if name not in self.names})

    def take(self, state: LatentState) -> None:
        """Updates the state."""
        if not self.names:
            return
        self._look(state)
        if isinstance(self.kernel, StepKernel):
            with torch.no_grad():
                state.update(self.kernel.step({name: state.values[name] for name in self.names}))
            return
        params = state.params(self.names)
        is_as_left = self._is_as_left(state, params)
        if not is_as_left:
            forget_energy(self.kernel, params)
        if isinstance(self.kernel, NUTS):
            # It gives up at once, but others may lead away.
            is_stuck = self._stayed and is_as_left if self._returned is not None else self.is_alone
        else:
            # HMC takes billions of the smallest steps.
            is_stuck = self._returned is None and isinstance(self.kernel, HMC)
        if is_stuck:
            self._check_gradients(params)
        try:
            self._returned = self.kernel.sample(params)
        except RuntimeError:
            self._check_densities(state)
            raise
        self._stayed = all(torch.equal(value, params[name]) for name, value in self._returned.items())
        state.read(self._returned)
        # Copies, because other kernels may return the same memory each time.
        self._left = {name: value.clone() for name, value in self._seen(state).items()}

    @torch.no_grad()
    def _check_densities(self, state: LatentState) -> None:
        """Raises a ValueError that names a site whose density is not a positive number, as Pyro's kernels do not."""
        model = poutine.condition(self.kernel.model, data={name: state.seen(name) for name in self.names})
        trace: Any = poutine.trace(model).get_trace(*self._args, **self._kwargs)
        trace.compute_log_prob()
        for name, node in trace.nodes.items():
            if node["type"] == "sample" and not bool(node["log_prob_sum"].isfinite()):
                log_density, reach = float(node["log_prob_sum"]), ""
                if log_density == -torch.inf and node["value"].dtype is not torch.double:
                    reach = "; where parameters and values are finite, double precision reaches farther"
                raise ValueError(
                    f"{name}: expected a positive density at the present values of all sites, where "
                    f"{type(self.kernel).__name__} cannot start, got log-density {log_density}{reach}"
                )

    def _check_gradients(self, params: dict[str, Tensor]) -> None:
        """Raises a ValueError that names a site with respect to which the density, a positive number, has no finite
        derivatives.
        """
        gradients, energy = potential_grad(self.kernel.potential_fn, params)
        for name, gradient in gradients.items():
            if bool(energy.isfinite()) and not bool(gradient.isfinite().all()):
                wrong = float(gradient[~gradient.isfinite()][0])
                raise ValueError(
                    f"{name}: expected a log-density with finite derivatives at the start, without which "
                    f"{type(self.kernel).__name__} does not move, got {wrong} in {int((~gradient.isfinite()).sum())} "
                    f"of {gradient.numel()} entries"
                )

    def _is_as_left(self, state: LatentState, params: dict[str, Tensor]) -> bool:
        """Whether the kernel's density is that of its last turn, at the same point to the last bit, as a chain that
        is resumed would have it.
        """
        present, returned = self._seen(state), self._returned
        if returned is None or not all(torch.equal(present[name], value) for name, value in self._left.items()):
            return False
        return all(torch.equal(value, returned[name]) for name, value in params.items())

    def _seen(self, state: LatentState) -> dict[str, Tensor]:
        """Values that the kernel's density depends on."""
        return {name: value for name, value in state.values.items() if name not in self._unseen}

    def logging(self) -> dict[str, str]:
        """Log entries of the kernel."""
        return {} if isinstance(self.kernel, StepKernel) or not self.names else self.kernel.logging() or {}

    def report(self) -> dict[str, Any]:
        """Diagnostics of the kernel."""
        if not self.names:
            return {}
        diagnostics: dict[str, Any] = (
            self.kernel.report() if isinstance(self.kernel, StepKernel) else self.kernel.diagnostics()
        )
        return diagnostics

    def cleanup(self) -> None:
        """Forgets the chain."""
        if not isinstance(self.kernel, StepKernel):
            self.kernel.cleanup()
