"""Bounds of the log-weights of labelings of fields under patterns, by dual decomposition."""

__all__ = ["FORMS", "DualStep", "decompose", "maximize_pixels_with_pattern", "maximize_with_pattern"]

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.solvers.field_cut import FieldCut, MapResult
from pyro_structured.fields.solvers.joint_cut import rounding
from pyro_structured.fields.solvers.potential_chords import rectified

# Largest number of line crossings, which matters if weights have both signs.
MOST_CROSSINGS = 10_000


def maximize_pixels_with_pattern(odds: np.ndarray, weights: np.ndarray, bias: float, temperature: float) -> np.ndarray:
    r"""Maximises :math:`\delta^\top y + \phi(c + w^\top y)` for :math:`\phi(x) = T \log(1 + e^{x/T})`.

    Labels are best for :math:`\delta + \lambda w` with some slope :math:`\lambda` between 0 and 1, and change only
    where it passes :math:`-\delta_i / w_i`; all D + 1 labelings are compared. Cost O(D log D).

    :param np.ndarray odds: :math:`\delta`, infinite where a label is certain, shape ``(D,)``.
    :param np.ndarray weights: w, finite, shape ``(D,)``.
    :param float bias: c.
    :param float temperature: T.
    :return: Labels, booleans of shape ``(D,)``.

    **References**

    Li (2013), Appendix A.1, Equations (A.6) to (A.11).
    """
    first = odds > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        points = -odds / weights
    flips = ((points > 0) & (points < 1)).nonzero()[0]
    flips = flips[np.argsort(points[flips], kind="stable")]
    # Pixels with log-odds 0 follow the sign of their weight.
    first = np.where(odds == 0, weights > 0, first)
    signs = np.where(first[flips], -1.0, 1.0)
    finite = np.where(np.isinf(odds), 0.0, odds)
    worth = finite @ first + np.concatenate([[0.0], np.cumsum(signs * finite[flips])])
    activations = bias + weights @ first + np.concatenate([[0.0], np.cumsum(signs * weights[flips])])
    labels = first.copy()
    labels[flips[: int((worth + rectified(activations, temperature)).argmax())]] ^= True
    return np.asarray(labels)


def maximize_with_pattern(
    solve: Callable[[float], np.ndarray],
    worth: Callable[[np.ndarray], float],
    weights: np.ndarray,
    bias: float,
    temperature: float,
) -> tuple[np.ndarray, float]:
    r"""Maximises :math:`\psi(y) + \phi(c + w^\top y)` for a field that is maximised under any unary terms.

    .. math::
        G(\lambda) = \max_y \psi(y) + \lambda w^\top y

    is convex and piecewise linear, and the best labels are best for some :math:`\lambda` in [0, 1]. Between two of its
    lines, it is solved where they cross, unless what lies below the chord of G can be no better than the best labels.
    With weights of one sign there are at most D + 1 pieces.

    :param solve: The labels, shape ``(D,)``, that are best for some :math:`\lambda`.
    :param worth: :math:`\psi`.
    :param np.ndarray weights: w, shape ``(D,)``.
    :param float bias: c.
    :param float temperature: T.
    :return: Labels, and a bound: their value, unless there are more than 10,000 crossings.

    **References**

    Li (2013), Appendix A.1, Equations (A.7) to (A.10).
    """
    best, most = np.empty(0), -np.inf

    def line(slope: float) -> tuple[float, float, float]:
        """Slope at which G is touched, value of G, and derivative of G."""
        nonlocal best, most
        labels = solve(slope)
        field, rise = worth(labels), float(weights @ labels)
        value = field + float(rectified(np.array(bias + rise), temperature))
        if value > most:
            best, most = labels, value
        return slope, field + slope * rise, rise

    waiting, bound = [(line(0.0), line(1.0))], -np.inf
    for _ in range(MOST_CROSSINGS):
        if not waiting:
            return best, max(most, bound)
        left, right = waiting.pop()
        above = _below_chord(left, right, bias, temperature)
        tolerance = 1e-12 * (1 + abs(most))
        if above <= most + tolerance or right[2] - left[2] <= 0:
            bound = max(bound, min(above, most + tolerance))
            continue
        crossing = (left[1] - left[2] * left[0] - right[1] + right[2] * right[0]) / (right[2] - left[2])
        height = left[1] + left[2] * (crossing - left[0])
        if not left[0] < crossing < right[0]:
            continue
        middle = line(crossing)
        if middle[1] > height + 1e-12 * (1 + abs(height)):
            waiting += [(left, middle), (middle, right)]
    return best, max([most, *(_below_chord(*pair, bias, temperature) for pair in waiting)])


def _below_chord(
    left: tuple[float, float, float], right: tuple[float, float, float], bias: float, temperature: float
) -> float:
    r"""The largest :math:`\ell(\lambda) + \lambda c - \phi^*(\lambda)` for the chord :math:`\ell` of G."""
    rise = (right[1] - left[1]) / (right[0] - left[0])
    total = rise + bias
    if temperature == 0:
        slope = left[0] if total < 0 else right[0]
    else:
        slope = min(max(float(0.5 * (1 + np.tanh(total / (2 * temperature)))), left[0]), right[0])
    conjugate = temperature * sum(p * np.log(p) for p in (slope, 1 - slope) if p > 0)
    return float(left[1] + rise * (slope - left[0]) + slope * bias - conjugate)


# Form 1: the field is a term beside the patterns'; form 2: every pattern has its share of the field.
FORMS = (1, 2)
# Steps of a smaller share of Polyak's size lead nowhere.
LEAST_SCALE = 1e-9


class DualStep(NamedTuple):
    """Results of one iteration, without the start.

    :ivar float total: Upper bound of the log-weights of all labels.
    :ivar float majority: Log-weight of the labels of the majority of the terms.
    :ivar float decoded: Log-weight of the labels of one M-step with the terms' slopes.
    """

    total: float
    majority: float
    decoded: float


def decompose(
    field: Field,
    labels: Tensor,
    max_cuts: int,
    form: int = 2,
    observe: Callable[[DualStep], None] | None = None,
) -> MapResult:
    """Minimises the sum of the terms' own maxima, by subgradients, and decodes labels on the way.

    Labels are taken from the majority of the terms, and from one M-step with the slopes that the terms' labels have.

    :param Field field: A field of zeros and ones, ``"sum"``, on the processor.
    :param Tensor labels: Good labels to begin with, shape ``(rows, D)``.
    :param int max_cuts: The largest number of cuts for each row; where the terms need none, of iterations.
    :param int form: 1 or 2, one of ``FORMS``; the bound is the same in the limit.
    :param observe: Function that is called with the :class:`DualStep` of every iteration.

    **References**

    Li (2013), Appendix A, Equations (A.1) to (A.13).
    """
    network = FieldCut(field.edges.numpy(), labels.shape[-1])
    rows = [
        _Decomposition(field.rows(torch.tensor([index])), network, labels[index], form) for index in range(len(labels))
    ]
    for row in rows:
        row.run(max_cuts, observe)
    best = torch.from_numpy(np.array([row.best for row in rows])).reshape(labels.shape).to(labels)
    bound = torch.tensor([row.bound for row in rows], dtype=torch.double)
    return MapResult(best, bound + rounding(field), torch.tensor([row.num_cuts for row in rows], dtype=torch.long))


class _Decomposition:
    """Dual decomposition of one field."""

    def __init__(self, field: Field, network: FieldCut, labels: Tensor, form: int) -> None:
        self._field, self._network, self._edges = field, network, field.edges.numpy()
        used = field.biases[0].isfinite()
        self._weights, self._biases = field.weights[0, used].numpy(), field.biases[0, used].numpy()
        # Without patterns, the field is all there is.
        self._form = form if len(self._biases) else 1
        self._odds, self._penalties = field.odds[0].numpy(), field.penalties.numpy()
        self._share = 1.0 / len(self._biases) if self._form == 2 else 0.0
        self._paired = bool((self._penalties != 0).any())
        self.best, self.bound, self.num_cuts = labels.numpy(), np.inf, 0
        self.worth = self._value(labels.numpy())

    def run(self, max_cuts: int, observe: Callable[[DualStep], None] | None) -> None:
        """Takes steps of Polyak's size until the bound meets the best labels, steps vanish, or cuts run out."""
        number = len(self._biases) + (self._form == 1)
        prices = np.zeros((number, len(self._odds)))
        scale, iterations = 1.0, 0
        while max(self.num_cuts, iterations) < max_cuts and scale > LEAST_SCALE:
            iterations += 1
            labels, values = zip(*(self._term(place, prices[place]) for place in range(number)), strict=True)
            votes = np.array(labels, dtype=float)
            total = sum(values) + float(self._field.odds_base[0])
            scale = scale if total < self.bound else 0.9 * scale
            self.bound = min(self.bound, total)
            values_found = self._decode(votes)
            if observe:
                observe(DualStep(total, *values_found))
            subgradient = votes - votes.mean(0)
            norm = float((subgradient**2).sum())
            if norm == 0 or self.bound <= self.worth + 1e-12 * (1 + abs(self.worth)):
                break
            prices -= scale * (total - self.worth) / norm * subgradient

    def _term(self, place: int, prices: np.ndarray) -> tuple[np.ndarray, float]:
        """The best labels of one term, and their value."""
        if place == len(self._biases):
            labels = self._cut(self._odds + prices)
            return labels, self._worth(labels, self._odds, 1.0) + float(prices @ labels)
        weights, bias, temperature = self._weights[place], float(self._biases[place]), self._field.temperature
        share = self._share
        # Labels that are certain are certain in every term.
        odds = (
            np.where(np.isinf(self._odds), self._odds, share * np.where(np.isinf(self._odds), 0.0, self._odds)) + prices
        )
        if not (self._paired and share):
            labels = maximize_pixels_with_pattern(odds, weights, bias, temperature)
            return labels, self._worth(labels, odds, 0.0) + float(rectified(bias + weights @ labels, temperature))
        return maximize_with_pattern(
            lambda slope: self._cut(odds + slope * weights, share),
            lambda labels: self._worth(labels, odds, share),
            weights,
            bias,
            temperature,
        )

    def _cut(self, odds: np.ndarray, share: float = 1.0) -> np.ndarray:
        self.num_cuts += 1
        return np.asarray(self._network.maximize(odds[None], share * self._penalties)[0])

    def _worth(self, labels: np.ndarray, odds: np.ndarray, share: float) -> float:
        """Value of labels in a field with some log-odds and a share of the penalties."""
        cut = labels[self._edges[:, 0]] != labels[self._edges[:, 1]]
        penalty = share * float(self._penalties[0][cut].sum()) if share else 0.0
        return float(np.where(np.isinf(odds), 0.0, odds) @ labels) - penalty

    def _decode(self, votes: np.ndarray) -> list[float]:
        """Log-weights of the majority's labels, and of those of one M-step with the slopes of the terms' labels."""
        candidates = [votes.mean(0) > 0.5]
        activations = (self._weights * votes[: len(self._biases)]).sum(1) + self._biases
        temperature = self._field.temperature
        if temperature == 0:
            slopes = (activations > 0).astype(float)
        else:
            slopes = 0.5 * (1 + np.tanh(activations / (2 * temperature)))
        candidates.append(self._cut(self._odds + slopes @ self._weights))
        values = [self._value(labels) for labels in candidates]
        for labels, value in zip(candidates, values, strict=True):
            if value > self.worth:
                self.best, self.worth = labels, value
        return values

    def _value(self, labels: np.ndarray) -> float:
        return float(self._field.log_weight(torch.from_numpy(np.asarray(labels, dtype=float)[None]))[0])
