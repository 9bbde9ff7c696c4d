"""Best labelings of fields with a single pattern, exactly."""

__all__ = ["maximize_pixels_with_pattern", "maximize_with_pattern"]

from collections.abc import Callable

import numpy as np

from pyro_structured.fields.solvers.potential_chords import rectified

# Line crossings that are looked at, if weights have both signs.
MOST_CROSSINGS = 10_000


def maximize_pixels_with_pattern(odds: np.ndarray, weights: np.ndarray, bias: float, temperature: float) -> np.ndarray:
    r"""Maximises :math:`\delta^\top y + \phi(c + w^\top y)` for :math:`\phi(x) = T \log(1 + e^{x/T})`.

    Labels are best for :math:`\delta + \lambda w` with some slope :math:`\lambda` between 0 and 1, and change only
    where it passes :math:`-\delta_i / w_i`; all D + 1 of them are looked at. Cost O(D log D).

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
    # Where nothing is preferred at first, the weight decides at once.
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
        """Where G is touched, its value, and its slope."""
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
