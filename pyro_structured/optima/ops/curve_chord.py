"""Ray shooting along curves on which costs grow at different rates."""

__all__ = ["curve_chord"]

from typing import Any

import torch
from torch import Tensor

# Largest growth in a step, in logarithms: straight bounds of the costs stay on their side of zero.
LONGEST = 0.9
# Distances less than this, in such steps, end a search; and the largest number of steps.
NEAREST, ROUNDS = 1e-13, 200


def curve_chord(
    problem: Any, value: Tensor, costs: Tensor, offset: Tensor, growth: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    r"""The interval around 0 of all x for which values are optimal for costs :math:`w + (e^{c x} - 1) o`.

    On a short piece of the curve, the costs of the value are at most, and all others at least, a chord or a tangent of
    it: ray shooting along these straight lines says how far the value is optimal for certain. Steps become shorter, and
    what straight lines leave out vanishes with their square, as the end comes near.

    :param Problem problem: A problem of 0/1 incidences.
    :param Tensor value: Optima of the costs, shape ``(..., *event_shape)``.
    :param Tensor costs: Costs w in the inverse sets, double precision, shape ``(..., *cost_shape)``.
    :param Tensor offset: o, the same shape.
    :param Tensor growth: Rates c of growth, the same shape.
    :param Tensor low: Numbers of at most 0 where searches end, shape ``(...)``.
    :param Tensor high: Numbers of at least 0 where searches end.
    :return: Both ends, of shape ``(...)``; infinite where searches ended before.
    """
    shape = (...,) + (None,) * len(problem.cost_shape)
    is_used = (problem.incidence(value) > 0).expand(costs.shape)
    # Costs that grow away from zero lie below their chords and above their tangents.
    is_chord = (is_used ^ problem.maximize) == (offset > 0)
    # Both searches at once.
    growth, most = torch.stack([-growth, growth]), torch.stack([-low, high])
    longest = LONGEST / growth.flatten(most.dim()).abs().amax(-1).clamp(min=torch.finfo(torch.double).tiny)
    x, step, is_done = torch.zeros_like(most), torch.minimum(longest, most), most <= 0
    for _ in range(ROUNDS):
        # Searches that are over go on where they are.
        step = step.masked_fill(is_done, 1.0).minimum(longest)
        grown, length = offset * torch.exp(growth * x[shape]), step[shape]
        slope = grown * torch.where(is_chord, torch.expm1(growth * length) / length, growth)
        free = problem.chord(costs - offset + grown, value, slope)[1]
        x = torch.where(is_done, x, x + torch.minimum(free, step))
        is_done = is_done | (x >= most) | (free <= NEAREST * longest)
        if bool(is_done.all()):
            break
        step = torch.where(free >= step, 2 * step, free).minimum(most - x)
    below, above = x.masked_fill(x >= most, torch.inf)
    return -below, above
