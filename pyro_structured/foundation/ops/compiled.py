"""Functions compiled by numba, which is optional: modules that use this are imported only where it is installed."""

__all__ = ["compiled", "compiled_in_any_order", "compiled_in_place"]

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles a function of numbers and arrays at its first call, and keeps it for later processes, where a folder for
    that can be written.

    Divisions by zero are those of arrays.
    """
    return _compiled(function)


def compiled_in_any_order(function: Function) -> Function:
    """As :func:`compiled`, where sums are taken in any order, which vector instructions need."""
    return _compiled(function, fastmath={"contract", "nsz", "reassoc"})


def compiled_in_place(function: Function) -> Function:
    """As :func:`compiled_in_any_order`, and put in the place of its calls: for steps of loops, where handing over many
    arrays takes longer than what is done with them.
    """
    return _compiled(function, fastmath={"contract", "nsz", "reassoc"}, forceinline=True)


def _compiled(function: Function, **options: Any) -> Function:
    try:
        return cast(Function, njit(cache=True, error_model="numpy", **options)(function))
    except RuntimeError:
        return cast(Function, njit(error_model="numpy", **options)(function))
