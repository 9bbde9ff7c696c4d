"""Observed optima of the costs of one site, as one problem."""

__all__ = ["observed_optima"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.optima.inference.cost_sites import optima_of
from pyro_structured.optima.structures.joint_problem import JointProblem
from pyro_structured.optima.structures.problem import Problem


def observed_optima(trace: Any, costs: str) -> tuple[Problem, Tensor]:
    """A problem and a value that broadcast with costs, and whose inverse set is that of all their observed optima.

    Several sites, or rows of a plate, may be optima of the same costs: then it is a :class:`JointProblem`.

    :param trace: Trace of a model.
    :param costs: Name of a site of costs.
    :raises ValueError: if several optima of the same costs are not those of linear objectives, or have costs of
        different shapes.
    """
    names = optima_of(trace, costs)
    nodes = [trace.nodes[name] for name in names]
    problem = nodes[0]["fn"].problem
    value: Tensor = trace.nodes[costs]["value"]
    batch = value.shape[: value.dim() - len(problem.cost_shape)]
    if len(nodes) == 1 and nodes[0]["fn"].batch_shape == batch:
        return problem, nodes[0]["value"]
    members = []
    for name, node in zip(names, nodes, strict=True):
        fn = node["fn"]
        if not fn.problem.is_linear or fn.problem.cost_shape != problem.cost_shape:
            raise ValueError(
                f"{name}: expected an optimum of a linear objective with costs {costs!r} of shape "
                f"{tuple(problem.cost_shape)}, as these have several optima, got {type(fn.problem).__name__} with "
                f"costs of shape {tuple(fn.problem.cost_shape)}; give every optimum costs of its own"
            )
        rows = _sharing(fn.batch_shape, batch)
        values = node["value"].expand(fn.batch_shape + fn.event_shape).reshape(-1, *fn.event_shape)
        members.append((fn.problem.flatten(fn.batch_shape)[rows], values[rows]))
    if len(members) == 1 and len(members[0][1]) == 1:
        return members[0][0][0], members[0][1][0]
    joint = JointProblem([member for member, _ in members])
    return joint, joint.pack([values for _, values in members])


def _sharing(rows: torch.Size, batch: torch.Size) -> Tensor:
    """Row numbers of optima, shape ``(count, *batch)``, where the first axis goes over rows that share costs."""
    numbers = torch.arange(rows.numel()).reshape(rows)
    shared = [axis for axis in range(len(rows)) if axis < len(rows) - len(batch) or batch[axis - len(rows)] == 1]
    return numbers.movedim(shared, list(range(len(shared)))).reshape(-1, *batch)
