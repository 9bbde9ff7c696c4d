"""Parts of distributions and constraints of several numbers: without masks and declared events."""

__all__ = ["entry_constraint", "entry_distribution", "unmasked"]

from typing import Any

from pyro.distributions import MaskedDistribution
from torch.distributions import Independent, constraints


def entry_distribution(base: Any) -> Any:
    """The distribution that ``to_event`` declared an event, once or several times."""
    while isinstance(base, Independent):
        base = base.base_dist
    return base


def unmasked(fn: Any) -> Any:
    """The distribution that was declared an event, or masked, or both."""
    while isinstance(fn, (Independent, MaskedDistribution)):
        fn = fn.base_dist
    return fn


def entry_constraint(support: Any) -> Any:
    """The constraint of each number."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support
