"""Supports that depend on parameters."""

__all__ = ["check_support", "moving_parameters"]

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from pyro_structured.foundation.distributions.independent_parts import entry_constraint, unmasked


def check_support(base: Any) -> None:
    """Raises a ValueError if gradients are asked for with respect to parameters that move the ends of a support.

    There the density does not vanish, and the derivative of its integral is more than the integral of its derivative.
    """
    for end, parameters in _ends(base):
        if any(_moves(end, parameter) for parameter in parameters):
            raise ValueError(
                "base: expected costs whose support has no derivatives, got "
                f"{type(unmasked(base)).__name__}, the ends of whose support depend on a parameter that "
                "requires gradients; Fisher's identity does not hold for it: detach it, such as low and high of "
                "Uniform and TruncatedNormal, or use torch.no_grad()"
            )


def moving_parameters(base: Any, parameters: Mapping[str, Tensor]) -> list[str]:
    """Names of those parameters that move the ends of a support."""
    ends = [end for end, _ in _ends(base) if end.requires_grad]
    return [name for name, parameter in parameters.items() if any(_moves(end, parameter) for end in ends)]


def _ends(base: Any) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Ends of the support, and the tensors that they may depend on."""
    base = unmasked(base)
    if isinstance(base, td.MixtureSameFamily):
        yield from _ends(base.component_distribution)
        return
    # Classes such as Gumbel say themselves what their support is.
    if type(base).support is td.TransformedDistribution.support:
        mine = [each for part in base.transforms for each in _tensors(part)]
        for end, parameters in _ends(base.base_dist):
            for transform in base.transforms:
                end = transform(end)
            yield end, parameters + mine
        return
    support = entry_constraint(base.support)
    for name in ("lower_bound", "upper_bound"):
        end = torch.as_tensor(getattr(support, name, torch.inf))
        yield end.expand(base.batch_shape + base.event_shape), [end]


def _tensors(transform: Any) -> Iterator[Tensor]:
    """Of a transform, and of those of which it is made."""
    for part in [*getattr(transform, "parts", ()), *filter(None, [getattr(transform, "base_transform", None)])]:
        yield from _tensors(part)
    yield from (each for each in vars(transform).values() if isinstance(each, Tensor))


def _moves(end: Tensor, parameter: Tensor) -> bool:
    if not (parameter.requires_grad and end.requires_grad):
        return False
    total = end.masked_fill(end.isinf(), 0.0).sum()
    (slope,) = torch.autograd.grad(total, parameter, retain_graph=True, allow_unused=True)
    return slope is not None and bool(slope.nan_to_num(0.0).ne(0).any())
