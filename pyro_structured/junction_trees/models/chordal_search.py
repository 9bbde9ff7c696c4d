"""Chordal graphs of bounded cliques that fit data, edge by edge."""

__all__ = ["ChordalScore", "EdgeScore", "grow_chordal_graph", "polish_chordal_graph"]

import heapq
import math
import time
from collections.abc import Iterable
from functools import cached_property
from itertools import combinations
from typing import Protocol

import numpy as np
from scipy.special import xlogy

from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.junction_trees.ops.chordal_graph import Neighbors

Pair = tuple[int, int]
# Nats by which polishing may lose at first.
TEMPERATURE = 10.0
MOST_RUINED = 4
# Of a clique; more are never counted.
MOST_STATES = 2**20


class EdgeScore(Protocol):
    """Gains of edges."""

    def gain(self, pair: Pair, separator: frozenset[int]) -> float:
        """Gain of the score by an edge between variables with these common neighbours."""


class ChordalScore:
    r"""Penalised log-likelihoods of decomposable models, as sums over cliques less sums over separators.

    .. math::
        T(S) = \sum_{x_S} N(x_S) \log N(x_S) - \frac{c}{2} \log N \cdot |S|,

    where :math:`|S|` is the number of joint states: for c = 1, the Bayesian information criterion.

    Where entries are missing, what an edge adds is that of the rows in which all these variables are known; the sum
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
        """Term of a clique or separator."""
        found = self._terms.get(variables)
        if found is None:
            counts = self.rows.counts(sorted(variables))
            found = self._terms[variables] = float(xlogy(counts, counts).sum()) - self._price * len(counts)
        return found

    def gain(self, pair: Pair, separator: frozenset[int]) -> float:
        """Gain by an edge between variables with these common neighbours; -inf if their clique would be too large."""
        one, other = pair
        if 1 in (self.rows.cardinalities[one], self.rows.cardinalities[other]):
            # A gain of zero up to rounding is no reason for an edge.
            return 0.0
        if not separator and self._pair_gains is not None:
            return self._pair_gains[one][other]
        every = separator | {one, other}
        if math.prod(self.rows.cardinalities[d] for d in every) > MOST_STATES:
            return -math.inf
        if self.rows.is_complete:
            joined = self.term(every) + self.term(separator)
            return joined - self.term(separator | {one}) - self.term(separator | {other})
        found = self._gains.get((pair, separator))
        if found is None:
            found = self._gains[pair, separator] = self._gain_of_complete_rows(sorted(every), pair)
        return found

    @cached_property
    def _pair_gains(self) -> list[list[float]] | None:
        """Gains of all pairs without common neighbours at once; ``None`` where values are missing."""
        if not (self.rows.is_complete and self.rows.counts_pairs_at_once):
            return None
        counts, starts, sizes = self.rows.pair_counts, self.rows.starts, np.array(self.rows.cardinalities)
        joined = np.add.reduceat(np.add.reduceat(xlogy(counts, counts), starts, 0), starts, 1)
        terms = np.diag(joined) - self._price * sizes
        total = xlogy(self.rows.total, self.rows.total) - self._price
        states = np.outer(sizes, sizes)
        gains = joined - self._price * states + total - terms[:, None] - terms
        found: list[list[float]] = np.where(states > MOST_STATES, -math.inf, gains).tolist()
        return found

    def _gain_of_complete_rows(self, variables: list[int], pair: Pair) -> float:
        table = self.rows.counts(variables).reshape([self.rows.cardinalities[d] for d in variables])
        price = self._penalty * 0.5 * math.log(max(table.sum(), 2.0))
        places = [variables.index(d) for d in pair]
        found = 0.0
        for left_out, sign in (((), 1), ((places[0],), -1), ((places[1],), -1), (tuple(places), 1)):
            counts = table.sum(left_out)
            found += sign * (float(xlogy(counts, counts).sum()) - price * counts.size)
        return found


def grow_chordal_graph(
    score: EdgeScore,
    neighbors: Neighbors,
    treewidth: int,
    pairs: Iterable[Pair] | None = None,
    noise: np.random.Generator | None = None,
) -> float:
    """Adds the best edge that keeps a graph chordal, and its cliques small, until none has a gain.

    :param EdgeScore score: Gains of edges.
    :param neighbors: A chordal graph, which is changed.
    :param int treewidth: Cliques have at most one variable more.
    :param pairs: Pairs to begin with; ``None``: all.
    :param noise: Gains are multiplied by random numbers, log-normal of scale 0.2; ``None``: they are not.
    :return: The sum of the gains.
    """
    heap: list[tuple[float, Pair, frozenset[int], float]] = []

    def push(pair: Pair) -> None:
        one, other = pair
        separator = frozenset(neighbors[one] & neighbors[other])
        if other not in neighbors[one] and len(separator) < treewidth:
            gain = score.gain(pair, separator)
            if gain > 0:
                factor = 1.0 if noise is None else math.exp(0.2 * noise.standard_normal())
                heapq.heappush(heap, (-gain * factor, pair, separator, gain))

    for pair in combinations(range(len(neighbors)), 2) if pairs is None else pairs:
        push(pair)
    total, parts = 0.0, _parts(neighbors)
    while heap:
        _, (one, other), separator, gain = heapq.heappop(heap)
        if other in neighbors[one] or separator != neighbors[one] & neighbors[other]:
            continue
        # Most pairs have no common neighbour: for these, searching for a path would take most of the time.
        if not (_separates(neighbors, separator, one, other) if separator else parts[one] != parts[other]):
            continue
        if not separator:
            parts = [parts[one] if part == parts[other] else part for part in parts]
        neighbors[one].add(other)
        neighbors[other].add(one)
        total += gain
        # Only these pairs have a new common neighbour.
        for node, end in ((one, other), (other, one)):
            for near in neighbors[end] - neighbors[node] - {node}:
                push((node, near) if node < near else (near, node))
    return total


def _parts(neighbors: Neighbors) -> list[int]:
    """Numbers of the connected parts that nodes are in."""
    found = [-1] * len(neighbors)
    for start in range(len(neighbors)):
        stack = [start] if found[start] < 0 else []
        while stack:
            node = stack.pop()
            found[node] = start
            stack += [near for near in neighbors[node] if found[near] < 0]
    return found


def _separates(neighbors: Neighbors, separator: frozenset[int], one: int, other: int) -> bool:
    """Whether every path goes through the separator: then, an edge keeps a chordal graph chordal."""
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

    :param neighbors: A chordal graph, which becomes the best one that was met.
    :param float seconds: Processor time.
    :return: The improvement of the score, at least 0.
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
    found = [int(rng.integers(len(neighbors)))]
    for _ in range(int(rng.integers(MOST_RUINED))):
        around = sorted(set().union(*(neighbors[d] for d in found)) - set(found))
        if around:
            found.append(around[int(rng.integers(len(around)))])
    return found


def _strip(score: EdgeScore, neighbors: Neighbors, ruined: list[int], rng: np.random.Generator) -> float:
    """Removes edges of variables as long as the graph stays chordal; the score that is lost."""
    lost = 0.0
    for d in ruined:
        order = rng.permutation(sorted(neighbors[d])).tolist()
        waiting = True
        while waiting:
            waiting = False
            for e in list(order):
                common = neighbors[d] & neighbors[e]
                if all(other in neighbors[one] for one, other in combinations(common, 2)):
                    neighbors[d].discard(e)
                    neighbors[e].discard(d)
                    lost += score.gain((d, e), frozenset(common))
                    order.remove(e)
                    waiting = bool(order)
    return lost
