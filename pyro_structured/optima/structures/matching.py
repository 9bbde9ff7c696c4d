"""Matchings of the rows of a matrix of costs to its columns."""

__all__ = ["Matching"]

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.structures.argument_checks import check_dense, check_flag, check_size
from pyro_structured.optima.ops.exchange_distances import exchange_distances
from pyro_structured.optima.solvers.transport import has_matching, solve_assignment
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.injection import Injection
from pyro_structured.optima.structures.pair_problem import PairProblem


class Matching(PairProblem):
    r"""The cheapest way to give every row a column of its own.

    .. math::
        F(w) = \arg\min_y \sum_i w_{i y_i}, \qquad y_i \ne y_j.

    A value is the column of every row, integers of shape ``(..., rows)``: a permutation if there are as many rows as
    columns, as in Pyro's ``OneOneMatching``.

    :param int num_rows: Number of rows, at least 1.
    :param int num_columns: Number of columns, at least as many; ``None``: as many.
    :param Tensor allowed: Booleans of shape ``(..., num_rows, num_columns)``: pairs that may be matched, the same for
        all rows of a batch or not. ``None``: all. Costs of other pairs do not matter. Infinite costs forbid pairs, too.
    :param bool maximize: Whether the costs are rewards.
    :raises ValueError: if there are fewer columns than rows, or the allowed pairs leave no matching.

    :meth:`solve` takes O(rows² columns). The restriction of the inverse set to a row is closed-form, given shortest
    paths in the residual graph: the costs of row j that keep the matching optimal are those whose
    :math:`w_{jc} - w_{jk} \le d_k` for its column c and all others k.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 2.1.1.

    Example::

        >>> Matching(2).solve(torch.tensor([[1.0, 2.0], [2.0, 5.0]]))
        tensor([1, 0])
        >>> Matching(2).contains(torch.tensor([[1.0, 2.0], [2.0, 5.0]]), torch.tensor([0, 1]))
        tensor(False)
    """

    is_binary = True
    _data = {"_allowed": 2}

    def __init__(
        self,
        num_rows: int,
        num_columns: int | None = None,
        allowed: Tensor | None = None,
        maximize: bool = False,
    ) -> None:
        check_size("num_rows", num_rows)
        num_columns = num_rows if num_columns is None else num_columns
        check_size("num_columns", num_columns)
        if num_columns < num_rows:
            raise ValueError(f"num_columns: expected at least as many as rows, {num_rows}, got {num_columns}")
        self.cost_shape, self.event_shape = torch.Size([num_rows, num_columns]), torch.Size([num_rows])
        check_flag("maximize", maximize)
        self.maximize = maximize
        self._allowed = torch.ones(self.cost_shape, dtype=torch.bool) if allowed is None else self._checked(allowed)
        self.batch_shape = self._allowed.shape[:-2]

    def _checked(self, allowed: Tensor) -> Tensor:
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool or allowed.shape[-2:] != self.cost_shape:
            got = f"{allowed.dtype} of shape {tuple(allowed.shape)}" if isinstance(allowed, Tensor) else repr(allowed)
            raise ValueError(
                f"allowed: expected booleans of shape (..., {self.num_rows}, {self.num_columns}), got {got}"
            )
        check_dense("allowed", allowed)
        if not has_matching(allowed.reshape(-1, *self.cost_shape).cpu().numpy()).all():
            raise ValueError("allowed: expected pairs that leave every row a column of its own, got none")
        return allowed

    @property
    def support(self) -> Injection:
        """Different columns for all rows."""
        return Injection(self.num_rows, self.num_columns)

    def solve(self, costs: Tensor) -> Tensor:
        """The columns of a cheapest matching, shape ``(..., num_rows)``."""
        batch = self._checked_batch(costs)
        columns = solve_assignment(self._matrices(costs, batch))
        return torch.from_numpy(columns).reshape(batch + self.event_shape).to(costs.device)

    def contains(self, costs: Tensor, value: Tensor) -> Tensor:
        """As of all problems; no call of a solver where all values are optimal beyond doubt."""
        batch, run = self._batch(costs, value), compiled_function("optima.ops.matching_chord", "matching_is_cheapest")
        if run is not None and costs.device.type == value.device.type == "cpu" and not is_transformed():
            columns, cheapest = value.detach().long().resolve_neg(), torch.empty(batch, dtype=torch.bool, device="cpu")
            arguments = (costs.detach().double() * self._sign, self.cost_shape), (columns, self.event_shape)
            flat = [tensor.expand(batch + shape).reshape(-1, *shape).numpy() for tensor, shape in arguments]
            run(*flat, self._flat_allowed(batch), cheapest.view(-1).numpy())
            if bool(cheapest.all()) and torch.equal(columns.to(value.dtype), value):
                return cheapest
        return super().contains(costs, value)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether rows have different columns, all allowed."""
        batch = self._batch(value=value)
        columns = value.nan_to_num().clamp(0, self.num_columns - 1).long().expand(batch + self.event_shape)
        matched = self._allowed.to(value.device).expand(batch + self.cost_shape).gather(-1, columns.unsqueeze(-1))
        feasible: Tensor = matched.squeeze(-1).all(-1) & self.support.check(value)
        return feasible

    def _has_value(self, allowed: np.ndarray, batch: torch.Size) -> np.ndarray:
        return has_matching(allowed)

    def feasible_values(self) -> Tensor | None:
        """All matchings of allowed pairs, if there are few."""
        values = self.support.enumerate_values()
        if values is None:
            return None
        feasible = self.is_feasible(values.reshape(-1, *(1,) * len(self.batch_shape), self.num_rows))
        return values[feasible.flatten(1).any(-1)] if self.batch_shape else values[feasible]

    @property
    def has_one_value(self) -> Tensor:
        """Whether one row after the other has only one column left, booleans of shape ``batch_shape``."""
        return self._is_forced(*(torch.ones(size, dtype=torch.long) for size in self.cost_shape))

    def incidence(self, value: Tensor) -> Tensor:
        """1 at matched pairs, shape ``(..., num_rows, num_columns)``."""
        columns = torch.arange(self.num_columns, device=value.device)
        return (value.unsqueeze(-1) == columns).double()

    def _chord(self, costs: Tensor, incidence: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        if compiled_function("optima.ops.matching_chord", "matching_reach") is None or costs.device.type != "cpu":
            return super()._chord(costs, incidence, direction)
        return -self._reach(costs, incidence, -direction), self._reach(costs, incidence, direction)

    def _reach(self, costs: Tensor, incidence: Tensor, direction: Tensor) -> Tensor:
        run = compiled_function("optima.ops.matching_chord", "matching_reach") if costs.device.type == "cpu" else None
        if run is None:
            return super()._reach(costs, incidence, direction)
        end = costs.new_empty(len(costs))
        costs, direction = ((self._sign * part.detach()).contiguous() for part in (costs, direction))
        rows = costs.numpy(), incidence.argmax(-1).numpy(), self._flat_allowed(costs.shape[:1]), direction.numpy()
        run(*rows, end.numpy())
        return end

    def _flat_allowed(self, batch: torch.Size) -> np.ndarray:
        return self._allowed.cpu().expand(batch + self.cost_shape).reshape(-1, *self.cost_shape).numpy()

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """Two boxes for every row: the matched entry, and then all others."""
        batch, (rows, columns) = costs.shape[:-2], self.cost_shape
        places = torch.arange(columns, device=costs.device)
        matched = value.expand(batch + self.event_shape)
        assigned = self.incidence(matched).bool().reshape(-1, rows, columns)
        unused = ~assigned.any(-2)
        for row in range(rows):
            own = matched[..., row, None]
            distances = exchange_distances(
                self._signed(costs).reshape(assigned.shape), assigned, unused, row, own.reshape(-1, 1).long()
            ).reshape(batch + (columns,))
            others = (places != own) & self._allowed[..., row, :].to(costs.device)
            most = (self._signed(costs)[..., row, :] + distances).masked_fill(~others, torch.inf)
            high = most.amin(-1, keepdim=True)
            yield self._box(row * columns + own, torch.full_like(high, -torch.inf), high)
            low = costs[..., row, :].gather(-1, own) * self._sign - distances
            low = low.masked_fill(~others, -torch.inf)
            index = (row * columns + places).expand(low.shape)
            yield self._box(index, low, torch.full_like(low, torch.inf), places != own)
