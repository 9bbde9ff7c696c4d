"""What densities of categorical data have in common."""

__all__ = ["CategoricalDensity"]

from abc import abstractmethod
from typing import Any

import numpy as np
from sklearn.base import DensityMixin

from pyro_structured.junction_trees.models.categorical_estimator import CategoricalEstimator
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows

# Of the rows, where none are given for validation.
HELD_OUT = 0.1


class CategoricalDensity(DensityMixin, CategoricalEstimator):  # type: ignore[misc]
    """Chooses settings on validation rows, and scores rows by their log-probabilities."""

    @abstractmethod
    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, in nats."""

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-probability of rows, in nats."""
        return float(self.score_samples(X).mean())

    def _divide(
        self, codes: np.ndarray, X_val: Any, generator: np.random.RandomState
    ) -> tuple[CategoricalRows, CategoricalRows]:
        """Rows to learn from, and rows to choose by: a tenth of all, at random, if there are no others."""
        if X_val is not None:
            return self._rows(codes), self._rows(self._read_held_out(X_val))
        if len(codes) == 1:
            return self._rows(codes), self._rows(codes)
        order = generator.permutation(len(codes))
        number = max(1, round(HELD_OUT * len(codes)))
        return self._rows(codes[order[number:]]), self._rows(codes[order[:number]])

    def _rows(self, codes: np.ndarray) -> CategoricalRows:
        return CategoricalRows(codes, self._num_states, known=self._num_known)
