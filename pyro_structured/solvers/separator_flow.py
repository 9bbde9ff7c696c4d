"""The cheapest cut of a graph that a few nodes may be left out of, relaxed, by maximum flows."""

__all__ = ["SeparatorFlow", "SeparatorSolution"]

from typing import Any, NamedTuple

import numpy as np

# The sum of all capacities; they are integers.
RESOLUTION, TOLERANCE = 2.0**50, 1e-11


class SeparatorSolution(NamedTuple):
    """A solution.

    :ivar float value: The least of the relaxed problem, which is not above the weight of any cut.
    :ivar np.ndarray entry: Distances from the source at which nodes are entered, shape ``(n,)``.
    :ivar np.ndarray length: Lengths of the nodes: how much of them is in the separator, shape ``(n,)``.
    """

    value: float
    entry: np.ndarray
    length: np.ndarray


class _Cut(NamedTuple):
    """The weight of the edges that are cut, the number of nodes that are left out, and what is where."""

    weight: float
    size: int
    separator: np.ndarray
    sink_side: np.ndarray

    def cost(self, price: float) -> float:
        """With a price for each node of the separator."""
        return self.weight + price * self.size


class SeparatorFlow:
    """Solves the program of :class:`SeparatorProgram` without a bonus, for all sources and sinks of one graph.

    With a price for each node that is left out, in place of the bound of their number, it is the dual of a maximum flow
    through nodes of this capacity. Its value is a concave, piecewise linear function of the price, and the solution a
    mean of two cuts that are best for the price of its peak. Cuts that are known already tell where to begin.

    :param np.ndarray weights: Weights of the edges, at least 0, symmetric, shape ``(n, n)``.
    :param int size: The largest number of nodes k that are left out.
    """

    def __init__(self, weights: np.ndarray, size: int) -> None:
        from ortools.graph.python.max_flow import SimpleMaxFlow

        number = len(weights)
        self._weights, self._size, self._total = weights, size, float(weights.sum()) or 1.0
        self._scale = RESOLUTION / self._total
        # Node v is entered at v and left at n + v.
        inside = np.arange(number, dtype=np.int32)
        tails, heads = (ends.astype(np.int32) for ends in weights.nonzero())
        self._flow: Any = SimpleMaxFlow()
        self._nodes = self._flow.add_arcs_with_capacity(inside, inside + number, np.zeros(number, dtype=np.int64))
        capacities = (weights[tails, heads] * self._scale).round().astype(np.int64)
        self._flow.add_arcs_with_capacity(tails + number, heads, capacities)
        self._known: list[_Cut] = []
        # Costs and sides of the known cuts; the rows past their number are not used.
        self._lines, self._sides = np.empty((16, 2)), np.empty((16, 2, number), dtype=bool)

    def solve(self, source: int, sink: int) -> SeparatorSolution:
        """For two different nodes."""
        everything = np.arange(len(self._weights))
        around = (self._weights[source] > 0) & (everything != sink)
        many = _Cut(float(self._weights[source, sink]), int(around.sum()), around, (everything != source) & ~around)
        if many.size <= self._size:
            return _mean(many, many, 1.0)
        few = _Cut(float(self._weights[source].sum()), 0, everything < 0, everything != source)
        while True:
            price = max(few.weight - many.weight, 0.0) / (many.size - few.size)
            bound = few.cost(price) - TOLERANCE * self._total
            found = self._recall(source, sink, price)
            if found is None or found.cost(price) >= bound:
                found = self._cut(source, sink, price)
                if found.cost(price) >= bound:
                    return _mean(few, many, (self._size - few.size) / (many.size - few.size) if price else 0.0)
                self._remember(found)
            # Below the line through both: this and one of them make the line whose peak is nearer.
            few, many = (found, many) if found.size <= self._size else (few, found)

    def _recall(self, source: int, sink: int, price: float) -> _Cut | None:
        """The cheapest known cut of two nodes."""
        sides = self._sides[: len(self._known)]
        valid = (sides[:, 0, source] & sides[:, 1, sink]).nonzero()[0]
        if not len(valid):
            return None
        return self._known[int(valid[(self._lines[valid] @ (1.0, price)).argmin()])]

    def _remember(self, cut: _Cut) -> None:
        place = len(self._known)
        if place == len(self._lines):
            self._lines, self._sides = (np.concatenate([part, part]) for part in (self._lines, self._sides))
        self._lines[place] = cut.weight, cut.size
        self._sides[place] = ~(cut.separator | cut.sink_side), cut.sink_side
        self._known.append(cut)

    def _cut(self, source: int, sink: int, price: float) -> _Cut:
        number = len(self._weights)
        # Nodes need not carry more than everything.
        capacity = round(min(price * self._scale, RESOLUTION))
        self._flow.set_arcs_capacity(self._nodes, np.full(number, capacity, dtype=np.int64))
        status = self._flow.solve(number + source, sink)
        if status != self._flow.OPTIMAL:
            raise RuntimeError(f"maximum flow: expected an optimal solution, got status {status}")
        reached = np.zeros(2 * number, dtype=bool)
        reached[self._flow.get_source_side_min_cut()] = True
        left = reached[number:]
        separator = reached[:number] & ~left
        sink_side = ~(reached[:number] | left)
        weight = float(left @ self._weights @ sink_side)
        return _Cut(weight, int(separator.sum()), separator, sink_side)


def _mean(few: _Cut, many: _Cut, share: float) -> SeparatorSolution:
    return SeparatorSolution(
        (1 - share) * few.weight + share * many.weight,
        (1 - share) * few.sink_side + share * many.sink_side,
        (1 - share) * few.separator + share * many.separator,
    )
