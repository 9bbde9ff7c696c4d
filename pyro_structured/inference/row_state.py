"""What learners know of every row of plates, from step to step."""

__all__ = ["RowState", "row_places"]

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class RowState:
    """Tensors of every row that was seen so far, by names of sites.

    Rows are those of the plates' full sizes; steps that see a part of them read and write their own.
    """

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}
        self._started: dict[str, Tensor] = {}

    def read(self, name: str, places: tuple[Tensor, ...], sizes: torch.Size) -> tuple[Tensor | None, Tensor]:
        """Values of some rows, or ``None`` if there are none at all, and which of the rows have been seen."""
        if name not in self._values:
            return None, torch.zeros(sizes, dtype=torch.bool)[places]
        self._grow(name, sizes)
        return self._values[name][places], self._started[name][places]

    def write(self, name: str, places: tuple[Tensor, ...], sizes: torch.Size, values: Tensor) -> None:
        """Keeps values of some rows, whose axes come first."""
        if name not in self._values:
            self._values[name] = values.new_zeros(sizes + values.shape[len(sizes) :])
            self._started[name] = torch.zeros(sizes, dtype=torch.bool, device=values.device)
        self._grow(name, sizes)
        self._values[name][places] = values
        self._started[name][places] = True

    def _grow(self, name: str, sizes: torch.Size) -> None:
        """Makes room for more rows than before."""
        present = self._started[name].shape
        larger = tuple(map(max, present, sizes))
        if larger == present:
            return
        for part in (self._values, self._started):
            old = part[name]
            part[name] = old.new_zeros(larger + old.shape[len(present) :])
            part[name][tuple(map(slice, present))] = old

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """All values."""
        parts = {"values": self._values, "started": self._started}
        return {key: {name: each.clone() for name, each in part.items()} for key, part in parts.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Goes back to the values of a state."""
        self._values, self._started = (
            {name: each.clone() for name, each in state[key].items()} for key in ("values", "started")
        )


def row_places(node: Any, rows: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], torch.Size]:
    """Numbers of the rows along every axis of a site's batch, in shapes that broadcast, and how many there are.

    :param node: Of a trace.
    :param rows: Those of every plate.
    """
    shape = node["fn"].batch_shape
    plates = {frame.dim: frame for frame in node["cond_indep_stack"] if frame.vectorized}
    places, sizes = [], []
    for axis, size in enumerate(shape):
        frame = plates.get(axis - len(shape))
        index = torch.arange(size) if frame is None else rows[frame.name]
        places.append(index.reshape(-1, *(1,) * (len(shape) - 1 - axis)))
        sizes.append(size if frame is None else frame.full_size)
    return tuple(places), torch.Size(sizes)
