"""Problems whose costs are those of pairs."""

__all__ = ["PairProblem"]

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from pyro_structured.optima.structures.problem import Problem


class PairProblem(Problem):
    """Base class of problems with a matrix of costs of pairs of a row and a column, some of them forbidden."""

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

    def _matrices(self, costs: Tensor, batch: torch.Size) -> np.ndarray:
        """Costs to be minimised, one matrix for each row of a batch, infinite for pairs that are forbidden."""
        signed = self._signed(costs).detach().cpu().expand(batch + self.cost_shape)
        matrices = np.asarray(signed.reshape(-1, *self.cost_shape))
        if (matrices == -np.inf).any():
            raise ValueError("costs: expected finite costs, or infinite ones to forbid pairs, got infinite rewards")
        allowed = np.isfinite(matrices)
        is_forbidden = bool((signed.isinf() & self._allowed.cpu()).any())
        if is_forbidden and not self._has_value(allowed, batch).all():
            raise ValueError("costs: expected some value without infinite costs, got infinite costs in all of them")
        return matrices

    def _is_forced(self, counts: Tensor, capacities: Tensor) -> Tensor:
        """Whether there is one value only, booleans of shape ``batch_shape``; there is another as soon as all rows that
        are left have a choice, since a row that has to leave a column for them has one, too.

        :param Tensor counts: Numbers of columns of the rows, shape ``(..., rows)``.
        :param Tensor capacities: Places of the columns, shape ``(..., columns)``.
        """
        allowed = self._allowed.cpu()
        done = torch.zeros_like(allowed[..., 0])
        for _ in range(self.num_rows):
            used = (allowed & done.unsqueeze(-1)).sum(-2)
            allowed = allowed & (done.unsqueeze(-1) | (used < capacities.cpu()).unsqueeze(-2))
            before, done = done, allowed.sum(-1) == counts.cpu()
            if torch.equal(before, done):
                break
        return done.all(-1)

    @abstractmethod
    def _has_value(self, allowed: np.ndarray, batch: torch.Size) -> np.ndarray:
        """Whether some value has only allowed pairs, for each row of a batch."""
