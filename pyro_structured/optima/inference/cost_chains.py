"""Costs of all rows of plates, from step to step."""

__all__ = ["CostChains"]

import torch
from torch import Tensor

from pyro_structured.foundation.inference.row_state import RowState, row_places
from pyro_structured.optima.inference.cost_batch import CostBatch
from pyro_structured.optima.inference.cost_start import check_feasible, feasible_costs
from pyro_structured.optima.inference.observed_optima import observed_optima


class CostChains(RowState):
    """The present costs of every row that was seen so far, in double precision.

    A row whose observed optimum is another one than before starts anew, as costs have to be in its inverse set.
    """

    def read_costs(self, batch: CostBatch) -> dict[str, Tensor]:
        """Costs inside the inverse sets of the batch's rows: where they were last, or new ones.

        :raises ValueError: if an observed optimum is infeasible.
        """
        found = {}
        for site in batch.sites:
            places, sizes = row_places(batch.trace.nodes[site.costs], batch.rows)
            observed = _observed(batch, site.costs)
            shape = batch.trace.nodes[site.costs]["value"].shape[len(sizes) :]
            last, started = self.read(site.costs, places, sizes, shape, observed)
            if last is not None and bool(started.all()):
                check_feasible(site, batch.trace, places)
                found[site.costs] = last
                continue
            new = feasible_costs(site, batch.trace, places)
            if last is not None:
                rows = started.reshape(started.shape + (1,) * (new.dim() - started.dim()))
                new = torch.where(rows, last, new)
            found[site.costs] = new
        return found

    def write_costs(self, batch: CostBatch, costs: dict[str, Tensor]) -> None:
        """Keeps costs of the batch's rows."""
        for site in batch.sites:
            places, sizes = row_places(batch.trace.nodes[site.costs], batch.rows)
            self.write(site.costs, places, sizes, costs[site.costs], _observed(batch, site.costs))


def _observed(batch: CostBatch, costs: str) -> Tensor:
    """The observed optima of costs, for every row of theirs."""
    problem, value = observed_optima(batch.trace, costs)
    drawn = batch.trace.nodes[costs]["value"]
    rows = drawn.shape[: drawn.dim() - len(problem.cost_shape)]
    return value.expand(rows + value.shape[value.dim() - len(problem.event_shape) :])
