"""Sums over single pixels that are above the potential of patterns, whose activations are in some ranges."""

__all__ = ["PatternMajorant", "PatternMajorizer"]

from typing import NamedTuple

import numpy as np

from pyro_structured.fields.solvers.potential_chords import rectified, rectified_slopes

# Groups of pixels that are counted as one.
NUMBER_GROUPS = 64


class PatternMajorant(NamedTuple):
    r"""Of each pattern, :math:`b_j + \sum_i \lambda_{ji} z_i` with z that are the labels or 1 less them.

    :ivar np.ndarray tilt: What it adds to the log-odds of all pixels, all patterns together, shape ``(D,)``.
    :ivar float base: What it is with all labels 0.
    :ivar np.ndarray order: Which z there are, of the labels and then of 1 less them.
    :ivar np.ndarray starts: b, shape ``(J,)``.
    :ivar np.ndarray gains: :math:`\lambda`, in this order, shape ``(z, J)``.
    """

    tilt: np.ndarray
    base: float
    order: np.ndarray
    starts: np.ndarray
    gains: np.ndarray

    def at(self, shares: np.ndarray) -> np.ndarray:
        """What it says of each pattern, for labels or shares of them, shape ``(J,)``."""
        return np.asarray(self.starts + np.concatenate([shares, 1 - shares])[self.order] @ self.gains)


class PatternMajorizer:
    """Bounds the potentials of some patterns, again and again.

    :param np.ndarray weights: Positive parts of the weights, and sizes of the negative ones, shape ``(2 D, J)``.
    :param float temperature: At least 0.
    """

    def __init__(self, weights: np.ndarray, temperature: float) -> None:
        # Rows are picked as a whole; fresh memory for them would take longer than the rest.
        self._weights, self._temperature = np.ascontiguousarray(weights), temperature
        self._some, self._gains = np.empty(weights.shape), np.empty(weights.shape)

    def near(
        self, shares: np.ndarray, free: np.ndarray, least: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> PatternMajorant:
        r"""Bounds :math:`\sum_j \phi(a_j)` for labels whose activations are in ranges, tightly near some shares.

        With :math:`z_i = y_i` where weights are positive and :math:`1 - y_i` elsewhere, :math:`\phi(a_j)` is a
        supermodular function of z. Let pixels come one after the other, those with the largest :math:`z_i` first: what
        each adds to :math:`\phi` is a modular function that is nowhere less than :math:`\phi`, and equal to it on the
        way; the sum at fractional z is the concave closure of :math:`\phi`. Out of the range of :math:`a_j`,
        :math:`\phi` goes on as a straight line. Where it is lower at these shares, the chord of the range is taken.

        :param np.ndarray shares: How far labels are 1, from 0 to 1, shape ``(D,)``.
        :param np.ndarray free: Which pixels are not known, booleans of shape ``(D,)``.
        :param np.ndarray least: The smallest activations that labels of free pixels leave, shape ``(J,)``.
        :param np.ndarray low: Ranges, shape ``(J,)``.
        :param np.ndarray high: At least that.
        :return: Bounds; what they say of single patterns is forgotten when there are others.

        **References**

        Lovász (1983): Submodular functions and convexity. Mathematical Programming: The State of the Art.
        """
        shares, places = np.concatenate([shares, 1 - shares]), np.concatenate([free, free]).nonzero()[0]
        order = places[np.argsort(-shares[places], kind="stable")]
        number = min(NUMBER_GROUPS, len(order))
        begins = np.arange(number) * len(order) // max(number, 1)
        group = np.repeat(np.arange(number), np.diff(np.append(begins, len(order))))
        some, gains = self._some[: len(order)], self._gains[: len(order)]
        np.take(self._weights, order, axis=0, out=some, mode="clip")
        steps = np.add.reduceat(some, begins, axis=0) if number else some
        values = _extended(np.cumsum(np.concatenate([least[None], steps]), axis=0), low, high, self._temperature)
        slopes = _quotients(np.diff(values, axis=0), steps)
        if number:
            np.take(slopes, group, axis=0, out=gains, mode="clip")
        gains *= some
        ends, near = rectified(np.stack([low, high]), self._temperature), shares[order]
        tangent = rectified_slopes(low, self._temperature)
        chord = np.where(high > low, _quotients(ends[1] - ends[0], high - low), tangent)
        start = ends[0] + chord * (least - low)
        lower = start + chord * (near @ some) <= values[0] + near @ gains
        np.multiply(some, chord, out=gains, where=lower)
        starts = np.where(lower, start, values[0])
        both = np.zeros(len(self._weights))
        both[order] = gains @ np.ones(len(least))
        on, off = np.split(both, 2)
        return PatternMajorant(on - off, float(starts.sum() + off.sum()), order, starts, gains)


def _extended(activations: np.ndarray, low: np.ndarray, high: np.ndarray, temperature: float) -> np.ndarray:
    """The potential in a range, and the lowest convex function out of it."""
    inside = np.minimum(np.maximum(activations, low), high)
    slopes = np.where(activations < low, *rectified_slopes(np.stack([low, high]), temperature))
    return np.asarray(rectified(inside, temperature) + slopes * (activations - inside))


def _quotients(gains: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(gains, steps, out=np.zeros_like(gains), where=steps > 0))
