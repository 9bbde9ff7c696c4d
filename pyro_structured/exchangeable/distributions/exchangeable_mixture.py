"""Mixtures of partitions into exchangeable blocks."""

__all__ = ["ExchangeableMixture"]

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.exchangeable.distributions.exchangeable_partition import ExchangeablePartition, check_partition
from pyro_structured.exchangeable.distributions.exchangeable_vector import EMPTY_SUPPORT, ExchangeableVector
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.distributions.argument_checks import (
    check_memberships,
    check_rows,
    check_vector,
)
from pyro_structured.foundation.distributions.discrete_vector import exact_log_evidence, exact_log_prob
from pyro_structured.foundation.distributions.mixture_vector import MixtureVector
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


class ExchangeableMixture(MixtureVector, ExchangeableVector):
    r"""A latent class, and given the class, blocks of exchangeable binary variables; each class has its own blocks.

    .. math::
        p(x) = \sum_{k=1}^K \pi_k \prod_{b \in \mathcal{X}_k} \frac{w_{kb}(t_b)}{\binom{n_b}{t_b}}, \qquad
        \pi = \mathrm{softmax}(\text{mixture\_logits}).

    Partitions into single variables make it a latent naive Bayes model, with as many parameters. Values are zeros and
    ones of shape ``(..., n)`` in the parameters' dtype; the class is summed out. If the class is a site of its own, use
    :meth:`component`.

    **Exact**: ``log_prob``, ``sample``, ``marginals``, ``condition``, ``marginal_log_prob`` and ``posterior``, in
    O(K n) a value; after ``reweight``, in O(K n m) for blocks of up to m variables. ``mode`` and ``entropy`` of
    mixtures have no closed form: they are found by enumeration, up to ``2 ** 12`` vectors, and refused above.

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

    _derived = ("_free", "_given", "_log_evidence", "_kept", "_possible")
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
            batch_shape = broadcast_shapes(mixture_logits.shape[:-1], components.batch_shape[:-1])
        except RuntimeError:
            raise ValueError(
                f"statistic_logits: expected a batch that broadcasts with {tuple(mixture_logits.shape[:-1])}, got "
                f"{tuple(components.batch_shape[:-1])}"
            ) from None
        self.mixture_logits, self.statistic_logits, self.partition = mixture_logits, statistic_logits, partition
        self._evidence, self._free = no_evidence(partition.num_variables, mixture_logits.device), components
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
        :param float smoothing: Number of at least 0, added to the number of rows of every count of every block.
        """
        check_partition(partition)
        check_rows(values, partition.num_variables)
        check_memberships(memberships, len(values))
        if partition.batch_shape not in ((), memberships.shape[1:]):
            raise ValueError(
                f"partition: expected one for each of {memberships.shape[1]} classes, as in memberships, got batch "
                f"shape {tuple(partition.batch_shape)}"
            )
        components = ExchangeablePartition.from_data(values, partition, smoothing, memberships.mT)
        return cls(memberships.sum(0).log(), components.statistic_logits, partition)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        mixture_logits: torch.Size, statistic_logits: torch.Size, partition: Partition
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the parameters, and the partition itself."""
        inner, event = ExchangeablePartition.infer_shapes(statistic_logits, partition)
        return broadcast_shapes(mixture_logits[:-1], inner[:-1]), event

    @lazy_property
    def _free(self) -> ExchangeablePartition:
        """Distributions of all classes without the evidence, batch shape ``(..., K)``."""
        return ExchangeablePartition(self._parameter("statistic_logits"), self.partition, validate_args=False)

    @lazy_property
    def _log_evidence(self) -> Tensor:
        _, observed, consistent = self._evidence
        if not any_true(observed) and self._weighting is None:
            return torch.zeros_like(self.mixture_logits, dtype=torch.double)
        return exact_log_evidence(self._given, self._free).masked_fill(~consistent.unsqueeze(-1), -torch.inf)

    @lazy_property
    def _possible(self) -> ExchangeablePartition:
        """Distributions of all classes given the evidence, but without evidence that excludes the class."""
        has_evidence = any_true(self._evidence[1]) or self._weighting is not None
        return self._components(*self._kept) if has_evidence else self._free

    def _components(self, observed: Tensor, weights: Tensor | None) -> ExchangeablePartition:
        """Distributions of all classes given evidence about each; arguments as in :attr:`_kept`."""
        given = self._free.condition(self._evidence[0].unsqueeze(-2), observed)
        return given if weights is None else given.reweight(*weights.unbind(-1))

    def component(self, z: Tensor) -> ExchangeablePartition:
        """The distribution given the class, and given the evidence of :meth:`condition` and :meth:`reweight`.

        A class that the evidence of one of these calls excludes keeps the distribution that it had before.

        :param Tensor z: Integers of a shape that broadcasts with ``batch_shape``, also enumerated ones.
        :return: Batch shape: that of ``z`` broadcast with ``batch_shape``.

        Example::

            >>> partition = Partition(torch.tensor([[0, 0], [0, 1]]))
            >>> equal = torch.tensor([0.0, -torch.inf, 0.0, 0.0])
            >>> d = ExchangeableMixture(torch.zeros(2), torch.stack([equal, torch.zeros(4)]), partition)
            >>> d.component(torch.arange(2)).log_prob(torch.tensor([1.0, 1.0])).exp()
            tensor([0.5000, 0.2500])
        """
        z = self._checked_classes(z)
        logits = self.statistic_logits.expand(z.shape + self.statistic_logits.shape[-2:])
        labels = self.partition.labels.expand(z.shape + self.mixture_logits.shape[-1:] + self.event_shape)
        logits, labels = (tensor.take_along_dim(z[..., None, None], -2).squeeze(-2) for tensor in (logits, labels))
        alone = ExchangeablePartition(logits, Partition(labels), self._validate_args)
        observations, weights = self._evidence_of(z)
        given = alone.condition(*observations)
        return given if weights is None else given.reweight(*weights.unbind(-1))

    def _component_scores(self, value: Tensor) -> Tensor:
        return exact_log_prob(self._possible, value.unsqueeze(-2))

    def _draw_components(self, sample_shape: torch.Size) -> Tensor:
        shape = self.batch_shape + self.mixture_logits.shape[-1:]
        components = self._possible
        # An expanded instance has no cached results.
        return (components if components.batch_shape == shape else components.expand(shape)).sample(sample_shape)

    @property
    def _log_marginals(self) -> Tensor:
        mixed = logsumexp(self._log_classes[..., None, None] + self._possible._log_marginals, -3)
        return mixed.expand(self.batch_shape + mixed.shape[-2:])
