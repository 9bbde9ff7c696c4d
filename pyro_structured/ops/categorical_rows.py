"""Rows of categories, and how often their joint states occur."""

__all__ = ["CategoricalRows", "least_information", "mutual_information"]

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy.special import xlogy


class CategoricalRows:
    """Rows of discrete variables with weights; equal rows are merged.

    :param np.ndarray values: States, integers of shape ``(N, n)``.
    :param cardinalities: Numbers of states of the variables.
    :param np.ndarray weights: Weights of the rows, at least 0, shape ``(N,)``; ``None``: all are 1.
    :ivar values: Different rows, column by column, shape ``(n, R)``.
    :ivar weights: Their weights, shape ``(R,)``.
    """

    def __init__(self, values: np.ndarray, cardinalities: Sequence[int], weights: np.ndarray | None = None) -> None:
        self.cardinalities = tuple(int(size) for size in cardinalities)
        weights = np.ones(len(values)) if weights is None else weights
        rows, inverse = np.unique(values, axis=0, return_inverse=True)
        self.values = np.ascontiguousarray(rows.T.astype(np.int64))
        self.weights = np.bincount(inverse.ravel(), weights, len(rows))

    @cached_property
    def total(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum())

    def counts(self, variables: Sequence[int]) -> np.ndarray:
        """Weights of the joint states of some variables, the last one fastest, shape ``(states,)``."""
        code = np.zeros(self.values.shape[1], dtype=np.int64)
        for d in variables:
            code = code * self.cardinalities[d] + self.values[d]
        found: np.ndarray = np.bincount(code, self.weights, math.prod(self.cardinalities[d] for d in variables))
        return found

    @cached_property
    def starts(self) -> np.ndarray:
        """Numbers of the variables' first states, if single states are numbered through all variables."""
        return np.cumsum((0, *self.cardinalities[:-1]))

    @cached_property
    def hits(self) -> np.ndarray:
        """Whether rows have single states, shape ``(R, states)``."""
        found = np.zeros((self.values.shape[1], sum(self.cardinalities)))
        for start, column in zip(self.starts, self.values, strict=True):
            found[np.arange(len(column)), start + column] = 1.0
        return found

    @cached_property
    def pair_counts(self) -> np.ndarray:
        """Weights of pairs of single states, by one product of matrices."""
        found: np.ndarray = (self.hits * self.weights[:, None]).T @ self.hits
        return found


def mutual_information(rows: CategoricalRows) -> np.ndarray:
    r"""Mutual information of all pairs of variables, in nats, from one pass through the data.

    :return: Symmetric, shape ``(n, n)``, entropies on the diagonal. Cost :math:`O(N (\sum_d r_d)^2)`.

    Example::

        >>> rows = CategoricalRows(np.array([[0, 0, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]), [2, 2, 2])
        >>> mutual_information(rows).round(3)
        array([[0.693, 0.693, 0.   ],
               [0.693, 0.693, 0.   ],
               [0.   , 0.   , 0.693]])
    """
    found: np.ndarray = np.maximum(_information(rows.pair_counts, rows.starts) / rows.total, 0.0)
    return found


def least_information(rows: CategoricalRows) -> np.ndarray:
    r"""What pairs of variables tell about each other, in nats, given none or any one other variable, at the least.

    .. math::
        \min\bigl(I(u; v), \min_{w} I(u; v \mid w)\bigr).

    Small where a third variable explains why two depend on each other.

    :return: Symmetric, shape ``(n, n)``, zeros on the diagonal. Cost :math:`O(n N (\sum_d r_d)^2)`.

    Example::

        >>> x = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0]])  # the last is noisy
        >>> least_information(CategoricalRows(x, [2, 2, 2])).round(3)
        array([[0.   , 0.637, 0.   ],
               [0.637, 0.   , 0.   ],
               [0.   , 0.   , 0.   ]])
    """
    least = mutual_information(rows)
    np.fill_diagonal(least, 0.0)
    for d, column in enumerate(rows.values):
        given = np.zeros_like(least)
        for state in range(rows.cardinalities[d]):
            chosen = column == state
            hits = rows.hits[chosen]
            given += _information((hits * rows.weights[chosen, None]).T @ hits, rows.starts)
        given[d] = given[:, d] = np.inf
        np.minimum(least, np.maximum(given / rows.total, 0.0), out=least)
    return least


def _information(counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Mutual information of all pairs from the counts of pairs of states, times the number of rows."""
    single = counts.diagonal()
    total = np.add.reduceat(single, starts)[0]
    terms = xlogy(counts, counts * total) - xlogy(counts, single[:, None]) - xlogy(counts, single)
    found: np.ndarray = np.add.reduceat(np.add.reduceat(terms, starts, 0), starts, 1)
    return found
