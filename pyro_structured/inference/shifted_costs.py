"""Conditional distributions of costs to which numbers are added."""

__all__ = ["ShiftedCosts"]

from torch import Tensor

from pyro_structured.inference.cost_conditionals import CostConditionals
from pyro_structured.structures.box import Box


class ShiftedCosts(CostConditionals):
    """Costs that are sums of random costs and constants.

    :param CostConditionals costs: The random ones.
    :param Tensor shift: What is added, shape ``(..., P)``.
    """

    def __init__(self, costs: CostConditionals, shift: Tensor) -> None:
        self._costs, self._shift = costs, shift

    def truncated_normal(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """With locations and bounds that are shifted."""
        found = self._costs.truncated_normal()
        if found is None:
            return None
        loc, scale, low, high = (each.expand(self._shift.shape) for each in found)
        return loc + self._shift, scale, low + self._shift, high + self._shift

    def draw(self, costs: Tensor, box: Box) -> Tensor:
        """Those of a box that is shifted back."""
        index = box.index.expand(*costs.shape[:-1], box.index.shape[-1])
        shift = self._shift.expand(costs.shape).gather(-1, index)
        return self._costs.draw(costs - self._shift, Box(index, box.low - shift, box.high - shift, box.free)) + shift

    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """As without what is added."""
        return self._costs.draw_along(costs - self._shift, direction, low, high)

    def random_direction(self, costs: Tensor) -> Tensor:
        """As without what is added."""
        return self._costs.random_direction(costs)
