"""Partially exchangeable variables."""

__all__ = ["ExchangeableBlock"]

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.exchangeable.distributions.exchangeable_vector import EMPTY_SUPPORT, ExchangeableVector
from pyro_structured.exchangeable.structures.statistic import Statistic
from pyro_structured.foundation.distributions.argument_checks import check_data, check_state_weights, check_vector
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.log_space import centre_tables, logsumexp
from pyro_structured.foundation.ops.requirements import require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


class ExchangeableBlock(ExchangeableVector):
    r"""Partially exchangeable discrete variables: their probability depends on a statistic alone.

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
    :param Statistic statistic: The statistic T on which the probability depends.
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
    _derived = ("_weights", "_log_levels")

    def __init__(self, statistic_logits: Tensor, statistic: Statistic, validate_args: bool | None = None) -> None:
        _check_statistic(statistic)
        _check_numbers("statistic_logits", statistic_logits, statistic)
        self.statistic_logits, self.statistic = statistic_logits, statistic
        self._evidence = no_evidence(statistic.num_variables, statistic_logits.device)
        self._empty = EMPTY_SUPPORT
        shape = torch.Size([statistic.num_variables])
        super().__init__(statistic_logits.shape[:-1], shape, validate_args=validate_args)

    @classmethod
    def from_potentials(
        cls, potentials: Tensor, statistic: Statistic, validate_args: bool | None = None
    ) -> "ExchangeableBlock":
        r"""Makes the distribution :math:`p(x) \propto \exp(\text{potentials}_{T(x)})`.

        :param Tensor potentials: Log-weights of single values, shape ``(..., statistic.num_levels)``.
        :param Statistic statistic: The statistic T on which the probability depends.
        """
        _check_statistic(statistic)
        _check_numbers("potentials", potentials, statistic)
        return cls(potentials + statistic.log_sizes.to(potentials), statistic, validate_args)

    @classmethod
    def from_data(
        cls, values: Tensor, statistic: Statistic, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> "ExchangeableBlock":
        r"""Maximises the likelihood: the weight of a level is its share in the data (Theorem 3.2).

        :param Tensor values: Shape ``(N, n)``.
        :param Statistic statistic: The statistic T on which the probability depends.
        :param float smoothing: Number of at least 0, added to the number of rows of every level that is not empty.
        :param Tensor weights: Weights of the rows, at least 0, shape ``(..., N)``, which makes a batch of
            distributions; ``None``: all are 1.
        """
        _check_statistic(statistic)
        weights = check_data(values, statistic.num_variables, statistic.num_categories, smoothing, weights)
        level = statistic.value(values).expand(weights.shape)
        number = weights.new_zeros(weights.shape[:-1] + (statistic.num_levels,)).scatter_add(-1, level, weights)
        possible = statistic.log_sizes.to(number.device) > -torch.inf
        return cls((number + float(smoothing) * possible).log(), statistic)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        statistic_logits: torch.Size, statistic: Statistic
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shape of ``statistic_logits``, and the statistic itself."""
        return torch.Size(statistic_logits[:-1]), torch.Size([statistic.num_variables])

    @property
    def _num_categories(self) -> int:
        return self.statistic.num_categories

    @property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Logits of the levels less a constant, so that they keep their digits, and the constant."""
        sizes = self.statistic.log_sizes.to(self.statistic_logits.device)
        logits = self.statistic_logits.masked_fill(sizes == -torch.inf, -torch.inf)
        return centre_tables(logits, [self.statistic.num_levels - 1])

    @lazy_property
    def _weights(self) -> Tensor:
        """Log-weights of single values, up to a constant, shape ``batch_shape + (num_levels,)``."""
        sizes = self.statistic.log_sizes.to(self.statistic_logits.device)
        return self._leveled[0] - sizes.masked_fill(sizes == -torch.inf, 0.0)

    @lazy_property
    def _log_levels(self) -> Tensor:
        """Log-weights of the level sets that are left by the evidence, shape ``batch_shape + (num_levels,)``."""
        value, observed, consistent = self._evidence
        if self._weighting is None:
            completions = self.statistic.log_completions(value, observed)
        else:
            completions = self.statistic.log_mass(self._state_weights)
        weights = self._weights + completions.masked_fill(~consistent.unsqueeze(-1), -torch.inf)
        return weights.expand(self.batch_shape + weights.shape[-1:])

    @property
    def _constant(self) -> Tensor:
        return self._leveled[1].squeeze(-1) + self._weighting_constant

    @property
    def _log_z(self) -> Tensor:
        return logsumexp(self._log_levels)

    def reweight(self, log_off: Tensor, log_on: Tensor | None = None) -> "ExchangeableBlock":
        """Multiplies in independent evidence about every variable: the posterior, up to its constant.

        :param Tensor log_off: Log-likelihoods of the evidence if a binary variable is 0, shape broadcasts to ``(...,
            n)``. Of categories, ``reweight(log_weights)``: those of all categories, shape ``(..., n, categories)``.
            Less than +inf; -inf is allowed.
        :param Tensor log_on: Log-likelihoods of the evidence if a binary variable is 1; ``None`` of categories.
        :return: The distribution given the evidence, with the same queries, whose partition function keeps the
            evidence's weight; they cost what the statistic states for weights of the variables. Queries raise where
            the evidence is impossible.
        :raises ValueError: if a shape does not fit, or there is a NaN or +inf.

        Example::

            >>> from pyro_structured.structures import CategoryCounts
            >>> d = ExchangeableBlock(torch.zeros(6), CategoryCounts(2, 3))  # categories repeat more than by chance
            >>> d.reweight(torch.tensor([[0.8, 0.1, 0.1], [1.0, 1.0, 1.0]]).log()).marginals
            tensor([[0.8000, 0.1000, 0.1000],
                    [0.4500, 0.2750, 0.2750]])
        """
        if self._num_categories == 2:
            if log_on is None:
                raise ValueError("log_on: expected a tensor beside log_off for binary variables, got None")
            return super().reweight(log_off, log_on)
        if log_on is not None:
            raise ValueError(
                f"log_on: expected None, and log-likelihoods of all {self._num_categories} categories in the first "
                "argument, got log-likelihoods of zeros and of ones"
            )
        check_state_weights(log_off, self.event_shape[0], self._num_categories)
        self._check_evidence(log_weights=log_off)
        return self._multiplied(log_off)

    def log_evidence(self, log_off: Tensor, log_on: Tensor | None = None) -> Tensor:
        """Log-probability of independent evidence, the vector summed out; arguments are those of :meth:`reweight`.

        :return: The change of log Z, shape ``batch_shape`` broadcast with the leading axes of the evidence; -inf for
            impossible evidence.
        """
        return self._change(self.reweight(log_off, log_on))

    @property
    def level_probs(self) -> Tensor:
        """Probabilities of the levels, shape ``batch_shape + (num_levels,)``."""
        return self._cast((self._log_levels - self._supported_log_z.unsqueeze(-1)).exp())

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws a level, then a member of its set; shape ``sample_shape + batch_shape + (n,)``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            full = torch.Size(sample_shape) + self.batch_shape
            # Categorical draws no empty samples.
            levels = torch.distributions.Categorical(logits=self._log_levels, validate_args=False)
            level = levels.sample(sample_shape) if full.numel() else self._log_levels.new_zeros(full, dtype=torch.long)
            value, observed, _ = self._evidence
            if self._weighting is None:
                drawn = self.statistic.sample(level, value, observed)
            else:
                drawn = self.statistic.weighted_sample(level, self._state_weights)
        return drawn.to(self._value_dtype)

    def _score(self, value: Tensor) -> Tensor:
        given, observed, consistent = self._evidence
        inside = ((value >= 0) & (value < self.statistic.num_categories) & (value == value.long())).all(-1)
        known = torch.where(inside.unsqueeze(-1), value, 0)
        level = self.statistic.value(known)
        batch = broadcast_shapes(level.shape, self.batch_shape)
        weights = self._weights.expand(batch + self._weights.shape[-1:])
        score = weights.gather(-1, level.expand(batch).unsqueeze(-1)).squeeze(-1)
        agrees = (~observed | (value == given)).all(-1) & consistent
        return self._weighted_score(score, known).masked_fill(~(inside & agrees), -torch.inf)

    @property
    def _log_marginals(self) -> Tensor:
        require_support(self._log_z, self._empty)
        value, observed, _ = self._evidence
        if self._weighting is None:
            log_marginals = self.statistic.log_marginals(self._weights, value, observed)
        else:
            log_marginals = self.statistic.weighted_log_marginals(self._weights, self._state_weights)
        return log_marginals.expand(self.batch_shape + log_marginals.shape[-2:])

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + (n,)``."""
        require_support(self._log_z, self._empty)
        with torch.no_grad():
            weights = self._weights.masked_fill(self._log_levels == -torch.inf, -torch.inf)
            value, observed, _ = self._evidence
            if self._weighting is None:
                mode = self.statistic.complete(weights.argmax(-1), value, observed)
            else:
                level = (weights + self.statistic.log_peaks(self._state_weights)).argmax(-1)
                mode = self.statistic.weighted_mode(level, self._state_weights)
        return mode.to(self._value_dtype).expand(self.batch_shape + self.event_shape)

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        log_z = self._supported_log_z
        impossible = self._log_levels == -torch.inf
        probs = (self._log_levels - log_z.unsqueeze(-1)).exp()
        surprise = (log_z.unsqueeze(-1) - self._weights).masked_fill(impossible, 0.0)
        entropy = (probs * surprise).sum(-1)
        return self._cast(entropy if self._weighting is None else entropy - self._mean_weight(self._log_marginals))


def _check_statistic(statistic: object) -> None:
    if not isinstance(statistic, Statistic):
        raise ValueError(f"statistic: expected a Statistic, got {type(statistic).__name__}")


def _check_numbers(name: str, tensor: Tensor, statistic: Statistic) -> None:
    check_vector(name, tensor)
    if tensor.shape[-1] != statistic.num_levels:
        raise ValueError(
            f"{name}: expected a last axis of {statistic.num_levels} numbers, one for each level, got shape "
            f"{tuple(tensor.shape)}"
        )
