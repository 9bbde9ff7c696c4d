"""Sums over fields of labels under patterns."""

__all__ = ["FieldOptimum", "MOST_NUMBERS", "LabelField"]

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.fields.distributions.field_estimator import FieldEstimator
from pyro_structured.fields.distributions.label_weights import LabelWeights
from pyro_structured.fields.ops.grid_inference import cost_of_grid
from pyro_structured.fields.ops.hidden_states import (
    HiddenStates,
    cost_of_kinds,
    free_hidden_states,
    hidden_states,
    log_worth,
    number_of_hidden_states,
)
from pyro_structured.fields.ops.pattern_mixture import PatternMixture
from pyro_structured.foundation.distributions.argument_checks import check_entries
from pyro_structured.foundation.distributions.estimate_warning import warn_of_spread
from pyro_structured.foundation.ops.any_true import any_true
from pyro_structured.foundation.ops.draws import draw_rows
from pyro_structured.foundation.ops.enumeration import MOST_PIXELS, all_labelings, number_of_labelings
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.marginal_inference import infer_marginals
from pyro_structured.foundation.ops.requirements import require_support

# Numbers of the labelings that are looked at together.
NUMBERS_AT_ONCE = 2**22
# Numbers that a query may compute for each element of the batch.
MOST_NUMBERS = 2**30
# Higher temperatures have too many states of hidden units.
MOST_REPLICAS = 16


class FieldOptimum(NamedTuple):
    """What is known of labels that were found, all of the batch's shape.

    :ivar Tensor value: Their unnormalised log-probability.
    :ivar Tensor upper_bound: No labels have a larger one; +inf if there is no bound.
    :ivar Tensor optimal: Whether the bound proves that none are better, up to rounding.
    :ivar Tensor num_cuts: How many minimum cuts it took.
    """

    value: Tensor
    upper_bound: Tensor
    optimal: Tensor
    num_cuts: Tensor


class LabelField(LabelWeights):
    """Queries that sum over the states of the hidden units, or over all labelings, whichever costs less."""

    _derived = ("_states", "_hidden", "_log_total", "_marginals", "_scores")
    # What to do about sums that would take too long.
    _remedies = "unnormalized_log_prob has no limit"
    _savings = "composition='min', whole temperatures, no pairwise terms, fewer patterns or a smaller grid"

    @abstractmethod
    def pseudo_log_prob(self, value: Tensor) -> Tensor:
        """Sum of the log-probabilities of all labels given all others."""

    @abstractmethod
    def map(
        self,
        method: str = "em",
        start: Tensor | None = None,
        max_cuts: int = 10_000,
        num_switches: int | None = None,
    ) -> tuple[Tensor, FieldOptimum]:
        """A probable value, and what is known of it."""

    def estimate_log_prob(self, value: Tensor, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        """An estimate of the log-probability, at any size, and its standard error, both of shape ``(...)``.

        All values share one estimate of log Z, of which there is one for each element of the batch. It has no
        gradient; that of :meth:`unnormalized_log_prob` is kept.

        :param Tensor value: As for ``log_prob``.
        :param FieldEstimator estimator: ``pyro_structured.inference.AnnealedImportanceSampling(1000, 100)``, for
            example, whose log Z is low rather than high, so that log-probabilities are optimistic.
        """
        if self._validate_args:
            self._validate_sample(value)
        log_z, error = self._estimate(estimator)
        log_prob = self._score(value) - log_z
        return self._cast(log_prob), self._cast(error.expand(log_prob.shape))

    def estimate_log_partition(self, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        """An estimate of log Z, without a gradient, and its standard error, both of shape ``batch_shape``; argument as
        for :meth:`estimate_log_prob`.
        """
        log_z, error = self._estimate(estimator)
        return self._cast(log_z + self._constant), self._cast(error)

    def _estimate(self, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        """Log Z without the constant, and its standard error."""
        if not isinstance(estimator, FieldEstimator):
            raise ValueError(
                "estimator: expected one, such as pyro_structured.inference.AnnealedImportanceSampling(1000, 100), got "
                f"{estimator!r}"
            )
        if not self.batch_shape.numel():
            return self._no_rows, self._no_rows
        with torch.no_grad():
            log_z, error = self._estimated_log_z(estimator)
        warn_of_spread(estimator, error)
        return self._unflatten(log_z), self._unflatten(error)

    @abstractmethod
    def _estimated_log_z(self, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        """The same, of different elements of the batch, one after the other."""

    def _samples_of_rows(self, number: int, num_rows: int) -> Tensor:
        """So many exact samples of so many different elements of the batch, shape ``(number, num_rows, D)``."""
        copies = max(1, self.batch_shape.numel() // max(1, num_rows))
        drawn: Tensor = self.sample((-(-number // copies),))
        return drawn.reshape(-1, num_rows, self._num_variables)[:number]

    @property
    def _no_rows(self) -> Tensor:
        """What there is to say about a batch of size 0."""
        return self._constant.new_zeros(self.batch_shape)

    def _starts(self, start: Tensor | None) -> Tensor | None:
        """As many rows as there are fields, and an axis of starts before them, on the processor."""
        if start is None:
            return None
        ours = self.batch_shape + self.event_shape
        check_entries(ours, len(self.event_shape), start=start)
        if not bool(((start >= 0) & (start < self._num_labels) & (start == start.long())).all()):
            raise ValueError(f"start: expected integers in range({self._num_labels}), got other numbers")
        shape = torch.Size(torch.broadcast_shapes(start.shape, ours))
        number = shape[: len(shape) - len(ours)].numel()
        if shape[len(shape) - len(ours) :] != ours:
            raise ValueError(f"start: expected shape (..., *{tuple(ours)}), got {tuple(start.shape)}")
        if not number:
            raise ValueError(f"start: expected one or several, got shape {tuple(start.shape)}")
        return start.expand(shape).reshape(number, self.batch_shape.numel(), self._num_variables).long().cpu()

    def _optimum(self, labels: Tensor, found: FieldOptimum) -> tuple[Tensor, FieldOptimum]:
        """Labels as values, and what is known of them, of the batch's shape."""
        require_support(found.value, self._empty)
        device = self._states[0].device
        value, bound, optimal, cuts = (self._unflatten(part.to(device)) for part in found)
        best = self._unflatten(labels.to(device)).reshape(self.batch_shape + self.event_shape)
        return self._as_values(best), FieldOptimum(self._cast(value), self._cast(bound), optimal, cuts)

    @lazy_property
    def _hidden(self) -> HiddenStates | None:
        """States of hidden units to sum over; ``None`` where a sum over all labelings costs less."""
        number, variables = self._num_patterns, self._num_variables
        labelings = number_of_labelings(variables, self._num_labels)
        labelings = None if labelings is None else labelings * (number + 1)
        replicas = int(self.temperature) if number else 1
        allowed, free = self._allowed_counts, self._scheme == "sum"
        states = None
        if not number or (replicas == self.temperature and 0 < replicas <= MOST_REPLICAS):
            states = number_of_hidden_states(number, replicas, allowed) * self._cost_of_state
            states += 0 if free else cost_of_kinds(number, replicas, allowed)
        cost = self._check_cost({"hidden states": states, "labelings": labelings}, "log Z")
        if cost != states:
            return None
        if free:
            return free_hidden_states(number, replicas, self._states[0])
        return hidden_states(number, replicas, allowed)

    @property
    def _cost_of_state(self) -> int:
        """Numbers that each state of the hidden units takes."""
        labels = self._num_labels
        return cost_of_grid(self._shape, labels) if self._paired else self._num_variables * (labels - 1)

    def _check_cost(self, costs: Mapping[str, int | None], query: str) -> int:
        """The smallest of some costs, by what is looked at, or an error."""
        possible = {name: cost for name, cost in costs.items() if cost is not None}
        cost = min(possible.values(), default=None)
        if cost is None or cost > MOST_NUMBERS:
            found = ", ".join(f"{float(min(cost, 10**99)):.1e} over {name}" for name, cost in possible.items())
            raise NotImplementedError(
                f"{query}: exact sums are limited to {MOST_NUMBERS:.1e} numbers, got {found or 'no way to sum'}; "
                f"{self._remedies}; {self._savings} make exact sums cheap"
            )
        return cost

    @property
    def _allowed_counts(self) -> tuple[int, ...]:
        """Numbers of hidden units that may be on."""
        number = self._num_patterns
        if self._scheme is not None:
            return (1,) if self._scheme == "min" else tuple(range(number + 1))
        found = tuple(k for k in range(number + 1) if any_true(self.composition[..., k] > -torch.inf))
        return found or tuple(range(number + 1))

    def _arguments(self, hidden: HiddenStates) -> tuple[Tensor, ...]:
        """Matrices that :class:`PatternMixture` takes, with one row where all are the same."""
        weights, biases = self._patterns
        shares = hidden.shares.to(biases.device)
        log_weights = log_worth(biases, shares) + hidden.log_weights(self._table)
        parts = (self._known_states, self._penalties, weights, log_weights)
        return tuple(self._rows(part) for part in parts)

    def _mixture(self, hidden: HiddenStates) -> PatternMixture:
        return PatternMixture(hidden.shares.to(self._states[0].device), self._shape, self._paired)

    @property
    def _labelings(self) -> Tensor:
        """All of them, shape ``(K ** D, D)``."""
        return all_labelings(self._num_variables, self._states[0], self._num_labels)

    @lazy_property
    def _scores(self) -> Tensor:
        """Log-weights of all labelings that the evidence leaves, shape ``(K ** D,) + batch_shape``."""
        rank = len(self.batch_shape)
        numbers = self.batch_shape.numel() * (self._num_patterns + self._num_indicators)
        parts = [
            self._score(some.reshape((-1,) + (1,) * rank + self.event_shape)).expand((len(some),) + self.batch_shape)
            for some in self._labelings.split(max(1, NUMBERS_AT_ONCE // max(1, numbers)))
        ]
        return torch.cat(parts)

    @lazy_property
    def _log_total(self) -> Tensor:
        if self._hidden is None:
            return logsumexp(self._scores, 0)
        if "_marginals" in self.__dict__:
            return self._marginals[0]
        found = infer_marginals(self._mixture(self._hidden), *self._arguments(self._hidden), marginals=False)
        return self._unflatten(found[0])

    @property
    def _log_z(self) -> Tensor:
        return self._log_total

    @lazy_property
    def _marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log Z, probabilities of the labels, as in the states, and that neighbours differ, with one axis each."""
        if self._hidden is None:
            log_z = self._log_total
            probs = (self._scores - log_z.masked_fill(log_z == -torch.inf, 0.0)).exp()
            values = self._labelings
            indicators = [values == label for label in range(self._num_labels)]
            indicators.append(values[:, self._edges[:, 0]] != values[:, self._edges[:, 1]])
            found = torch.tensordot(probs, torch.cat(indicators, -1).to(probs.dtype), ([0], [0]))
            size = self._num_labels * self._num_variables
            return log_z, found[..., :size], found[..., size:]
        log_z, single, alike, *_ = infer_marginals(self._mixture(self._hidden), *self._arguments(self._hidden))
        return self._unflatten(log_z), self._unflatten(single), -self._unflatten(alike)

    def _supported_marginals(self) -> Tensor:
        """Probabilities of the labels, those of all variables for one label after the other."""
        require_support(self._marginals[0], self._empty)
        return self._marginals[1]

    def _best_labeling(self) -> Tensor:
        """A most probable one of all that can be enumerated, shape ``batch_shape + event_shape``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            place = self._scores.argmax(0)
        return self._as_values(self._labelings[place].reshape(self.batch_shape + self.event_shape))

    @torch.no_grad()
    def _best_of_hidden_states(self) -> tuple[Tensor, Tensor]:
        """The best labels with a state of the hidden units, shape ``batch_shape + (D,)``, and a bound of all
        log-weights: what they are worth with it, and what so many states of the same worth would add.
        """
        number, allowed = self._num_patterns, self._allowed_counts
        states = number_of_hidden_states(number, 1, allowed)
        self._check_cost({"hidden states": states * self._cost_of_state}, "method 'enumeration'")
        free = self._scheme == "sum"
        hidden = free_hidden_states(number, 1, self._states[0]) if free else hidden_states(number, 1, allowed)
        peak, labels = self._mixture(hidden).maximize(self._arguments(hidden))
        bound = self._unflatten(peak) + self._constant + self.temperature * math.log(states)
        return self._unflatten(labels), bound

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        log_z = self._supported_log_z
        if self._num_patterns:
            if number_of_labelings(self._num_variables, self._num_labels) is None:
                most = f"{MOST_PIXELS} variables" if self._num_labels == 2 else f"2^{MOST_PIXELS} labelings"
                count = self._num_variables if self._num_labels == 2 else f"{self._num_labels}^{self._num_variables}"
                raise NotImplementedError(
                    f"entropy: patterns leave no way but to look at all labelings of at most {most}, got {count}; "
                    "estimate it by -log_prob(sample((n,))).mean(0)"
                )
            log_probs = self._scores - log_z
            return self._cast(-(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(0))
        _, single, differ = self._marginals
        expected = self._table[..., 0] + (single * self._states[0].masked_fill(single == 0, 0.0)).sum(-1)
        if self._paired:
            expected = expected - (differ * self._penalties.masked_fill(differ == 0, 0.0)).sum(-1)
        return self._cast(log_z - expected)

    def _drawn(self, number: int) -> Tensor:
        """Samples of shape ``(number, elements of the batch, D)``."""
        if self._hidden is None:
            logits = self._scores.reshape(len(self._scores), -1).T
            return self._labelings[torch.distributions.Categorical(logits=logits).sample((number,))]
        arguments = self._arguments(self._hidden)
        # Rows that are all the same are so many samples of one.
        copies = self.batch_shape.numel() if all(len(rows) == 1 for rows in arguments) else 1
        mixture = self._mixture(self._hidden)
        return draw_rows(lambda *rows: mixture.sample(rows, number * copies), *arguments)

    def _exact_draws(self, shape: torch.Size) -> Tensor:
        """Samples from sums, shape ``shape + batch_shape + event_shape``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            full = shape + self.batch_shape
            drawn = self._drawn(shape.numel()) if full.numel() else self._states[0].new_zeros(full + self.event_shape)
        return self._as_values(drawn.reshape(full + self.event_shape))
