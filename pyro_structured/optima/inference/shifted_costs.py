"""Distributions of costs to which numbers are added."""

__all__ = ["ShiftedCosts"]

from torch import Tensor

from pyro_structured.optima.inference.cost_family import CostFamily
from pyro_structured.optima.structures.box import Box


class ShiftedCosts(CostFamily):
    """The distribution of sums of random costs and constants: drawn in the box that is shifted back.

    :param CostFamily costs: The random ones.
    :param Tensor shift: What is added, shape ``(..., P)``.
    """

    def __init__(self, costs: CostFamily, shift: Tensor) -> None:
        self.costs, self.shift = costs, shift

    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
        """As without what is added."""
        index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
        shift = self.shift.expand(costs.shape).gather(-1, index)
        back = Box(index, box.low - shift, box.high - shift, box.free)
        return self.costs.draw(costs - self.shift, back, uniform) + shift

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """As without what is added."""
        return self.costs.draw_along(costs - self.shift, direction, low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """As without what is added."""
        return self.costs.random_direction(costs)
