"""Kernels around a step from values to values."""

__all__ = ["StepKernel"]

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor


class StepKernel(MCMCKernel):
    r"""Base of your own kernels: what ``MCMC`` asks for, around a step from values to values.

    A kernel says how a chain starts, :meth:`prepare`, and how it goes on, :meth:`step`. Starts, unconstrained values,
    chains one after the other or in parallel, and the bookkeeping of draws are done here. It runs alone in
    ``pyro.infer.MCMC``, and as a block of :class:`Gibbs`. A step has to leave the distribution of its sites given the
    data and all other sites invariant; :func:`~pyro_structured.testing.check_kernel` shows whether it does.

    For parallel chains kernels are pickled before they start: what is not picklable is made in ``prepare``.
    :class:`Checkpoint` keeps what changes in attributes; a kernel with a state of another kind has the methods
    ``state_dict`` and ``load_state_dict``.

    :param model: A Pyro model.
    :cvar bool owns_sites: Whether its sites are updated by no other kernel; False for joint moves.
    :cvar bool moves_costs: Whether it looks at optima of costs, though these are not its own sites.
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
        self.transforms: dict[str, Any] | None = None
        self._given: dict[str, Tensor] | None = None
        self._composed: Any = None

    @abstractmethod
    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain: also a second one of the same kernel, so counters and adaptation start anew.

        :param model: The model given all sites but its own; it changes as these do.
        :param names: Its own sites.
        :param warmup_steps: Number of steps that may adapt the kernel; nothing says when they are over, so count.
        :param args: Positional arguments of the model.
        :param kwargs: Its keyword arguments.
        """

    @abstractmethod
    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """New values of its sites from the present ones, which must not be changed in place.

        Called without gradients, as ``prepare``. Others may have moved since its last step.

        :param dict values: Of its own sites, as the model sees them; costs of observed optima in double precision.
        """

    def steps(self, values: dict[str, Tensor], num_steps: int) -> list[dict[str, Tensor]]:
        """Values after each of some steps, between which nothing else changes; one :meth:`step` after the other."""
        found = []
        for _ in range(num_steps):
            values = self.step(values)
            found.append(values)
        return found

    def report(self) -> dict[str, Any]:
        """What happened since the start of the chain, for ``diagnostics``; nothing unless overridden."""
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
        from pyro_structured.foundation.inference.gibbs import Gibbs

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
        found: dict[str, Tensor] = self._composed.sample(params)
        return found

    def logging(self) -> dict[str, str]:
        """What the composition logs."""
        return {} if self._composed is None else self._composed.logging()

    def diagnostics(self) -> dict[str, Any]:
        """What the composition reports."""
        return {} if self._composed is None else self._composed.diagnostics()

    def cleanup(self) -> None:
        """Forgets the chain."""
        if self._composed is not None:
            self._composed.cleanup()
        self._composed, self._given = None, None
