"""Representations of objects by the arguments of their constructors."""

__all__ = ["Represented", "represent", "shortened"]

import inspect
from collections.abc import Callable
from html import escape
from typing import Any

from torch import Tensor

MOST_LETTERS = 60


def represent(value: Any, **more: Any) -> str:
    """``Name(argument=..., ...)``, from attributes that have the names of the constructor's arguments.

    :param value: An object; arguments that it does not keep, and arguments that have their defaults, are left out.
    :param more: Further entries, as text or a value.

    Example::

        >>> import torch
        >>> class Chain:
        ...     def __init__(self, length, weights=None, closed=False):
        ...         self.length, self.weights, self.closed = length, weights, closed
        >>> represent(Chain(3, torch.zeros(2)))
        'Chain(length=3, weights=torch.Size([2]))'
    """
    parts = [f"{name}={shortened(argument)}" for name, argument in {**_shown_arguments(value), **more}.items()]
    return f"{type(value).__name__}({', '.join(parts)})"


def _shown_arguments(value: Any) -> dict[str, Any]:
    """Arguments that an object keeps as attributes and that differ from their defaults, by name."""
    shown = {}
    for name, parameter in inspect.signature(type(value)).parameters.items():
        argument = getattr(value, name, parameter.default)
        if argument is not parameter.default and not (_is_plain(argument) and argument == parameter.default):
            shown[name] = argument
    return shown


class Represented:
    """Base class of objects that show the arguments of their constructor, as text and, in notebooks, as a table.

    Example::

        >>> class Chain(Represented):
        ...     def __init__(self, length):
        ...         self.length = length
        >>> Chain(3), Chain(3)._repr_html_()
        (Chain(length=3), '<table><caption>Chain</caption><tr><th>length</th><td>3</td></tr></table>')
    """

    def __repr__(self) -> str:
        return represent(self)

    def _repr_html_(self) -> str:
        rows = {escape(name): escape(shortened(argument)) for name, argument in _shown_arguments(self).items()}
        cells = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in rows.items())
        return f"<table><caption>{escape(type(self).__name__)}</caption>{cells}</table>"


def shortened(value: Any) -> str:
    """Short text of a value: the shape of a tensor; the name of a function, or of an object without a ``__repr__``."""
    if isinstance(value, Tensor) and value.dim():
        return repr(value.shape)
    if isinstance(value, Tensor):
        return repr(value.item())
    if isinstance(value, Callable) and hasattr(value, "__name__"):  # type: ignore[arg-type]
        return str(value.__name__)
    if getattr(type(value), "__repr__", None) is object.__repr__:
        return type(value).__name__
    text = repr(value)
    if len(text) > MOST_LETTERS and isinstance(value, (list, tuple, dict, set, frozenset)):
        return f"{type(value).__name__} of {len(value)}"
    return text


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))
