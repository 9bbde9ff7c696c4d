"""Base class of discrete distributions that can be conditioned on evidence."""

__all__ = ["IMPOSSIBLE_EVIDENCE", "DiscreteVector", "exact_log_evidence", "exact_log_prob", "result_dtype"]

import math
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyro_structured.foundation.distributions.argument_checks import check_entries, check_validation, expanded_batch
from pyro_structured.foundation.ops.evidence import merge_evidence
from pyro_structured.foundation.ops.requirements import require, require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes, narrow_repeated

IMPOSSIBLE_EVIDENCE = (
    "value: expected evidence of positive probability in every batch element, but no value is compatible with it"
)

Vector = TypeVar("Vector", bound="DiscreteVector")


class DiscreteVector(TorchDistribution):
    """Queries that follow from log-weights of values and their sum over all values that agree with the evidence.

    A constant that all log-weights have in common is kept apart, because their digits could be lost next to it.
    Arguments and values are validated where there are any rows: the constraints of torch cannot be checked without.
    """

    _evidence: Any
    _empty: str
    # Parameters before expansion, if there was any.
    _unexpanded: Mapping[str, Tensor] = MappingProxyType({})
    # Log-weights of all states that evidence has multiplied in, less the largest of each variable, shape (..., n,
    # states), and these largest ones, shape (..., n), in double precision; None where there is no such evidence.
    _weighting: tuple[Tensor, Tensor] | None = None
    # Attributes that are derived from the parameters and remembered: graphs can be neither copied nor pickled.
    _derived: tuple[str, ...] = ()

    def __init__(self, batch_shape: Any, event_shape: Any, validate_args: bool | None = None) -> None:
        check_validation(validate_args)
        # Parts of the shapes of tensors whose provenance Pyro tracks are tuples.
        batch_shape, event_shape = torch.Size(batch_shape), torch.Size(event_shape)
        full = batch_shape.numel() > 0
        if validate_args is None and torch.compiler.is_compiling():
            # Graphs look at no values; torch.compile turns validation off, too, but somebody may have turned it on.
            validate_args = False
        super().__init__(batch_shape, event_shape, validate_args=validate_args if full else False)

    def _validate_sample(self, value: Tensor) -> None:
        if not isinstance(value, Tensor) or value.numel():
            super()._validate_sample(value)
        else:
            check_entries(self.batch_shape + self.event_shape, len(self.event_shape), value=value)

    @abstractmethod
    def _score(self, value: Tensor) -> Tensor:
        """Log-weights of values, without the constant, in double precision."""

    @property
    @abstractmethod
    def _log_z(self) -> Tensor:
        """Log-sum of the weights of values that agree with the evidence, without the constant; -inf if none does."""

    @property
    @abstractmethod
    def _constant(self) -> Tensor:
        """Term that all log-weights have in common."""

    @property
    @abstractmethod
    def _num_states(self) -> tuple[int, ...]:
        """Numbers of states of the variables, or of all of them alike."""

    @property
    def _event_dims(self) -> Mapping[str, int]:
        """Numbers of event axes of the tensors that are expanded with the batch: those of the parameters."""
        return {name: constraint.event_dim for name, constraint in self.arg_constraints.items()}

    def expand(self: Vector, batch_shape: Any, _instance: Any = None) -> Vector:
        """Distribution with another batch shape; parameters are expanded without being copied."""
        new: Vector = self._get_checked_instance(type(self), _instance)  # type: ignore[no-untyped-call]
        return self._copy(new, self._evidence, expanded_batch(self.batch_shape, batch_shape), self._empty)

    def _copy(
        self,
        new: Vector,
        evidence: Any,
        batch_shape: torch.Size,
        empty: str,
        changed: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> Vector:
        """Fills in a new instance.

        :param new: An instance of the same class, or of one that has fewer parameters.
        :param evidence: Values, booleans that mark the observed ones, and whether observations are consistent; classes
            that override :meth:`condition` have their own form.
        :param torch.Size batch_shape: Shape to which parameters are expanded.
        :param str empty: Message of the error where no value is possible.
        :param changed: Parameters that replace those of this instance, by name.
        """
        computed = {*self._derived, *self.arg_constraints, *self._event_dims}
        state = {name: value for name, value in self.__dict__.items() if name not in computed}
        new.__dict__.update(state, _evidence=evidence, _empty=empty, _unexpanded={})
        given = {name: changed[name] if name in changed else self._parameter(name) for name in new._event_dims}
        new._assign(given, batch_shape)
        TorchDistribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _assign(self, given: Mapping[str, Tensor], batch_shape: torch.Size) -> None:
        """Sets parameters, expanded to a batch shape, and keeps the given ones for :meth:`_parameter`."""
        self._unexpanded = {**self._unexpanded, **given}
        event_dims = self._event_dims
        for name, tensor in given.items():
            setattr(self, name, tensor.expand(batch_shape + tensor.shape[tensor.dim() - event_dims[name] :]))

    def _parameter(self, name: str) -> Tensor:
        """Parameter before :meth:`expand`, through which gradients would take as much memory as the whole batch."""
        tensor: Tensor = self._unexpanded[name] if name in self._unexpanded else getattr(self, name)
        return tensor

    def __getstate__(self) -> dict[str, Any]:
        """State without attributes derived from the parameters, and without expanded parameters, which cannot be copied
        if they require gradients.
        """
        expanded = {*self.arg_constraints, *self._unexpanded} if self._unexpanded else set()
        return {name: value for name, value in self.__dict__.items() if name not in expanded.union(self._derived)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Expands the parameters anew."""
        self.__dict__.update(state)
        self._assign(self._unexpanded, self.batch_shape)

    @property
    def _supported_log_z(self) -> Tensor:
        return require_support(self._log_z, self._empty)

    @property
    def log_partition_function(self) -> Tensor:
        """Logarithm of the sum of the weights of all values that agree with the evidence, shape ``batch_shape``."""
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
        if self._validate_args:
            self._validate_sample(value)
        weight = self._score(value) + self._constant
        return self._cast(weight.expand(broadcast_shapes(weight.shape, self.batch_shape)))

    def condition(self: Vector, value: Tensor, observed: Tensor) -> Vector:
        """Fixes some variables; everything else stays random.

        :param Tensor value: Zeros and ones, or categories, where ``observed``, anything elsewhere; shape broadcasts to
            ``batch_shape + event_shape``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``.
        :return: The distribution of whole values given the observed entries, with the same queries and gradients. Its
            partition function keeps the weight of the evidence: its logarithm minus ``log_partition_function`` is
            :meth:`marginal_log_prob`. Queries raise where the evidence is impossible.
        """
        known, observed = self._observations(value, observed)
        evidence = merge_evidence(self._evidence, known, observed)
        batch = broadcast_shapes(evidence[0].shape[:-1], self.batch_shape)
        return self._copy(type(self).__new__(type(self)), evidence, batch, IMPOSSIBLE_EVIDENCE)

    def _observations(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Observed states, zeros elsewhere, and booleans that mark them, after checks, with one event axis; arguments
        as for :meth:`condition`.
        """
        rank = len(self.event_shape)
        check_entries(self.batch_shape + self.event_shape, rank, value=value, observed=observed)
        value, observed = (
            tensor.expand(broadcast_shapes(tensor.shape, self.event_shape)).flatten(-rank)
            for tensor in (value, observed)
        )
        known = torch.where(observed, value, 0)
        states, sizes = known.long(), self._num_states
        limits: Tensor | int = sizes[0]
        if len(set(sizes)) > 1:
            limits, expected = torch.tensor(sizes, device=known.device), f"integers below {sizes}"
        else:
            expected = "zeros and ones" if limits == 2 else f"integers in range({limits})"
        outside = (known != states) | (states < 0) | (states >= limits)
        require(outside, f"value: expected {expected} where observed, got other numbers")
        return states, observed

    def marginal_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probability of the observed entries, all others summed out; arguments as for :meth:`condition`.

        :return: Shape ``batch_shape`` broadcast with the leading axes of the arguments; -inf for impossible evidence.
        """
        return self._cast(self.condition(value, observed)._log_z - self._supported_log_z)

    def _check_evidence(self, **log_weights: Tensor) -> None:
        """Raises a ValueError unless all log-likelihoods are less than +inf."""
        if self._validate_args:
            for name, numbers in log_weights.items():
                require(~(numbers < math.inf), f"{name}: expected numbers less than +inf, got +inf or NaN")

    def _change(self, given: "DiscreteVector") -> Tensor:
        """Change of log Z by evidence, -inf where it is impossible.

        :param DiscreteVector given: The distribution given the evidence, of the same family.
        """
        return self._cast(exact_log_evidence(given, self))

    def _multiplied(self: Vector, log_weights: Tensor) -> Vector:
        """The distribution given independent evidence about every variable, kept beside the parameters.

        :param Tensor log_weights: Log-likelihoods of the evidence in each state, less than +inf, -inf past a variable's
            own states, shape ``(..., n, states)``.
        """
        weights = log_weights.double()
        if self._weighting is not None:
            weights = weights + self._weighting[0]
        largest = weights.detach().amax(-1)
        largest = largest.masked_fill(largest == -math.inf, 0.0)
        batch = broadcast_shapes(weights.shape[:-2], self.batch_shape)
        new = self._copy(type(self).__new__(type(self)), self._evidence, batch, IMPOSSIBLE_EVIDENCE)
        before = 0.0 if self._weighting is None else self._weighting[1]
        new._weighting = weights - largest.unsqueeze(-1), largest + before
        return new

    @property
    def _weighting_constant(self) -> Tensor | float:
        """Log weight that evidence has multiplied in, without :attr:`_state_weights`."""
        return 0.0 if self._weighting is None else self._weighting[1].sum(-1)

    @property
    def _state_weights(self) -> Tensor:
        """Log-weights of all states, -inf where observations exclude them, shape ``(..., n, states)``."""
        assert self._weighting is not None
        value, observed, _ = self._evidence
        states = torch.arange(self._weighting[0].shape[-1], device=value.device)
        return self._weighting[0].masked_fill(observed.unsqueeze(-1) & (value.unsqueeze(-1) != states), -math.inf)

    def _weighted_score(self, score: Tensor, value: Tensor) -> Tensor:
        """Log-weights of values with those of the evidence.

        :param Tensor score: Log-weights without it, shape ``(...)``.
        :param Tensor value: States, shape ``(..., n)``.
        """
        if self._weighting is None:
            return score
        weights, states = self._weighting[0], value.long().unsqueeze(-1)
        shape = broadcast_shapes(states.shape[:-1], weights.shape[:-1])
        terms = weights.expand(shape + weights.shape[-1:]).gather(-1, states.expand(shape + (1,)))
        return score + terms.squeeze(-1).sum(-1)

    def _mean_weight(self, log_marginals: Tensor) -> Tensor:
        """Expected log-weight of the evidence, shape ``(...)``.

        :param Tensor log_marginals: Log-probabilities of all states, shape ``(..., n, states)``.
        """
        if self._weighting is None:
            return log_marginals.new_zeros(())
        weights = self._weighting[0]
        return (log_marginals.exp() * weights.masked_fill(weights == -math.inf, 0.0)).sum((-2, -1))

    def _rows(self, tensor: Tensor) -> Tensor:
        """Matrix with a row for each element of the batch, or a single row where all are the same."""
        tensor = narrow_repeated(tensor)
        if math.prod(tensor.shape[:-1]) == 1:
            return tensor.reshape(1, tensor.shape[-1])
        return tensor.expand(self.batch_shape + tensor.shape[-1:]).flatten(0, -2)

    def _unflatten(self, rows: Tensor) -> Tensor:
        """Results with the batch shape in place of the axis of rows; inverse of :meth:`_rows`."""
        size = self.batch_shape.numel()
        return rows.expand((size,) + rows.shape[1:]).reshape(self.batch_shape + rows.shape[1:])

    def _mode_among(self, values: Tensor) -> Tensor:
        """A most probable value for each batch element, shape ``batch_shape + (n,)``.

        :param Tensor values: All values, shape ``(number, 1, ..., 1, n)``.
        """
        with torch.no_grad():
            best = (self._score(values) - self._supported_log_z).argmax(0)
        return values.reshape(len(values), -1)[best]

    def _entropy_over(self, values: Tensor) -> Tensor:
        """Entropy in nats, as a sum over all values, shape ``batch_shape``."""
        log_probs = self._score(values) - self._supported_log_z
        return self._cast(-(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(0))

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(result_dtype(*(getattr(self, name) for name in self.arg_constraints)))


def exact_log_prob(distribution: DiscreteVector, value: Tensor) -> Tensor:
    """Log-probability in double precision, whatever the dtype of the parameters; values are not validated.

    :param Tensor value: As for ``distribution.log_prob``.
    :return: Of the shape of ``distribution.log_prob(value)``.
    """
    return distribution._score(value) - distribution._supported_log_z


def exact_log_evidence(given: DiscreteVector, distribution: DiscreteVector) -> Tensor:
    """Log-probability of evidence in double precision, whatever the dtype of the parameters.

    :param DiscreteVector given: Result of ``distribution.condition`` or ``distribution.reweight`` for the evidence.
    :return: Shape ``given.batch_shape``; -inf for impossible evidence.
    """
    change = given._log_z - distribution._supported_log_z
    return change + (given._constant - distribution._constant)


def result_dtype(*parameters: Tensor) -> torch.dtype:
    """Dtype of results: that of the parameters, at least float32."""
    dtype = torch.float32
    for parameter in parameters:
        dtype = torch.promote_types(dtype, parameter.dtype)
    return dtype
