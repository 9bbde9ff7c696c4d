"""Slice sampling of many numbers at once."""

__all__ = ["slice_sample"]

from collections.abc import Callable

import torch
from torch import Tensor

# Steps outwards, and inwards, after which a number stays as it is.
STEPS_OUT, STEPS_IN = 50, 200


def slice_sample(
    log_density: Callable[[Tensor], Tensor], value: Tensor, low: Tensor, high: Tensor, width: Tensor
) -> tuple[Tensor, Tensor]:
    """One update of independent numbers that leaves their distributions between two bounds invariant.

    The slice is found by stepping out and shrinking; an end that the bounds make finite needs no steps.

    :param log_density: Log-densities of all numbers at once, one for each; need not be normalised, and is called only
        with numbers between the bounds.
    :param Tensor value: Present numbers, of positive density.
    :param Tensor low: Lower bounds, or -inf, of the same shape.
    :param Tensor high: Upper bounds, or +inf.
    :param Tensor width: Length of a step outwards, larger than 0.
    :return: New numbers; and booleans: numbers that stayed because they had no density, or the slice was not found in
        200 steps.

    **References**

    Neal (2003): Slice sampling. Annals of Statistics 31(3). Figures 3 and 5.
    """
    level = log_density(value) - torch.empty_like(value).exponential_()
    left, right = _step_out(log_density, value, low, high, width, level)
    # Every number would be as good as one of no density.
    is_lost = level == -torch.inf
    drawn, searching = value, (left < right) & ~is_lost
    for _ in range(STEPS_IN):
        proposal = torch.where(searching, left + (right - left) * torch.rand_like(value), drawn)
        accepted = log_density(proposal) >= level
        drawn = torch.where(searching & accepted, proposal, drawn)
        searching = searching & ~accepted
        if not bool(searching.any()):
            break
        left = torch.where(searching & (proposal < value), proposal, left)
        right = torch.where(searching & (proposal >= value), proposal, right)
    return drawn, searching | is_lost


def _step_out(
    log_density: Callable[[Tensor], Tensor], value: Tensor, low: Tensor, high: Tensor, width: Tensor, level: Tensor
) -> tuple[Tensor, Tensor]:
    """An interval around the slice; its ends are steps away from a random place, and there are not more than 50."""
    start = value - width * torch.rand_like(value)
    steps = (STEPS_OUT * torch.rand_like(value)).floor()
    ends = []
    for end, step, limit, most in (
        (start, -width, low, steps),
        (start + width, width, high, STEPS_OUT - 1 - steps),
    ):
        end = torch.maximum(torch.minimum(end, high), low)
        for taken in range(STEPS_OUT):
            more = (taken < most) & (end != limit)
            more = more & (log_density(torch.where(more, end, value)) > level)
            if not bool(more.any()):
                break
            end = torch.where(more, torch.maximum(torch.minimum(end + step, high), low), end)
        ends.append(end)
    return ends[0], ends[1]
