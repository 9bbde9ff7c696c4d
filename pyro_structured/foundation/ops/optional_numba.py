"""Functions in compiled loops, where numba is installed."""

__all__ = ["compiled_function"]

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def compiled_function(module: str, name: str) -> Callable[..., Any] | None:
    """A function of a module that imports numba, or ``None`` without numba.

    :param str module: Name of the module within this package, such as ``"optima.ops.path_sweep"``.
    """
    try:
        function: Callable[..., Any] = getattr(import_module(f"pyro_structured.{module}"), name)
    except ModuleNotFoundError as error:
        # Other missing modules must not make loops slow in silence.
        if error.name != "numba":
            raise
        return None
    return function
