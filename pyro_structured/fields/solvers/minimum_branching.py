"""Best labelings of a field under patterns of which one is on, with a proof, or a bound: branch and bound."""

__all__ = ["MinimumSearch", "branch_and_bound"]

import heapq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.solvers.field_cut import FieldCut, MapResult
from pyro_structured.fields.solvers.joint_cut import rounding
from pyro_structured.fields.solvers.potential_chords import choose_split, potential_chords, potential_of
from pyro_structured.fields.solvers.sum_branching import SumSearch


class _Node(NamedTuple):
    """A node of the search: ranges of all activations, and an upper bound of the value of labels in these ranges.

    :ivar float bound: Minus the upper bound, so that a heap gives the node with the largest one first.
    :ivar int place: Number of the node, which breaks ties.
    :ivar np.ndarray low: Lower ends of the ranges, shape ``(J,)``.
    :ivar np.ndarray high: Upper ends of the ranges, shape ``(J,)``.
    :ivar np.ndarray activations: Activations of the labels at which the bound is reached, shape ``(J,)``.
    :ivar split: A pattern, and the activation at which its range is split; ``None`` if no labels in the ranges are
        better than those that were found.
    """

    bound: float
    place: int
    low: np.ndarray
    high: np.ndarray
    activations: np.ndarray
    split: tuple[int, float] | None


class MinimumSearch:
    """Branch and bound for one field.

    Each activation lies in a range; a linear function of the activations that is above the potential in these ranges
    gives a bound, and labels, by one cut. The range that contributes most to the bound is split at the labels'
    activation. Ranges of several activations have to become small together, which may take very many cuts.

    :param Field field: One row of zeros and ones, ``"min"``, on the processor.
    :param FieldCut network: Network of the field's edges.
    :param np.ndarray labels: Good labels to begin with, shape ``(D,)``.
    :ivar np.ndarray best: The best labels so far, shape ``(D,)``.
    :ivar float worth: Value of the best labels.
    :ivar int num_cuts: Number of cuts so far.
    """

    def __init__(self, field: Field, network: FieldCut, labels: np.ndarray) -> None:
        self._network, self._edges = network, field.edges.numpy()
        self._odds, self._penalties = field.odds.numpy(), field.penalties.numpy()
        # Pixels whose label is certain have no log-odds of their own.
        self._finite, self._base = np.where(np.isinf(self._odds[0]), 0.0, self._odds[0]), float(field.odds_base[0])
        # A pattern that is never on does not matter.
        used = field.biases[0].isfinite()
        self._weights, self._biases = field.weights[0, used].numpy(), field.biases[0, used].numpy()
        self._kind = str(field.composition), field.temperature
        self.best, self.num_cuts = labels, 0
        self.worth = self._field(labels > 0) + potential_of(self._activations(labels), *self._kind)

    def run(self, max_cuts: int) -> float:
        """Searches the node with the largest bound first, and returns the largest bound that is left."""
        low, high = self._ranges()
        waiting = [self._node(low, high, self._activations(self.best))]
        while waiting and self._promising(waiting[0]) and self.num_cuts < max_cuts:
            for child in self._halves(heapq.heappop(waiting)):
                if self._promising(child):
                    heapq.heappush(waiting, child)
        return max(self.worth, -waiting[0].bound) if waiting and self._promising(waiting[0]) else self.worth

    def _promising(self, node: _Node) -> bool:
        return node.split is not None and -node.bound > self.worth + 1e-12 * (1 + abs(self.worth))

    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Ranges of the activations over all possible labels, two arrays of shape ``(J,)``."""
        odds = self._odds[0]
        always = self._biases + self._weights[:, np.isposinf(odds)].sum(1)
        free = self._weights[:, np.isfinite(odds)]
        return always + free.clip(max=0).sum(1), always + free.clip(min=0).sum(1)

    def _activations(self, labels: np.ndarray) -> np.ndarray:
        return np.asarray(self._weights @ labels + self._biases)

    def _field(self, labels: np.ndarray) -> float:
        """Value of possible labels without the patterns."""
        cut = labels[self._edges[:, 0]] != labels[self._edges[:, 1]]
        return self._base + float(self._finite @ labels) - float(self._penalties[0][cut].sum())

    def _node(self, low: np.ndarray, high: np.ndarray, near: np.ndarray) -> _Node:
        """Node of some ranges, by a linear bound that is low at ``near``; keeps labels if they are the best so far."""
        chords = potential_chords(low, high, near, *self._kind)
        labels = self._network.maximize(self._odds + chords.slopes @ self._weights, self._penalties)[0]
        self.num_cuts += 1
        activations, field = self._activations(labels), self._field(labels)
        bound, value = field + chords.at(activations), field + potential_of(activations, *self._kind)
        if value > self.worth:
            self.best, self.worth = labels, value
        split = choose_split(chords, activations, low, high, *self._kind) if bound > value else None
        return _Node(-bound, self.num_cuts, low, high, activations, split)

    def _halves(self, node: _Node) -> list[_Node]:
        assert node.split is not None
        chosen, end = node.split
        low, high = node.low.copy(), node.high.copy()
        low[chosen] = high[chosen] = end
        return [self._node(node.low, high, node.activations), self._node(low, node.high, node.activations)]


def branch_and_bound(field: Field, labels: Tensor, max_cuts: int) -> MapResult:
    """Maximises over labels by branch and bound, exactly unless it runs out of cuts.

    :param Field field: A field of zeros and ones, on the processor; no table.
    :param Tensor labels: Good labels to begin with, shape ``(rows, D)``.
    :param int max_cuts: The largest number of cuts for each row; one more may be taken.
    :return: The best labels that are found, and a bound, which is their value, up to rounding, if they are the best.
    """
    network = FieldCut(field.edges.numpy(), labels.shape[-1])
    kind = SumSearch if field.composition == "sum" else MinimumSearch
    best, bounds = labels.clone(), torch.empty(len(labels), dtype=torch.double)
    cuts = torch.zeros(len(labels), dtype=torch.long)
    for index in range(len(labels)):
        search = kind(field.rows(torch.tensor([index])), network, labels[index].numpy())
        bounds[index] = search.run(max_cuts)
        best[index], cuts[index] = torch.from_numpy(search.best), search.num_cuts
    return MapResult(best, bounds + rounding(field), cuts)
