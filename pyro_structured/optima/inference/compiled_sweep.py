"""Updates of costs in compiled loops, where numba is installed."""

__all__ = ["sweep_compiled"]

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.optima.inference.cost_conditionals import MixtureCosts
from pyro_structured.optima.inference.cost_family import CostFamily
from pyro_structured.optima.inference.independent_costs import IndependentCosts, ShiftedCosts
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.optima.structures.minimum_cut import MinimumCut
from pyro_structured.optima.structures.problem import Problem
from pyro_structured.optima.structures.shortest_path import ShortestPath

Base = tuple[int, np.ndarray, np.ndarray]


def sweep_compiled(
    costs: Tensor, value: Tensor, problem: Problem, family: CostFamily, uniform: Tensor | None = None
) -> int | None:
    """Updates costs in place if they are those of matchings, paths or cuts, independent, and drawn by inversion.

    The same random numbers lead to the same costs, up to rounding, as drawing from the boxes of the problem.

    :param Tensor costs: Costs in the inverse sets, double precision, contiguous, shape ``(..., *problem.cost_shape)``.
    :param Tensor value: Optima of the costs, shape ``(..., *problem.event_shape)``.
    :param Tensor uniform: Uniform variables, one for every cost; ``None``: new ones.
    :return: Number of boxes that were drawn from, or ``None`` if nothing was done.
    """
    shift = None
    while isinstance(family, ShiftedCosts):
        shift, family = family.shift if shift is None else shift + family.shift, family.costs
    if not isinstance(family, (IndependentCosts, MixtureCosts)):
        return None
    if isinstance(problem, Matching) and (run := compiled_function("optima.ops.matching_sweep", "matching_sweep")):
        _sweep_matchings(run, costs, value, problem, _base(costs, problem, family, shift, uniform))
        return 2 * problem.num_rows
    if isinstance(problem, ShortestPath) and (run := compiled_function("optima.ops.path_sweep", "path_sweep")):
        _sweep_paths(run, costs, value, problem, _base(costs, problem, family, shift, uniform))
        return problem.num_nodes
    if isinstance(problem, MinimumCut) and (run := compiled_function("optima.ops.cut_sweep", "cut_sweep")):
        _sweep_cuts(run, costs, value, problem, _base(costs, problem, family, shift, uniform))
        return 2 * problem.num_nodes + len(problem.edges)
    return None


def _sweep_matchings(run: Any, costs: Tensor, value: Tensor, problem: Matching, base: Base) -> None:
    batch, shape = costs.shape[:-2], problem.cost_shape
    run(
        costs.view(-1, *shape).numpy(),
        value.expand(batch + shape[:1]).reshape(-1, shape[0]).long().numpy(),
        problem.allowed.cpu().expand(costs.shape).reshape(-1, *shape).numpy(),
        problem.maximize,
        *base,
    )


def _sweep_paths(run: Any, costs: Tensor, value: Tensor, problem: ShortestPath, base: Base) -> None:
    batch, count = costs.shape[:-1], len(problem.edges)
    rows = problem.flatten(batch)
    run(
        problem.adjacency,
        costs.view(-1, count).numpy(),
        value.expand(costs.shape).reshape(-1, count).bool().numpy(),
        rows.source.cpu().contiguous().numpy(),
        rows.target.cpu().contiguous().numpy(),
        *base,
    )


def _sweep_cuts(run: Any, costs: Tensor, value: Tensor, problem: MinimumCut, base: Base) -> None:
    batch, number, count = costs.shape[:-1], problem.num_nodes, costs.shape[-1]
    labels = value.expand(batch + (number,)).reshape(-1, number).long()
    run(problem.edges.cpu().numpy(), costs.view(-1, count).numpy(), labels.numpy(), *base)


def _base(
    costs: Tensor,
    problem: Problem,
    family: IndependentCosts | MixtureCosts,
    shift: Tensor | None,
    uniform: Tensor | None,
) -> Base:
    """Family, parameters ``(N, *cost_shape, B)``, and uniform variables ``(N, *cost_shape)`` of the costs of N rows."""
    batch = costs.shape[: costs.dim() - len(problem.cost_shape)]
    base = family.base
    if shift is not None:
        parts = base[..., :4], shift.unsqueeze(-1), base[..., 5:]
        base = torch.cat([part.expand(*broadcast_shapes(base.shape[:-1], shift.shape), -1) for part in parts], -1)
    uniform = torch.rand_like(costs) if uniform is None else uniform
    return (
        # As mixtures, whose components' family is a number of the base, so that there is one compiled function.
        int(family.family),
        base.expand(batch + base.shape[-2:]).reshape(-1, *problem.cost_shape, base.shape[-1]).numpy(),
        uniform.reshape(-1, *problem.cost_shape).numpy(),
    )
