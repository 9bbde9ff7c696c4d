"""Costs as a function of noise whose distribution has no parameters."""

__all__ = ["costs_from_noise", "has_noise", "noise_of_costs"]

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal


def noise_of_costs(base: Any, costs: Tensor) -> Tensor:
    """Standardised costs: normal for normal costs, quantiles for others.

    :raises NotImplementedError: if the costs have no cumulative probabilities in closed form.
    """
    entries = _entries(base)
    if isinstance(entries, Normal):
        standard: Tensor = (costs - entries.loc.double()) / entries.scale.double()
        return standard
    if isinstance(entries, MultivariateNormal):
        deviation = (costs - entries.loc.double()).unsqueeze(-1)
        noise: Tensor = torch.linalg.solve_triangular(entries.scale_tril.double(), deviation, upper=False).squeeze(-1)
        return noise
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
    found: Tensor = entries.icdf(noise).double()
    return found


def has_noise(base: Any) -> bool:
    """Whether costs can be made from noise in closed form."""
    try:
        costs_from_noise(base, noise_of_costs(base, base.sample()))
    except NotImplementedError:
        return False
    return True


def _entries(base: Any) -> Any:
    while isinstance(base, Independent):
        base = base.base_dist
    return base
