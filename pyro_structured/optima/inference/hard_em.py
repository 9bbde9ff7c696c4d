"""Hard expectation maximisation for models that observe optima."""

__all__ = ["HardEM", "likeliest_costs"]

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro.optim import PyroOptim
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
from pyro_structured.optima.inference.cost_density import cost_log_density
from pyro_structured.optima.inference.cost_learner import CostBatch, CostLearner
from pyro_structured.optima.solvers.separation import solve_quadratic_program
from pyro_structured.optima.structures.problem import Problem

# Cuts after which a search is given up.
MOST_CUTS = 1000
# In standard deviations: farther than normal variables ever are, so that probabilities are 0 or 1 there.
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
    :return: The likeliest costs, shape ``(..., *cost_shape)``, double precision.
    :raises ValueError: if the margin pushes costs without bounds too far away.
    :raises NotImplementedError: for other costs, and for problems without second-best values.
    """
    rank = len(problem.cost_shape)
    batch = value.shape[: value.dim() - len(problem.event_shape)]
    loc, precision, low, high = (parameter.cpu().numpy() for parameter in _quadratic(base, batch, rank))
    _check_push(margin, precision, low, high)
    rows, values = problem.flatten(batch), value.cpu().reshape(-1, *problem.event_shape)
    rest = zip(values, loc, precision, low, high, strict=True)
    solutions = [_row(rows[number], *arguments, margin) for number, arguments in enumerate(rest)]
    return torch.from_numpy(np.array(solutions, dtype=float)).reshape(batch + problem.cost_shape).to(value.device)


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
        rival = problem.second_best(torch.from_numpy(costs).reshape(problem.cost_shape), value)
        key = tuple(rival.flatten().tolist())
        if key in seen:
            return costs
        seen.add(key)
        difference = own - problem.incidence(rival).flatten().numpy() * sign
        matrix.append(np.append(difference, 1.0))
        bound.append(-(difference @ loc) / unit)
        ends = np.array(bound)
        # Solutions are as large as the mode's distance from the set, or the push of the margin.
        size = max(-ends.min(), -linear.min())
        if size > 0:
            solution: np.ndarray = solve_quadratic_program(quadratic, linear / size, np.stack(matrix), ends / size)
            # The solver meets bounds up to rounding; outside of them the density is zero.
            costs = np.clip(loc + unit * size * solution[:count], low, high)
    raise RuntimeError(
        f"likeliest costs: expected to meet all constraints that count in {MOST_CUTS} cuts, got others that count"
    )


def _quadratic(base: Any, batch: torch.Size, rank: int) -> list[Tensor]:
    """Location ``(N, P)``, precision ``(N, P, P)``, and bounds ``(N, P)`` of the P flattened costs of N rows."""
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


class HardEM(CostLearner):
    r"""Hard EM with a margin: like :class:`MCEM`, with the likeliest costs in place of draws (Algorithm 1).

    .. math::
        w_n = \arg\max_{w,\, \xi \ge 0} \; \log p(w \mid \psi, x_n) + C \xi \quad \text{subject to} \quad
        f_w(y_n) \le f_w(y') - \xi \quad \text{for all } y' \ne y_n.

    Without a margin the likeliest costs lie on the boundary of the inverse set, and the next parameters put much mass
    outside. The paper has :math:`\lVert w - \hat w \rVert^2` in place of :math:`-\log p(w)`: for normal costs of one
    scale s, its C is :math:`2 s^2` times this one.

    The quadratic programs are solved by cutting planes, one row after the other, with the problem's
    ``second_best`` as separation oracle; the constraint of a margin is that f is linear. Costs must be independent
    normal or truncated normal, or jointly normal.

    :param model: A Pyro model with observed :class:`~pyro_structured.distributions.RandOM` or
        :class:`~pyro_structured.distributions.Argmin` sites.
    :param guide: A guide for all latent sites but the costs, with Delta sites only, as ``AutoDelta``.
    :param optim: A Pyro optimiser, of which the M-step is one step; or ``None``: the M-step goes on to convergence,
        or 100 iterations of L-BFGS.
    :param float margin: C, finite and at least 0. It pushes costs without bounds away by up to C s standard deviations
        s, and locations follow. Learn no scale: it grows without end where C s is large, and shrinks to zero elsewhere.
    :param str on_nonfinite: Reaction to a loss or a gradient that is infinite or not a number: ``"raise"`` a ValueError
        that names the parameter, or ``"skip"`` the step. Either way nothing is changed but random numbers.
    :ivar int num_skipped: Number of steps that were skipped.
    :raises ValueError: if an argument is of another kind; in a step, if an observed optimum is infeasible, with the
        number of its row, or if the margin pushes costs without bounds by more than 1000 standard deviations.
    :raises NotImplementedError: in a step, for costs and problems to which it does not apply, and for costs between
        ends that a parameter moves.
    :raises ImportError: in a step, without the package clarabel: ``pip install 'pyro-structured[learning]'``.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 4.2, Algorithm
    1, Equations 13 and 14, where the right-hand side of Equation 14 has to be :math:`f_w(y')`.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro_structured.distributions import RandOM
        >>> from pyro_structured.structures import TopK
        >>> def model(y):
        ...     quality = pyro.param("quality", torch.zeros(3))
        ...     with pyro.plate("rows", len(y)):
        ...         base = dist.Normal(quality, 1.0).to_event(1)
        ...         pyro.sample("y", RandOM(base, TopK(3, 1, maximize=True)), obs=y)
        >>> pyro.clear_param_store()
        >>> learner = HardEM(model, lambda y: None, None, margin=1.0)
        >>> losses = [learner.step(torch.eye(3)[[0, 0, 0, 0, 1, 1, 2]]) for _ in range(3)]
        >>> pyro.param("quality").argsort(descending=True)
        tensor([0, 1, 2])
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim | None,
        margin: float = 1.0,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, on_nonfinite)
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 <= margin < math.inf:
            raise ValueError(f"margin: expected a finite number of at least 0, got {margin!r}")
        self.margin = float(margin)

    @torch.no_grad()
    def _infer(self, batch: CostBatch) -> dict[str, Tensor]:
        likeliest = {}
        for site in batch.sites:
            self._check_single(batch, site)
            base, optimum = batch.trace.nodes[site.costs]["fn"], batch.trace.nodes[site.optimum]
            shape = base.batch_shape
            value = optimum["value"].expand(shape + optimum["fn"].event_shape)
            likeliest[site.costs] = likeliest_costs(base, optimum["fn"].problem.expand(shape), value, self.margin)
        return likeliest

    def _cost_loss(self, costs: Any, optimum: Any, inferred: Tensor) -> Tensor:
        return -cost_log_density(costs, inferred)
