"""What binary fields under patterns have in common."""

__all__ = ["EMPTY_SUPPORT", "PatternField"]

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.distributions.discrete_vector import DiscreteVector
from pyro_structured.ops.anywhere import anywhere
from pyro_structured.ops.cardinality import require_support
from pyro_structured.ops.convolution import logsumexp, safe_log
from pyro_structured.ops.enumeration import enumerate_values, is_enumerable
from pyro_structured.ops.evidence import log_odds
from pyro_structured.ops.grid_inference import cost_of_grid
from pyro_structured.ops.hidden_states import HiddenStates, hidden_states, number_of_hidden_states
from pyro_structured.ops.labelings import MOST_PIXELS, all_labelings
from pyro_structured.ops.marginal_inference import infer_marginals
from pyro_structured.ops.pattern_mixture import PatternMixture
from pyro_structured.ops.pattern_potential import pattern_potential
from pyro_structured.ops.rows import narrow_repeated

EMPTY_SUPPORT = (
    "unary_logits: expected at least one field of positive probability in every batch element, but the support is empty"
)
# Numbers that a query may compute for each element of the batch.
MOST_NUMBERS = 2**30
# Higher temperatures have too many states of hidden units.
MOST_REPLICAS = 16


class PatternField(DiscreteVector):
    """Queries of binary variables with log-odds of their own, penalties of neighbours that differ, and patterns.

    They sum over the states of the hidden units, or over all labelings, whichever costs less.
    """

    composition: Tensor
    temperature: float
    # "sum", "min", or nothing where the composition is a table.
    _scheme: str | None
    _paired: bool
    _edges: Tensor
    # What to use where there are too many labelings.
    _instead: dict[str, str] = {
        "entropy": "estimate it by -log_prob(sample((n,))).mean(0)",
        "mode": "take the likeliest of samples",
    }
    _derived = ("_states", "_hidden", "_log_total", "_marginals", "_scores")

    @property
    @abstractmethod
    def _unary(self) -> Tensor:
        """Log-odds of the D single variables, shape ``(..., D)``, in double precision."""

    @property
    @abstractmethod
    def _penalties(self) -> Tensor:
        """Shape ``(..., E)``, in double precision."""

    @property
    @abstractmethod
    def _patterns(self) -> tuple[Tensor, Tensor]:
        """Weights of the patterns, ``(..., J D)``, and their biases, ``(..., J)``, in double precision."""

    @property
    def _table(self) -> Tensor:
        return narrow_repeated(self.composition).double()

    @property
    def _num_variables(self) -> int:
        return self.event_shape.numel()

    @property
    def _num_states(self) -> tuple[int, ...]:
        return (2,)

    @property
    def _num_patterns(self) -> int:
        return self.composition.shape[-1] - 1

    @property
    def _shape(self) -> tuple[int, int]:
        """Height and width."""
        return self.event_shape[0], self.event_shape.numel() // self.event_shape[0]

    @lazy_property
    def _states(self) -> tuple[Tensor, Tensor]:
        """Log-weights of 0 and of 1, the larger one being 0, and the sum of what was subtracted."""
        odds = self._unary
        level = odds.detach().clamp(min=0).masked_fill(odds == torch.inf, 0.0)
        off = -level.masked_fill(odds == torch.inf, torch.inf)
        on = odds.masked_fill(odds == torch.inf, 0.0) - level
        return torch.cat([off, on], -1), level.sum(-1)

    @property
    def _constant(self) -> Tensor:
        return self._states[1]

    @property
    def _known_states(self) -> Tensor:
        """Log-weights of 0 and of 1, -inf where the evidence excludes them."""
        value, observed, consistent = self._evidence
        states = self._states[0]
        possible = ~observed & consistent.unsqueeze(-1)
        allowed = [possible | (consistent.unsqueeze(-1) & (value == label)) for label in (0, 1)]
        return states.masked_fill(~torch.cat(allowed, -1), -torch.inf)

    @lazy_property
    def _hidden(self) -> HiddenStates | None:
        """States of hidden units to sum over; ``None`` where a sum over all labelings costs less."""
        number, variables = self._num_patterns, self._num_variables
        labelings = 2**variables * (number + 1) if variables <= MOST_PIXELS else None
        replicas = int(self.temperature) if number else 1
        each = cost_of_grid(self._shape) if self._paired else variables
        allowed = self._allowed_counts
        states = None
        if not number or (replicas == self.temperature and 0 < replicas <= MOST_REPLICAS):
            states = number_of_hidden_states(number, replicas, allowed) * each
        cost = min((cost for cost in (labelings, states) if cost is not None), default=None)
        if cost is None or cost > MOST_NUMBERS:
            self._refuse(labelings, states)
        return hidden_states(number, replicas, allowed) if cost == states else None

    def _refuse(self, labelings: int | None, states: int | None) -> None:
        costs = {"hidden states": states, "labelings": labelings}
        found = ", ".join(
            f"{float(min(cost, 10**99)):.1e} over {name}" for name, cost in costs.items() if cost is not None
        )
        raise NotImplementedError(
            f"log Z: exact sums are limited to {MOST_NUMBERS:.1e} numbers, got {found or 'no way to sum'}; "
            "unnormalized_log_prob has no limit; composition='min', whole temperatures, no pairwise terms, fewer "
            "patterns or a smaller grid make exact sums cheap"
        )

    @property
    def _allowed_counts(self) -> tuple[int, ...]:
        """Numbers of hidden units that may be on."""
        number = self._num_patterns
        if self._scheme is not None:
            return (1,) if self._scheme == "min" else tuple(range(number + 1))
        found = tuple(k for k in range(number + 1) if anywhere(self.composition[..., k] > -torch.inf))
        return found or tuple(range(number + 1))

    def _arguments(self, hidden: HiddenStates) -> tuple[Tensor, ...]:
        """Matrices that :class:`PatternMixture` takes, with one row where all are the same."""
        weights, biases = self._patterns
        shares = hidden.shares.to(biases.device)
        impossible = biases == -torch.inf
        log_weights = biases.masked_fill(impossible, 0.0) @ shares.T + hidden.log_weights(self._table)
        excluded = (impossible.unsqueeze(-2) & (shares > 0)).any(-1)
        parts = (self._known_states, self._penalties, weights, log_weights.masked_fill(excluded, -torch.inf))
        return tuple(self._rows(part) for part in parts)

    def _rows(self, tensor: Tensor) -> Tensor:
        tensor = narrow_repeated(tensor)
        if tensor.shape[:-1].numel() == 1:
            return tensor.reshape(1, tensor.shape[-1])
        return tensor.expand(self.batch_shape + tensor.shape[-1:]).flatten(0, -2)

    def _unflatten(self, rows: Tensor) -> Tensor:
        """The batch in place of rows, of which there is one where all are the same."""
        size = self.batch_shape.numel()
        return rows.expand((size,) + rows.shape[1:]).reshape(self.batch_shape + rows.shape[1:])

    def _mixture(self, hidden: HiddenStates) -> PatternMixture:
        return PatternMixture(hidden.shares.to(self._states[0].device), self._shape, self._paired)

    @lazy_property
    def _scores(self) -> Tensor:
        """Log-weights of all labelings that the evidence leaves, shape ``(2 ** D,) + batch_shape``."""
        values = all_labelings(self._num_variables, self._states[0])
        shape = (len(values),) + (1,) * len(self.batch_shape) + self.event_shape
        return self._score(values.reshape(shape)).expand((len(values),) + self.batch_shape)

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
        """Log Z, probabilities of 0 and of 1, and of differences of neighbours, with one axis each."""
        if self._hidden is None:
            log_z = self._log_total
            probs = (self._scores - log_z.masked_fill(log_z == -torch.inf, 0.0)).exp()
            values = all_labelings(self._num_variables, probs)
            differ = (values[:, self._edges[:, 0]] != values[:, self._edges[:, 1]]).to(probs.dtype)
            indicators = torch.cat([1 - values, values, differ], -1)
            found = torch.tensordot(probs, indicators, ([0], [0]))
            return log_z, found[..., : 2 * values.shape[1]], found[..., 2 * values.shape[1] :]
        log_z, single, alike, *_ = infer_marginals(self._mixture(self._hidden), *self._arguments(self._hidden))
        return self._unflatten(log_z), self._unflatten(single), -self._unflatten(alike)

    def _supported_marginals(self) -> Tensor:
        """Probabilities of 0 and of 1, one after the other."""
        require_support(self._marginals[0], self._empty)
        return self._marginals[1]

    @property
    def marginals(self) -> Tensor:
        """Probabilities of 1, shape ``batch_shape + event_shape``."""
        on = self._supported_marginals()[..., self._num_variables :]
        return self._cast(on.reshape(self.batch_shape + self.event_shape))

    @property
    def marginal_logits(self) -> Tensor:
        """Log-odds of the single variables, shape ``batch_shape + event_shape``."""
        off, on = safe_log(self._supported_marginals()).split(self._num_variables, -1)
        return self._cast(log_odds(off, on).reshape(self.batch_shape + self.event_shape))

    @property
    def mean(self) -> Tensor:
        """Equals :attr:`marginals`."""
        return self.marginals

    @property
    def variance(self) -> Tensor:
        """Variances of the single variables, shape ``batch_shape + event_shape``."""
        off, on = self._supported_marginals().split(self._num_variables, -1)
        return self._cast((off * on).reshape(self.batch_shape + self.event_shape))

    def _score(self, value: Tensor) -> Tensor:
        given, observed, consistent = self._evidence
        flat = value.flatten(-len(self.event_shape))
        inside = ((flat == 0) | (flat == 1)).all(-1)
        label = flat.masked_fill(~inside.unsqueeze(-1), 0).to(torch.double)
        off, on = self._states[0].split(self._num_variables, -1)
        score = torch.where(label == 1, on, off).sum(-1)
        if self._paired:
            ends = label[..., self._edges.to(label.device)]
            score = score - self._penalties.where(ends[..., 0] != ends[..., 1], 0.0).sum(-1)
        if self._num_patterns:
            composition = self._table if self._scheme is None else self._scheme
            score = score + pattern_potential(self._activations(label), composition, self.temperature)
        agrees = (~observed | (label == given)).all(-1) & consistent & inside
        return score.masked_fill(~agrees, -torch.inf)

    def _activations(self, label: Tensor) -> Tensor:
        """What it is worth to switch hidden units on, shape ``(..., J)``."""
        weights, biases = self._patterns
        each = weights.reshape(weights.shape[:-1] + (self._num_patterns, self._num_variables))
        if each.shape[:-2].numel() == 1:
            return label @ each.reshape(each.shape[-2:]).T + biases
        return (each @ label.unsqueeze(-1)).squeeze(-1) + biases

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples, shape ``sample_shape + batch_shape + event_shape``."""
        shape = torch.Size(sample_shape)
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            drawn = self._drawn(shape.numel())
        return self._cast(drawn.reshape(shape + self.batch_shape + self.event_shape))

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + event_shape``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            self._limit_labelings("mode")
            best = self._scores.argmax(0)
        values = all_labelings(self._num_variables, self._states[0])
        return self._cast(values[best].reshape(self.batch_shape + self.event_shape))

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        log_z = self._supported_log_z
        if self._num_patterns:
            self._limit_labelings("entropy")
            log_probs = self._scores - log_z
            return self._cast(-(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(0))
        _, single, differ = self._marginals
        expected = (single * self._states[0].masked_fill(single == 0, 0.0)).sum(-1)
        if self._paired:
            expected = expected - (differ * self._penalties.masked_fill(differ == 0, 0.0)).sum(-1)
        return self._cast(log_z - expected)

    def _limit_labelings(self, name: str) -> None:
        if self._num_variables > MOST_PIXELS:
            raise NotImplementedError(
                f"{name}: patterns leave no way but to look at all labelings of at most {MOST_PIXELS} variables, got "
                f"{self._num_variables}; {self._instead[name]}"
            )

    def _drawn(self, number: int) -> Tensor:
        """Samples of shape ``(number, elements of the batch, D)``."""
        if self._hidden is None:
            logits = self._scores.reshape(len(self._scores), -1).T
            place = torch.distributions.Categorical(logits=logits).sample((number,))
            return all_labelings(self._num_variables, logits)[place]
        arguments = self._arguments(self._hidden)
        # Rows that are all the same are so many samples of one.
        copies = self.batch_shape.numel() if all(len(rows) == 1 for rows in arguments) else 1
        return self._mixture(self._hidden).sample(arguments, number * copies)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` values; more are never enumerated."""
        return is_enumerable(self._num_variables)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + event_shape``."""
        like = self._cast(torch.zeros((), device=self._evidence[0].device))
        values = enumerate_values(self._num_variables, 2, self.batch_shape, expand, like)
        return values.reshape(values.shape[:-1] + self.event_shape)
