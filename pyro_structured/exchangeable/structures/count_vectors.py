"""What statistics that count the variables in every category have in common."""

__all__ = ["CountVectors"]

from abc import abstractmethod

import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.level_sets import complete_counts, normalize
from pyro_structured.exchangeable.structures.statistic import Statistic
from pyro_structured.foundation.ops.log_space import logsumexp


class CountVectors(Statistic):
    """A statistic that tells how many variables are in every category, and nothing else: full exchangeability.

    :ivar Tensor counts: Count vectors of all levels, integers of shape ``(num_levels, num_categories)``.
    """

    counts: Tensor

    @abstractmethod
    def _log_ways(self, free: Tensor, missing: Tensor) -> Tensor:
        """Logarithms of the numbers of ways to fill the free places; arguments as :meth:`_missing` returns them."""

    def log_completions(self, value: Tensor, observed: Tensor) -> Tensor:
        """Binomial or multinomial coefficients; see :meth:`Statistic.log_completions`."""
        missing, free = self._missing(value, observed)
        return self._log_ways(free, missing)

    def sample(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Categories at random places that are free; see :meth:`Statistic.sample`."""
        shape = torch.broadcast_shapes(level.shape + (1,), value.shape, observed.shape)
        return self._fill(level, value, observed, torch.rand(shape, dtype=torch.double, device=value.device))

    def complete(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """The last category at the first free places, and so on; see :meth:`Statistic.complete`."""
        return self._fill(level, value, observed, torch.arange(float(self.num_variables), device=value.device))

    def _fill(self, level: Tensor, value: Tensor, observed: Tensor, keys: Tensor) -> Tensor:
        # Indices without axes would be made Python numbers, which function transforms refuse.
        missing = self.counts.to(value.device)[level.unsqueeze(-1)].squeeze(-2) - self._count(value, observed)
        return complete_counts(value, observed, missing, keys)

    def log_marginals(self, log_weights: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """The expected shares of the categories among the free places; see :meth:`Statistic.log_marginals`."""
        missing, free = self._missing(value, observed)
        levels = normalize(log_weights.double() + self._log_ways(free, missing))
        part = missing.clamp(min=0).double() / free.clamp(min=1).unsqueeze(-1)
        share = logsumexp(levels.unsqueeze(-1) + part.log(), -2)
        fixed = value.unsqueeze(-1) == torch.arange(self.num_categories, device=value.device)
        return torch.where(observed.unsqueeze(-1), fixed.double().log(), share.unsqueeze(-2))

    def _missing(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Places that every level needs beside the observed ones, shape ``(..., levels, categories)``, and the number
        of free ones, shape ``(..., 1)``.
        """
        missing = self.counts.to(value.device) - self._count(value, observed).unsqueeze(-2)
        return missing, (~observed).sum(-1, keepdim=True)

    def _count(self, value: Tensor, observed: Tensor) -> Tensor:
        """Observed places of every category, shape ``(..., categories)``."""
        categories = torch.arange(self.num_categories, device=value.device)
        return (observed.unsqueeze(-1) & (value.unsqueeze(-1) == categories)).sum(-2)
