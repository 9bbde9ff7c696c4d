"""What labelings of fields under patterns are worth, and how cuts look at it."""

__all__ = ["MapResult", "PatternObjective"]

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Potential = Callable[[Tensor, Tensor | str, float], Tensor]


class MapResult(NamedTuple):
    """Labelings, one in each row, and what is known of them.

    :ivar Tensor labels: Zeros and ones, shape ``(rows, D)``.
    :ivar Tensor upper_bound: No labeling of the field is worth more, shape ``(rows,)``; +inf if there is no bound.
    :ivar Tensor num_cuts: Minimum cuts that it took, shape ``(rows,)``.
    """

    labels: Tensor
    upper_bound: Tensor
    num_cuts: Tensor


class PatternObjective(NamedTuple):
    """Rows of fields, in double precision on the processor; tensors with one row serve all.

    :ivar Tensor odds: What label 1 is worth more than label 0, infinite where a label is certain, shape ``(rows, D)``.
    :ivar Tensor base: What everything is worth in any case, shape ``(rows,)``.
    :ivar Tensor penalties: Of pairs that differ, shape ``(rows, E)``.
    :ivar Tensor weights: Of patterns, shape ``(rows, J, D)``.
    :ivar Tensor biases: Of patterns, shape ``(rows, J)``.
    :ivar composition: ``"sum"``, ``"min"`` or a table of shape ``(rows, J + 1)``.
    :ivar float temperature: T.
    :ivar np.ndarray edges: Pairs of pixels, shape ``(E, 2)``.
    :ivar potential: Convex in the activations; takes them, of shape ``(rows, J)``, the composition and T.
    :ivar slopes: Its derivatives.
    """

    odds: Tensor
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
        return len(self.odds)

    def row(self, index: int) -> "PatternObjective":
        """One of them."""
        return self.rows(torch.tensor([index]))

    def rows(self, index: Tensor) -> "PatternObjective":
        """Some of them, which may come several times."""

        def pick(part: Tensor) -> Tensor:
            return part[index if len(part) > 1 else 0 * index]

        def shared(part: Tensor) -> Tensor:
            return part if len(part) == 1 else part[index]

        return self._replace(
            odds=pick(self.odds),
            base=pick(self.base),
            penalties=shared(self.penalties),
            weights=shared(self.weights),
            biases=shared(self.biases),
            composition=self.composition if isinstance(self.composition, str) else pick(self.composition),
        )

    def field(self, labels: Tensor) -> Tensor:
        """What labels are worth without the patterns, shape ``(rows,)``; -inf for impossible ones."""
        certain = self.odds.isinf()
        wrong = (certain & (labels != (self.odds > 0))).any(-1)
        worth = (self.odds.masked_fill(certain, 0.0) * labels).sum(-1) + self.base
        ends = labels[..., torch.from_numpy(self.edges)]
        worth = worth - self.penalties.where(ends[..., 0] != ends[..., 1], 0.0).sum(-1)
        return worth.masked_fill(wrong, -torch.inf)

    def activations(self, labels: Tensor) -> Tensor:
        """What it is worth to switch hidden units on, shape ``(rows, J)``."""
        if len(self.weights) == 1:
            return labels @ self.weights[0].T + self.biases
        return (self.weights @ labels.unsqueeze(-1)).squeeze(-1) + self.biases

    def value(self, labels: Tensor) -> Tensor:
        """What labels are worth, shape ``(rows,)``."""
        return self.field(labels) + self.potential(self.activations(labels), self.composition, self.temperature)

    def tangent(self, labels: Tensor) -> Tensor:
        """Log-odds of the field that touches the objective from below at some labels, shape ``(rows, D)``."""
        return self.tilted(self.slopes(self.activations(labels), self.composition, self.temperature))

    def tilted(self, shares: Tensor) -> Tensor:
        """Log-odds of the field in which patterns are on in some shares, whatever the labels, shape ``(rows, D)``.

        :param Tensor shares: Shape ``(rows, J)``.
        """
        if len(self.weights) == 1:
            return self.odds + shares @ self.weights[0]
        return self.odds + (shares.unsqueeze(-2) @ self.weights).squeeze(-2)
