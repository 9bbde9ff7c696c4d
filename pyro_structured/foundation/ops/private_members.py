"""Private members of torch and Pyro, where no public ones do: a release of theirs can break nothing but this file."""

__all__ = [
    "MCMCRun",
    "add_optimizer",
    "bernoulli_is_given_by_logits",
    "forget_energy",
    "initial_strategy",
    "is_compiled",
    "is_plate",
    "is_transformed",
    "mask_of",
    "mcmc_run",
    "optimizer_states",
    "waiting_states",
]

from typing import Any, NamedTuple

import torch
from pyro.infer.mcmc import RandomWalkKernel
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.optim import PyroOptim
from pyro.optim.optim import _get_state_dict, _load_state_dict
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor


def is_transformed() -> bool:
    """Whether ``torch.vmap`` or another transform of functions is active, so that tensors have no values to look at."""
    return torch._C._are_functorch_transforms_active()


def is_plate(fn: Any) -> bool:
    """Whether the distribution of a site is the choice of a plate's rows, with ``size`` and ``subsample_size``."""
    return isinstance(fn, _Subsample)


def mask_of(masked: Any) -> Any:
    """The mask of Pyro's ``MaskedDistribution``: booleans, or one."""
    return masked._mask


def bernoulli_is_given_by_logits(bernoulli: Any) -> bool:
    """Whether its parameter is ``logits``; torch keeps ``probs``, too, once they have been asked for."""
    return bernoulli._param is vars(bernoulli).get("logits")


class MCMCRun(NamedTuple):
    """Run of ``pyro.infer.MCMC``.

    :ivar draws: ``None`` before the run is finished.
    :ivar tuple args: Arguments of the model.
    :ivar dict kwargs: Keyword arguments of the model.
    :ivar list diagnostics: Diagnostics of the kernel of each chain.
    """

    draws: dict[str, Tensor] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    diagnostics: list[Any]


def mcmc_run(mcmc: Any) -> MCMCRun:
    """Draws, arguments and diagnostics of a run."""
    return MCMCRun(mcmc._samples, mcmc._args, mcmc._kwargs, mcmc._diagnostics)


def initial_strategy(kernel: MCMCKernel) -> Any:
    """Function with which a kernel of Pyro's initialises sites, or ``None``."""
    return getattr(kernel, "_init_strategy", None)


def is_compiled(kernel: MCMCKernel) -> bool:
    """Whether it was made with ``jit_compile=True``."""
    return bool(getattr(kernel, "_jit_compile", False))


def forget_energy(kernel: MCMCKernel, params: dict[str, Tensor]) -> None:
    """Lets a kernel look at the density anew, because other sites have changed.

    :param params: Present values of its sites, unconstrained.
    """
    if hasattr(kernel, "clear_cache"):
        kernel.clear_cache()
    elif isinstance(kernel, RandomWalkKernel):
        with torch.no_grad():
            kernel._energy_last = kernel.potential_fn(params)


def optimizer_states(optim: PyroOptim) -> dict[Tensor, dict[str, Any]]:
    """States of torch's optimisers, one for each parameter that has been seen."""
    return {param: _get_state_dict(optimizer) for param, optimizer in optim.optim_objs.items()}


def waiting_states(optim: PyroOptim) -> dict[str, Any]:
    """States, by names of parameters, of those that have not been seen since a state was loaded; may be changed."""
    return optim._state_waiting_to_be_consumed


def add_optimizer(optim: PyroOptim, param: Tensor, state: dict[str, Any]) -> None:
    """Makes the optimiser of a parameter at once, with a state."""
    optim.optim_objs[param] = optim._get_optim(param)
    optim.grad_clip[param] = optim._get_grad_clip(param)  # type: ignore[arg-type]
    _load_state_dict(optim.optim_objs[param], state)
