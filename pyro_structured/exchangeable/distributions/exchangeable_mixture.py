"""Mixtures of partitions into exchangeable blocks."""

__all__ = ["ExchangeableMixture"]

from typing import Any

import torch
from pyro.distributions import Categorical
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.exchangeable.distributions.exchangeable_partition import ExchangeablePartition, check_partition
from pyro_structured.exchangeable.distributions.exchangeable_vector import EMPTY_SUPPORT, ExchangeableVector
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.distributions.argument_checks import (
    check_entries,
    check_memberships,
    check_rows,
    check_vector,
    expanded_batch,
)
from pyro_structured.foundation.distributions.discrete_vector import IMPOSSIBLE_EVIDENCE, MixtureVector
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.requirements import require, require_support


class ExchangeableMixture(MixtureVector, ExchangeableVector):
    r"""A latent class, and given the class, blocks of exchangeable binary variables; each class has its own blocks.

    .. math::
        p(x) = \sum_{k=1}^K \pi_k \prod_{b \in \mathcal{X}_k} \frac{w_{kb}(t_b)}{\binom{n_b}{t_b}}, \qquad
        \pi = \mathrm{softmax}(\text{mixture\_logits}).

    Partitions into single variables make it a latent naive Bayes model, with as many parameters. Values are zeros and
    ones of shape ``(..., n)`` in the parameters' dtype; the class is summed out. If the class is a site of its own, use
    :meth:`component`.

    **Exact**: ``log_prob``, ``sample``, ``marginals``, ``condition``, ``marginal_log_prob`` and ``posterior``, in
    O(K n) a value. ``mode`` and ``entropy`` of mixtures have no closed form: they are found by enumeration, up to
    ``2 ** 12`` vectors, and refused above.

    :param Tensor mixture_logits: Log-weights of the classes, shape ``(..., K)``, less than +inf.
    :param Tensor statistic_logits: Log-weights of the counts of all blocks of every class, shape ``(..., K, 2 n)``; see
        :class:`ExchangeablePartition`.
    :param Partition partition: The blocks of every class: a batch shape that broadcasts with ``(..., K)``.
    :raises ValueError: if a shape is wrong or there is a NaN or +inf.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Definition 4.1, Theorem 4.2.

    Example::

        >>> partition = Partition(torch.tensor([[0, 0, 0], [0, 1, 2]]))  # one block, and three independent variables
        >>> even = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf, 0.0, 0.0])
        >>> d = ExchangeableMixture(torch.zeros(2), torch.stack([even, torch.zeros(6)]), partition)
        >>> d.log_prob(torch.tensor([0.0, 0.0, 1.0])).exp()  # odd: from the second class
        tensor(0.0625)
        >>> d.posterior(torch.tensor([0.0, 0.0, 1.0])).probs
        tensor([0., 1.])
    """

    arg_constraints = {
        "mixture_logits": constraints.independent(constraints.less_than(torch.inf), 1),
        "statistic_logits": constraints.independent(constraints.less_than(torch.inf), 2),
    }

    _advice = "use component(z).{name}, or estimate it from samples"

    def __init__(
        self,
        mixture_logits: Tensor,
        statistic_logits: Tensor,
        partition: Partition,
        validate_args: bool | None = None,
    ) -> None:
        check_vector("mixture_logits", mixture_logits)
        check_vector("statistic_logits", statistic_logits)
        number = mixture_logits.shape[-1]
        components = ExchangeablePartition(statistic_logits, partition, validate_args=False)
        if (
            statistic_logits.dim() < 2
            or statistic_logits.shape[-2] != number
            or components.batch_shape[-1:] != (number,)
        ):
            raise ValueError(
                f"statistic_logits: expected shape (..., {number}, {partition.table_size}), a row for each class of "
                f"mixture_logits, and as many partitions, got {tuple(statistic_logits.shape)} and partitions of batch "
                f"shape {tuple(partition.batch_shape)}"
            )
        try:
            batch_shape = torch.Size(torch.broadcast_shapes(mixture_logits.shape[:-1], components.batch_shape[:-1]))
        except RuntimeError:
            raise ValueError(
                f"statistic_logits: expected a batch that broadcasts with {tuple(mixture_logits.shape[:-1])}, got "
                f"{tuple(components.batch_shape[:-1])}"
            ) from None
        self.mixture_logits, self.statistic_logits, self.partition = mixture_logits, statistic_logits, partition
        self._evidence = components, mixture_logits.new_zeros(number)
        self._empty = EMPTY_SUPPORT
        super().__init__(batch_shape, components.event_shape, validate_args=validate_args)

    @classmethod
    def from_data(
        cls, values: Tensor, memberships: Tensor, partition: Partition, smoothing: float = 0.0
    ) -> "ExchangeableMixture":
        """Maximises the likelihood given classes, or the expected one given their probabilities (Theorem 4.2).

        :param Tensor values: Zeros and ones, shape ``(N, n)``.
        :param Tensor memberships: Probabilities of the classes for every row, shape ``(N, K)``.
        :param Partition partition: The blocks, batch shape ``(K,)``, or ``()`` if they are the same for all classes.
        :param float smoothing: Added to the number of rows of every count of every block, at least 0.
        """
        check_partition(partition)
        check_rows(values, partition.num_variables)
        check_memberships(memberships, len(values))
        if partition.batch_shape not in ((), memberships.shape[1:]):
            raise ValueError(
                f"partition: expected one for each of {memberships.shape[1]} classes, as in memberships, got batch "
                f"shape {tuple(partition.batch_shape)}"
            )
        parts = ExchangeablePartition.from_data(values, partition, smoothing, memberships.mT)
        return cls(memberships.sum(0).log(), parts.statistic_logits, partition)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ExchangeableMixture":
        """Distribution with another batch shape; parameters are expanded without being copied."""
        new: ExchangeableMixture = self._get_checked_instance(ExchangeableMixture, _instance)  # type: ignore[no-untyped-call]
        batch_shape = expanded_batch(self.batch_shape, batch_shape)
        components = self._components.expand(batch_shape + self.mixture_logits.shape[-1:])
        return self._copy(new, (components, self._log_evidence), batch_shape, self._empty)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        mixture_logits: torch.Size, statistic_logits: torch.Size, partition: Partition
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the parameters, and the partition itself."""
        inner, event = ExchangeablePartition.infer_shapes(statistic_logits, partition)
        return torch.Size(torch.broadcast_shapes(mixture_logits[:-1], inner[:-1])), event

    @property
    def _components(self) -> ExchangeablePartition:
        """The classes, given the evidence."""
        components: ExchangeablePartition = self._evidence[0]
        return components

    @property
    def _log_evidence(self) -> Tensor:
        """Log-probabilities of the evidence given each class."""
        log_evidence: Tensor = self._evidence[1]
        return log_evidence

    @property
    def _class_weights(self) -> Tensor:
        """Log-weights of the classes with their evidence, up to a constant, in double precision, shape ``(..., K)``."""
        weights = self._leveled[0] + self._log_evidence.double()
        return weights.expand(self.batch_shape + weights.shape[-1:])

    def component(self, z: Tensor) -> ExchangeablePartition:
        """The distribution given the class, and given the evidence of a mixture that :meth:`condition` has made.

        A class that the evidence of a :meth:`condition` excludes keeps the distribution that it had before.

        :param Tensor z: Integers of a shape that broadcasts with ``batch_shape``, also enumerated ones.
        :return: Batch shape: that of ``z`` broadcast with ``batch_shape``.
        """
        number = self.mixture_logits.shape[-1]
        if not isinstance(z, Tensor) or z.is_floating_point() or z.dtype == torch.bool:
            raise ValueError(f"z: expected a tensor of integers, got {getattr(z, 'dtype', z)!r}")
        require((z < 0) | (z >= number), f"z: expected integers in range({number}), got others")
        z, shape = z.long(), torch.Size(torch.broadcast_shapes(z.shape, self.batch_shape))
        logits = self.statistic_logits.expand(shape + self.statistic_logits.shape[-2:])
        labels = self.partition.labels.expand(shape + (self.mixture_logits.shape[-1],) + self.event_shape)
        index = z.expand(shape)[..., None, None]
        logits, labels, value, observed = (
            tensor.expand(labels.shape[:-1] + tensor.shape[-1:]).take_along_dim(index, -2).squeeze(-2)
            for tensor in (logits, labels, *self._components._evidence[:2])
        )
        alone = ExchangeablePartition(logits, Partition(labels), self._validate_args)
        return alone.condition(value, observed)

    def component_log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities of a value given each class and the evidence, as in :meth:`component`, shape ``(..., K)``.

        A class that the evidence excludes keeps the distribution that it had before.
        """
        if self._validate_args:
            self._validate_sample(value)
        return self._cast(self._components.log_prob(value.unsqueeze(-2)))

    def posterior(self, value: Tensor, observed: Tensor | None = None) -> Categorical:
        """The class given a value, or some of its entries, as a distribution over ``range(K)``.

        :param Tensor value: Zeros and ones where ``observed``, anything elsewhere.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``; ``None`` for all entries.
        :raises ValueError: where the evidence is impossible.
        """
        if observed is None:
            observed = torch.ones(self.event_shape, dtype=torch.bool, device=self.statistic_logits.device)
        given = self.condition(value, observed)
        return Categorical(logits=self._cast(given._log_classes))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws a class, then a vector; shape ``sample_shape + batch_shape + (n,)``."""
        with torch.no_grad():
            classes = draw_log(self._log_classes.expand(torch.Size(sample_shape) + self._log_classes.shape))
            drawn = self._components.sample(sample_shape)
            drawn = drawn.expand(classes.shape + drawn.shape[-2:])
        return drawn.take_along_dim(classes[..., None, None], -2).squeeze(-2)

    def _score(self, value: Tensor) -> Tensor:
        return logsumexp(self._joint(value))

    def _joint(self, value: Tensor) -> Tensor:
        """Log-weights of a value together with each class, in double precision."""
        components = self._components
        each = components._score(value.unsqueeze(-2)) - require_support(components._log_z, EMPTY_SUPPORT)
        return self._class_weights + each

    @property
    def _log_marginals(self) -> Tensor:
        mixed = logsumexp(self._log_classes[..., None, None] + self._components._log_marginals, -3)
        return mixed.expand(self.batch_shape + mixed.shape[-2:])

    def condition(self, value: Tensor, observed: Tensor) -> "ExchangeableMixture":
        """Fixes some variables; the class stays latent.

        :param Tensor value: Zeros and ones where ``observed``, anything elsewhere; shape broadcasts to ``(..., n)``.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``.
        :return: The distribution of whole vectors given the observed entries, with the same queries and gradients. Its
            partition function keeps the weight of the evidence: its logarithm minus ``log_partition_function`` is
            :meth:`marginal_log_prob`. Queries raise where the evidence is impossible.
        """
        check_entries(self.batch_shape + self.event_shape, value=value, observed=observed)
        value, observed = value.unsqueeze(-2), observed.unsqueeze(-2)
        conditioned = self._components.condition(value, observed)
        change = conditioned._log_z - require_support(self._components._log_z, EMPTY_SUPPORT)
        # A class that the evidence excludes keeps its distribution, but no weight.
        kept = observed & (change > -torch.inf).unsqueeze(-1)
        components = self._components.condition(value, kept)
        batch = torch.Size(torch.broadcast_shapes(change.shape[:-1], self.batch_shape))
        new = ExchangeableMixture.__new__(ExchangeableMixture)
        return self._copy(new, (components, self._log_evidence + change), batch, IMPOSSIBLE_EVIDENCE)
