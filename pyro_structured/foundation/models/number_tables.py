"""Conversion of the data of estimators to tables of numbers."""

__all__ = [
    "NamedRows",
    "named_conversions",
    "nan_for_missing",
    "number_rows",
    "number_tensor",
    "read_held_out",
    "read_numbers",
]

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_array, check_X_y, validate_data
from torch import Tensor

from pyro_structured.foundation.models.argument_checks import plain_array
from pyro_structured.foundation.models.missing_values import find_missing
from pyro_structured.foundation.models.row_sources import RecordBatches, joined_batches, rows_of_source


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Numbers with names of their columns.

    :ivar np.ndarray values: Numbers, NaN where one is missing, shape ``(N, n)``.
    :ivar header: The columns without rows, a frame of which scikit-learn reads the names.
    """

    values: np.ndarray
    header: Any


def number_rows(values: Any, name: str = "X") -> Any:
    """Numbers of a loader or a dataset of torch as an array, in the smallest type, those of a source of Arrow with
    names; other values as they are.

    :param values: As for :func:`rows_of_source`.
    :param str name: Name of the argument, for messages.
    :raises ValueError: as :func:`rows_of_source`, and for columns of Arrow that are no numbers.
    """
    source = rows_of_source(values, name)
    if not isinstance(source, RecordBatches):
        return source
    width = len(source.header.schema.names)
    with named_conversions(name):
        batches = chain([np.empty((0, width), dtype=np.uint8)], map(_recorded_numbers, source.pieces))
        return NamedRows(joined_batches(batches, name), source.header)


def _recorded_numbers(batch: Any) -> np.ndarray:
    """Numbers of a batch of records, NaN for nulls, shape ``(B, n)``."""
    numbers = np.empty((batch.num_rows, len(batch.columns)))
    for place, column in enumerate(batch.columns):
        plain = column.dictionary_decode() if hasattr(column, "dictionary") else column
        values = plain.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "biufO":
            raise ValueError(f"could not convert {column.type} to float")
        numbers[:, place] = nan_for_missing(values)
    return numbers


def read_numbers(estimator: Any, X: Any, reset: bool, dtype: Any = np.float64, **options: Any) -> Any:
    """X after scikit-learn's ``validate_data``: perhaps a view of X, which must not be changed.

    :param estimator: The estimator, which keeps the names of the columns.
    :param X: An array, a tensor, a data frame, a sparse matrix, lists, or :class:`NamedRows`.
    :param bool reset: Whether the estimator learns from X.
    :param dtype: The type of the result.
    :param options: Options of ``validate_data``.
    """
    _refuse_times(X, "X")
    with named_conversions("X"):
        if isinstance(X, NamedRows):
            validate_data(estimator, X.header, reset=reset, skip_check_array=True)
            options.update(dtype=dtype, estimator=estimator)
            return (
                check_X_y(X.values, **options) if "y" in options else check_array(X.values, input_name="X", **options)
            )
        return validate_data(estimator, plain_array(X), reset=reset, dtype=dtype, **options)


def read_held_out(estimator: Any, X_val: Any, dtype: Any = np.float64, **options: Any) -> Any:
    """Validation rows; errors name ``X_val``, where those of ``validate_data`` would name X.

    :param estimator: The estimator, which has seen X.
    :param X_val: As for :func:`read_numbers`.
    :param dtype: The type of the result.
    :param options: Options of ``check_array``.
    """
    X_val = nan_for_missing(X_val, "X_val")
    try:
        X_val, header = (X_val.values, X_val.header) if isinstance(X_val, NamedRows) else (X_val, X_val)
        values = check_array(X_val, input_name="X_val", dtype=dtype, **options)
        if values.shape[1] != estimator.n_features_in_:
            raise ValueError(f"expected {estimator.n_features_in_} columns, as in X, got {values.shape[1]}")
        validate_data(estimator, header, reset=False, skip_check_array=True)  # the columns' names
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"X_val: {error}") from None
    return values


def nan_for_missing(values: Any, name: str = "X") -> Any:
    """Arrays and data frames of objects with NaN in place of pandas' NA, which numpy cannot convert to a number;
    tensors as arrays; other values as they are.
    """
    values = plain_array(values, name)
    _refuse_times(values, name)
    if isinstance(values, np.ndarray) and values.dtype == object:
        return np.where(find_missing(values), np.nan, values)
    if hasattr(values, "notna") and np.ndim(values) == 2 and "object" in map(str, values.dtypes):
        return values.where(values.notna(), np.nan)
    return values


def _refuse_times(values: Any, name: str) -> None:
    """Raises a ValueError for dates and differences of dates, whose missing ones numpy takes for numbers."""
    kinds: Any = getattr(values, "dtypes", None)
    if hasattr(kinds, "items"):
        places = [(f" in column {column!r}", kind) for column, kind in kinds.items()]
    else:
        places = [("", values.dtype if hasattr(values, "dtype") else _kind_of_lists(values))]
    for place, kind in places:
        if getattr(kind, "kind", "") in ("M", "m"):
            raise ValueError(f"{name}: expected numbers, got others: {kind}{place}")


def _kind_of_lists(values: Any) -> np.dtype[Any] | None:
    """Type that numpy finds for lists of numbers; ``None`` for others."""
    try:
        return np.asarray(values).dtype if isinstance(values, (list, tuple)) else None
    except (OverflowError, TypeError, ValueError):
        return None


def number_tensor(values: Any, name: str) -> Tensor:
    """Tensor in double precision of an array, a data frame or lists of numbers without missing ones; tensors as they
    are.

    :param str name: Name of the argument, for messages.
    """
    if isinstance(values, Tensor):
        return values
    try:
        with named_conversions(name):
            numbers = check_array(nan_for_missing(values, name), dtype=np.float64, input_name=name)
    except (TypeError, ValueError) as error:
        message = str(error)
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(message if message.startswith(f"{name}: ") else f"{name}: {message}") from None
    return torch.from_numpy(np.array(numbers))


@contextmanager
def named_conversions(name: str) -> Iterator[None]:
    """Context in which numpy's errors about values that are not numbers get the argument's name."""
    try:
        yield
    except OverflowError as error:
        raise ValueError(f"{name}: expected numbers, got others: {error}") from None
    except (TypeError, ValueError) as error:
        message = str(error)
        if "NAType" in message:
            raise ValueError(f"{name}: expected numbers, got missing ones") from None
        if name in message or not any(word in message for word in ("float", "sequence", "converted")):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: expected numbers, got others: {message}") from None
