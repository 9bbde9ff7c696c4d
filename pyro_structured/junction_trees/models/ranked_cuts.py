"""Cuts of a graph, the best ones first: found as far as they are asked for."""

__all__ = ["RankedCuts"]

import heapq
from collections.abc import Iterator

import numpy as np

from pyro_structured.junction_trees.solvers.edge_cut import EdgeCuts, round_cuts, worths
from pyro_structured.junction_trees.solvers.separator_flow import SeparatorFlow, SeparatorSolution

# Solutions that are rounded together.
TOGETHER = 16


class RankedCuts:
    """Rounded cuts between each of the k + 1 nodes of largest weight, one of which no separator has, and all others.

    Cuts are worth their weight less the bonus of their separator. For two nodes, that is at least the value of the
    relaxed problem, or what bounds it from below, less the largest bonus there is. Those that cannot have a cut as good
    as the best that is known are not looked at.

    :param SeparatorFlow flow: Of the graph.
    :param np.ndarray weights: Its weights, shape ``(n, n)``.
    :param np.ndarray bonus: What pairs that are left out together are worth, at least 0, like the weights.
    :param int size: The largest number of nodes k that are left out.
    :param float tolerance: Of cuts that are so much worse than the best one, those of small separators come first.
    """

    def __init__(
        self, flow: SeparatorFlow, weights: np.ndarray, bonus: np.ndarray, size: int, tolerance: float
    ) -> None:
        self._flow, self._weights, self._bonus = flow, weights, bonus
        self._size, self._tolerance = size, tolerance
        # No pair of a separator is counted twice.
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
        """Weights, separators and sides."""
        while True:
            while self._round(self._limit() + self._most_worth):
                pass
            good = self._values <= self._limit()
            if not good.any():
                return
            cuts, values = EdgeCuts(*(part[good] for part in self._cuts)), self._values[good]
            self._cuts, self._values = EdgeCuts(*(part[~good] for part in self._cuts)), self._values[~good]
            for place in np.lexsort((values, cuts.separators.sum(1))):
                yield float(cuts.weights[place]), cuts.separators[place], cuts.sides[place]

    def _limit(self) -> float:
        """How much a cut may be worth to come next."""
        return float(self._values.min(initial=np.inf)) + self._tolerance

    def _round(self, limit: float) -> bool:
        """Adds cuts of pairs of nodes whose relaxed value is small; says whether there was one."""
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
        cuts = EdgeCuts(*(part[new] for part in cuts))
        self._cuts = EdgeCuts(*(np.concatenate(both) for both in zip(self._cuts, cuts, strict=True)))
        self._values = np.concatenate([self._values, cuts.weights - worths(self._bonus, cuts.separators)])
