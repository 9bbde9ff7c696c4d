"""Several optimisation problems with the same costs."""

__all__ = ["JointProblem"]

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.optima.solvers.separation import widest_separation
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.problem import Problem

# Each round finds values that are still better than they should be; there are finitely many.
MOST_ROUNDS = 1000
# Margins, as shares of the distance of the bounds, that rounding may explain.
NARROWEST = 1e-8


class JointProblem(Problem):
    r"""The optima of several problems for the same costs, such as the paths of many trips through one network.

    .. math::
        F(w) = (F_1(w), \dots, F_m(w)), \qquad F^{-1}(y) = \bigcap_i F_i^{-1}(y_i).

    They minimise the sum of all objectives, which is linear in the costs, too. A value is one vector of the values of
    all problems, in double precision; :meth:`pack` makes it.

    :param problems: Problems with linear objectives and the same cost shape. The first axis of their batch shapes goes
        over problems that share costs; the others broadcast with the leading axes of costs.

    :meth:`solve` and :meth:`contains` solve every problem once. The intersection of inverse sets has no closed form:
    every box of :meth:`boxes` has one entry, and takes a few calls of every solver. :meth:`feasible_point` alternates
    between linear programs and calls of every solver.

    **References**

    Tsochantaridis, Joachims, Hofmann, Altun (2005): *Large margin methods for structured and interdependent output
    variables.* JMLR 6. Algorithm 1 is that of :meth:`feasible_point`.

    Example::

        >>> from pyro_structured.structures import TopK
        >>> problem = JointProblem([TopK(3, torch.tensor([1, 2]))])
        >>> costs = torch.tensor([5.0, 4.0, 3.0], dtype=torch.double)
        >>> value = problem.solve(costs)
        >>> value
        tensor([0., 0., 1., 0., 1., 1.], dtype=torch.float64)
        >>> [(box.low.item(), box.high.item()) for box in problem.boxes(costs, value)]
        [(4.0, inf), (3.0, 5.0), (-inf, 4.0)]
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.cost_shape = problems[0].cost_shape
        self.batch_shape = broadcast_shapes(*(problem.batch_shape[1:] for problem in problems))
        self._problems = tuple(_expanded(problem, self.batch_shape) for problem in problems)
        self.event_shape = torch.Size(
            [sum(problem.batch_shape[0] * problem.event_shape.numel() for problem in problems)]
        )
        lows = [torch.as_tensor(problem.cost_low).double().expand(self.cost_shape) for problem in problems]
        self.cost_low = torch.stack(lows).amax(0)

    @property
    def support(self) -> constraints.Constraint:
        """Real vectors."""
        return EveryEntry(constraints.real, 1)

    def pack(self, values: Sequence[Tensor]) -> Tensor:
        """A value, from those of all problems, whose first axes go over problems that share costs."""
        rows = []
        for problem, value in zip(self._problems, values, strict=True):
            rank = value.dim() - len(problem.event_shape) - 1
            rows.append(value.double().movedim(0, rank).flatten(rank))
        return torch.cat(rows, -1)

    def solve(self, costs: Tensor) -> Tensor:
        """The optima of all problems, shape ``(..., *event_shape)``."""
        return self.pack([problem.solve(costs) for problem in self.expand(self._checked_batch(costs))._problems])

    def contains(self, costs: Tensor, value: Tensor) -> Tensor:
        """Whether the values of all problems are optimal, booleans of shape ``(...)``."""
        parts = self._parts(value, self._batch(costs, value))
        return torch.stack([problem.contains(costs, own).all(0) for problem, own in parts]).all(0)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether the values of all problems are feasible, booleans of shape ``(...)``."""
        parts = self._parts(value, self._batch(value=value))
        return torch.stack([problem.is_feasible(own).all(0) for problem, own in parts]).all(0)

    @property
    def has_one_value(self) -> Tensor:
        """Whether all problems have only one feasible value, booleans of shape ``batch_shape``."""
        return torch.stack([problem.has_one_value.all(0) for problem in self._problems]).all(0)

    def incidence(self, value: Tensor) -> Tensor:
        """Sum of the coefficients of all problems, negative for rewards, shape ``(..., *cost_shape)``."""
        parts = self._parts(value, self._batch(value=value))
        return torch.stack([_signed(problem, own).sum(0) for problem, own in parts]).sum(0)

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """One box for each entry of the costs."""
        flat = costs.flatten(-len(self.cost_shape))
        for entry, direction in enumerate(torch.eye(self.cost_shape.numel(), dtype=torch.double, device=costs.device)):
            low, high = self.chord(costs, value, direction.reshape(self.cost_shape).expand(costs.shape))
            present = flat[..., entry]
            yield Box(
                torch.tensor([entry], device=costs.device),
                (present + low).unsqueeze(-1),
                (present + high).unsqueeze(-1),
            )

    def feasible_point(self, value: Tensor, low: Tensor | float = 0.0, high: Tensor | float = 1.0) -> Tensor:
        """Costs between two finite bounds for which all values are better than any other by as much as possible.

        If these costs are not in the inverse set, then none between the bounds are.

        :raises RuntimeError: if they are not found in 1000 rounds.
        """
        device, value = value.device, value.cpu()
        bounds = [torch.as_tensor(bound).double().cpu() for bound in (low, high)]
        shape = broadcast_shapes(self._batch(value=value) + self.cost_shape, *(bound.shape for bound in bounds))
        batch = torch.Size(shape[: len(shape) - len(self.cost_shape)])
        lows, highs = (bound.expand(shape).reshape(batch.numel(), self.cost_shape.numel()) for bound in bounds)
        rows, values = self.flatten(batch), value.expand(batch + self.event_shape).reshape(len(lows), *self.event_shape)
        points = torch.empty_like(lows)
        for row, (own, least, most) in enumerate(zip(values, lows, highs, strict=True)):
            points[row] = rows[row]._separated(own, least, most).flatten()
        return points.reshape(shape).to(device)

    def _separated(self, value: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The widest separation from some values, and from those that are still better, until there are none."""
        own = torch.cat([_signed(problem, mine).flatten(1) for problem, mine in self._parts(value, value.shape[:-1])])
        least, most = own.amin(1, keepdim=True), own.amax(1, keepdim=True)
        # With such changes of the costs, the values are only optimal if they are better by a margin.
        worse = (2 * own - least - most) / (most - least).clamp(min=1e-9) * (high - low)
        rivals = own.new_zeros(0, own.shape[1] + 1)
        for _ in range(MOST_ROUNDS):
            separation = widest_separation(*(tensor.numpy() for tensor in (rivals[:, :-1], rivals[:, -1], low, high)))
            if separation is None:
                return (low + high) / 2
            costs, margin = torch.from_numpy(separation[0]), separation[1]
            if margin < NARROWEST:
                return self._elsewhere(value, torch.where(worse > 0, high, low))
            known = len(rivals)
            for changes in (torch.zeros_like(worse), margin / 2 * worse):
                differences = self._rivals(costs + changes) - own
                distances = -(worse * differences).sum(1, keepdim=True)
                rivals = torch.cat([rivals, torch.cat([differences, distances.clamp(min=0)], 1)])
            rivals = rivals[rivals[:, :-1].any(1)].unique(dim=0)
            if len(rivals) == known:
                return costs
        raise RuntimeError(f"feasible_point: no costs were found in {MOST_ROUNDS} rounds")

    def _elsewhere(self, value: Tensor, candidates: Tensor) -> Tensor:
        """Costs outside of the inverse set, if there are some: those inside are ties, which no draw leads to."""
        return candidates[int(self.contains(candidates.reshape(-1, *self.cost_shape), value).byte().argmin())]

    def _rivals(self, costs: Tensor) -> Tensor:
        """Signed coefficients of the optima, one for each problem with costs of its own."""
        shares = costs.reshape(-1, *self.cost_shape).split([problem.batch_shape[0] for problem in self._problems])
        return torch.cat(
            [
                _signed(problem, problem.solve(own)).flatten(1)
                for problem, own in zip(self._problems, shares, strict=True)
            ]
        )

    def expand(self, batch_shape: Any) -> "JointProblem":
        """Problems of another batch shape, without copying."""
        return self._changed(
            torch.Size(batch_shape), [_expanded(problem, torch.Size(batch_shape)) for problem in self._problems]
        )

    def flatten(self, batch_shape: Any) -> "JointProblem":
        """One problem for each row of a batch, in one axis."""
        count = torch.Size(batch_shape).numel()
        flat = []
        for problem in self.expand(batch_shape)._problems:
            places = torch.arange(problem.batch_shape.numel()).reshape(problem.batch_shape[0], count)
            flat.append(problem.flatten(problem.batch_shape)[places])
        return self._changed(torch.Size([count]), flat)

    def __getitem__(self, index: Any) -> "JointProblem":
        places = (slice(None), *(index if isinstance(index, tuple) else (index,)))
        chosen = [problem[places] for problem in self._problems]
        return self._changed(chosen[0].batch_shape[1:], chosen)

    def _changed(self, batch_shape: torch.Size, problems: Sequence[Problem]) -> "JointProblem":
        new = copy.copy(self)
        new.batch_shape, new._problems = batch_shape, tuple(problems)
        return new

    def _parts(self, value: Tensor, batch: torch.Size) -> Iterator[tuple[Problem, Tensor]]:
        """Yields all problems, and their values with the problems' first batch axis in front."""
        value = value.expand(batch + self.event_shape)
        problems = self.expand(batch)._problems
        sizes = [problem.batch_shape[0] * problem.event_shape.numel() for problem in problems]
        for problem, own in zip(problems, value.split(sizes, -1), strict=True):
            shape = batch + problem.batch_shape[:1] + problem.event_shape
            yield problem, own.reshape(shape).movedim(len(batch), 0)


def _expanded(problem: Problem, batch_shape: torch.Size) -> Problem:
    """The problem with its first batch axis as it is, and the others of another shape."""
    missing = 1 + len(batch_shape) - len(problem.batch_shape)
    return problem[(slice(None),) + (None,) * missing].expand(problem.batch_shape[:1] + batch_shape)


def _signed(problem: Problem, value: Tensor) -> Tensor:
    """Coefficients of costs that are to be minimised, shape ``(N, ..., *cost_shape)``."""
    return problem.incidence(value) * (-1 if problem.maximize else 1)
