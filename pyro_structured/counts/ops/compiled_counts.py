"""Direct sums over the counts of independent binary variables, in compiled loops; imported only where numba is."""

__all__ = ["direct_passes"]

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled

# Rows that are computed together, side by side in memory.
LANES = 8


@compiled
def direct_passes(
    on: np.ndarray,
    off: np.ndarray,
    weights: np.ndarray,
    marginals: bool,
    root: np.ndarray,
    given_off: np.ndarray,
    given_on: np.ndarray,
) -> None:
    """Fills ``root``, ``given_off`` and ``given_on``; all arguments as for the function of this name in
    :mod:`pyro_structured.counts.ops.direct_counts`, float64 and contiguous.
    """
    num_rows, num_variables = on.shape
    limit, num_levels = weights.shape[1] - 1, 0
    while 1 << num_levels < num_variables:
        num_levels += 1
    # Level l has nodes of 2**l variables, the last of which may have fewer; all have cells for the same counts.
    starts = np.zeros(num_levels + 2, np.int64)
    for level in range(num_levels + 1):
        starts[level + 1] = starts[level] + _num_nodes(num_variables, level) * _width(1 << level, limit)
    inside = np.zeros((starts[-1], LANES))
    outside = np.zeros((starts[-1], LANES))
    for first in range(0, num_rows, LANES):
        rows = min(LANES, num_rows - first)
        for d in range(num_variables):
            for r in range(rows):
                inside[2 * d, r], inside[2 * d + 1, r] = off[first + r, d], on[first + r, d]
        for level in range(num_levels):
            for node in range(_num_nodes(num_variables, level + 1)):
                parent = starts[level + 1] + node * _width(2 << level, limit)
                left, right = _children(num_variables, limit, starts, level, node)
                width = min(left[1] + max(right[1], 1) - 1, limit + 1)
                if right[1]:
                    _convolve(
                        inside[left[0] : left[0] + left[1]],
                        inside[right[0] : right[0] + right[1]],
                        inside[parent : parent + width],
                    )
                else:
                    inside[parent : parent + width] = inside[left[0] : left[0] + width]
        last = starts[num_levels]
        for count in range(limit + 1):
            for r in range(rows):
                root[first + r, count] = inside[last + count, r]
                outside[last + count, r] = weights[first + r, count]
        if not marginals:
            continue
        for level in range(num_levels - 1, -1, -1):
            for node in range(_num_nodes(num_variables, level + 1)):
                parent = starts[level + 1] + node * _width(2 << level, limit)
                left, right = _children(num_variables, limit, starts, level, node)
                width = min(left[1] + max(right[1], 1) - 1, limit + 1)
                if right[1]:
                    total = outside[parent : parent + width]
                    for one, other in ((left, right), (right, left)):
                        _correlate(
                            total,
                            inside[other[0] : other[0] + other[1]],
                            outside[one[0] : one[0] + one[1]],
                        )
                else:
                    outside[left[0] : left[0] + width] = outside[parent : parent + width]
        for d in range(num_variables):
            for r in range(rows):
                given_off[first + r, d], given_on[first + r, d] = outside[2 * d, r], outside[2 * d + 1, r]


@compiled
def _num_nodes(num_variables: int, level: int) -> int:
    return ((num_variables - 1) >> level) + 1


@compiled
def _width(size: int, limit: int) -> int:
    """Number of counts of a node of so many variables."""
    return min(size, limit) + 1


@compiled
def _children(
    num_variables: int, limit: int, starts: np.ndarray, level: int, node: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """First cells of a node's children, which are of a level, and their numbers of counts; 0 if there is none."""
    size, width = 1 << level, _width(1 << level, limit)
    first = starts[level] + 2 * node * width
    left = _width(min(size, num_variables - 2 * node * size), limit)
    rest = num_variables - (2 * node + 1) * size
    return (first, left), (first + width, _width(min(size, rest), limit) if rest > 0 else 0)


@compiled
def _convolve(left: np.ndarray, right: np.ndarray, product: np.ndarray) -> None:
    """Convolves messages of rows, shape ``(counts, LANES)``; counts for which the product has no cell are left out."""
    product[:] = 0.0
    for i in range(len(left)):
        for j in range(min(len(right), len(product) - i)):
            for r in range(LANES):
                product[i + j, r] += left[i, r] * right[j, r]


@compiled
def _correlate(total: np.ndarray, sibling: np.ndarray, result: np.ndarray) -> None:
    """Expected weight of each count, if the sibling's count is added to it, from those of the sums."""
    for i in range(len(result)):
        for r in range(LANES):
            result[i, r] = 0.0
        for j in range(min(len(sibling), len(total) - i)):
            for r in range(LANES):
                result[i, r] += total[i + j, r] * sibling[j, r]
