"""Mixtures of any distributions of discrete vectors."""

__all__ = ["MixtureOfDensities"]

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.foundation.distributions.argument_checks import check_vector
from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.distributions.discrete_vector import DiscreteVector
from pyro_structured.foundation.distributions.mixture_vector import MixtureVector
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import checked_batch


class MixtureOfDensities(MixtureVector, CategoricalVector):
    r"""Mixture of distributions of discrete vectors, of any classes.

    .. math::
        p(x) = \sum_{m=1}^M w_m p_m(x), \qquad w = \mathrm{softmax}(\text{mixture\_logits}).

    Members are any of the package's distributions of binary or categorical vectors that answer queries exactly:
    :class:`JunctionTree`, :class:`LatentTree`, :class:`SumProductNetwork`, :class:`ExchangeableMixture`, mixtures among
    them. Values have shape ``(..., n)``, long integers, those of binary members too; :meth:`log_prob` accepts booleans,
    integers and floating point numbers. The member is summed out. :class:`~pyro_structured.models.StackedDensity`
    learns such distributions.

    **Exact**: ``log_prob``, ``sample``, ``marginals``, ``marginals_of``, ``condition``, ``reweight``,
    ``marginal_log_prob`` and ``posterior``, at the cost of those of all members. ``mode`` and ``entropy`` have no
    closed form: they are found by enumeration, up to ``2 ** 12`` values, and refused above.

    :param Tensor mixture_logits: Log-weights of the members, shape ``(..., M)``, less than +inf.
    :param members: Distributions of vectors of the same variables, with the same numbers of states.
    :raises ValueError: if a shape is wrong, there is a NaN or +inf, or members are of other kinds or variables.

    **References**

    Wolpert (1992): Stacked generalization. Neural Networks 5.
    Smyth, Wolpert (1999): Linearly combining density estimators via stacking. Machine Learning 36.

    Example::

        >>> from pyro_structured.distributions import JunctionTree, LatentTree
        >>> from pyro_structured.structures import CliqueTree, HiddenTree
        >>> equal = JunctionTree(torch.eye(2).log().flatten(), CliqueTree([[0, 1]], [2, 2]))
        >>> free = LatentTree(torch.zeros(2, 1, 1), torch.zeros(2, 1, 2), HiddenTree([0, 0], num_states=1))
        >>> d = MixtureOfDensities(torch.zeros(2), [equal, free])
        >>> d.log_prob(torch.tensor([1, 1])).exp()
        tensor(0.3750)
        >>> d.posterior(torch.tensor([0, 1])).probs
        tensor([0., 1.])
    """

    arg_constraints = {"mixture_logits": constraints.independent(constraints.less_than(torch.inf), 1)}
    _derived = ("_given", "_log_evidence", "_kept", "_possible", "_class_weights")

    def __init__(
        self, mixture_logits: Tensor, members: Sequence[DiscreteVector], validate_args: bool | None = None
    ) -> None:
        check_vector("mixture_logits", mixture_logits)
        self._free: tuple[Any, ...] = _checked_members(members)
        if mixture_logits.shape[-1] != len(self._free):
            raise ValueError(
                f"mixture_logits: expected a last axis of {len(self._free)} numbers, one for each member, got shape "
                f"{tuple(mixture_logits.shape)}"
            )
        self.mixture_logits = mixture_logits
        batch = checked_batch(
            mixture_logits=mixture_logits.shape[:-1],
            **{f"members[{m}]": member.batch_shape for m, member in enumerate(self._free)},
        )
        self._evidence = no_evidence(self._free[0].event_shape[0], mixture_logits.device)
        self._empty = "mixture_logits: expected a member of positive weight, but the support is empty"
        super().__init__(batch, self._free[0].event_shape, validate_args=validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        mixture_logits: torch.Size, members: Sequence[DiscreteVector]
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shape of ``mixture_logits``, and the members themselves."""
        shapes = [mixture_logits[:-1], *(member.batch_shape for member in members)]
        return broadcast_shapes(*shapes), members[0].event_shape

    @property
    def members(self) -> tuple[DiscreteVector, ...]:
        """The members, expanded to the batch shape, without the evidence."""
        return tuple(member.expand(self.batch_shape) for member in self._free)

    @property
    def _num_states(self) -> tuple[int, ...]:
        return _states_of(self._free[0])

    @lazy_property
    def _class_weights(self) -> Tensor:
        return super()._class_weights

    @staticmethod
    def _reweighted(component: Any, log_weights: Tensor) -> Any:
        categorical = isinstance(component, CategoricalVector)
        return component.reweight(log_weights) if categorical else component.reweight(*log_weights.unbind(-1))

    def _component_scores(self, value: Tensor) -> Tensor:
        return super()._component_scores(value.double())

    def _draw_components(self, sample_shape: torch.Size) -> Tensor:
        return torch.stack([component.sample(sample_shape).long() for component in self._possible], -2)

    def component(self, z: Tensor) -> "DiscreteVector | MixtureOfDensities":
        """Member of the index z, given the evidence of :meth:`condition` and :meth:`reweight`.

        A member that the evidence of one of these calls excludes keeps the distribution that it had before.

        :param Tensor z: Integers of a shape that broadcasts with ``batch_shape``, also enumerated ones.
        :return: Batch shape: that of ``z`` broadcast with ``batch_shape``. For a ``z`` without axes it is of the
            member's class; otherwise a mixture that has one member in each element of the batch.

        Example::

            >>> from pyro_structured.distributions import LatentTree
            >>> from pyro_structured.structures import HiddenTree
            >>> tables = [torch.zeros(1, 1, 2), torch.tensor([[[0.0, -torch.inf]]])]
            >>> members = [LatentTree(torch.zeros(1, 1, 1), table, HiddenTree([0], num_states=1)) for table in tables]
            >>> MixtureOfDensities(torch.zeros(2), members).component(torch.arange(2)).marginals[..., 0]
            tensor([[0.5000],
                    [1.0000]])
        """
        classes = self._checked_classes(z)
        observations, weights = self._evidence_of(classes)
        if not z.dim():
            alone: Any = self.members[int(z)]
            given: DiscreteVector = alone.condition(*observations)
            return given if weights is None else self._reweighted(given, weights)
        others = torch.arange(len(self._free), device=classes.device) != classes.unsqueeze(-1)
        certain = self.mixture_logits.new_zeros(()).masked_fill(others, -torch.inf)
        chosen = MixtureOfDensities(certain, self._free, self._validate_args).condition(*observations)
        return chosen if weights is None else chosen.reweight(weights)

    @property
    def _single_marginals(self) -> Tensor:
        return self._mixed([_probabilities(component) for component in self._possible])

    def _probabilities_of(self, wanted: Sequence[int]) -> Tensor:
        return self._enumerated_marginals(wanted)


def _checked_members(members: Any) -> tuple[DiscreteVector, ...]:
    """Members, or a ValueError that names one of them."""
    if isinstance(members, DiscreteVector) or not isinstance(members, Sequence) or not members:
        got = "none" if isinstance(members, Sequence) else type(members).__name__
        raise ValueError(f"members: expected at least one distribution of discrete vectors, got {got}")
    for m, member in enumerate(members):
        if not isinstance(member, DiscreteVector) or len(member.event_shape) != 1 or not hasattr(member, "reweight"):
            raise ValueError(
                f"members[{m}]: expected a distribution of discrete vectors with one event axis, and with condition "
                f"and reweight, got {type(member).__name__}"
            )
        if _states_of(member) != _states_of(members[0]):
            raise ValueError(
                f"members[{m}]: expected variables with the numbers of states {_states_of(members[0])}, as in "
                f"members[0], got {_states_of(member)}"
            )
    return tuple(members)


def _states_of(member: DiscreteVector) -> tuple[int, ...]:
    """Number of states of each variable."""
    states = member._num_states
    return states if isinstance(member, CategoricalVector) else states * member.event_shape[0]


def _probabilities(member: Any) -> Tensor:
    """Probabilities of the states of all variables, one after the other, in double precision."""
    if isinstance(member, CategoricalVector):
        return member._single_marginals
    ones = member.marginals.double()
    return torch.stack([1 - ones, ones], -1).flatten(-2)
