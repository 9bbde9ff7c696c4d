"""Where along a line through the parameters the locations of costs are linear."""

__all__ = ["StraightLocations"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_structured.optima.inference.collapsed_move import normal_parameters
from pyro_structured.optima.inference.parameter_line import ParameterLine, Setting

# Deviation from a straight line that rounding explains, relative to the change.
STRAIGHT = {torch.float32: 1e-4, torch.float64: 1e-9}


class StraightLocations:
    """Where normal costs have locations on the straight line between those at two places, and the scales there.

    Moves inside this set, between two places that do not depend on where the move starts, are reversible: from all its
    points, the set is the same. Where links are curved, it is next to nothing; where they have kinks, a part of the
    line.

    :param float low: A place on the line.
    :param float high: A larger one.
    :ivar dict changes: Of the locations, for each unit of distance.
    """

    def __init__(self, setting: Setting, line: ParameterLine, low: float, high: float) -> None:
        self._dtypes, self._low = setting.dtypes, low
        first, last = line.at(low), line.at(high)
        self._start = {name: normal_parameters(first.base(name)) for name in line.origin}
        self.changes: dict[str, Tensor] = {}
        for name, (start, _) in self._start.items():
            self.changes[name] = (normal_parameters(last.base(name))[0] - start) / (high - low)

    def contains(self, distance: float, base: Callable[[str], Any]) -> bool:
        """Whether a place of the line belongs to the set.

        :param base: From the name of a cost site to the distribution of its costs there.
        """
        for name, change in self.changes.items():
            (start, start_scale), (loc, scale) = self._start[name], normal_parameters(base(name))
            is_double = self._dtypes[name] == torch.float64
            tolerance = STRAIGHT[torch.float64 if is_double else torch.float32]
            deviation = (start + (distance - self._low) * change - loc).abs().max()
            same_scale = torch.allclose(scale, start_scale, rtol=tolerance, atol=0.0)
            if not same_scale or not deviation <= tolerance * change.abs().max():
                return False
        return True
