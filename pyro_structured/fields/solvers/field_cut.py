"""Most probable labelings of fields, by cuts."""

__all__ = ["Ascent", "FieldCut", "MapResult"]

from typing import NamedTuple

import numpy as np
from torch import Tensor

from pyro_structured.fields.solvers.signed_graph import balancing_flips
from pyro_structured.optima.solvers.minimum_cut import CutNetwork

# Number of steps in which margins are carried from node to node.
ROUNDS = 4


class MapResult(NamedTuple):
    """Labelings, one in each row, with bounds.

    :ivar Tensor labels: Integers, shape ``(rows, D)``; zeros and ones in double precision.
    :ivar Tensor upper_bound: Upper bound of the log-weights of all labelings of the field, shape ``(rows,)``; +inf if
        there is no bound.
    :ivar Tensor num_cuts: Number of minimum cuts, shape ``(rows,)``.
    """

    labels: Tensor
    upper_bound: Tensor
    num_cuts: Tensor


class Ascent(NamedTuple):
    """Labelings at which a search has ended, one in each row.

    :ivar Tensor labels: As of :class:`MapResult`.
    :ivar Tensor values: Their log-weights, shape ``(rows,)``.
    :ivar Tensor num_cuts: Number of minimum cuts, shape ``(rows,)``.
    """

    labels: Tensor
    values: Tensor
    num_cuts: Tensor


class FieldCut:
    r"""Maximises :math:`\sum_i \theta_i y_i - \sum_e p_e [y_{e_1} \ne y_{e_2}]` over labels, one field after the other.

    :param np.ndarray edges: Pairs of different nodes, shape ``(E, 2)``.
    :param int num_nodes: Number of nodes n.
    """

    def __init__(self, edges: np.ndarray, num_nodes: int) -> None:
        self._edges, self._number, self._network = edges, num_nodes, CutNetwork(edges, num_nodes)
        self._flips: dict[bytes, np.ndarray] = {}

    def maximize(self, odds: np.ndarray, penalties: np.ndarray) -> np.ndarray:
        r"""Labels of the largest value, booleans of shape ``(N, n)``.

        :param np.ndarray odds: Log-odds :math:`\theta` of label 1, shape ``(N, n)``; infinite where the label is
            certain.
        :param np.ndarray penalties: Shape ``(N, E)`` or ``(1, E)``; +inf where labels have to be alike; negative ones
            only where some labels can be exchanged so that all are positive.
        :raises Unbalanced: if no such exchange exists.
        """
        penalties = np.broadcast_to(penalties, (len(odds), len(self._edges)))
        labels = np.empty(odds.shape, dtype=bool)
        for row, (theta, penalty) in enumerate(zip(odds, penalties, strict=True)):
            flips = self._balance(penalty)
            if flips is not None:
                theta, penalty = np.where(flips, -theta, theta), np.abs(penalty)
            solution = self._network.solve(-_finite(theta, penalty, theta), _finite(theta, penalty, penalty))
            labels[row] = solution if flips is None else solution ^ flips
            self._found = solution
        return labels

    def margins(self) -> np.ndarray:
        """Margins of the nodes, shape ``(n,)``: lower bounds of the loss in value where a label of the last row
        changes.
        """
        nodes, edges = self._network.residuals()
        tails, heads = self._edges.T
        losses = []
        for alone, (forth, back) in ((nodes[0], edges), (nodes[1], edges[::-1])):
            # A neighbour has the same label, or is on the other end of an edge that is cut.
            loss = alone.copy()
            np.add.at(loss, heads, np.minimum(forth, alone[tails]))
            np.add.at(loss, tails, np.minimum(back, alone[heads]))
            for _ in range(ROUNDS):
                before = loss.copy()
                np.maximum.at(loss, heads, np.minimum(forth, before[tails]))
                np.maximum.at(loss, tails, np.minimum(back, before[heads]))
            losses.append(loss)
        return np.asarray(np.where(self._found, losses[1], losses[0]))

    def _balance(self, penalties: np.ndarray) -> np.ndarray | None:
        """Labels to exchange, booleans of shape ``(n,)``, or ``None`` if no penalty is negative."""
        if (penalties >= 0).all():
            return None
        key = np.sign(penalties).tobytes()
        if key not in self._flips:
            self._flips[key] = balancing_flips(self._number, self._edges, penalties)
        return self._flips[key]


def _finite(odds: np.ndarray, penalties: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Numbers with infinities replaced by a finite one that all other numbers together do not outweigh."""
    if np.isfinite(numbers).all():
        return numbers
    total = sum(float(np.abs(values[np.isfinite(values)]).sum()) for values in (odds, penalties))
    bounded: np.ndarray = np.clip(numbers, -2 * total - 1, 2 * total + 1)
    return bounded
