"""State of learning: parameters, buffers, optimiser and random number generators."""

__all__ = ["LearningState", "plain_constraint", "rebuilt_constraint"]

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import pyro
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from pyro.params.param_store import normalize_param_name
from torch import Tensor
from torch.distributions import constraints
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_structured.foundation.inference.plain_data import plain_copy
from pyro_structured.foundation.inference.random_state import load_random_state, random_state, same_random_state
from pyro_structured.foundation.ops.private_members import add_optimizer, optimizer_states, waiting_states

# Modules whose classes a file may name.
MODULES = (
    "torch.distributions.constraints",
    "pyro.distributions.constraints",
    "pyro_structured.optima.distributions.truncated_normal",
)


def plain_constraint(constraint: Any, name: str) -> dict[str, Any]:
    """Name of a constraint's class, and its arguments, as plain data.

    :param str name: Name of the parameter, for errors.
    :raises ValueError: if the class is none of PyTorch's, Pyro's or ours.
    """
    kind = type(constraint)
    if kind.__module__ not in MODULES or getattr(import_module(kind.__module__), kind.__name__, None) is not kind:
        raise ValueError(
            f"{name}: expected a constraint of torch.distributions, pyro.distributions or pyro_structured, of which a "
            f"state keeps the name, got {kind.__module__}.{kind.__name__}; write the parameter as a function of one "
            "that has such a constraint"
        )
    arguments = {key: _plain_argument(value, f"{name}: {key}") for key, value in vars(constraint).items()}
    return {"module": kind.__module__, "class": kind.__name__, "arguments": arguments}


def _plain_argument(value: Any, name: str) -> Any:
    if isinstance(value, constraints.Constraint):
        return plain_constraint(value, name)
    if isinstance(value, (list, tuple)):
        return [_plain_argument(member, name) for member in value]
    return plain_copy(value, name)


def rebuilt_constraint(plain: dict[str, Any]) -> Any:
    """A constraint from what :func:`plain_constraint` returned.

    :raises ValueError: if the class is not known here.
    """
    module, name = plain["module"], plain["class"]
    kind = getattr(import_module(module), name, None) if module in MODULES else None
    if not (isinstance(kind, type) and issubclass(kind, constraints.Constraint)):
        raise ValueError(f"state: expected constraints that PyTorch, Pyro or pyro_structured have, got {module}.{name}")
    constraint = kind.__new__(kind)
    vars(constraint).update({key: _rebuilt_argument(value) for key, value in plain["arguments"].items()})
    return constraint


def _rebuilt_argument(value: Any) -> Any:
    if isinstance(value, dict):
        return rebuilt_constraint(value)
    return [_rebuilt_argument(member) for member in value] if isinstance(value, list) else value


class _ModuleBuffers:
    """Tensors that modules change when they are called, such as the running means of ``BatchNorm``.

    Pyro does not know of them. They are those of all modules, with their submodules, that are called inside of
    :meth:`watch`, wherever models hold them; but not of modules that are called inside of a compiled function only.
    """

    def __init__(self) -> None:
        self._called: WeakKeyDictionary[Module, None] = WeakKeyDictionary()
        self._before: list[tuple[Module, str, Tensor, Tensor]] = []
        # Number of parameters in the store when all parameters of modules had been seen.
        self._num_params = -1

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Context that records the modules that are called, and their buffers before.

        Hooks on modules make ``torch.compile`` begin anew: there is one only as long as Pyro's store has parameters of
        modules that have not been seen.
        """
        self._before = [copy for module in self._called for copy in _copies(module)]
        store = pyro.get_param_store()
        if len(store) == self._num_params:
            yield
            return
        handle = register_module_forward_pre_hook(self._see)
        try:
            yield
        finally:
            handle.remove()
        owned = {param for module in self._called for param in module.parameters()}
        if all(param in owned for _, param in store.named_parameters() if isinstance(param, Parameter)):
            self._num_params = len(store)

    def _see(self, module: Module, inputs: Any) -> None:
        # A module that is compiled as a whole has been seen; modules inside of it cannot be inspected.
        if not torch.compiler.is_compiling() and module not in self._called:
            self._called[module] = None
            self._before += _copies(module)

    @torch.no_grad()
    def undo(self) -> None:
        """Restores the buffers as they were before :meth:`watch`."""
        # Where a module was copied twice, as itself and as a submodule, the earlier copy is right.
        for owner, name, buffer, value in reversed(self._before):
            setattr(owner, name, buffer.copy_(value))

    def values(self) -> dict[str, Tensor]:
        """Copies of the buffers, by names that are the same in every process."""
        return {name: buffer.clone() for name, buffer in self._named().items()}

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Sets the buffers to values.

        :raises ValueError: if the modules that were called have no such buffers.
        """
        present = self._named()
        for name, value in values.items():
            if name not in present or present[name].shape != value.shape:
                got = f"shape {tuple(present[name].shape)}" if name in present else "none of this name"
                raise ValueError(
                    f"{name}: expected a buffer of shape {tuple(value.shape)}, as that of the state, in the modules "
                    f"that the model calls, got {got}"
                )
        for name, value in values.items():
            present[name].copy_(value)

    def _named(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for module in self._called:
            buffers = {name: buffer for name, buffer in module.named_buffers() if not _is_among(buffer, named)}
            if buffers:
                prefix = _prefix(module, counts)
                named |= {normalize_param_name(prefix + name): buffer for name, buffer in buffers.items()}
        return named


def _copies(module: Module) -> list[tuple[Module, str, Tensor, Tensor]]:
    parts = (
        (submodule, name, buffer)
        for submodule in module.modules()
        for name, buffer in submodule.named_buffers(recurse=False)
    )
    return [(submodule, name, buffer, buffer.detach().clone()) for submodule, name, buffer in parts]


def _is_among(buffer: Tensor, named: dict[str, Tensor]) -> bool:
    return any(known is buffer for known in named.values())


def _prefix(module: Module, counts: dict[str, int]) -> str:
    """Prefix of the names of a module's buffers: that of its parameters in Pyro's store, or its class with a number."""
    store = pyro.get_param_store()
    for name, param in module.named_parameters():
        full = normalize_param_name(store.param_name(param) or "")
        if full.endswith(name):
            return full.removesuffix(name)
    kind = type(module).__name__
    counts[kind] = counts.get(kind, -1) + 1
    return f"{kind} {counts[kind]}."


PARTS = ("params", "buffers", "optim", "random", "has_run")


class LearningState:
    """Parameters, buffers of modules, the optimiser and generators of random numbers, which a file can keep.

    Guides, and modules that models register, have their parameters from their first run on only. A process that goes on
    from a state has not run them. Therefore it runs the model once before the next step, for nothing else, and then
    copies the loaded values into the parameters that exist now; random numbers are not affected.

    :param model: A Pyro model.
    :param guide: A Pyro guide.
    :param optim: A Pyro optimiser, or ``None``.
    :ivar bool has_run: Whether the model has been run.
    """

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], optim: PyroOptim | None) -> None:
        self.model, self.guide, self.optim = model, guide, optim
        self.has_run = False
        self._buffers = _ModuleBuffers()
        # Loaded values, kept until the model has been run with them.
        self._is_resumed = False
        self._loaded_params: dict[str, Tensor] = {}
        self._loaded_buffers: dict[str, Tensor] = {}

    def state_dict(self) -> dict[str, Any]:
        """Parameters, buffers, optimiser and generators as plain data.

        :raises ValueError: if a part cannot be expressed as plain data, with its name.
        """
        _check_global_store()
        learned, limits = self.learned(), pyro.get_param_store().get_state()["constraints"]
        return {
            "params": {
                "params": learned["params"],
                "constraints": {name: plain_constraint(constraint, name) for name, constraint in limits.items()},
            },
            "buffers": learned["buffers"],
            "optim": self.optim_state(),
            "random": random_state(),
            "has_run": self.has_run or self._is_resumed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state."""
        _check_global_store()
        missing = [part for part in PARTS if part not in state]
        if missing:
            raise ValueError(f"state: expected what state_dict returned, got none of {missing}")
        if (state["optim"] is None) != (self.optim is None):
            raise ValueError(
                "state: expected that of a learner with an optimiser if there is one here, got "
                f"{'none' if state['optim'] is None else 'one'}"
            )
        buffers = {name: value.detach().clone() for name, value in state["buffers"].items()}
        if self.has_run:
            self._buffers.load(buffers)
        else:
            self._loaded_buffers = buffers
        self._load_params(**state["params"])
        self._is_resumed = state["has_run"] and (not self.has_run or bool(self._loaded_params))
        self.load_optim(state["optim"])
        load_random_state(state["random"])

    def learned(self) -> dict[str, Any]:
        """Copies of parameters and buffers."""
        params = pyro.get_param_store().named_parameters()
        return {
            "params": {name: param.detach().clone() for name, param in params},
            "buffers": {**self._loaded_buffers, **self._buffers.values()},
        }

    @torch.no_grad()
    def put_back(self, learned: Mapping[str, Any]) -> None:
        """Restores parameters and buffers in place, because modules hold the same tensors."""
        present = dict(pyro.get_param_store().named_parameters())
        for name, value in learned["params"].items():
            present[name].copy_(value)
        self._buffers.load(learned["buffers"])

    def optim_state(self) -> dict[str, Any] | None:
        """Copy of the optimiser's state, by names of parameters, also those not seen since a state was loaded."""
        if self.optim is None:
            return None
        store = pyro.get_param_store()
        present = {store.param_name(param): state for param, state in optimizer_states(self.optim).items()}
        # Parameters that are no longer in the store have no name.
        present.pop(None, None)
        copy: dict[str, Any] = plain_copy({**waiting_states(self.optim), **present}, "optim")
        return copy

    def load_optim(self, state: Mapping[str, Any] | None) -> None:
        """Restores the optimiser's state; makes all optimisers at once, so that schedules go on with the next step."""
        if self.optim is None or state is None:
            return
        store = dict(pyro.get_param_store().named_parameters())
        self.optim.optim_objs.clear()
        self.optim.grad_clip.clear()
        waiting_states(self.optim).clear()
        for name, param_state in plain_copy(state, "optim").items():
            if name in store:
                add_optimizer(self.optim, store[name], param_state)
            else:
                self.optim.set_state({name: param_state})

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Context of a step: if it fails, buffers are restored."""
        with self._buffers.watch():
            try:
                yield
            except BaseException:
                self._buffers.undo()
                raise
        self.has_run = True

    def resume(self, args: Any, kwargs: Any) -> None:
        """Calls :meth:`prepare` before the first step after a state has been loaded."""
        if self._is_resumed:
            self.prepare(args, kwargs)

    def prepare(self, args: Any, kwargs: Any) -> None:
        """Runs model and guide once, so that they have parameters, and leaves all else as it was."""
        store = pyro.get_param_store()
        optim, state = self.optim_state(), store.get_state()
        # Modules are to bring their own tensors.
        loaded = {name: param for name, param in self._loaded_params.items() if state["params"].get(name) is param}
        for name in loaded:
            del store[name]
        limits = {name: state["constraints"][name] for name in loaded}
        try:
            with same_random_state(), self._buffers.watch(), torch.no_grad():
                guide: Any = poutine.trace(self.guide).get_trace(*args, **kwargs)
                poutine.replay(self.model, trace=guide)(*args, **kwargs)
                self._buffers.undo()
            present = dict(store.named_parameters())
            params = {name: _moved(name, param, present.get(name, param)) for name, param in loaded.items()}
            self._buffers.load(self._loaded_buffers)
        except BaseException:
            store.set_state({"params": loaded, "constraints": limits})
            raise
        store.set_state({"params": params, "constraints": limits})
        if loaded:
            self.load_optim(optim)
        self.has_run, self._is_resumed, self._loaded_params, self._loaded_buffers = True, False, {}, {}

    def _load_params(self, params: Mapping[str, Tensor], constraints: Mapping[str, Any]) -> None:
        """Sets the parameters of Pyro's store, in place where there is a parameter of the same shape and dtype."""
        store = pyro.get_param_store()
        limits = {name: rebuilt_constraint(constraint) for name, constraint in constraints.items()}
        present, kept = dict(store.named_parameters()), {}
        for name, value in params.items():
            old = present.get(name)
            if old is not None and (old.shape, old.dtype) == (value.shape, value.dtype):
                old.data.copy_(value)
                kept[name] = old
            else:
                kept[name] = self._loaded_params[name] = value.detach().clone().requires_grad_()
        store.set_state({"params": kept, "constraints": limits})


def _moved(name: str, value: Tensor, param: Tensor) -> Tensor:
    """Parameter of the model with a loaded value."""
    if (param.shape, param.dtype) != (value.shape, value.dtype):
        raise ValueError(
            f"{name}: expected a parameter of shape {tuple(param.shape)} and {param.dtype}, as the model has, got "
            f"shape {tuple(value.shape)} and {value.dtype} in the state"
        )
    param.data.copy_(value.data)
    return param


def _check_global_store() -> None:
    if pyro.settings.get("module_local_params"):
        raise NotImplementedError(
            "state_dict: expected parameters in Pyro's store, got the setting module_local_params=True; keep the "
            "modules' own state_dict"
        )
