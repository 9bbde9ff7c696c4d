"""Fields of labels under patterns, one in each row: the description that all algorithms take."""

__all__ = ["Field", "UpperUnits", "binary_states", "edges_of"]

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.deep_pattern_potential import (
    deep_pattern_potential,
    deep_pattern_slopes,
    number_of_deep_states,
)
from pyro_structured.fields.ops.pattern_potential import pattern_potential, pattern_slopes
from pyro_structured.foundation.ops.evidence import log_odds

# States of the smaller layer of hidden units that are enumerated for a single labelling.
MOST_STATES = 2**16


class UpperUnits(NamedTuple):
    """A second layer of hidden units, over those of the patterns.

    :ivar Tensor weights: Weights V for the patterns, finite, shape ``(rows, U, J)``.
    :ivar Tensor logits: Biases d, less than +inf, shape ``(rows, U)``.
    """

    weights: Tensor
    logits: Tensor


class Field(NamedTuple):
    r"""Log-weights of the labelings y of D pixels with K labels, in double precision; a tensor with one row serves all.

    .. math::
        b + \sum_i s_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j] + f(W x(y) + c).

    The indicators x(y) say which pixels have each of the last n labels: n is 1 for zeros and ones, where x(y) = y, or
    K. The function f is :func:`pattern_potential` of the composition at temperature T; with a second layer of hidden
    units it is :func:`deep_pattern_potential`, less what that layer adds where no pattern is on.

    :ivar Tensor states: Log-weights s of label 0 of all pixels, then those of 1, and so on, shape ``(rows, K D)``; -inf
        excludes a label.
    :ivar Tensor base: The constant b, shape ``(rows,)``.
    :ivar Tensor penalties: p, in the order of ``structures.Grid``, shape ``(rows, E)``; without columns if there are
        none.
    :ivar tuple shape: Height and width of the grid, whose product is D.
    :ivar Tensor weights: W, for label K - n of all pixels, then the next one, and so on, shape ``(rows, J, n D)``.
    :ivar Tensor biases: c, less than +inf, shape ``(rows, J)``.
    :ivar composition: ``"sum"``, ``"min"`` or a table of shape ``(rows, J + 1)``, as for :func:`pattern_potential`.
    :ivar float temperature: T, at least 0.
    :ivar UpperUnits upper: The second layer of hidden units, or ``None``; with it, the composition is ``"sum"`` and T
        is 1.

    Example, two pixels that prefer to be alike, and a pattern of two ones::

        >>> states, penalties = torch.zeros(1, 4).double(), torch.ones(1, 1).double()
        >>> weights, biases = torch.ones(1, 1, 2).double(), torch.tensor([[-2.0]]).double()
        >>> field = Field(states, torch.zeros(1).double(), penalties, (1, 2), weights, biases, "sum", 0.0)
        >>> field.log_weight(torch.tensor([[[0.0, 1.0]], [[1.0, 1.0]]])).squeeze(-1).tolist()
        [-1.0, 0.0]
    """

    states: Tensor
    base: Tensor
    penalties: Tensor
    shape: tuple[int, int]
    weights: Tensor
    biases: Tensor
    composition: Tensor | str
    temperature: float
    upper: UpperUnits | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        lengths = [len(tensor) for tensor in self._tensors]
        return max(lengths) if all(lengths) else 0

    @property
    def is_repeated(self) -> bool:
        """Whether all rows are the same, because one row stands for them."""
        return all(len(tensor) == 1 or tensor.stride(0) == 0 for tensor in self._tensors)

    @property
    def num_pixels(self) -> int:
        """Number of pixels, D."""
        return self.shape[0] * self.shape[1]

    @property
    def num_labels(self) -> int:
        """Number of labels, K."""
        return self.states.shape[-1] // self.num_pixels

    @property
    def num_patterns(self) -> int:
        """Number of patterns, J."""
        return self.biases.shape[-1]

    @property
    def is_paired(self) -> bool:
        """Whether there are penalties."""
        return self.penalties.shape[-1] > 0

    @property
    def is_binary(self) -> bool:
        """Whether labels are zeros and ones that patterns weigh as they are, n = 1."""
        return self.num_labels == 2 and self.weights.shape[-1] == self.num_pixels

    @property
    def edges(self) -> Tensor:
        """Pairs of pixels that have penalties, shape ``(E, 2)``."""
        return edges_of(self.shape, self.states.device)[: self.penalties.shape[-1]]

    @property
    def label_states(self) -> Tensor:
        """Log-weights of the labels, shape ``(rows, K, D)``."""
        states: Tensor = self.states.unflatten(-1, (self.num_labels, self.num_pixels))
        return states

    @property
    def odds(self) -> Tensor:
        """Log-odds of label 1 of two labels, infinite where the label is known, shape ``(rows, D)``."""
        return log_odds(*self.states.chunk(2, -1))

    @property
    def odds_base(self) -> Tensor:
        """Constant to add to log-weights from finite :attr:`odds`, shape ``(rows,)``: the base and the log-weights of
        labels 0, or 1 where 1 is known.
        """
        off, on = self.states.chunk(2, -1)
        return self.base + torch.where(off == -torch.inf, on, off).sum(-1)

    @property
    def upper_base(self) -> Tensor:
        """Log-weight of the upper units where no pattern is on, shape ``(rows,)``; zeros without upper units."""
        if self.upper is None:
            return torch.zeros_like(self.base)
        return pattern_potential(self.upper.logits, "sum", 1.0)

    @property
    def _tensors(self) -> list[Tensor]:
        table = [] if isinstance(self.composition, str) else [self.composition]
        return [self.states, self.base, self.penalties, self.weights, self.biases, *table, *(self.upper or ())]

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Field":
        """Field with a function applied to all its tensors."""
        return self._replace(
            states=function(self.states),
            base=function(self.base),
            penalties=function(self.penalties),
            weights=function(self.weights),
            biases=function(self.biases),
            composition=self.composition if isinstance(self.composition, str) else function(self.composition),
            upper=None if self.upper is None else UpperUnits(*map(function, self.upper)),
        )

    def detach(self) -> "Field":
        """Field detached from the graph of automatic differentiation."""
        return self.map_tensors(Tensor.detach)

    def repeat(self, number: int) -> "Field":
        """Field with every row repeated, the copies of a row side by side."""
        return self.rows(torch.arange(self.num_rows, device=self.states.device).repeat_interleave(number))

    def rows(self, index: Tensor) -> "Field":
        """Field of some rows, possibly repeated; its states have a row for each of them.

        :param Tensor index: Numbers of rows, shape ``(new rows,)``.
        """

        def choose(tensor: Tensor) -> Tensor:
            return tensor[:1] if len(tensor) == 1 or tensor.stride(0) == 0 else tensor[index]

        chosen = self.map_tensors(choose)
        return chosen._replace(states=chosen.states.expand(len(index), -1))

    def binary(self) -> "Field":
        """Binary field equal to this field of two labels; patterns weigh label 1 by the difference of both weights."""
        if self.is_binary:
            return self
        off, on = self.weights.chunk(2, -1)
        return self._replace(weights=on - off, biases=self.biases + off.sum(-1))

    def indicators(self, labels: Tensor) -> Tensor:
        """Indicators x(y) of the last n labels, in the dtype of the states, shape ``(..., n D)``.

        :param Tensor labels: Shape ``(..., D)``.
        """
        if self.is_binary:
            return labels.to(self.states.dtype)
        return torch.cat([labels == label for label in range(self.num_labels)], -1).to(self.states.dtype)

    def activations(self, indicators: Tensor) -> Tensor:
        """Log-odds of the hidden units, shape ``(..., rows, J)``.

        :param Tensor indicators: Indicators of labels, or their means, shape ``(..., rows, n D)``.
        """
        if len(self.weights) == 1:
            return indicators @ self.weights[0].T + self.biases
        if indicators.dim() == 2:
            return (self.weights @ indicators.unsqueeze(-1)).squeeze(-1) + self.biases
        # A product of matrices, in which one row of labels that stands for all is not repeated.
        return torch.einsum("...rd,rjd->...rj", indicators, self.weights) + self.biases

    def tilt(self, shares: Tensor) -> Tensor:
        """Log-weights that hidden units lend to the last n labels of the pixels, shape ``(..., rows, n D)``.

        :param Tensor shares: Means of the hidden units, from 0 to 1, shape ``(..., rows, J)``.
        """
        if len(self.weights) == 1:
            return shares @ self.weights[0]
        return (shares.unsqueeze(-2) @ self.weights).squeeze(-2)

    def with_tilt(self, tilt: Tensor) -> "Field":
        """Field with log-weights added to those of the last n labels.

        :param Tensor tilt: Shape ``(rows, n D)``.
        """
        others = self.states.shape[-1] - tilt.shape[-1]
        before, after = self.states[..., :others], self.states[..., others:] + tilt
        return self._replace(states=torch.cat([before.expand(*after.shape[:-1], -1), after], -1))

    def without_patterns(self) -> "Field":
        """Field of labels and penalties alone."""
        return self._replace(
            weights=self.weights[:, :0], biases=self.biases[:, :0], composition="sum", temperature=1.0, upper=None
        )

    def tangent(self, labels: Tensor) -> "Field":
        """The field without patterns that touches this one from below at some labels, but for a constant.

        :param Tensor labels: Shape ``(rows, D)``.
        """
        slopes = self.slopes(self.activations(self.indicators(labels)))
        return self.with_tilt(self.tilt(slopes)).without_patterns()

    def plain(self) -> "Field":
        """Fields without patterns, J of them for each row, side by side: the j-th has pattern j's weights in its
        states.
        """
        rows, number = self.num_rows, self.num_patterns
        every = self.without_patterns().repeat(number)
        return every.with_tilt(self.weights.expand(rows, -1, -1).flatten(0, 1))

    def differing(self, means: Tensor) -> Tensor:
        """Probabilities that neighbours differ where pixels are independent, shape ``(..., rows, E)``.

        :param Tensor means: Means of the indicators, shape ``(..., rows, n D)``: probabilities of 1, or of all labels.
        """
        if self.is_binary:
            first, second = means[..., self.edges[:, 0]], means[..., self.edges[:, 1]]
            return first + second - 2 * first * second
        by_label: Tensor = means.unflatten(-1, (self.num_labels, self.num_pixels))
        return 1 - (by_label[..., self.edges[:, 0]] * by_label[..., self.edges[:, 1]]).sum(-2)

    def potential(self, activations: Tensor, num_axes: int = 0) -> Tensor:
        """Log-weight that the patterns add, shape ``(..., rows)``.

        :param Tensor activations: Shape ``(..., rows, J)``, or with ``num_axes`` further axes before the last one.
        :param int num_axes: Number of axes between the axis of rows and the last one.
        :raises NotImplementedError: if both layers of hidden units have too many states.
        """
        if self.upper is not None:
            upper = self._upper_for(num_axes)
            base = self.upper_base.reshape(len(self.upper.logits), *(1,) * num_axes)
            return deep_pattern_potential(activations, *upper) - base
        if not self.num_patterns and isinstance(self.composition, str):
            return activations.new_zeros(activations.shape[:-1])
        return pattern_potential(activations, self._composition_for(num_axes), self.temperature)

    def slopes(self, activations: Tensor, num_axes: int = 0) -> Tensor:
        """Means of the hidden units, from 0 to 1: derivatives of :meth:`potential`, of the shape of its argument."""
        if self.upper is not None:
            return deep_pattern_slopes(activations, *self._upper_for(num_axes))
        if not self.num_patterns:
            return activations
        return pattern_slopes(activations, self._composition_for(num_axes), self.temperature)

    @property
    def sums_out_units(self) -> bool:
        """Whether the hidden units have few enough states to be summed out for a single labelling."""
        if self.upper is None:
            return True
        return number_of_deep_states(self.num_patterns, self.upper.logits.shape[-1]) <= MOST_STATES

    def check_units(self) -> None:
        """Raises a NotImplementedError where hidden units cannot be summed out for a single labelling."""
        if not self.sums_out_units:
            assert self.upper is not None
            raise NotImplementedError(
                f"hidden units: exact sums and draws given labels are limited to {MOST_STATES} states of the smaller "
                f"layer, got {self.num_patterns} patterns and {self.upper.logits.shape[-1]} upper units; "
                "log_prob_bounds, estimate_log_prob with AnnealedImportanceSampling, mean_field_logits and, if "
                "couplings are balanced, perfect_sample have no limit"
            )

    def _upper_for(self, num_axes: int) -> UpperUnits:
        self.check_units()
        assert self.upper is not None
        weights, logits = self.upper
        ones = (1,) * num_axes
        return UpperUnits(
            weights.reshape(len(weights), *ones, *weights.shape[1:]),
            logits.reshape(len(logits), *ones, *logits.shape[1:]),
        )

    def _composition_for(self, num_axes: int) -> Tensor | str:
        if isinstance(self.composition, str):
            return self.composition
        return self.composition.reshape(len(self.composition), *(1,) * num_axes, *self.composition.shape[1:])

    def label_log_weights(self, labels: Tensor) -> Tensor:
        """Log-weights of labels by themselves, shape ``(..., rows, D)``, -inf where a label is excluded.

        :param Tensor labels: Integers below K in any dtype, shape ``(..., rows, D)``.
        """
        chosen, *others = self.states.chunk(self.num_labels, -1)
        return reduce(
            lambda selected, numbered: torch.where(labels == numbered[0], numbered[1], selected),
            enumerate(others, 1),
            chosen,
        )

    def plain_log_weight(self, labels: Tensor) -> Tensor:
        """Log-weights of labelings without base and patterns, shape ``(..., rows)``; -inf for impossible ones.

        :param Tensor labels: Integers below K in any dtype, shape ``(..., rows, D)``.
        """
        total = self.label_log_weights(labels).sum(-1)
        if self.is_paired:
            rows = labels.unflatten(-1, self.shape)
            down, right = rows[..., 1:, :] != rows[..., :-1, :], rows[..., 1:] != rows[..., :-1]
            total = total - self.penalties.where(torch.cat([down.flatten(-2), right.flatten(-2)], -1), 0.0).sum(-1)
        return total

    def relative_log_weight(self, labels: Tensor) -> Tensor:
        """Log-weights of labelings without the base, next to which their digits could be lost, shape ``(..., rows)``.

        :param Tensor labels: Integers below K in any dtype, shape ``(..., rows, D)``.
        """
        total = self.plain_log_weight(labels)
        if not self.num_patterns and isinstance(self.composition, str):
            return total
        return total + self.potential(self.activations(self.indicators(labels)))

    def log_weight(self, labels: Tensor) -> Tensor:
        """Log-weights of labelings, shape ``(..., rows)``; argument as for :meth:`relative_log_weight`."""
        return self.relative_log_weight(labels) + self.base


def binary_states(odds: Tensor) -> tuple[Tensor, Tensor]:
    """Log-weights of label 0 and then 1, less the larger of both, shape ``(..., 2 D)``, and the sum of these larger
    ones, shape ``(...)``.

    :param Tensor odds: Log-odds of 1, shape ``(..., D)``; an infinite one excludes a label, and has no weight.
    """
    level = odds.detach().clamp(min=0).masked_fill(odds == torch.inf, 0.0)
    off = -level.masked_fill(odds == torch.inf, torch.inf)
    on = odds.masked_fill(odds == torch.inf, 0.0) - level
    return torch.cat([off, on], -1), level.sum(-1)


@lru_cache(maxsize=64)
def edges_of(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Pairs of neighbours in the order of ``structures.Grid``, shape ``(E, 2)``."""
    pixels = torch.arange(shape[0] * shape[1], device=device).reshape(shape)
    down, right = torch.stack([pixels[:-1], pixels[1:]], -1), torch.stack([pixels[:, :-1], pixels[:, 1:]], -1)
    return torch.cat([down.reshape(-1, 2), right.reshape(-1, 2)])
