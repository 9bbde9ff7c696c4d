"""Sums and approximations of binary fields under patterns and units over these."""

__all__ = ["DeepField"]

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.fields.distributions.field_estimator import FieldEstimator
from pyro_structured.fields.distributions.field_optimum import TOLERANCE
from pyro_structured.fields.distributions.label_field import FieldOptimum
from pyro_structured.fields.distributions.pattern_crf import PatternCRF
from pyro_structured.fields.distributions.pattern_field import PatternField
from pyro_structured.fields.distributions.perfect_draws import MAX_SWEEPS
from pyro_structured.fields.distributions.restricted_boltzmann_machine import RBM
from pyro_structured.fields.ops.deep_pattern_potential import (
    deep_pattern_potential,
    deep_pattern_slopes,
    number_of_deep_states,
    upper_worth,
)
from pyro_structured.fields.ops.hidden_states import HiddenStates, free_hidden_states
from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.fields.solvers.pattern_objective import PatternObjective
from pyro_structured.foundation.ops.enumeration import MOST_PIXELS

# States of the smaller layer of hidden units that are enumerated for a single labelling.
MOST_STATES = 2**16


class DeepField(PatternField):
    """Queries that sum over the states of one layer of hidden units, or take upper units for pixels without neighbours.

    What the upper units are worth where no pattern is on belongs to the constant.
    """

    _remedies = (
        "log_prob_bounds, log_partition_bounds, estimate_log_prob(value, AnnealedImportanceSampling()) and "
        "mean_field_logits have no limit"
    )
    _savings = "no pairwise terms, fewer patterns or a smaller grid"

    @property
    @abstractmethod
    def _upper(self) -> tuple[Tensor, Tensor]:
        """Weights of the upper units, ``(..., K, J)``, and their biases, ``(..., K)``, in double precision."""

    @property
    @abstractmethod
    def _whole(self) -> PatternCRF:
        """The field of pixels and upper units, in double precision, with the same log Z."""

    @abstractmethod
    def _pixels(self, labels: Tensor) -> Tensor:
        """The labels of the pixels among those of the whole field, shape ``(...) + event_shape``."""

    @property
    def _num_upper(self) -> int:
        return self._upper[1].shape[-1]

    @property
    def _affordable(self) -> bool:
        """Whether hidden units can be summed out for a single labelling."""
        return number_of_deep_states(self._num_patterns, self._num_upper) <= MOST_STATES

    @property
    def _upper_layer(self) -> tuple[Tensor, Tensor]:
        if not self._affordable:
            raise NotImplementedError(
                f"hidden units: exact sums and draws given labels are limited to {MOST_STATES} states of the smaller "
                f"layer, got {self._num_patterns} patterns and {self._num_upper} upper units; log_prob_bounds, "
                "estimate_log_prob(value, AnnealedImportanceSampling()), mean_field_logits and, if couplings are "
                "balanced, perfect_sample have no limit"
            )
        return self._upper

    @property
    def _base(self) -> Tensor:
        """What upper units are worth where no pattern is on."""
        return pattern_potential(self._upper[1], "sum", 1.0)

    @property
    def _constant(self) -> Tensor:
        return super()._constant + self._base

    def _potential(self, activations: Tensor, num_axes: int = 0) -> Tensor:
        weights, logits = self._upper_layer
        ones = (1,) * num_axes
        weights = weights.reshape(weights.shape[:-2] + ones + weights.shape[-2:])
        logits = logits.reshape(logits.shape[:-1] + ones + logits.shape[-1:])
        return deep_pattern_potential(activations, weights, logits) - self._base.reshape(self._base.shape + ones)

    def _is_possible(self, value: Tensor) -> Tensor:
        if self._affordable:
            return super()._is_possible(value)
        return self._score_with(value, lambda activations: activations.new_zeros(activations.shape[:-1])) > -torch.inf

    @lazy_property
    def _hidden(self) -> HiddenStates | None:
        """As for fields without upper units; their worth takes longer to compute."""
        number, upper, variables = self._num_patterns, self._num_upper, self._num_variables
        labelings = None
        if variables <= MOST_PIXELS and self._affordable:
            each = number_of_deep_states(number, upper) * max(number, upper)
            labelings = 2**variables * (each + 1)
        states = 2**number * (self._cost_of_state + upper)
        if self._check_cost({"hidden states": states, "labelings": labelings}, "log Z") != states:
            return None
        return free_hidden_states(number, 1, self._states[0])

    def _arguments(self, hidden: HiddenStates) -> tuple[Tensor, ...]:
        *parts, log_weights = super()._arguments(hidden)
        weights, logits = self._upper
        worth = upper_worth(hidden.shares.to(logits.device), weights, logits) - self._base.unsqueeze(-1)
        return *parts, log_weights + self._rows(worth)

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + event_shape``, of at most 18 variables: by looking at all."""
        if self._num_variables > MOST_PIXELS:
            raise NotImplementedError(
                f"mode: expected at most {MOST_PIXELS} variables, got {self._num_variables}; map returns good labels "
                "and a bound"
            )
        return super().mode

    def map(
        self,
        method: str = "em",
        start: Tensor | None = None,
        max_cuts: int = 10_000,
        num_switches: int | None = None,
    ) -> tuple[Tensor, FieldOptimum]:
        r"""Searches for a most probable value, at any size, by minimum cuts.

        - ``"em"``: as for PatternCRF; each step takes how far patterns are on, upper units summed out.
        - ``"cut"``, ``"dual"``, ``"branch_and_bound"``: good labels of pixels and upper units together, with a bound;
          ``"em"`` goes on from there, and also begins where it would begin alone. The bound of pixels alone is larger
          by :math:`K \log 2`.

        Arguments, results and errors are those of :meth:`PatternCRF.map`.
        """
        if method == "em":
            return super().map(method, start, max_cuts, num_switches)
        together, found = self._whole.map(method, None, max_cuts, num_switches)
        first, one = super().map("em", self._pixels(together), max_cuts)
        second, other = super().map("em", start, max_cuts, num_switches)
        better = other.value > one.value
        best = torch.where(better.unsqueeze(-1).unsqueeze(-1), second, first)
        value = one.value.maximum(other.value)
        possible = (self._upper[1] > -torch.inf).sum(-1)
        bound = self._cast(found.upper_bound + possible * math.log(2)).maximum(value)
        optimal = bound <= value + TOLERANCE * (1 + value.abs())
        return best, FieldOptimum(value, bound, optimal, one.num_cuts + other.num_cuts + found.num_cuts)

    @property
    def _objective(self) -> PatternObjective:
        weights, logits = self._upper_layer
        batch = torch.broadcast_shapes(weights.shape[:-2], logits.shape[:-1])
        parts = [part.expand(batch + part.shape[-1:]) for part in (weights.flatten(-2), logits)]
        number, upper = self._num_patterns, self._num_upper

        def layer(packed: Tensor | str) -> tuple[Tensor, Tensor]:
            assert isinstance(packed, Tensor)
            flat, biases = packed.split([upper * number, upper], -1)
            return flat.unflatten(-1, (upper, number)), biases

        def potential(activations: Tensor, packed: Tensor | str, _: float) -> Tensor:
            biases = layer(packed)[1]
            return deep_pattern_potential(activations, *layer(packed)) - pattern_potential(biases, "sum", 1.0)

        def slopes(activations: Tensor, packed: Tensor | str, _: float) -> Tensor:
            return deep_pattern_slopes(activations, *layer(packed))

        rows = self._rows(torch.cat(parts, -1).detach()).cpu()
        return super()._objective._replace(composition=rows, potential=potential, slopes=slopes)

    def mean_field_logits(self, num_rounds: int = 20) -> Tensor:
        """Log-odds of independent pixels that approximate the field, at any size; upper units are independent, too.

        Argument, result and errors are those of :meth:`PatternCRF.mean_field_logits`.
        """
        return self._cast(self._pixels(self._whole.mean_field_logits(num_rounds)))

    def perfect_sample(self, sample_shape: Any = (), max_sweeps: int = MAX_SWEEPS) -> Tensor:
        """Exact samples of fields of any size by monotone coupling from the past.

        Arguments, result and errors are those of :meth:`PatternCRF.perfect_sample`; couplings of patterns and upper
        units have to be balanced, too, and errors name upper units as labels of additional rows or columns.
        """
        return self._cast(self._pixels(self._whole.perfect_sample(sample_shape, max_sweeps)))

    def bethe_log_partition(self) -> tuple[Tensor, Tensor]:
        """The Bethe approximation of log Z, by belief propagation between pixels and both layers of hidden units, and
        whether it is a lower bound; as :meth:`PatternCRF.bethe_log_partition`.
        """
        found, balanced = self._whole.bethe_log_partition()
        return self._cast(found), balanced

    def log_prob_bounds(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Two numbers between which the log-probability is, at any size, as for PatternCRF; where hidden units cannot
        be summed out, the unnormalised log-probability is bounded in the same way as log Z.
        """
        if self._affordable:
            return super().log_prob_bounds(value)
        if self._validate_args:
            self._validate_sample(value)
        widths = []

        def potential(activations: Tensor) -> Tensor:
            least, most = self._machine(activations).log_partition_bounds()
            widths.append(most - least)
            return least - self._base

        score = self._score_with(value, potential)
        low, high = self._log_z_bounds()
        return self._cast(score - high), self._cast(score + widths[0] - low)

    def estimate_log_prob(self, value: Tensor, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        """An estimate of the log-probability, at any size, and its standard error, as for PatternCRF; where hidden
        units cannot be summed out, the unnormalised log-probability is estimated in the same way as log Z.
        """
        if self._affordable:
            return super().estimate_log_prob(value, estimator)
        if self._validate_args:
            self._validate_sample(value)
        log_z, error = self._estimate(estimator)
        errors = [error]

        def potential(activations: Tensor) -> Tensor:
            found, other = self._machine(activations).estimate_log_partition(estimator)
            errors.append(other)
            return found - self._base

        log_prob = self._score_with(value, potential) - log_z
        combined = torch.stack(torch.broadcast_tensors(*errors)).square().sum(0).sqrt()
        return self._cast(log_prob), self._cast(combined.expand(log_prob.shape))

    def _machine(self, activations: Tensor) -> RBM:
        """The hidden units given labels, patterns visible."""
        weights, logits = self._upper
        return RBM(weights, activations, logits, validate_args=False)

    def _log_z_bounds(self) -> tuple[Tensor, Tensor]:
        whole = self._whole
        low, high = whole._log_z_bounds()
        difference = whole._constant - self._constant
        return low + difference, high + difference

    def _estimate(self, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        whole = self._whole
        found, error = whole._estimate(estimator)
        return found + (whole._constant - self._constant), error
