"""Labels of bags that say something about the number of positive instances."""

__all__ = ["BagLabel"]

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.counts.ops.centred_counts import centre_counts
from pyro_structured.counts.ops.certified_counts import infer_excess
from pyro_structured.counts.ops.compensated_sum import compensated_sum
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.foundation.distributions.argument_checks import check_entries, check_vector
from pyro_structured.foundation.distributions.discrete_vector import DiscreteVector
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.vmap_rows import broadcast_rows, broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import checked_batch

EMPTY_SUPPORT = (
    "label_count_logits: expected a label of positive probability in every batch element, but no number of positive "
    "instances is possible"
)
IMPOSSIBLE_LABEL = (
    "value: expected labels of positive probability, got one for which no number of positive instances is possible"
)


class BagLabel(DiscreteVector):
    r"""The label of a bag of instances, which depends on how many of the instances are positive; which ones is summed
    out.

    .. math::
        p(t) = \frac{Z_t}{\sum_s Z_s}, \qquad
        Z_t = \sum_{y \in \{0, 1\}^D} \exp\Big(f_t\big(\sum_d y_d\big) + \sum_{d=1}^D x_d y_d\Big), \qquad t \in \{0,
        \dots, T - 1\}.

    ``instance_logits`` holds :math:`x`, often the output of a network, and ``label_count_logits`` the *laws*
    :math:`f_t`, one for each label. Laws with :math:`\sum_t \exp f_t(c) = 1` for each count c say how the label follows
    from the count, :math:`p(t \mid c)`, where instances are independent; other laws are preferences that shape the
    joint distribution of labels and instances. Values are long integers, ``event_shape`` is ``()``.

    Bags of different sizes are padded with ``instance_logits`` of -inf: such an instance is never positive. Laws of
    such bags come from :func:`~pyro_structured.distributions.cardinality_potentials.for_sizes`; the functions below are
    in the same module.

    - *At least one*: ``noisy_or(D, outcome, leak, strength)`` for ``outcome`` False and True; ``leak=0``, ``strength``
      near 1 is the strict form.
    - *Label proportions, at least or at most k, exactly k*: ``exactly(D, k)``, ``between(D, low, high)``, where the
      count itself, or what it reaches, is the label.
    - *A fraction of the bag*: ``for_sizes(lambda n: normal_fraction(n, mean, scale), sizes)``; *at least a fraction*:
      ``for_sizes(lambda n: at_least(n, ceil(fraction * n)), sizes)``.
    - *Learned*: any tensor, also with gradients. Adding a straight line to all tables is the same as adding its slope
      to all logits.

    ``laws.log_softmax(-2)`` are laws that sum to one, the conditional form, where every count is possible for some
    label.

    **Exact**, with the accuracy of :class:`RecursiveCardinality`. **Cost**: that of T partition functions,
    :math:`O(T D \log^2 D)`.

    :param Tensor instance_logits: Log-odds that instances are positive, shape ``(..., D)``; -inf pads.
    :param Tensor label_count_logits: Log-potentials of the counts 0 to D for each label, shape ``(..., T, D + 1)``,
        less than +inf.
    :raises ValueError: if a shape is wrong, or there is a NaN or +inf. Where no label has a positive probability, the
        first query raises.

    **References**

    Tarlow et al. (2012), as for :class:`RecursiveCardinality`: Section 6.3, Equation (9). Shukla, Zeng, Ahmed, Van den
    Broeck (2023): *A unified approach to count-based weakly supervised learning.* NeurIPS.

    Example::

        >>> from pyro_structured.distributions.cardinality_potentials import noisy_or
        >>> laws = torch.stack([noisy_or(3, outcome, leak=0.0, strength=0.5) for outcome in (False, True)])
        >>> d = BagLabel(torch.tensor([0.0, 0.0, -math.inf]), laws)  # two instances, and one place without
        >>> d.probs
        tensor([0.5625, 0.4375])
        >>> d.posterior(torch.tensor(1)).marginals
        tensor([0.7143, 0.7143, 0.0000])
    """

    arg_constraints = {
        "instance_logits": constraints.real_vector,
        "label_count_logits": constraints.independent(constraints.less_than(math.inf), 2),
    }
    has_enumerate_support = True
    _evidence = None
    _empty = EMPTY_SUPPORT
    _derived = ("_weights",)

    def __init__(self, instance_logits: Tensor, label_count_logits: Tensor, validate_args: bool | None = None) -> None:
        check_vector("instance_logits", instance_logits)
        check_vector("label_count_logits", label_count_logits, smallest=1)
        size = instance_logits.shape[-1]
        if label_count_logits.dim() < 2 or label_count_logits.shape[-1] != size + 1 or not label_count_logits.shape[-2]:
            raise ValueError(
                f"label_count_logits: expected shape (..., T, {size + 1}), a table of {size + 1} counts for each of at "
                f"least one label, got {tuple(label_count_logits.shape)}"
            )
        batch = checked_batch(
            instance_logits=instance_logits.shape[:-1], label_count_logits=label_count_logits.shape[:-2]
        )
        self._assign({"instance_logits": instance_logits, "label_count_logits": label_count_logits}, batch)
        super().__init__(batch, torch.Size(), validate_args=validate_args)

    @staticmethod
    def infer_shapes(**arg_shapes: torch.Size) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the arguments."""
        batches = arg_shapes["instance_logits"][:-1], arg_shapes["label_count_logits"][:-2]
        return broadcast_shapes(*batches), torch.Size()

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Integers below T; also labels of probability zero."""
        return constraints.integer_interval(0, self.num_labels - 1)

    @property
    def num_labels(self) -> int:
        """Number of labels T."""
        return int(self.label_count_logits.shape[-2])

    @lazy_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        """Log-weights of the labels without a constant, shape ``(..., T)``, and the constant, shape ``(...)``."""
        logits, tables = self._parameter("instance_logits"), self._parameter("label_count_logits")
        forest = CountForest(logits.shape[-1])
        centred = centre_counts(logits.unsqueeze(-2), tables, forest)
        excess = infer_excess(centred, forest, bool(logits.requires_grad or tables.requires_grad))[0].log_partition
        # What all labels have in common cancels before it is added to anything.
        own = torch.cat(broadcast_rows(centred.weights, centred.terms), -1).expand(excess.shape + (-1,))
        levels = compensated_sum(torch.cat([own, -own[..., :1, :].expand(own.shape)], -1))
        return excess + levels, compensated_sum(own[..., 0, :])

    @property
    def _constant(self) -> Tensor:
        return self._weights[1]

    @property
    def _log_z(self) -> Tensor:
        return logsumexp(self._weights[0]).expand(self.batch_shape)

    @property
    def _num_states(self) -> tuple[int, ...]:
        return (self.num_labels,)

    def _score(self, value: Tensor) -> Tensor:
        inside = (value >= 0) & (value < self.num_labels) & (value == value.long())
        batch = broadcast_shapes(value.shape, self.batch_shape)
        label = torch.where(inside, value, 0).long().expand(batch).unsqueeze(-1)
        score = self._weights[0].expand(batch + (self.num_labels,)).gather(-1, label).squeeze(-1)
        return score.masked_fill(~inside, -math.inf)

    @property
    def _log_probs(self) -> Tensor:
        """Log-probabilities of the labels in double precision, shape ``batch_shape + (T,)``."""
        log_probs = self._weights[0] - self._supported_log_z.unsqueeze(-1)
        return log_probs.expand(self.batch_shape + log_probs.shape[-1:])

    @property
    def logits(self) -> Tensor:
        """Log-probabilities of the labels, shape ``batch_shape + (T,)``."""
        return self._cast(self._log_probs)

    @property
    def probs(self) -> Tensor:
        """Probabilities of the labels, shape ``batch_shape + (T,)``."""
        return self._cast(self._log_probs.exp())

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws labels, shape ``sample_shape + batch_shape``."""
        with torch.no_grad():
            return draw_log(self._log_probs.expand(torch.Size(sample_shape) + self._log_probs.shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """The labels 0 to T - 1, shape ``(T,) + batch_shape``."""
        labels = torch.arange(self.num_labels, device=self.instance_logits.device)
        labels = labels.reshape((-1,) + (1,) * len(self.batch_shape))
        return labels.expand((-1, *self.batch_shape)) if expand else labels

    @property
    def mode(self) -> Tensor:
        """A most probable label, shape ``batch_shape``."""
        return self._log_probs.argmax(-1)

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        log_probs = self._log_probs
        return self._cast(-(log_probs.exp() * log_probs.masked_fill(log_probs == -math.inf, 0.0)).sum(-1))

    @property
    def mean(self) -> Tensor:
        """Not defined for labels; raises NotImplementedError."""
        raise NotImplementedError("mean: labels have none; use probs")

    @property
    def variance(self) -> Tensor:
        """Not defined for labels; raises NotImplementedError."""
        raise NotImplementedError("variance: labels have none; use probs")

    def condition(self, value: Tensor, observed: Tensor) -> "BagLabel":
        """A label has no entries to observe; raises NotImplementedError."""
        raise NotImplementedError("condition: a label has no entries of which some could be observed; use posterior")

    @property
    def instances(self) -> RecursiveCardinality:
        """Distribution of the instances, 1 where positive, while the label is unknown."""
        tables = self._parameter("label_count_logits")
        return self._given_counts(logsumexp(tables.double(), -2).to(tables.dtype), EMPTY_SUPPORT)

    def posterior(self, value: Tensor) -> RecursiveCardinality:
        """Distribution of the instances, 1 where positive, given labels.

        :param Tensor value: Labels, shape broadcasts to ``batch_shape``.
        :return: Its ``marginals`` are the probabilities that instances are positive, ``count_marginals`` those of their
            number. Queries raise for a label of probability zero.
        :raises ValueError: if a label is out of range.
        """
        check_entries(self.batch_shape, 0, value=value)
        outside = (value < 0) | (value >= self.num_labels) | (value != value.long())
        require(outside, f"value: expected integers in range({self.num_labels}), got other numbers")
        tables = self._parameter("label_count_logits")
        batch = broadcast_shapes(value.shape, tables.shape[:-2])
        label = value.long().clamp(0, self.num_labels - 1).expand(batch)[..., None, None]
        chosen = tables.expand(batch + tables.shape[-2:]).gather(-2, label.expand(batch + (1, tables.shape[-1])))
        return self._given_counts(chosen.squeeze(-2), IMPOSSIBLE_LABEL)

    def _given_counts(self, count_logits: Tensor, empty: str) -> RecursiveCardinality:
        given = RecursiveCardinality(self._parameter("instance_logits"), count_logits, validate_args=False)
        given._empty = empty
        return given.expand(broadcast_shapes(given.batch_shape, self.batch_shape))
