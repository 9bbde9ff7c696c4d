"""Conversion of tables of categories in which each column keeps its own type."""

__all__ = ["typed_columns"]

from typing import Any

import numpy as np

from pyro_structured.foundation.models.argument_checks import plain_array


def typed_columns(values: Any, name: str = "X") -> Any:
    """Array of objects from rows or columns of several types, and from dates of any unit; other values as they are.

    A common type for all columns, as numpy finds it, would turn numbers into strings and booleans into numbers, and
    merge large integers; dates would become counts of their unit.

    :param values: A frame, an array, a tensor, or a list of rows, or of labels.
    :param str name: Name of the argument, for messages.
    :raises ValueError: for dates that are finer than microseconds, and where :func:`plain_array` raises it.

    Example::

        >>> typed_columns([["a", 1], ["b", 2]]).tolist()
        [['a', 1], ['b', 2]]
        >>> typed_columns(np.array(["2020-02-29"], dtype="datetime64[ns]")).tolist()
        [datetime.datetime(2020, 2, 29, 0, 0)]
    """
    if isinstance(values, list) and len(values) > 0 and isinstance(values[0], (list, tuple)):
        return np.array(values, dtype=object)
    values = plain_array(values, name)
    if isinstance(values, np.ndarray):
        return _dates(values, name) if values.dtype.kind in "mM" else values
    types = values.dtypes if hasattr(values, "columns") else [getattr(values, "dtype", None)]
    kinds = {getattr(dtype, "kind", "O") for dtype in types}
    if hasattr(values, "astype") and (len(kinds) > 1 or kinds & set("mM")):
        return values.astype(object)
    return values


def _dates(values: np.ndarray, name: str) -> np.ndarray:
    dates = values.astype(f"{values.dtype.kind}8[us]")
    if ((dates != values) & ~np.isnat(values)).any():
        raise ValueError(f"{name}: expected dates and durations in whole microseconds, got finer ones")
    return dates.astype(object)
