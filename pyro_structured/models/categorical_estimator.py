"""What estimators of categorical data have in common."""

__all__ = ["CategoricalEstimator"]

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, validate_data

UNKNOWN = -2
TABLES = {"dtype": None, "ensure_all_finite": "allow-nan"}


class CategoricalEstimator(BaseEstimator):  # type: ignore[misc]
    r"""Reads columns of categories of any kind, of which values may be missing (NaN or None), as integers.

    :ivar categories\_: The categories of each column, in their order.
    """

    categories: str | Sequence[Any]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def _learn_categories(self, X: Any) -> np.ndarray:
        """Codes of rows that are learned from; -1 where a value is missing."""
        values = validate_data(self, _unconverted(X), **TABLES)
        if isinstance(self.categories, str) and self.categories != "auto":
            raise ValueError(f"categories: expected 'auto' or a list for each column, got {self.categories!r}")
        columns = [_present(column) for column in values.T] if self.categories == "auto" else self.categories
        if len(columns) != values.shape[1]:
            raise ValueError(f"categories: expected one list for each of {values.shape[1]} columns, got {len(columns)}")
        for place, column in enumerate(columns):
            if not len(column):
                raise ValueError(
                    f"X: expected at least one value in each column, got only missing ones in column {place}; give its "
                    "categories"
                )
            if len(set(column)) < len(column) or _is_missing(np.array(list(column), dtype=object)).any():
                raise ValueError(f"categories: expected different values, none NaN, for column {place}, got {column}")
        self.categories_ = [_plain(np.asarray(column, dtype=object)) for column in columns]
        return self._codes(values, "X")

    def _codes(self, values: np.ndarray, name: str) -> np.ndarray:
        codes = np.empty(values.shape, dtype=np.int64)
        for place, (column, categories) in enumerate(zip(values.T, self.categories_, strict=True)):
            places = {category: code for code, category in enumerate(categories.tolist())}
            codes[:, place] = [places.get(value, UNKNOWN) for value in column.tolist()]
        codes[_is_missing(values)] = -1
        unknown = codes == UNKNOWN
        if unknown.any():
            row, place = (int(index[0]) for index in unknown.nonzero())
            raise ValueError(
                f"{name}: expected categories of column {place} among {self.categories_[place].tolist()}, got "
                f"{values[row, place]!r} in row {row}"
            )
        return codes

    def _read(self, X: Any) -> np.ndarray:
        """Codes of rows, after learning."""
        return self._codes(validate_data(self, _unconverted(X), reset=False, **TABLES), "X")

    def _read_held_out(self, X_val: Any) -> np.ndarray:
        """Codes of validation rows: errors name them, where those of ``validate_data`` would speak of X."""
        try:
            values = check_array(_unconverted(X_val), input_name="X_val", **TABLES)
            if values.shape[1] != self.n_features_in_:
                raise ValueError(f"expected {self.n_features_in_} columns, as in X, got {values.shape[1]}")
            validate_data(self, X_val, reset=False, skip_check_array=True)  # the columns' names
        except ValueError as error:
            raise ValueError(f"X_val: {error}") from None
        return self._codes(values, "X_val")

    def _decode(self, codes: np.ndarray) -> np.ndarray:
        """Categories in place of codes."""
        columns = [column[codes[:, place]] for place, column in enumerate(self.categories_)]
        kind = np.result_type(*columns) if all(column.dtype.kind in "biuf" for column in columns) else object
        return np.stack([column.astype(kind) for column in columns], 1)


def _unconverted(X: Any) -> Any:
    """Lists as arrays of their elements, which numpy would make strings of where only some are."""
    return np.array(X, dtype=object) if isinstance(X, list) and X and isinstance(X[0], (list, tuple)) else X


def _plain(column: np.ndarray) -> np.ndarray:
    """Numbers as such."""
    found = np.array(column.tolist())
    return found if found.dtype.kind in "biuf" else column


def _is_missing(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "biuSU":
        return np.zeros(values.shape, dtype=bool)
    # Only NaN differs from itself.
    missing = np.frompyfunc(lambda value: value is None or value != value, 1, 1)
    found: np.ndarray = missing(values).astype(bool)
    return found


def _present(column: np.ndarray) -> list[Any]:
    """The different values that are not missing, in order."""
    present = set(column[~_is_missing(column)].tolist())
    try:
        return sorted(present)
    except TypeError:
        return sorted(present, key=lambda value: (str(type(value)), value))
