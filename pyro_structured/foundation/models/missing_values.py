"""Missing values of columns of any kind."""

__all__ = ["find_missing"]

from typing import Any

import numpy as np


def find_missing(values: np.ndarray) -> np.ndarray:
    """Booleans that mark NaN, NaT, ``None`` and pandas' NA, of the shape of the array.

    Example::

        >>> find_missing(np.array([["a", None], [float("nan"), 2]], dtype=object))
        array([[False,  True],
               [ True, False]])
    """
    if values.dtype == object:
        # Comparisons with NaN set a floating-point flag, of which some releases of numpy warn.
        with np.errstate(invalid="ignore"):
            return np.asarray(np.frompyfunc(_is_missing, 1, 1)(values), dtype=bool)
    # Only NaN and NaT differ from themselves.
    return np.asarray(values != values)


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:
        # Whether pandas' NA differs from anything is neither true nor false.
        return True
    except (RuntimeError, ValueError):
        # An array, or a tensor.
        return False
