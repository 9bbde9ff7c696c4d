"""Optimisation problems whose costs may be random."""

__all__ = ["Problem"]

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.immutable import Immutable
from pyro_structured.foundation.structures.representation import Represented
from pyro_structured.optima.ops.ray_shooting import chord, reach
from pyro_structured.optima.structures.box import Box

# Largest excess over the optimum of values that count as optimal, relative to the range of the costs that differ.
TOLERANCE = 1e-9

Self = TypeVar("Self", bound="Problem")


class Problem(Represented, Immutable, ABC):
    r"""A family of optimisation problems with the same feasible values :math:`\mathcal{Y}`, one for each vector of
    costs :math:`w`.

    .. math::
        F(w) = \arg\min_{y \in \mathcal{Y}} \langle w, \rho(y) \rangle, \qquad F^{-1}(y) = \{w : F(w) = y\},

    where :math:`\rho` is :meth:`incidence`; or the argmax, if ``maximize``. The inverse sets are convex cones
    (Proposition 3); a problem whose objective is not linear says ``is_linear = False``.

    Data of a problem may differ over a batch: ``batch_shape`` broadcasts with the leading axes of costs and values.
    Costs have shape ``(..., *cost_shape)``, values ``(..., *event_shape)``. Solvers compute in double precision on the
    CPU.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Equations 1 and 4,
    Propositions 1 to 5.

    :cvar torch.Size cost_shape: Shape of the costs.
    :cvar torch.Size event_shape: Shape of a value.
    :cvar torch.Size batch_shape: Shape of the problem's data.
    :cvar bool maximize: Whether the costs are rewards.
    :cvar bool is_linear: Whether the objective is linear in the costs.
    :cvar bool is_binary: Whether the coefficients of a linear objective are zeros and ones.
    :cvar cost_low: Least cost that the solver can handle, a number or a tensor that broadcasts with the costs.
    """

    cost_shape: torch.Size
    event_shape: torch.Size
    batch_shape: torch.Size = torch.Size()
    maximize: bool = False
    is_linear: bool = True
    is_binary: bool = False
    cost_low: float | Tensor = -torch.inf
    # Names of tensors whose leading axes are those of the batch, and the numbers of their other axes.
    _data: dict[str, int] = {}

    @property
    @abstractmethod
    def support(self) -> constraints.Constraint:
        """Support of the values, which may contain values that the data of a single row exclude."""

    @abstractmethod
    def solve(self, costs: Tensor) -> Tensor:
        """An optimal value for every vector of costs, shape ``(..., *event_shape)``: zeros and ones in the dtype of the
        costs, or integers.
        """

    @abstractmethod
    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether values belong to the feasible set, booleans of shape ``(...)``."""

    @abstractmethod
    def incidence(self, value: Tensor) -> Tensor:
        """The coefficients of the costs in the objective, shape ``(..., *cost_shape)``, in double precision."""

    def feasible_values(self) -> Tensor | None:
        """All values that the data of some row allow, in lexicographic order, shape ``(count, *event_shape)``.

        :return: ``None`` where there are more than ``2 ** 12``, or no list.
        """
        return None

    @property
    def has_one_value(self) -> Tensor:
        """Whether there is only one feasible value for all costs, booleans of shape ``batch_shape``; also False
        where that is not known.
        """
        return torch.zeros(self.batch_shape, dtype=torch.bool)

    @property
    def cost_support(self) -> constraints.Constraint:
        """The costs for which there is an exact solver."""
        low = self.cost_low
        bounded = isinstance(low, Tensor) or low > -torch.inf
        single = constraints.greater_than_eq(low) if bounded else constraints.real
        return constraints.independent(single, len(self.cost_shape))

    def objective(self, costs: Tensor, value: Tensor) -> Tensor:
        """Costs of values, shape ``(...)``, in double precision; without infinite ones that a value does not incur."""
        batch, relevant, incidence = self._batch(costs, value), self._relevant(costs), self.incidence(value)
        return self._sum(torch.where(relevant.isinf() & (incidence == 0), 0.0, relevant) * incidence).expand(batch)

    def contains(self, costs: Tensor, value: Tensor) -> Tensor:
        """Whether values are optimal: members of the inverse set's closure, booleans of shape ``(...)``.

        One call of the solver for every row. Values whose objective is larger than the optimum by at most 1e-9 times
        the range of the costs in which both differ, or by the rounding of the largest cost, count as optimal.
        """
        self._batch(costs, value)
        # Costs that both values incur cancel before rounding; infinite costs that neither incurs do not matter.
        differences = (self.incidence(value) - self.incidence(self.solve(costs))) * self._sign
        relevant = self._relevant(costs).expand(broadcast_shapes(costs.shape, differences.shape))
        terms = (relevant * differences).masked_fill(differences == 0, 0.0)
        finite = relevant.masked_fill(relevant.isinf(), 0.0).flatten(-len(self.cost_shape))
        same = (differences == 0).flatten(-len(self.cost_shape))
        spread = finite.masked_fill(same, -torch.inf).amax(-1) - finite.masked_fill(same, torch.inf).amin(-1)
        # Rounding of the sum, and of costs that come from moves along lines.
        rounding = 8 * self._sum(terms.abs().masked_fill(terms.isinf(), 0.0)) + 4 * finite.abs().amax(-1)
        slack = TOLERANCE * spread.clamp(min=0.0) + torch.finfo(torch.double).eps * rounding
        return self.is_feasible(value) & (self._sum(terms) <= slack)

    def feasible_point(self, value: Tensor, low: Tensor | float = 0.0, high: Tensor | float = 1.0) -> Tensor:
        """Costs between two bounds for which values are as far from any other value as possible.

        If these costs are not in the inverse set, then none between the bounds are.

        :param low: Least costs, a number or a tensor that broadcasts with the costs.
        :param high: Largest costs.
        :return: Shape ``(..., *cost_shape)``, in double precision.
        """
        cheap, dear = (torch.as_tensor(bound, dtype=torch.double, device=value.device) for bound in (low, high))
        return torch.where((self.incidence(value) > 0) ^ self.maximize, cheap, dear)

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """Restrictions of the inverse set that together visit all costs once, one after the other.

        The caller may change, in place, the entries of the costs that the last box names, before asking for the next:
        each box is exact for the costs at that time.

        :param Tensor costs: Costs in the inverse sets, double precision, shape ``(..., *cost_shape)``.
        :param Tensor value: Optimal values for the costs, shape ``(..., *event_shape)``.
        :raises NotImplementedError: if the restrictions have no closed form; there is :meth:`chord` then.
        """
        raise NotImplementedError(f"boxes: {type(self).__name__} has none in closed form; use chord")

    def chord(self, costs: Tensor, value: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        r"""The interval of all t for which values are optimal for costs :math:`w + t v`.

        By Newton's method on the optimum along the line, which is concave and piecewise linear: exact up to rounding
        after finitely many calls of the solver, a few for each end. Costs that are less than 1e-13 of others may be of
        no account, as differences of the others round to more.

        :param Tensor costs: Finite costs w in the inverse sets, shape ``(..., *cost_shape)``.
        :param Tensor value: Optimal values for the costs, shape ``(..., *event_shape)``.
        :param Tensor direction: v, not zero everywhere, shape ``(..., *cost_shape)``.
        :return: Lower ends, at most 0, and upper ends, at least 0, both of shape ``(...)``; infinite where there is no
            end.
        :raises ValueError: if costs or directions are no finite numbers, but for pairs that are not allowed.
        :raises NotImplementedError: if the objective is not linear.
        """
        batch, rows = self._line("chord", costs, value, direction)
        low, high = self.flatten(batch)._chord(*rows)
        return low.reshape(batch), high.reshape(batch)

    def reach(self, costs: Tensor, value: Tensor, direction: Tensor) -> Tensor:
        """The largest t for which values are optimal for costs :math:`w + t v`: the upper end that :meth:`chord` gives.

        By the same method, and as exact, with half of the calls of the solver.

        :param Tensor costs: Finite costs w in the inverse sets, shape ``(..., *cost_shape)``.
        :param Tensor value: Optimal values for the costs, shape ``(..., *event_shape)``.
        :param Tensor direction: v, not zero everywhere, shape ``(..., *cost_shape)``.
        :return: Numbers of at least 0, shape ``(...)``; infinite where there is no end.
        :raises ValueError: if costs or directions are no finite numbers, but for pairs that are not allowed.
        :raises NotImplementedError: if the objective is not linear.
        """
        batch, rows = self._line("reach", costs, value, direction)
        return self.flatten(batch)._reach(*rows).reshape(batch)

    def _line(self, name: str, costs: Tensor, value: Tensor, direction: Tensor) -> tuple[torch.Size, list[Tensor]]:
        """The batch shape of a line, and costs, coefficients of values and directions, ``(N, *cost_shape)``."""
        if not self.is_linear:
            raise NotImplementedError(f"{name}: {type(self).__name__} has inverse sets that are not convex; use boxes")
        batch = self._batch(costs, value, direction)
        start, along = self._relevant(costs), self._relevant(direction)
        for argument, given in ("costs", start), ("direction", along):
            # A sum that is finite shows that all its terms are.
            if any_true(~given.sum().isfinite()) and any_true(~given.isfinite()):
                raise ValueError(f"{argument}: expected finite numbers, got NaN or infinity")
        rows = [
            tensor.double().expand(batch + self.cost_shape).reshape(-1, *self.cost_shape)
            for tensor in (start, self.incidence(value), along)
        ]
        return batch, rows

    def _chord(self, costs: Tensor, incidence: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Both ends of the interval of distances, shape ``(N,)``, for costs of shape ``(N, *cost_shape)``."""
        return chord(self, costs, incidence, direction)

    def _reach(self, costs: Tensor, incidence: Tensor, direction: Tensor) -> Tensor:
        """The upper end, shape ``(N,)``."""
        return reach(self, costs, incidence, direction)

    def second_best(self, costs: Tensor, value: Tensor) -> Tensor:
        """The best feasible value other than a given one.

        Exact where no feasible value is a part of another, and nowhere else: any other value then lacks some part of
        the given one, so each part in turn is made too dear, and the problem solved: one call of the solver for every
        part.

        :param Tensor value: Feasible values, optimal or not, shape ``(..., *event_shape)``.
        :return: Other values, of the same shape.
        :raises ValueError: if there is no other feasible value, or all others incur infinite costs.
        :raises NotImplementedError: if costs do not belong to parts of a value.
        """
        incidence, batch = self.incidence(value), self._batch(costs, value)
        if not self.is_linear or bool(((incidence != 0) & (incidence != 1)).any()):
            raise NotImplementedError(f"second_best: {type(self).__name__} has no costs of parts of a value")
        rank = len(self.cost_shape)
        flat = (self._relevant(costs) * self._sign).expand(batch + self.cost_shape).flatten(-rank)
        is_part = (incidence > 0).expand(batch + self.cost_shape).flatten(-rank)
        count = max([1, *is_part.sum(-1).flatten().tolist()])
        parts = is_part.byte().argsort(dim=-1, descending=True, stable=True)[..., :count].movedim(-1, 0).unsqueeze(-1)
        # Of infinite costs, none is dearer than others.
        weight = flat.where(flat.isfinite(), 0.0).abs().sum(-1, keepdim=True)
        dear = flat.masked_fill(flat == -torch.inf, 0.0) + torch.where(weight > 0, 2 * weight, 1.0)
        is_raised = torch.zeros_like(is_part).expand(count, *is_part.shape).scatter(-1, parts, True)
        raised = torch.where(is_raised, dear, flat) * self._sign
        others = self.expand((count, *batch)).solve(raised.reshape(count, *batch, *self.cost_shape)).to(value.dtype)
        losses = self.objective(flat.reshape(batch + self.cost_shape), others)
        same = (others == value).flatten(1 + len(batch)).all(-1) if self.event_shape else others == value
        losses = losses.masked_fill(same, torch.inf)
        if bool((losses.amin(0) == torch.inf).any()):
            raise ValueError(
                "value: expected values beside which others are feasible and incur no infinite costs, got some alone"
            )
        best = losses.argmin(0).reshape(1, *batch, *(1,) * len(self.event_shape))
        return others.gather(0, best.expand(1, *others.shape[1:])).squeeze(0)

    def expand(self: Self, batch_shape: Any) -> Self:
        """Problems of another batch shape, without copying."""
        new, shape = copy.copy(self), torch.Size(batch_shape)
        for name, trailing in self._data.items():
            tensor = getattr(self, name)
            setattr(new, name, tensor.expand(shape + tensor.shape[tensor.dim() - trailing :]))
        new.batch_shape = shape
        return new

    def flatten(self: Self, batch_shape: Any) -> Self:
        """One problem for each row of a batch, in one axis."""
        new = self.expand(batch_shape)
        for name, trailing in self._data.items():
            tensor = getattr(new, name)
            setattr(new, name, tensor.reshape(-1, *tensor.shape[tensor.dim() - trailing :]))
        new.batch_shape = torch.Size([new.batch_shape.numel()])
        return new

    def __getitem__(self: Self, index: Any) -> Self:
        new = copy.copy(self)
        for name in self._data:
            setattr(new, name, getattr(self, name)[index])
        new.batch_shape = torch.empty(0).expand(self.batch_shape + (0,))[index].shape[:-1]
        return new

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        mine, theirs = vars(self), vars(other)
        return mine.keys() == theirs.keys() and all(
            torch.equal(mine[name], theirs[name]) if isinstance(mine[name], Tensor) else mine[name] == theirs[name]
            for name in mine
        )

    def __hash__(self) -> int:
        return hash((type(self), self.cost_shape, self.event_shape, self.maximize))

    def _batch(
        self, costs: Tensor | None = None, value: Tensor | None = None, direction: Tensor | None = None
    ) -> torch.Size:
        """The batch shape of arguments together with the problem's."""
        batch = self.batch_shape
        given = {"costs": (costs, self.cost_shape), "value": (value, self.event_shape)}
        for name, (tensor, event) in {**given, "direction": (direction, self.cost_shape)}.items():
            if tensor is None:
                continue
            shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else None
            if shape is None or shape[max(0, len(shape) - len(event)) :] != event:
                got = type(tensor).__name__ if shape is None else f"shape {shape}"
                raise ValueError(f"{name}: expected a tensor of shape (..., {', '.join(map(str, event))}), got {got}")
            axes = torch.Size(shape[: len(shape) - len(event)])
            # Most shapes are equal, and broadcasting takes as long as solving some problems does.
            if axes == batch:
                continue
            try:
                batch = broadcast_shapes(batch, axes)
            except RuntimeError:
                raise ValueError(
                    f"{name}: expected leading axes that broadcast with {tuple(batch)}, got {tuple(axes)}"
                ) from None
        return batch

    def _checked_batch(self, costs: Tensor) -> torch.Size:
        """The batch shape of costs together with the problem's; costs that matter must not be NaN."""
        batch = self._batch(costs)
        if any_true(self._relevant(costs).isnan()):
            raise ValueError("costs: expected numbers, got NaN")
        return batch

    def _possible(self, costs: Tensor, value: Tensor) -> Tensor:
        """The optima; a ValueError if infinite costs, which forbid entries, leave no value."""
        if any_true((costs * self._sign == torch.inf) & (self.incidence(value) > 0)):
            raise ValueError("costs: expected some value without infinite costs, got infinite costs in all of them")
        return value

    def _relevant(self, costs: Tensor) -> Tensor:
        """Costs in double precision, where costs that no value incurs have been replaced by finite ones."""
        return costs.double()

    def _box(self, index: Tensor, low: Tensor, high: Tensor, free: Tensor | None = None) -> Box:
        """A box, from bounds of signed costs."""
        return Box(index, -high, -low, free) if self.maximize else Box(index, low, high, free)

    @staticmethod
    def _binary_dtype(costs: Tensor) -> torch.dtype:
        """Dtype of zeros and ones for these costs."""
        return costs.dtype if costs.is_floating_point() else torch.get_default_dtype()

    @property
    def _sign(self) -> int:
        return -1 if self.maximize else 1

    def _sum(self, terms: Tensor) -> Tensor:
        return terms.flatten(-len(self.cost_shape)).sum(-1)
