"""State of learners for every row of plates, from step to step."""

__all__ = ["RowState", "row_places", "rows_of_process"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


@dataclass
class _SeenRows:
    """Rows of a site that were seen.

    :ivar Tensor slots: Place of every row of the plates in the other tensors, or -1 for rows that were not seen.
    :ivar Tensor values: Values, one row after the other in the order in which they were seen, with room for more.
    :ivar Tensor observed: Observed values, likewise.
    :ivar int count: Number of places that are taken.
    """

    slots: Tensor
    values: Tensor
    observed: Tensor
    count: int

    def grow(self, sizes: torch.Size) -> None:
        """Makes room in the numbering for larger plates than before."""
        present = self.slots.shape
        larger = tuple(map(max, present, sizes))
        if larger != present:
            old, self.slots = self.slots, self.slots.new_full(larger, -1)
            self.slots[tuple(map(slice, present))] = old

    def places(self, rows: tuple[Tensor, ...]) -> Tensor:
        """Places of some rows, new ones for those that have none."""
        slots = self.slots[rows]
        fresh = slots < 0
        slots[fresh] = torch.arange(self.count, self.count + int(fresh.sum()), dtype=slots.dtype)
        self.count += int(fresh.sum())
        self.slots[rows] = slots
        self.values, self.observed = (self._with_room(tensor) for tensor in (self.values, self.observed))
        # A row that comes twice has one of the two places.
        return self.slots[rows].long()

    def _with_room(self, tensor: Tensor) -> Tensor:
        if len(tensor) >= self.count:
            return tensor
        # Doubling keeps the time for copies proportional to the number of rows.
        larger = tensor.new_zeros(max(self.count, min(2 * len(tensor), self.slots.numel())), *tensor.shape[1:])
        larger[: len(tensor)] = tensor
        return larger


class RowState:
    """Tensors of every row that was seen so far, by names of sites.

    Rows are those of the plates' full sizes; steps that see a part of them read and write that part. A row with another
    observed value than last time is another row, of other data, and has not been seen. Values that a step writes count
    only once they are committed: a step that fails changes nothing. Memory is that of the rows that were seen, and four
    bytes for every row of the plates.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _SeenRows] = {}
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
        if not self._fits(name, sizes, shape, tail) or not self._seen[name].count:
            rows = broadcast_shapes(*(place.shape for place in places))
            return None, torch.zeros(rows, dtype=torch.bool)
        seen = self._seen[name]
        seen.grow(sizes)
        slots = seen.slots[places].long()
        known = slots.clamp(min=0)
        same = (seen.observed[known] == observed).unsqueeze(-1).flatten(len(sizes)).all(-1)
        return seen.values[known], (slots >= 0).to(same.device) & same

    def write(self, name: str, places: tuple[Tensor, ...], sizes: torch.Size, values: Tensor, observed: Tensor) -> None:
        """Writes values of some rows, whose axes come first, and their observed values, for the next commit."""
        self._written.append((name, places, sizes, values, observed))

    def commit(self) -> None:
        """Keeps all values that were written."""
        for name, places, sizes, values, observed in self._written:
            shape, tail = values.shape[len(sizes) :], observed.shape[len(sizes) :]
            if not self._fits(name, sizes, shape, tail):
                slots = torch.full(sizes, -1, dtype=torch.int32)
                self._seen[name] = _SeenRows(slots, values.new_zeros(0, *shape), observed.new_zeros(0, *tail), 0)
            seen = self._seen[name]
            seen.grow(sizes)
            slots = seen.places(places)
            seen.values[slots], seen.observed[slots] = values, observed
        self.discard()

    def discard(self) -> None:
        """Forgets values that were written and not committed."""
        self._written = []

    def belongs_to_no_row(self, name: str) -> bool:
        """Whether nothing was observed of the rows of a site, so that values go on whichever rows come next."""
        return name in self._seen and self._seen[name].observed.dim() == 1

    def _fits(self, name: str, sizes: torch.Size, shape: torch.Size, tail: torch.Size) -> bool:
        """Whether a site has values of rows with as many axes, and of these shapes."""
        if name not in self._seen or self._seen[name].slots.dim() != len(sizes):
            return False
        return (self._seen[name].values.shape[1:], self._seen[name].observed.shape[1:]) == (shape, tail)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """By names of sites, copies of the rows' numbers along every axis, shape ``(S, axes)`` for S rows that were
        seen, of their values and observed values, shape ``(S, ...)``, and of the axes' sizes.
        """
        state = {}
        for name, seen in self._seen.items():
            taken = seen.slots >= 0
            slots = seen.slots[taken].long()
            parts = {"values": seen.values[slots], "observed": seen.observed[slots]}
            state[name] = {"rows": taken.nonzero(), "sizes": torch.tensor(taken.shape, dtype=torch.long), **parts}
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restores the values of a state."""
        self._seen = {}
        for name, part in state.items():
            slots = torch.full(part["sizes"].tolist(), -1, dtype=torch.int32)
            seen = _SeenRows(slots, part["values"].clone(), part["observed"].clone(), 0)
            seen.places(tuple(part["rows"].unbind(-1)))
            self._seen[name] = seen


def rows_of_process(
    states: Sequence[Mapping[str, Mapping[str, Tensor]]], rows: Tensor | None, number: int, rank: int
) -> dict[str, dict[str, Tensor]]:
    """State of the rows that a process has now, from the states of all processes that were.

    :param states: What :meth:`RowState.state_dict` returned in each process.
    :param rows: Numbers of the rows of this process; ``None`` for all.
    :param int number: Number of rows of all processes together. Plates of other sizes are whole in every process.
    :param int rank: Number of the process.
    """
    shared = {}
    for name in dict.fromkeys(name for state in states for name in state):
        parts = [state[name] for state in states if name in state]
        if parts[0]["observed"].dim() == 1:
            # Values that belong to no row.
            shared[name] = dict(parts[rank % len(parts)])
            continue
        joined = {key: torch.cat([part[key] for part in parts]) for key in ("rows", "values", "observed")}
        sizes = torch.stack([part["sizes"] for part in parts]).amax(0)
        axes = (sizes == number).nonzero().flatten()
        if rows is not None and len(axes):
            kept = torch.isin(joined["rows"][:, axes], rows).any(-1)
            joined = {key: tensor[kept] for key, tensor in joined.items()}
        shared[name] = {**joined, "sizes": sizes}
    return shared


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
