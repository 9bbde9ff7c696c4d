"""Tensors that learners keep for every row of plates, from step to step."""

__all__ = ["RowState", "row_places"]

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class RowState:
    """Tensors of every row that was seen so far, by names of sites.

    Rows are those of the plates' full sizes; steps that see a part of them read and write their own. A row with another
    observed value than last time is another row, of other data, and has not been seen. What a step writes counts only
    once it is committed: a step that fails changes nothing.
    """

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}
        self._started: dict[str, Tensor] = {}
        self._observed: dict[str, Tensor] = {}
        self._written: list[tuple[str, tuple[Tensor, ...], torch.Size, Tensor, Tensor]] = []

    def read(
        self, name: str, places: tuple[Tensor, ...], sizes: torch.Size, shape: torch.Size, observed: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Values of some rows, or ``None`` if there are none at all, and which of the rows have been seen.

        :param places: Numbers of the rows along every axis, in shapes that broadcast.
        :param sizes: Sizes of these axes.
        :param shape: Shape of the value of a row.
        :param Tensor observed: Values of the rows, which they had when they were seen, with any axes after theirs.
        """
        tail = observed.shape[len(sizes) :]
        if not self._fits(name, sizes, shape, tail):
            return None, torch.zeros(sizes, dtype=torch.bool)[places]
        self._grow(name, sizes)
        same = (self._observed[name][places] == observed).unsqueeze(-1).flatten(len(sizes)).all(-1)
        return self._values[name][places], self._started[name][places] & same

    def write(self, name: str, places: tuple[Tensor, ...], sizes: torch.Size, values: Tensor, observed: Tensor) -> None:
        """Values of some rows, whose axes come first, and what was observed of them, for the next commit."""
        self._written.append((name, places, sizes, values, observed))

    def commit(self) -> None:
        """Keeps what was written."""
        for name, places, sizes, values, observed in self._written:
            shape, tail = values.shape[len(sizes) :], observed.shape[len(sizes) :]
            if not self._fits(name, sizes, shape, tail):
                self._values[name] = values.new_zeros(sizes + shape)
                self._observed[name] = observed.new_zeros(sizes + tail)
                self._started[name] = torch.zeros(sizes, dtype=torch.bool, device=values.device)
            self._grow(name, sizes)
            self._values[name][places], self._observed[name][places] = values, observed
            self._started[name][places] = True
        self.discard()

    def discard(self) -> None:
        """Forgets what was written and not committed."""
        self._written = []

    def _fits(self, name: str, sizes: torch.Size, shape: torch.Size, tail: torch.Size) -> bool:
        """Whether there are values of rows with as many axes, of these shapes."""
        if name not in self._values or self._started[name].dim() != len(sizes):
            return False
        found = (part[name].shape[len(sizes) :] for part in (self._values, self._observed))
        return tuple(found) == (shape, tail)

    def _grow(self, name: str, sizes: torch.Size) -> None:
        """Makes room for more rows than before."""
        present = self._started[name].shape
        larger = tuple(map(max, present, sizes))
        if larger == present:
            return
        for part in (self._values, self._started, self._observed):
            old = part[name]
            part[name] = old.new_zeros(larger + old.shape[len(present) :])
            part[name][tuple(map(slice, present))] = old

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """All values."""
        parts = {"values": self._values, "started": self._started, "observed": self._observed}
        return {key: {name: each.clone() for name, each in part.items()} for key, part in parts.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Goes back to the values of a state."""
        self._values, self._started, self._observed = (
            {name: each.clone() for name, each in state[key].items()} for key in ("values", "started", "observed")
        )


def row_places(node: Any, rows: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], torch.Size]:
    """Numbers of the rows along every axis of a site's batch, in shapes that broadcast, and how many there are.

    :param node: Node of a trace.
    :param rows: Rows of every plate.
    """
    shape = node["fn"].batch_shape
    plates = {frame.dim: frame for frame in node["cond_indep_stack"] if frame.vectorized}
    places, sizes = [], []
    for axis, size in enumerate(shape):
        frame = plates.get(axis - len(shape))
        # A plate without a size has no numbers of rows.
        counted = frame if frame is not None and frame.full_size >= 0 else None
        index = torch.arange(size) if counted is None else rows[counted.name].cpu()
        places.append(index.reshape(-1, *(1,) * (len(shape) - 1 - axis)))
        sizes.append(size if counted is None else counted.full_size)
    return tuple(places), torch.Size(sizes)
