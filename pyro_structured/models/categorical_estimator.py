"""What estimators of categorical data have in common."""

__all__ = ["CategoricalEstimator"]

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, validate_data

from pyro_structured.models.missing_values import find_missing

UNKNOWN = -2
TABLES = {"dtype": None, "ensure_all_finite": "allow-nan"}


class CategoricalEstimator(BaseEstimator):  # type: ignore[misc]
    r"""Reads columns of categories of any kind, of which values may be missing (NaN, None, or pandas' NA), as integers.

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
        auto = isinstance(self.categories, str) and self.categories == "auto"
        columns = _present(values) if auto else _given(self.categories, values.shape[1])
        self.categories_ = [_plain(np.asarray(column, dtype=object)) for column in columns]
        return self._codes(values, "X")

    def _codes(self, values: np.ndarray, name: str) -> np.ndarray:
        codes = np.empty(values.shape, dtype=np.int64)
        for place, (column, categories) in enumerate(zip(values.T, self.categories_, strict=True)):
            places = {category: code for code, category in enumerate(categories.tolist())}
            codes[:, place] = [places.get(value, UNKNOWN) for value in column.tolist()]
        codes[find_missing(values)] = -1
        unknown = codes == UNKNOWN
        if unknown.any():
            row, place = (int(index[0]) for index in unknown.nonzero())
            raise ValueError(
                f"{name}: expected categories of column {place} among {self.categories_[place].tolist()}, got "
                f"{values[row].tolist()[place]!r} in row {row}"
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


def _present(values: np.ndarray) -> list[list[Any]]:
    """The different values of each column that are not missing, in order."""
    found = []
    for place, column in enumerate(values.T):
        present = set(column[~find_missing(column)].tolist())
        if not present:
            raise ValueError(
                f"X: expected at least one value in each column, got only missing ones in column {place}; give its "
                "categories"
            )
        try:
            found.append(sorted(present))
        except TypeError:
            found.append(sorted(present, key=lambda value: (str(type(value)), value)))
    return found


def _given(categories: Any, number: int) -> list[list[Any]]:
    """The argument's values for each of so many columns."""
    # Words and sets become arrays without axes.
    columns = [np.asarray(each, dtype=object) for each in categories] if isinstance(categories, Iterable) else []
    if isinstance(categories, str) or not columns or any(column.ndim != 1 for column in columns):
        raise ValueError(f"categories: expected 'auto' or a list for each column, got {categories!r}")
    if len(columns) != number:
        raise ValueError(f"categories: expected one list for each of {number} columns, got {len(columns)}")
    for place, column in enumerate(columns):
        if not len(column) or len(set(column.tolist())) < len(column) or find_missing(column).any():
            raise ValueError(
                f"categories: expected different values, at least one, none missing, for column {place}, got "
                f"{column.tolist()}"
            )
    return [column.tolist() for column in columns]
