"""The number of ones."""

__all__ = ["Count"]

import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.level_sets import log_binomial
from pyro_structured.exchangeable.structures.count_vectors import CountVectors
from pyro_structured.foundation.structures.argument_checks import check_size


class Count(CountVectors):
    r"""The number of ones among n binary variables: full exchangeability (Niepert and Domingos 2014, Example A.1).

    :math:`|S_{t,e}| = \binom{\text{free}}{t - \text{ones}}`. Every query costs O(n).
    :attr:`counts` lists the numbers of zeros and of ones of all levels.

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
        ones = torch.arange(self.num_levels)
        self.counts = torch.stack([self.num_variables - ones, ones], -1)

    def value(self, x: Tensor) -> Tensor:
        """Numbers of ones, shape ``(...)``."""
        return (x == 1).sum(-1)

    def _log_ways(self, free: Tensor, missing: Tensor) -> Tensor:
        return log_binomial(free, missing[..., 1], self.num_variables)
