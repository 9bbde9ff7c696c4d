"""Greedy search for chordal graphs of bounded cliques that fit data."""

__all__ = ["ChordalScore", "CountSums", "EdgeScore", "SharedScore", "grow_chordal_graph", "polish_chordal_graph"]

import heapq
import math
import time
from collections.abc import Iterable
from functools import cached_property
from itertools import combinations
from typing import Protocol

import numpy as np
from scipy.special import xlogy

from pyro_structured.foundation.ops.process_sums import each
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


class CountSums:
    r"""Sums :math:`\sum_{x_S} N(x_S) \log N(x_S)` over the joint states of variables in rows, each computed once.

    :param CategoricalRows rows: The data.
    """

    def __init__(self, rows: CategoricalRows) -> None:
        self.rows = rows
        self._sums: dict[frozenset[int], tuple[float, int]] = {}
        self._sums_of_complete: dict[tuple[Pair, frozenset[int]], tuple[float, list[tuple[int, float, int]]]] = {}

    def of(self, variables: frozenset[int]) -> tuple[float, int]:
        """Sum over the rows in which none of the variables is missing, and number of joint states."""
        found = self._sums.get(variables)
        if found is None:
            counts = self.rows.counts(sorted(variables))
            found = self._sums[variables] = float(xlogy(counts, counts).sum()), len(counts)
        return found

    @cached_property
    def of_pairs(self) -> np.ndarray | None:
        """Sums of all pairs, and of single variables on the diagonal, shape ``(n, n)``; ``None`` where entries are
        missing.
        """
        if not (self.rows.is_complete and self.rows.counts_pairs_at_once):
            return None
        counts, starts = self.rows.pair_counts, self.rows.starts
        sums: np.ndarray = np.add.reduceat(np.add.reduceat(xlogy(counts, counts), starts, 0), starts, 1)
        return sums

    def of_complete(self, pair: Pair, separator: frozenset[int]) -> tuple[float, list[tuple[int, float, int]]]:
        """Weight of the rows in which neither the pair nor the separator is missing; and signs, sums over these rows,
        and numbers of joint states, the gain of the pair's edge being the signed sum.
        """
        found = self._sums_of_complete.get((pair, separator))
        if found is None:
            variables = sorted(separator.union(pair))
            table = self.rows.counts(variables).reshape([self.rows.cardinalities[d] for d in variables])
            places = [variables.index(d) for d in pair]
            terms = []
            for left_out, sign in (((), 1), ((places[0],), -1), ((places[1],), -1), (tuple(places), 1)):
                counts = table.sum(left_out)
                terms.append((sign, float(xlogy(counts, counts).sum()), counts.size))
            found = self._sums_of_complete[pair, separator] = float(table.sum()), terms
        return found


class ChordalScore:
    r"""Penalised log-likelihoods of decomposable models, as sums over cliques less sums over separators.

    .. math::
        T(S) = \sum_{x_S} N(x_S) \log N(x_S) - \frac{c}{2} \log N \cdot |S|,

    where :math:`|S|` is the number of joint states: for c = 1, the Bayesian information criterion.

    Where entries are missing, the gain of an edge is that of the rows in which all these variables are known; the sum
    then depends on the order of the edges.

    :param CategoricalRows rows: The data.
    :param float penalty: The factor c.
    :param CountSums sums: Sums for the same rows, which scores with other penalties may have found; ``None``: new ones.
    """

    def __init__(self, rows: CategoricalRows, penalty: float = 1.0, sums: CountSums | None = None) -> None:
        self.rows = rows
        self._sums = CountSums(rows) if sums is None else sums
        self._penalty, self._price = penalty, penalty * 0.5 * math.log(max(rows.total, 2.0))

    def term(self, variables: frozenset[int]) -> float:
        """Term T(S) of a clique or separator."""
        value, states = self._sums.of(variables)
        return value - self._price * states

    def gain(self, pair: Pair, separator: frozenset[int]) -> float:
        """Gain of an edge between variables with these common neighbours; -inf if their clique would be too large."""
        first, second = pair
        if 1 in (self.rows.cardinalities[first], self.rows.cardinalities[second]):
            # Exactly zero: rounding errors are no reason for an edge.
            return 0.0
        if not separator and self.first_gains is not None:
            return float(self.first_gains[first, second])
        every = separator | {first, second}
        if math.prod(self.rows.cardinalities[d] for d in every) > MOST_STATES:
            return -math.inf
        if self._is_complete:
            joined = self.term(every) + self.term(separator)
            return joined - self.term(separator | {first}) - self.term(separator | {second})
        total, terms = self._sums.of_complete(pair, separator)
        price = self._penalty * 0.5 * math.log(max(total, 2.0))
        gain = 0.0
        for sign, value, states in terms:
            gain += sign * (value - price * states)
        return gain

    @cached_property
    def first_gains(self) -> np.ndarray | None:
        """Gains of all pairs without common neighbours, shape ``(n, n)``; ``None`` where they have to be asked
        for one by one.
        """
        joined = self._sums.of_pairs
        if joined is None:
            return None
        sizes = np.array(self.rows.cardinalities)
        terms = np.diag(joined) - self._price * sizes
        total = xlogy(self.rows.total, self.rows.total) - self._price
        states = np.outer(sizes, sizes)
        gains: np.ndarray = joined - self._price * states + total - terms[:, None] - terms
        gains[states > MOST_STATES] = -math.inf
        # Exactly zero, as gains of constants are.
        gains[sizes == 1] = gains[:, sizes == 1] = 0.0
        return gains

    @cached_property
    def _is_complete(self) -> bool:
        return self.rows.is_complete


class SharedScore:
    """Sum of the scores of several data sets, which are to have the same graph.

    :param scores: The scores.
    """

    def __init__(self, scores: Iterable[ChordalScore]) -> None:
        self._scores = list(scores)

    def gain(self, pair: Pair, separator: frozenset[int]) -> float:
        """Sum of the gains."""
        return sum(score.gain(pair, separator) for score in self._scores)

    @cached_property
    def first_gains(self) -> np.ndarray | None:
        """Sums of the gains of all pairs without common neighbours, shape ``(n, n)``; ``None`` where one is missing."""
        total: np.ndarray | None = None
        for score in self._scores:
            gains = score.first_gains
            if gains is None:
                return None
            total = gains if total is None else total + gains
        return total


def grow_chordal_graph(
    score: EdgeScore,
    neighbors: Neighbors,
    treewidth: int,
    pairs: Iterable[Pair] | None = None,
    noise: np.random.Generator | None = None,
    first_gains: np.ndarray | None = None,
) -> float:
    """Adds the best edge that keeps a graph chordal, and its cliques small, until no edge has a positive gain.

    :param EdgeScore score: Gains of edges.
    :param neighbors: A chordal graph, which is changed.
    :param int treewidth: Cliques have at most one variable more.
    :param pairs: Pairs to begin with; ``None``: all.
    :param noise: Generator of log-normal random numbers of scale 0.2, by which gains are multiplied in the order of
        edges; ``None``: no noise.
    :param first_gains: Gains of all pairs, shape ``(n, n)``, if they are known at once; the graph has no edges then.
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

    if first_gains is not None:
        places = np.argwhere(np.triu(first_gains, 1) > 0)
        gains = first_gains[tuple(places.T)].tolist()
        heap = [(-gain, (d, e), frozenset(), gain) for (d, e), gain in zip(places.tolist(), gains, strict=True)]
        heapq.heapify(heap)
    else:
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
    :param float seconds: Processor time, in seconds; of processes that learn together, the mean.
    :return: Improvement of the score, at least 0.
    """
    start = time.process_time()
    present, best, kept = 0.0, 0.0, [set(near) for near in neighbors]
    while (share := float(each((time.process_time() - start) / seconds).mean())) < 1:
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
