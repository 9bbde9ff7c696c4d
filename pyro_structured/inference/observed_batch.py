"""What a model observes in a step of learning."""

__all__ = ["ObservedBatch"]

from typing import Any, NamedTuple

from torch import Tensor

from pyro_structured.inference.cost_sites import CostSite


class ObservedBatch(NamedTuple):
    """A run of a model with the present parameters.

    :ivar args: Positional arguments of the model.
    :ivar kwargs: Its keyword arguments.
    :ivar trace: Of the model; costs are drawn from their distributions.
    :ivar sites: Pairs of costs and observed optima.
    :ivar rows: The rows of every plate.
    :ivar bool has_dependents: Whether sites other than the optima depend on costs.
    """

    args: Any
    kwargs: Any
    trace: Any
    sites: list[CostSite]
    rows: dict[str, Tensor]
    has_dependents: bool

    @property
    def others(self) -> dict[str, Tensor]:
        """Values of all latent sites but the costs, and the rows of plates."""
        costs = {site.costs for site in self.sites}
        nodes = self.trace.iter_stochastic_nodes()
        return {name: node["value"].detach() for name, node in nodes if name not in costs} | self.rows
