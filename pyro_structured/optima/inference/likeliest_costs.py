"""The likeliest costs that have a given optimum, with a margin."""

__all__ = ["likeliest_costs"]

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
from pyro_structured.optima.solvers.quadratic_program import solve_quadratic_program
from pyro_structured.optima.structures.problem import Problem

# Cuts after which a search is given up.
MOST_CUTS = 1000
# In standard deviations. Far beyond what a normal variable does: probabilities are 0 or 1 there.
LARGEST_PUSH = 1000.0


def likeliest_costs(base: Any, problem: Problem, value: Tensor, margin: float) -> Tensor:
    r"""Algorithm 1: the costs inside an inverse set with the largest density, or far inside of it.

    .. math::
        \arg\max_{w,\, \xi \ge 0} \; \log p(w) + C \xi \quad \text{subject to} \quad
        f_w(y) \le f_w(y') - \xi \quad \text{for all } y' \ne y,

    by cutting planes: the constraints are those of the second-best values that were met so far.

    :param base: Independent normal or truncated normal costs, or jointly normal ones.
    :param Tensor value: Feasible values, shape ``(..., *event_shape)``, whose leading axes are those of the base and of
        the problem.
    :param float margin: C, at least 0.
    :return: Shape ``(..., *cost_shape)``, double precision.
    :raises ValueError: if the margin pushes costs without bounds too far away.
    :raises NotImplementedError: if the costs are others, or the problem has no second-best values.
    """
    rank = len(problem.cost_shape)
    batch = value.shape[: value.dim() - len(problem.event_shape)]
    loc, precision, low, high = (part.cpu().numpy() for part in _quadratic(base, batch, rank))
    _check_push(margin, precision, low, high)
    rows, values = problem.flatten(batch), value.reshape(-1, *problem.event_shape)
    rest = zip(values, loc, precision, low, high, strict=True)
    found = [_row(rows[number], *each, margin) for number, each in enumerate(rest)]
    return torch.from_numpy(np.array(found, dtype=float)).reshape(batch + problem.cost_shape).to(value.device)


def _check_push(margin: float, precision: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """A margin C moves a cost by as much as C times its variance, wherever there is no bound."""
    deviations = np.diagonal(precision, axis1=-2, axis2=-1) ** -0.5
    push = margin * np.max(deviations, where=~(np.isfinite(low) & np.isfinite(high)), initial=0.0)
    if push > LARGEST_PUSH:
        raise ValueError(
            f"margin: expected one that pushes costs without bounds by at most {LARGEST_PUSH:g} of their standard "
            f"deviations, which is the margin times the scale, got {margin:g}, which pushes by {push:.3g}: locations "
            "go there, and scales that are learned grow without end; take a smaller margin, or TruncatedNormal costs "
            "between two finite bounds"
        )


def _row(
    problem: Problem,
    value: Tensor,
    loc: np.ndarray,
    precision: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    margin: float,
) -> np.ndarray:
    count, sign = len(loc), -1.0 if problem.maximize else 1.0
    own = problem.incidence(value).flatten().numpy() * sign
    # The solver's tolerances are absolute: costs are counted from their mode, in units of their scale.
    unit = np.diagonal(precision).mean() ** -0.5
    quadratic = np.zeros((count + 1, count + 1))
    quadratic[:count, :count] = precision * unit**2
    linear = np.append(np.zeros(count), -margin * unit)
    # The last variable is the margin, which is at least 0.
    matrix, bound = [-np.eye(count + 1)[count]], [0.0]
    for side, ends in ((-1.0, low), (1.0, high)):
        places = np.flatnonzero(np.isfinite(ends))
        matrix.extend(side * np.eye(count + 1)[places])
        bound.extend(side * (ends - loc)[places] / unit)
    costs: np.ndarray = np.clip(loc, low, high)
    seen = set()
    for _ in range(MOST_CUTS):
        other = problem.second_best(torch.from_numpy(costs).reshape(problem.cost_shape), value)
        key = tuple(other.flatten().tolist())
        if key in seen:
            return costs
        seen.add(key)
        difference = own - problem.incidence(other).flatten().numpy() * sign
        matrix.append(np.append(difference, 1.0))
        bound.append(-(difference @ loc) / unit)
        # The solver meets bounds up to rounding; outside of them the density is zero.
        solution: np.ndarray = solve_quadratic_program(quadratic, linear, np.stack(matrix), np.array(bound))
        costs = np.clip(loc + unit * solution[:count], low, high)
    raise RuntimeError(
        f"likeliest costs: expected to meet all constraints that count in {MOST_CUTS} cuts, got others that count"
    )


def _quadratic(base: Any, batch: torch.Size, rank: int) -> list[Tensor]:
    """Mode without bounds, precision matrix, and bounds of the flattened costs of every row."""
    entries, shape = entry_distribution(base), batch + base.event_shape

    def flat(parameter: Any) -> Tensor:
        tensor = torch.as_tensor(parameter, dtype=torch.double).detach()
        return tensor.expand(shape).reshape(-1, shape[len(batch) :].numel())

    if entries is base and isinstance(base, MultivariateNormal) and rank == 1:
        precision = base.precision_matrix.detach().double()
        precision = precision.expand(batch + precision.shape[-2:]).reshape(-1, *precision.shape[-2:])
        return [flat(base.loc), precision, flat(-torch.inf), flat(torch.inf)]
    if isinstance(entries, (Normal, TruncatedNormal)):
        low, high = (getattr(entries, name, limit) for name, limit in (("low", -torch.inf), ("high", torch.inf)))
        return [flat(entries.loc), torch.diag_embed(flat(entries.scale) ** -2), flat(low), flat(high)]
    raise NotImplementedError(
        f"HardEM: expected normal or truncated normal costs, got {type(entries).__name__}; use MCEM"
    )
