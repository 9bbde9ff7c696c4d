"""Linear functions of activations that are above the potential of patterns in some ranges."""

__all__ = ["Chords", "choose_split", "potential_chords", "potential_of", "rectified", "rectified_slopes"]

import math
from typing import NamedTuple

import numpy as np

# Largest number whose exponential is taken, far from overflow.
LARGEST_LOGARITHM = 300.0


class Chords(NamedTuple):
    """A linear function of the activations.

    :ivar np.ndarray slopes: Shape ``(J,)``.
    :ivar np.ndarray start: Activations at which the value is ``base``, shape ``(J,)``.
    :ivar float base: Value at ``start``.
    """

    slopes: np.ndarray
    start: np.ndarray
    base: float

    def at(self, activations: np.ndarray) -> float:
        """The function's value."""
        return self.base + float(self.slopes @ (activations - self.start))


def potential_chords(low: np.ndarray, high: np.ndarray, near: np.ndarray, scheme: str, temperature: float) -> Chords:
    r"""Bounds the potential where activations are in some ranges.

    With ``"sum"``, the potential is a sum of convex functions of single activations, each below its chord. With
    ``"min"``, there are three bounds, of which the lowest at some activations is taken. What the potential gains from
    the lower ends is at most the sum of what it gains from each activation alone, because gains fall in the other
    activations, and it loses from the higher ends at least what it loses for each alone; both are convex in each, and
    below their chords. Also, :math:`\log s \le \log s_0 + s / s_0 - 1`, and exponentials are below their chords, which
    touches the potential where all activations are at some end.

    :param np.ndarray low: Lower ends of the ranges, shape ``(J,)``.
    :param np.ndarray high: Upper ends, at least ``low``, shape ``(J,)``.
    :param np.ndarray near: Activations at which the bound is to be low, shape ``(J,)``.
    :param str scheme: ``"sum"`` or ``"min"``.
    :param float temperature: T, at least 0.
    """
    if scheme == "sum":
        ends = rectified(np.stack([low, high]), temperature)
        return Chords(_slopes(ends[1] - ends[0], low, high), low, float(ends[0].sum()))
    inside = near.clip(low, high)
    alone = np.eye(len(low), dtype=bool)
    lowest, highest = float(_largest(low, temperature)), float(_largest(high, temperature))
    bounds = [
        Chords(_slopes(_largest(np.where(alone, high, low), temperature) - lowest, low, high), low, lowest),
        Chords(_slopes(highest - _largest(np.where(alone, low, high), temperature), low, high), high, highest),
    ]
    if temperature > 0 and (high.max() - inside.max()) / temperature < LARGEST_LOGARITHM:
        peak = inside.max()
        ends = np.exp((np.stack([low, high]) - peak) / temperature)
        total = float(np.exp((inside - peak) / temperature).sum())
        base = temperature * (math.log(total) + float(ends[0].sum()) / total - 1) + peak
        bounds.append(Chords(_slopes(temperature * (ends[1] - ends[0]) / total, low, high), low, float(base)))
    return min(bounds, key=lambda chords: chords.at(inside))


def potential_of(activations: np.ndarray, scheme: str, temperature: float) -> float:
    """The patterns' potential itself."""
    if scheme == "sum":
        return float(rectified(activations, temperature).sum())
    return float(_largest(activations, temperature))


def _slopes(gains: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(gains, high - low, out=np.zeros_like(gains), where=high > low))


def choose_split(
    chords: Chords, activations: np.ndarray, low: np.ndarray, high: np.ndarray, scheme: str, temperature: float
) -> tuple[int, float] | None:
    """A pattern, and the activation at which to split its range, so that the bound falls at some activations; ``None``
    if no split helps.

    :param np.ndarray activations: Shape ``(J,)``, not all of them in their ranges.
    """
    inside = (low < activations) & (activations < high)
    if scheme == "sum":
        gap = chords.slopes * (activations - low) + rectified(low, temperature) - rectified(activations, temperature)
        chosen = int(np.where(inside, gap, -np.inf).argmax())
        return (chosen, float(activations[chosen])) if inside[chosen] and gap[chosen] > 0 else None
    # If no activation is inside its range, the bound falls with the size of the ranges.
    size = chords.slopes * (high - low)
    chosen = int(np.where(inside, size, -np.inf).argmax() if inside.any() else size.argmax())
    end = float(activations[chosen] if inside[chosen] else (low[chosen] + high[chosen]) / 2)
    return (chosen, end) if low[chosen] < end < high[chosen] else None


def rectified(activations: np.ndarray, temperature: float) -> np.ndarray:
    r"""Potentials of single patterns, :math:`T \log(1 + e^{a / T})`."""
    if temperature == 0:
        return activations.clip(min=0)
    return np.asarray(activations.clip(min=0) + temperature * np.log1p(np.exp(-np.abs(activations) / temperature)))


def rectified_slopes(activations: np.ndarray, temperature: float) -> np.ndarray:
    """Derivatives of :func:`rectified`; at temperature 0 and activation 0, the subgradient 1/2."""
    if temperature == 0:
        return np.asarray(np.heaviside(activations, 0.5))
    return np.asarray(0.5 * (1 + np.tanh(activations / (2 * temperature))))


def _largest(activations: np.ndarray, temperature: float) -> np.ndarray:
    if temperature == 0:
        return np.asarray(activations.max(-1))
    return np.asarray(temperature * np.logaddexp.reduce(activations / temperature, axis=-1))
