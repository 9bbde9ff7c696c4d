"""Grids of pixels, each the neighbour of those above, below, on the left and on the right."""

__all__ = ["Grid"]

from functools import cached_property

import torch
from torch import Tensor

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import check_last_axis, check_size
from pyro_structured.foundation.structures.representation import Represented


class Grid(Represented):
    """Pairs of neighbours in a grid of pixels.

    Pixels are numbered row by row. The pairs come in one order everywhere: first those of a pixel and the one below it,
    row by row, then those of a pixel and the one on its right, row by row. Grids are immutable.

    :param int height: Number of rows H, at least 1.
    :param int width: Number of columns W, at least 1.
    :raises ValueError: if a size is not a positive integer.

    Example::

        >>> grid = Grid(2, 3)
        >>> grid.edges.tolist()
        [[0, 3], [1, 4], [2, 5], [0, 1], [1, 2], [3, 4], [4, 5]]
        >>> vertical, horizontal = grid.split(torch.arange(7.0))
        >>> vertical.tolist(), horizontal.tolist()
        ([[0.0, 1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]])
    """

    def __init__(self, height: int, width: int) -> None:
        check_size("height", height)
        check_size("width", width)
        self.height, self.width = height, width

    @property
    def num_pixels(self) -> int:
        """Number of pixels, H·W."""
        return self.height * self.width

    @property
    def num_edges(self) -> int:
        """Number of pairs, E = (H - 1)·W + H·(W - 1)."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> tuple[int, int]:
        return (self.height - 1) * self.width, self.height * (self.width - 1)

    @cached_property
    def edges(self) -> Tensor:
        """Pairs of pixels, shape ``(E, 2)``."""
        pixels = torch.arange(self.num_pixels).reshape(self.height, self.width)
        down = torch.stack([pixels[:-1], pixels[1:]], -1)
        right = torch.stack([pixels[:, :-1], pixels[:, 1:]], -1)
        return torch.cat([down.reshape(-1, 2), right.reshape(-1, 2)])

    def pack(self, vertical: Tensor, horizontal: Tensor) -> Tensor:
        """Numbers of all pairs in one vector.

        :param Tensor vertical: Numbers of pairs one above the other, shape ``(..., H - 1, W)``.
        :param Tensor horizontal: Numbers of pairs side by side, shape ``(..., H, W - 1)``; leading axes broadcast.
        :return: Shape ``(..., E)``.
        """
        wanted = {"vertical": (self.height - 1, self.width), "horizontal": (self.height, self.width - 1)}
        for (name, shape), part in zip(wanted.items(), (vertical, horizontal), strict=True):
            if part.shape[-2:] != shape:
                raise ValueError(f"{name}: expected shape (..., {shape[0]}, {shape[1]}), got {tuple(part.shape)}")
        flat = [part.flatten(-2) for part in (vertical, horizontal)]
        batch = broadcast_shapes(*(part.shape[:-1] for part in flat))
        return torch.cat([part.expand(batch + part.shape[-1:]) for part in flat], -1)

    def split(self, pairwise: Tensor) -> tuple[Tensor, Tensor]:
        """Takes the numbers of all pairs apart, the inverse of :meth:`pack`: views."""
        check_last_axis("pairwise", pairwise, self.num_edges)
        vertical, horizontal = pairwise.split(self._sizes, -1)
        return (
            vertical.unflatten(-1, (self.height - 1, self.width)),
            horizontal.unflatten(-1, (self.height, self.width - 1)),
        )

    def tile(self, patches: Tensor, stride: int = 1) -> Tensor:
        """Patterns that are patches at all places of the grid, which share their weights: convolutional ones.

        :param Tensor patches: Weights, shape ``(..., K, h, w)``, no larger than the grid.
        :param int stride: Pixels from one place to the next, in both directions, at least 1.
        :return: Shape ``(..., K * places, H, W)``, the places of one patch after the other, row by row; zeros outside
            of the patch.

        Example::

            >>> Grid(2, 2).tile(torch.tensor([[[1.0, 2.0]]])).tolist()
            [[[1.0, 2.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 2.0]]]
        """
        check_size("stride", stride)
        height, width = patches.shape[-2:] if patches.dim() > 2 else (0, 0)
        if not (1 <= height <= self.height and 1 <= width <= self.width):
            raise ValueError(
                f"patches: expected shape (..., K, h, w) with h in 1..{self.height} and w in 1..{self.width}, got "
                f"{tuple(patches.shape)}"
            )
        rows, columns = (
            torch.arange(size, device=patches.device)
            - torch.arange(0, size - patch + 1, stride, device=patches.device)[:, None]
            for size, patch in ((self.height, height), (self.width, width))
        )
        inside = ((rows >= 0) & (rows < height))[:, None, :, None] & ((columns >= 0) & (columns < width))[:, None]
        entries = torch.where(inside, rows[:, None, :, None] * width + columns[:, None], height * width)
        padded = torch.nn.functional.pad(patches.flatten(-2), (0, 1))
        return padded[..., entries.flatten(0, 1)].flatten(-4, -3)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and (self.height, self.width) == (other.height, other.width)

    def __hash__(self) -> int:
        return hash((self.height, self.width))

    def __repr__(self) -> str:
        return f"Grid({self.height}, {self.width})"
