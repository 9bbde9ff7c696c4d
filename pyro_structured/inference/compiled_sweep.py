"""Updates of costs in compiled loops, where numba is installed."""

__all__ = ["sweep_compiled"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.inference.cost_family import CostFamily
from pyro_structured.inference.independent_costs import IndependentCosts
from pyro_structured.ops.compiled_function import compiled_function
from pyro_structured.structures.matching import Matching
from pyro_structured.structures.problem import Problem
from pyro_structured.structures.shortest_path import ShortestPath


def sweep_compiled(costs: Tensor, value: Tensor, problem: Problem, family: CostFamily) -> int | None:
    """Updates costs in place if they are independent costs of matchings or paths that are drawn by inversion.

    The same random numbers lead to the same costs, up to rounding, as drawing from the boxes of the problem.

    :param Tensor costs: Costs in the inverse sets, double precision, contiguous, shape ``(..., *problem.cost_shape)``.
    :param Tensor value: Their optima.
    :return: Number of boxes that were drawn from, or ``None`` if nothing was done.
    """
    if not isinstance(family, IndependentCosts) or costs.device.type != "cpu":
        return None
    if isinstance(problem, Matching) and (run := compiled_function("matching_sweep", "matching_sweep")):
        _sweep_matchings(run, costs, value, problem, family)
        return 2 * problem.num_rows
    if isinstance(problem, ShortestPath) and (run := compiled_function("path_sweep", "path_sweep")):
        _sweep_paths(run, costs, value, problem, family)
        return problem.num_nodes
    return None


def _sweep_matchings(run: Any, costs: Tensor, value: Tensor, problem: Matching, family: IndependentCosts) -> None:
    batch, shape = costs.shape[:-2], problem.cost_shape
    run(
        costs.view(-1, *shape).numpy(),
        value.expand(batch + shape[:1]).reshape(-1, shape[0]).long().numpy(),
        problem.allowed.expand(costs.shape).reshape(-1, *shape).numpy(),
        problem.maximize,
        *_base(costs, problem, family),
    )


def _sweep_paths(run: Any, costs: Tensor, value: Tensor, problem: ShortestPath, family: IndependentCosts) -> None:
    batch, count = costs.shape[:-1], len(problem.edges)
    rows = problem.flatten(batch)
    run(
        problem.adjacency,
        problem.adjacency.reversed(),
        costs.view(-1, count).numpy(),
        value.expand(costs.shape).reshape(-1, count).bool().numpy(),
        rows.source.contiguous().numpy(),
        rows.target.contiguous().numpy(),
        *_base(costs, problem, family),
    )


def _base(costs: Tensor, problem: Problem, family: IndependentCosts) -> tuple[Any, Any, Any]:
    """Family, parameters, and uniform variables for all costs of all rows."""
    batch = costs.shape[: costs.dim() - len(problem.cost_shape)]
    base = torch.stack([family.loc, family.scale, family.low, family.high], -1)
    uniform = torch.rand_like(costs)
    return (
        family.family,
        base.expand(batch + base.shape[-2:]).reshape(-1, *problem.cost_shape, 4).numpy(),
        uniform.view(-1, *problem.cost_shape).numpy(),
    )
