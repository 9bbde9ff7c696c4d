"""Parts of distributions and constraints that were declared events, or masked."""

__all__ = ["entry_constraint", "entry_distribution", "unmasked"]

from typing import Any

from pyro.distributions import MaskedDistribution
from torch.distributions import Independent, constraints


def entry_distribution(base: Any) -> Any:
    """Distribution before ``to_event``, possibly several times."""
    while isinstance(base, Independent):
        base = base.base_dist
    return base


def unmasked(fn: Any) -> Any:
    """Distribution before ``to_event`` and ``mask``."""
    while isinstance(fn, (Independent, MaskedDistribution)):
        fn = fn.base_dist
    return fn


def entry_constraint(support: Any) -> Any:
    """Constraint of each single number."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support
