"""Conditional distributions of costs in boxes and along lines."""

__all__ = ["CostFamily", "line_between"]

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_structured.optima.ops.slice_sampling import slice_sample
from pyro_structured.optima.structures.box import Box


class CostFamily(ABC):
    """The distribution of costs, flattened to shape ``(..., P)`` in double precision, one box or line at a time; on the
    processor, where solvers are.

    :ivar int num_stuck: Updates that left an entry where it was, because a search was given up.
    :ivar Tensor low: Lower bounds of the costs, or -inf.
    :ivar Tensor high: Upper bounds of the costs, or +inf.
    """

    num_stuck = 0
    low, high = torch.tensor(-torch.inf), torch.tensor(torch.inf)

    @abstractmethod
    def draw(self, costs: Tensor, box: Box, uniform: Tensor) -> Tensor:
        """New entries for a box, given all other entries; shape ``(..., b)``. Entries that are not free stay.

        :param Tensor uniform: Uniform variables, one for every cost, shape ``(..., P)``, to draw by inversion: the draw
            of a cost inverts its own variable, in whatever order costs are drawn.
        """

    @abstractmethod
    def draw_along(self, costs: Tensor, direction: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Distances drawn along a direction, between two bounds; all of shape ``(...)``."""

    @abstractmethod
    def random_direction(self, costs: Tensor) -> Tensor:
        """A direction drawn at random, of the costs' shape, independent of the costs."""

    def slice_along(
        self, log_density: Callable[[Tensor], Tensor], costs: Tensor, direction: Tensor, low: Tensor, high: Tensor
    ) -> Tensor:
        """Distances drawn by slice sampling, shape ``(...)``, between bounds within which all costs are possible."""

        def of_distances(distance: Tensor) -> Tensor:
            return log_density(costs + distance.unsqueeze(-1) * direction)

        zero = torch.zeros_like(low)
        distances, stuck = slice_sample(of_distances, zero, low.clamp(max=0), high.clamp(min=0), torch.ones_like(low))
        self.num_stuck += int(stuck.sum())
        return distances


def line_between(
    costs: Tensor, direction: Tensor, least: Tensor, most: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Ends of the part of a line from ``low`` to ``high`` on which all costs are between their bounds, too."""
    ends = [((bound - costs) / direction).masked_fill(direction == 0, torch.inf) for bound in (least, most)]
    upper = torch.maximum(*ends)
    lower = torch.minimum(*(end.masked_fill(direction == 0, -torch.inf) for end in ends))
    low, high = torch.maximum(low, lower.amax(-1)), torch.minimum(high, upper.amin(-1))
    return low, torch.maximum(low, high)
