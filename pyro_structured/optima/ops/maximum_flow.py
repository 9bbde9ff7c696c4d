"""Maximum flows and minimum cuts of graphs, compiled: two trees that grow by levels."""

__all__ = ["FlowNetwork", "flow_network", "maximum_flow", "minimum_cuts", "shift_flow"]

from typing import NamedTuple

import numpy as np

from pyro_structured.foundation.ops.compiled import compiled

# Kinds of trees.
SOURCE, SINK = 0, 1
# Trees of supplies have to be complete in the end, those of demands need not: they grow only where they have this many
# times fewer nodes to grow from.
PATIENCE = 8
# Columns of what is known of nodes in trees: next node on the way to the root; arc to it; place in the node's list
# before which there is no parent at its level; and last levels in whose lists it was put, in trees of both kinds.
PARENT, LINK, PLACE, QUEUED = 0, 1, 2, 3
# In place of the parent of a node that is a root or in no tree, or that has lost its parent.
NONE, LOST = -1, -2
# Columns of what is known of each kind of trees: lengths of the lists of nodes at the deepest complete level and the
# next, in turn; and the deepest complete level.
DEPTH = 2


class FlowNetwork(NamedTuple):
    """The E edges of a graph of n nodes as they meet its nodes; edge e has the arcs 2 e, forth, and 2 e + 1, back.

    :ivar np.ndarray ends: The two ends of the edges, int32 of shape ``(E, 2)``.
    :ivar np.ndarray first: Places where the lists of the nodes start, and 2 E, int32 of shape ``(n + 1,)``.
    :ivar np.ndarray neighbours: The other ends of the edges at a node, int32 of shape ``(2 E,)``.
    :ivar np.ndarray arcs: The arcs from the node to these neighbours, int32 of shape ``(2 E,)``.
    """

    ends: np.ndarray
    first: np.ndarray
    neighbours: np.ndarray
    arcs: np.ndarray


@compiled
def flow_network(edges: np.ndarray, num_nodes: int) -> FlowNetwork:
    """Lists of the edges at every node, in O(n + E).

    :param np.ndarray edges: Pairs of different nodes, integers of shape ``(E, 2)``.
    """
    first = np.zeros(num_nodes + 1, np.int32)
    for edge in range(len(edges)):
        first[edges[edge, 0] + 1] += 1
        first[edges[edge, 1] + 1] += 1
    for node in range(num_nodes):
        first[node + 1] += first[node]
    last = first.copy()
    neighbours, arcs = np.empty(2 * len(edges), np.int32), np.empty(2 * len(edges), np.int32)
    for edge in range(len(edges)):
        for end in range(2):
            node = edges[edge, end]
            place = last[node]
            last[node] += 1
            neighbours[place], arcs[place] = edges[edge, 1 - end], 2 * edge + end
    return FlowNetwork(edges.astype(np.int32), first, neighbours, arcs)


@compiled
def shift_flow(edges: np.ndarray, before: np.ndarray, after: np.ndarray, room: np.ndarray, excess: np.ndarray) -> None:
    """Changes the capacities of edges, in place, with as much of the flow as they still carry.

    What an edge does not carry any more stays at its ends: supply of one, and demand of the other.

    :param np.ndarray edges: Pairs of different nodes, integers of shape ``(E, 2)``.
    :param np.ndarray before: Capacities of the edges until now, int64 of shape ``(E,)``.
    :param np.ndarray after: Their new capacities, at least 0, int64 of shape ``(E,)``.
    :param np.ndarray room: Residual capacities of the arcs, int64 of shape ``(2 E,)``.
    :param np.ndarray excess: Supplies left of the nodes, negative where demand is left, int64 of shape ``(n,)``.
    """
    for edge in range(len(edges)):
        if before[edge] != after[edge]:
            flow = before[edge] - room[2 * edge]
            kept = max(min(flow, after[edge]), -after[edge])
            room[2 * edge], room[2 * edge + 1] = after[edge] - kept, after[edge] + kept
            excess[edges[edge, 0]] += flow - kept
            excess[edges[edge, 1]] -= flow - kept


@compiled
def minimum_cuts(edges: np.ndarray, supplies: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Nodes that are not on the side of the supplies in the smallest cuts of some rows, booleans of shape ``(N, n)``.

    :param np.ndarray edges: Pairs of different nodes, integers of shape ``(E, 2)``.
    :param np.ndarray supplies: Supplies of the nodes, negative where they are demands, int64 of shape ``(N, n)``.
    :param np.ndarray capacities: Capacities of the edges in both directions, at least 0, int64 of shape ``(N, E)``.
    """
    labels = np.empty(supplies.shape, np.bool_)
    network = flow_network(edges, supplies.shape[1])
    for row in range(len(supplies)):
        labels[row] = maximum_flow(network, np.repeat(capacities[row], 2), supplies[row].copy())
    return labels


@compiled
def maximum_flow(network: FlowNetwork, room: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """Sends as much as possible of the supplies of a graph's nodes to the demands of others, in place.

    Trees of breadth-first searches grow level by level from all nodes with supply, and from all with demand. Where the
    two kinds meet, flow is sent from root to root; nodes whose arc to the parent is full then look for another parent
    of the same level, or go deeper, or leave. A flow of other supplies and capacities is a good start, if it is
    given as what it leaves.

    :param FlowNetwork network: The edges.
    :param np.ndarray room: Residual capacities of the arcs, at least 0, int64 of shape ``(2 E,)``.
    :param np.ndarray excess: Supplies of the nodes, negative where they are demands, int64 of shape ``(n,)``.
    :return: Which nodes no supply that is left reaches, booleans of shape ``(n,)``: the smallest cut has the others on
        the side of the supplies, and no smallest cut has fewer there.

    O(n² E) at worst, and exact, as long as the capacities and supplies add up to less than 2^62.

    **References**

    Goldberg, Hed, Kaplan, Tarjan, Werneck (2011): *Maximum flows by incremental breadth-first search.* European
    Symposium on Algorithms.

    Kohli, Torr (2007): *Dynamic graph cuts for efficient inference in Markov random fields.* IEEE Transactions on
    Pattern Analysis and Machine Intelligence 29(12).
    """
    ends, first, neighbours, arcs = network
    _send_to_neighbours(ends, room, excess)
    number = len(excess)
    levels, nodes = np.zeros(number, np.int32), np.zeros((number, 5), np.int32)
    # Levels are numbers of nodes on the way to the root, negative in trees of demands, 0 in no tree. Nodes stay in the
    # lists when they leave their level.
    fronts, orphans = np.empty((2, 2, number + 1), np.int32), np.empty(number + 1, np.int32)
    trees = np.zeros((2, 3), np.int64)
    trees[:, DEPTH] = 1
    for node in range(number):
        nodes[node, PARENT], nodes[node, PLACE] = NONE, first[node]
        if excess[node] != 0:
            side = SOURCE if excess[node] > 0 else SINK
            levels[node] = 1 - 2 * side
            _queue(nodes, fronts, trees, side, node, 1)
    while True:
        supplied, wanting = trees[SOURCE, trees[SOURCE, DEPTH] & 1], trees[SINK, trees[SINK, DEPTH] & 1]
        if supplied == 0:
            return levels <= 0
        side = SOURCE if wanting == 0 or supplied <= PATIENCE * wanting else SINK
        _grow(first, neighbours, arcs, room, excess, levels, nodes, fronts, trees, orphans, side)


@compiled
def _send_to_neighbours(ends: np.ndarray, room: np.ndarray, excess: np.ndarray) -> None:
    """Sends what can be sent along single arcs."""
    for edge in range(len(ends)):
        tail, head = ends[edge, 0], ends[edge, 1]
        least, most = -room[2 * edge + 1], room[2 * edge]
        supply, demand = excess[tail], -excess[head]
        if supply > 0 and demand > 0:
            flow = min(supply, demand, most)
        elif supply < 0 and demand < 0:
            flow = max(supply, demand, least)
        else:
            continue
        room[2 * edge], room[2 * edge + 1] = most - flow, flow - least
        excess[tail], excess[head] = supply - flow, flow - demand


@compiled
def _queue(nodes: np.ndarray, fronts: np.ndarray, trees: np.ndarray, side: int, node: int, depth: int) -> None:
    """Puts a node into the list of its level, where it is not yet."""
    # Without branches, in which numba would count references.
    length = trees[side, depth & 1]
    fronts[side, depth & 1, length] = node
    trees[side, depth & 1] = length + (nodes[node, QUEUED + side] != depth)
    nodes[node, QUEUED + side] = depth


@compiled
def _grow(
    first: np.ndarray,
    neighbours: np.ndarray,
    arcs: np.ndarray,
    room: np.ndarray,
    excess: np.ndarray,
    levels: np.ndarray,
    nodes: np.ndarray,
    fronts: np.ndarray,
    trees: np.ndarray,
    orphans: np.ndarray,
    side: int,
) -> None:
    """Completes the next level of the trees of one kind."""
    depth, sign = trees[side, DEPTH], 1 - 2 * side
    trees[side, (depth + 1) & 1] = index = 0
    # Nodes that go deeper may come to this level meanwhile.
    while index < trees[side, depth & 1]:
        node, index = fronts[side, depth & 1, index], index + 1
        place = first[node]
        while place < first[node + 1] and levels[node] == sign * depth:
            arc, other = arcs[place], neighbours[place]
            level = sign * levels[other]
            if level <= 0 and room[arc ^ side] > 0:
                if level == 0:
                    levels[other] = sign * (depth + 1)
                    nodes[other, PARENT], nodes[other, LINK] = node, arc ^ 1
                    nodes[other, PLACE] = first[other]
                    _queue(nodes, fronts, trees, side, other, depth + 1)
                else:
                    flow = room[arc ^ side]
                    flow = _most(room, excess, nodes, side, node, flow)
                    flow = _most(room, excess, nodes, 1 - side, other, flow)
                    room[arc ^ side] -= flow
                    room[arc ^ side ^ 1] += flow
                    lost = _send(room, excess, nodes, orphans, side, node, flow)
                    _adopt(first, neighbours, arcs, room, levels, nodes, fronts, trees, orphans, side, lost, depth + 1)
                    across, deepest = 1 - side, trees[1 - side, DEPTH]
                    lost = _send(room, excess, nodes, orphans, across, other, flow)
                    _adopt(first, neighbours, arcs, room, levels, nodes, fronts, trees, orphans, across, lost, deepest)
                    # The same arc once more: it may have room left.
                    continue
            place += 1
    trees[side, DEPTH] = depth + 1


@compiled
def _most(room: np.ndarray, excess: np.ndarray, nodes: np.ndarray, side: int, node: int, most: int) -> int:
    """The largest flow between a node and the root of its tree, up to a bound."""
    while nodes[node, PARENT] >= 0:
        most = min(most, room[nodes[node, LINK] ^ 1 ^ side])
        node = nodes[node, PARENT]
    flow: int = min(most, abs(excess[node]))
    return flow


@compiled
def _send(
    room: np.ndarray, excess: np.ndarray, nodes: np.ndarray, orphans: np.ndarray, side: int, node: int, flow: int
) -> int:
    """Sends flow between a node and the root of its tree; returns the number of orphans, the last in their list."""
    # Without branches, in which numba would count references.
    size: int = 0
    last = len(orphans) - 1
    while nodes[node, PARENT] >= 0:
        arc, parent = nodes[node, LINK] ^ 1 ^ side, nodes[node, PARENT]
        room[arc] -= flow
        room[arc ^ 1] += flow
        is_full = room[arc] == 0
        nodes[node, PARENT] = LOST if is_full else parent
        orphans[last - size] = node
        size += is_full
        node = parent
    excess[node] -= flow if side == SOURCE else -flow
    is_used = excess[node] == 0
    nodes[node, PARENT] = LOST if is_used else NONE
    orphans[last - size] = node
    size += is_used
    return size


@compiled
def _adopt(
    first: np.ndarray,
    neighbours: np.ndarray,
    arcs: np.ndarray,
    room: np.ndarray,
    levels: np.ndarray,
    nodes: np.ndarray,
    fronts: np.ndarray,
    trees: np.ndarray,
    orphans: np.ndarray,
    side: int,
    size: int,
    deepest: int,
) -> None:
    """Finds parents for orphans, and for nodes that become orphans thereby.

    :param int size: Number of orphans, the last in their list, those of the lowest levels first.
    :param int deepest: Level up to which nodes may stay in the tree.
    """
    end, sign, turned = len(orphans), 1 - 2 * side, 1 ^ side
    start = end - size
    while size > 0:
        node, size, start = orphans[start], size - 1, start + 1 if start + 1 < end else 0
        level = levels[node]
        if sign * level > 1:
            for place in range(nodes[node, PLACE], first[node + 1]):
                if levels[neighbours[place]] == level - sign and room[arcs[place] ^ turned] > 0:
                    nodes[node, PARENT], nodes[node, LINK] = neighbours[place], arcs[place]
                    nodes[node, PLACE] = place
                    break
            if nodes[node, PARENT] >= 0:
                continue
        least, found = deepest, -1
        for place in range(first[node], first[node + 1]):
            other = neighbours[place]
            if 0 < sign * levels[other] < least and room[arcs[place] ^ turned] > 0:
                least, found = sign * levels[other], place
            if nodes[other, PARENT] == node:
                nodes[other, PARENT] = LOST
                last = start + size
                orphans[last if last < end else last - end] = other
                size += 1
        if found < 0:
            levels[node], nodes[node, PARENT] = 0, NONE
        else:
            levels[node], nodes[node, PARENT] = sign * (least + 1), neighbours[found]
            nodes[node, LINK], nodes[node, PLACE] = arcs[found], found
            if least + 1 >= trees[side, DEPTH]:
                _queue(nodes, fronts, trees, side, node, least + 1)
