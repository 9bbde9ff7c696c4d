"""Elementwise mixtures whose components are chosen by a structured selector."""

__all__ = ["SelectionMixture"]

import math
from typing import Any

import torch
from pyro.distributions import MaskedMixture, TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints, transform_to

from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.foundation.distributions.argument_checks import check_entries, check_validation, expanded_batch
from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.representation import represent


class _Union(constraints.Constraint):
    """Numbers that satisfy one constraint or the other."""

    def __init__(self, first: constraints.Constraint, second: constraints.Constraint) -> None:
        self.options = first, second
        self.is_discrete = first.is_discrete
        self.event_dim = 0

    def check(self, value: Tensor) -> Tensor:
        fits: Tensor = self.options[0].check(value) | self.options[1].check(value)
        return fits

    def __repr__(self) -> str:
        return f"{self.options[0]} or {self.options[1]}"


class SelectionMixture(TorchDistribution):
    r"""Vectors whose entries come from one of two components each, chosen by a structured selector, summed out exactly.

    .. math::
        p(v) = \sum_{y} p_{\mathrm{sel}}(y) \prod_{d=1}^D p_{y_d,d}(v_d)
             = \prod_d p_{0,d}(v_d)\ \exp\big(\log Z(x + \ell(v)) - \log Z(x)\big),
        \qquad \ell_d = \log p_{1,d}(v_d) - \log p_{0,d}(v_d).

    **Exact**, at the cost of one partition function of the selector for each value. No selector has to be sampled or
    enumerated: this trains with SVI, and NUTS runs on the parameters of selector and components.

    :param RecursiveCardinality selector: Distribution over :math:`\{0,1\}^D`.
    :param component0: Distribution of the entries that are not selected: event shape ``()``, batch shape that
        broadcasts with ``(..., D)``.
    :param component1: Distribution of the selected entries, likewise; both discrete or both continuous.
    :raises ValueError: if the components are not elementwise, one is discrete and the other not, or their shapes do not
        fit.

    Example::

        >>> import pyro.distributions as dist
        >>> from pyro_structured.distributions import KSubset
        >>> d = SelectionMixture(KSubset(torch.zeros(3), k=1), dist.Normal(0.0, 1.0), dist.Normal(5.0, 1.0))
        >>> d.posterior(torch.tensor([0.1, 4.8, -0.3])).mode
        tensor([0., 1., 0.])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(
        self,
        selector: RecursiveCardinality,
        component0: TorchDistribution,
        component1: TorchDistribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(selector, RecursiveCardinality):
            raise ValueError(f"selector: expected a RecursiveCardinality, got {type(selector).__name__}")
        shape = selector.batch_shape + selector.event_shape
        for name, component in (("component0", component0), ("component1", component1)):
            if not isinstance(component, Distribution):
                raise ValueError(f"{name}: expected a distribution, got {component!r}")
            if component.event_shape:
                raise ValueError(f"{name}: expected an event shape of (), got {tuple(component.event_shape)}")
            try:
                shape = broadcast_shapes(shape, component.batch_shape)
            except RuntimeError:
                shape = torch.Size()
            if shape[-1:] != selector.event_shape:
                raise ValueError(
                    f"{name}: expected a batch shape that broadcasts with that of the selector's vectors, "
                    f"{tuple(selector.batch_shape + selector.event_shape)}, got {tuple(component.batch_shape)}"
                )
        if _is_discrete(component0) != _is_discrete(component1):
            kind = "discrete" if _is_discrete(component0) else "continuous"
            raise ValueError(f"component1: expected a {kind} distribution, as component0, got {component1!r}")
        check_validation(validate_args)
        self.selector = selector.expand(shape[:-1])
        self._expand_components(component0, component1, shape)
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def _expand_components(self, component0: TorchDistribution, component1: TorchDistribution, shape: Any) -> None:
        self._given = component0, component1
        self.component0, self.component1 = component0.expand(shape), component1.expand(shape)

    def __getstate__(self) -> dict[str, Any]:
        """State with the given components: expanded parameters that require gradients cannot be copied."""
        return {name: value for name, value in self.__dict__.items() if name not in ("component0", "component1")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Expands the components anew."""
        self.__dict__.update(state)
        self._expand_components(*self._given, self.batch_shape + self.event_shape)

    def __repr__(self) -> str:
        return represent(self)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "SelectionMixture":
        """Distribution with another batch shape; parameters are expanded without being copied."""
        new: SelectionMixture = self._get_checked_instance(SelectionMixture, _instance)  # type: ignore[no-untyped-call]
        batch_shape = expanded_batch(self.batch_shape, batch_shape)
        new.selector = self.selector.expand(batch_shape)
        new._expand_components(*self._given, batch_shape + self.event_shape)
        super(SelectionMixture, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property(event_dim=1)
    def support(self) -> constraints.Constraint:
        """The union of the components' supports, entry by entry."""
        return constraints.independent(self._entry_support, 1)

    @property
    def _entry_support(self) -> constraints.Constraint:
        # Where one support contains the other, Pyro knows how to transform it.
        first, second = self.component0.support, self.component1.support
        return next((a for a, b in ((first, second), (second, first)) if _contains(a, b)), _Union(first, second))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws values, shape ``sample_shape + batch_shape + (D,)``."""
        with torch.no_grad():
            selected = self.selector.sample(sample_shape) == 1
            return torch.where(selected, self.component1.sample(sample_shape), self.component0.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of vectors, the selector summed out."""
        # The constraints of torch cannot be checked where there are no rows.
        if self._validate_args and (not isinstance(value, Tensor) or value.numel()):
            self._validate_sample(value)
        return self.selector.log_evidence(*self._likelihoods(value, None))

    def component(self, z: Tensor) -> Any:
        """The distribution given the selector's vector: independent entries, each from the component that it selects.

        :param Tensor z: Zeros and ones, shape broadcasts to ``batch_shape + (D,)``; also enumerated vectors.
        :return: Batch shape: that of ``z`` without its last axis, broadcast with ``batch_shape``.

        Example::

            >>> import pyro.distributions as dist
            >>> from pyro_structured.distributions import KSubset
            >>> d = SelectionMixture(KSubset(torch.zeros(3), k=1), dist.Normal(0.0, 1.0), dist.Normal(5.0, 1.0))
            >>> d.component(torch.tensor([0.0, 1.0, 0.0])).mean
            tensor([0., 5., 0.])
        """
        shape = self.batch_shape + self.event_shape
        check_entries(shape, z=z)
        require((z != 0) & (z != 1), "z: expected zeros and ones, got other numbers")
        shape = broadcast_shapes(shape, z.shape)
        component0, component1 = (component.expand(shape) for component in self._given)
        return MaskedMixture((z == 1).expand(shape), component0, component1).to_event(1)

    def posterior(self, value: Tensor, observed: Tensor | None = None) -> RecursiveCardinality:
        """The selector given the vector, or some of its entries, with all its queries.

        :param Tensor value: Shape ``(..., D)``; anything where not ``observed``, NaN too.
        :param Tensor observed: Booleans whose shape broadcasts with ``value``; ``None`` for all entries.
        :raises ValueError: if an observed entry is NaN or in the support of neither component, when arguments are
            validated.
        """
        return self.selector.reweight(*self._likelihoods(value, observed))

    def marginal_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log-density of the observed entries, all others integrated out; arguments as for :meth:`posterior`."""
        return self.selector.log_evidence(*self._likelihoods(value, observed))

    def _likelihoods(self, value: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor]:
        given = {"value": value} if observed is None else {"value": value, "observed": observed}
        check_entries(self.batch_shape + self.event_shape, **given)
        value = value.to(torch.promote_types(value.dtype, self.selector.logits.dtype))
        if self._validate_args:
            outside = ~self._entry_support.check(value)
            outside = outside if observed is None else outside & observed
            require(outside, "value: expected numbers in the support of a component where observed, got NaN or others")
        components = (self.component0, self.component1)
        log_off, log_on = (_log_likelihood(component, value, observed) for component in components)
        return log_off, log_on

    @property
    def mean(self) -> Tensor:
        """Expected values, shape ``batch_shape + (D,)``."""
        share = self.selector.marginals
        mean: Tensor = share * self.component1.mean + (1 - share) * self.component0.mean
        return mean

    @property
    def variance(self) -> Tensor:
        """Variances of the entries, shape ``batch_shape + (D,)``."""
        share = self.selector.marginals
        within: Tensor = share * self.component1.variance + (1 - share) * self.component0.variance
        between: Tensor = self.selector.variance * (self.component1.mean - self.component0.mean) ** 2
        return within + between


def _is_discrete(component: TorchDistribution) -> bool:
    support: Any = component.support
    return bool(support.is_discrete)


def _contains(outer: Any, inner: Any) -> bool:
    """Whether one interval contains another, a half-line or the whole line among them."""
    bounds = getattr(inner, "lower_bound", -math.inf), getattr(inner, "upper_bound", math.inf)
    return outer is inner or all(bool(outer.check(torch.as_tensor(bound)).all()) for bound in bounds)


def _log_likelihood(component: TorchDistribution, value: Tensor, observed: Tensor | None) -> Tensor:
    """Log-densities of the entries: -inf outside the component's support, 0 where nothing was observed."""
    support: Any = component.support
    known: Tensor = support.check(value)
    if observed is not None:
        known = known & observed
    # Some point of the support stands for the others, so that neither values nor derivatives are undefined there.
    inner = torch.zeros((), dtype=value.dtype, device=value.device)
    if not support.is_discrete:
        inner = transform_to(support)(inner)
    log_prob: Tensor = component.log_prob(torch.where(known, value, inner))
    log_prob = log_prob.masked_fill(~known, -math.inf)
    return log_prob if observed is None else log_prob.masked_fill(~observed, 0.0)
