"""What is left of maximum flows when nodes are removed: lower bounds of cuts."""

__all__ = ["FlowBounds"]

import numpy as np


class FlowBounds:
    r"""Lower bounds of the cuts of pairs of nodes that leave out at most k nodes, from flows of a larger graph.

    A flow between two nodes of a network in which nodes carry at most p, the price, bounds the weight of every cut by
    its amount less k p. Without a node, it is a flow yet when all that passes through it is taken away.
    """

    def __init__(self) -> None:
        # Of pairs of nodes, the smaller first: the amount, the price, and what passes through every node.
        self._flows: dict[tuple[int, int], np.ndarray] = {}

    def add(self, source: int, sink: int, amount: float, price: float, loads: np.ndarray) -> None:
        """A maximum flow; loads have the shape ``(n,)``."""
        self._flows[min(source, sink), max(source, sink)] = np.concatenate([[amount, price], loads])

    def bound(self, source: int, sink: int, size: int) -> float:
        """Of the weights of all cuts between two nodes with at most k others left out; 0 if nothing is known."""
        flow = self._flows.get((min(source, sink), max(source, sink)))
        return 0.0 if flow is None else max(float(flow[0] - size * flow[1]), 0.0)

    def within(self, nodes: np.ndarray) -> "FlowBounds":
        """What is left of the flows in the graph of some of the nodes, shape ``(m,)``, in increasing order."""
        found, place = FlowBounds(), {int(node): index for index, node in enumerate(nodes)}
        pairs = [pair for pair in self._flows if pair[0] in place and pair[1] in place]
        if pairs:
            flows = np.stack([self._flows[pair] for pair in pairs])
            loads = flows[:, 2:]
            amounts = flows[:, 0] - (loads.sum(1) - loads[:, nodes].sum(1))
            rows = np.column_stack([amounts, flows[:, 1], loads[:, nodes]])
            found._flows = {(place[one], place[other]): row for (one, other), row in zip(pairs, rows, strict=True)}
        return found
