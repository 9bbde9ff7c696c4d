"""Base class of distributions of categorical variables with different numbers of states."""

__all__ = ["CategoricalVector"]

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.distributions.argument_checks import check_state_weights
from pyro_structured.foundation.distributions.discrete_vector import DiscreteVector, exact_log_evidence
from pyro_structured.foundation.ops.enumeration import ENUMERATION_CAP, enumerate_joint_states
from pyro_structured.foundation.ops.log_space import safe_log
from pyro_structured.foundation.structures.argument_checks import checked_indices

Vector = TypeVar("Vector", bound="CategoricalVector")


class CategoricalVector(DiscreteVector):
    """Queries of vectors of long integers, each below its variable's number of states."""

    @property
    @abstractmethod
    def _single_marginals(self) -> Tensor:
        """Probabilities of the states of all variables, one after the other, in double precision."""

    @abstractmethod
    def _probabilities_of(self, wanted: Sequence[int]) -> Tensor:
        """Joint probabilities of some variables, in double precision."""

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Integers below the variables' numbers of states; also values of probability zero."""
        sizes = torch.tensor(self._num_states, device=self._device)
        return constraints.independent(constraints.integer_interval(torch.zeros_like(sizes), sizes - 1), 1)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._evidence[0].device
        return device

    def _read(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """States of the variables, the first where a value is none, and whether whole values agree with the evidence.

        :param Tensor value: Shape ``(..., n)``.
        """
        given, observed, consistent = self._evidence
        inside = (value >= 0) & (value < torch.tensor(self._num_states, device=value.device)) & (value == value.long())
        agrees = (inside & (~observed | (value == given))).all(-1) & consistent
        return torch.where(inside, value, 0).long(), agrees

    def _pack_states(self, probs: Tensor) -> Tensor:
        """Numbers of the variables' own states, one after the other, expanded to the batch.

        :param Tensor probs: Shape ``(..., n, largest cardinality)``.
        """
        sizes = torch.tensor(self._num_states, device=probs.device)
        own = torch.arange(probs.shape[-1], device=probs.device) < sizes.unsqueeze(-1)
        places = own.flatten().nonzero().squeeze(-1)
        return probs.flatten(-2)[..., places].expand(self.batch_shape + places.shape)

    def _checked_weights(self, log_weights: Tensor) -> Tensor:
        """Log-weights of all states, -inf past a variable's own, after checks.

        :param Tensor log_weights: Shape ``(..., n, largest cardinality)``.
        """
        sizes = self._num_states
        check_state_weights(log_weights, len(sizes), max(sizes))
        states = torch.arange(max(sizes), device=log_weights.device)
        outside = states >= torch.tensor(sizes, device=log_weights.device).unsqueeze(-1)
        log_weights = log_weights.masked_fill(outside, -math.inf)
        self._check_evidence(log_weights=log_weights)
        return log_weights

    def reweight(self: Vector, log_weights: Tensor) -> Vector:
        """Multiplies in independent evidence about every variable: the posterior, up to its constant; classes of
        mixtures stay latent.

        :param Tensor log_weights: Log-likelihoods of the evidence in each state, shape ``(..., n, K)`` for at most K
            states, less than +inf; numbers past a variable's own states are not looked at.
        :return: The distribution given the evidence, whose partition function keeps the evidence's weight. Queries
            raise where the evidence is impossible.
        :raises ValueError: if the shape is another one, or there is a NaN or +inf.

        Example::

            >>> from pyro_structured.distributions import MixtureOfJunctionTrees
            >>> from pyro_structured.structures import CliqueTree
            >>> trees = [CliqueTree([[0, 1]], [2, 2]), CliqueTree([[0], [1]], [2, 2])]
            >>> logits = torch.cat([trees[0].pack([torch.eye(2).log()]), torch.zeros(4)])
            >>> d = MixtureOfJunctionTrees(torch.zeros(2), logits, trees)
            >>> d.reweight(torch.tensor([[0.9, 0.1], [1.0, 1.0]]).log()).marginals  # equal, or independent
            tensor([[0.9000, 0.1000],
                    [0.7000, 0.3000]])
        """
        return self._multiplied(self._checked_weights(log_weights))

    def log_evidence(self, log_weights: Tensor) -> Tensor:
        """Log-probability of independent evidence, the variables summed out; arguments are those of :meth:`reweight`.

        :return: Change of log Z, shape ``batch_shape`` broadcast with the leading axes of the evidence; -inf for
            impossible evidence.
        """
        return self._change(self.reweight(log_weights))

    @property
    def marginals(self) -> Tensor:
        """Probabilities of the states of all variables, shape ``batch_shape + (n, largest cardinality)``, zeros past a
        variable's own.
        """
        return self._cast(self._padded_marginals)

    @property
    def _padded_marginals(self) -> Tensor:
        """Probabilities of all states, in double precision."""
        padded = torch.nn.functional.pad(self._single_marginals, (0, 1))
        sizes = torch.tensor(self._num_states, device=padded.device)
        states = torch.arange(max(self._num_states), device=padded.device)
        places = (sizes.cumsum(0) - sizes).unsqueeze(-1) + states
        return padded[..., torch.where(states < sizes.unsqueeze(-1), places, -1)]

    @property
    def marginal_logits(self) -> Tensor:
        """Logarithms of :attr:`marginals`, of the same shape."""
        return self._cast(safe_log(self._padded_marginals))

    def marginals_of(self, variables: Iterable[int]) -> Tensor:
        """Joint probabilities of some variables.

        :param variables: Different variables, of one clique or with at most ``2 ** 12`` joint states: each of these
            needs a pass.
        :return: Shape ``batch_shape + (cardinalities of these variables, in their order)``.

        Example::

            >>> from pyro_structured.distributions import JunctionTree
            >>> from pyro_structured.structures import CliqueTree
            >>> tree = CliqueTree.chain(3, 2)
            >>> JunctionTree(torch.zeros(8), tree).marginals_of([2, 0])
            tensor([[0.2500, 0.2500],
                    [0.2500, 0.2500]])
        """
        wanted = checked_indices("variables", variables)
        number = self.event_shape[0]
        if len(set(wanted)) < len(wanted) or not set(wanted) <= set(range(number)):
            raise ValueError(f"variables: expected different ones in range({number}), got {list(wanted)}")
        return self._cast(self._probabilities_of(wanted))

    def _enumerated_marginals(self, wanted: Sequence[int]) -> Tensor:
        """Joint probabilities of some variables, in double precision: each state is evidence."""
        sizes = [self._num_states[d] for d in wanted]
        if math.prod(sizes) > ENUMERATION_CAP:
            raise NotImplementedError(
                f"variables: expected one clique's, or at most {ENUMERATION_CAP} joint states, got {math.prod(sizes)}; "
                "use samples, which are exact"
            )
        like = torch.zeros((), dtype=torch.long, device=self._device)
        states = enumerate_joint_states(sizes, self.batch_shape, False, like)
        value = torch.zeros(states.shape[:-1] + self.event_shape, dtype=torch.long, device=like.device)
        value[..., list(wanted)] = states
        observed = torch.zeros(self.event_shape, dtype=torch.bool, device=like.device)
        observed[list(wanted)] = True
        probs = exact_log_evidence(self.condition(value, observed), self).exp()
        return probs.movedim(0, -1).reshape(self.batch_shape + torch.Size(sizes))

    @property
    def mean(self) -> Tensor:
        """Not defined for categories; raises NotImplementedError."""
        raise NotImplementedError("mean: categories have none; use marginals")

    @property
    def variance(self) -> Tensor:
        """Not defined for categories; raises NotImplementedError."""
        raise NotImplementedError("variance: categories have none; use marginals")

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` values; more are never enumerated."""
        return math.prod(self._num_states) <= ENUMERATION_CAP

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + (n,)``."""
        like = torch.zeros((), dtype=torch.long, device=self._device)
        return enumerate_joint_states(self._num_states, self.batch_shape, expand, like)

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + (n,)``; by enumeration, up to ``2 ** 12`` values."""
        return self._mode_among(self._enumerated("mode"))

    def entropy(self) -> Tensor:
        """Entropy in nats, shape ``batch_shape``; by enumeration, up to ``2 ** 12`` values."""
        return self._entropy_over(self._enumerated("entropy"))

    def _enumerated(self, name: str) -> Tensor:
        if not self.has_enumerate_support:
            raise NotImplementedError(
                f"{name}: a mixture's has no closed form, and enumeration is capped at {ENUMERATION_CAP} values; "
                "estimate it from samples"
            )
        return self.enumerate_support(expand=False)
