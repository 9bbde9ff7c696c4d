"""One update of all costs inside the inverse sets of observed optima."""

__all__ = ["SweepInfo", "interior_point", "sweep"]

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_structured.optima.inference.compiled_sweep import sweep_compiled
from pyro_structured.optima.inference.cost_family import CostFamily
from pyro_structured.optima.ops.ray_shooting import chord
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.problem import Problem

# Halvings of the distance of costs to their lower bounds.
MOST_HALVINGS = 20
# Powers of 2 by which costs are moved on, and the largest one without bounds.
POWERS = (*range(-1, 40), 48, 64, 96, 128, 192, 256, 384, 512, 768, 1000)
FARTHEST = 40
# Share of a bound within which numbers may be rounded to it.
ROUNDING = 2.0**-50


@dataclass(frozen=True)
class SweepInfo:
    """Work that an update of costs took.

    :ivar int num_solves: Calls of the problem's solver, one for every row of the batch.
    :ivar int num_boxes: Restrictions of the inverse set in closed form.
    :ivar int num_stuck: Entries that stayed because a search was given up.
    """

    num_solves: int
    num_boxes: int
    num_stuck: int

    def __add__(self, other: "SweepInfo") -> "SweepInfo":
        return SweepInfo(
            self.num_solves + other.num_solves, self.num_boxes + other.num_boxes, self.num_stuck + other.num_stuck
        )


def sweep(
    costs: Tensor,
    value: Tensor,
    problem: Problem,
    conditionals: CostFamily,
    num_lines: int,
    uniform: Tensor | None = None,
) -> tuple[Tensor, SweepInfo]:
    """Updates costs so that their distribution given the optimum stays invariant: a pure function, on the processor.

    Problems with closed-form restrictions have all their entries drawn from conditional distributions, one box after
    the other; in a compiled loop if there is one, with the same results. Costs of other problems move along random
    lines through the inverse set, whose ends ray shooting finds.

    :param Tensor costs: Costs in the inverse sets, double precision, shape ``(..., *problem.cost_shape)``.
    :param Tensor value: Optima of the costs, shape ``(..., *problem.event_shape)``.
    :param int num_lines: Number of lines.
    :param Tensor uniform: Uniform variables of the costs' shape, to draw entries by inversion, on the processor;
        ``None``: new ones.
    """
    device, value = costs.device, value.cpu()
    costs = costs.cpu().clone(memory_format=torch.contiguous_format)
    if not costs.numel():
        # Torch's densities refuse empty tensors.
        return costs.to(device), SweepInfo(0, 0, 0)
    num_compiled = sweep_compiled(costs, value, problem, conditionals, uniform)
    if num_compiled is not None:
        return costs.to(device), SweepInfo(0, num_compiled, 0)
    flat = costs.flatten(-len(problem.cost_shape))
    stuck, num_solves, num_boxes = conditionals.num_stuck, 0, 0
    boxes = _boxes(problem, costs, value)
    if boxes is None:
        num_solves = _hit_and_run(costs, flat, value, problem, conditionals, num_lines)
    else:
        uniform = torch.rand_like(flat) if uniform is None else uniform.reshape(flat.shape)
        for box in boxes:
            index = box.index.expand(flat.shape[:-1] + box.index.shape[-1:])
            flat.scatter_(-1, index, conditionals.draw(flat, box, uniform))
            num_boxes += 1
    return costs.to(device), SweepInfo(num_solves, num_boxes, conditionals.num_stuck - stuck)


def _boxes(problem: Problem, costs: Tensor, value: Tensor) -> Iterator[Box] | None:
    try:
        return problem.boxes(costs, value)
    except NotImplementedError:
        return None


def _hit_and_run(
    costs: Tensor, flat: Tensor, value: Tensor, problem: Problem, conditionals: CostFamily, num_lines: int
) -> int:
    batch = flat.shape[:-1]
    counted = _Counted(problem.flatten(batch))
    incidence = problem.incidence(value).expand(costs.shape).reshape(-1, *problem.cost_shape)
    for _ in range(num_lines):
        direction = conditionals.random_direction(flat)
        rows = (vector.reshape(-1, *problem.cost_shape) for vector in (costs, direction))
        near, along = rows
        low, high = (end.reshape(batch) for end in chord(counted, near, incidence, along))
        moved = flat + conditionals.draw_along(flat, direction, low, high).unsqueeze(-1) * direction
        # Rounding must not lead out of the support, nor to its ends, where densities may be infinite.
        is_inside = ((moved > conditionals.low) & (moved < conditionals.high)) | (moved == flat)
        flat.copy_(torch.where(is_inside.all(-1, keepdim=True), moved, flat))
    return counted.number


class _Counted:
    """A problem that counts the vectors of costs for which it is solved."""

    def __init__(self, problem: Any, root: "_Counted | None" = None) -> None:
        self.problem, self.root, self.number = problem, root or self, 0
        self.cost_shape, self.maximize, self.cost_low = problem.cost_shape, problem.maximize, problem.cost_low

    def solve(self, costs: Tensor) -> Tensor:
        self.root.number += len(costs)
        value: Tensor = self.problem.solve(costs)
        return value

    def incidence(self, value: Tensor) -> Tensor:
        coefficients: Tensor = self.problem.incidence(value)
        return coefficients

    def __getitem__(self, index: Any) -> "_Counted":
        return _Counted(self.problem[index], self.root)


def interior_point(problem: Problem, value: Tensor, drawn: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Costs inside the inverse sets, no farther from drawn ones than needed.

    :param Tensor drawn: Costs drawn from their distribution, double precision, shape ``(..., *cost_shape)``.
    :param Tensor low: Lower bounds of the costs, or -inf.
    :param Tensor high: Upper bounds of the costs, or +inf.
    :return: Costs, and booleans of shape ``(...)``: whether they are inside. If not, no costs between the bounds are.
    """
    axes = tuple(range(-len(problem.cost_shape), 0))
    shape = (...,) + (None,) * len(axes)
    spread = drawn.amax(axes) - drawn.amin(axes) + drawn.abs().amax(axes) * 1e-3
    spread = spread.masked_fill(spread == 0, 1.0)
    bounded = torch.isfinite(low), torch.isfinite(high)
    pairs = (bounded[0], low), (bounded[1], high)
    point, inside = _cheapened(problem, value, drawn, low)
    for power in POWERS:
        # Moves towards the costs that favour the value most; without bounds, these costs lie farther away each time.
        reach = (spread * 2.0 ** min(max(power, 0), FARTHEST))[shape]
        least = torch.where(bounded[0], low, drawn - reach)
        most = torch.where(bounded[1], high, drawn + reach)
        # Bounds are approached in units of the costs, too, which may be much smaller than what is between bounds.
        nearness = 2.0 ** (-4 - max(power, 0))
        margins = []
        for is_bounded, bound in pairs:
            gap = (drawn - bound).abs()
            margin = torch.minimum(most - least, gap.where(is_bounded & (gap > 0), torch.inf)) * nearness
            # Rounding must not lead to the bound itself.
            margins.append(torch.where(is_bounded, margin.maximum(bound.abs() * ROUNDING), margin))
        best = problem.feasible_point(value, least + margins[0], most - margins[1])
        rest = 2.0 ** -(power + 2)
        moved = rest * drawn + (1 - rest) * best
        point = torch.where(inside[shape], point, moved)
        inside = problem.contains(point, value)
        if bool(inside.all()):
            break
    return point, inside


def _cheapened(problem: Problem, value: Tensor, drawn: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Drawn costs, where those that the value incurs are lowered towards their bounds as far as needed.

    All others stay: where few of many costs matter, the result is much more like a draw given the optimum than costs
    all of which have moved. Lowering need not suffice, and applies to costs to be minimised that have lower bounds.
    """
    shape = (...,) + (None,) * len(problem.cost_shape)
    point, inside = drawn, problem.contains(drawn, value)
    if problem.maximize or not bool(torch.isfinite(low).all()):
        return point, inside
    best = problem.feasible_point(value, low, drawn)
    for power in range(1, MOST_HALVINGS):
        if bool(inside.all()):
            break
        share = 1 - 2.0**-power
        point = torch.where(inside[shape], point, (1 - share) * drawn + share * best)
        inside = problem.contains(point, value)
    return point, inside
