"""Best labelings of a field under patterns that add up, with a proof: branch and bound over ranges of activations."""

__all__ = ["PatternMajorizer", "SumSearch"]

import heapq
import math
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.potential_chords import rectified, rectified_slopes

# Number of groups of pixels, each of which is treated as one pixel.
NUMBER_GROUPS = 64


class _PatternMajorant(NamedTuple):
    r"""Modular upper bounds of the potentials, :math:`b_j + \sum_i \lambda_{ji} z_i` with z from the labels y and 1 - y
    of the pixels that are not known.

    :ivar np.ndarray tilt: Log-odds that the bounds of all patterns add to the pixels, shape ``(D,)``.
    :ivar float base: Sum of the bounds with all labels 0.
    :ivar np.ndarray order: Indices of the z among the 2 D numbers y and 1 - y.
    :ivar np.ndarray starts: b, shape ``(J,)``.
    :ivar np.ndarray gains: :math:`\lambda`, in this order, shape ``(len(order), J)``.
    """

    tilt: np.ndarray
    base: float
    order: np.ndarray
    starts: np.ndarray
    gains: np.ndarray

    def at(self, shares: np.ndarray) -> np.ndarray:
        """Bound of each pattern's potential at labels, or at their means, shape ``(J,)``."""
        return np.asarray(self.starts + np.concatenate([shares, 1 - shares])[self.order] @ self.gains)


class PatternMajorizer:
    """Modular upper bounds of the potentials of some patterns, computed in memory that is reused.

    :param np.ndarray weights: Positive parts of the weights, and sizes of the negative ones, shape ``(2 D, J)``.
    :param float temperature: T, at least 0.
    """

    def __init__(self, weights: np.ndarray, temperature: float) -> None:
        # Rows are picked as a whole; fresh memory for them would take longer than the rest.
        self._weights, self._temperature = np.ascontiguousarray(weights), temperature
        self._some, self._gains = np.empty(weights.shape), np.empty(weights.shape)

    def near(
        self, shares: np.ndarray, free: np.ndarray, least: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> _PatternMajorant:
        r"""Bounds :math:`\sum_j \phi(a_j)` for labels whose activations are in ranges, tightly near some means.

        With :math:`z_i = y_i` where weights are positive and :math:`1 - y_i` elsewhere, :math:`\phi(a_j)` is a
        supermodular function of z. Let pixels come one after the other, those with the largest :math:`z_i` first: the
        increments of :math:`\phi` are a modular function that is nowhere less than :math:`\phi`, and equal to it on the
        way; its value at fractional z is the concave closure of :math:`\phi`. Out of the range of :math:`a_j`,
        :math:`\phi` goes on as a straight line. Where it is lower at these means, the chord of the range is taken.

        :param np.ndarray shares: Means of the labels, from 0 to 1, shape ``(D,)``.
        :param np.ndarray free: Whether pixels are not known, shape ``(D,)``.
        :param np.ndarray least: The smallest activations over all labels of free pixels, shape ``(J,)``.
        :param np.ndarray low: Lower ends of the ranges, shape ``(J,)``.
        :param np.ndarray high: Upper ends, at least ``low``, shape ``(J,)``.
        :return: Bounds; the next call overwrites their ``gains``.

        **References**

        Lovász (1983): Submodular functions and convexity. Mathematical Programming: The State of the Art.
        """
        shares, places = np.concatenate([shares, 1 - shares]), np.concatenate([free, free]).nonzero()[0]
        order = places[np.argsort(-shares[places], kind="stable")]
        number = min(NUMBER_GROUPS, len(order))
        begins = np.arange(number) * len(order) // max(number, 1)
        group = np.repeat(np.arange(number), np.diff(np.append(begins, len(order))))
        chosen, gains = self._some[: len(order)], self._gains[: len(order)]
        np.take(self._weights, order, axis=0, out=chosen, mode="clip")
        steps = np.add.reduceat(chosen, begins, axis=0) if number else chosen
        values = _extended(np.cumsum(np.concatenate([least[None], steps]), axis=0), low, high, self._temperature)
        slopes = _quotients(np.diff(values, axis=0), steps)
        if number:
            np.take(slopes, group, axis=0, out=gains, mode="clip")
        gains *= chosen
        ends, near = rectified(np.stack([low, high]), self._temperature), shares[order]
        tangent = rectified_slopes(low, self._temperature)
        chord = np.where(high > low, _quotients(ends[1] - ends[0], high - low), tangent)
        start = ends[0] + chord * (least - low)
        lower = start + chord * (near @ chosen) <= values[0] + near @ gains
        np.multiply(chosen, chord, out=gains, where=lower)
        starts = np.where(lower, start, values[0])
        both = np.zeros(len(self._weights))
        both[order] = gains @ np.ones(len(least))
        on, off = np.split(both, 2)
        return _PatternMajorant(on - off, float(starts.sum() + off.sum()), order, starts, gains)


def _extended(activations: np.ndarray, low: np.ndarray, high: np.ndarray, temperature: float) -> np.ndarray:
    """Potential in a range, continued out of it by its tangents at the ends."""
    inside = np.minimum(np.maximum(activations, low), high)
    slopes = np.where(activations < low, *rectified_slopes(np.stack([low, high]), temperature))
    return np.asarray(rectified(inside, temperature) + slopes * (activations - inside))


def _quotients(gains: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(gains, steps, out=np.zeros_like(gains), where=steps > 0))


# Smallest step of the means towards the best labels of a round; first rounds for the whole field have larger ones.
PACE = 0.05
# Rounds for the root, and one more for each pattern; rounds for another node, and number of patterns for one more.
ROOT_ROUNDS, ROUNDS, PATTERNS_IN_ROUND = 5, 2, 10
# Share of the cuts that go into expectation maximisation from the labels of bounds.
ASCENDING = 0.1
# Weight of the chord's largest gap in the choice of a range, which decides where the means show no gap.
SMALL = 1e-3
# Relative gap between a bound and the best value at which a node is closed.
CLOSE = 1e-10
# Rounds of the mean-field approximation that gives the first means, and largest penalty in it.
FIRST_ROUNDS, LARGEST_PENALTY = 20, 50.0


class _Node(NamedTuple):
    """A node of the search: a set of labels, and an upper bound of their values.

    :ivar float bound: Minus the upper bound, so that a heap gives the node with the largest one first.
    :ivar int place: Number of the node, which breaks ties.
    :ivar np.ndarray low: Lower ends of the ranges of the activations, shape ``(J,)``.
    :ivar np.ndarray high: Upper ends of these ranges, shape ``(J,)``.
    :ivar np.ndarray free: Whether a pixel's label is not known, shape ``(D,)``.
    :ivar np.ndarray known: Labels of the pixels that are known, shape ``(D,)``.
    :ivar np.ndarray shares: Means of the labels that were best under the bounds of its rounds, shape ``(D,)``.
    :ivar np.ndarray gaps: Excess of the bound over the potentials of the patterns at these means, shape ``(J,)``.
    :ivar np.ndarray activations: Activations of these means, shape ``(J,)``.
    :ivar bool narrowed: Whether pixels have become known since the first of its bounds.
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
    narrowed: bool = False


class SumSearch:
    r"""Branch and bound for one field.

    A bound takes one cut: the patterns' potentials are replaced by sums over pixels that are above them, averages of
    sums each of which is tight near some means of the labels. The best sums and the best means are strategies of a
    game, whose value is the concave closure of the objective:

    .. math::
        \min_\lambda \max_y \sum_i s_i y_i + \sum_j (b_j + \lambda_j^\top y) - \sum_e p_e [y_{e_1} \ne y_{e_2}].

    Both sides answer the average of the other's strategies so far (fictitious play). A bound also shows at which pixels
    another label would be no better than the best known labels; these pixels are fixed from then on, and ranges of
    activations shrink with them. Then the range of an activation is split whose potential is far below its bound.

    :param Field field: One row of zeros and ones, ``"sum"``, on the processor.
    :param FieldCut network: Network of the field's edges.
    :param np.ndarray labels: Good labels to begin with, shape ``(D,)``.
    :ivar np.ndarray best: The best labels so far, shape ``(D,)``.
    :ivar float worth: Value of the best labels.
    :ivar int num_cuts: Number of cuts so far.

    **References**

    Robinson (1951): An iterative method of solving a game. Annals of Mathematics 54(2).
    """

    def __init__(self, field: Field, network: FieldCut, labels: np.ndarray) -> None:
        self._network, self._edges, self._temperature = network, field.edges.numpy(), field.temperature
        self._odds, self._penalties = field.odds[0].numpy(), field.penalties.numpy()
        self._certain = np.isinf(self._odds)
        # Pixels whose label is certain have no log-odds of their own.
        self._finite, self._base = np.where(self._certain, 0.0, self._odds), float(field.odds_base[0])
        # A pattern that is never on does not matter.
        used = field.biases[0].isfinite()
        self._weights, self._biases = field.weights[0, used].numpy(), field.biases[0, used].numpy()
        self._parts = np.concatenate([self._weights.T.clip(min=0), -self._weights.T.clip(max=0)])
        self._majorizer = PatternMajorizer(self._parts, self._temperature)
        pulls = np.tile(self._penalties[0].clip(-LARGEST_PENALTY, LARGEST_PENALTY), 2)
        ends, number = np.concatenate([self._edges, self._edges[:, ::-1]]).T, len(self._odds)
        self._pulls = coo_matrix((pulls, tuple(ends)), (number, number)).tocsr()
        sizes = np.abs(self._penalties[0])
        self._degrees = np.bincount(self._edges.ravel(), np.repeat(sizes, 2), number)
        self.best, self._most_cuts, self._place = labels > 0, 0, 0
        self.num_cuts, self._num_ascending = 0, 0
        self.worth = self._value(self.best)

    def run(self, max_cuts: int) -> float:
        """Searches the node with the largest bound first, and returns the largest bound that is left."""
        self._most_cuts = max_cuts
        waiting, left = [self._root()], -np.inf
        paces = [PACE] * (ROUNDS + len(self._biases) // PATTERNS_IN_ROUND)
        while self._promising(-waiting[0].bound) and self.num_cuts < max_cuts:
            node = heapq.heappop(waiting)
            halves = self._halves(node)
            children = [self._node(*half, node, paces) for half in halves or []]
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
        """Node of all possible labels."""
        slopes = rectified_slopes(self._activations(self.best), self._temperature)
        shares = self._relaxed(self._odds + slopes @ self._weights)
        free, known = ~self._certain, self._odds > 0
        low, high = self._ranges(free, known)
        everything = _Node(-np.inf, 0, low, high, free, known, shares, 0 * low, low)
        rounds = range(ROOT_ROUNDS + len(self._biases))
        root = self._node(low, high, everything, [max(PACE, 2 / (step + 2)) for step in rounds])
        # No labels are better than the best, if nothing is left.
        return everything._replace(bound=-self.worth) if root is None else root

    def _node(self, low: np.ndarray, high: np.ndarray, above: _Node, paces: list[float]) -> _Node | None:
        """Node of some ranges inside of another node, bounded in some rounds; ``None`` if no labels, or none but known
        ones, are left.
        """
        free, known, bound = above.free, above.known, -above.bound
        least, low, high = self._narrowed(low, high, free, known)
        shares, tilt, base = np.where(free, above.shares, known), np.zeros(len(free)), 0.0
        for step, pace in enumerate(paces):
            if (low > high).any():
                return None
            majorant = self._majorizer.near(shares, free, least, low, high)
            share = 2 / (step + 2)
            tilt, base = tilt + share * (majorant.tilt - tilt), base + share * (majorant.base - base)
            odds = self._odds + tilt
            odds = np.where(free, odds, np.where(known, 1.0, -1.0) * (1 + self._degrees + np.abs(odds)))
            labels = self._cut(odds)
            value = self._field(labels) + float(tilt @ labels) + base
            margins, bound = self._network.margins(), min(bound, value)
            self._keep(labels)
            shares = shares + pace * (labels - shares)
            # Labels that differ from these at such a pixel are no better than the best.
            sure = free & (margins > value - self.worth + CLOSE * (1 + abs(self.worth)))
            if sure.any():
                free, known = free & ~sure, np.where(sure, labels, known)
                shares = np.where(free, shares, known)
                least, low, high = self._narrowed(low, high, free, known)
            if not free.any():
                self._keep(known)
                return None
            if not self._promising(bound) or self.num_cuts >= self._most_cuts:
                break
        if self._num_ascending <= ASCENDING * self.num_cuts:
            before = self.num_cuts
            self._ascend(labels)
            self._num_ascending += self.num_cuts - before
        activations = self._weights @ shares + self._biases
        gaps = majorant.at(shares) - rectified(activations, self._temperature)
        self._place += 1
        return _Node(
            -bound, self._place, low, high, free, known, shares, gaps, activations, bool((free != above.free).any())
        )

    def _narrowed(
        self, low: np.ndarray, high: np.ndarray, free: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Smallest activations over all labels of free pixels, and ranges cut down to the possible activations; ranges
        of which ``low`` is above ``high`` are empty.
        """
        least, most = self._ranges(free, known)
        low, high = np.maximum(low, least), np.minimum(high, most)
        near = low <= high + CLOSE * (1 + np.abs(high))
        return least, low, np.where(near, np.maximum(low, high), high)

    def _halves(self, node: _Node) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Halves of the range of the pattern with the largest gap of the bound; ``None`` if there is no gap."""
        low, high = node.low, node.high
        ends = rectified(np.stack([low, high, (low + high) / 2]), self._temperature)
        missed = np.where(high > low, node.gaps + SMALL * ((ends[0] + ends[1]) / 2 - ends[2]), 0.0)
        chosen = int(missed.argmax()) if len(missed) else 0
        if not len(missed) or missed[chosen] <= 0:
            return [(low, high)] if node.narrowed else None
        end = self._split(low[chosen], high[chosen], node.activations[chosen])
        lower, higher = low.copy(), high.copy()
        lower[chosen] = higher[chosen] = end
        return [(low, higher), (lower, high)]

    def _split(self, low: float, high: float, activation: float) -> float:
        """Activation at which to split a range: where the potential is furthest below the chord of the range, or, in a
        small range, near ``activation``.
        """
        ends = rectified(np.array([low, high]), self._temperature)
        slope = float(np.clip((ends[1] - ends[0]) / (high - low), 1e-300, 1 - 1e-16))
        end = self._temperature * math.log(slope / (1 - slope))
        if high - low < self._temperature:
            end = min(max(activation, 0.9 * low + 0.1 * high), 0.1 * low + 0.9 * high)
        return end if low < end < high else (low + high) / 2

    def _ranges(self, free: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ranges of the activations over all possible labels, two arrays of shape ``(J,)``."""
        always = self._biases + self._weights @ (known & ~free)
        number = len(free)
        return always - free @ self._parts[number:], always + free @ self._parts[:number]

    def _relaxed(self, odds: np.ndarray) -> np.ndarray:
        """Probabilities of 1 in a mean-field approximation without patterns, shape ``(D,)``."""
        means = np.zeros(len(odds))
        for _ in range(FIRST_ROUNDS):
            means = 0.5 * means + 0.5 * np.tanh((odds + self._pulls @ means) / 2)
        return np.asarray((means + 1) / 2)

    def _keep(self, labels: np.ndarray) -> None:
        """Improves labels and keeps the result, if they are better than the best so far."""
        if self._value(labels) > self.worth:
            self._ascend(labels)

    def _ascend(self, labels: np.ndarray) -> None:
        """Expectation maximisation from some labels; keeps the best labels on the way."""
        value = -np.inf
        while (new_value := self._value(labels)) > value:
            value = new_value
            if value > self.worth:
                self.best, self.worth = labels, value
            if self.num_cuts >= self._most_cuts:
                return
            slopes = rectified_slopes(self._activations(labels), self._temperature)
            labels = self._cut(self._odds + slopes @ self._weights)

    def _cut(self, odds: np.ndarray) -> np.ndarray:
        self.num_cuts += 1
        return np.asarray(self._network.maximize(odds[None], self._penalties)[0])

    def _activations(self, labels: np.ndarray) -> np.ndarray:
        return np.asarray(self._weights @ labels + self._biases)

    def _field(self, labels: np.ndarray) -> float:
        """Value of possible labels without the patterns."""
        cut = labels[self._edges[:, 0]] != labels[self._edges[:, 1]]
        return self._base + float(self._finite @ labels) - float(self._penalties[0][cut].sum())

    def _value(self, labels: np.ndarray) -> float:
        return self._field(labels) + float(rectified(self._activations(labels), self._temperature).sum())
