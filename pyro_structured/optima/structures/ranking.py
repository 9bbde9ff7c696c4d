"""Rankings of items by their costs."""

__all__ = ["Ranking"]

from collections.abc import Iterator

import torch
from torch import Tensor

from pyro_structured.foundation.structures.argument_checks import check_flag, check_size
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.injection import Injection
from pyro_structured.optima.structures.problem import Problem


class Ranking(Problem):
    r"""The order of n items from the cheapest to the dearest.

    .. math::
        F(w) = \arg\min_y \sum_{p=0}^{n-1} (n - 1 - p) \, w_{y_p}, \qquad y_p \ne y_q.

    A value is the item at every place, a permutation of integers of shape ``(..., num_items)``, as ``argsort`` returns.
    With ``maximize`` the dearest item comes first.

    :param int num_items: Number of items n, at least 1.
    :param bool maximize: Whether the costs are rewards.

    :meth:`solve` and all else take at most O(n log n), on the device of the arguments. The restrictions
    of the inverse set are closed-form: every cost lies between those of its neighbours.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Equation 4. That the
    sorted order is optimal is the rearrangement inequality.

    Example::

        >>> Ranking(3).solve(torch.tensor([2.0, 7.0, -1.0]))
        tensor([2, 0, 1])
        >>> Ranking(3).feasible_point(torch.tensor([2, 0, 1]), low=-1, high=1)
        tensor([ 0.,  1., -1.], dtype=torch.float64)
    """

    def __init__(self, num_items: int, maximize: bool = False) -> None:
        check_size("num_items", num_items)
        self.cost_shape = self.event_shape = torch.Size([num_items])
        check_flag("maximize", maximize)
        self.maximize = maximize

    @property
    def num_items(self) -> int:
        """Number of items."""
        return self.cost_shape[0]

    @property
    def support(self) -> Injection:
        """Permutations."""
        return Injection(self.num_items, self.num_items)

    def solve(self, costs: Tensor) -> Tensor:
        """The items in order, shape ``(..., num_items)``; items that cost the same in the order of their numbers."""
        batch = self._checked_batch(costs)
        return costs.expand(batch + self.cost_shape).argsort(dim=-1, descending=self.maximize, stable=True)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether every item has one place."""
        batch = self._batch(value=value)
        return self.support.check(value).expand(batch)

    def feasible_values(self) -> Tensor | None:
        """All permutations, if there are few."""
        return self.support.enumerate_values()

    @property
    def has_one_value(self) -> Tensor:
        """Whether there is only one item."""
        return torch.tensor(self.num_items == 1)

    def incidence(self, value: Tensor) -> Tensor:
        """Number of places behind each item, shape ``(..., num_items)``."""
        return (self.num_items - 1 - value.argsort(-1)).double()

    def feasible_point(self, value: Tensor, low: Tensor | float = 0.0, high: Tensor | float = 1.0) -> Tensor:
        """Costs between two bounds that are as far apart as possible: equally spaced if all have the same bounds.

        If these costs are not in the inverse set, then none between the bounds are.

        :param low: Least costs, a number or a tensor that broadcasts with the costs.
        :param high: Largest costs.
        :return: Shape ``(..., num_items)``, in double precision.
        """
        cheap, dear = (torch.as_tensor(bound, dtype=torch.double, device=value.device) for bound in (low, high))
        ascending, cheap, dear = torch.broadcast_tensors(self._ascending(value), cheap, dear)
        places = ascending.argsort(-1)
        cheap, dear = cheap.gather(-1, ascending), dear.gather(-1, ascending)
        # The least and the largest costs in this order, and costs that go from the ones to the others.
        least, largest = cheap.cummax(-1).values, dear.flip(-1).cummin(-1).values.flip(-1)
        share = torch.linspace(0, 1, self.num_items, dtype=torch.double, device=value.device)
        # Where there are none in this order, the bounds are kept and the order is not.
        spaced: Tensor = (least + share * (largest - least)).clamp(cheap, dear)
        return spaced.gather(-1, places)

    def second_best(self, costs: Tensor, value: Tensor) -> Tensor:
        """The best ranking, or, if that is the value, the one in which two neighbours have changed places."""
        batch = self._batch(costs, value)
        costs, value = costs.expand(batch + self.cost_shape), value.expand(batch + self.event_shape)
        if self.num_items == 1:
            raise ValueError("value: expected values beside which others are feasible, got some alone")
        gaps = costs.gather(-1, value.long()).diff(dim=-1).abs()
        first = gaps.argmin(-1, keepdim=True)
        places = torch.arange(self.num_items, device=value.device).expand(value.shape)
        swapped = torch.where(places == first, places + 1, torch.where(places == first + 1, places - 1, places))
        best = self.solve(costs).to(value.dtype)
        is_best = (best == value).all(-1, keepdim=True)
        return torch.where(is_best, value.gather(-1, swapped), best)

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """Two boxes: the items at even places from the cheapest on, and then those at odd places."""
        ascending = self._ascending(value).expand(costs.shape)
        end = torch.full_like(costs[..., :1], torch.inf)
        for start in range(min(2, self.num_items)):
            ordered = torch.cat([-end, costs.gather(-1, ascending), end], -1)
            low, high = ordered[..., start:-2:2], ordered[..., start + 2 :: 2]
            yield Box(ascending[..., start::2], low, high)

    def _ascending(self, value: Tensor) -> Tensor:
        """The items from the cheapest to the dearest."""
        return value.flip(-1).long() if self.maximize else value.long()
