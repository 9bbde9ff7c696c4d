"""Progress of long work, on terminals and in logs."""

__all__ = ["TimeIsUp", "check_time", "progress_bar", "time_limit", "verbosity"]

import io
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

# Seconds between two lines.
INTERVAL = 10.0
_VERBOSE: ContextVar[bool | None] = ContextVar("verbose", default=None)
# Time at which work is to end, on the clock that never goes back.
_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)


class TimeIsUp(KeyboardInterrupt):
    """Interrupt of work whose time is up, which keeps what it has as if it was interrupted from the keyboard."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Context in which every :func:`progress_bar`, as it goes on, and :func:`check_time` raise :class:`TimeIsUp`, once
    time is up.

    :param float seconds: Largest time, in all of the work in the context; an earlier limit outside holds, too.

    Example::

        >>> with time_limit(0.0):
        ...     try:
        ...         list(progress_bar(range(3), desc="steps"))
        ...     except TimeIsUp:
        ...         print("no step")
        no step
    """
    token = _DEADLINE.set(min(_DEADLINE.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


@contextmanager
def verbosity(verbose: Any) -> Iterator[None]:
    """Context in which :func:`progress_bar` shows bars and lines, or nothing.

    :param verbose: ``None``: as outside, at first a bar if standard error is a terminal; ``True``: lines, too, where it
        is none; ``False``: nothing.
    :raises ValueError: if it is none of these.
    """
    if verbose is not None and not isinstance(verbose, int):
        raise ValueError(f"verbose: expected None, True or False, got {verbose!r}")
    token = _VERBOSE.set(_VERBOSE.get() if verbose is None else bool(verbose))
    try:
        yield
    finally:
        _VERBOSE.reset(token)


def check_time() -> None:
    """Raises :class:`TimeIsUp` once the time of a :func:`time_limit` is up: for steps that take long."""
    if time.monotonic() >= _DEADLINE.get():
        raise TimeIsUp


def progress_bar(*iterable: Any, **options: Any) -> "tqdm[Any]":
    """A progress bar on terminals, lines every ten seconds elsewhere, or nothing, depending on :func:`verbosity`.

    :param iterable: Elements to go through; none if the bar is updated by hand.
    :param options: Options of ``tqdm``: ``desc``, ``total``, ``unit``.

    Example::

        >>> with verbosity(False):
        ...     list(progress_bar(range(3), desc="steps"))
        [0, 1, 2]
    """
    verbose = _VERBOSE.get()
    if verbose and not sys.stderr.isatty():
        return _Lines(*iterable, **options)
    return _Bar(*iterable, **{"leave": False, **options}, disable=None if verbose is None else not verbose)


class _Bar(tqdm):  # type: ignore[misc]
    """A bar that keeps to the limits of time, but for work that is complete."""

    # Bars that show nothing do not count.
    _count = 0.0

    def __iter__(self) -> Iterator[Any]:
        check_time()
        for element in super().__iter__():
            check_time()
            yield element

    def update(self, n: float = 1) -> bool | None:
        shown: bool | None = super().update(n)
        self._count += n
        if self.total is None or self._count < self.total:
            check_time()
        return shown


class _Lines(_Bar):
    """Lines on standard error; bars inside of others have lines only if they take long."""

    def __init__(self, *iterable: Any, **options: Any) -> None:
        options |= {"file": io.StringIO(), "leave": True, "mininterval": INTERVAL}
        super().__init__(*iterable, **options, bar_format="{desc}: {n_fmt}/{total_fmt}{postfix}, {elapsed}")

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Prints a line, unless it is too early."""
        if not self.pos or self.format_dict["elapsed"] >= INTERVAL:
            print(self, file=sys.stderr, flush=True)
        return True
