"""Thin graphs by graph cuts: edges of large weight in graphs of small cliques."""

__all__ = ["RankedCuts", "cut_graph"]

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from numbers import Real

import numpy as np
from scipy.sparse.csgraph import connected_components

from pyro_structured.foundation.models.argument_checks import checked_numbers
from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.junction_trees.ops.chordal_graph import Neighbors, eliminations
from pyro_structured.junction_trees.solvers.edge_cut import EdgeCuts, check_weights, round_cuts, worths
from pyro_structured.junction_trees.solvers.separator_flow import SeparatorFlow, SeparatorSolution

# Number of solutions that are rounded together.
TOGETHER = 16


class RankedCuts:
    """Rounded cuts between each of the k + 1 nodes of largest weight, at least one of which is in no separator, and all
    other nodes.

    The value of a cut is its weight less the bonus of its separator. For two nodes, it is at least the value of the
    relaxed problem, or a lower bound of that, less the largest possible bonus. Pairs of nodes that cannot have a cut as
    good as the best known one are skipped.

    :param SeparatorFlow flow: Solver for the graph.
    :param np.ndarray weights: Weights of the graph, shape ``(n, n)``.
    :param np.ndarray bonus: Bonus of each pair that is left out together, at least 0, of the shape of the weights.
    :param int size: The largest number of nodes k that are left out.
    :param float tolerance: Cuts whose values differ from the best one by at most this come in the order of the sizes of
        their separators.
    """

    def __init__(
        self, flow: SeparatorFlow, weights: np.ndarray, bonus: np.ndarray, size: int, tolerance: float
    ) -> None:
        self._flow, self._weights, self._bonus = flow, weights, bonus
        self._size, self._tolerance = size, tolerance
        # Halves, so that no pair of a separator is counted twice.
        halves = np.sort(bonus, 1)[:, ::-1][:, : max(size - 1, 0)].sum(1) / 2
        self._most_worth = float(np.sort(halves)[::-1][:size].sum())
        self._waiting: list[tuple[float, int, int, SeparatorSolution | None]] = [
            (flow.bound(int(source), sink), int(source), sink, None)
            for source in np.argsort(-weights.sum(1), kind="stable")[: size + 1]
            for sink in range(len(weights))
            if sink != source
        ]
        heapq.heapify(self._waiting)
        none = np.empty((0, len(weights)), dtype=bool)
        self._cuts, self._values, self._seen = EdgeCuts(none, none, np.empty(0)), np.empty(0), set[bytes]()

    def __iter__(self) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
        """Weights, separators and sides of cuts, the best first."""
        while True:
            while self._round(self._limit() + self._most_worth):
                pass
            good = self._values <= self._limit()
            if not good.any():
                return
            cuts, values = EdgeCuts(*(array[good] for array in self._cuts)), self._values[good]
            self._cuts, self._values = EdgeCuts(*(array[~good] for array in self._cuts)), self._values[~good]
            for place in np.lexsort((values, cuts.separators.sum(1))):
                yield float(cuts.weights[place]), cuts.separators[place], cuts.sides[place]

    def _limit(self) -> float:
        """Largest value of a cut that may come next."""
        return float(self._values.min(initial=np.inf)) + self._tolerance

    def _round(self, limit: float) -> bool:
        """Adds cuts of pairs of nodes whose relaxed value is at most a limit; returns whether there was such a pair."""
        solved: list[tuple[tuple[int, int], SeparatorSolution]] = []
        most = TOGETHER if len(self._values) else 1
        while self._waiting and len(solved) < most and self._waiting[0][0] <= limit:
            _, source, sink, solution = heapq.heappop(self._waiting)
            if solution is None:
                solution = self._flow.solve(source, sink)
                heapq.heappush(self._waiting, (solution.value, source, sink, solution))
            else:
                solved.append(((source, sink), solution))
        if solved:
            ends, solutions = zip(*solved, strict=True)
            self._add(round_cuts(self._weights, solutions, ends, self._size, self._bonus))
        return bool(solved)

    def _add(self, cuts: EdgeCuts) -> None:
        packed = np.packbits(np.concatenate([cuts.separators, cuts.sides], 1), axis=1)
        new = []
        for place, row in enumerate(packed):
            if (key := row.tobytes()) not in self._seen:
                self._seen.add(key)
                new.append(place)
        cuts = EdgeCuts(*(array[new] for array in cuts))
        self._cuts = EdgeCuts(*(np.concatenate(both) for both in zip(self._cuts, cuts, strict=True)))
        self._values = np.concatenate([self._values, cuts.weights - worths(self._bonus, cuts.separators)])


# Largest number of cuts of one set of nodes whose separators are tried.
MOST_TRIED = 60


class _Recursion:
    """Edges that are kept so far, and limits of the size of their cliques."""

    def __init__(
        self, weights: np.ndarray, treewidth: int, log_sizes: Sequence[float], most_states: float, discount: float
    ) -> None:
        number = len(weights)
        self.weights, self.treewidth, self.discount = weights, treewidth, discount
        self.log_sizes, self.most = log_sizes, math.log(most_states) + 1e-9
        self.kept = np.zeros((number, number), dtype=bool)
        self.neighbors: Neighbors = [set() for _ in range(number)]
        # Sets of edges that do not fit together with the kept ones.
        self.refused: set[tuple[tuple[int, int], ...]] = set()
        # Number of sets still to be split that contain each node.
        self.uses = np.ones(number, dtype=int)

    def keep(self, nodes: Sequence[int]) -> bool:
        """Makes nodes a clique, if the graph's triangulation of least fill still has small cliques; returns whether the
        nodes are a clique.
        """
        new = tuple((first, second) for first, second in combinations(nodes, 2) if not self.kept[first, second])
        if not new or new in self.refused:
            return not new
        for first, second in new:
            self.neighbors[first].add(second)
            self.neighbors[second].add(first)
        if not self._is_thin():
            self.refused.add(new)
            for first, second in new:
                self.neighbors[first].discard(second)
                self.neighbors[second].discard(first)
            return False
        for first, second in new:
            self.kept[first, second] = self.kept[second, first] = True
        self.refused.clear()
        return True

    def _is_thin(self) -> bool:
        nodes = [node for node, near in enumerate(self.neighbors) if near]
        place = {node: index for index, node in enumerate(nodes)}
        neighbors = [{place[neighbor] for neighbor in self.neighbors[node]} for node in nodes]
        sizes = [self.log_sizes[node] for node in nodes]
        return all(
            len(near) <= self.treewidth and sizes[node] + sum(sizes[neighbor] for neighbor in near) <= self.most
            for node, near in eliminations(neighbors, sizes)
        )

    def replace(self, nodes: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        """Replaces a set by its parts, and eliminates nodes that are in no set any more, where that adds no edge.

        Elimination with least fill begins with such nodes, whatever edges of the others are kept.
        """
        self.uses[nodes] -= 1
        for part in parts:
            self.uses[part] += 1
        done = [node for node in nodes.tolist() if not self.uses[node]]
        while done:
            node = done.pop()
            near = self.neighbors[node]
            if all(neighbor in self.neighbors[first] for first, neighbor in combinations(near, 2)):
                for neighbor in near:
                    self.neighbors[neighbor].discard(node)
                done += [neighbor for neighbor in near if not self.uses[neighbor]]
                self.neighbors[node] = set()

    def keep_what_fits(self, nodes: Sequence[int]) -> None:
        """Keeps edges between nodes one by one, the heaviest first, as long as cliques stay small."""
        pairs = [(first, second) for first, second in combinations(nodes, 2) if self.weights[first, second] > 0]
        for pair in sorted(pairs, key=lambda pair: -self.weights[pair]):
            self.keep(pair)

    def ranked(
        self, flow: SeparatorFlow, nodes: np.ndarray, glued: bool, size: int, tolerance: float
    ) -> Iterator[tuple[float, list[int], list[np.ndarray]]]:
        """Cuts of some nodes, the best first: the weight that is lost, the separator, and both sets that are left, each
        with the separator.
        """
        box = np.ix_(nodes, nodes)
        weights, kept = self.weights[box], self.kept[box]
        total = weights.sum() + 1.0
        bonus = self.discount * np.where(kept, 0.0, weights)
        if glued:
            weights = np.where(kept, total, weights)
            flow = flow.within(weights, size, np.arange(len(nodes)))
        for lost, separator, side in islice(RankedCuts(flow, weights, bonus, size, tolerance), MOST_TRIED):
            if lost < total:
                yield lost, nodes[separator].tolist(), [nodes[side | separator], nodes[~side]]

    def split(self, flow: SeparatorFlow, nodes: np.ndarray, tolerance: float) -> list[np.ndarray]:
        """Two sets of nodes that share a separator, which is kept; no sets if nothing is left to split."""
        small = len(nodes) <= self.treewidth + 1
        for glued in (False, True) if not small or tolerance > 0 else ():
            for lost, separator, parts in self.ranked(flow, nodes, glued, self.size(nodes), tolerance):
                if (not small or lost < tolerance) and self.keep(separator):
                    return parts
        if not (small and self.keep(nodes.tolist())):
            self.keep_what_fits(nodes.tolist())
        return []

    def size(self, nodes: np.ndarray) -> int:
        """Size of the largest separator of some nodes, at least two of which are not in it."""
        return min(self.treewidth, len(nodes) - 2)

    def flow_within(self, flow: SeparatorFlow, nodes: np.ndarray, part: np.ndarray) -> SeparatorFlow:
        """Flow solver for some of the nodes."""
        return flow.within(self.weights[np.ix_(part, part)], self.size(part), np.searchsorted(nodes, part))


def cut_graph(
    weights: np.ndarray,
    treewidth: int,
    log_sizes: Sequence[float] | None = None,
    discount: float = 0.1,
    tolerance: float = 0.0,
    most_states: float = float(2**20),
) -> list[tuple[int, int]]:
    r"""Keeps edges of a large total weight in a graph whose treewidth is bounded.

    Nodes are split by a cut with a separator S of at most k nodes, whose pairs are kept; edges across it are not, and
    both sides, each with the separator, are split again, down to cliques of k + 1 nodes. Of all cuts that are found for
    k + 1 sources and all sinks (:func:`minimum_edge_cut`), the one is taken that minimises

    .. math::
        \sum_{u \in A, v \in B} w_{uv} - \lambda \sum_{u, v \in S \text{ not kept yet}} w_{uv}

    and whose separator leaves the kept edges a triangulation of least fill with small cliques. Where no such cut is
    found, only cuts are tried that split no kept edge; then, edges are kept one by one, the heaviest first.

    The second sum, the bonus, chooses among cuts that were found without it: it is not part of the linear program whose
    solutions are rounded. ``minimum_edge_cut(..., bonus=...)`` solves the program with the bonus inside, but no learner
    uses it: its dual is no flow, so that each pair of source and sink needs the simplex method on a program with two
    more rows for each pair of nodes. The program without the bonus needs a few flows, which are over a hundred times
    faster at 100 nodes even if there is no bonus.

    :param np.ndarray weights: Weights of pairs, at least 0, symmetric, shape ``(n, n)``: mutual information.
    :param int treewidth: Cliques have at most one node more.
    :param log_sizes: Logarithms of the numbers of states of the nodes; ``None``: all are alike.
    :param float discount: Factor :math:`\lambda` of the weights of newly kept edges, at least 0. With 1, which the
        paper begins with, a cut may lose edges that other cuts would have kept anyway.
    :param float tolerance: Largest weight that a cut of a set of at most k + 1 nodes may lose, and largest difference
        to the best cut for a cut with a smaller separator.
    :param float most_states: The largest number of joint states of a clique.
    :return: Edges. The graph has a treewidth of at most k: elimination with least fill shows it.
    :raises ValueError: if the weights are of another kind, or a number is out of range.

    **References**

    Shahaf, Chechetka, Guestrin (2009): Learning thin junction trees via graph cuts. AISTATS. Algorithms 1 to 4, with
    the discounted objective of Section 5.

    Example::

        >>> weights = np.array([[0, 3, 1, 0], [3, 0, 2, 1], [1, 2, 0, 2], [0, 1, 2, 0]])
        >>> cut_graph(weights, 1), cut_graph(weights, 2)
        ([(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)])
    """
    weights = check_weights(weights)
    check_size("treewidth", treewidth)
    for name, number in (("discount", discount), ("tolerance", tolerance)):
        if not isinstance(number, Real) or not 0 <= number < np.inf:
            raise ValueError(f"{name}: expected a number of at least 0, got {number!r}")
    if not isinstance(most_states, Real) or not 1 <= most_states <= np.inf:
        raise ValueError(f"most_states: expected a number of at least 1, got {most_states!r}")
    sizes = (np.log(2),) * len(weights) if log_sizes is None else checked_numbers("log_sizes", log_sizes)
    if len(sizes) != len(weights):
        raise ValueError(f"log_sizes: expected {len(weights)} numbers, one for each node, got {len(sizes)}")
    recursion = _Recursion(weights, treewidth, sizes, most_states, discount)
    nodes = np.arange(len(weights))
    waiting = [(nodes, SeparatorFlow(weights, recursion.size(nodes)))]
    while waiting:
        nodes, flow = waiting.pop()
        box = np.ix_(nodes, nodes)
        number, labels = connected_components((weights[box] > 0) | recursion.kept[box], directed=False)
        if number > 1:
            parts = [nodes[labels == label] for label in range(number)]
        else:
            parts = recursion.split(flow, nodes, tolerance) if len(nodes) > 1 else []
        recursion.replace(nodes, parts)
        waiting += [(part, recursion.flow_within(flow, nodes, part)) for part in parts]
    return [(int(first), int(second)) for first, second in zip(*np.triu(recursion.kept).nonzero(), strict=True)]
