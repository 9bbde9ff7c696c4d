"""Treatment of special sites by kernels and learners, which families of distributions register."""

__all__ = [
    "Confinement",
    "SiteHandler",
    "check_confined",
    "confined_sites",
    "confinement_of",
    "handler_of",
    "log_weight",
    "random_value",
    "register_confinement",
    "register_sites",
]

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from pyro.infer.autoguide.initialization import init_to_sample
from pyro.infer.reparam.reparam import Reparam
from torch import Tensor

from pyro_structured import SITE_HANDLERS
from pyro_structured.foundation.distributions.independent_parts import entry_distribution


class SiteHandler:
    """Properties of distributions at sites, for kernels and learners; those of this base class hold for ordinary sites.

    :cvar bool is_normalized: Whether ``log_prob`` is within reach; otherwise there is ``unnormalized_log_prob``.
    """

    is_normalized = True

    def random_value(self, fn: Any, site: Any) -> Tensor:
        """A value of positive density to start with, found without much work.

        :param fn: The distribution, also where axes of its batch belong to one event of the site.
        :param site: Pyro's message.
        """
        drawn: Tensor = init_to_sample(site)
        return drawn

    def reparam(self, fn: Any) -> Reparam | None:
        """Reparametrisation that makes hidden variables of the site a site of their own; ``None`` if there are none."""
        return None

    def constant(self, fn: Any) -> object | None:
        """Object on which the density depends if the site is certain given other sites, as optima are given their
        costs; otherwise ``None``.
        """
        return None

    def mask_heir(self, name: str) -> str | None:
        """Name of the site that takes over the mask of this one, if this one is observed; ``None`` if there is none."""
        return None

    def check_exact_draws(self, fn: Any) -> None:
        """Raises a NotImplementedError, with the budget, if :meth:`move` is beyond it."""

    def start(self, posterior: Any, value: Tensor) -> Tensor:
        """Value from which :meth:`move` begins in a run; the present one, if it does not matter.

        :param posterior: The distribution given independent evidence.
        :param Tensor value: The present value, of positive density.
        """
        return value

    def move(self, posterior: Any, value: Tensor) -> Tensor:
        """An exact draw from a posterior; where there is none, a value to which a Markov chain that leaves the
        posterior invariant moves.

        :param posterior: The distribution given independent evidence.
        :param Tensor value: The present value, of positive density.
        """
        drawn: Tensor = posterior.sample()
        return drawn

    def check_log_likelihood(self, fn: Any, value: Tensor) -> None:
        """Raises a NotImplementedError, with the reason, if an observed value has no log-likelihood."""


class Confinement(Protocol):
    """Search for and starts of latent sites that observed ones confine, such as costs whose optimum is observed."""

    def check(self, trace: Any) -> None:
        """Raises a ValueError, with the site's name, if the trace of a model has sites that no kernel can treat."""

    def find(self, trace: Any) -> Sequence[tuple[str, str]]:
        """Pairs of the name of a latent site and that of an observed site that confines it."""

    def check_feasible(self, site: tuple[str, str], trace: Any) -> None:
        """Raises a ValueError, with the site's name, if no latent value allows the observed one."""

    def start(self, site: tuple[str, str], trace: Any, is_given: bool) -> Tensor:
        """A latent value that all observed sites allow, in double precision, near the one in a trace.

        :raises ValueError: if there is none, or if the one in the trace was given and is not allowed.
        """


_HANDLERS: list[tuple[type, SiteHandler]] = []
_CONFINEMENTS: list[Confinement] = []
_ORDINARY = SiteHandler()


def register_sites(kind: type, handler: SiteHandler) -> None:
    """Registers the handler of sites with distributions of a class."""
    _HANDLERS.append((kind, handler))


def register_confinement(confinement: Confinement) -> None:
    """Registers a kind of latent sites that observed ones confine."""
    _CONFINEMENTS.append(confinement)


@cache
def _load() -> None:
    """Imports all handlers: a process that gets a pickled kernel may have imported nothing else."""
    for module in SITE_HANDLERS:
        import_module(module)


def handler_of(fn: Any) -> SiteHandler:
    """Handler of a distribution, which is neither masked nor declared an event."""
    _load()
    return next((handler for kind, handler in _HANDLERS if isinstance(fn, kind)), _ORDINARY)


def confinement_of(trace: Any) -> list[tuple[Confinement, tuple[str, str]]]:
    """Pairs of all confined and confining sites of a trace, each with its kind of confinement."""
    _load()
    return [(confinement, site) for confinement in _CONFINEMENTS for site in confinement.find(trace)]


def confined_sites(trace: Any) -> list[str]:
    """Names of the latent sites that observed ones confine."""
    return [latent for _, (latent, _) in confinement_of(trace)]


def check_confined(trace: Any) -> None:
    """Raises a ValueError if the trace of a model has confined sites that no kernel can treat."""
    _load()
    for confinement in _CONFINEMENTS:
        confinement.check(trace)


def log_weight(fn: Any, value: Tensor) -> Tensor:
    """Log-density of a value; without the log partition function where that is out of reach."""
    base = entry_distribution(fn)
    if handler_of(base).is_normalized:
        log_prob: Tensor = fn.log_prob(value)
        return log_prob
    weights: Tensor = base.unnormalized_log_prob(value)
    # Sums over axes of the base's batch that belong to the event.
    return weights if base is fn else weights.flatten(len(fn.batch_shape)).sum(-1)


def random_value(site: Any) -> Tensor:
    """A value of positive density to start a chain with."""
    fn = entry_distribution(site["fn"])
    return handler_of(fn).random_value(fn, site)
