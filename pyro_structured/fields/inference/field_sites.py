"""Sites of fields."""

__all__ = ["field_of"]

from typing import Any

from pyro_structured.fields.distributions.label_field import LabelField
from pyro_structured.foundation.distributions.independent_parts import entry_distribution


def field_of(fn: Any) -> LabelField | None:
    """The field that a distribution is, also where axes of its batch belong to one event; otherwise ``None``."""
    base = entry_distribution(fn)
    return base if isinstance(base, LabelField) else None
