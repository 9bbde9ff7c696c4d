"""What estimators of binary data have in common."""

__all__ = ["BinaryEstimator"]

from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, validate_data

from pyro_structured.models.argument_checks import checked_weights
from pyro_structured.ops.binary_rows import BinaryRows

SPARSE_OR_NAN = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}


class BinaryEstimator(BaseEstimator):  # type: ignore[misc]
    """Reads dense and sparse data, of which values may be missing (NaN), as zeros and ones."""

    binarize: float | None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    def _check_integers(self, *names: str) -> None:
        """Raises ValueError unless these parameters are integers of at least 1."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}")

    def _validate(self, X: Any, reset: bool = False, **y: Any) -> Any:
        return validate_data(self, X, reset=reset, dtype=np.float64, copy=True, **SPARSE_OR_NAN, **y)

    def _validate_held_out(self, X_val: Any, **options: Any) -> Any:
        """Validation rows: errors name them, where those of ``validate_data`` would speak of X."""
        try:
            values = check_array(X_val, input_name="X_val", dtype=np.float64, copy=True, **options)
            if values.shape[1] != self.n_features_in_:
                raise ValueError(f"expected {self.n_features_in_} columns, as in X, got {values.shape[1]}")
            validate_data(self, X_val, reset=False, skip_check_array=True)  # the columns' names
        except ValueError as error:
            raise ValueError(f"X_val: {error}") from None
        return values

    @staticmethod
    def _check_weights(sample_weight: Any, X: Any) -> np.ndarray:
        return checked_weights(sample_weight, X.shape[0])

    def _binarized(self, values: Any, name: str = "X") -> Any:
        """Zeros, ones and NaN in place of numbers, dense or sparse."""
        if issparse(values):
            values.sum_duplicates()
        data = values.data if issparse(values) else values
        if self.binarize is not None and (not isinstance(self.binarize, Real) or np.isnan(float(self.binarize))):
            raise ValueError(f"binarize: expected a number or None, got {self.binarize!r}")
        if self.binarize is None:
            if not ((data == 0) | (data == 1) | np.isnan(data)).all():
                raise ValueError(f"{name}: expected zeros, ones and NaN, as binarize is None, got other numbers")
            return values
        if issparse(values) and self.binarize < 0:
            raise ValueError(f"binarize: expected at least 0 for sparse data, got {self.binarize!r}")
        known = ~np.isnan(data)
        data[known] = data[known] > self.binarize
        return values

    def _read(self, X: Any) -> BinaryRows:
        return BinaryRows.from_matrix(self._binarized(self._validate(X)))

    def _read_held_out(self, X_val: Any) -> BinaryRows:
        return BinaryRows.from_matrix(self._binarized(self._validate_held_out(X_val, **SPARSE_OR_NAN), "X_val"))
