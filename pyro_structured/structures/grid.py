"""Grids of pixels, each the neighbour of those above, below, on the left and on the right."""

__all__ = ["Grid"]

from functools import cached_property

import torch
from torch import Tensor

from pyro_structured.structures.argument_checks import check_last_axis, check_size


class Grid:
    """The pairs of neighbours in a grid of pixels.

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
        """One number for each pair.

        :param Tensor vertical: Numbers of pairs one above the other, shape ``(..., H - 1, W)``.
        :param Tensor horizontal: Numbers of pairs side by side, shape ``(..., H, W - 1)``; leading axes broadcast.
        :return: Shape ``(..., E)``.
        """
        wanted = {"vertical": (self.height - 1, self.width), "horizontal": (self.height, self.width - 1)}
        for (name, shape), part in zip(wanted.items(), (vertical, horizontal), strict=True):
            if part.shape[-2:] != shape:
                raise ValueError(f"{name}: expected shape (..., {shape[0]}, {shape[1]}), got {tuple(part.shape)}")
        flat = [part.flatten(-2) for part in (vertical, horizontal)]
        batch = torch.broadcast_shapes(*(part.shape[:-1] for part in flat))
        return torch.cat([part.expand(batch + part.shape[-1:]) for part in flat], -1)

    def split(self, pairwise: Tensor) -> tuple[Tensor, Tensor]:
        """Takes the numbers of all pairs apart, the inverse of :meth:`pack`: views."""
        check_last_axis("pairwise", pairwise, self.num_edges)
        vertical, horizontal = pairwise.split(self._sizes, -1)
        return (
            vertical.unflatten(-1, (self.height - 1, self.width)),
            horizontal.unflatten(-1, (self.height, self.width - 1)),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and (self.height, self.width) == (other.height, other.width)

    def __hash__(self) -> int:
        return hash((self.height, self.width))

    def __repr__(self) -> str:
        return f"Grid({self.height}, {self.width})"
