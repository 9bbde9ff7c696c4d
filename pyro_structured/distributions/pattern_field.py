"""Sums over binary fields under patterns."""

__all__ = ["MOST_NUMBERS", "PatternField"]

from typing import Any

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.distributions.joint_field import joint_field
from pyro_structured.distributions.pattern_bounds import PatternBounds
from pyro_structured.distributions.perfect_draws import MAX_SWEEPS, perfect_draws
from pyro_structured.ops.anywhere import anywhere
from pyro_structured.ops.cardinality import require_support
from pyro_structured.ops.convolution import logsumexp, safe_log
from pyro_structured.ops.evidence import log_odds
from pyro_structured.ops.grid_inference import cost_of_grid
from pyro_structured.ops.hidden_states import (
    HiddenStates,
    cost_of_kinds,
    free_hidden_states,
    hidden_states,
    number_of_hidden_states,
)
from pyro_structured.ops.labelings import MOST_PIXELS, all_labelings
from pyro_structured.ops.marginal_inference import infer_marginals
from pyro_structured.ops.pattern_mixture import PatternMixture
from pyro_structured.ops.unit_powers import log_worth

# Numbers of the labelings that are looked at together.
NUMBERS_AT_ONCE = 2**22
# Numbers that a query may compute for each element of the batch.
MOST_NUMBERS = 2**30
# Higher temperatures have too many states of hidden units.
MOST_REPLICAS = 16


class PatternField(PatternBounds):
    """Queries that sum over the states of the hidden units, or over all labelings, whichever costs less."""

    _derived = ("_states", "_hidden", "_log_total", "_marginals", "_scores")

    @lazy_property
    def _hidden(self) -> HiddenStates | None:
        """States of hidden units to sum over; ``None`` where a sum over all labelings costs less."""
        number, variables = self._num_patterns, self._num_variables
        labelings = 2**variables * (number + 1) if variables <= MOST_PIXELS else None
        replicas = int(self.temperature) if number else 1
        each = cost_of_grid(self._shape) if self._paired else variables
        allowed, free = self._allowed_counts, self._scheme == "sum"
        states = None
        if not number or (replicas == self.temperature and 0 < replicas <= MOST_REPLICAS):
            states = number_of_hidden_states(number, replicas, allowed) * each
            states += 0 if free else cost_of_kinds(number, replicas, allowed)
        cost = min((cost for cost in (labelings, states) if cost is not None), default=None)
        if cost is None or cost > MOST_NUMBERS:
            self._refuse(labelings, states)
        if cost != states:
            return None
        if free:
            return free_hidden_states(number, replicas, self._states[0])
        return hidden_states(number, replicas, allowed)

    def _refuse(self, labelings: int | None, states: int | None) -> None:
        costs = {"hidden states": states, "labelings": labelings}
        found = ", ".join(
            f"{float(min(cost, 10**99)):.1e} over {name}" for name, cost in costs.items() if cost is not None
        )
        raise NotImplementedError(
            f"log Z: exact sums are limited to {MOST_NUMBERS:.1e} numbers, got {found or 'no way to sum'}; "
            "log_prob_bounds, estimate_log_prob(value, AnnealedImportanceSampling()) and unnormalized_log_prob have no "
            "limit; composition='min', whole temperatures, no pairwise terms, fewer patterns or a smaller grid make "
            "exact sums cheap"
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
        log_weights = log_worth(biases, shares) + hidden.log_weights(self._table)
        parts = (self._known_states, self._penalties, weights, log_weights)
        return tuple(self._rows(part) for part in parts)

    def _mixture(self, hidden: HiddenStates) -> PatternMixture:
        return PatternMixture(hidden.shares.to(self._states[0].device), self._shape, self._paired)

    @lazy_property
    def _scores(self) -> Tensor:
        """Log-weights of all labelings that the evidence leaves, shape ``(2 ** D,) + batch_shape``."""
        values = all_labelings(self._num_variables, self._states[0])
        rank = len(self.batch_shape)
        numbers = self.batch_shape.numel() * (self._num_patterns + self._num_variables)
        parts = [
            self._score(some.reshape((-1,) + (1,) * rank + self.event_shape)).expand((len(some),) + self.batch_shape)
            for some in values.split(max(1, NUMBERS_AT_ONCE // max(1, numbers)))
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

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples, shape ``sample_shape + batch_shape + event_shape``: from sums, or, where these would take too
        long, as :meth:`perfect_sample`.
        """
        shape = torch.Size(sample_shape)
        try:
            _ = self._hidden
        except NotImplementedError as too_large:
            try:
                return self.perfect_sample(shape)
            except NotImplementedError as error:
                raise NotImplementedError(f"{too_large}; {error}") from None
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            full = shape + self.batch_shape
            drawn = self._drawn(shape.numel()) if full.numel() else self._states[0].new_zeros(full + self.event_shape)
        return self._cast(drawn.reshape(shape + self.batch_shape + self.event_shape))

    def perfect_sample(self, sample_shape: Any = (), max_sweeps: int = MAX_SWEEPS) -> Tensor:
        """Exact samples of fields of any size by monotone coupling from the past.

        Penalties and weights have to be balanced: if labels, patterns and their couplings are drawn as a graph, every
        cycle has an even number of negative ones. Penalties of at least 0 are, with patterns whose weights have one
        sign each. Hidden units are drawn as well, so that the composition has to be ``"sum"`` and the temperature a
        positive integer T, if there are patterns.

        A sweep of one sample costs O(T·J·D); how many it takes is random. They are few if couplings are weak, and
        exponentially many in the size of the field if they are so strong that it has several phases. Chains that have
        not met at ``max_sweeps`` raise an error: to try again until they do would prefer samples that meet soon.

        :param sample_shape: As for :meth:`sample`.
        :param int max_sweeps: How many sweeps ago chains may start, at least 1.
        :return: Shape ``sample_shape + batch_shape + event_shape``.
        :raises NotImplementedError: if couplings are not balanced, with a cycle that shows it.
        :raises RuntimeError: if some chains have not met.

        **References**

        Propp, Wilson (1996): Exact sampling with coupled Markov chains and applications to statistical mechanics.
        Random Structures and Algorithms 9.

        Example::

            >>> from pyro_structured.distributions import GridCRF
            >>> from pyro_structured.structures import Grid
            >>> grid = Grid(40, 50)
            >>> GridCRF(torch.zeros(40, 50), torch.full((grid.num_edges,), 0.5), grid).perfect_sample((3,)).shape
            torch.Size([3, 40, 50])
        """
        if isinstance(max_sweeps, bool) or not isinstance(max_sweeps, int) or max_sweeps < 1:
            raise ValueError(f"max_sweeps: expected a positive integer, got {max_sweeps!r}")
        shape = torch.Size(sample_shape)
        if not self.batch_shape.numel():
            return self._cast(self._constant.new_zeros(shape + self.batch_shape + self.event_shape))
        field = joint_field(self)
        copies = self.batch_shape.numel() // field.num_rows
        drawn = perfect_draws(field, shape.numel() * copies, max_sweeps, self.event_shape).transpose(0, 1)
        return self._cast(drawn.reshape(shape + self.batch_shape + self.event_shape))

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + event_shape``: by looking at all, or, if there are more than 18
        variables, by branch and bound, with a proof.
        """
        if self._num_variables > MOST_PIXELS:
            if self._scheme is None:
                raise NotImplementedError(
                    f"mode: expected composition='sum' or 'min' where there are more than {MOST_PIXELS} variables, got "
                    f"a table and {self._num_variables}; map('em') finds good labels"
                )
            best, found = self.map("branch_and_bound")
            if not bool(found.optimal.all()):
                raise NotImplementedError(
                    f"mode: branch and bound proved no optimum with {int(found.num_cuts.max())} cuts; map returns the "
                    "best labels and a bound"
                )
            return best
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            place = self._scores.argmax(0)
        values = all_labelings(self._num_variables, self._states[0])
        return self._cast(values[place].reshape(self.batch_shape + self.event_shape))

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        log_z = self._supported_log_z
        if self._num_patterns:
            if self._num_variables > MOST_PIXELS:
                raise NotImplementedError(
                    f"entropy: patterns leave no way but to look at all labelings of at most {MOST_PIXELS} variables, "
                    f"got {self._num_variables}; estimate it by -log_prob(sample((n,))).mean(0)"
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
            place = torch.distributions.Categorical(logits=logits).sample((number,))
            return all_labelings(self._num_variables, logits)[place]
        arguments = self._arguments(self._hidden)
        # Rows that are all the same are so many samples of one.
        copies = self.batch_shape.numel() if all(len(rows) == 1 for rows in arguments) else 1
        return self._mixture(self._hidden).sample(arguments, number * copies)
