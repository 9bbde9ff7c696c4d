"""Updates of costs in compiled loops, where numba is installed."""

__all__ = ["sweep_compiled"]

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from pyro_structured.inference.cost_conditionals import CostConditionals
from pyro_structured.structures.matching import Matching
from pyro_structured.structures.problem import Problem


@cache
def _matching_sweep() -> Callable[..., None] | None:
    try:
        from pyro_structured.ops.matching_sweep import matching_sweep
    except ImportError:
        return None
    return matching_sweep


def sweep_compiled(costs: Tensor, value: Tensor, problem: Problem, conditionals: CostConditionals) -> int | None:
    """Updates costs in place if they are independent (truncated) normal or uniform costs of matchings.

    The same random numbers lead to the same costs, up to rounding, as drawing from the boxes of the matching.

    :param Tensor costs: Costs in the inverse sets, double precision, contiguous, shape ``(..., rows, columns)``.
    :param Tensor value: Their optima.
    :return: Number of boxes that were drawn from, or ``None`` if nothing was done.
    """
    if not isinstance(problem, Matching) or costs.device.type != "cpu":
        return None
    base, run = conditionals.truncated_normal(), _matching_sweep()
    if base is None or run is None:
        return None
    batch, (rows, columns) = costs.shape[:-2], problem.cost_shape
    matrices, parameters = costs.view(-1, rows, columns), torch.stack(base, -2)
    uniform = torch.rand(rows, len(matrices) * (1 + columns), dtype=torch.double)
    run(
        matrices.numpy(),
        value.expand(batch + (rows,)).reshape(-1, rows).long().numpy(),
        problem.allowed.expand(costs.shape).reshape(matrices.shape).numpy(),
        problem.maximize,
        parameters.expand(batch + parameters.shape[-2:]).reshape(-1, 4, rows, columns).numpy(),
        uniform.numpy(),
    )
    return 2 * rows
