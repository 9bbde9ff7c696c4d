"""Bounds of the support of distributions."""

__all__ = ["check_support", "moving_parameters", "support_bounds"]

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from pyro_structured.foundation.distributions.independent_parts import entry_constraint, entry_distribution, unmasked
from pyro_structured.foundation.ops.processor import unmoved_tensor


def support_bounds(base: Any) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of the values, -inf and inf where there are none, in double precision; shapes broadcast
    with the values, on the device of the parameters.

    The support that torch declares for a transformed variable is the codomain of its transforms: minus an exponential
    variable would be any real number. Here, the bounds of the variable itself go through its monotone transforms.
    Mixtures have the widest bounds of their components.
    """
    base = entry_distribution(base)
    if isinstance(base, td.MixtureSameFamily):
        components = base.component_distribution
        shape, axis = components.batch_shape + components.event_shape, len(components.batch_shape) - 1
        low, high = (bound.expand(shape) for bound in support_bounds(components))
        return low.amin(axis), high.amax(axis)
    if type(base).support is not td.TransformedDistribution.support:
        return _of_constraint(base.support, _device(base))
    shape = base.base_dist.batch_shape + base.base_dist.event_shape
    low, high = (bound.expand(shape) for bound in support_bounds(base.base_dist))
    return _through(td.ComposeTransform(base.transforms), low, high)


def _of_constraint(support: Any, device: torch.device | None) -> tuple[Tensor, Tensor]:
    entry = entry_constraint(support)
    low, high = (
        torch.as_tensor(getattr(entry, name, limit), dtype=torch.double, device=device)
        for name, limit in (("lower_bound", -torch.inf), ("upper_bound", torch.inf))
    )
    return low, high


def _through(transform: Any, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds after a transform: those of its codomain, if it is not a monotone function of every number."""
    if isinstance(transform, td.ComposeTransform):
        for part in transform.parts:
            low, high = _through(part, low, high)
        return low, high
    while isinstance(transform, td.IndependentTransform):
        transform = transform.base_transform
    if isinstance(transform, td.ReshapeTransform):
        return transform(low), transform(high)
    least, most = _of_constraint(transform.codomain, low.device)
    rising = _is_rising(transform)
    if rising is None:
        shape = transform.forward_shape(low.shape)
        return least.expand(shape), most.expand(shape)
    start, stop = _of_constraint(transform.domain, low.device)
    # Transforms need not be defined at the ends of their domains, but these go to the ends of their codomains.
    first = torch.where(low <= start, torch.where(rising, least, most), transform(low))
    last = torch.where(high >= stop, torch.where(rising, most, least), transform(high))
    return torch.where(rising, first, last), torch.where(rising, last, first)


def _is_rising(transform: Any) -> Tensor | None:
    """Whether a transform is an increasing function of every number, or a decreasing one; ``None`` for others."""
    try:
        return None if transform.domain.event_dim else unmoved_tensor(transform.sign) > 0
    except NotImplementedError:
        return None


def check_support(base: Any) -> None:
    """Raises a ValueError if parameters that move the ends of a support require gradients.

    The density does not vanish at these ends, so that the derivative of its integral is more than the integral of its
    derivative.
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
    """Names of the parameters that move the ends of a support."""
    ends = [end for end, _ in _ends(base) if end.requires_grad]
    return [name for name, parameter in parameters.items() if any(_moves(end, parameter) for end in ends)]


def _ends(base: Any) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Ends of the support, and the tensors that they may depend on."""
    base = unmasked(base)
    if isinstance(base, td.MixtureSameFamily):
        yield from _ends(base.component_distribution)
        return
    # Classes such as Gumbel declare their support themselves.
    if type(base).support is td.TransformedDistribution.support:
        transform_tensors = [tensor for transform_part in base.transforms for tensor in _tensors(transform_part)]
        for end, parameters in _ends(base.base_dist):
            for transform in base.transforms:
                end = transform(end)
            yield end, parameters + transform_tensors
        return
    support = entry_constraint(base.support)
    device = _device(base)
    for name in ("lower_bound", "upper_bound"):
        end = torch.as_tensor(getattr(support, name, torch.inf), device=device)
        yield end.expand(base.batch_shape + base.event_shape), [end]


def _device(base: Any) -> torch.device | None:
    """Device of the parameters of a distribution that has any."""
    parameter = next(_tensors(base), None)
    return None if parameter is None else parameter.device


def _tensors(transform: Any) -> Iterator[Tensor]:
    """Tensors of a transform or of a distribution, and of its parts."""
    for attribute in vars(transform).values():
        if isinstance(attribute, Tensor):
            yield attribute
        elif isinstance(attribute, td.Distribution):
            yield from _tensors(attribute)
    for part in [*getattr(transform, "parts", ()), *filter(None, [getattr(transform, "base_transform", None)])]:
        yield from _tensors(part)


def _moves(end: Tensor, parameter: Tensor) -> bool:
    if not (parameter.requires_grad and end.requires_grad):
        return False
    total = end.masked_fill(end.isinf(), 0.0).sum()
    (slope,) = torch.autograd.grad(total, parameter, retain_graph=True, allow_unused=True)
    return slope is not None and bool(slope.nan_to_num(0.0).ne(0).any())
