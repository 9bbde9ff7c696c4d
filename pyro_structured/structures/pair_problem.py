"""Problems whose costs are those of pairs."""

__all__ = ["PairProblem"]

import torch
from torch import Tensor

from pyro_structured.structures.problem import Problem


class PairProblem(Problem):
    """What problems share whose costs are a matrix, one for each pair of a row and a column, some of them forbidden."""

    _allowed: Tensor

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.cost_shape[0]

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return self.cost_shape[1]

    @property
    def allowed(self) -> Tensor:
        """Pairs that may be chosen, booleans of shape ``batch_shape + cost_shape``."""
        return self._allowed

    def _relevant(self, costs: Tensor) -> Tensor:
        allowed, costs = self._allowed.to(costs.device), costs.double()
        return costs.where(allowed, costs.masked_fill(~allowed, torch.inf).amin((-2, -1), keepdim=True))

    def _signed(self, costs: Tensor) -> Tensor:
        """Costs to be minimised, infinite for pairs that are not allowed."""
        return (costs.double() * self._sign).masked_fill(~self._allowed.to(costs.device), torch.inf)
