"""State of learners for every row of plates, from step to step."""

__all__ = ["RowState", "row_places"]

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class RowState:
    """Tensors of every row that was seen so far, by names of sites.

    Rows are those of the plates' full sizes; steps that see a part of them read and write that part. A row with another
    observed value than last time is another row, of other data, and has not been seen. Values that a step writes count
    only once they are committed: a step that fails changes nothing.
    """

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}
        self._started: dict[str, Tensor] = {}
        self._observed: dict[str, Tensor] = {}
        self._written: list[tuple[str, tuple[Tensor, ...], torch.Size, Tensor, Tensor]] = []

    def read(
        self, name: str, places: tuple[Tensor, ...], sizes: torch.Size, shape: torch.Size, observed: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Values of some rows, or ``None`` if no row has any, and booleans that tell which of the rows have been seen.

        :param str name: Name of the site.
        :param places: Numbers of the rows along every axis, in shapes that broadcast.
        :param sizes: Sizes of these axes.
        :param shape: Shape of the value of a row.
        :param Tensor observed: Observed values of the rows, with any axes after those of the rows; rows for which they
            have changed count as not seen.
        """
        tail = observed.shape[len(sizes) :]
        if not self._fits(name, sizes, shape, tail):
            return None, torch.zeros(sizes, dtype=torch.bool)[places]
        self._grow(name, sizes)
        same = (self._observed[name][places] == observed).unsqueeze(-1).flatten(len(sizes)).all(-1)
        return self._values[name][places], self._started[name][places] & same

    def write(self, name: str, places: tuple[Tensor, ...], sizes: torch.Size, values: Tensor, observed: Tensor) -> None:
        """Writes values of some rows, whose axes come first, and their observed values, for the next commit."""
        self._written.append((name, places, sizes, values, observed))

    def commit(self) -> None:
        """Keeps all values that were written."""
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
        """Forgets values that were written and not committed."""
        self._written = []

    def _fits(self, name: str, sizes: torch.Size, shape: torch.Size, tail: torch.Size) -> bool:
        """Whether a site has values of rows with as many axes, and of these shapes."""
        if name not in self._values or self._started[name].dim() != len(sizes):
            return False
        shapes = (tensors[name].shape[len(sizes) :] for tensors in (self._values, self._observed))
        return tuple(shapes) == (shape, tail)

    def _grow(self, name: str, sizes: torch.Size) -> None:
        """Makes room for more rows than before."""
        present = self._started[name].shape
        larger = tuple(map(max, present, sizes))
        if larger == present:
            return
        for tensors in (self._values, self._started, self._observed):
            old = tensors[name]
            tensors[name] = old.new_zeros(larger + old.shape[len(present) :])
            tensors[name][tuple(map(slice, present))] = old

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Copies of all values."""
        parts = {"values": self._values, "started": self._started, "observed": self._observed}
        return {key: {name: tensor.clone() for name, tensor in tensors.items()} for key, tensors in parts.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restores the values of a state."""
        self._values, self._started, self._observed = (
            {name: tensor.clone() for name, tensor in state[key].items()} for key in ("values", "started", "observed")
        )


def row_places(node: Any, rows: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], torch.Size]:
    """Numbers of the rows along every axis of a site's batch, in shapes that broadcast, and full sizes of these axes.

    :param node: Node of the site in a trace.
    :param rows: Numbers of the rows of every plate, by its name.
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
