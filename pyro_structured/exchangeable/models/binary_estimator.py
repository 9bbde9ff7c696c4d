"""Base classes of estimators of binary data."""

__all__ = ["BinaryEstimator", "BlockEstimator"]

import warnings
from numbers import Real
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from pyro_structured.exchangeable.distributions.exchangeable_mixture import ExchangeableMixture
from pyro_structured.exchangeable.models.block_mixture import BlockMixture
from pyro_structured.exchangeable.models.structural_em import STRUCTURES, StructuralEM
from pyro_structured.exchangeable.models.welch_partition import check_options
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.exchangeable.ops.shared_rows import SharedRows
from pyro_structured.foundation.models.argument_checks import check_count, checked_weights, listed_columns
from pyro_structured.foundation.models.number_tables import (
    NamedRows,
    nan_for_missing,
    number_rows,
    read_held_out,
    read_numbers,
)
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.row_pieces import row_pieces
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.structures.argument_checks import check_choice

# What stands for a missing value among small integers.
MISSING = 2
SPARSE_OR_NAN = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}


@methods_on_processor
class BinaryEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of estimators that read dense and sparse data, and sources of rows, with missing values (NaN), as
    zeros and ones.
    """

    binarize: float | str | None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    def _validate(self, X: Any, reset: bool = False, **options: Any) -> Any:
        X = nan_for_missing(number_rows(X))
        return read_numbers(self, X, reset, _kept_dtype(X), **{**SPARSE_OR_NAN, **options})

    @staticmethod
    def _check_weights(sample_weight: Any, X: Any) -> np.ndarray:
        return checked_weights(sample_weight, X.shape[0])

    def _binarized(self, values: Any, name: str = "X") -> Any:
        """Zeros, ones and NaN in place of numbers, dense or sparse, in a copy: dense ones in the smallest dtype."""
        automatic = isinstance(self.binarize, str) and self.binarize == "auto"
        number = 0.0 if automatic or self.binarize is None else self.binarize
        if not isinstance(number, Real) or np.isnan(float(number)):
            raise ValueError(f"binarize: expected a number, 'auto' or None, got {self.binarize!r}")
        # An array: numpy would round a number to the type of the values.
        threshold = np.array([float(number)])
        if issparse(values):
            values = csr_matrix(values, copy=True)
            values.sum_duplicates()
        data = values.data if issparse(values) else values
        binary, missing = np.empty(data.shape, dtype=np.uint8), False
        others: np.ndarray = np.zeros(values.shape[1], dtype=bool)
        for piece in row_pieces(len(data), 1 if issparse(values) else values.shape[1]):
            part = data[piece]
            gaps = np.isnan(part)
            is_other = ~((part == 0) | (part == 1) | gaps)
            if self.binarize is None and is_other.any():
                raise ValueError(f"{name}: expected zeros, ones and NaN, as binarize is None, got other numbers")
            others |= (
                np.isin(range(len(others)), values.indices[piece][is_other]) if issparse(values) else is_other.any(0)
            )
            binary[piece] = np.where(gaps, MISSING, part > threshold)
            missing |= bool(gaps.any())
        if automatic and others.any():
            warnings.warn(
                f"{name}: numbers other than 0 and 1 are taken for 1 if they are above 0, otherwise for 0, in "
                f"{listed_columns(self, np.flatnonzero(others))}; binarize=0.0 says that they should be",
                stacklevel=frames_below_user(),
            )
        if issparse(values) and number < 0:
            raise ValueError(f"binarize: expected at least 0 for sparse data, got {self.binarize!r}")
        small = np.where(binary == MISSING, np.float16(np.nan), binary.astype(np.float16)) if missing else binary
        if not issparse(values):
            return small
        values.data = small.astype(np.float64)
        return values

    def _read(self, X: Any) -> BinaryRows:
        return BinaryRows.from_matrix(self._binarized(self._validate(X)))

    def _validate_held_out(self, X_val: Any, **options: Any) -> Any:
        X_val = nan_for_missing(number_rows(X_val, "X_val"), "X_val")
        return read_held_out(self, X_val, _kept_dtype(X_val), **{**SPARSE_OR_NAN, **options})

    def _read_held_out(self, X_val: Any) -> BinaryRows:
        return BinaryRows.from_matrix(self._binarized(self._validate_held_out(X_val), "X_val"))


def _kept_dtype(values: Any) -> np.dtype[Any]:
    """Type in which values are read: arrays of numbers are not copied, which may be larger than the memory."""
    values = values.values if isinstance(values, NamedRows) else values
    known = isinstance(values, np.ndarray) and values.dtype.kind in "biuf"
    return values.dtype if known else np.dtype(np.float64)


@methods_on_processor
class BlockEstimator(BinaryEstimator):
    """Base class of estimators with the parameters of :class:`StructuralEM` and, once fitted, a mixture."""

    structure: str
    smoothing: float
    tol: float
    max_iter: int
    level: float
    linkage: str
    correction: str
    _mixture: BlockMixture

    def _check_parameters(self) -> None:
        """Raises ValueError for a parameter that no fit can use."""
        check_count("max_iter", self.max_iter)
        for name in ("smoothing", "tol"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 < float(value) < np.inf:
                raise ValueError(f"{name}: expected a number larger than 0, got {value!r}")
        check_choice("structure", self.structure, STRUCTURES)
        check_options(self.level, self.linkage, self.correction)

    def _learner(
        self, rows: BinaryRows, allowed: np.ndarray | None = None, shared: SharedRows | None = None
    ) -> StructuralEM:
        options = {name: getattr(self, name) for name in ("level", "linkage", "correction")}
        smoothing, tol = float(self.smoothing), float(self.tol)
        return StructuralEM(rows, self.structure, smoothing, tol, self.max_iter, allowed, shared, **options)

    def to_pyro(self) -> ExchangeableMixture:
        """Pyro distribution of the rows, with all its queries, batch shape ``()`` and event shape ``(n,)``.

        It is in double precision: samples are to be cast for models in float32.
        """
        check_is_fitted(self)
        return self._mixture.to_pyro()
