"""Numbers of variables in every category."""

__all__ = ["CategoryCounts"]

import math
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.level_sets import log_multinomial
from pyro_structured.exchangeable.structures.count_vectors import CountVectors
from pyro_structured.foundation.structures.argument_checks import check_levels, check_size


class CategoryCounts(CountVectors):
    r"""How many of n variables are in each of r categories: full exchangeability of categorical variables.

    :math:`|S_{t,e}| = (\text{free})! / \prod_c (t_c - \text{observed}_c)!`. There are :math:`\binom{n + r - 1}{r - 1}`
    levels; :attr:`counts` lists their count vectors, in lexicographic order. Every query costs that many times r.

    :param int num_variables: Number of variables n, at least 1.
    :param int num_categories: Number of categories r, at least 1.
    :raises ValueError: if they are not integers of at least 1, or there are more than ``2 ** 22`` levels.

    Example::

        >>> statistic = CategoryCounts(2, 3)
        >>> statistic.counts.tolist()
        [[0, 0, 2], [0, 1, 1], [0, 2, 0], [1, 0, 1], [1, 1, 0], [2, 0, 0]]
        >>> statistic.value(torch.tensor([2, 1]))
        tensor(1)
    """

    def __init__(self, num_variables: int, num_categories: int) -> None:
        check_size("num_variables", num_variables)
        check_size("num_categories", num_categories)
        self.num_variables, self.num_categories = int(num_variables), int(num_categories)
        self.num_levels = math.comb(self.num_variables + self.num_categories - 1, self.num_categories - 1)
        check_levels("num_categories", self.num_levels, "there is one for every count vector: merge categories")
        # Stars and bars: the bars' places among stars and bars say how many stars are between them.
        places = range(self.num_variables + self.num_categories - 1)
        bars = np.array(list(combinations(places, self.num_categories - 1)), dtype=np.int64)
        bars = bars.reshape(self.num_levels, self.num_categories - 1)
        ends = np.pad(bars, ((0, 0), (1, 1)), constant_values=-1)
        ends[:, -1] = len(places)
        self.counts = torch.from_numpy(np.diff(ends) - 1)
        # In how many ways up to m variables can be in one category and the following ones, for all categories but the
        # last: sums of sums of ones.
        sums = [np.ones(self.num_variables + 1, dtype=np.int64)]
        for _ in range(self.num_categories - 1):
            sums.append(np.cumsum(sums[-1]))
        self._ways = torch.from_numpy(np.stack(sums[1:][::-1])) if sums[1:] else torch.zeros(0, 1, dtype=torch.long)

    def value(self, x: Tensor) -> Tensor:
        """Ranks of the count vectors, shape ``(...)``."""
        counts = self._count(x, torch.ones_like(x, dtype=torch.bool))[..., :-1]
        after = self.num_variables - counts.cumsum(-1)
        # Vectors that agree so far and have a smaller next count come before.
        ways, category = self._ways.to(x.device), torch.arange(len(self._ways), device=x.device)
        return (ways[category, after + counts] - ways[category, after]).sum(-1)

    def _log_ways(self, free: Tensor, missing: Tensor) -> Tensor:
        return log_multinomial(free, missing)
