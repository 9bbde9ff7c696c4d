"""Sets of costs that keep an optimum optimal."""

__all__ = ["Box"]

from dataclasses import dataclass

from torch import Tensor

from pyro_structured.foundation.structures.representation import Represented


@dataclass(frozen=True, repr=False)
class Box(Represented):
    """Entries of the costs that may vary, each between its own bounds, while all other entries stay as they are.

    A box is exactly the restriction of a value's inverse set to these entries: inside, the value is optimal; outside,
    it is not. Bounds may be infinite.

    :param Tensor index: Places of the entries in the flattened costs, integers of shape ``(..., b)``, where the leading
        axes broadcast with those of the costs.
    :param Tensor low: Lower bounds, shape ``(..., b)``.
    :param Tensor high: Upper bounds, at least the lower ones, shape ``(..., b)``.
    :param Tensor free: Booleans of the same shape: entries where it is False are not part of the box. ``None``: all
        are.
    """

    index: Tensor
    low: Tensor
    high: Tensor
    free: Tensor | None = None
