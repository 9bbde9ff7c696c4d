"""Evidence about variables: independent weights of their values, and observations."""

__all__ = ["log_odds", "merge_evidence", "no_evidence", "reweight", "state_weights"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.ops.requirements import any_true


def reweight(logits: Tensor, log_off: Tensor, log_on: Tensor) -> tuple[Tensor, Tensor]:
    r"""Multiplies the weight of every variable's values by evidence.

    A variable of which one value has become impossible gets an infinite logit, which has no weight of its own; the
    weight of its other value is returned apart. No infinities are subtracted, and derivatives are finite.

    :param Tensor logits: Log-odds, shape ``(..., D)``, infinite ones included.
    :param Tensor log_off: Log weights of the evidence for 0, less than +inf, the same shape.
    :param Tensor log_on: Log weights of the evidence for 1, less than +inf, the same shape.
    :return: ``(logits, log_weight)`` of shapes ``(..., D)`` and ``(...)``.

    Example::

        >>> reweight(torch.tensor([2.0]), torch.tensor([-math.inf]), torch.tensor([1.0]))
        (tensor([inf]), tensor(3.))
    """
    clamped = logits.isinf()
    weight_off = log_off.masked_fill(logits == math.inf, -math.inf)
    weight_on = (log_on + logits.masked_fill(clamped, 0.0)).masked_fill(logits == -math.inf, -math.inf)
    never, always = weight_on == -math.inf, weight_off == -math.inf
    # Evidence is subtracted first, because the log-odds could be lost next to large terms that both weights share.
    free = ~(never | always)
    odds = (log_on.where(free, 0.0) - log_off.where(free, 0.0)) + logits.where(free, 0.0)
    odds = odds.masked_fill(always, math.inf).masked_fill(never, -math.inf)
    kept = torch.where(always, weight_on, weight_off)
    return odds, kept.sum(-1)


def no_evidence(number: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Evidence about ``number`` variables before any observation, in the form of :func:`merge_evidence`."""
    value = torch.zeros(number, dtype=torch.long, device=device)
    return value, value.bool(), value.new_ones((), dtype=torch.bool)


def merge_evidence(
    known: tuple[Tensor, Tensor, Tensor], value: Tensor, observed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds observations to earlier ones.

    :param known: Earlier values, where they were observed, both of shape ``(..., n)``, and whether they are consistent,
        of shape ``(...)``.
    :param Tensor value: New values where ``observed``, of the same dtype.
    :param Tensor observed: Booleans; shapes broadcast.
    :return: All observations in the same form; they are inconsistent where the same entry was observed differently.
    """
    old_value, old_observed, consistent = known
    clash = old_observed & observed & (old_value != value)
    return torch.where(observed, value, old_value), old_observed | observed, consistent & ~clash.any(-1)


def state_weights(known: tuple[Tensor, Tensor, Tensor], cardinalities: Sequence[int], like: Tensor) -> Tensor:
    """Log-weights of the states of all variables, one after the other: -inf where observations exclude a state.

    :param known: Observations, in the form of :func:`merge_evidence`; inconsistent ones exclude everything.
    :param cardinalities: Numbers of states of the n variables.
    :param Tensor like: A tensor with the dtype and the device of the result.
    :return: Shape ``(..., sum(cardinalities))``; ``(1, 0)`` if nothing was observed.

    Example::

        >>> known = torch.tensor([0, 1]), torch.tensor([False, True]), torch.tensor(True)
        >>> state_weights(known, [2, 3], like=torch.zeros(()))
        tensor([0., 0., -inf, 0., -inf])
    """
    value, observed, consistent = known
    if observed.dim() == 1 and not any_true(observed) and not any_true(~consistent):
        return like.new_zeros(1, 0)
    sizes = torch.tensor(cardinalities, device=value.device)
    owner = torch.repeat_interleave(sizes)
    state = torch.arange(len(owner), device=value.device) - (sizes.cumsum(0) - sizes)[owner]
    excluded = observed[..., owner] & (value[..., owner] != state) | ~consistent.unsqueeze(-1)
    return torch.where(excluded, like.new_tensor(-torch.inf), like.new_zeros(()))


def log_odds(off: Tensor, on: Tensor) -> Tensor:
    """Difference of the log weights of 1 and 0, one of which may be -inf, without a NaN in the derivatives.

    :param Tensor off: Log weights of 0, less than +inf.
    :param Tensor on: Log weights of 1, of the same shape.
    :return: Infinite where one is -inf, NaN where both are.

    Example::

        >>> log_odds(torch.tensor([1.0, -math.inf]), torch.tensor([3.0, 0.0]))
        tensor([2., inf])
    """
    if not (torch.is_grad_enabled() or is_transformed()):
        # The same numbers, with derivatives that nobody asks for.
        return on - off
    never, always = on == -math.inf, off == -math.inf
    odds = on.masked_fill(never | always, 0.0) - off.masked_fill(never | always, 0.0)
    odds = odds.masked_fill(never, -math.inf).masked_fill(always, math.inf)
    return odds.masked_fill(never & always, math.nan)
