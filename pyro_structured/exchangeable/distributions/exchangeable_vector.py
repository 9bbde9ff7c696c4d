"""Base class of distributions of vectors with exchangeable entries."""

__all__ = ["EMPTY_SUPPORT", "ExchangeableVector"]

from abc import abstractmethod
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.distributions.argument_checks import check_entries
from pyro_structured.foundation.distributions.discrete_vector import DiscreteVector
from pyro_structured.foundation.ops.enumeration import ENUMERATION_CAP, enumerate_values, is_enumerable
from pyro_structured.foundation.ops.evidence import log_odds
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

EMPTY_SUPPORT = (
    "statistic_logits: expected at least one level of positive probability in every batch element, but the support is "
    "empty"
)

Vector = TypeVar("Vector", bound="ExchangeableVector")


class ExchangeableVector(DiscreteVector):
    """Base class of distributions of vectors whose entries all have the same states."""

    statistic_logits: Tensor
    # Advice where values are too many to be enumerated.
    _advice = "estimate it from samples"

    @property
    def _num_categories(self) -> int:
        return 2

    @property
    def _num_states(self) -> tuple[int, ...]:
        return (self._num_categories,)

    @property
    @abstractmethod
    def _log_marginals(self) -> Tensor:
        """Log-probabilities of the values of all variables, shape ``batch_shape + (n, categories)``."""

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones, or of integers below the number of categories; also those of probability zero."""
        if self._num_categories == 2:
            return constraints.independent(constraints.boolean, 1)
        return constraints.independent(constraints.integer_interval(0, self._num_categories - 1), 1)

    def reweight(self: Vector, log_off: Tensor, log_on: Tensor) -> Vector:
        """Multiplies in independent evidence about every variable: the posterior, up to its constant.

        :param Tensor log_off: Log-likelihoods of the evidence if the variable is 0, shape broadcasts to ``(..., n)``;
            -inf is allowed.
        :param Tensor log_on: Log-likelihoods of the evidence if the variable is 1.
        :return: The distribution given the evidence, with the same queries, whose partition function keeps the
            evidence's weight. Queries raise where the evidence is impossible.
        :raises ValueError: if a shape does not broadcast, or there is a NaN or +inf.
        """
        check_entries(self.batch_shape + self.event_shape, log_off=log_off, log_on=log_on)
        self._check_evidence(log_off=log_off, log_on=log_on)
        shape = broadcast_shapes(log_off.shape, log_on.shape, self.event_shape)
        return self._multiplied(torch.stack([log_off.double().expand(shape), log_on.double().expand(shape)], -1))

    def log_evidence(self, log_off: Tensor, log_on: Tensor) -> Tensor:
        """Log-probability of independent evidence, the vector summed out; arguments are those of :meth:`reweight`.

        :return: The change of log Z, shape ``batch_shape`` broadcast with the leading axes of the evidence; -inf for
            impossible evidence.
        """
        return self._change(self.reweight(log_off, log_on))

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
        probs = self._log_marginals.exp()
        return self._cast(probs[..., 1] if self._num_categories == 2 else probs)

    @property
    def marginal_logits(self) -> Tensor:
        """Log-odds of binary variables, shape ``batch_shape + (n,)``; log-probabilities of more categories."""
        log_probs = self._log_marginals
        return self._cast(log_odds(*log_probs.unbind(-1)) if self._num_categories == 2 else log_probs)

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
        return self._mode_among(self._enumerate("mode"))

    def entropy(self) -> Tensor:
        """Entropy in nats, shape ``batch_shape``; by enumeration, up to ``2 ** 12`` vectors."""
        return self._entropy_over(self._enumerate("entropy"))

    def _enumerate(self, name: str) -> Tensor:
        if not self.has_enumerate_support:
            raise NotImplementedError(
                f"{name}: a mixture's has no closed form, and enumeration is capped at {ENUMERATION_CAP} vectors, got "
                f"2**{self.event_shape[0]}; {self._advice.format(name=name)}"
            )
        return self.enumerate_support(expand=False)

    @property
    def _value_dtype(self) -> torch.dtype:
        return self.statistic_logits.dtype if self._num_categories == 2 else torch.long
