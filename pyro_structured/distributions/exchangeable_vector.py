"""What distributions of vectors with exchangeable entries have in common."""

__all__ = ["EMPTY_SUPPORT", "IMPOSSIBLE_EVIDENCE", "ExchangeableVector"]

from abc import abstractmethod
from typing import Any, TypeVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.distributions.argument_checks import check_entries, expanded_batch
from pyro_structured.ops.cardinality import require, require_support
from pyro_structured.ops.enumeration import ENUMERATION_CAP, enumerate_values, is_enumerable
from pyro_structured.ops.evidence import log_odds, merge_evidence

EMPTY_SUPPORT = (
    "statistic_logits: expected at least one level of positive probability in every batch element, but the support is "
    "empty"
)
IMPOSSIBLE_EVIDENCE = (
    "value: expected evidence of positive probability in every batch element, but no value is compatible with it"
)

Vector = TypeVar("Vector", bound="ExchangeableVector")


class ExchangeableVector(TorchDistribution):
    """Queries that follow from log-weights of values and of what the evidence leaves of them.

    A constant that all log-weights have in common is kept apart, because it would swallow their digits.
    """

    statistic_logits: Tensor
    _evidence: Any
    _empty: str
    # What is derived from the parameters and remembered: graphs can be neither copied nor pickled.
    _derived: tuple[str, ...] = ()
    # Instead of enumerating values.
    _advice = "estimate it from samples"

    @property
    def _num_categories(self) -> int:
        return 2

    @abstractmethod
    def _score(self, value: Tensor) -> Tensor:
        """Log-weights of values, without the constant, in double precision."""

    @property
    @abstractmethod
    def _log_z(self) -> Tensor:
        """Logarithm of the sum of the weights that the evidence leaves, without the constant; -inf if none is."""

    @property
    @abstractmethod
    def _constant(self) -> Tensor:
        """What all log-weights have in common."""

    @property
    @abstractmethod
    def _log_marginals(self) -> Tensor:
        """Log-probabilities of the values of all variables, shape ``batch_shape + (n, categories)``."""

    def expand(self: Vector, batch_shape: Any, _instance: Any = None) -> Vector:
        """Distribution with another batch shape; parameters are expanded without being copied."""
        new: Vector = self._get_checked_instance(type(self), _instance)  # type: ignore[no-untyped-call]
        return self._copy(new, self._evidence, expanded_batch(self.batch_shape, batch_shape), self._empty)

    def _copy(self: Vector, new: Vector, evidence: Any, batch_shape: torch.Size, empty: str) -> Vector:
        """Fills in a new instance.

        :param evidence: Values, where they were observed, and whether they do not contradict each other; what it is for
            a class that has a :meth:`condition` of its own, that class says.
        :param str empty: What to say where nothing is possible.
        """
        new.__dict__.update(self.__getstate__(), _evidence=evidence, _empty=empty)
        for name, constraint in self.arg_constraints.items():
            tensor = getattr(self, name)
            setattr(new, name, tensor.expand(batch_shape + tensor.shape[tensor.dim() - constraint.event_dim :]))
        TorchDistribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Without what is derived from the parameters."""
        return {name: value for name, value in self.__dict__.items() if name not in self._derived}

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Zeros and ones, or integers below the number of categories; also values of probability zero."""
        if self._num_categories == 2:
            return constraints.independent(constraints.boolean, 1)
        return constraints.independent(constraints.integer_interval(0, self._num_categories - 1), 1)

    @property
    def _supported_log_z(self) -> Tensor:
        return require_support(self._log_z, self._empty)

    @property
    def log_partition_function(self) -> Tensor:
        """Logarithm of the sum of all weights that the evidence leaves, shape ``batch_shape``."""
        return self._cast(self._supported_log_z + self._constant)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability, everything latent summed out; -inf for impossible values, also for those outside the
        support.
        """
        if self._validate_args:
            self._validate_sample(value)
        return self._cast(self._score(value) - self._supported_log_z)

    def unnormalized_log_prob(self, value: Tensor) -> Tensor:
        """Log-weight of a value, without log Z; arguments and shape as for :meth:`log_prob`."""
        return self._cast(self._score(value) + self._constant)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` values; more are never enumerated."""
        return is_enumerable(self.event_shape[0], self._num_categories)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + (n,)``."""
        like = self.statistic_logits.new_zeros((), dtype=self._value_dtype)
        return enumerate_values(self.event_shape[0], self._num_categories, self.batch_shape, expand, like)

    @property
    def marginals(self) -> Tensor:
        """Probabilities that a variable is 1, shape ``batch_shape + (n,)``; with more than two categories those of all,
        shape ``batch_shape + (n, categories)``.
        """
        found = self._log_marginals.exp()
        return self._cast(found[..., 1] if self._num_categories == 2 else found)

    @property
    def marginal_logits(self) -> Tensor:
        """Log-odds of binary variables, shape ``batch_shape + (n,)``; log-probabilities of more categories."""
        found = self._log_marginals
        return self._cast(log_odds(*found.unbind(-1)) if self._num_categories == 2 else found)

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
        if self._num_categories > 2:
            raise NotImplementedError(f"{name}: categories have none; use marginals")

    @property
    def mode(self) -> Tensor:
        """A most probable vector, shape ``batch_shape + (n,)``; by enumeration, up to ``2 ** 12`` vectors."""
        values = self._enumerate("mode")
        with torch.no_grad():
            best = (self._score(values) - self._supported_log_z).argmax(0)
        return values.reshape(len(values), -1)[best]

    def entropy(self) -> Tensor:
        """Entropy in nats, shape ``batch_shape``; by enumeration, up to ``2 ** 12`` vectors."""
        log_probs = self._score(self._enumerate("entropy")) - self._supported_log_z
        return self._cast(-(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(0))

    def _enumerate(self, name: str) -> Tensor:
        if not self.has_enumerate_support:
            raise NotImplementedError(
                f"{name}: a mixture's has no closed form, and enumeration is capped at {ENUMERATION_CAP} vectors, got "
                f"2**{self.event_shape[0]}; {self._advice.format(name=name)}"
            )
        return self.enumerate_support(expand=False)

    def condition(self: Vector, value: Tensor, observed: Tensor) -> Vector:
        """Fixes some variables; everything else stays random.

        :param Tensor value: Zeros and ones, or categories, where ``observed``, anything elsewhere; shape broadcasts to
            ``(..., n)``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``.
        :return: The distribution of whole vectors given the observed entries, with the same queries and gradients. Its
            partition function keeps the weight of the evidence: its logarithm minus ``log_partition_function`` is
            :meth:`marginal_log_prob`. Queries raise where the evidence is impossible.
        """
        check_entries(self.batch_shape + self.event_shape, value=value, observed=observed)
        known = torch.where(observed, value, 0)
        outside = (known < 0) | (known >= self._num_categories) | (known != known.long())
        expected = "zeros and ones" if self._num_categories == 2 else f"integers in range({self._num_categories})"
        require(outside, f"value: expected {expected} where observed, got other numbers")
        evidence = merge_evidence(self._evidence, known.long(), observed)
        batch = torch.Size(torch.broadcast_shapes(evidence[0].shape[:-1], self.batch_shape))
        return self._copy(type(self).__new__(type(self)), evidence, batch, IMPOSSIBLE_EVIDENCE)

    def marginal_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probability of the observed entries, all others summed out; arguments as for :meth:`condition`.

        :return: Shape ``batch_shape`` broadcast with the leading axes of the arguments; -inf for impossible evidence.
        """
        return self._cast(self.condition(value, observed)._log_z - self._supported_log_z)

    @property
    def _value_dtype(self) -> torch.dtype:
        return self.statistic_logits.dtype if self._num_categories == 2 else torch.long

    def _cast(self, tensor: Tensor) -> Tensor:
        dtype = torch.float32
        for name in self.arg_constraints:
            dtype = torch.promote_types(dtype, getattr(self, name).dtype)
        return tensor.to(dtype)
