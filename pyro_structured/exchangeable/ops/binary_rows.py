"""Rows of zeros and ones, dense or sparse, with gaps and weights."""

__all__ = ["BinaryRows", "Matrix"]

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_matrix, issparse

Matrix: TypeAlias = np.ndarray | csr_matrix
# Number of rows that are counted at once; their counts have to stay in the cache.
ROWS_AT_ONCE = 2**14
# Share of ones below which products with sparse matrices are faster.
DENSE = 0.2


@dataclass(frozen=True)
class BinaryRows:
    """Weighted rows of zeros and ones, some of which are missing.

    :ivar ones: Ones, shape ``(R, n)``, float64; zero where missing.
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
            missing = np.isnan(values)
            gaps = _lighter(missing.astype(np.float64)) if missing.any() else None
            return cls(_lighter(np.where(missing, 0.0, values)), gaps, weights)
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
        keys: list[list[object]] = [_row_keys(matrix) for matrix in (self.ones, self.gaps) if matrix is not None]
        keys += [] if groups is None else [groups.tolist()]
        first: dict[object, int] = {}
        place = np.array([first.setdefault(key, len(first)) for key in zip(*keys, strict=True)], dtype=np.int64)
        kept = np.zeros(len(first), dtype=np.int64)
        kept[place[::-1]] = np.arange(len(place))[::-1]
        weights = np.bincount(place, self.weights, len(first))
        return BinaryRows(self.ones[kept], None if self.gaps is None else self.gaps[kept], weights), place

    def chunks(self) -> Iterator[tuple[slice, "BinaryRows"]]:
        """Yields slices of the rows, and the rows in these."""
        if len(self) <= ROWS_AT_ONCE:
            yield slice(None), self  # slices of sparse matrices would be copies
            return
        for start in range(0, len(self), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            yield rows, BinaryRows(self.ones[rows], None if self.gaps is None else self.gaps[rows], self.weights[rows])


def _lighter(values: Matrix) -> Matrix:
    """The matrix in the form, dense or sparse, in which products are faster."""
    if isinstance(values, np.ndarray):
        return values if np.count_nonzero(values) > DENSE * values.size else csr_matrix(values)
    return values.toarray() if values.nnz > DENSE * np.prod(values.shape) else values


def _row_keys(matrix: Matrix) -> list[object]:
    """Hashable keys of rows, equal for equal rows: their bits, or their columns in order."""
    if isinstance(matrix, np.ndarray):
        return [row.tobytes() for row in np.packbits(matrix.astype(bool), axis=1)]
    matrix.sort_indices()
    return [matrix.indices[start:end].tobytes() for start, end in pairwise(matrix.indptr.tolist())]
