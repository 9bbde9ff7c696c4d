"""Rows of categories, and how often their joint states occur."""

__all__ = ["CategoricalRows", "mutual_information"]

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
    def pair_counts(self) -> np.ndarray:
        """Weights of pairs of single states, which are numbered through all variables, by one product of matrices."""
        starts = np.concatenate([[0], np.cumsum(self.cardinalities)])
        hits = np.zeros((self.values.shape[1], starts[-1]))
        for d, column in enumerate(self.values):
            hits[np.arange(len(column)), starts[d] + column] = 1.0
        found: np.ndarray = (hits * self.weights[:, None]).T @ hits
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
    starts = np.concatenate([[0], np.cumsum(rows.cardinalities)[:-1]]).astype(int)
    joint = rows.pair_counts / rows.total
    single = joint.diagonal()
    terms = xlogy(joint, joint) - xlogy(joint, single[:, None]) - xlogy(joint, single)
    found: np.ndarray = np.maximum(np.add.reduceat(np.add.reduceat(terms, starts, 0), starts, 1), 0.0)
    return found
