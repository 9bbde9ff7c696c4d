"""Exact sums over fields: over the states of their hidden units, or over all labelings, whichever costs less."""

__all__ = ["MOST_NUMBERS", "FieldSums"]

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.fields.ops.deep_pattern_potential import number_of_deep_states, upper_worth
from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.grid_inference import cost_of_grid
from pyro_structured.fields.ops.hidden_states import (
    HiddenStates,
    cost_of_kinds,
    free_hidden_states,
    hidden_states,
    log_worth,
    number_of_hidden_states,
)
from pyro_structured.fields.ops.pattern_mixture import MixtureDraws, PatternMixture
from pyro_structured.foundation.ops.draws import KeptDraws
from pyro_structured.foundation.ops.enumeration import MOST_PIXELS, all_labelings, number_of_labelings
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.marginal_inference import infer_marginals
from pyro_structured.foundation.ops.requirements import any_true

# Numbers that are computed for one batch of labelings.
NUMBERS_AT_ONCE = 2**22
# Numbers that a query may compute for each row.
MOST_NUMBERS = 2**30
# Highest temperature at which states of hidden units are summed.
MOST_REPLICAS = 16


class FieldSums:
    """Log partition functions, marginals, samples and most probable labelings of the rows of a field; without the base.

    :param Field field: The fields, a row each. Log Z of a row without a possible labelling is -inf.
    :param str remedies: Ends the message of the NotImplementedError that queries raise where sums would take more than
        2^30 numbers for each row.
    """

    def __init__(self, field: Field, remedies: str) -> None:
        self.field, self.remedies = field, remedies

    @lazy_property
    def hidden(self) -> HiddenStates | None:
        """States of hidden units to sum over; ``None`` where a sum over all labelings costs less."""
        field, number = self.field, self.field.num_patterns
        labelings = number_of_labelings(field.num_pixels, field.num_labels)
        if field.upper is not None:
            upper = field.upper.logits.shape[-1]
            cost_of_labeling = number_of_deep_states(number, upper) * max(number, upper)
            labelings = labelings * (cost_of_labeling + 1) if labelings is not None and field.sums_out_units else None
            states: int | None = 2**number * (self._cost_of_state + upper)
            cost = self._check_cost({"hidden states": states, "labelings": labelings}, "log Z")
            return free_hidden_states(number, 1, field.states) if cost == states else None
        labelings = None if labelings is None else labelings * (number + 1)
        replicas = int(field.temperature) if number else 1
        allowed, free = self._allowed_counts, field.composition == "sum"
        states = None
        if not number or (replicas == field.temperature and 0 < replicas <= MOST_REPLICAS):
            states = number_of_hidden_states(number, replicas, allowed) * self._cost_of_state
            states += 0 if free else cost_of_kinds(number, replicas, allowed)
        if self._check_cost({"hidden states": states, "labelings": labelings}, "log Z") != states:
            return None
        if free:
            return free_hidden_states(number, replicas, field.states)
        return hidden_states(number, replicas, allowed)

    @property
    def _cost_of_state(self) -> int:
        """Numbers that are computed for each state of the hidden units."""
        field = self.field
        if field.is_paired:
            return cost_of_grid(field.shape, field.num_labels)
        return field.num_pixels * (field.num_labels - 1)

    def _check_cost(self, costs: Mapping[str, int | None], query: str) -> int:
        """Smallest of some costs, by the kind of states that are summed over; an error if it is too large."""
        possible = {name: cost for name, cost in costs.items() if cost is not None}
        cost = min(possible.values(), default=None)
        if cost is None or cost > MOST_NUMBERS:
            ways = ", ".join(f"{float(min(cost, 10**99)):.1e} over {name}" for name, cost in possible.items())
            raise NotImplementedError(
                f"{query}: exact sums are limited to {MOST_NUMBERS:.1e} numbers, got {ways or 'no way to sum'}; "
                f"{self.remedies}"
            )
        return cost

    @property
    def _allowed_counts(self) -> tuple[int, ...]:
        """Numbers of hidden units that may be on."""
        number, table = self.field.num_patterns, self.field.composition
        if isinstance(table, str):
            return (1,) if table == "min" else tuple(range(number + 1))
        possible = tuple(count for count in range(number + 1) if any_true(table[..., count] > -torch.inf))
        return possible or tuple(range(number + 1))

    def _arguments(self, hidden: HiddenStates) -> tuple[Tensor, ...]:
        """Parameters of :class:`PatternMixture`: states, penalties, weights and log-weights, with a single row where
        all rows are the same.
        """
        field = self.field
        shares = hidden.shares.to(field.biases.device)
        table = field.composition
        if isinstance(table, str):
            table = field.biases.new_full((1, field.num_patterns + 1), -torch.inf if table == "min" else 0.0)
            if field.composition == "min":
                table[:, 1] = 0.0
        log_weights = log_worth(field.biases, shares) + hidden.log_weights(table)
        if field.upper is not None:
            log_weights = log_weights + upper_worth(shares, *field.upper) - field.upper_base.unsqueeze(-1)
        return field.states, field.penalties, field.weights.flatten(1), log_weights

    def _mixture(self, hidden: HiddenStates) -> PatternMixture:
        return PatternMixture(hidden.shares.to(self.field.states.device), self.field.shape, self.field.is_paired)

    @lazy_property
    def labelings(self) -> Tensor:
        """All labelings, shape ``(K ** D, D)``."""
        return all_labelings(self.field.num_pixels, self.field.states, self.field.num_labels)

    @lazy_property
    def scores(self) -> Tensor:
        """Log-weights of all labelings, shape ``(K ** D, rows)``."""
        field = self.field
        numbers = field.num_rows * (field.num_patterns + field.weights.shape[-1])
        return torch.cat(
            [
                field.relative_log_weight(batch.unsqueeze(1)).expand(len(batch), field.num_rows)
                for batch in self.labelings.split(max(1, NUMBERS_AT_ONCE // max(1, numbers)))
            ]
        )

    @lazy_property
    def log_z(self) -> Tensor:
        """Log partition functions, shape ``(rows,)``."""
        if self.hidden is None:
            return logsumexp(self.scores, 0)
        if "marginals" in self.__dict__:
            return self.marginals[0]
        mixture, arguments = self._mixture(self.hidden), self._arguments(self.hidden)
        return infer_marginals(mixture, *arguments, marginals=False)[0]

    @lazy_property
    def marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log partition functions, shape ``(rows,)``, probabilities of the labels, in the order of the states, shape
        ``(rows, K D)``, and those that neighbours differ, shape ``(rows, E)``.
        """
        field = self.field
        if self.hidden is None:
            log_z = self.log_z
            probs = (self.scores - log_z.masked_fill(log_z == -torch.inf, 0.0)).exp()
            indicators = [self.labelings == label for label in range(field.num_labels)]
            indicators.append(self.labelings[:, field.edges[:, 0]] != self.labelings[:, field.edges[:, 1]])
            means = torch.tensordot(probs, torch.cat(indicators, -1).to(probs.dtype), ([0], [0]))
            size = field.states.shape[-1]
            return log_z, means[..., :size], means[..., size:]
        log_z, single, alike, *_ = infer_marginals(self._mixture(self.hidden), *self._arguments(self.hidden))
        return log_z, single, -alike

    def entropy(self) -> Tensor:
        """Entropies in nats, shape ``(rows,)``; exact.

        :raises NotImplementedError: if there are patterns, and more than 2^18 labelings.
        """
        field, log_z = self.field, self.log_z
        if field.num_patterns:
            if number_of_labelings(field.num_pixels, field.num_labels) is None:
                binary = field.num_labels == 2
                most = f"{MOST_PIXELS} variables" if binary else f"2^{MOST_PIXELS} labelings"
                count = field.num_pixels if binary else f"{field.num_labels}^{field.num_pixels}"
                raise NotImplementedError(
                    f"entropy: patterns leave no way but to look at all labelings of at most {most}, got {count}; "
                    "estimate it by -log_prob(sample((n,))).mean(0)"
                )
            log_probs = self.scores - log_z
            return -(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(0)
        _, single, differ = self.marginals
        expected = (single * field.states.masked_fill(single == 0, 0.0)).sum(-1)
        if isinstance(field.composition, Tensor):
            expected = expected + field.composition[..., 0]
        if field.is_paired:
            expected = expected - (differ * field.penalties.masked_fill(differ == 0, 0.0)).sum(-1)
        return log_z - expected

    def best_labelings(self) -> Tensor:
        """Most probable labelings of all that can be enumerated, shape ``(rows, D)``."""
        return self.labelings[self.scores.argmax(0)]

    @torch.no_grad()
    def best_of_hidden_states(self) -> tuple[Tensor, Tensor]:
        """The best labelings together with states of the hidden units, shape ``(rows, D)``, and upper bounds of all
        log-weights, shape ``(rows,)``: the joint log-weight, plus T log S for S states of the hidden units.

        :raises NotImplementedError: if this takes more than 2^30 numbers.
        """
        number, allowed = self.field.num_patterns, self._allowed_counts
        states = number_of_hidden_states(number, 1, allowed)
        self._check_cost({"hidden states": states * self._cost_of_state}, "method 'enumeration'")
        free = self.field.composition == "sum"
        hidden = free_hidden_states(number, 1, self.field.states) if free else hidden_states(number, 1, allowed)
        peak, labels = self._mixture(hidden).maximize(self._arguments(hidden))
        return labels, peak + self.field.base + self.field.temperature * math.log(states)

    def sample(self, number: int, num_rows: int) -> Tensor:
        """Exact samples, shape ``(number, num_rows, D)``.

        :param int number: Number of samples for each row.
        :param int num_rows: Number of rows; if the fields have fewer, all rows are the same.
        """
        if self.hidden is None:
            logits = self.scores.T.expand(num_rows, -1)
            return self.labelings[torch.distributions.Categorical(logits=logits).sample((number,))]
        copies = num_rows if self._draws.num_rows == 1 else 1
        return self._draws(number * copies).reshape(number, num_rows, -1)

    @lazy_property
    def _draws(self) -> KeptDraws:
        assert self.hidden is not None
        with torch.no_grad():
            return KeptDraws(partial(MixtureDraws, self._mixture(self.hidden)), *self._arguments(self.hidden))
