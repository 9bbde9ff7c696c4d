"""Costs as a function of noise whose distribution has no parameters."""

__all__ = ["costs_from_noise", "noise_of_costs"]

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal


def noise_of_costs(base: Any, costs: Tensor) -> Tensor:
    """Standardised costs: normal for normal costs, quantiles for others.

    :raises NotImplementedError: if the costs have neither a scale and location nor quantiles.
    """
    entries = _entries(base)
    if isinstance(entries, Normal):
        return (costs - entries.loc.double()) / entries.scale.double()
    if isinstance(entries, MultivariateNormal):
        deviation = (costs - entries.loc.double()).unsqueeze(-1)
        return torch.linalg.solve_triangular(entries.scale_tril.double(), deviation, upper=False).squeeze(-1)
    _require_quantiles(base, entries)
    return entries.cdf(costs).double()


def costs_from_noise(base: Any, noise: Tensor) -> Tensor:
    """The inverse of :func:`noise_of_costs`, in double precision."""
    entries = _entries(base)
    if isinstance(entries, Normal):
        return entries.loc.double() + entries.scale.double() * noise
    if isinstance(entries, MultivariateNormal):
        return entries.loc.double() + (entries.scale_tril.double() @ noise.unsqueeze(-1)).squeeze(-1)
    _require_quantiles(base, entries)
    return entries.icdf(noise).double()


def _entries(base: Any) -> Any:
    while isinstance(base, Independent):
        base = base.base_dist
    return base


def _require_quantiles(base: Any, entries: Any) -> None:
    if entries.event_shape or not (hasattr(entries, "cdf") and hasattr(entries, "icdf")):
        raise NotImplementedError(f"Interweave: costs from {type(entries).__name__} have no quantiles in closed form")
