"""Matchings of smallest total cost."""

__all__ = ["has_matching", "solve_assignment"]

import numpy as np


def solve_assignment(costs: np.ndarray) -> np.ndarray:
    """Gives every row a column of its own, so that the total cost is smallest.

    :param np.ndarray costs: Shape ``(N, rows, columns)``, with no more rows than columns; +inf forbids a pair.
    :return: Columns, int64, shape ``(N, rows)``. Cost O(rows² columns) each.
    :raises ValueError: if there is no matching, or a NaN.
    """
    from scipy.optimize import linear_sum_assignment

    found = np.empty(costs.shape[:2], dtype=np.int64)
    for matrix, columns in zip(costs, found, strict=True):
        columns[:] = linear_sum_assignment(matrix)[1]
    return found


def has_matching(allowed: np.ndarray) -> np.ndarray:
    """Whether all rows can have columns of their own, booleans of shape ``(N,)`` from shape ``(N, rows, columns)``."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return np.array([(maximum_bipartite_matching(csr_array(each), perm_type="column") >= 0).all() for each in allowed])
