"""Work that stays on the processor, whatever device is set."""

__all__ = ["methods_on_processor", "on_processor", "unmoved_tensor"]

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Kind = TypeVar("Kind", bound=type)
Result = TypeVar("Result")


@contextmanager
def on_processor() -> Iterator[None]:
    """Context, and decorator, in which new tensors are on the processor, where solvers are, also after
    ``torch.set_default_device``.

    Example::

        >>> with torch.device("meta"), on_processor():
        ...     torch.zeros(2).device
        device(type='cpu')
    """
    # Where a device is set, all operations are slower.
    if torch.get_default_device().type == "cpu":
        yield
        return
    with torch.device("cpu"):
        yield


def unmoved_tensor(value: Tensor | float) -> Tensor:
    """A tensor as it is, and of a number one on the processor, which mixes with tensors anywhere; ``torch.as_tensor``
    moves both to the device that is set.

    Example::

        >>> with torch.device("meta"):
        ...     unmoved_tensor(2.0)
        tensor(2.)
    """
    return value if isinstance(value, Tensor) else torch.tensor(value, device="cpu")


def methods_on_processor(kind: Kind) -> Kind:
    """Decorator of classes whose own public methods run :func:`on_processor`; those of a base class are its own.

    Example::

        >>> @methods_on_processor
        ... class Zeros:
        ...     def make(self):
        ...         return torch.zeros(2)
        >>> with torch.device("meta"):
        ...     Zeros().make().device
        device(type='cpu')
    """
    for name, method in list(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(kind, name, _run_on_processor(method))
    return kind


def _run_on_processor(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    # Its frame is one of this package, which warnings pass over; that of a context as decorator is not.
    @wraps(method)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with on_processor():
            return method(*args, **kwargs)

    return call
