"""Orders of exponential costs, and of Gumbel costs of one scale."""

__all__ = ["OrderedCosts", "PlackettLuce", "ordered_costs", "plackett_luce"]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.ops.log_space import log_cumulative_sums
from pyro_structured.foundation.ops.processor import unmoved_tensor
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.order_probability import log_plackett_luce
from pyro_structured.optima.structures.problem import Problem

# Transforms that keep the order of all costs.
INCREASING = (td.ExpTransform, td.SigmoidTransform, td.TanhTransform)


class OrderedCosts(NamedTuple):
    """Costs without monotone transforms that all of them have in common.

    :ivar entry: Distribution of single costs, without these transforms.
    :ivar bool maximize: Whether the optimum has the largest of them.
    :ivar transforms: What makes the costs of them, in the order in which it is applied.
    """

    entry: Any
    maximize: bool
    transforms: tuple[Any, ...]


def ordered_costs(problem: Problem, base: Any) -> OrderedCosts:
    """Distribution of single costs, up to monotone transforms that all of them have in common; of powers of positive
    costs, that of their logarithms.

    :param Problem problem: The optimisation problem, whose optimum depends on the order of the costs alone.
    :param base: Distribution of the costs.
    """
    entry, maximize, transforms = entry_distribution(base), problem.maximize, list[Any]()
    while isinstance(entry, td.TransformedDistribution) and (sign := _common_sign(entry.transforms[-1])):
        rest, maximize = entry.transforms[:-1], maximize != (sign < 0)
        transforms.append(entry.transforms[-1])
        entry = td.TransformedDistribution(entry.base_dist, rest) if rest else entry.base_dist
    if _is_power(entry):  # whose density may have singularities that its logarithm's has not
        noise, loc, scale = _logarithm(entry)
        transforms.append(td.ExpTransform())
        entry = td.TransformedDistribution(noise, [td.AffineTransform(loc, scale)])
    return OrderedCosts(entry, maximize, tuple(reversed(transforms)))


def _is_power(entry: Any) -> bool:
    """Whether positive variables go through a power at last."""
    if isinstance(entry, td.Weibull):
        return True
    if not isinstance(entry, td.TransformedDistribution) or not isinstance(entry.transforms[-1], td.PowerTransform):
        return False
    before = td.TransformedDistribution(entry.base_dist, entry.transforms[:-1])
    return not any_true(support_bounds(before)[0] < 0)


def _logarithm(entry: Any) -> tuple[Any, Tensor | float, Tensor]:
    """Distribution of noise, a and b, such that the logarithm of a positive variable is a + b noise; a number a does
    not depend on parameters.
    """
    if isinstance(entry, td.Weibull):
        unit = td.Gumbel(torch.zeros_like(entry.scale), torch.ones_like(entry.scale))
        return unit, entry.scale.double().log(), -1 / entry.concentration.double()
    if isinstance(entry, td.Exponential):
        unit = td.Gumbel(torch.zeros_like(entry.rate), torch.ones_like(entry.rate))
        return unit, -entry.rate.double().log(), torch.full_like(entry.rate, -1.0, dtype=torch.double)
    one = unmoved_tensor(1.0).double()
    if not isinstance(entry, td.TransformedDistribution):
        return td.TransformedDistribution(entry, [td.ExpTransform().inv]), 0.0, one
    *rest, last = entry.transforms
    before = td.TransformedDistribution(entry.base_dist, rest) if rest else entry.base_dist
    if isinstance(last, td.ExpTransform):
        return before, 0.0, one
    if isinstance(last, td.PowerTransform):
        noise, loc, scale = _logarithm(before)
        exponent = last.exponent.double()
        return noise, loc * exponent if isinstance(loc, Tensor) else loc, scale * exponent
    return td.TransformedDistribution(entry, [td.ExpTransform().inv]), 0.0, one


def _common_sign(transform: Any) -> float:
    """1 if a transform keeps the order of all costs, -1 if it reverses it; 0 if it may differ between costs."""
    if isinstance(transform, td.AffineTransform):
        is_common = not isinstance(transform.loc, Tensor) and not isinstance(transform.scale, Tensor)
        return math.copysign(1.0, transform.scale) if is_common else 0.0
    return float(type(transform) in INCREASING)


class PlackettLuce(NamedTuple):
    r"""Plackett-Luce distribution: items are drawn without replacement, with probabilities proportional to exp(logits).

    The order is that of independent exponential times of rates exp(logits): costs are these times, or :math:`-b \log T`
    for a scale b of any sign.

    :ivar Tensor logits: Logarithms of the rates, shape ``(..., n)``.
    :ivar bool first_is_best: Whether the item drawn first is the best of the optimum, or the worst.
    :ivar scale: b, shape ``(..., n)`` or ``(..., 1)``; ``None``: costs are the times.
    :ivar origin: Number to which costs add :math:`-b \log T`, shape ``(..., 1)``; ``None``: costs are the times.
    """

    logits: Tensor
    first_is_best: bool
    scale: Tensor | None
    origin: Tensor | None

    def log_order(self, drawn: Tensor) -> Tensor:
        """Log-probability of items in the order in which they are drawn, shape ``(...)``."""
        logits, drawn = torch.broadcast_tensors(self.logits, drawn)
        return log_plackett_luce(logits.gather(-1, drawn))

    def log_first(self, chosen: Tensor, others: Tensor) -> Tensor:
        """Log-probability, shape ``(...)``, that the one ``chosen`` item is drawn before all ``others``."""
        known = self.logits.masked_fill(~(chosen | others), IMPOSSIBLE)
        return self.logits.where(chosen, 0.0).sum(-1) - torch.logsumexp(known, -1)

    def draw_given_order(self, drawn: Tensor) -> Tensor:
        """Costs of items that are drawn in an order, shape ``(..., n)``: what is left waits an exponential time."""
        logits, drawn = torch.broadcast_tensors(self.logits, drawn)
        rates = log_cumulative_sums(logits.gather(-1, drawn).flip(-1)).flip(-1)
        log_times = log_cumulative_sums(_log_exponential(rates) - rates)
        return self._costs(torch.empty_like(log_times).scatter_(-1, drawn, log_times))

    def draw_given_first(self, chosen: Tensor, others: Tensor) -> Tensor:
        """Costs given that the one ``chosen`` item is drawn before all ``others``, shape ``(..., n)``."""
        logits, chosen, others = torch.broadcast_tensors(self.logits, chosen, others)
        rate = torch.logsumexp(logits.masked_fill(~(chosen | others), -math.inf), -1, keepdim=True)
        first, alone = _log_exponential(rate) - rate, _log_exponential(logits) - logits
        # The time that others wait after the first one has no memory.
        log_times = torch.where(others, torch.logaddexp(first, alone), alone)
        return self._costs(torch.where(chosen, first, log_times))

    def _costs(self, log_times: Tensor) -> Tensor:
        if self.scale is None or self.origin is None:
            return log_times.exp()
        return self.origin - self.scale * log_times


def _log_exponential(like: Tensor) -> Tensor:
    return torch.empty_like(like).exponential_().log()


def plackett_luce(costs: OrderedCosts, rank: int) -> PlackettLuce | None:
    """Distribution of the order of exponential costs, or of Gumbel costs of one scale, of any sign; else ``None``.

    :param OrderedCosts costs: The costs.
    :param int rank: The number of axes of the costs.
    """
    entry = costs.entry
    if isinstance(entry, td.Exponential):
        return PlackettLuce(entry.rate.double().log().flatten(-rank), not costs.maximize, None, None)
    shift, factor = unmoved_tensor(0.0), unmoved_tensor(1.0)
    if _is_affine(entry):
        (transform,), entry = entry.transforms, entry.base_dist
        shift, factor = unmoved_tensor(transform.loc), unmoved_tensor(transform.scale)
    if not isinstance(entry, td.Gumbel):
        return None
    scale = (entry.scale.double() * factor.double()).expand(entry.batch_shape).flatten(-rank)
    if any_true(scale != scale[..., :1]) or (any_true(scale < 0) and any_true(scale > 0)):
        return None
    # If one scale could change alone, the closed form would have other derivatives.
    if any(parameter.requires_grad and not _is_shared(parameter) for parameter in (entry.scale, factor)):
        return None
    # a + b G, where G is a Gumbel variable, is the largest where it is if b > 0, and the smallest if b < 0.
    location = (shift.double() + entry.loc.double() * factor.double()).flatten(-rank)
    # A large common part of the locations would cost precision.
    origin = location.detach().median(-1, keepdim=True).values
    return PlackettLuce((location - origin) / scale, any_true(scale < 0) != costs.maximize, scale, origin)


def _is_shared(scale: Tensor) -> bool:
    return scale.dim() == 0 or scale.stride(-1) == 0 or scale.shape[-1] == 1


def _is_affine(entry: Any) -> bool:
    return (
        isinstance(entry, td.TransformedDistribution)
        and not isinstance(entry, td.Gumbel)
        and len(entry.transforms) == 1
        and isinstance(entry.transforms[0], td.AffineTransform)
    )
