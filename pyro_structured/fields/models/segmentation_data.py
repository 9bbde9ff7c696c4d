"""Pictures as a segmentation model sees them."""

__all__ = ["SegmentationData"]

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.structures.grid import Grid


class SegmentationData(NamedTuple):
    """What is known of N pictures; all in single precision.

    :ivar Tensor odds: Log-odds of the pixels by themselves, shape ``(N, H, W)``.
    :ivar Tensor edges: Numbers of at least 0 that penalties of unequal neighbours are made of, shape ``(N, E, K)``.
    :ivar Tensor masks: Zeros and ones, shape ``(N, H, W)``.
    """

    odds: Tensor
    edges: Tensor
    masks: Tensor

    def shifted(self, rows: Tensor, farthest: int) -> "SegmentationData":
        """Some pictures, each moved by a random number of pixels down and across; what is at the border is repeated.

        :param Tensor rows: Their numbers.
        :param int farthest: The largest number of pixels.
        """
        grid = Grid(*self.odds.shape[1:])
        down, across = torch.randint(-farthest, farthest + 1, (2, len(rows)))

        def moved(pictures: Tensor) -> Tensor:
            height, width = pictures.shape[1:3]
            y = (torch.arange(height) + down.unsqueeze(-1)).clamp(0, height - 1)
            x = (torch.arange(width) + across.unsqueeze(-1)).clamp(0, width - 1)
            return pictures[rows[:, None, None], y.unsqueeze(-1), x.unsqueeze(-2)]

        vertical, horizontal = (part.movedim(1, -1) for part in grid.split(self.edges.mT))
        edges = grid.pack(*(moved(part).movedim(-1, 1) for part in (vertical, horizontal)))
        return SegmentationData(moved(self.odds), edges.mT, moved(self.masks))
