"""Random costs whose order is a draw without replacement."""

__all__ = ["PlackettLuce", "plackett_luce"]

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributions as td

from pyro_structured.foundation.ops.any_true import any_true
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.order_probability import log_plackett_luce


class PlackettLuce(NamedTuple):
    """Items are drawn one after the other with probabilities in proportion to the exponentials of their logits.

    ``ascending`` says whether the first one drawn is that of the least cost; else it is that of the largest.
    """

    logits: Tensor
    ascending: bool

    def log_order(self, order: Tensor) -> Tensor:
        """Log-probability of orders from the least cost on, shape ``(...)``."""
        drawn = order if self.ascending else order.flip(-1)
        logits, drawn = torch.broadcast_tensors(self.logits, drawn)
        return log_plackett_luce(logits.gather(-1, drawn))

    def log_first(self, chosen: Tensor, others: Tensor) -> Tensor:
        """Log-probability that the one chosen item is drawn before all others."""
        known = self.logits.masked_fill(~(chosen | others), IMPOSSIBLE)
        return self.logits.where(chosen, 0.0).sum(-1) - torch.logsumexp(known, -1)


def plackett_luce(entry: Any, rank: int) -> PlackettLuce | None:
    """Recognises exponential costs, and Gumbel costs of one scale, also if their signs have been changed.

    :param entry: Distribution of single costs.
    :param int rank: The number of axes of the costs.
    """
    if isinstance(entry, td.Exponential):
        return PlackettLuce(entry.rate.double().log().flatten(-rank), True)
    shift, factor = torch.zeros(()), torch.ones(())
    if _is_affine(entry):
        (transform,), entry = entry.transforms, entry.base_dist
        shift, factor = torch.as_tensor(transform.loc), torch.as_tensor(transform.scale)
    if not isinstance(entry, td.Gumbel):
        return None
    scale = (entry.scale.double() * factor.double()).expand(entry.batch_shape).flatten(-rank)
    if any_true(scale != scale[..., :1]) or (any_true(scale < 0) and any_true(scale > 0)):
        return None
    # If one scale could change alone, the closed form would have other derivatives.
    if any(each.requires_grad and not _is_shared(each) for each in (entry.scale, factor)):
        return None
    # a + b G, where G is a Gumbel variable, is the largest where it is if b > 0, and the smallest if b < 0.
    location = (shift.double() + entry.loc.double() * factor.double()).flatten(-rank)
    return PlackettLuce(location / scale, any_true(scale < 0))


def _is_shared(scale: Tensor) -> bool:
    return scale.dim() == 0 or scale.stride(-1) == 0 or scale.shape[-1] == 1


def _is_affine(entry: Any) -> bool:
    return (
        isinstance(entry, td.TransformedDistribution)
        and not isinstance(entry, td.Gumbel)
        and len(entry.transforms) == 1
        and isinstance(entry.transforms[0], td.AffineTransform)
    )
