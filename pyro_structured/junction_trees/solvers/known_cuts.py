"""Cuts that were found on the way to others: of a graph, or of one that it was a part of."""

__all__ = ["KnownCuts", "SeparatorCut"]

from typing import NamedTuple

import numpy as np


class SeparatorCut(NamedTuple):
    """A cut of a graph without some nodes.

    :ivar float weight: Of the edges that are cut.
    :ivar int size: Number of nodes that are left out.
    :ivar np.ndarray source_side: Whether a node is on the source's side, shape ``(n,)``.
    :ivar np.ndarray sink_side: Whether it is on the sink's; nodes on neither are left out.
    """

    weight: float
    size: int
    source_side: np.ndarray
    sink_side: np.ndarray

    def cost(self, price: float) -> float:
        """With a price for each node that is left out."""
        return self.weight + price * self.size


class KnownCuts:
    """Finds the cheapest of the cuts that keep two nodes apart.

    :param np.ndarray weights: Weights of the edges, symmetric, shape ``(n, n)``.
    :param np.ndarray sides: Whether nodes are on the source's sides, and whether on the sinks', shape ``(2, n, cuts)``.
    """

    def __init__(self, weights: np.ndarray, sides: np.ndarray) -> None:
        # Rows are nodes: those of one node are read at once. Columns past the number of cuts are not used.
        self._sides, self._number = sides, sides.shape[2]
        left_out = len(weights) - sides.sum((0, 1))
        self._lines = np.stack([((weights @ sides[0]) * sides[1]).sum(0), left_out], 1)

    def between(self, source: int, sink: int) -> np.ndarray:
        """Numbers of the cuts of two nodes."""
        near, far = self._sides[:, :, : self._number]
        found: np.ndarray = (near[source] & far[sink]).nonzero()[0]
        return found

    def cheapest(self, numbers: np.ndarray, price: float) -> SeparatorCut:
        """Of these cuts, which are one or more."""
        best = numbers[(self._lines[numbers] @ (1.0, price)).argmin()]
        weight, size = self._lines[best]
        return SeparatorCut(float(weight), int(size), *self._sides[:, :, best])

    def add(self, cut: SeparatorCut) -> None:
        """Remembers a cut."""
        if self._number == len(self._lines):
            more = max(16, self._number)
            self._sides = np.pad(self._sides, ((0, 0), (0, 0), (0, more)))
            self._lines = np.pad(self._lines, ((0, more), (0, 0)))
        self._sides[:, :, self._number] = cut.source_side, cut.sink_side
        self._lines[self._number] = cut.weight, cut.size
        self._number += 1

    def within(self, weights: np.ndarray, nodes: np.ndarray) -> "KnownCuts":
        """The same cuts of the graph of some of the nodes, with weights of its own.

        :param np.ndarray weights: Weights of its edges, shape ``(m, m)``.
        :param np.ndarray nodes: Its nodes, shape ``(m,)``.
        """
        sides = self._sides[:, nodes, : self._number]
        sides = sides[:, :, sides.any(1).all(0)]
        packed = np.packbits(sides.reshape(2 * len(nodes), sides.shape[2]), axis=0).T.copy()
        _, first = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_index=True)
        return KnownCuts(weights, sides[:, :, np.sort(first)])
