"""Assignments of several columns to every row of a matrix of costs."""

__all__ = ["BipartiteAssignment"]

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.foundation.structures.argument_checks import (
    INTEGERS,
    check_dense,
    check_flag,
    check_size,
    checked_batch,
    checked_tensor,
)
from pyro_structured.optima.ops.exchange_distances import exchange_distances
from pyro_structured.optima.solvers.transport import has_transport, solve_transport
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.pair_problem import PairProblem


class BipartiteAssignment(PairProblem):
    r"""The cheapest assignment of a number of columns to every row, within columns' capacities: papers and reviewers.

    .. math::
        F(w) = \arg\min_y \sum_{ij} w_{ij} y_{ij}, \qquad y_{ij} \in \{0, 1\}, \quad \sum_j y_{ij} = r_i, \quad
        \sum_i y_{ij} \le c_j.

    A value says of every pair whether it is assigned, 0 or 1, shape ``(..., rows, columns)``.

    :param row_counts: r, at least 1: an integer for all rows, or integers of shape ``(..., rows)``.
    :param column_capacities: c, at least 0: an integer for all columns, or integers of shape ``(..., columns)``.
    :param Tensor allowed: Booleans of shape ``(..., rows, columns)``: pairs that may be assigned. Costs of other pairs
        do not matter. ``None``: all. Infinite costs forbid pairs, too.
    :param bool maximize: Whether the costs are rewards.
    :param int num_rows: Number of rows, if neither ``row_counts`` nor ``allowed`` tells.
    :param int num_columns: Number of columns, if neither ``column_capacities`` nor ``allowed`` tells.
    :raises ValueError: if an argument has another form, or there is no assignment.

    :meth:`solve` is a minimum-cost flow: by shortest paths, with numba, and else one call for every row of a batch, in
    whole numbers of such a size that rounding them does not matter. The
    restriction of the inverse set to a row is closed-form, given shortest paths in the residual graph: the costs of a
    row that keep the assignment optimal are those whose :math:`w_{jc} - w_{jk} \le d_{ck}` for all columns c that the
    row has and all others k.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 2.1.1, where
    all counts are 1.

    Charlin, Zemel, Boutilier (2011): *A framework for optimizing paper matching.* UAI.

    Example::

        >>> problem = BipartiteAssignment(2, 1, num_rows=1, num_columns=3)
        >>> problem.solve(torch.tensor([[1.0, 3.0, 2.0]]))
        tensor([[1., 0., 1.]])
        >>> BipartiteAssignment(2, 1, num_rows=2, num_columns=3)
        Traceback (most recent call last):
        ...
        ValueError: column_capacities: expected enough places for row_counts [2, 2], got [1, 1, 1]
    """

    is_binary = True
    _data = {"_row_counts": 1, "_column_capacities": 1, "_allowed": 2}

    def __init__(
        self,
        row_counts: int | Tensor,
        column_capacities: int | Tensor,
        allowed: Tensor | None = None,
        maximize: bool = False,
        num_rows: int | None = None,
        num_columns: int | None = None,
    ) -> None:
        if allowed is not None and (
            not isinstance(allowed, Tensor) or allowed.dtype != torch.bool or allowed.dim() < 2
        ):
            got = f"{allowed.dtype} of shape {tuple(allowed.shape)}" if isinstance(allowed, Tensor) else repr(allowed)
            raise ValueError(f"allowed: expected booleans of shape (..., rows, columns), got {got}")
        if allowed is not None:
            check_dense("allowed", allowed)
        counts = _checked_integers("row_counts", row_counts, 1)
        capacities = _checked_integers("column_capacities", column_capacities, 0)
        rows = _size("num_rows", num_rows, [counts.shape[-1:], () if allowed is None else allowed.shape[-2:-1]])
        columns = _size(
            "num_columns", num_columns, [capacities.shape[-1:], () if allowed is None else allowed.shape[-1:]]
        )
        self.cost_shape = self.event_shape = torch.Size([rows, columns])
        check_flag("maximize", maximize)
        self.maximize = maximize
        pairs = torch.ones(self.cost_shape, dtype=torch.bool) if allowed is None else allowed
        self.batch_shape = checked_batch(
            allowed=pairs.shape[:-2], row_counts=counts.shape[:-1], column_capacities=capacities.shape[:-1]
        )
        self._allowed = pairs.expand(self.batch_shape + self.cost_shape)
        self._row_counts = counts.expand(self.batch_shape + (rows,))
        self._column_capacities = capacities.expand(self.batch_shape + (columns,))
        pairs_of_rows, *numbers = self._rows(self.batch_shape)
        if not (has_value := has_transport(pairs_of_rows, *numbers)).all():
            wanted, places = (number[has_value.argmin()].tolist() for number in numbers)
            raise ValueError(f"column_capacities: expected enough places for row_counts {wanted}, got {places}")

    @property
    def row_counts(self) -> Tensor:
        """Numbers of columns of the rows, shape ``batch_shape + (rows,)``."""
        return self._row_counts

    @property
    def column_capacities(self) -> Tensor:
        """Largest numbers of rows of the columns, shape ``batch_shape + (columns,)``."""
        return self._column_capacities

    @property
    def support(self) -> constraints.Constraint:
        """Zeros and ones."""
        return EveryEntry(constraints.boolean, 2)

    def solve(self, costs: Tensor) -> Tensor:
        """A cheapest assignment, 0 or 1, shape ``(..., rows, columns)``."""
        batch = self._checked_batch(costs)
        _, counts, capacities = self._rows(batch)
        run = compiled_function("optima.ops.compiled_transport", "cheapest_transports") or solve_transport
        assigned = run(*map(np.ascontiguousarray, (self._matrices(costs, batch), counts, capacities)))
        dtype = self._binary_dtype(costs)
        return torch.from_numpy(assigned).reshape(batch + self.event_shape).to(costs.device, dtype)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether rows have as many columns as they should, and columns no more rows than they may, all allowed."""
        batch, device, assigned = self._batch(value=value), value.device, value == 1
        feasible: Tensor = self.support.check(value) & (assigned.sum(-1) == self._row_counts.to(device)).all(-1)
        feasible = feasible & (assigned.sum(-2) <= self._column_capacities.to(device)).all(-1)
        return (feasible & (self._allowed.to(device) | ~assigned).all(-1).all(-1)).expand(batch)

    @property
    def has_one_value(self) -> Tensor:
        """Whether one row after the other has only columns left that it needs, booleans of shape ``batch_shape``."""
        return self._is_forced(self._row_counts, self._column_capacities)

    def incidence(self, value: Tensor) -> Tensor:
        """Coefficients of the costs: the value itself, in double precision."""
        return value.double()

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """Two boxes for every row: the assigned entries, and then all others, with the same shortest paths."""
        batch, (rows, columns) = costs.shape[:-2], self.cost_shape
        assigned = value.expand(batch + self.event_shape) == 1
        has_room = assigned.sum(-2) < self._column_capacities.to(costs.device)
        most = int(self._row_counts.max()) if self._row_counts.numel() else 1
        places = torch.arange(columns, device=costs.device).expand(batch + (columns,))
        for row in range(rows):
            mine, free = assigned[..., row, :], (self._allowed.to(costs.device) & ~assigned)[..., row, :]
            own = mine.byte().topk(most).indices
            owned = mine.gather(-1, own)
            distances = exchange_distances(
                self._signed(costs).reshape(-1, rows, columns),
                assigned.reshape(-1, rows, columns),
                has_room.reshape(-1, columns),
                row,
                own.reshape(-1, most),
            ).reshape(batch + (most, columns))
            taken = self._signed(costs)[..., row, :].masked_fill(~free, torch.inf)
            high = (taken.unsqueeze(-2) + distances).amin(-1)
            yield self._box(row * columns + own, torch.full_like(high, -torch.inf), high, owned)
            given = self._signed(costs)[..., row, :].gather(-1, own).masked_fill(~owned, -torch.inf)
            low = (given.unsqueeze(-1) - distances).amax(-2).masked_fill(~free, -torch.inf)
            yield self._box(row * columns + places, low, torch.full_like(low, torch.inf), ~mine)

    def _has_value(self, allowed: np.ndarray, batch: torch.Size) -> np.ndarray:
        return has_transport(allowed, *self._rows(batch)[1:])

    def _rows(self, batch: torch.Size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Allowed pairs, counts and capacities of the rows of a batch, in one axis."""
        rows = self.flatten(batch)
        allowed, counts, capacities = (
            np.asarray(tensor.cpu()) for tensor in (rows._allowed, rows._row_counts, rows._column_capacities)
        )
        return allowed, counts, capacities


def _checked_integers(name: str, number: int | Tensor, least: int) -> Tensor:
    integers = checked_tensor(name, f"integers of at least {least}", number)
    if integers.dtype not in INTEGERS or bool((integers < least).any()):
        raise ValueError(f"{name}: expected integers of at least {least}, got {number}")
    return integers.long()


def _size(name: str, given: int | None, shapes: list[torch.Size | tuple[()]]) -> int:
    """Length of an axis, from a number and from shapes, which may not disagree."""
    told = {length for shape in shapes for length in shape}
    if given is not None:
        check_size(name, given)
        told.add(given)
    if len(told) != 1:
        raise ValueError(f"{name}: expected one number, of the other arguments or this, got {sorted(told) or None}")
    return told.pop()
