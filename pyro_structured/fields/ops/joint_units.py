"""Replicas of the hidden units of fields, and how they are drawn given the labels."""

__all__ = ["JointUnits", "times"]

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_sampling import sample_counts
from pyro_structured.foundation.ops.draws import draw_log


@dataclass(frozen=True, kw_only=True)
class JointUnits(ABC):
    """What joint distributions of the labels of D pixels and n replicas of J hidden units have in common.

    Given labels, all replicas are independent; given hidden units, so are all pixels of one colour of the checkerboard.
    All tensors are in double precision, and an axis of length 1 is repeated.

    :ivar Tensor penalties: Of neighbours that differ, in the order of ``structures.Grid``, finite, shape ``(rows, 1,
        E)``; E = 0: none.
    :ivar Tensor weights: W of what patterns weigh, shape ``(rows, J, m)``.
    :ivar Tensor biases: c, less than +inf, shape ``(rows, 1, J)``.
    :ivar composition: ``"sum"``, ``"min"`` or the table g, shape ``(rows, 1, J + 1)``.
    :ivar int replicas: n.
    :ivar shape: Height and width of the grid.
    """

    penalties: Tensor
    weights: Tensor
    biases: Tensor
    composition: Tensor | str
    replicas: int
    shape: tuple[int, int]

    @property
    @abstractmethod
    def _single(self) -> Tensor:
        """What single pixels are worth, with rows first and pixels last."""

    @property
    def num_rows(self) -> int:
        """Number of different fields."""
        parts = [self._single, self.penalties, self.weights, self.biases]
        parts += [] if isinstance(self.composition, str) else [self.composition]
        return max(len(part) for part in parts)

    @property
    def num_pixels(self) -> int:
        """D."""
        return self._single.shape[-1]

    @property
    def num_units(self) -> int:
        """J, in each replica."""
        return self.biases.shape[-1]

    def draw_shares(self, indicators: Tensor) -> Tensor:
        """In which share of the replicas each unit is on, given the labels, shape ``(rows, chains, J)``.

        :param Tensor indicators: What patterns weigh, shape ``(rows, chains, m)``.
        """
        if not self.num_units:
            return indicators[..., :0]
        activations = self._activations(indicators)
        if isinstance(self.composition, Tensor):
            tables = (self.composition / self.replicas).expand(*activations.shape[:2], -1).flatten(0, 1)
            drawn = sample_counts(activations.flatten(0, 1), tables, self._forest, self.replicas)
            return drawn.mean(0).reshape(activations.shape)
        repeated = activations.unsqueeze(-2).expand(-1, -1, self.replicas, -1)
        if self.composition == "min":
            return torch.nn.functional.one_hot(draw_log(repeated), self.num_units).to(indicators.dtype).mean(-2)
        return _shares(activations, torch.rand_like(repeated))

    def shares_from_noise(self, indicators: Tensor, noise: Tensor) -> Tensor:
        """As :meth:`draw_shares` for ``"sum"``, from uniform numbers; a unit is on where its number is small.

        :param Tensor noise: Shape ``(rows, chains, n, J)``.
        """
        return _shares(self._activations(indicators), noise)

    def _activations(self, indicators: Tensor) -> Tensor:
        """Log-odds of the units of one replica, shape ``(rows, chains, J)``."""
        return (times(indicators, self.weights.mT) + self.biases) / self.replicas

    @cached_property
    def _forest(self) -> CountForest:
        return CountForest(self.num_units)


def _shares(activations: Tensor, noise: Tensor) -> Tensor:
    return (noise < activations.sigmoid().unsqueeze(-2)).to(activations.dtype).mean(-2)


def times(vectors: Tensor, matrices: Tensor) -> Tensor:
    """Products of row vectors, ``(rows, chains, m)``, and matrices, ``(rows, m, n)``."""
    return vectors @ (matrices[0] if len(matrices) == 1 else matrices)
