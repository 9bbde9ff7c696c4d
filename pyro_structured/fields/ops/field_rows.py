"""Binary fields under patterns, one in each row."""

__all__ = ["FieldRows"]

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.pattern_potential import pattern_potential


class FieldRows(NamedTuple):
    r"""Log-weights of labelings of D pixels, in double precision; tensors with one row serve all.

    .. math::
        \sum_i s_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j] + f_T(W y + c).

    :ivar Tensor states: Log-weights of 0 of all pixels and then those of 1, shape ``(rows, 2 D)``; -inf excludes.
    :ivar Tensor penalties: p, in the order of ``edges``, shape ``(rows, E)``; without columns if there are none.
    :ivar Tensor edges: Pairs of pixels, in the order of ``structures.Grid``, shape ``(E, 2)``.
    :ivar tuple shape: Height and width, whose product is D.
    :ivar Tensor weights: W, shape ``(rows, J, D)``.
    :ivar Tensor biases: c, less than +inf, shape ``(rows, J)``.
    :ivar composition: ``"sum"``, ``"min"`` or a table of shape ``(rows, J + 1)``, as for :func:`pattern_potential`.
    :ivar float temperature: T, at least 0.
    """

    states: Tensor
    penalties: Tensor
    edges: Tensor
    shape: tuple[int, int]
    weights: Tensor
    biases: Tensor
    composition: Tensor | str
    temperature: float

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        table = [] if isinstance(self.composition, str) else [self.composition]
        parts = (self.states, self.penalties, self.weights, self.biases, *table)
        lengths = [len(part) for part in parts]
        return max(lengths) if all(lengths) else 0

    @property
    def num_patterns(self) -> int:
        """J."""
        return self.biases.shape[-1]

    @property
    def paired(self) -> bool:
        """Whether there are penalties."""
        return self.penalties.shape[-1] > 0

    def detach(self) -> "FieldRows":
        """Apart from the graph of automatic differentiation."""
        return self._changed(Tensor.detach)

    def repeat(self, number: int) -> "FieldRows":
        """Every row that many times, one copy after the other."""

        def copies(part: Tensor) -> Tensor:
            return part if len(part) == 1 else part.repeat_interleave(number, 0)

        states = self.states.expand(self.num_rows, -1).repeat_interleave(number, 0)
        return self._changed(copies)._replace(states=states)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "FieldRows":
        """All tensors with rows replaced."""
        return self._replace(
            states=change(self.states),
            penalties=change(self.penalties),
            weights=change(self.weights),
            biases=change(self.biases),
            composition=self.composition if isinstance(self.composition, str) else change(self.composition),
        )

    def activations(self, values: Tensor) -> Tensor:
        """What it is worth to switch hidden units on, shape ``(..., rows, J)``.

        :param Tensor values: Labels, or shares of them, shape ``(..., rows, D)``.
        """
        if len(self.weights) == 1:
            return values @ self.weights[0].T + self.biases
        return (self.weights @ values.unsqueeze(-1)).squeeze(-1) + self.biases

    def tilt(self, slopes: Tensor) -> Tensor:
        """Log-odds that hidden units lend to the pixels, shape ``(..., rows, D)``.

        :param Tensor slopes: How far each hidden unit is on, shape ``(..., rows, J)``.
        """
        if len(self.weights) == 1:
            return slopes @ self.weights[0]
        return (slopes.unsqueeze(-2) @ self.weights).squeeze(-2)

    def differing(self, values: Tensor) -> Tensor:
        """Probabilities that independent neighbours differ, shape ``(..., rows, E)``.

        :param Tensor values: Probabilities of 1, shape ``(..., rows, D)``.
        """
        one, other = values[..., self.edges[:, 0]], values[..., self.edges[:, 1]]
        return one + other - 2 * one * other

    def potential(self, activations: Tensor) -> Tensor:
        """What the patterns add, shape ``(..., rows)``."""
        if not self.num_patterns and isinstance(self.composition, str):
            return activations.new_zeros(activations.shape[:-1])
        return pattern_potential(activations, self.composition, self.temperature)

    def plain(self) -> "FieldRows":
        """For each of the patterns, the field that has it always on and no other pattern, one after the other in each
        row.
        """
        rows, number = self.num_rows, self.num_patterns
        tilts = torch.nn.functional.pad(self.weights, (self.weights.shape[-1], 0))
        states = (self.states.unsqueeze(1) + tilts).expand(rows, number, -1).flatten(0, 1)
        penalties = self.penalties if len(self.penalties) == 1 else self.penalties.repeat_interleave(number, 0)
        return self._replace(
            states=states,
            penalties=penalties,
            weights=states.new_zeros(1, 0, self.weights.shape[-1]),
            biases=states.new_zeros(1, 0),
            composition="sum",
        )
