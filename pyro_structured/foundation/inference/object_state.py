"""Objects as plain data."""

__all__ = ["ObjectState"]

import importlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution, Transform
from torch.distributions.constraints import Constraint

from pyro_structured.foundation.inference.data_digest import data_digest
from pyro_structured.foundation.structures.immutable import Immutable

Path = tuple[Any, ...]

PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)
# Classes of objects that never change.
CONSTANTS = (
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial, type, Enum, np.generic),
    *(Trace, Distribution, Transform, Constraint, Immutable),
)
CONTAINERS = (dict, OrderedDict, list, deque, set, frozenset, tuple)
# Packages whose classes and functions data may name.
PACKAGES = ("pyro", "pyro_structured")
# Size of an object that has nothing but attributes: larger ones have slots, or a state that only C code can read.
PLAIN_SIZE = type("_Plain", (), {}).__basicsize__


class ObjectState:
    """All objects that can be reached from a root, by their paths, and conversion of objects to data that refer to
    them.

    Data are tensors, numbers, texts, and lists and tuples of these, so that ``torch.load`` takes them with
    ``weights_only=True``. Functions, distributions, traces, transforms and immutable objects are constants. An object
    that has the methods ``state_dict`` and ``load_state_dict`` provides its state itself.

    :param root: An object, whose attributes and members are searched.
    :param dict constants: Further objects, with names, that are not searched.
    """

    def __init__(self, root: Any = None, constants: dict[str, Any] | None = None) -> None:
        self.objects: dict[Path, Any] = {}
        self._paths: dict[int, Path] = {}
        self._digests: dict[Path, str] = {}
        self._classes: dict[str, type] = {_name(kind): kind for kind in CONTAINERS}
        for name, constant in (constants or {}).items():
            self._add((name,), constant)
        self._constants = set(self.objects)
        waiting: list[tuple[Path, Any]] = [((), root)]
        while waiting:
            path, value = waiting.pop()
            if type(value) in PLAIN:
                continue
            is_new = id(value) not in self._paths
            self._add(path, value)
            if is_new and isinstance(value, CONSTANTS):
                self._constants.add(path)
            elif is_new and not _says_its_state(value):
                waiting.extend(((*path, key), member) for key, member in _items(value))

    def _add(self, path: Path, value: Any) -> None:
        self.objects[path] = value
        self._paths.setdefault(id(value), path)
        self._classes[_name(type(value))] = type(value)
        if isinstance(value, Tensor):
            self._digests[path] = data_digest(value)

    def save(self) -> list[tuple[Path, Any]]:
        """Present state of the root: paths and contents of its parts, without constants and unchanged tensors.

        :raises NotImplementedError: if an object cannot be expressed as data; the message names the first one.
        """
        encoder, contents = _Encoder(self), []
        seen: set[Path] = {()}
        waiting: list[Path] = [()]
        while waiting:
            path = waiting.pop()
            value = self.objects[path]
            is_same = isinstance(value, Tensor) and data_digest(value) == self._digests[path]
            if path not in self._constants and not is_same:
                contents.append((path, encoder.state(value, path)))
            waiting.extend(encoder.met - seen)
            seen |= encoder.met
        return contents

    def load(self, state: list[tuple[Path, Any]]) -> None:
        """Restores the root to a saved state.

        :raises ValueError: if a part of it is missing.
        """
        for path, _ in state:
            if path not in self.objects:
                raise ValueError(f"{_text(path)}: expected an object, as in the file, got none")
        decoder = _Decoder(self)
        # Known objects may be part of several contents, so that all contents are made before any object is filled.
        contents = [(self.objects[path], decoder.state(kind, content), kind) for path, (kind, content) in state]
        for value, content, kind in contents:
            if kind == "own":
                value.load_state_dict(content)
            else:
                _fill(value, content)

    def path(self, value: Any) -> Path | None:
        """Path of an object, or ``None`` if it was not reached from the root."""
        if isinstance(value, MethodType):
            # Each look-up of a method makes a new object, equal to the earlier ones.
            return next(
                (path for path, known in self.objects.items() if type(known) is MethodType and known == value), None
            )
        return self._paths.get(id(value))

    def encode(self, value: Any, name: str) -> Any:
        """A new object as data.

        :param str name: Name of the object in errors.
        :raises NotImplementedError: as :meth:`save`.
        """
        return _Encoder(self)(value, (name,))

    def decode(self, data: Any) -> Any:
        """Object that :meth:`encode` turned into data."""
        return _Decoder(self)(data)

    def resolve(self, name: str) -> Any:
        """Class or function of a name, or ``None``: data must not name foreign code."""
        if name in self._classes:
            return self._classes[name]
        module, _, path = name.partition(":")
        if module.partition(".")[0] not in PACKAGES:
            return None
        target: Any = importlib.import_module(module)
        for attribute in path.split("."):
            target = getattr(target, attribute, None)
        # Modules of these packages import others.
        return target if target is not None and _name(target) == name else None


class _Encoder:
    """Encoder of objects as lists of their kind and their content; an object that occurs twice is the same list.

    :ivar set met: Paths of known objects that occurred.
    """

    def __init__(self, known: ObjectState) -> None:
        self.met: set[Path] = set()
        self._known = known
        self._done: dict[int, tuple[Any, list[Any]]] = {}

    def __call__(self, value: Any, path: Path) -> Any:
        if type(value) in PLAIN:
            return value
        known = self._known.path(value)
        if known is not None:
            self.met.add(known)
            return ["known", known]
        if id(value) not in self._done:
            # Objects may contain themselves.
            self._done[id(value)] = value, []
            self._done[id(value)][1].extend(self._new(value, path))
        return self._done[id(value)][1]

    def _new(self, value: Any, path: Path) -> list[Any]:
        if isinstance(value, (FunctionType, type)) and self._known.resolve(_name(value)) is value:
            return ["name", _name(value)]
        if isinstance(value, np.generic):
            return ["number", self.content(np.asarray(value), path)]
        kind = type(value)
        if kind in (Tensor, np.ndarray):
            return ["tensor" if kind is Tensor else "array", self.content(value, path)]
        is_special = isinstance(value, (*CONSTANTS, Tensor, np.ndarray)) or (kind is deque and value.maxlen is not None)
        if is_special or self._known.resolve(_name(kind)) is not kind:
            raise _unknown(value, path)
        return ["object", _name(kind), self.content(value, path)]

    def state(self, value: Any, path: Path) -> tuple[str, Any]:
        """State of a known object: its own ``state_dict()``, or its content."""
        if _says_its_state(value):
            return "own", self(value.state_dict(), (*path, "state_dict()"))
        return "content", self.content(value, path)

    def content(self, value: Any, path: Path) -> Any:
        """Content of an object: a tensor, or keys and values."""
        if isinstance(value, Tensor):
            return value.detach().clone()
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biufc":
                raise _unknown(value, path)
            return torch.from_numpy(value.copy())
        is_container = type(value) in CONTAINERS or (isinstance(value, tuple) and hasattr(value, "_fields"))
        if not is_container and type(value).__basicsize__ > PLAIN_SIZE:
            raise _unknown(value, path)
        return [(_checked_key(key, path), self(member, (*path, key))) for key, member in _items(value)]


class _Decoder:
    """Decoder of the lists of :class:`_Encoder`."""

    def __init__(self, known: ObjectState) -> None:
        self._known = known
        self._done: dict[int, Any] = {}

    def __call__(self, data: Any) -> Any:
        if not isinstance(data, list):
            return data
        if id(data) not in self._done:
            self._done[id(data)] = self._made(data)
        return self._done[id(data)]

    def _made(self, data: list[Any]) -> Any:
        kind, name = data[:2]
        if kind == "known":
            return self._known.objects[name]
        if kind == "name":
            return self._known.resolve(name)
        if kind == "tensor":
            return name.clone()
        if kind in ("array", "number"):
            return name.numpy().copy() if kind == "array" else name.numpy()[()]
        made = self._known.resolve(name)
        if made is frozenset:
            return frozenset(key for key, _ in self.content(data[2]))
        if issubclass(made, tuple):
            values = [value for _, value in self.content(data[2])]
            return made(values) if made is tuple else made(*values)
        self._done[id(data)] = new = made.__new__(made)
        _fill(new, self.content(data[2]))
        return new

    def state(self, kind: str, content: Any) -> Any:
        """Inverse of :meth:`_Encoder.state`."""
        return self(content) if kind == "own" else self.content(content)

    def content(self, content: Any) -> Any:
        """Inverse of :meth:`_Encoder.content`: a tensor, or keys and values."""
        return content if isinstance(content, Tensor) else [(key, self(value)) for key, value in content]


def _fill(value: Any, content: Any) -> None:
    """Replaces the content of an object, in place."""
    if isinstance(value, Tensor):
        value.detach().copy_(content)
    elif isinstance(value, np.ndarray):
        value[...] = content.numpy()
    elif isinstance(value, (list, deque)):
        value.clear()
        value.extend(member for _, member in content)
    elif isinstance(value, set):
        value.clear()
        value.update(key for key, _ in content)
    elif not isinstance(value, (tuple, frozenset)):
        items = value if isinstance(value, dict) else vars(value)
        items.clear()
        items.update(content)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a container, or of the attributes of an object."""
    if isinstance(value, (list, tuple, deque)):
        return iter(list(enumerate(value)))
    if isinstance(value, (set, frozenset)):
        return iter([(member, None) for member in value])
    if isinstance(value, (Tensor, np.ndarray)):
        return iter([])
    return iter(list((value if isinstance(value, dict) else getattr(value, "__dict__", {})).items()))


def _checked_key(key: Any, path: Path) -> Any:
    for entry in key if type(key) is tuple else ():
        _checked_key(entry, path)
    if type(key) is not tuple and type(key) not in PLAIN:
        raise _unknown(key, path)
    return key


def _says_its_state(value: Any) -> bool:
    methods = (getattr(type(value), name, None) for name in ("state_dict", "load_state_dict"))
    return all(callable(method) for method in methods)


def _unknown(value: Any, path: Path) -> NotImplementedError:
    return NotImplementedError(
        f"{_text(path)}: expected tensors, arrays, numbers, texts, containers of these, and objects made of them, got "
        f"{type(value).__module__}.{type(value).__qualname__}; give the object that holds it the methods state_dict "
        "and load_state_dict"
    )


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return value.__qualname__ if module == "builtins" else f"{module}:{getattr(value, '__qualname__', None)}"


def _text(path: Path) -> str:
    return ".".join(map(str, path)) or "kernel"
