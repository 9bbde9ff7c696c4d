"""Private members of torch and Pyro without a public equivalent: releases of both can break nothing but this file."""

__all__ = [
    "MCMCRun",
    "add_optimizer",
    "autograd_in_operators",
    "bernoulli_is_given_by_logits",
    "constant_in_graphs",
    "forget_energy",
    "group_store",
    "has_forward_derivatives",
    "initial_strategy",
    "is_compiled",
    "is_in_graph",
    "is_plate",
    "is_transformed",
    "keep_mcmc_run",
    "mask_of",
    "mcmc_run",
    "optimizer_states",
    "share_optimizers",
    "waiting_states",
]

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from pyro.infer.mcmc import RandomWalkKernel
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.optim import PyroOptim
from pyro.optim.optim import _get_state_dict, _load_state_dict
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def is_transformed() -> bool:
    """Whether ``torch.vmap`` or another transform of functions is active, so that tensors have no values to look at."""
    return torch._C._are_functorch_transforms_active()


def has_forward_derivatives() -> bool:
    """Whether tensors may carry forward derivatives: in a transform of functions, or in a level of dual numbers."""
    return is_transformed() or torch.autograd.forward_ad._current_level >= 0


def autograd_in_operators() -> Any:
    """Context in which an operator of ``torch.library`` may differentiate what it computes, as torch's own may not."""
    return torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)


def constant_in_graphs(function: Function) -> Function:
    """Marks a function that ``torch.compile`` is to call while it traces, as ``torch.compiler.assume_constant_result``
    does, whose import takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_in_graph() -> bool:
    """Whether ``torch.compile`` traces what is done, under no other transform than ``torch.vmap``: operators of
    ``torch.library`` have no forward derivatives, and none by ``torch.func``.
    """
    return torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level < 0 and _is_vmapped_only()


@constant_in_graphs
def _is_vmapped_only() -> bool:
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return all(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


def is_plate(fn: Any) -> bool:
    """Whether the distribution of a site is the choice of a plate's rows, with ``size`` and ``subsample_size``."""
    return isinstance(fn, _Subsample)


def mask_of(masked: Any) -> Any:
    """Mask of Pyro's ``MaskedDistribution``: a tensor of booleans, or a single boolean."""
    return masked._mask


def bernoulli_is_given_by_logits(bernoulli: Any) -> bool:
    """Whether a Bernoulli distribution was made from ``logits``; torch keeps ``probs``, too, once they are read."""
    return bernoulli._param is vars(bernoulli).get("logits")


class MCMCRun(NamedTuple):
    """Results of a run of ``pyro.infer.MCMC``.

    :ivar draws: Draws by names of sites, ``None`` before the run is finished.
    :ivar tuple args: Positional arguments of the model.
    :ivar dict kwargs: Keyword arguments of the model.
    :ivar list diagnostics: Diagnostics of the kernel, for each chain.
    """

    draws: dict[str, Tensor] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    diagnostics: list[Any]


def mcmc_run(mcmc: Any) -> MCMCRun:
    """Results that an ``MCMC`` object keeps of its run."""
    return MCMCRun(mcmc._samples, mcmc._args, mcmc._kwargs, mcmc._diagnostics)


def keep_mcmc_run(mcmc: Any, run: MCMCRun) -> None:
    """Makes results those that an ``MCMC`` object keeps."""
    mcmc._samples, mcmc._args, mcmc._kwargs, mcmc._diagnostics = run


def initial_strategy(kernel: MCMCKernel) -> Any:
    """Initialisation strategy of a kernel of Pyro's, or ``None``."""
    return getattr(kernel, "_init_strategy", None)


def is_compiled(kernel: MCMCKernel) -> bool:
    """Whether a kernel was made with ``jit_compile=True``."""
    return bool(getattr(kernel, "_jit_compile", False))


def forget_energy(kernel: MCMCKernel, params: dict[str, Tensor]) -> None:
    """Clears a kernel's cached density, because other sites have changed.

    :param params: Present values of the kernel's sites, unconstrained.
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
    """States of the parameters that have not been seen since a state was loaded, by name; may be changed."""
    return optim._state_waiting_to_be_consumed


def add_optimizer(optim: PyroOptim, param: Tensor, state: dict[str, Any]) -> None:
    """Makes the optimiser of a parameter at once, and loads its state."""
    optim.optim_objs[param] = optim._get_optim(param)
    optim.grad_clip[param] = optim._get_grad_clip(param)  # type: ignore[arg-type]
    _load_state_dict(optim.optim_objs[param], state)


def share_optimizers(outer: PyroOptim, inner: PyroOptim) -> None:
    """Makes an optimiser around another one have the optimisers and states of parameters of that one."""
    outer.optim_objs, outer.grad_clip = inner.optim_objs, inner.grad_clip
    outer._state_waiting_to_be_consumed = inner._state_waiting_to_be_consumed
    outer._get_optim = inner._get_optim  # type: ignore[method-assign]
    outer._get_grad_clip = inner._get_grad_clip  # type: ignore[method-assign]


def group_store() -> Any:
    """Texts by names, which all processes of PyTorch's default process group see."""
    # Some builds of PyTorch have none.
    from torch.distributed import distributed_c10d

    return distributed_c10d.PrefixStore("pyro_structured", distributed_c10d._get_default_store())
