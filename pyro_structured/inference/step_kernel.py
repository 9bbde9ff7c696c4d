"""Kernels that update named values."""

__all__ = ["StepKernel"]

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor


class StepKernel(MCMCKernel):
    """A kernel that is an adapter of a step from values to values, to be composed by :class:`Gibbs`.

    Alone it runs as the composition that :meth:`composition` says.

    :param model: A Pyro model.
    """

    # Whether its sites are updated by no other kernel.
    owns_sites = True
    # Whether it looks at optima of costs.
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
        """Starts a chain.

        :param model: The model given all sites but its own; it changes as these do.
        :param names: Its own sites.
        """

    @abstractmethod
    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """New values of its sites; costs are in double precision. Called without gradients, as ``prepare``."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """What happened since the start of the chain, for ``diagnostics``."""

    def composition(self, args: Any, kwargs: Any) -> list[tuple[MCMCKernel, Any]]:
        """Blocks for :class:`Gibbs` that update all latent sites."""
        return [(self, None)]

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Starts a chain of the composition."""
        from pyro_structured.inference.gibbs import Gibbs

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
