"""Sites of fields."""

__all__ = ["field_of", "random_labels"]

from typing import Any

from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.ops.field_sweeps import independent_labels
from pyro_structured.foundation.distributions.independent_parts import entry_distribution


def field_of(fn: Any) -> FieldDistribution | None:
    """Field that a distribution is, also where axes of its batch are part of the event; otherwise ``None``."""
    base = entry_distribution(fn)
    return base if isinstance(base, FieldDistribution) else None


def random_labels(fn: FieldDistribution) -> Tensor:
    """Labels drawn from their own log-weights alone, as starts of chains, shape ``batch_shape + event_shape``."""
    drawn = independent_labels(fn.description, fn.batch_shape.numel())
    return drawn.reshape(fn.batch_shape + fn.event_shape).to(fn.value_dtype)
