"""Bounds and approximations of partition functions of binary fields under patterns."""

__all__ = ["PatternBounds"]

import numpy as np
import torch
from torch import Tensor

from pyro_structured.fields.distributions.field_estimator import FieldEstimator
from pyro_structured.fields.distributions.pattern_weights import PatternWeights
from pyro_structured.fields.ops.bethe import bethe_log_partition
from pyro_structured.fields.ops.field_rows import FieldRows
from pyro_structured.fields.ops.grid_strips import GridStrips, grid_strips, log_partition_of_strips
from pyro_structured.fields.ops.holder_bound import holder_bound
from pyro_structured.fields.ops.mean_field import mean_field_logits
from pyro_structured.fields.ops.mean_field_bound import mean_field_bound
from pyro_structured.fields.ops.modular_bound import modular_bound
from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.fields.solvers.signed_graph import Unbalanced, balancing_flips
from pyro_structured.foundation.ops.any_true import any_true
from pyro_structured.foundation.ops.requirements import require_support

# Grids whose shorter side is not longer are summed as a whole; others in strips of so many lines.
WHOLE_SIDE, STRIP_WIDTH = 8, 5
# Numbers that a step of the bounds computes for each element of the batch, if patterns can be chosen accordingly.
NUMBERS_IN_STEP = 2**19
# As many times as that, where most patterns are sums over pixels.
STATES_FOR_SUMS = 4


class PatternBounds(PatternWeights):
    """Queries at any size, whose results are bounds or approximations."""

    def log_prob_bounds(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Two numbers between which the log-probability is, at any size; arguments and shape as for ``log_prob``.

        They are :meth:`unnormalized_log_prob` less those of :meth:`log_partition_bounds`, the larger one first, with
        the same conditions and cost; both are -inf for impossible values. Nothing is random.
        """
        if self._validate_args:
            self._validate_sample(value)
        low, high = self._log_z_bounds()
        score = self._score(value)
        return self._cast(score - high), self._cast(score - low)

    def log_partition_bounds(self) -> tuple[Tensor, Tensor]:
        r"""Two numbers between which log Z is, up to rounding in float64, at any size, temperature and sign of weights
        and penalties; each of shape ``batch_shape``, differentiable.

        - Below: a structured mean-field approximation with the expected potential of the patterns bounded by Jensen's
          inequality. The Bethe approximation, if it is more, for ``"sum"`` at T = 1 with signs of penalties and weights
          that are balanced.
        - Above: Hölder's inequality between parts of the field that are small enough to sum exactly, tree-reweighted
          with strips of the grid in place of trees; the split is optimised by gradient descent. For many patterns, and
          ``"sum"``, all but a few of these are replaced by sums over pixels that are nowhere less, if that is lower.
        - With ``"min"``, both for each pattern by itself: with the log partition functions :math:`A_j` of the fields in
          which it is always on,

          .. math::
              f_{\min(T, 1)}(A + c) \le \log Z \le f_{\max(T, 1)}(A + c),

          by Minkowski's inequality. At T = 1 both sides are log Z, if the A are exact.

        They meet where exact sums take about as long as a step. The interval grows with the couplings and with the
        number of patterns. Cost: up to 100 steps from three points below and 60 steps above, each of at most 2^19
        numbers for each element of the batch, or as many as two states of each unit need; and 60 more of at most 2^21.

        :raises NotImplementedError: if the shorter side of the grid is longer than 8 pixels and there are infinite
            penalties.

        **References**

        Li (2013), Section 4.2. Wainwright, Jaakkola, Willsky (2005): A new class of upper bounds on the log partition
        function. IEEE Transactions on Information Theory 51. Ruozzi (2012): The Bethe partition function of
        log-supermodular graphical models. NIPS.
        """
        low, high = self._log_z_bounds()
        return self._cast(low + self._constant), self._cast(high + self._constant)

    def bethe_log_partition(self) -> tuple[Tensor, Tensor]:
        """The Bethe approximation of log Z, by belief propagation between pixels and hidden units, at T = 1.

        :return: The approximation, differentiable, and whether it is a lower bound, both of shape ``batch_shape``. It
            is one where penalties and weights are negative an even number of times in every cycle of pixels and hidden
            units that are not known; for ``"min"``, of pixels. Elsewhere it may be above or below log Z.
        :raises NotImplementedError: at other temperatures, for tables, and for infinite penalties.

        **References**

        Ruozzi (2012): The Bethe partition function of log-supermodular graphical models. NIPS.
        """
        if self.temperature != 1 or self._scheme is None:
            raise NotImplementedError(
                f"bethe_log_partition: expected temperature 1 and composition 'sum' or 'min', got {self.temperature} "
                f"and {self._scheme or 'a table'}; log_partition_bounds takes all"
            )
        if not self.batch_shape.numel():
            return self._cast(self._no_rows), self._no_rows.bool()
        field = self._field_rows
        self._check_penalties("bethe_log_partition")
        if self._scheme == "min":
            plain = field.plain()
            each = bethe_log_partition(plain).reshape(field.num_rows, -1)
            found = pattern_potential(each + field.biases, "min", 1.0)
            balanced = _balanced(plain).reshape(field.num_rows, -1).all(-1)
        else:
            found, balanced = bethe_log_partition(field), _balanced(field)
        return self._cast(self._unflatten(found) + self._constant), self._unflatten(balanced)

    def mean_field_logits(self, num_rounds: int = 20) -> Tensor:
        r"""Log-odds of independent pixels that approximate the field, at any size, temperature and composition.

        A round updates the hidden units and then the pixels of one colour of the checkerboard after the other, so that
        the lower bound of log Z that belongs to independent pixels never falls. Nothing says how far these are from
        :attr:`marginal_logits`; they are overconfident, as a rule. ``mean_field_logits() > 0`` is a prediction.

        :param int num_rounds: At least 1; each costs O(J·D) for each element of the batch.
        :return: Shape ``batch_shape + event_shape``; differentiable through all rounds.
        :raises NotImplementedError: for infinite penalties.

        **References**

        Li (2013), Section 4.2.
        """
        if isinstance(num_rounds, bool) or not isinstance(num_rounds, int) or num_rounds < 1:
            raise ValueError(f"num_rounds: expected a positive integer, got {num_rounds!r}")
        if self._paired and any_true(self._penalties == torch.inf):
            raise NotImplementedError("mean_field_logits: expected finite penalties, got infinite ones")
        logits = self._unflatten(mean_field_logits(self._field_rows, num_rounds))
        return self._cast(logits.reshape(self.batch_shape + self.event_shape))

    def _estimated_log_z(self, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        field = self._field_rows
        return estimator.estimate(field, lambda number: self._samples_of_rows(number, field.num_rows))

    @property
    def _field_rows(self) -> FieldRows:
        """All elements of the batch, or one where all are the same."""
        weights, biases = self._patterns
        size = (-1, self._num_patterns, self._num_variables)
        rows = self._rows(weights).reshape(size) if self._num_patterns else weights.new_zeros(1, *size[1:])
        states = self._supported_states
        return FieldRows(
            states=self._rows(states),
            penalties=self._rows(self._penalties) if self._paired else states.new_zeros(1, 0),
            edges=self._edges,
            shape=self._shape,
            weights=rows,
            biases=self._rows(biases) if self._num_patterns else states.new_zeros(1, 0),
            composition=self._scheme or self._rows(self._table),
            temperature=self.temperature,
        )

    def _check_penalties(self, query: str) -> None:
        if self._paired and any_true(self._penalties == torch.inf):
            raise NotImplementedError(
                f"{query}: expected finite penalties where exact sums over the grid take too long, got infinite ones; "
                f"a grid whose shorter side is at most {WHOLE_SIDE} pixels has exact sums"
            )

    @property
    def _strips(self) -> list[GridStrips]:
        """The whole grid, or two sets of strips so that every pair of neighbours is in one."""
        if not self._paired or min(self._shape) <= WHOLE_SIDE:
            return [grid_strips(self._shape, WHOLE_SIDE)]
        return [grid_strips(self._shape, STRIP_WIDTH, shift) for shift in (0, STRIP_WIDTH // 2)]

    def _log_z_bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds of log Z without the constant."""
        if not self.batch_shape.numel():
            return self._no_rows, self._no_rows
        field, strips = self._field_rows, self._strips
        if len(strips) > 1:
            self._check_penalties("log_partition_bounds")
        if field.composition == "min":
            low, high = _bounds_of_minimum(field, strips)
        else:
            cost = sum(part.pixels.numel() * 2 ** min(part.shape) for part in strips) // len(strips)
            num_states = NUMBERS_IN_STEP // (cost if self._paired else self._num_variables)
            # Mean-field approximations begin at three points at a time.
            low, high = mean_field_bound(field, strips[0], num_states // 4), holder_bound(field, strips, num_states)
            if field.composition == "sum" and 2**field.num_patterns > num_states and _finite(field):
                sums = modular_bound(field, strips, STATES_FOR_SUMS * num_states)
                high = torch.where(sums < high, sums, high)
            if field.composition == "sum" and field.temperature == 1 and field.num_patterns and _finite(field):
                bethe = bethe_log_partition(field)
                low = torch.where(_balanced(field) & (bethe > low), bethe, low)
        require_support(high.expand(field.num_rows), self._empty)
        return self._unflatten(torch.minimum(low, high)), self._unflatten(high)


def _bounds_of_minimum(field: FieldRows, strips: list[GridStrips]) -> tuple[Tensor, Tensor]:
    """By Minkowski's inequality for L^T norms, which is reversed for T < 1; both sides are increasing in A."""
    plain = field.plain()
    if len(strips) == 1:
        low = high = log_partition_of_strips(plain.states, plain.penalties, strips[0])
    else:
        low, high = mean_field_bound(plain, strips[0], 1), holder_bound(plain, strips, 1)
    below, above = (part.reshape(field.num_rows, -1) + field.biases for part in (low, high))
    return (
        pattern_potential(below, "min", min(field.temperature, 1.0)),
        pattern_potential(above, "min", max(field.temperature, 1.0)),
    )


def _finite(field: FieldRows) -> bool:
    return not any_true(field.penalties == torch.inf)


def _balanced(field: FieldRows) -> Tensor:
    """Whether couplings of what is not known are negative an even number of times in every cycle, shape ``(rows,)``."""
    rows, size, number = field.num_rows, field.states.shape[-1] // 2, field.num_patterns
    off, on = field.states.detach().expand(rows, -1).chunk(2, -1)
    free = (off > -torch.inf) & (on > -torch.inf)
    possible = field.biases.detach().expand(rows, -1) > -torch.inf
    penalties = field.penalties.detach().expand(rows, -1)
    pairs = field.edges[: penalties.shape[-1]]
    penalties = penalties.where(free[:, pairs].all(-1), 0.0)
    weights = field.weights.detach().expand(rows, -1, -1).where(possible.unsqueeze(-1) & free.unsqueeze(1), 0.0)
    strengths = torch.cat([penalties, weights.flatten(1)], -1).cpu().numpy()
    units = np.stack(np.meshgrid(np.arange(size, size + number), np.arange(size), indexing="ij"), -1).reshape(-1, 2)
    edges = np.concatenate([pairs.cpu().numpy(), units])
    return torch.tensor([_is_balanced(size + number, edges, row) for row in strengths], device=off.device)


def _is_balanced(number: int, edges: np.ndarray, strengths: np.ndarray) -> bool:
    try:
        balancing_flips(number, edges, strengths)
    except Unbalanced:
        return False
    return True
