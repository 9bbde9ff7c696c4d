"""Numbers some of which have bounds."""

__all__ = ["PartialInterval"]

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints, transform_to


class PartialInterval(constraints.Constraint):
    """Numbers between bounds that may be infinite, each with bounds of its own; torch's intervals have finite ones.

    :param Tensor lower_bound: Lower bounds, or -inf.
    :param Tensor upper_bound: Larger upper bounds, or inf, of the same shape.
    """

    def __init__(self, lower_bound: Tensor, upper_bound: Tensor) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether numbers are between their bounds."""
        inside: Tensor = (self.lower_bound <= value) & (value <= self.upper_bound)
        return inside

    def __repr__(self) -> str:
        return f"PartialInterval(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


@biject_to.register(PartialInterval)
@transform_to.register(PartialInterval)
class _Entrywise(Transform):
    """From real numbers, by torch's transform for the bounds that an entry has."""

    domain = constraints.real
    bijective = True

    def __init__(self, interval: PartialInterval) -> None:
        super().__init__()
        self.codomain = interval
        low, high = interval.lower_bound, interval.upper_bound
        has_low, has_high = low.isfinite(), high.isfinite()
        both, only_low, only_high = has_low & has_high, has_low & ~has_high, has_high & ~has_low
        supports = (
            (both, constraints.interval(low.where(both, 0.0), high.where(both, 1.0))),
            (only_low, constraints.greater_than_eq(low.where(only_low, 0.0))),
            (only_high, constraints.less_than(high.where(only_high, 0.0))),
        )
        self._parts: list[tuple[Tensor, Any]] = [(chosen, biject_to(support)) for chosen, support in supports]

    def _call(self, x: Tensor) -> Tensor:
        found = x
        for chosen, transform in self._parts:
            found = torch.where(chosen, transform(x.masked_fill(~chosen, 0.0)), found)
        return found

    def _inverse(self, y: Tensor) -> Tensor:
        found = y
        for chosen, transform in self._parts:
            inside = transform(torch.zeros_like(y))
            found = torch.where(chosen, transform.inv(torch.where(chosen, y, inside)), found)
        return found

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Logarithms of the slopes of all entries."""
        found = torch.zeros_like(x)
        for chosen, transform in self._parts:
            place = x.masked_fill(~chosen, 0.0)
            found = torch.where(chosen, transform.log_abs_det_jacobian(place, transform(place)), found)
        return found
