"""Best labelings of a field under patterns that add up, with a proof: branch and bound over ranges of activations."""

__all__ = ["SumSearch"]

import heapq
import math
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix

from pyro_structured.solvers.field_cut import FieldCut
from pyro_structured.solvers.pattern_majorant import PatternMajorizer
from pyro_structured.solvers.pattern_objective import PatternObjective
from pyro_structured.solvers.potential_chords import rectified, rectified_slopes

# Bounds of the whole field, each near shares that the last one says.
ROOT_ROUNDS = 10
# Share of a value by which a bound may be above it where nothing is looked for any more.
CLOSE = 1e-10
# Penalties that shares can follow.
LARGEST_PENALTY = 50.0


class _Node(NamedTuple):
    """Labels that are possible, and a bound of what they are worth; the largest comes first.

    :ivar float bound: The bound, negative.
    :ivar int place: A number of its own.
    :ivar np.ndarray low: Ranges of the activations, shape ``(J,)``, up to ``high``.
    :ivar np.ndarray free: Pixels whose labels are not known, shape ``(D,)``; those of others are in ``known``.
    :ivar np.ndarray shares: How far labels are 1 where they are best under the bound, about.
    :ivar np.ndarray gaps: How far the bound is above the potentials of the patterns at its best labels, shape ``(J,)``.
    :ivar np.ndarray activations: Of these labels.
    """

    bound: float
    place: int
    low: np.ndarray
    high: np.ndarray
    free: np.ndarray
    known: np.ndarray
    shares: np.ndarray
    gaps: np.ndarray
    activations: np.ndarray


class SumSearch:
    """Of one field.

    A bound takes one cut: the patterns' potentials are replaced by sums over pixels that are above them. It also says
    which labels are no better than the best that are known; these pixels are left out of all that follows, and ranges
    of activations shrink with them.

    :param PatternObjective objective: One row, ``"sum"``.
    :param FieldCut network: Of its edges.
    :param np.ndarray labels: Good ones to begin with, shape ``(D,)``.
    :ivar np.ndarray best: The best labels so far.
    :ivar float worth: Their value.
    :ivar int num_cuts: How many cuts it took.
    """

    def __init__(self, objective: PatternObjective, network: FieldCut, labels: np.ndarray) -> None:
        self._network, self._edges, self._temperature = network, objective.edges, objective.temperature
        self._odds, self._penalties = objective.odds[0].numpy(), objective.penalties.numpy()
        self._certain = np.isinf(self._odds)
        # What is certain has no log-odds of its own.
        self._finite, self._base = np.where(self._certain, 0.0, self._odds), float(objective.base[0])
        # A pattern that is never on does not matter.
        used = objective.biases[0].isfinite()
        self._weights, self._biases = objective.weights[0, used].numpy(), objective.biases[0, used].numpy()
        self._parts = np.concatenate([self._weights.T.clip(min=0), -self._weights.T.clip(max=0)])
        self._majorizer = PatternMajorizer(self._parts, self._temperature)
        pulls = np.tile(self._penalties[0].clip(-LARGEST_PENALTY, LARGEST_PENALTY), 2)
        ends, number = np.concatenate([self._edges, self._edges[:, ::-1]]).T, len(self._odds)
        self._pulls = coo_matrix((pulls, tuple(ends)), (number, number)).tocsr()
        sizes = np.abs(self._penalties[0])
        self._degrees = np.bincount(self._edges.ravel(), np.repeat(sizes, 2), number)
        self.best, self.num_cuts, self._most_cuts, self._place = labels > 0, 0, 0, 0
        self.worth = self._value(self.best)

    def run(self, max_cuts: int) -> float:
        """Looks at what has the largest bound first, and returns the largest that is left."""
        self._most_cuts = max_cuts
        waiting, left = [self._root()], -np.inf
        while self._promising(-waiting[0].bound) and self.num_cuts < max_cuts:
            node = heapq.heappop(waiting)
            halves = self._halves(node)
            children = [self._node(*half, node.free, node.known, node.shares, -node.bound) for half in halves or []]
            for child in filter(None, children):
                heapq.heappush(waiting, child)
            if halves is None:
                left = max(left, -node.bound)
            if not waiting:
                break
        return max(left, self.worth, -waiting[0].bound if waiting else -np.inf)

    def _promising(self, bound: float) -> bool:
        return bound > self.worth + CLOSE * (1 + abs(self.worth))

    def _root(self) -> _Node:
        """The last of some bounds of everything, each near shares that those before it say."""
        slopes = rectified_slopes(self._activations(self.best), self._temperature)
        shares = self._relaxed(self._odds + slopes @ self._weights, np.full(len(self._odds), 0.5), 2 * ROOT_ROUNDS)
        free, known = ~self._certain, self._odds > 0
        low, high = ranges = self._ranges(free, known)
        node = _Node(-np.inf, 0, *ranges, free, known, shares, 0 * low, low)
        for step in range(ROOT_ROUNDS):
            found = self._node(low, high, node.free, node.known, node.shares, -node.bound, 1 / (step + 2))
            if found is None:
                # What is left is no better than the best.
                return node._replace(bound=-self.worth)
            node = found
            if not self._promising(-node.bound) or self.num_cuts >= self._most_cuts:
                break
        return node

    def _node(
        self,
        low: np.ndarray,
        high: np.ndarray,
        free: np.ndarray,
        known: np.ndarray,
        shares: np.ndarray,
        above: float,
        pace: float = 0.5,
    ) -> _Node | None:
        """Maximises a bound that is low near some shares; nothing if no labels are in the ranges."""
        least, most = self._ranges(free, known)
        low, high = np.maximum(low, least), np.minimum(high, most)
        if (low > high + CLOSE * (1 + np.abs(high))).any():
            return None
        high = np.maximum(low, high)
        majorant = self._majorizer.near(shares, free, least, low, high)
        odds = self._odds + majorant.tilt
        odds = np.where(free, odds, np.where(known, 1.0, -1.0) * (1 + self._degrees + np.abs(odds)))
        labels = self._cut(odds)
        activations = self._activations(labels)
        field, potentials = self._field(labels), rectified(activations, self._temperature)
        each = majorant.at(labels)
        bound = field + float(each.sum())
        margins = self._network.margins()
        if field + float(potentials.sum()) > self.worth:
            self._keep(labels)
        # Whatever differs there is no better.
        sure = free & (margins > bound - self.worth + CLOSE * (1 + abs(self.worth)))
        known = np.where(sure, labels, known)
        shares = (1 - pace) * shares + pace * self._relaxed(odds, shares, 3)
        self._place += 1
        return _Node(
            -min(bound, above), self._place, low, high, free & ~sure, known, shares, each - potentials, activations
        )

    def _halves(self, node: _Node) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Splits the range of the pattern whose potential the bound misses most; ``None`` if it misses none."""
        least, most = self._ranges(node.free, node.known)
        low, high = np.maximum(node.low, least), np.minimum(node.high, most)
        if (low > high + CLOSE * (1 + np.abs(high))).any():
            return []
        chosen = int(np.where(high > low, node.gaps, -np.inf).argmax()) if len(low) else 0
        if not len(low) or not high[chosen] > low[chosen] or node.gaps[chosen] <= 0:
            # Pixels that have become known since make the bound of what is left lower.
            return [(low, high)] if (low > node.low).any() or (high < node.high).any() else None
        end = self._split(low[chosen], high[chosen], node.activations[chosen])
        lower, higher = low.copy(), high.copy()
        lower[chosen] = higher[chosen] = end
        return [(low, higher), (lower, high)]

    def _split(self, low: float, high: float, activation: float) -> float:
        """Where the potential is furthest below the chord of a range; in small ranges, near some activation."""
        ends = rectified(np.array([low, high]), self._temperature)
        slope = float(np.clip((ends[1] - ends[0]) / (high - low), 1e-300, 1 - 1e-16))
        end = self._temperature * math.log(slope / (1 - slope))
        if high - low < self._temperature:
            end = min(max(activation, 0.9 * low + 0.1 * high), 0.1 * low + 0.9 * high)
        return end if low < end < high else (low + high) / 2

    def _ranges(self, free: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the activations of all labels that are possible."""
        always = self._biases + self._weights @ (known & ~free)
        number = len(free)
        return always - free @ self._parts[number:], always + free @ self._parts[:number]

    def _relaxed(self, odds: np.ndarray, shares: np.ndarray, number: int) -> np.ndarray:
        """Some rounds of a mean-field approximation."""
        means = 2 * shares - 1
        for _ in range(number):
            means = 0.5 * means + 0.5 * np.tanh((odds + self._pulls @ means) / 2)
        return np.asarray((means + 1) / 2)

    def _keep(self, labels: np.ndarray) -> None:
        """The best labels, and better ones near them, by expectation maximisation."""
        value = self._value(labels)
        while value > self.worth:
            self.best, self.worth = labels, value
            if self.num_cuts >= self._most_cuts:
                return
            slopes = rectified_slopes(self._activations(labels), self._temperature)
            labels = self._cut(self._odds + slopes @ self._weights)
            value = self._value(labels)

    def _cut(self, odds: np.ndarray) -> np.ndarray:
        self.num_cuts += 1
        return np.asarray(self._network.maximize(odds[None], self._penalties)[0])

    def _activations(self, labels: np.ndarray) -> np.ndarray:
        return np.asarray(self._weights @ labels + self._biases)

    def _field(self, labels: np.ndarray) -> float:
        """What labels that may be are worth without the patterns."""
        cut = labels[self._edges[:, 0]] != labels[self._edges[:, 1]]
        return self._base + float(self._finite @ labels) - float(self._penalties[0][cut].sum())

    def _value(self, labels: np.ndarray) -> float:
        return self._field(labels) + float(rectified(self._activations(labels), self._temperature).sum())
