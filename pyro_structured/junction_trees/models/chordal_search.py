"""Greedy search for chordal graphs of bounded cliques that fit data."""

__all__ = ["ChordalScore", "EdgeScore", "SharedScore", "grow_chordal_graph", "polish_chordal_graph"]

import heapq
import math
import time
from collections.abc import Iterable
from functools import cached_property
from itertools import combinations
from typing import Protocol

import numpy as np
from scipy.special import xlogy

from pyro_structured.foundation.ops.progress import check_time
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.junction_trees.ops.chordal_graph import Neighbors

Pair = tuple[int, int]
# Initial temperature of polishing, in nats, and largest number of variables whose edges are stripped at once.
TEMPERATURE = 10.0
MOST_RUINED = 4
# Largest number of joint states of a clique.
MOST_STATES = 2**20


class EdgeScore(Protocol):
    """Score of a graph, by the gains of its edges."""

    def gain(self, pair: Pair, separator: frozenset[int]) -> float:
        """Gain of an edge between variables with these common neighbours, in nats."""


class ChordalScore:
    r"""Penalised log-likelihoods of decomposable models, as sums over cliques less sums over separators.

    .. math::
        T(S) = \sum_{x_S} N(x_S) \log N(x_S) - \frac{c}{2} \log N \cdot |S|,

    where :math:`|S|` is the number of joint states: for c = 1, the Bayesian information criterion.

    Where entries are missing, the gain of an edge is that of the rows in which all these variables are known; the sum
    then depends on the order of the edges.

    :param CategoricalRows rows: The data.
    :param float penalty: The factor c.
    """

    def __init__(self, rows: CategoricalRows, penalty: float = 1.0) -> None:
        self.rows = rows
        self._penalty, self._price = penalty, penalty * 0.5 * math.log(max(rows.total, 2.0))
        self._terms: dict[frozenset[int], float] = {}
        self._gains: dict[tuple[Pair, frozenset[int]], float] = {}

    def term(self, variables: frozenset[int]) -> float:
        """Term T(S) of a clique or separator."""
        value = self._terms.get(variables)
        if value is None:
            counts = self.rows.counts(sorted(variables))
            value = self._terms[variables] = float(xlogy(counts, counts).sum()) - self._price * len(counts)
        return value

    def gain(self, pair: Pair, separator: frozenset[int]) -> float:
        """Gain of an edge between variables with these common neighbours; -inf if their clique would be too large."""
        first, second = pair
        if 1 in (self.rows.cardinalities[first], self.rows.cardinalities[second]):
            # Exactly zero: rounding errors are no reason for an edge.
            return 0.0
        if not separator and self._pair_gains is not None:
            return self._pair_gains[first][second]
        every = separator | {first, second}
        if math.prod(self.rows.cardinalities[d] for d in every) > MOST_STATES:
            return -math.inf
        if self.rows.is_complete:
            joined = self.term(every) + self.term(separator)
            return joined - self.term(separator | {first}) - self.term(separator | {second})
        gain_of_pair = self._gains.get((pair, separator))
        if gain_of_pair is None:
            gain_of_pair = self._gains[pair, separator] = self._gain_of_complete_rows(sorted(every), pair)
        return gain_of_pair

    @cached_property
    def _pair_gains(self) -> list[list[float]] | None:
        """Gains of all pairs without common neighbours, ``n`` lists of n; ``None`` where entries are missing."""
        if not (self.rows.is_complete and self.rows.counts_pairs_at_once):
            return None
        counts, starts, sizes = self.rows.pair_counts, self.rows.starts, np.array(self.rows.cardinalities)
        joined = np.add.reduceat(np.add.reduceat(xlogy(counts, counts), starts, 0), starts, 1)
        terms = np.diag(joined) - self._price * sizes
        total = xlogy(self.rows.total, self.rows.total) - self._price
        states = np.outer(sizes, sizes)
        gains = joined - self._price * states + total - terms[:, None] - terms
        gain_lists: list[list[float]] = np.where(states > MOST_STATES, -math.inf, gains).tolist()
        return gain_lists

    def _gain_of_complete_rows(self, variables: list[int], pair: Pair) -> float:
        table = self.rows.counts(variables).reshape([self.rows.cardinalities[d] for d in variables])
        price = self._penalty * 0.5 * math.log(max(table.sum(), 2.0))
        places = [variables.index(d) for d in pair]
        gain = 0.0
        for left_out, sign in (((), 1), ((places[0],), -1), ((places[1],), -1), (tuple(places), 1)):
            counts = table.sum(left_out)
            gain += sign * (float(xlogy(counts, counts).sum()) - price * counts.size)
        return gain


class SharedScore:
    """Sum of the scores of several data sets, which are to have the same graph.

    :param scores: The scores.
    """

    def __init__(self, scores: Iterable[EdgeScore]) -> None:
        self._scores = list(scores)

    def gain(self, pair: Pair, separator: frozenset[int]) -> float:
        """Sum of the gains."""
        return sum(score.gain(pair, separator) for score in self._scores)


def grow_chordal_graph(
    score: EdgeScore,
    neighbors: Neighbors,
    treewidth: int,
    pairs: Iterable[Pair] | None = None,
    noise: np.random.Generator | None = None,
) -> float:
    """Adds the best edge that keeps a graph chordal, and its cliques small, until no edge has a positive gain.

    :param EdgeScore score: Gains of edges.
    :param neighbors: A chordal graph, which is changed.
    :param int treewidth: Cliques have at most one variable more.
    :param pairs: Pairs to begin with; ``None``: all.
    :param noise: Generator of log-normal random numbers of scale 0.2, by which gains are multiplied in the order of
        edges; ``None``: no noise.
    :return: Sum of the gains.
    """
    heap: list[tuple[float, Pair, frozenset[int], float]] = []

    def push(pair: Pair) -> None:
        check_time()
        first, second = pair
        separator = frozenset(neighbors[first] & neighbors[second])
        if second not in neighbors[first] and len(separator) < treewidth:
            gain = score.gain(pair, separator)
            if gain > 0:
                factor = 1.0 if noise is None else math.exp(0.2 * noise.standard_normal())
                heapq.heappush(heap, (-gain * factor, pair, separator, gain))

    for pair in combinations(range(len(neighbors)), 2) if pairs is None else pairs:
        push(pair)
    total, parts = 0.0, _parts(neighbors)
    while heap:
        _, (first, second), separator, gain = heapq.heappop(heap)
        if second in neighbors[first] or separator != neighbors[first] & neighbors[second]:
            continue
        # Most pairs have no common neighbour: for these, searching for a path would take most of the time.
        if not (_separates(neighbors, separator, first, second) if separator else parts[first] != parts[second]):
            continue
        if not separator:
            parts = [parts[first] if number == parts[second] else number for number in parts]
        neighbors[first].add(second)
        neighbors[second].add(first)
        total += gain
        # Only pairs of an end and a neighbour of the other end have a new common neighbour.
        for node, end in ((first, second), (second, first)):
            for near in neighbors[end] - neighbors[node] - {node}:
                push((node, near) if node < near else (near, node))
    return total


def _parts(neighbors: Neighbors) -> list[int]:
    """Numbers of the connected components of all nodes."""
    numbers = [-1] * len(neighbors)
    for start in range(len(neighbors)):
        stack = [start] if numbers[start] < 0 else []
        while stack:
            node = stack.pop()
            numbers[node] = start
            stack += [near for near in neighbors[node] if numbers[near] < 0]
    return numbers


def _separates(neighbors: Neighbors, separator: frozenset[int], one: int, other: int) -> bool:
    """Whether every path between two nodes goes through the separator: then, an edge keeps a chordal graph chordal."""
    seen, stack = {one, *separator}, [one]
    while stack:
        for near in neighbors[stack.pop()]:
            if near == other:
                return False
            if near not in seen:
                seen.add(near)
                stack.append(near)
    return True


def polish_chordal_graph(
    score: EdgeScore, neighbors: Neighbors, treewidth: int, seconds: float, rng: np.random.Generator
) -> float:
    """Strips edges of a few variables at a time and grows the graph again, while that improves it.

    Simulated annealing: losses of some nats are accepted in the beginning. The graph stays chordal, and its cliques as
    small.

    :param neighbors: A chordal graph, which becomes the best graph of the search.
    :param float seconds: Processor time, in seconds.
    :return: Improvement of the score, at least 0.
    """
    start = time.process_time()
    present, best, kept = 0.0, 0.0, [set(near) for near in neighbors]
    while (share := (time.process_time() - start) / seconds) < 1:
        before = [set(near) for near in neighbors]
        ruined = _some_neighbors(neighbors, rng)
        change = -_strip(score, neighbors, ruined, rng)
        pairs = {(min(d, e), max(d, e)) for d in ruined for e in range(len(neighbors)) if d != e}
        change += grow_chordal_graph(score, neighbors, treewidth, pairs, rng)
        if change < 0 and rng.random() >= math.exp(change / (TEMPERATURE * (1 - share) ** 2 + 1e-9)):
            neighbors[:] = before
            continue
        present += change
        if present > best + 1e-9:
            best, kept = present, [set(near) for near in neighbors]
    neighbors[:] = kept
    return best


def _some_neighbors(neighbors: Neighbors, rng: np.random.Generator) -> list[int]:
    chosen = [int(rng.integers(len(neighbors)))]
    for _ in range(int(rng.integers(MOST_RUINED))):
        around = sorted(set().union(*(neighbors[d] for d in chosen)) - set(chosen))
        if around:
            chosen.append(around[int(rng.integers(len(around)))])
    return chosen


def _strip(score: EdgeScore, neighbors: Neighbors, ruined: list[int], rng: np.random.Generator) -> float:
    """Removes edges of variables as long as the graph stays chordal; returns the score that is lost."""
    lost = 0.0
    for d in ruined:
        order = rng.permutation(sorted(neighbors[d])).tolist()
        waiting = True
        while waiting:
            waiting = False
            for e in list(order):
                common = neighbors[d] & neighbors[e]
                if all(second in neighbors[first] for first, second in combinations(common, 2)):
                    neighbors[d].discard(e)
                    neighbors[e].discard(d)
                    lost += score.gain((d, e), frozenset(common))
                    order.remove(e)
                    waiting = bool(order)
    return lost
