"""Cells of the messages of a binary tree of counts, level by level, in compiled loops; imported only where numba is."""

__all__ = ["child_messages", "level_starts", "message_width", "num_nodes"]

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled


@compiled
def num_nodes(num_leaves: int, level: int) -> int:
    """Number of nodes of a level of a tree."""
    return ((num_leaves - 1) >> level) + 1


@compiled
def message_width(size: int, limit: int) -> int:
    """Number of counts of a node of so many variables, none beyond the limit."""
    return min(size, limit) + 1


@compiled
def level_starts(num_leaves: int, size: int, limit: int) -> np.ndarray:
    """First cell of each level of a tree, whose leaves have ``size`` variables, and the number of all cells.

    Level l has nodes of 2**l leaves, the last of which may have fewer; all have cells for the same counts.
    """
    num_levels = 1
    while 1 << (num_levels - 1) < num_leaves:
        num_levels += 1
    starts = np.zeros(num_levels + 1, np.int64)
    for level in range(num_levels):
        starts[level + 1] = starts[level] + num_nodes(num_leaves, level) * message_width(size << level, limit)
    return starts


@compiled
def child_messages(
    num_variables: int, limit: int, starts: np.ndarray, level: int, node: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """First cells of a node's children, which are of a level, and their numbers of counts; 0 if there is none."""
    size, width = 1 << level, message_width(1 << level, limit)
    first = starts[level] + 2 * node * width
    left = message_width(min(size, num_variables - 2 * node * size), limit)
    rest = num_variables - (2 * node + 1) * size
    return (first, left), (first + width, message_width(min(size, rest), limit) if rest > 0 else 0)
