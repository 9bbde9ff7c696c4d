"""Lists of the edges that leave and enter the nodes of a directed network."""

__all__ = ["Adjacency"]

from typing import NamedTuple

import numpy as np


class Adjacency(NamedTuple):
    """The edges at every node, one list after the other, as searches in compiled loops read them.

    :ivar np.ndarray tails: First nodes of the E edges, shape ``(E,)``.
    :ivar np.ndarray heads: Last nodes of the edges, shape ``(E,)``.
    :ivar np.ndarray leaving: Edges, ordered by their tails, shape ``(E,)``.
    :ivar np.ndarray leaving_from: Places in ``leaving`` where the edges of each of n nodes start, and E, shape
        ``(n + 1,)``.
    :ivar np.ndarray entering: Edges, ordered by their heads, shape ``(E,)``.
    :ivar np.ndarray entering_from: Places in ``entering`` where the nodes' edges start, and E, shape ``(n + 1,)``.
    """

    tails: np.ndarray
    heads: np.ndarray
    leaving: np.ndarray
    leaving_from: np.ndarray
    entering: np.ndarray
    entering_from: np.ndarray

    @classmethod
    def from_edges(cls, edges: np.ndarray, num_nodes: int) -> "Adjacency":
        """Lists of the edges of a network, from tails and heads of shape ``(E, 2)``, in O(E log E)."""
        tails, heads = (np.ascontiguousarray(end, dtype=np.int64) for end in edges.T)
        leaving, entering = (np.argsort(end, kind="stable") for end in (tails, heads))
        first, last = (np.append(0, np.bincount(end, minlength=num_nodes).cumsum()) for end in (tails, heads))
        return cls(tails, heads, leaving, first, entering, last)
