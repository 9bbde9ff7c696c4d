"""Partially exchangeable variables."""

__all__ = ["ExchangeableBlock"]

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.distributions.argument_checks import check_data, check_entries, check_vector, expanded_batch
from pyro_structured.ops.cardinality import require, require_support
from pyro_structured.ops.convolution import logsumexp
from pyro_structured.ops.enumeration import enumerate_values, is_enumerable
from pyro_structured.ops.evidence import log_odds, merge_evidence
from pyro_structured.ops.level_tables import level_tables
from pyro_structured.structures.statistic import Statistic

EMPTY_SUPPORT = (
    "statistic_logits: expected at least one level of positive probability in every batch element, but the support is "
    "empty"
)
IMPOSSIBLE_EVIDENCE = (
    "value: expected evidence of positive probability in every batch element, but no value is compatible with it"
)


class ExchangeableBlock(TorchDistribution):
    r"""Discrete variables that are all alike: their probability depends on a statistic alone.

    .. math::
        p(x) = \frac{w_{T(x)}}{|S_{T(x)}|}, \qquad w = \mathrm{softmax}(\text{statistic\_logits}), \qquad
        S_t = \{x : T(x) = t\}.

    ``statistic_logits`` weigh whole level sets, empty ones excepted: first a level is drawn, then a member of its set.
    (Potentials that weigh single values, such as those of a :class:`RecursiveCardinality`, differ by
    :math:`\log|S_t|`: see :meth:`from_potentials`.) With :class:`~pyro_structured.structures.Count` all variables are
    exchangeable: parity, thresholds and any other symmetric function of them can be learned.

    Values have shape ``(..., n)``: zeros and ones in the parameters' dtype if the variables are binary, long integers
    if they have more categories. :meth:`log_prob` accepts booleans, integers and floating point numbers.

    **Exact**: every query, in float64, at the cost that the statistic states.

    :param Tensor statistic_logits: Log-weights of the level sets, shape ``(..., statistic.num_levels)``, less than
        +inf; -inf where a level is impossible.
    :param Statistic statistic: What the probability depends on.
    :raises ValueError: if a shape is wrong or there is a NaN or +inf. Where no value has a positive probability, the
        first query raises.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Theorem 2.3, Equation (1); Proposition 3.1;
    Theorem 3.2.

    Example::

        >>> from pyro_structured.structures import Count
        >>> d = ExchangeableBlock(torch.tensor([0.0, -torch.inf, 0.0, -torch.inf]), Count(3))  # an even number of ones
        >>> d.log_prob(torch.tensor([0.0, 1.0, 1.0])).exp()
        tensor(0.1667)
        >>> d.condition(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([True, True, False])).marginals
        tensor([1., 1., 0.])
    """

    arg_constraints = {"statistic_logits": constraints.independent(constraints.less_than(torch.inf), 1)}

    def __init__(self, statistic_logits: Tensor, statistic: Statistic, validate_args: bool | None = None) -> None:
        check_vector("statistic_logits", statistic_logits)
        if not isinstance(statistic, Statistic):
            raise ValueError(f"statistic: expected a Statistic, got {type(statistic).__name__}")
        if statistic_logits.shape[-1] != statistic.num_levels:
            raise ValueError(
                f"statistic_logits: expected a last axis of {statistic.num_levels} numbers, one for each level, got "
                f"shape {tuple(statistic_logits.shape)}"
            )
        value = torch.zeros(statistic.num_variables, dtype=torch.long, device=statistic_logits.device)
        self._assign(statistic_logits, statistic, (value, value.bool(), value.new_ones((), dtype=torch.bool)))
        self._empty = EMPTY_SUPPORT
        shape = torch.Size([statistic.num_variables])
        super().__init__(statistic_logits.shape[:-1], shape, validate_args=validate_args)

    def _assign(self, statistic_logits: Tensor, statistic: Statistic, evidence: tuple[Tensor, Tensor, Tensor]) -> None:
        """Evidence: values, where they were observed, and whether they do not contradict each other."""
        self.statistic_logits, self.statistic, self._evidence = statistic_logits, statistic, evidence

    @classmethod
    def from_potentials(
        cls, potentials: Tensor, statistic: Statistic, validate_args: bool | None = None
    ) -> "ExchangeableBlock":
        r"""Makes the distribution :math:`p(x) \propto \exp(\text{potentials}_{T(x)})`.

        :param Tensor potentials: Log-weights of single values, shape ``(..., statistic.num_levels)``.
        :param Statistic statistic: What the probability depends on.
        """
        return cls(potentials + statistic.log_sizes.to(potentials), statistic, validate_args)

    @classmethod
    def from_data(
        cls, values: Tensor, statistic: Statistic, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> "ExchangeableBlock":
        r"""Maximises the likelihood: the weight of a level is its share in the data (Theorem 3.2).

        :param Tensor values: Shape ``(N, n)``.
        :param Statistic statistic: What the probability depends on.
        :param float smoothing: Added to the number of rows of every level that is not empty, at least 0.
        :param Tensor weights: Weights of the rows, at least 0, shape ``(..., N)``, which makes a batch of
            distributions; ``None``: all are 1.
        """
        weights = check_data(values, statistic.num_variables, statistic.num_categories, smoothing, weights)
        level = statistic.value(values).expand(weights.shape)
        number = weights.new_zeros(weights.shape[:-1] + (statistic.num_levels,)).scatter_add(-1, level, weights)
        possible = statistic.log_sizes.to(number.device) > -torch.inf
        return cls((number + smoothing * possible).log(), statistic)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is derived from the parameters: graphs can be neither copied nor pickled."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_weights", "_log_levels")}

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ExchangeableBlock":
        """Distribution with another batch shape; parameters are expanded without being copied."""
        new: ExchangeableBlock = self._get_checked_instance(ExchangeableBlock, _instance)  # type: ignore[no-untyped-call]
        return self._copy(new, self._evidence, expanded_batch(self.batch_shape, batch_shape), self._empty)

    def _copy(
        self, new: "ExchangeableBlock", evidence: tuple[Tensor, Tensor, Tensor], batch_shape: torch.Size, empty: str
    ) -> "ExchangeableBlock":
        logits = self.statistic_logits.expand(batch_shape + self.statistic_logits.shape[-1:])
        new._assign(logits, self.statistic, evidence)
        new._empty = empty
        TorchDistribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        statistic_logits: torch.Size, statistic: Statistic
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shape of ``statistic_logits``, and the statistic itself."""
        return torch.Size(statistic_logits[:-1]), torch.Size([statistic.num_variables])

    @property
    def _is_binary(self) -> bool:
        return self.statistic.num_categories == 2

    @property
    def _value_dtype(self) -> torch.dtype:
        return self.statistic_logits.dtype if self._is_binary else torch.long

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Zeros and ones, or integers below the number of categories; also values of probability zero."""
        if self._is_binary:
            return constraints.independent(constraints.boolean, 1)
        return constraints.independent(constraints.integer_interval(0, self.statistic.num_categories - 1), 1)

    @property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Logits of the levels without a constant, which would swallow their digits, and the constant."""
        sizes = self.statistic.log_sizes.to(self.statistic_logits.device)
        logits = self.statistic_logits.masked_fill(sizes == -torch.inf, -torch.inf)
        return level_tables(logits, [self.statistic.num_levels - 1])

    @lazy_property
    def _weights(self) -> Tensor:
        """Log-weights of single values, up to a constant, shape ``batch_shape + (num_levels,)``."""
        sizes = self.statistic.log_sizes.to(self.statistic_logits.device)
        return self._leveled[0] - sizes.masked_fill(sizes == -torch.inf, 0.0)

    @lazy_property
    def _log_levels(self) -> Tensor:
        """Log-weights of what the evidence leaves of the level sets."""
        value, observed, consistent = self._evidence
        completions = self.statistic.log_completions(value, observed)
        found = self._weights + completions.masked_fill(~consistent.unsqueeze(-1), -torch.inf)
        return found.expand(self.batch_shape + found.shape[-1:])

    @property
    def _log_z(self) -> Tensor:
        return logsumexp(self._log_levels)

    @property
    def log_partition_function(self) -> Tensor:
        """Logarithm of the sum of all weights that the evidence leaves, shape ``batch_shape``."""
        return self._cast(require_support(self._log_z, self._empty) + self._leveled[1])

    @property
    def level_probs(self) -> Tensor:
        """Probabilities of the levels, shape ``batch_shape + (num_levels,)``."""
        return self._cast((self._log_levels - require_support(self._log_z, self._empty).unsqueeze(-1)).exp())

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws a level, then a member of its set; shape ``sample_shape + batch_shape + (n,)``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            level = torch.distributions.Categorical(logits=self._log_levels, validate_args=False).sample(sample_shape)
            value, observed, _ = self._evidence
            drawn = self.statistic.sample(level, value, observed)
        return drawn.to(self._value_dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability; -inf for impossible values, also for those that are not in any category."""
        if self._validate_args:
            self._validate_sample(value)
        return self._cast(self._score(value) - require_support(self._log_z, self._empty))

    def unnormalized_log_prob(self, value: Tensor) -> Tensor:
        """Log-weight of a value, without log Z; arguments and shape as for :meth:`log_prob`."""
        return self._cast(self._score(value) + self._leveled[1])

    def _score(self, value: Tensor) -> Tensor:
        given, observed, consistent = self._evidence
        inside = ((value >= 0) & (value < self.statistic.num_categories) & (value == value.long())).all(-1)
        level = self.statistic.value(torch.where(inside.unsqueeze(-1), value, 0))
        batch = torch.broadcast_shapes(level.shape, self.batch_shape)
        weights = self._weights.expand(batch + self._weights.shape[-1:])
        score = weights.gather(-1, level.expand(batch).unsqueeze(-1)).squeeze(-1)
        agrees = (~observed | (value == given)).all(-1) & consistent
        return score.masked_fill(~(inside & agrees), -torch.inf)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` values; more are never enumerated."""
        return is_enumerable(self.statistic.num_variables, self.statistic.num_categories)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + (n,)``."""
        like = self.statistic_logits if self._is_binary else self._evidence[0]
        number, base = self.statistic.num_variables, self.statistic.num_categories
        return enumerate_values(number, base, self.batch_shape, expand, like)

    @property
    def _log_marginals(self) -> Tensor:
        require_support(self._log_z, self._empty)
        value, observed, _ = self._evidence
        found = self.statistic.log_marginals(self._weights, value, observed)
        return found.expand(self.batch_shape + found.shape[-2:])

    @property
    def marginals(self) -> Tensor:
        """Probabilities that a variable is 1, shape ``batch_shape + (n,)``; with more than two categories those of all,
        shape ``batch_shape + (n, categories)``.
        """
        found = self._log_marginals.exp()
        return self._cast(found[..., 1] if self._is_binary else found)

    @property
    def marginal_logits(self) -> Tensor:
        """Log-odds of binary variables, shape ``batch_shape + (n,)``; log-probabilities of more categories."""
        found = self._log_marginals
        if not self._is_binary:
            return self._cast(found)
        return self._cast(log_odds(*found.unbind(-1)))

    @property
    def mean(self) -> Tensor:
        """Equals :attr:`marginals` of binary variables; categories have no mean."""
        self._refuse_categories("mean")
        return self.marginals

    @property
    def variance(self) -> Tensor:
        """Variances of the single binary variables, shape ``batch_shape + (n,)``."""
        self._refuse_categories("variance")
        return self._cast(self._log_marginals.sum(-1).exp())

    def _refuse_categories(self, name: str) -> None:
        if not self._is_binary:
            raise NotImplementedError(f"{name}: categories have none; use marginals")

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + (n,)``."""
        require_support(self._log_z, self._empty)
        with torch.no_grad():
            weights = self._weights.masked_fill(self._log_levels == -torch.inf, -torch.inf)
            value, observed, _ = self._evidence
            found = self.statistic.complete(weights.argmax(-1), value, observed)
        return found.to(self._value_dtype).expand(self.batch_shape + self.event_shape)

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        log_z = require_support(self._log_z, self._empty)
        impossible = self._log_levels == -torch.inf
        probs = (self._log_levels - log_z.unsqueeze(-1)).exp()
        surprise = (log_z.unsqueeze(-1) - self._weights).masked_fill(impossible, 0.0)
        return self._cast((probs * surprise).sum(-1))

    def condition(self, value: Tensor, observed: Tensor) -> "ExchangeableBlock":
        """Fixes some variables.

        :param Tensor value: Categories where ``observed``, anything elsewhere; shape broadcasts to ``(..., n)``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``.
        :return: The distribution of whole values given the observed entries, with the same queries and gradients. Its
            partition function keeps the weight of the evidence: its logarithm minus ``log_partition_function`` is
            :meth:`marginal_log_prob`. Queries raise where the evidence is impossible.
        """
        check_entries(self.batch_shape + self.event_shape, value=value, observed=observed)
        known = torch.where(observed, value, 0)
        outside = (known < 0) | (known >= self.statistic.num_categories) | (known != known.long())
        categories = f"integers in range({self.statistic.num_categories})"
        require(outside, f"value: expected {categories} where observed, got other numbers")
        evidence = merge_evidence(self._evidence, known.long(), observed)
        batch = torch.Size(torch.broadcast_shapes(evidence[0].shape[:-1], self.batch_shape))
        return self._copy(ExchangeableBlock.__new__(ExchangeableBlock), evidence, batch, IMPOSSIBLE_EVIDENCE)

    def marginal_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probability of the observed entries, all others summed out; arguments as for :meth:`condition`.

        :return: Shape ``batch_shape`` broadcast with the leading axes of the arguments; -inf for impossible evidence.
        """
        return self._cast(self.condition(value, observed)._log_z - require_support(self._log_z, self._empty))

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(torch.promote_types(self.statistic_logits.dtype, torch.float32))
