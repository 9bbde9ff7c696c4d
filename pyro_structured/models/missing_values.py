"""Missing values of columns of any kind."""

__all__ = ["find_missing"]

from typing import Any

import numpy as np


def find_missing(values: np.ndarray) -> np.ndarray:
    """Where an array has NaN, NaT, ``None`` or pandas' NA.

    Example::

        >>> find_missing(np.array([["a", None], [float("nan"), 2]], dtype=object))
        array([[False,  True],
               [ True, False]])
    """
    if values.dtype.kind in "biuSU":
        return np.zeros(values.shape, dtype=bool)
    found: np.ndarray = np.frompyfunc(_is_missing, 1, 1)(values).astype(bool)
    return found


def _is_missing(value: Any) -> bool:
    try:
        # Only NaN and NaT differ from themselves.
        return value is None or bool(value != value)
    except TypeError:
        # Whether pandas' NA differs from anything is neither true nor false.
        return True
