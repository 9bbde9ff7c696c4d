"""Supports that depend on parameters."""

__all__ = ["check_support"]

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from pyro_structured.distributions.entries import entry_constraint, entry_distribution


def check_support(base: Any) -> None:
    """Raises a ValueError if gradients are asked for with respect to parameters that move the ends of a support.

    There the density does not vanish, and the derivative of its integral is more than the integral of its derivative.
    """
    for end, parameters in _ends(base):
        if any(_moves(end, parameter) for parameter in parameters):
            raise ValueError(
                "base: expected costs whose support has no derivatives, got "
                f"{type(entry_distribution(base)).__name__}, the ends of whose support depend on a parameter that "
                "requires gradients; Fisher's identity does not hold for it: detach it, such as low and high of "
                "Uniform and TruncatedNormal, or use torch.no_grad()"
            )


def _ends(base: Any) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Ends of the support, and the tensors that they may depend on."""
    base = entry_distribution(base)
    # Classes such as Gumbel say themselves what their support is.
    if type(base).support is td.TransformedDistribution.support:
        mine = [each for part in base.transforms for each in vars(part).values() if isinstance(each, Tensor)]
        for end, parameters in _ends(base.base_dist):
            for transform in base.transforms:
                end = transform(end)
            yield end, parameters + mine
        return
    support = entry_constraint(base.support)
    for name in ("lower_bound", "upper_bound"):
        end = torch.as_tensor(getattr(support, name, torch.inf))
        yield end.expand(base.batch_shape + base.event_shape), [end]


def _moves(end: Tensor, parameter: Tensor) -> bool:
    if not (parameter.requires_grad and end.requires_grad):
        return False
    total = end.masked_fill(end.isinf(), 0.0).sum()
    (slope,) = torch.autograd.grad(total, parameter, retain_graph=True, allow_unused=True)
    return slope is not None and bool(slope.nan_to_num(0.0).ne(0).any())
