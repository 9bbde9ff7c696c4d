"""Ray shooting: distances that the costs of a linear objective can move along a line while an optimum stays optimal."""

__all__ = ["LinearObjective", "chord", "reach"]

from typing import Any, Protocol

import torch
from torch import Tensor

# The optimum along a line has finitely many pieces; Newton's method passes a few of them.
MOST_STEPS = 100
# Gains below the rounding error of the objective are ties.
ROUNDING = 64 * torch.finfo(torch.double).eps
# Share of the distance by which points lie before an end: at the end itself, there is a tie, whose rounding would hide
# the gains of small costs.
BEFORE = 2.0**-40


class LinearObjective(Protocol):
    """Problems with a linear objective: a solver, and the coefficients of its solutions."""

    cost_shape: torch.Size
    maximize: bool
    cost_low: float | Tensor

    def solve(self, costs: Tensor) -> Tensor:
        """Optimal values, shape ``(N, *event_shape)``."""

    def incidence(self, value: Tensor) -> Tensor:
        """Coefficients of the costs in the objective, shape ``(N, *cost_shape)``."""

    def __getitem__(self, index: Any) -> "LinearObjective":
        """The problems at an index."""


def chord(problem: LinearObjective, costs: Tensor, incidence: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    r"""Both ends of the interval of all t for which a value stays optimal for the costs :math:`w + t v`.

    :param Tensor costs: Costs w for which the value is optimal, double precision, shape ``(N, *cost_shape)``.
    :param Tensor incidence: The value's coefficients, the same shape.
    :param Tensor direction: v, the same shape.
    :return: Numbers of at most 0 and of at least 0, shape ``(N,)``, infinite where there is no end; but for rounding,
        they are too long by at most a share of 1e-12.
    """
    rest = (1,) * (costs.dim() - 1)
    both = problem[torch.arange(len(costs), device="cpu").repeat(2)]
    directions = torch.cat([-direction, direction])
    back, forth = reach(both, costs.repeat(2, *rest), incidence.repeat(2, *rest), directions).chunk(2)
    return -back, forth


def reach(problem: LinearObjective, costs: Tensor, incidence: Tensor, direction: Tensor) -> Tensor:
    """The upper end of a :func:`chord`, shape ``(N,)``, from the same arguments.

    Every step finds a better value next to t, and goes back to where both are equally good.
    """
    sign = -1.0 if problem.maximize else 1.0
    end = _nearest_bound(problem.cost_low, costs, direction)
    rows = torch.arange(len(costs), device="cpu")
    for _ in range(MOST_STEPS):
        near, along, now = costs[rows], direction[rows], end[rows]
        # Where nothing bounds the costs, far out on the line only the direction counts.
        far = torch.isinf(now)
        start, length = (~far).to(near), (1 - BEFORE) * now.masked_fill(far, 1.0)
        point = _scaled(near, start) + _scaled(along, length)
        # Rounding must not lead below the least costs, which the solver would refuse.
        point[~far] = torch.maximum(point[~far], torch.as_tensor(problem.cost_low).to(point))
        active = problem[rows]
        better = (incidence[rows] - active.incidence(active.solve(point))) * sign
        gain, slope = (((vector * better).flatten(1)).sum(1) for vector in (point, along))
        size = _scaled(near, start).abs() + _scaled(along, length).abs()
        error = ROUNDING * (size * better.abs()).flatten(1).sum(1)
        crossing = (-(near * better).flatten(1).sum(1) / slope).clamp(min=0)
        # A step that rounding keeps from going back has found the end.
        passed = (gain > error) & (slope > 0) & (crossing < now)
        if not bool(passed.any()):
            return end
        rows = rows[passed.cpu()]
        end[rows] = crossing[passed]
    raise RuntimeError(f"no end of the chord was found in {MOST_STEPS} steps")


def _scaled(costs: Tensor, factors: Tensor) -> Tensor:
    return costs * factors.reshape(-1, *(1,) * (costs.dim() - 1))


def _nearest_bound(low: float | Tensor, costs: Tensor, direction: Tensor) -> Tensor:
    """Distances, shape ``(N,)``, at which the line leaves the costs that the solver can handle."""
    falling = direction < 0
    distance = (torch.as_tensor(low).to(costs) - costs) / direction.masked_fill(~falling, -1.0)
    nearest: Tensor = distance.masked_fill(~falling, torch.inf).flatten(1).amin(1).clamp(min=0)
    return nearest
