"""Functions compiled by numba, which is optional: modules that use this are imported only where it is installed."""

__all__ = ["compiled"]

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles a function of numbers and arrays at its first call, and keeps it for later processes."""
    return cast(Function, njit(cache=True)(function))
