"""Checks of the inverse sets of problems against their solvers."""

__all__ = ["check_boxes", "check_chords", "check_feasible_points"]

from collections.abc import Iterator

import torch
from torch import Tensor

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.optima.structures.problem import Problem
from pyro_structured.testing.problem_case import ProblemCase, agree, random_costs, reflected

# Number of comparisons of costs inside and outside of boxes with the solver.
NUM_COMPARISONS = 10_000
# Scale of moves of costs, and distance of costs just outside of a box.
REACH, STEP = 3.0, 1e-7


def check_feasible_points(case: ProblemCase) -> None:
    """Feasible points lie within the bounds, and in the inverse set if anything within the bounds does."""
    problem, values = case.problem, case.values
    least = torch.as_tensor(problem.cost_low).clamp(min=-1.0)
    point = problem.feasible_point(values, least, 1.0)
    inside = bool(((point >= least) & (point <= 1)).all())
    assert point.dtype == torch.double and inside, "feasible_point leaves its bounds, the least cost and 1"
    apart = torch.eye(len(values), dtype=torch.bool)
    name = "feasible_point: optimal values (if several are optimal, is one a part of another?)"
    agree(name, problem.contains(point.unsqueeze(1), values), apart)
    low, high = (random_costs(problem, 100, 1) for _ in range(2))
    low, high = torch.minimum(low, high), torch.maximum(low, torch.where(torch.rand_like(high) < 0.7, high, low))
    point = problem.feasible_point(values, low, high)
    assert bool(((point >= low) & (point <= high)).all()), "feasible_point leaves its bounds"
    contained = problem.contains(point, values)
    for _ in range(50):
        share = torch.rand_like(point)
        share = torch.where(torch.rand_like(share[:, :1]) < 0.5, share.round(), share)
        within = problem.contains(low + share * (high - low), values)
        agree("feasible_point: costs within the bounds are in the inverse set", within & ~contained, within & False)


def check_boxes(problem: Problem) -> None:
    """Boxes are exact for the costs as they are when the box is asked for, and visit all of them once."""
    if type(problem).boxes is Problem.boxes:
        return
    compared, tied = 0, False
    while compared < NUM_COMPARISONS:
        compared += _compare_boxes(problem, random_costs(problem, 50, *problem.batch_shape, tied=tied))
        tied = not tied


def _compare_boxes(problem: Problem, costs: Tensor) -> int:
    """Moves all costs like a sampler; returns the number of comparisons of boxes with the solver."""
    value, flat = problem.solve(costs), costs.flatten(-len(problem.cost_shape))
    least = torch.as_tensor(problem.cost_low).expand(costs.shape).reshape(flat.shape)
    visited, compared = torch.zeros_like(flat), 0
    for box in problem.boxes(costs, value):
        shape = broadcast_shapes(flat.shape[:-1] + (1,), box.low.shape)
        index, low, high = (tensor.expand(shape) for tensor in (box.index, box.low, box.high))
        free = torch.ones(shape, dtype=torch.bool) if box.free is None else box.free.expand(shape)
        visited.scatter_add_(-1, index, free.double())
        now = flat.gather(-1, index)
        near = (now >= low - STEP) & (now <= high + STEP)
        agree("boxes: the costs lie in the box", near | ~free, near | True)
        for proposal in _proposals(now, low, high, free):
            new = reflected(torch.where(free, proposal, now), least.gather(-1, index))
            inside = ((new >= low) & (new <= high) | ~free).all(-1)
            moved = flat.scatter(-1, index, new)
            agree("boxes: costs inside", problem.contains(moved.reshape(costs.shape), value), inside)
            compared += inside.numel()
        # The last proposal, which lies inside but for rounding.
        flat.copy_(torch.where(inside.unsqueeze(-1), moved, flat))
    agree("boxes: costs are visited once", visited == 1, torch.ones_like(visited, dtype=torch.bool))
    return compared


def _proposals(now: Tensor, low: Tensor, high: Tensor, free: Tensor) -> Iterator[Tensor]:
    """Yields costs anywhere; inside but for one, which is anywhere, at a bound, or just outside; and inside."""
    is_chosen = torch.rand_like(now).masked_fill(~free, -1.0)
    is_chosen = is_chosen == is_chosen.amax(-1, keepdim=True)
    wild = now + REACH * torch.randn_like(now)
    near_low, near_high = torch.maximum(low, now - REACH), torch.minimum(high, now + REACH)
    inside = near_low + torch.rand_like(now) * (near_high - near_low)
    yield wild
    yield torch.where(is_chosen, wild, inside)
    for shift in (0.0, STEP):
        yield torch.where(is_chosen & low.isfinite(), low - shift, inside)
        yield torch.where(is_chosen & high.isfinite(), high + shift, inside)
    yield inside


def check_chords(case: ProblemCase) -> None:
    """Both ends of chords, and the upper one by itself, are where another value, or the least cost that the solver
    can handle, is met.
    """
    problem = case.problem
    costs = random_costs(problem, 200)
    value, direction = problem.solve(costs), torch.randn_like(costs)
    direction[::2] *= torch.rand_like(direction[::2]) < 0.3
    direction[direction.flatten(1).abs().sum(1) == 0] = 1.0
    if not problem.is_linear:
        try:
            problem.chord(costs, value, direction)
        except NotImplementedError:
            return
        raise AssertionError("chord: expected NotImplementedError, since the objective is not linear")
    ahead = (case.losses(costs) - case.losses(costs).amin(-1, keepdim=True)).clamp(min=0)
    own = problem.incidence(value).unsqueeze(1)
    better = (own - problem.incidence(case.values)) * (-1 if problem.maximize else 1)
    slopes = (direction.unsqueeze(1) * better).flatten(2).sum(-1)
    low, high = problem.chord(costs, value, direction)
    ends = (
        ("chord: lower end", low, -1),
        ("chord: upper end", high, 1),
        ("reach", problem.reach(costs, value, direction), 1),
    )
    for name, end, sign in ends:
        nearing = slopes * sign
        met = (ahead / nearing).masked_fill(nearing <= 1e-12, torch.inf).amin(-1)
        falling = direction * sign < 0
        room = ((costs - problem.cost_low) / direction.abs()).masked_fill(~falling, torch.inf).flatten(1).amin(-1)
        expected = sign * torch.minimum(met, room)
        right = torch.isclose(end, expected, rtol=1e-6, atol=1e-7)
        agree(f"{name} is right", right, right | True)
