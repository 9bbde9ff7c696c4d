"""Distributions of costs to which numbers are added."""

__all__ = ["shifted_costs"]

from torch import Tensor

from pyro_structured.inference.cost_family import CostFamily
from pyro_structured.inference.independent_costs import NormalCosts, UniformCosts
from pyro_structured.structures.box import Box


def shifted_costs(costs: CostFamily, shift: Tensor) -> CostFamily:
    """The distribution of sums of random costs and constants.

    :param CostFamily costs: The random ones.
    :param Tensor shift: What is added, shape ``(..., P)``.
    """
    if isinstance(costs, NormalCosts):
        return NormalCosts(costs.loc + shift, costs.scale.expand(shift.shape), costs.low + shift, costs.high + shift)
    if isinstance(costs, UniformCosts):
        return UniformCosts(costs.low + shift, costs.high + shift)
    return ShiftedCosts(costs, shift)


class ShiftedCosts(CostFamily):
    """Costs of any other kind: drawn in the box that is shifted back."""

    def __init__(self, costs: CostFamily, shift: Tensor) -> None:
        self._costs, self._shift = costs, shift

    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
        """As without what is added."""
        index = box.index.expand(costs.shape[:-1] + box.index.shape[-1:])
        shift = self._shift.expand(costs.shape).gather(-1, index)
        back = Box(index, box.low - shift, box.high - shift, box.free)
        return self._costs.draw(costs - self._shift, back, uniform) + shift

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """As without what is added."""
        return self._costs.draw_along(costs - self._shift, direction, low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """As without what is added."""
        return self._costs.random_direction(costs)
