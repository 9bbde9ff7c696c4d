"""Relaxation of the cheapest cut of a graph without a few nodes, by maximum flows."""

__all__ = ["FlowBounds", "KnownCuts", "SeparatorCut", "SeparatorFlow", "SeparatorSolution"]

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np


class SeparatorCut(NamedTuple):
    """A cut of a graph without some nodes.

    :ivar float weight: Weight of the edges that are cut.
    :ivar int size: Number of nodes that are left out.
    :ivar np.ndarray source_side: Whether a node is on the source's side, shape ``(n,)``.
    :ivar np.ndarray sink_side: Whether a node is on the sink's side, shape ``(n,)``; nodes on neither are left out.
    """

    weight: float
    size: int
    source_side: np.ndarray
    sink_side: np.ndarray

    def cost(self, price: float) -> float:
        """Weight plus a price for each node that is left out."""
        return self.weight + price * self.size


class KnownCuts:
    """Known cuts, among which the cheapest one that keeps two nodes apart can be found.

    :param np.ndarray weights: Weights of the edges, symmetric, shape ``(n, n)``.
    :param np.ndarray sides: Whether nodes are on the source's side, and on the sink's side, shape ``(2, n, cuts)``.
    """

    def __init__(self, weights: np.ndarray, sides: np.ndarray) -> None:
        # Rows are nodes, so that a row can be read at once. Columns past the number of cuts are not used.
        self._sides, self._number = sides, sides.shape[2]
        left_out = len(weights) - sides.sum((0, 1))
        self._lines = np.stack([((weights @ sides[0]) * sides[1]).sum(0), left_out], 1)

    def between(self, source: int, sink: int) -> np.ndarray:
        """Numbers of the cuts that keep two nodes apart."""
        near, far = self._sides[:, :, : self._number]
        numbers: np.ndarray = (near[source] & far[sink]).nonzero()[0]
        return numbers

    def cheapest(self, numbers: np.ndarray, price: float) -> SeparatorCut:
        """Cheapest of some cuts, of which there is at least one, at a price for each node that is left out."""
        best = numbers[(self._lines[numbers] @ (1.0, price)).argmin()]
        weight, size = self._lines[best]
        return SeparatorCut(float(weight), int(size), *self._sides[:, :, best])

    def add(self, cut: SeparatorCut) -> None:
        """Adds a cut."""
        if self._number == len(self._lines):
            more = max(16, self._number)
            self._sides = np.pad(self._sides, ((0, 0), (0, 0), (0, more)))
            self._lines = np.pad(self._lines, ((0, more), (0, 0)))
        self._sides[:, :, self._number] = cut.source_side, cut.sink_side
        self._lines[self._number] = cut.weight, cut.size
        self._number += 1

    def within(self, weights: np.ndarray, nodes: np.ndarray) -> "KnownCuts":
        """The same cuts in a subgraph with weights of its own.

        :param np.ndarray weights: Weights of the subgraph's edges, shape ``(m, m)``.
        :param np.ndarray nodes: Nodes of the subgraph, shape ``(m,)``.
        """
        sides = self._sides[:, nodes, : self._number]
        sides = sides[:, :, sides.any(1).all(0)]
        packed = np.packbits(sides.reshape(2 * len(nodes), sides.shape[2]), axis=0).T.copy()
        _, first = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_index=True)
        return KnownCuts(weights, sides[:, :, np.sort(first)])


class FlowBounds:
    r"""Lower bounds of the cuts of pairs of nodes that leave out at most k nodes, from flows of a larger graph.

    A flow between two nodes of a network in which nodes carry at most p, the price, bounds the weight of every cut by
    its amount less k p. In the graph without a node, it remains a flow once the part through this node is subtracted.
    """

    def __init__(self) -> None:
        # For pairs of nodes, the smaller first: the amount, the price, and the flow through every node.
        self._flows: dict[tuple[int, int], np.ndarray] = {}

    def add(self, source: int, sink: int, amount: float, price: float, loads: np.ndarray) -> None:
        """Adds a maximum flow, whose loads, the flows through the nodes, have shape ``(n,)``."""
        self._flows[min(source, sink), max(source, sink)] = np.concatenate([[amount, price], loads])

    def bound(self, source: int, sink: int, size: int) -> float:
        """Lower bound of the weights of all cuts between two nodes with at most ``size`` others left out; 0 if no flow
        is known.
        """
        flow = self._flows.get((min(source, sink), max(source, sink)))
        return 0.0 if flow is None else max(float(flow[0] - size * flow[1]), 0.0)

    def within(self, nodes: np.ndarray) -> "FlowBounds":
        """Bounds from the same flows in a subgraph of nodes in increasing order, shape ``(m,)``."""
        bounds, place = FlowBounds(), {int(node): index for index, node in enumerate(nodes)}
        pairs = [pair for pair in self._flows if pair[0] in place and pair[1] in place]
        if pairs:
            flows = np.stack([self._flows[pair] for pair in pairs])
            loads = flows[:, 2:]
            amounts = flows[:, 0] - (loads.sum(1) - loads[:, nodes].sum(1))
            rows = np.column_stack([amounts, flows[:, 1], loads[:, nodes]])
            bounds._flows = {
                (place[first], place[second]): row for (first, second), row in zip(pairs, rows, strict=True)
            }
        return bounds


# Sum of all capacities, which are integers; and relative tolerance of costs.
RESOLUTION, TOLERANCE = 2.0**50, 1e-11


class SeparatorSolution(NamedTuple):
    """Solution of the relaxed problem.

    :ivar float value: Minimum of the relaxed problem, a lower bound of the weight of any cut.
    :ivar np.ndarray entry: Distances d from the source at which nodes are entered, shape ``(n,)``.
    :ivar np.ndarray length: Lengths s of the nodes, their shares in the separator, from 0 to 1, shape ``(n,)``.
    """

    value: float
    entry: np.ndarray
    length: np.ndarray


class SeparatorFlow:
    """Solves the program of :class:`SeparatorProgram` without a bonus, for all sources and sinks of one graph.

    With a price for each node that is left out, in place of the bound of their number, it is the dual of a maximum flow
    through nodes of this capacity. Its value is a concave, piecewise linear function of the price, and the solution a
    mean of two cuts that are best for the price of its peak. The search begins with cuts that are already known.

    :param np.ndarray weights: Weights of the edges, at least 0, symmetric, shape ``(n, n)``.
    :param int size: The largest number of nodes k that are left out.
    """

    def __init__(self, weights: np.ndarray, size: int) -> None:
        self._weights, self._size, self._total = weights, size, float(weights.sum()) or 1.0
        self._scale = RESOLUTION / self._total
        self._known = KnownCuts(weights, np.empty((2, len(weights), 0), dtype=bool))
        self._bounds = FlowBounds()

    def within(self, weights: np.ndarray, size: int, nodes: np.ndarray) -> "SeparatorFlow":
        """Solver for a subgraph, with the known cuts and bounds of this graph.

        :param np.ndarray weights: Weights of the subgraph's edges, none smaller than in this graph, shape ``(m, m)``.
        :param int size: The largest number of nodes of the subgraph that are left out.
        :param np.ndarray nodes: Nodes of the subgraph, in increasing order, shape ``(m,)``.
        """
        flow = SeparatorFlow(weights, size)
        flow._known, flow._bounds = self._known.within(weights, nodes), self._bounds.within(nodes)
        return flow

    def bound(self, source: int, sink: int) -> float:
        """Lower bound of the value for two different nodes, without computing a flow; exact where it was solved."""
        return max(self._bounds.bound(source, sink, self._size), float(self._weights[source, sink]))

    def solve(self, source: int, sink: int) -> SeparatorSolution:
        """Solution for two different nodes."""
        everything = np.arange(len(self._weights))
        around = (self._weights[source] > 0) & (everything != sink)
        is_source = everything == source
        many = SeparatorCut(float(self._weights[source, sink]), int(around.sum()), is_source, ~(is_source | around))
        if many.size <= self._size:
            return _mean(many, many, 1.0)
        few = SeparatorCut(float(self._weights[source].sum()), 0, is_source, ~is_source)
        known, slack = self._known.between(source, sink), TOLERANCE * self._total
        while True:
            price = max(few.weight - many.weight, 0.0) / (many.size - few.size)
            cost = few.cost(price) - slack
            cut = self._known.cheapest(known, price) if len(known) else few
            if cut.cost(price) >= cost:
                if self.bound(source, sink) < cost - price * self._size:
                    cut = self._cut(source, sink, price)
                if cut.cost(price) >= cost:
                    return _mean(few, many, (self._size - few.size) / (many.size - few.size) if price else 0.0)
                self._known.add(cut)
            # The cut is below the line through both: with one of them, it makes a line whose peak is nearer.
            few, many = (cut, many) if cut.size <= self._size else (few, cut)

    @cached_property
    def _network(self) -> tuple[Any, np.ndarray]:
        """Maximum flow solver, and its arcs through the nodes; node v is entered at v and left at n + v."""
        from ortools.graph.python.max_flow import SimpleMaxFlow

        number, flow = len(self._weights), SimpleMaxFlow()
        inside = np.arange(number, dtype=np.int32)
        tails, heads = (ends.astype(np.int32) for ends in self._weights.nonzero())
        arcs = flow.add_arcs_with_capacity(inside, inside + number, np.zeros(number, dtype=np.int64))
        capacities = (self._weights[tails, heads] * self._scale).round().astype(np.int64)
        flow.add_arcs_with_capacity(tails + number, heads, capacities)
        return flow, arcs

    def _cut(self, source: int, sink: int, price: float) -> SeparatorCut:
        number, (flow, arcs) = len(self._weights), self._network
        # The capacity of a node need not exceed the sum of all capacities.
        capacity = round(min(price * self._scale, RESOLUTION))
        flow.set_arcs_capacity(arcs, np.full(number, capacity, dtype=np.int64))
        status = flow.solve(number + source, sink)
        if status != flow.OPTIMAL:
            raise RuntimeError(f"maximum flow: expected an optimal solution, got status {status}")
        self._bounds.add(
            source, sink, flow.optimal_flow() / self._scale, capacity / self._scale, flow.flows(arcs) / self._scale
        )
        reached = np.zeros(2 * number, dtype=bool)
        reached[flow.get_source_side_min_cut()] = True
        entered, left = reached[:number], reached[number:]
        sink_side = ~(entered | left)
        return SeparatorCut(float(left @ self._weights @ sink_side), int((entered & ~left).sum()), left, sink_side)


def _mean(few: SeparatorCut, many: SeparatorCut, share: float) -> SeparatorSolution:
    return SeparatorSolution(
        (1 - share) * few.weight + share * many.weight,
        (1 - share) * few.sink_side + share * many.sink_side,
        (1 - share) * ~(few.source_side | few.sink_side) + share * ~(many.source_side | many.sink_side),
    )
