"""What labelings with several labels under patterns are worth."""

__all__ = ["LabelObjective", "LabelResult"]

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Potential = Callable[[Tensor, Tensor | str, float], Tensor]


class LabelResult(NamedTuple):
    """Labelings, one in each row, and what it took to find them.

    :ivar Tensor labels: Integers below K, shape ``(rows, D)``.
    :ivar Tensor num_cuts: Minimum cuts, shape ``(rows,)``.
    """

    labels: Tensor
    num_cuts: Tensor


class LabelObjective(NamedTuple):
    """Rows of fields, in double precision on the processor; tensors with one row serve all but for the states.

    :ivar Tensor states: Log-weights of the labels, -inf where one is impossible, shape ``(rows, K, D)``.
    :ivar Tensor base: What everything is worth in any case, shape ``(rows,)``.
    :ivar Tensor penalties: Of pairs that differ, at least 0, shape ``(rows, E)``.
    :ivar Tensor weights: Of patterns for the labels, those of label 0 of all pixels first, shape ``(rows, J, K D)``.
    :ivar Tensor biases: Of patterns, shape ``(rows, J)``.
    :ivar composition: ``"sum"``, ``"min"`` or a table of shape ``(rows, J + 1)``.
    :ivar float temperature: T.
    :ivar np.ndarray edges: Pairs of pixels, shape ``(E, 2)``.
    :ivar potential: Convex in the activations; takes them, of shape ``(rows, J)``, the composition and T.
    :ivar slopes: Its derivatives.
    """

    states: Tensor
    base: Tensor
    penalties: Tensor
    weights: Tensor
    biases: Tensor
    composition: Tensor | str
    temperature: float
    edges: np.ndarray
    potential: Potential
    slopes: Potential

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.states)

    @property
    def num_labels(self) -> int:
        """K."""
        return self.states.shape[1]

    def rows(self, index: Tensor) -> "LabelObjective":
        """Some of them, which may come several times."""

        def pick(part: Tensor) -> Tensor:
            return part[index if len(part) > 1 else 0 * index]

        return self._replace(
            states=pick(self.states),
            base=pick(self.base),
            penalties=pick(self.penalties),
            weights=self.weights if len(self.weights) == 1 else self.weights[index],
            biases=pick(self.biases),
            composition=self.composition if isinstance(self.composition, str) else pick(self.composition),
        )

    def tilted(self, shares: Tensor) -> "LabelObjective":
        """The fields in which patterns are on in some shares, whatever the labels.

        :param Tensor shares: Shape ``(rows, J)``.
        """
        one = len(self.weights) == 1
        tilts = shares @ self.weights[0] if one else (shares.unsqueeze(-2) @ self.weights).squeeze(-2)
        return self._replace(
            states=self.states + tilts.reshape(self.states.shape),
            weights=self.weights[:, :0],
            biases=self.biases[:, :0],
            composition="sum",
        )

    def field(self, labels: Tensor) -> Tensor:
        """What labels are worth without the patterns, shape ``(rows,)``; -inf for impossible ones."""
        worth = self.states.gather(1, labels.unsqueeze(1)).squeeze(1).sum(-1) + self.base
        ends = labels[:, torch.from_numpy(self.edges)]
        return worth - self.penalties.where(ends[..., 0] != ends[..., 1], 0.0).sum(-1)

    def activations(self, labels: Tensor) -> Tensor:
        """What it is worth to switch hidden units on, shape ``(rows, J)``."""
        chosen = torch.zeros_like(self.states).scatter_(1, labels.unsqueeze(1), 1.0).flatten(1)
        if len(self.weights) == 1:
            return chosen @ self.weights[0].T + self.biases
        return (self.weights @ chosen.unsqueeze(-1)).squeeze(-1) + self.biases

    def value(self, labels: Tensor) -> Tensor:
        """What labels are worth, shape ``(rows,)``."""
        worth = self.field(labels)
        if not self.biases.shape[-1] and isinstance(self.composition, str):
            return worth
        return worth + self.potential(self.activations(labels), self.composition, self.temperature)

    def tangent(self, labels: Tensor) -> Tensor:
        """Log-weights of the labels in the field that touches the objective from below at some labels, shape ``(rows,
        K, D)``.
        """
        if not self.biases.shape[-1]:
            return self.states
        return self.tilted(self.slopes(self.activations(labels), self.composition, self.temperature)).states
