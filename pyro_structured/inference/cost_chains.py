"""Costs of all rows of plates, from step to step."""

__all__ = ["CostChains", "row_places"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.inference.cost_sites import CostSite
from pyro_structured.inference.cost_start import check_feasible, feasible_costs
from pyro_structured.inference.observed_batch import ObservedBatch


class CostChains:
    """The present costs of every row that was seen so far, in double precision.

    Rows are those of the plates' full sizes; steps that see a part of them read and write their own.
    """

    def __init__(self) -> None:
        self._costs: dict[str, Tensor] = {}
        self._started: dict[str, Tensor] = {}

    def read(self, batch: ObservedBatch) -> dict[str, Tensor]:
        """Costs inside the inverse sets of the batch's rows: where they were last, or new ones.

        :raises ValueError: if an observed optimum is infeasible.
        """
        found = {}
        for site in batch.sites:
            places, _ = row_places(batch, site)
            started = self._started[site.costs][places] if site.costs in self._costs else None
            if started is not None and bool(started.all()):
                check_feasible(site, batch.trace, places)
                found[site.costs] = self._costs[site.costs][places]
                continue
            new = feasible_costs(site, batch.trace, places)
            if started is not None:
                rows = started.reshape(started.shape + (1,) * (new.dim() - started.dim()))
                new = torch.where(rows, self._costs[site.costs][places], new)
            found[site.costs] = new
        return found

    def write(self, batch: ObservedBatch, costs: dict[str, Tensor]) -> None:
        """Keeps costs of the batch's rows."""
        for site in batch.sites:
            (places, sizes), found = row_places(batch, site), costs[site.costs]
            if site.costs not in self._costs:
                self._costs[site.costs] = found.new_zeros(sizes + found.shape[len(sizes) :])
                self._started[site.costs] = torch.zeros(sizes, dtype=torch.bool, device=found.device)
            self._costs[site.costs][places] = found
            self._started[site.costs][places] = True

    def state_dict(self) -> dict[str, Any]:
        """All costs."""
        return {
            name: {key: tensor.clone() for key, tensor in tensors.items()}
            for name, tensors in (("costs", self._costs), ("started", self._started))
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to the costs of a state."""
        self._costs, self._started = (
            {key: tensor.clone() for key, tensor in state[name].items()} for name in ("costs", "started")
        )


def row_places(batch: ObservedBatch, site: CostSite) -> tuple[tuple[Tensor, ...], torch.Size]:
    """Numbers of the rows along every axis of the costs' batch, in shapes that broadcast, and how many there are."""
    node = batch.trace.nodes[site.costs]
    shape = node["fn"].batch_shape
    plates = {frame.dim: frame for frame in node["cond_indep_stack"] if frame.vectorized}
    places, sizes = [], []
    for axis, size in enumerate(shape):
        frame = plates.get(axis - len(shape))
        index = torch.arange(size) if frame is None else batch.rows[frame.name]
        places.append(index.reshape(-1, *(1,) * (len(shape) - 1 - axis)))
        sizes.append(size if frame is None else frame.full_size)
    return tuple(places), torch.Size(sizes)
