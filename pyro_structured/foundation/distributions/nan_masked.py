"""Distributions of vectors of which some entries are missing."""

__all__ = ["NanMasked"]

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_structured.foundation.structures.representation import represent


class _OrNan(constraints.Constraint):
    """Vectors whose entries satisfy a constraint or are NaN."""

    def __init__(self, entry: constraints.Constraint) -> None:
        self.entry = entry
        self.is_discrete = entry.is_discrete
        self.event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        fits: Tensor = self.entry.check(value) | value.isnan()
        return fits.all(-1)

    def __repr__(self) -> str:
        return f"NanMasked support: {self.entry} or nan in every entry"


class NanMasked(TorchDistribution):
    r"""Marginalises the entries of a value that are NaN.

    ``pyro.sample("y", NanMasked(d), obs=y)`` scores the entries of ``y`` that are not NaN by their exact marginal
    probability under ``d``: :math:`p(y_O) = \sum_{y_M} p(y_O, y_M)`. The cost is that of ``d.marginal_log_prob``.
    Impute with ``d.condition(y, ~y.isnan())``, or, for a :class:`SelectionMixture`, ``d.posterior(y, ~y.isnan())``.
    Samples are complete. The idiom is that of
    :class:`pyro.distributions.NanMaskedNormal`.

    :param base_dist: A distribution of vectors with a method ``marginal_log_prob(value, observed)``, such as
        :class:`RecursiveCardinality` or :class:`SelectionMixture`.
    :raises ValueError: if ``base_dist`` lacks this method, or is not a distribution of vectors.

    Example::

        >>> from pyro_structured.distributions import KSubset
        >>> NanMasked(KSubset(torch.zeros(4), k=2)).log_prob(torch.tensor([1.0, torch.nan, torch.nan, torch.nan])).exp()
        tensor(0.5000)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(self, base_dist: TorchDistribution, validate_args: bool | None = None) -> None:
        is_vector = isinstance(base_dist, Distribution) and len(base_dist.event_shape) == 1
        if not is_vector or not callable(getattr(base_dist, "marginal_log_prob", None)):
            raise ValueError(
                "base_dist: expected a distribution of vectors, with one event axis, and with a method "
                f"marginal_log_prob(value, observed), got {base_dist!r}"
            )
        self.base_dist = base_dist
        super().__init__(base_dist.batch_shape, base_dist.event_shape, validate_args=validate_args)

    def __repr__(self) -> str:
        return represent(self)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "NanMasked":
        """Distribution with another batch shape; parameters are expanded without being copied."""
        new: NanMasked = self._get_checked_instance(NanMasked, _instance)  # type: ignore[no-untyped-call]
        new.base_dist = self.base_dist.expand(torch.Size(batch_shape))
        super(NanMasked, new).__init__(new.base_dist.batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property(event_dim=1)
    def support(self) -> constraints.Constraint:
        """The base distribution's support, or NaN, in every entry."""
        entry: constraints.Constraint = self.base_dist.support.base_constraint  # type: ignore[union-attr]
        return _OrNan(entry)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws complete values from the base distribution."""
        drawn: Tensor = self.base_dist.sample(sample_shape)
        return drawn

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of the entries that are not NaN."""
        if self._validate_args:
            self._validate_sample(value)
        missing = value.isnan() if value.is_floating_point() else torch.zeros_like(value, dtype=torch.bool)
        entry: Any = self.base_dist.support.base_constraint  # type: ignore[union-attr]
        outside: Tensor = ~(entry.check(value) | missing)
        result: Tensor = self.base_dist.marginal_log_prob(value, ~(missing | outside))
        return result.masked_fill(outside.any(-1), -torch.inf)

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether the base distribution can enumerate its support."""
        return self.base_dist.has_enumerate_support

    def enumerate_support(self, expand: bool = True) -> Any:
        """All complete values, as the base distribution enumerates them."""
        return self.base_dist.enumerate_support(expand)

    @property
    def mean(self) -> Any:
        """Mean of the base distribution."""
        return self.base_dist.mean

    @property
    def variance(self) -> Any:
        """Variance of the base distribution."""
        return self.base_dist.variance
