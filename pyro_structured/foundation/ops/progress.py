"""Progress of long work, on terminals and in logs."""

__all__ = ["progress_bar", "verbosity"]

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

# Seconds between two lines.
INTERVAL = 10.0
_VERBOSE: ContextVar[bool | None] = ContextVar("verbose", default=None)


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
    return tqdm(*iterable, **{"leave": False, **options}, disable=None if verbose is None else not verbose)


class _Lines(tqdm):  # type: ignore[misc]
    """Lines on standard error; bars inside of others have lines only if they take long."""

    def __init__(self, *iterable: Any, **options: Any) -> None:
        options |= {"file": io.StringIO(), "leave": True, "mininterval": INTERVAL}
        super().__init__(*iterable, **options, bar_format="{desc}: {n_fmt}/{total_fmt}{postfix}, {elapsed}")

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Prints a line, unless it is too early."""
        if not self.pos or self.format_dict["elapsed"] >= INTERVAL:
            print(self, file=sys.stderr, flush=True)
        return True
