"""Most probable labelings of fields whose neighbours prefer to be alike, by cuts."""

__all__ = ["FieldCut"]

import numpy as np

from pyro_structured.solvers.minimum_cut import CutNetwork


class FieldCut:
    r"""Maximises :math:`\sum_i \theta_i y_i - \sum_e p_e [y_{e_1} \ne y_{e_2}]` over labels, one field after the other.

    :param np.ndarray edges: Pairs of different nodes, shape ``(E, 2)``.
    :param int num_nodes: Number of nodes n.
    """

    def __init__(self, edges: np.ndarray, num_nodes: int) -> None:
        self._edges, self._network = edges, CutNetwork(edges, num_nodes)

    def maximize(self, odds: np.ndarray, penalties: np.ndarray) -> np.ndarray:
        """Labels of the largest value, booleans of shape ``(N, n)``.

        :param np.ndarray odds: What label 1 is worth more than label 0, shape ``(N, n)``; infinite where the label is
            certain.
        :param np.ndarray penalties: At least 0, shape ``(N, E)`` or ``(1, E)``; +inf where labels have to be alike.
        """
        penalties = np.broadcast_to(penalties, (len(odds), len(self._edges)))
        labels = np.empty(odds.shape, dtype=bool)
        for row, (theta, penalty) in enumerate(zip(odds, penalties, strict=True)):
            labels[row] = self._network.solve(-_finite(theta, penalty, theta), _finite(theta, penalty, penalty))
        return labels


def _finite(odds: np.ndarray, penalties: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """With a number in place of infinity that all finite ones together do not outweigh."""
    if np.isfinite(numbers).all():
        return numbers
    total = sum(float(np.abs(part[np.isfinite(part)]).sum()) for part in (odds, penalties))
    bounded: np.ndarray = np.clip(numbers, -2 * total - 1, 2 * total + 1)
    return bounded
