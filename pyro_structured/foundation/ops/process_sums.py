"""Sums over the rows of all processes that learn together."""

__all__ = ["Processes", "each", "gathered", "is_shared", "rank_and_number", "summed", "sums_over"]

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np


class Processes(Protocol):
    """Processes that compute the same from different rows, and call the same methods in the same order.

    :ivar rank: Number of this process.
    :ivar size: Number of processes.
    """

    rank: int
    size: int

    def summed(self, array: np.ndarray) -> np.ndarray:
        """Sum of arrays of one shape and dtype, the same in all processes."""

    def gathered(self, value: Any) -> list[Any]:
        """What all processes have, in their order."""


_PROCESSES: ContextVar[Processes | None] = ContextVar("processes", default=None)


@contextmanager
def sums_over(processes: Processes) -> Iterator[None]:
    """Context in which functions of this file are about the rows of all processes; outside, about those at hand.

    Example::

        >>> class Twins:
        ...     rank, size = 0, 2
        ...     def summed(self, array):
        ...         return 2 * array
        >>> with sums_over(Twins()):
        ...     summed(np.arange(3))
        array([0, 2, 4])
        >>> summed(np.arange(3))
        array([0, 1, 2])
    """
    token = _PROCESSES.set(processes)
    try:
        yield
    finally:
        _PROCESSES.reset(token)


def is_shared() -> bool:
    """Whether other processes have rows, too."""
    return _PROCESSES.get() is not None


def rank_and_number() -> tuple[int, int]:
    """Number of this process among those that have rows, and their number; ``(0, 1)`` if there is one."""
    processes = _PROCESSES.get()
    return (0, 1) if processes is None else (processes.rank, processes.size)


def summed(array: np.ndarray) -> np.ndarray:
    """Sum of the arrays of all processes, of one shape and dtype."""
    processes = _PROCESSES.get()
    return array if processes is None else processes.summed(array)


def each(number: float) -> np.ndarray:
    """The numbers of all processes, float64, shape ``(processes,)``."""
    rank, size = rank_and_number()
    numbers = np.zeros(size)
    numbers[rank] = number
    return summed(numbers)


def gathered(value: Any) -> list[Any]:
    """What all processes have, in their order."""
    processes = _PROCESSES.get()
    return [value] if processes is None else processes.gathered(value)
