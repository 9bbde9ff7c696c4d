"""Rows of zeros and ones, dense or sparse, with gaps and weights."""

__all__ = ["BinaryRows", "Matrix"]

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

from pyro_structured.foundation.ops.row_pieces import distinct_rows, row_pieces

Matrix: TypeAlias = np.ndarray | csr_matrix
# Number of rows that are counted at once; their counts have to stay in the cache.
ROWS_AT_ONCE = 2**14
# Share of ones below which products with sparse matrices are faster.
DENSE = 0.2


@dataclass(frozen=True)
class BinaryRows:
    """Weighted rows of zeros and ones, some of which are missing.

    :ivar ones: Ones, shape ``(R, n)``, zero where missing: float64 in sparse matrices, small integers in arrays, which
        become float64 chunk by chunk, as products need them.
    :ivar gaps: Ones where values are missing, shape ``(R, n)``, or ``None``.
    :ivar weights: Weights of the rows, at least 0, shape ``(R,)``.
    """

    ones: Matrix
    gaps: Matrix | None
    weights: np.ndarray

    @classmethod
    def from_matrix(cls, values: Matrix, weights: np.ndarray | None = None) -> "BinaryRows":
        """Rows from zeros, ones and, for missing values, NaN, shape ``(R, n)``."""
        weights = np.ones(values.shape[0]) if weights is None else weights
        if not issparse(values):
            if values.dtype.kind != "f":
                return cls(_lighter(values), None, weights)
            ones, missing = np.empty(values.shape, dtype=np.uint8), np.empty(values.shape, dtype=np.uint8)
            for piece in row_pieces(len(values), values.shape[1]):
                missing[piece] = np.isnan(values[piece])
                ones[piece] = np.where(missing[piece], 0, values[piece])
            return cls(_lighter(ones), _lighter(missing) if missing.any() else None, weights)
        ones, gaps = csr_matrix(values, dtype=np.float64, copy=True), None
        missing = np.isnan(ones.data)
        if missing.any():
            gaps = ones.copy()
            gaps.data, ones.data = missing.astype(np.float64), np.where(missing, 0.0, ones.data)
            gaps.eliminate_zeros()
        ones.eliminate_zeros()
        return cls(_lighter(ones), gaps, weights)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def num_variables(self) -> int:
        """Number of columns n."""
        width: int = self.ones.shape[1]
        return width

    @property
    def largest_gap(self) -> int:
        """Largest number of missing values in a row."""
        return 0 if self.gaps is None else int(np.max(self.gaps.sum(1)))

    def merged(self, groups: np.ndarray | None = None) -> tuple["BinaryRows", np.ndarray]:
        """Distinct rows of every group, with the sums of the weights of equal rows, and every row's place among them.

        :param np.ndarray groups: Integers of shape ``(R,)``; ``None``: all rows are of one group.
        """
        columns = [column for matrix in (self.ones, self.gaps) if matrix is not None for column in _key_columns(matrix)]
        if groups is not None:
            columns.append((groups, int(groups.min()), int(np.ptp(groups)) + 1))
        first, place = distinct_rows(columns, len(self))
        weights = np.bincount(place, self.weights, len(first))
        # In the order in which they occur.
        order = first.argsort()
        kept, place, weights = first[order], order.argsort()[place], weights[order]
        return (self if len(kept) == len(self) else self.selected(kept, weights)), place

    def selected(self, places: np.ndarray, weights: np.ndarray | None = None) -> "BinaryRows":
        """Some of the rows, with weights of their own if any are given."""
        gaps = None if self.gaps is None else self.gaps[places]
        return BinaryRows(self.ones[places], gaps, self.weights[places] if weights is None else weights)

    def chunks(self) -> Iterator[tuple[slice, "BinaryRows"]]:
        """Yields slices of the rows, and the rows in these."""
        for start in range(0, max(len(self), 1), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            gaps = None if self.gaps is None else _numbers(self.gaps, rows)
            yield rows, BinaryRows(_numbers(self.ones, rows), gaps, self.weights[rows])


def _numbers(values: Matrix, rows: slice) -> Matrix:
    """Some rows, for products."""
    if isinstance(values, np.ndarray):
        return values[rows].astype(np.float64)
    # Slices of sparse matrices are copies.
    return values if rows.stop - rows.start >= values.shape[0] else values[rows]


def _lighter(values: Matrix) -> Matrix:
    """The matrix in the form, dense or sparse, in which products are faster."""
    if isinstance(values, np.ndarray):
        if np.count_nonzero(values) > DENSE * values.size:
            return values
        pieces = row_pieces(len(values), values.shape[1])
        return vstack([csr_matrix(values[piece], dtype=np.float64) for piece in pieces], "csr")
    return values.astype(np.uint8).toarray() if values.nnz > DENSE * np.prod(values.shape) else values


def _key_columns(matrix: Matrix) -> Iterator[tuple[np.ndarray, int, int]]:
    """Integer columns, the smallest integers and the numbers of integers, equal for equal rows: bits, or numbers of
    rows' keys.
    """
    if isinstance(matrix, np.ndarray):
        for column in np.packbits(matrix.astype(bool, copy=False), axis=1).T:
            yield column, 0, 256
        return
    numbers: dict[bytes, int] = {}
    yield (
        np.array([numbers.setdefault(key, len(numbers)) for key in _row_keys(matrix)], dtype=np.int64),
        0,
        len(numbers),
    )


def _row_keys(matrix: csr_matrix) -> Iterator[bytes]:
    """Columns of the ones of each row, in order."""
    matrix.sort_indices()
    for start, end in pairwise(matrix.indptr.tolist()):
        yield matrix.indices[start:end].tobytes()
