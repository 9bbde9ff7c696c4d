"""Buffers of the modules that models call."""

__all__ = ["ModuleBuffers"]

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pyro
import torch
from pyro.params.param_store import normalize_param_name
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_forward_pre_hook


class ModuleBuffers:
    """Tensors that modules change when they are called, such as the running means of ``BatchNorm``.

    Pyro does not know of them. They are those of all modules, with their parts, that are called while somebody watches,
    however models come by them; but not of modules that are called inside of a compiled function only.
    """

    def __init__(self) -> None:
        self._called: WeakKeyDictionary[Module, None] = WeakKeyDictionary()
        self._before: list[tuple[Module, str, Tensor, Tensor]] = []
        # How many parameters there were in the store when all that are parts of modules had been seen.
        self._num_params = -1

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Looks at what is called, and remembers how it was before.

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
        # A module that is compiled as a whole has been seen; what is inside of it is not Python's to look at.
        if not torch.compiler.is_compiling() and module not in self._called:
            self._called[module] = None
            self._before += _copies(module)

    @torch.no_grad()
    def undo(self) -> None:
        """Goes back to how buffers were before somebody watched."""
        # The earliest copies of parts that were called again in a whole are right.
        for owner, name, buffer, value in reversed(self._before):
            setattr(owner, name, buffer.copy_(value))

    def values(self) -> dict[str, Tensor]:
        """Copies, by names that are the same in every process."""
        return {name: buffer.clone() for name, buffer in self._named().items()}

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Goes back to values.

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
        found: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for module in self._called:
            buffers = {name: buffer for name, buffer in module.named_buffers() if not _is_among(buffer, found)}
            if buffers:
                prefix = _prefix(module, counts)
                found |= {normalize_param_name(prefix + name): buffer for name, buffer in buffers.items()}
        return found


def _copies(module: Module) -> list[tuple[Module, str, Tensor, Tensor]]:
    parts = ((part, name, buffer) for part in module.modules() for name, buffer in part.named_buffers(recurse=False))
    return [(part, name, buffer, buffer.detach().clone()) for part, name, buffer in parts]


def _is_among(buffer: Tensor, found: dict[str, Tensor]) -> bool:
    return any(other is buffer for other in found.values())


def _prefix(module: Module, counts: dict[str, int]) -> str:
    """What comes before the name of a buffer: as with its parameters in Pyro's store, or the class with a number."""
    store = pyro.get_param_store()
    for name, param in module.named_parameters():
        full = normalize_param_name(store.param_name(param) or "")
        if full.endswith(name):
            return full.removesuffix(name)
    kind = type(module).__name__
    counts[kind] = counts.get(kind, -1) + 1
    return f"{kind} {counts[kind]}."
