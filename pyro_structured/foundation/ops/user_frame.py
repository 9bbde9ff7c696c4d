"""Stack levels at which warnings point at the user's own code."""

__all__ = ["frames_below_user"]

import sys

_LIBRARIES = ("pyro_structured", "pyro", "torch")


def frames_below_user() -> int:
    """Returns the ``stacklevel`` with which the caller's warning points at the user's own line.

    Frames of this package, and of those that call it, are passed over: a loop is warned once, by Python's standard
    filter, whatever queries the user makes inside of it.
    """
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        frame, depth = frame.f_back, depth + 1
    return depth
