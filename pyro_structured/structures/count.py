"""The number of ones."""

__all__ = ["Count"]

import torch
from torch import Tensor

from pyro_structured.ops.convolution import logsumexp
from pyro_structured.ops.level_sets import complete_counts, log_binomial, normalize
from pyro_structured.structures.argument_checks import check_size
from pyro_structured.structures.statistic import Statistic


class Count(Statistic):
    r"""The number of ones among n binary variables: full exchangeability (Niepert and Domingos 2014, Example A.1).

    :math:`|S_{t,e}| = \binom{\text{free}}{t - \text{ones}}`. Every query costs O(n).

    :param int num_variables: Number of variables n, at least 1. Levels are the counts ``0, ..., n``.
    :raises ValueError: if it is not an integer of at least 1.

    Example::

        >>> Count(3).value(torch.tensor([1, 0, 1]))
        tensor(2)
        >>> Count(3).log_sizes.exp().round()
        tensor([1., 3., 3., 1.], dtype=torch.float64)
    """

    def __init__(self, num_variables: int) -> None:
        check_size("num_variables", num_variables)
        self.num_variables = int(num_variables)
        self.num_levels = self.num_variables + 1

    def value(self, x: Tensor) -> Tensor:
        """Numbers of ones, shape ``(...)``."""
        return (x == 1).sum(-1)

    def log_completions(self, value: Tensor, observed: Tensor) -> Tensor:
        """Binomial coefficients."""
        ones, free = _split(value, observed)
        return log_binomial(free, torch.arange(self.num_levels, device=value.device) - ones, self.num_variables)

    def sample(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Ones at random places that are free."""
        shape = torch.broadcast_shapes(level.shape + (1,), value.shape, observed.shape)
        return self._fill(level, value, observed, torch.rand(shape, dtype=torch.double, device=value.device))

    def complete(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Ones at the first free places."""
        return self._fill(level, value, observed, torch.arange(float(self.num_variables), device=value.device))

    def _fill(self, level: Tensor, value: Tensor, observed: Tensor, keys: Tensor) -> Tensor:
        ones, free = _split(value, observed)
        missing = level.unsqueeze(-1) - ones
        return complete_counts(value, observed, torch.cat(torch.broadcast_tensors(free - missing, missing), -1), keys)

    def log_marginals(self, log_weights: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """The expected shares of ones and zeros among the free places; see :meth:`Statistic.log_marginals`."""
        ones, free = _split(value, observed)
        levels = normalize(log_weights.double() + self.log_completions(value, observed))
        missing = torch.arange(self.num_levels, device=value.device) - ones
        parts = (part.clamp(min=0).double() / free.clamp(min=1) for part in (free - missing, missing))
        share = torch.stack([logsumexp(levels + part.log()) for part in parts], -1)
        fixed = value.unsqueeze(-1) == torch.arange(2, device=value.device)
        return torch.where(observed.unsqueeze(-1), fixed.double().log(), share.unsqueeze(-2))


def _split(value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of ones and of free places, shape ``(..., 1)``."""
    ones = (observed & (value == 1)).sum(-1, keepdim=True)
    free = (~observed).sum(-1, keepdim=True)
    shape = torch.broadcast_shapes(ones.shape, free.shape)
    return ones.expand(shape), free.expand(shape)
