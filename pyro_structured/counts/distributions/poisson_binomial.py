"""The number of successes in independent trials of different probabilities."""

__all__ = ["PoissonBinomial"]

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.counts.ops.poisson_binomial import bulk_mass, log_mass, probs_to_logits
from pyro_structured.foundation.distributions.argument_checks import check_vector
from pyro_structured.foundation.distributions.discrete_vector import DiscreteVector, result_dtype
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import log_cumulative_sums


class PoissonBinomial(DiscreteVector):
    r"""The number of successes in D independent trials of different probabilities.

    .. math::
        P(k) = \sum_{y \in \{0,1\}^D,\ \sum_d y_d = k}\ \prod_{d=1}^D p_d^{y_d} (1 - p_d)^{1 - y_d}, \qquad k = 0,
        \dots, D.

    The interface is that of :class:`torch.distributions.Binomial`; values are counts in the parameters' dtype, at
    least float32, and the last axis of the parameters is the trials: ``batch_shape`` is the parameters' shape
    without it, ``event_shape`` is ``()``.

    **Exact**: every probability has a small relative error, in the far tails too: :meth:`log_prob`, :meth:`log_cdf` and
    :meth:`log_survival` of float64 parameters have absolute errors below 1e-9 for thousands of trials (all is computed
    in float64, and rounded to the dtype of the values). **Cost**: :math:`O(D^2)` once for all counts, cached, in
    compiled loops with the extra ``fast`` up to 2^17 trials, :math:`O(D^{3/2}\log^2 D)` otherwise; :meth:`bulk_mass`
    gives all probabilities with an absolute error of 1e-13 in :math:`O(D\log^2 D)`. Twice differentiable.

    :param Tensor probs: Probabilities of success, shape ``(..., D)``; exactly one of ``probs`` and ``logits``.
    :param Tensor logits: Log-odds of success, shape ``(..., D)``; ``-inf`` and ``+inf`` are certainties. Far more
        accurate than ``probs`` near 1.
    :raises ValueError: if both or neither are given, or a probability is outside of [0, 1] or NaN.

    **References**

    Hong (2013): *On computing the distribution function for the Poisson binomial distribution.* Computational
    Statistics and Data Analysis 59. Belfore (1995): *An O(n) log2(n) algorithm for computing the reliability of
    k-out-of-n:G systems.* IEEE Transactions on Reliability 44(1).

    Example::

        >>> d = PoissonBinomial(probs=torch.tensor([0.5, 0.5, 1.0]))
        >>> d.log_prob(torch.tensor([0.0, 1.0, 2.0, 3.0])).exp()
        tensor([0.0000, 0.2500, 0.5000, 0.2500])
    """

    arg_constraints = {
        "probs": constraints.independent(constraints.unit_interval, 1),
        "logits": constraints.real_vector,
    }
    _evidence = None
    _empty = ""
    _derived = ("_log_mass", "_log_cumulative", "_log_remaining")

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        if (probs is None) == (logits is None):
            raise ValueError(
                "probs: expected exactly one of `probs` and `logits`, got " + ("neither" if probs is None else "both")
            )
        name, given = ("logits", logits) if probs is None else ("probs", probs)
        assert given is not None
        check_vector(name, given)
        self._given = name
        batch_shape = torch.Size(given.shape[:-1])
        self._assign({name: given}, batch_shape)
        super().__init__(batch_shape, torch.Size(), validate_args=validate_args)

    @property
    def _event_dims(self) -> dict[str, int]:
        """Event axes of the parameter that was given; the other one is derived from it."""
        return {self._given: 1}

    @property
    def _probabilities(self) -> Tensor:
        """The parameter that was given: probabilities or log-odds, shape ``batch_shape + (D,)``."""
        probabilities: Tensor = self.__dict__[self._given]
        return probabilities

    @lazy_property
    def logits(self) -> Tensor:
        """Log-odds of success, shape ``batch_shape + (D,)``."""
        # Not clamped as torch's probs_to_logits does: certainties stay certain, and small odds keep their accuracy.
        return probs_to_logits(self.probs)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities of success, shape ``batch_shape + (D,)``."""
        return torch.sigmoid(self.logits)

    @property
    def num_trials(self) -> int:
        """Number of trials D."""
        return self._probabilities.shape[-1]

    @staticmethod
    def infer_shapes(**arg_shapes: torch.Size) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shape of ``probs`` or ``logits``."""
        (shape,) = arg_shapes.values()
        return torch.Size(shape)[:-1], torch.Size()

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Integers from 0 to D."""
        return constraints.integer_interval(0, self.num_trials)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws counts, shape ``sample_shape + batch_shape``."""
        with torch.no_grad():
            shape = torch.Size(sample_shape)
            return draw_log(self._log_mass.expand(shape + self._log_mass.shape)).to(self._dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of counts; -inf for numbers that are not counts from 0 to D."""
        _check_real(value, "counts")
        if self._validate_args:
            self._validate_sample(value)
        # The weights are normalised: they are probabilities.
        return self._score(value)

    def _score(self, value: Tensor) -> Tensor:
        number, index = self._indices(value, self._log_mass)
        return self._entries(self._log_mass, index).masked_fill(index != number, -math.inf)

    @property
    def _constant(self) -> Tensor:
        return self._log_mass.new_zeros(())

    @property
    def _log_z(self) -> Tensor:
        return self._log_mass.new_zeros(self.batch_shape)

    @property
    def _num_states(self) -> tuple[int, ...]:
        return (self.num_trials + 1,)

    def condition(self, value: Tensor, observed: Tensor) -> "PoissonBinomial":
        """Counts have no entries to observe."""
        raise NotImplementedError(
            "condition: a count has no entries of which some could be observed; of the trials, see RecursiveCardinality"
        )

    def log_cdf(self, value: Tensor) -> Tensor:
        """Logarithm of the probability of at most ``value`` successes."""
        return self._look_up(self._log_cumulative, value, -math.inf, 0.0)

    def log_survival(self, value: Tensor) -> Tensor:
        """Logarithm of the probability of more than ``value`` successes, accurate where it is tiny."""
        return self._look_up(self._log_remaining, value, 0.0, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of at most ``value`` successes."""
        return self.log_cdf(value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """Smallest count whose cumulative probability is at least ``value``, a number in [0, 1]; NaN for others, where
        values are not validated.
        """
        _check_real(value, "probabilities in [0, 1]")
        value = value.to(self._log_cumulative.dtype)
        is_inside = (value >= 0) & (value <= 1)
        if self._validate_args and not bool(is_inside.all()):
            raise ValueError(f"value: expected probabilities in [0, 1], got {value}")
        # Above the median the upper tails have to agree, which are accurate there; icdf(cdf(k)) is k.
        quantile = value.unsqueeze(-1)
        upper = (quantile <= 0.5) | (self._log_remaining.exp() > 1 - quantile)
        count = ((self._log_cumulative.exp() < quantile) & upper).sum(-1).clamp(max=self.num_trials)
        return count.to(self._dtype).masked_fill(~is_inside, math.nan)

    def bulk_mass(self) -> Tensor:
        """Probabilities of all counts, shape ``batch_shape + (D + 1,)``, with an absolute error below 1e-13; not
        differentiable. Much faster than :meth:`log_prob` where there are many trials.
        """
        with torch.no_grad():
            rows = self.logits.reshape(-1, self.num_trials).double()
            return self._cast(bulk_mass(rows)).reshape(self.batch_shape + (self.num_trials + 1,))

    has_enumerate_support = True

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """The counts 0 to D, shape ``(D + 1,) + batch_shape``."""
        counts = torch.arange(self.num_trials + 1, dtype=self._dtype, device=self._probabilities.device)
        counts = counts.reshape((-1,) + (1,) * len(self.batch_shape))
        return counts.expand((-1, *self.batch_shape)) if expand else counts

    @property
    def mean(self) -> Tensor:
        """Expected number of successes, shape ``batch_shape``."""
        return self._cast(self._outcomes[0].sum(-1))

    @property
    def variance(self) -> Tensor:
        """Variance of the number of successes, shape ``batch_shape``."""
        success, failure = self._outcomes
        return self._cast((success * failure).sum(-1))

    @property
    def _outcomes(self) -> tuple[Tensor, Tensor]:
        """Probabilities of success and failure in double precision."""
        given = self._probabilities.double()
        return (given, 1 - given) if self._given == "probs" else (torch.sigmoid(given), torch.sigmoid(-given))

    @property
    def mode(self) -> Tensor:
        """A most probable count, shape ``batch_shape``."""
        return self._log_mass.argmax(-1).to(self._dtype)

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        finite = self._log_mass.masked_fill(self._log_mass == -math.inf, 0.0)
        return -(self._log_mass.exp() * finite).sum(-1)

    @lazy_property
    def _log_mass(self) -> Tensor:
        logits = self.logits
        if self._given == "logits":
            # Infinite log-odds do not change; certain probabilities may.
            logits = torch.where(logits.isinf(), logits.detach(), logits)
        rows = logits.reshape(-1, self.num_trials).double()
        return self._cast(log_mass(rows)).reshape(self.batch_shape + (self.num_trials + 1,))

    @lazy_property
    def _log_cumulative(self) -> Tensor:
        return log_cumulative_sums(self._log_mass).clamp(max=0.0)

    @lazy_property
    def _log_remaining(self) -> Tensor:
        tail = log_cumulative_sums(self._log_mass.flip(-1)).flip(-1).clamp(max=0.0)
        return torch.nn.functional.pad(tail[..., 1:], (0, 1), value=-math.inf)

    def _look_up(self, table: Tensor, value: Tensor, below: float, above: float) -> Tensor:
        """Entries of a table at the largest counts of at most ``value``; NaN where that is.

        :param Tensor table: Numbers for all counts, shape ``batch_shape + (D + 1,)``.
        :param Tensor value: Shape ``(...)``.
        :param float below: Result for negative values.
        :param float above: Result for values above D.
        """
        _check_real(value, "counts")
        number, index = self._indices(value.to(table.dtype).floor(), table)
        entries = self._entries(table, index).masked_fill(number < 0, below).masked_fill(number > index, above)
        return entries.masked_fill(number.isnan(), math.nan)

    def _indices(self, value: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers in the dtype and shape of results, and the nearest counts or, for fractions, the next smaller ones;
        0 for NaN.
        """
        number, _ = torch.broadcast_tensors(value.to(table.dtype), table[..., 0])
        return number, number.nan_to_num(nan=0.0).clamp(0, self.num_trials).long()

    @staticmethod
    def _entries(table: Tensor, index: Tensor) -> Tensor:
        """Entries of a table of shape ``batch_shape + (D + 1,)`` at indices, of the shape of these."""
        return table.expand(index.shape + table.shape[-1:]).gather(-1, index.unsqueeze(-1)).squeeze(-1)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return result_dtype(self._probabilities)


def _check_real(value: Any, kind: str) -> None:
    """Raises a ValueError unless a value is a tensor of real numbers."""
    if not isinstance(value, Tensor) or value.is_complex():
        got = f"dtype {value.dtype}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"value: expected a tensor of {kind}, got {got}")
