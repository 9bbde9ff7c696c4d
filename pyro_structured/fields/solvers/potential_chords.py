"""Linear functions of activations that are above the potential of patterns in some ranges."""

__all__ = ["Chords", "choose_split", "potential_chords", "potential_of", "rectified", "rectified_slopes"]

import math
from typing import NamedTuple

import numpy as np

# Of numbers whose exponentials are far from overflow.
LARGEST_LOGARITHM = 300.0


class Chords(NamedTuple):
    """A linear function of the activations.

    :ivar np.ndarray slopes: Shape ``(J,)``.
    :ivar np.ndarray start: Activations, shape ``(J,)``.
    :ivar float base: The function's value there.
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

    :param np.ndarray low: Shape ``(J,)``.
    :param np.ndarray high: At least that.
    :param np.ndarray near: Activations.
    :param str scheme: ``"sum"`` or ``"min"``.
    :param float temperature: Temperature, at least 0.
    """
    if scheme == "sum":
        ends = rectified(np.stack([low, high]), temperature)
        return Chords(_slopes(ends[1] - ends[0], low, high), low, float(ends[0].sum()))
    inside = near.clip(low, high)
    alone = np.eye(len(low), dtype=bool)
    lowest, highest = float(_largest(low, temperature)), float(_largest(high, temperature))
    found = [
        Chords(_slopes(_largest(np.where(alone, high, low), temperature) - lowest, low, high), low, lowest),
        Chords(_slopes(highest - _largest(np.where(alone, low, high), temperature), low, high), high, highest),
    ]
    if temperature > 0 and (high.max() - inside.max()) / temperature < LARGEST_LOGARITHM:
        peak = inside.max()
        ends = np.exp((np.stack([low, high]) - peak) / temperature)
        total = float(np.exp((inside - peak) / temperature).sum())
        base = temperature * (math.log(total) + float(ends[0].sum()) / total - 1) + peak
        found.append(Chords(_slopes(temperature * (ends[1] - ends[0]) / total, low, high), low, float(base)))
    return min(found, key=lambda chords: chords.at(inside))


def potential_of(activations: np.ndarray, scheme: str, temperature: float) -> float:
    """The potential itself."""
    if scheme == "sum":
        return float(rectified(activations, temperature).sum())
    return float(_largest(activations, temperature))


def _slopes(gains: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(gains, high - low, out=np.zeros_like(gains), where=high > low))


def choose_split(
    chords: Chords, activations: np.ndarray, low: np.ndarray, high: np.ndarray, scheme: str, temperature: float
) -> tuple[int, float] | None:
    """A range, and where to split it, so that the bound falls at some activations; ``None`` if nothing is left.

    :param np.ndarray activations: Shape ``(J,)``, not all of them in their ranges.
    """
    inside = (low < activations) & (activations < high)
    if scheme == "sum":
        gap = chords.slopes * (activations - low) + rectified(low, temperature) - rectified(activations, temperature)
        chosen = int(np.where(inside, gap, -np.inf).argmax())
        return (chosen, float(activations[chosen])) if inside[chosen] and gap[chosen] > 0 else None
    # Where no activation is inside, the bound falls with the ranges.
    size = chords.slopes * (high - low)
    chosen = int(np.where(inside, size, -np.inf).argmax() if inside.any() else size.argmax())
    end = float(activations[chosen] if inside[chosen] else (low[chosen] + high[chosen]) / 2)
    return (chosen, end) if low[chosen] < end < high[chosen] else None


def rectified(activations: np.ndarray, temperature: float) -> np.ndarray:
    """The potentials of single patterns."""
    if temperature == 0:
        return activations.clip(min=0)
    return np.asarray(activations.clip(min=0) + temperature * np.log1p(np.exp(-np.abs(activations) / temperature)))


def rectified_slopes(activations: np.ndarray, temperature: float) -> np.ndarray:
    """Their derivatives; at temperature 0 and activation 0, one of them."""
    if temperature == 0:
        return np.asarray(np.heaviside(activations, 0.5))
    return np.asarray(0.5 * (1 + np.tanh(activations / (2 * temperature))))


def _largest(activations: np.ndarray, temperature: float) -> np.ndarray:
    if temperature == 0:
        return np.asarray(activations.max(-1))
    return np.asarray(temperature * np.logaddexp.reduce(activations / temperature, axis=-1))
