"""Costs of labels and edges given that labellings are the cheapest: one update of all costs, compiled."""

__all__ = ["cut_sweep"]

import math

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled
from pyro_structured.optima.ops.compiled_draw import compiled_draw
from pyro_structured.optima.ops.density_family import DensityFamily
from pyro_structured.optima.ops.maximum_flow import flow_network


@compiled
def cut_sweep(
    edges: np.ndarray,
    costs: np.ndarray,
    labels: np.ndarray,
    family: DensityFamily,
    base: np.ndarray,
    uniform: np.ndarray,
) -> None:
    r"""Draws all costs in place, node by node and then edge by edge, given that labels are the cheapest.

    Labels are the cheapest exactly as long as a flow from label 0 to label 1 fills every edge that they cut, and leaves
    no demand of a node of label 0, and no supply of one of label 1. Such a flow never crosses the cut twice, so that it
    is one among the nodes of each label. By how much a cost may change is what else can be sent to the node, or instead
    of the flow along the edge; this is found by searches around the entry, and kept, as the flow for the next entry.

    :param np.ndarray edges: Pairs of different nodes, integers of shape ``(E, 2)``.
    :param np.ndarray costs: Costs for which the labels are the cheapest: those of label 0 of n nodes, of label 1, and
        of the edges, which are at least 0; float64, shape ``(N, 2 n + E)``.
    :param np.ndarray labels: Labels, 0 or 1, int64 of shape ``(N, n)``.
    :param DensityFamily family: The distributions of all costs.
    :param np.ndarray base: Location, scale, lower bound, or -inf, upper bound, or +inf, and additive constant of all
        costs; float64, shape ``(N, 2 n + E, 5)``;
        for mixtures as :func:`~pyro_structured.optima.ops.compiled_draw.compiled_draw` takes it.
    :param np.ndarray uniform: Uniform variables, one for every cost, float64, shape ``(N, 2 n + E)``.

    O(N · (n + E) · n E²) at worst, and next to O(N · (n + E)) where searches stay near the entries. Exact up to
    rounding.

    **References**

    Kohli, Torr (2008): *Measuring uncertainty in graph cut solutions.* Computer Vision and Image Understanding 112(1).
    """
    number = labels.shape[1]
    ends, first, neighbours, arcs = flow_network(edges, number)
    room, slack = np.empty(2 * len(edges)), np.empty(number)
    seen, search = np.zeros(number, np.bool_), np.empty((3, number), np.int64)
    for n in range(len(costs)):
        row, sides, spread, share = costs[n], labels[n], base[n], uniform[n]
        _fill(ends, row, sides, room, slack)
        for node in range(number):
            _gather(first, neighbours, arcs, room, slack, sides, seen, search, node, 0.0)
        for node in range(number):
            _gather(first, neighbours, arcs, room, slack, sides, seen, search, node, math.inf)
            own, opposite = (node, number + node) if sides[node] == 0 else (number + node, node)
            difference = row[own] + slack[node] - row[opposite]
            row[own] = compiled_draw(share[own], family, spread[own], -math.inf, row[own] + slack[node])
            low = row[own] - difference
            row[opposite] = compiled_draw(share[opposite], family, spread[opposite], low, math.inf)
            slack[node] = row[opposite] - low
        for edge in range(len(edges)):
            entry, tail, head = 2 * number + edge, ends[edge, 0], ends[edge, 1]
            if sides[tail] != sides[head]:
                _gather(first, neighbours, arcs, room, slack, sides, seen, search, tail, math.inf)
                _gather(first, neighbours, arcs, room, slack, sides, seen, search, head, slack[tail])
                high = row[entry] + min(slack[tail], slack[head])
                slack[tail], slack[head] = slack[tail] + row[entry], slack[head] + row[entry]
                row[entry] = compiled_draw(share[entry], family, spread[entry], 0.0, max(high, 0.0))
                slack[tail], slack[head] = slack[tail] - row[entry], slack[head] - row[entry]
                room[2 * edge + (sides[tail] ^ 1)] = 2 * row[entry]
                continue
            flow = (room[2 * edge + 1] - room[2 * edge]) / 2
            # The side on which flow is missing without the edge.
            forth = (flow > 0) ^ sides[tail]
            poor, rich = (head, tail) if forth else (tail, head)
            room[2 * edge] = room[2 * edge + 1] = 0.0
            slack[poor], slack[rich] = slack[poor] - abs(flow), slack[rich] + abs(flow)
            _gather(first, neighbours, arcs, room, slack, sides, seen, search, poor, 0.0)
            low = max(-slack[poor], 0.0)
            row[entry] = compiled_draw(share[entry], family, spread[entry], low, math.inf)
            slack[poor], slack[rich] = slack[poor] + low, slack[rich] - low
            flow = low if flow > 0 else -low
            room[2 * edge], room[2 * edge + 1] = row[entry] - flow, row[entry] + flow


@compiled
def _fill(ends: np.ndarray, costs: np.ndarray, sides: np.ndarray, room: np.ndarray, slack: np.ndarray) -> None:
    """Fills in the room that a flow along all edges that are cut leaves, and supplies of nodes of label 0, or demands
    of nodes of label 1, that are left; where they are negative, flow is missing.
    """
    number = len(slack)
    for node in range(number):
        slack[node] = (costs[number + node] - costs[node]) * (1 - 2 * sides[node])
    for edge in range(len(ends)):
        tail, head, weight = ends[edge, 0], ends[edge, 1], costs[2 * number + edge]
        room[2 * edge] = room[2 * edge + 1] = weight
        if sides[tail] != sides[head]:
            room[2 * edge + sides[tail]], room[2 * edge + (sides[tail] ^ 1)] = 0.0, 2 * weight
            slack[tail] -= weight
            slack[head] -= weight


@compiled
def _gather(
    first: np.ndarray,
    neighbours: np.ndarray,
    arcs: np.ndarray,
    room: np.ndarray,
    slack: np.ndarray,
    sides: np.ndarray,
    seen: np.ndarray,
    search: np.ndarray,
    node: int,
    wanted: float,
) -> None:
    """Brings slack of other nodes of the same label to a node, as much as possible, until it has what is wanted.

    :param np.ndarray seen: Memory, false for all nodes before and after.
    :param np.ndarray search: Memory for the nodes that are seen, their parents and the arcs to them, shape ``(3, n)``.
    """
    queue, parents, links = search
    side = sides[node]
    is_blocked = slack[node] < wanted
    while is_blocked:
        is_blocked, count, index = False, 1, 0
        queue[0], seen[node] = node, True
        while index < count and not is_blocked:
            present, index = queue[index], index + 1
            for place in range(first[present], first[present + 1]):
                # Flow comes from other nodes of label 0, and goes to other nodes of label 1.
                other, arc = neighbours[place], arcs[place] ^ 1 ^ side
                if seen[other] or sides[other] != side or not room[arc] > 0:
                    continue
                queue[count], count = other, count + 1
                seen[other], parents[other], links[other] = True, present, arc
                if slack[other] > 0:
                    flow, end = min(slack[other], wanted - slack[node]), other
                    while end != node:
                        flow, end = min(flow, room[links[end]]), parents[end]
                    slack[other] -= flow
                    slack[node] += flow
                    end = other
                    while end != node:
                        room[links[end]] -= flow
                        room[links[end] ^ 1] += flow
                        is_blocked, end = is_blocked or room[links[end]] == 0, parents[end]
                    if slack[node] >= wanted:
                        index = count
                        break
                    # Otherwise the search goes on: the node has no slack any more, and the way to it is open.
                    if is_blocked:
                        break
        for place in range(count):
            seen[queue[place]] = False
        is_blocked = is_blocked and slack[node] < wanted
