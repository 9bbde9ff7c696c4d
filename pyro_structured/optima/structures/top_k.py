"""Sets of the cheapest items."""

__all__ = ["TopK"]

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.ops.enumeration import ENUMERATION_CAP
from pyro_structured.foundation.structures.argument_checks import INTEGERS, check_flag, check_size, checked_tensor
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.problem import Problem


class TopK(Problem):
    r"""The cheapest k of n items.

    .. math::
        F(w) = \arg\min_{y \in \{0, 1\}^n} \sum_i w_i y_i, \qquad \sum_i y_i = k.

    A value has a 1 for every item that is chosen, shape ``(..., num_items)``: booleans, integers or floats;
    :meth:`solve` returns the dtype of the costs. An infinite cost forbids an item.

    :param int num_items: Number of items n, at least 1.
    :param k: Number of chosen items, an integer from 0 to n, or integers of the batch shape.
    :param bool maximize: Whether the costs are rewards.
    :raises ValueError: if k is not between 0 and the number of items.

    :meth:`solve` takes O(n log n), all else O(n), on the device of its arguments. The restrictions of the inverse set
    are closed-form: every chosen item costs at most as much as the cheapest of the others.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Equation 4.

    Example::

        >>> TopK(4, k=2).solve(torch.tensor([3.0, -1.0, 2.0, 5.0]))
        tensor([0., 1., 1., 0.])
        >>> TopK(4, k=torch.tensor([1, 3]), maximize=True).solve(torch.tensor([3.0, -1.0, 2.0, 5.0]))
        tensor([[0., 0., 0., 1.],
                [1., 0., 1., 1.]])
    """

    is_binary = True
    _data = {"k": 0}

    def __init__(self, num_items: int, k: int | Tensor, maximize: bool = False) -> None:
        check_size("num_items", num_items)
        self.cost_shape = self.event_shape = torch.Size([num_items])
        expected = f"integers from 0 to the number of items, {num_items}"
        self.k = checked_tensor("k", expected, k)
        if self.k.dtype not in INTEGERS or bool(((self.k < 0) | (self.k > num_items)).any()):
            raise ValueError(f"k: expected {expected}, got {k}")
        self.batch_shape = self.k.shape
        check_flag("maximize", maximize)
        self.maximize = maximize

    @property
    def num_items(self) -> int:
        """Number of items."""
        return self.cost_shape[0]

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones."""
        return EveryEntry(constraints.boolean, 1)

    def solve(self, costs: Tensor) -> Tensor:
        """Ones for the cheapest items, shape ``(..., num_items)``; of items that cost the same the first ones."""
        batch = self._checked_batch(costs)
        costs = costs.expand(batch + self.cost_shape)
        dtype = self._binary_dtype(costs)
        order = costs.argsort(dim=-1, descending=self.maximize, stable=True)
        first = torch.arange(self.num_items, device=costs.device) < self.k.to(costs.device).unsqueeze(-1)
        value = torch.zeros_like(costs, dtype=dtype).scatter(-1, order, first.to(dtype).expand(order.shape))
        return self._possible(costs, value)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether k items are chosen."""
        batch = self._batch(value=value)
        feasible: Tensor = self.support.check(value) & (value.sum(-1) == self.k.to(value.device))
        return feasible.expand(batch)

    def feasible_values(self) -> Tensor | None:
        """All sets of k items, if there are few."""
        sizes = sorted(set(self.k.flatten().tolist()))
        if sum(math.comb(self.num_items, size) for size in sizes) > ENUMERATION_CAP:
            return None
        chosen = [list(items) for size in sizes for items in itertools.combinations(range(self.num_items), size)]
        values = torch.zeros(len(chosen), self.num_items, dtype=torch.double)
        for row, items in zip(values, chosen, strict=True):
            row[items] = 1.0
        ordered: Tensor = values.unique(dim=0)
        return ordered

    @property
    def has_one_value(self) -> Tensor:
        """Whether none or all of the items are chosen, booleans of shape ``batch_shape``."""
        return (self.k == 0) | (self.k == self.num_items)

    def incidence(self, value: Tensor) -> Tensor:
        """1 for items that are chosen, shape ``(..., num_items)``."""
        return value.double()

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """Two boxes: the cheap items, and then the dear ones."""
        index = torch.arange(self.num_items, device=costs.device)
        cheap = ((value != 0) ^ self.maximize).expand(costs.shape)
        unbounded = torch.full_like(costs, torch.inf)
        yield Box(index, -unbounded, costs.masked_fill(cheap, torch.inf).amin(-1, keepdim=True).expand_as(costs), cheap)
        least = costs.masked_fill(~cheap, -torch.inf).amax(-1, keepdim=True).expand_as(costs)
        yield Box(index, least, unbounded, ~cheap)
