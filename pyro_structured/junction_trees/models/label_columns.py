"""Conversion of columns of labels to numbered states."""

__all__ = ["LabelColumns"]

from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets

from pyro_structured.foundation.models.missing_values import find_missing
from pyro_structured.junction_trees.models.typed_columns import typed_columns


class LabelColumns:
    """Classes of all columns of a matrix of labels, of any types; missing labels are NaN, ``None`` or pandas' NA.

    :param y: Labels, shape ``(N, n)`` or ``(N,)``, at least one in every column.
    :param counted: Mask or slice of the rows whose labels are the classes.
    :ivar classes: Labels of each column, sorted.
    :ivar bool single: Whether the shape is ``(N,)``.

    Example::

        >>> columns = LabelColumns([["a", 1], ["b", None]])
        >>> columns.encode([["b", 1], ["c", None]])[0].tolist()  # there was no "c", and one label is missing
        [[1, 0], [-1, 0]]
    """

    def __init__(self, y: Any, counted: Any = slice(None)) -> None:
        matrix = _read(y)
        self.single = matrix.ndim == 1
        columns = np.atleast_2d(matrix.T)[:, counted]
        self.classes: list[np.ndarray] = []
        for number, column in enumerate(columns):
            labels = column[~find_missing(column)]
            if not len(labels):
                raise ValueError(f"y: expected at least one label in every column, got none in column {number}")
            try:
                self.classes.append(_classes(labels))
            except (TypeError, ValueError) as error:
                raise ValueError(f"y: expected labels of one type in column {number}: {error}") from None

    def encode(self, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """States, -1 for labels that are not among the classes, and whether labels are known, shape ``(N, n)`` each."""
        columns = np.atleast_2d(_read(y).T)
        if len(columns) != len(self.classes):
            raise ValueError(f"y: expected {len(self.classes)} columns, got {len(columns)}")
        known = ~np.stack([find_missing(column) for column in columns], 1)
        states = np.zeros(known.shape, dtype=np.int64)
        for number, (column, classes) in enumerate(zip(columns, self.classes, strict=True)):
            places = {label: place for place, label in enumerate(classes.tolist())}
            rows = known[:, number]
            states[rows, number] = [places.get(label, -1) for label in column[rows].tolist()]
        return states, known

    def decode(self, states: np.ndarray) -> np.ndarray:
        """Labels in the shape of ``y``, of a common type if columns are all numbers, or all strings; else, objects."""
        columns = [classes[states[:, number]] for number, classes in enumerate(self.classes)]
        if len({column.dtype.kind in "biuf" for column in columns}) > 1:
            columns = [column.astype(object) for column in columns]
        return columns[0] if self.single else np.stack(columns, 1)


def _read(y: Any) -> np.ndarray:
    dtype = object if isinstance(y, list | tuple) else None
    matrix: np.ndarray = check_array(
        typed_columns(y, "y"),
        input_name="y",
        dtype=dtype,
        ensure_2d=False,
        ensure_all_finite=False,
        ensure_min_samples=0,
        ensure_min_features=0,
    )
    if matrix.ndim not in (1, 2) or 0 in matrix.shape[1:]:
        raise ValueError(f"y: expected shape (N, n), a column for each label, or (N,), got {matrix.shape}")
    return matrix


def _classes(labels: np.ndarray) -> np.ndarray:
    if labels.dtype == object:
        same = np.array(labels.tolist())
        if same.tolist() != labels.tolist():
            raise ValueError("got a mixture")
        labels = same
    if labels.dtype != object:
        # scikit-learn does not accept dates as targets, although they have an order.
        check_classification_targets(labels)
    classes: np.ndarray = np.unique(labels)
    return classes
