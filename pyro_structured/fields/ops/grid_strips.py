"""Grids of which pairs between some lines are cut, so that narrow strips are left, over which exact sums are cheap."""

__all__ = ["GridStrips", "grid_strips", "log_partition_of_strips", "log_partition_of_units"]

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.grid_inference import log_partition_of_grid
from pyro_structured.fields.ops.grid_passes import log_add
from pyro_structured.foundation.ops.log_space import logsumexp


class GridStrips(NamedTuple):
    """Pixels and pairs of all strips, which have one shape, some of whose places may be empty.

    :ivar Tensor pixels: Shape ``(strips, pixels of a strip)``; D where a place is empty.
    :ivar Tensor pairs: Shape ``(strips, pairs of a strip)``; E where an end of a pair is empty.
    :ivar tuple shape: Height and width of a strip.
    :ivar Tensor kept: Whether a pair is inside a strip, shape ``(E,)``.
    :ivar Tensor colour: Colour of each pixel's strip, 0 or 1, different for neighbouring strips, shape ``(D,)``.
    """

    pixels: Tensor
    pairs: Tensor
    shape: tuple[int, int]
    kept: Tensor
    colour: Tensor

    @property
    def whole(self) -> bool:
        """Whether nothing is cut."""
        return len(self.pixels) == 1


@lru_cache(maxsize=32)
def grid_strips(shape: tuple[int, int], width: int, shift: int = 0) -> GridStrips:
    """Strips across the longer side of a grid; a single strip, the grid, if its shorter side is at most their width.

    :param shape: Height and width.
    :param int width: Number of lines of a strip.
    :param int shift: Number of lines by which the first strip is narrower, less than the width.

    Example::

        >>> grid_strips((2, 4), 1).pixels.tolist()
        [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    height, length = shape
    pixels = torch.arange(height * length).reshape(shape)
    down = torch.arange((height - 1) * length).reshape(height - 1, length)
    right = down.numel() + torch.arange(height * (length - 1)).reshape(height, length - 1)
    number = down.numel() + right.numel()
    if length < height:
        pixels, down, right, height, length = pixels.T, right.T, down.T, length, height
    if height <= width:
        width, shift = length, 0
    padded, along, across = (
        torch.nn.functional.pad(part, (width, width), value=empty)
        for part, empty in ((pixels, pixels.numel()), (down, number), (right, number))
    )
    starts = range(width - shift, width + length, width)
    places = torch.stack([padded[:, start : start + width].flatten() for start in starts])
    pairs = [
        torch.cat([along[:, start : start + width].flatten(), across[:, start : start + width - 1].flatten()])
        for start in starts
    ]
    kept = torch.zeros(number + 1, dtype=torch.bool)
    kept[torch.stack(pairs)] = True
    colour = torch.zeros(pixels.numel() + 1, dtype=torch.long)
    colour[places[1::2]] = 1
    return GridStrips(places, torch.stack(pairs), (height, width), kept[:-1], colour[:-1])


def log_partition_of_strips(states: Tensor, penalties: Tensor, strips: GridStrips) -> Tensor:
    """Log Z of fields without the penalties of pairs between strips, shape ``(rows,)``, differentiable.

    :param Tensor states: Log-weights of label 0 of all pixels, then those of 1, and so on, shape ``(rows, K D)``.
    :param Tensor penalties: Shape ``(rows, E)`` or ``(1, E)``; without columns if there are none.
    """
    by_label = states.chunk(states.shape[-1] // strips.colour.numel(), -1)
    if not penalties.shape[-1]:
        return (log_add(*by_label) if len(by_label) == 2 else logsumexp(torch.stack(by_label), 0)).sum(-1)
    if strips.whole:
        places, pairs = strips.pixels[0].to(states.device), strips.pairs[0].to(states.device)
        ordered = torch.cat([label[:, places] for label in by_label], -1)
        return log_partition_of_grid(ordered, penalties[:, pairs], strips.shape)
    # Places without a pixel have label 0.
    places = strips.pixels.to(states.device)
    filled = [
        torch.nn.functional.pad(label, (0, 1), value=-torch.inf if number else 0.0)[:, places]
        for number, label in enumerate(by_label)
    ]
    strip_penalties = torch.nn.functional.pad(penalties, (0, 1))[:, strips.pairs.to(states.device)].expand(
        len(states), -1, -1
    )
    log_z = log_partition_of_grid(torch.cat(filled, -1).flatten(0, 1), strip_penalties.flatten(0, 1), strips.shape)
    return log_z.reshape(filled[0].shape[:2]).sum(-1)


def log_partition_of_units(
    states: Tensor, penalties: Tensor, weights: Tensor, log_weights: Tensor, shares: Tensor, strips: GridStrips
) -> Tensor:
    """Log Z of fields under hidden units, without the penalties of pairs between strips, shape ``(rows,)``,
    differentiable.

    :param Tensor states: Log-weights of the labels, shape ``(rows, K D)``.
    :param Tensor penalties: Shape ``(rows, E)`` or ``(1, E)``; without columns if there are none.
    :param Tensor weights: Weights of the patterns for the last n labels, shape ``(rows, m, n D)``.
    :param Tensor log_weights: Log-weights of the S states of the hidden units, shape ``(rows, S)``.
    :param Tensor shares: States of the hidden units, from 0 to 1, shape ``(S, m)``.
    """
    if not shares.shape[1]:
        return log_partition_of_strips(states, penalties, strips) + log_weights.sum(-1)
    tilts = torch.nn.functional.pad(shares @ weights, (states.shape[-1] - weights.shape[-1], 0))
    fields = (states.unsqueeze(1) + tilts).flatten(0, 1)
    repeated = penalties if len(penalties) == 1 else penalties.repeat_interleave(len(shares), 0)
    log_z = log_partition_of_strips(fields, repeated, strips).reshape(len(states), len(shares))
    return logsumexp(log_z + log_weights, -1)
