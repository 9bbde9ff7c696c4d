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
        standard: Tensor = (costs - entries.loc.double()) / entries.scale.double()
        return standard
    if isinstance(entries, MultivariateNormal):
        deviation = (costs - entries.loc.double()).unsqueeze(-1)
        noise: Tensor = torch.linalg.solve_triangular(entries.scale_tril.double(), deviation, upper=False).squeeze(-1)
        return noise
    _require_quantiles(base, entries)
    quantile: Tensor = entries.cdf(costs).double()
    return quantile


def costs_from_noise(base: Any, noise: Tensor) -> Tensor:
    """The inverse of :func:`noise_of_costs`, in double precision."""
    entries = _entries(base)
    if isinstance(entries, Normal):
        scaled: Tensor = entries.loc.double() + entries.scale.double() * noise
        return scaled
    if isinstance(entries, MultivariateNormal):
        correlated: Tensor = entries.loc.double() + (entries.scale_tril.double() @ noise.unsqueeze(-1)).squeeze(-1)
        return correlated
    _require_quantiles(base, entries)
    found: Tensor = entries.icdf(noise).double()
    return found


def _entries(base: Any) -> Any:
    while isinstance(base, Independent):
        base = base.base_dist
    return base


def _require_quantiles(base: Any, entries: Any) -> None:
    if entries.event_shape or not (hasattr(entries, "cdf") and hasattr(entries, "icdf")):
        raise NotImplementedError(f"Interweave: costs from {type(entries).__name__} have no quantiles in closed form")
