"""What a model of latent costs observes in a step of learning."""

__all__ = ["CostBatch"]

from dataclasses import dataclass

from torch import Tensor

from pyro_structured.foundation.inference.learner import ObservedBatch
from pyro_structured.optima.inference.cost_sites import CostSite


@dataclass(frozen=True)
class CostBatch(ObservedBatch):
    """A run of a model with the present parameters, in which costs are drawn from their distributions.

    :ivar sites: Pairs of costs and observed optima.
    :ivar bool has_dependents: Whether sites other than the optima depend on costs.
    """

    sites: list[CostSite]
    has_dependents: bool

    @property
    def others(self) -> dict[str, Tensor]:
        """Values of all latent sites but the costs, and the rows of plates."""
        costs = {site.costs for site in self.sites}
        nodes = self.trace.iter_stochastic_nodes()
        return {name: node["value"].detach() for name, node in nodes if name not in costs} | self.rows
