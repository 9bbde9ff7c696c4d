"""Numbers of variables in every category."""

__all__ = ["BlockCounts", "CategoryCounts", "Count", "CountVectors"]

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.automaton import Automaton
from pyro_structured.exchangeable.ops.level_sets import complete_counts, log_binomial, log_multinomial, normalize
from pyro_structured.exchangeable.ops.weighted_counts import (
    PairTree,
    block_log_marginals,
    block_log_mass,
    block_tables,
    split_counts,
)
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.exchangeable.structures.product import INSTEAD, Product
from pyro_structured.exchangeable.structures.statistic import Statistic
from pyro_structured.foundation.ops.evidence import log_odds
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import check_levels, check_size, checked_partition


class CountVectors(Statistic):
    """Base class of statistics that are the numbers of variables in every category: full exchangeability.

    :ivar Tensor counts: Count vectors of all levels, integers of shape ``(num_levels, num_categories)``.
    """

    counts: Tensor

    @abstractmethod
    def _log_ways(self, free: Tensor, missing: Tensor) -> Tensor:
        """Logarithms of the numbers of ways to fill the free places; arguments as :meth:`_missing` returns them."""

    def log_completions(self, value: Tensor, observed: Tensor) -> Tensor:
        """Logarithms of binomial or multinomial coefficients; see :meth:`Statistic.log_completions`."""
        missing, free = self._missing(value, observed)
        return self._log_ways(free, missing)

    def sample(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Categories at random places that are free; see :meth:`Statistic.sample`."""
        shape = broadcast_shapes(level.shape + (1,), value.shape, observed.shape)
        return self._fill(level, value, observed, torch.rand(shape, dtype=torch.double, device=value.device))

    def complete(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Vectors with the last category at the first free places, and so on; see :meth:`Statistic.complete`."""
        return self._fill(level, value, observed, torch.arange(float(self.num_variables), device=value.device))

    def _fill(self, level: Tensor, value: Tensor, observed: Tensor, keys: Tensor) -> Tensor:
        # Indices without axes would be made Python numbers, which function transforms refuse.
        missing = self.counts.to(value.device)[level.unsqueeze(-1)].squeeze(-2) - self._count(value, observed)
        return complete_counts(value, observed, missing, keys)

    def log_marginals(self, log_weights: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """The expected shares of the categories among the free places; see :meth:`Statistic.log_marginals`."""
        missing, free = self._missing(value, observed)
        levels = normalize(log_weights.double() + self._log_ways(free, missing))
        level_share = missing.clamp(min=0).double() / free.clamp(min=1).unsqueeze(-1)
        share = logsumexp(levels.unsqueeze(-1) + level_share.log(), -2)
        fixed = value.unsqueeze(-1) == torch.arange(self.num_categories, device=value.device)
        return torch.where(observed.unsqueeze(-1), fixed.double().log(), share.unsqueeze(-2))

    def _missing(self, value: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of places that every level needs beside the observed ones, shape ``(..., levels, categories)``; and
        of free places, shape ``(..., 1)``.
        """
        missing = self.counts.to(value.device) - self._count(value, observed).unsqueeze(-2)
        return missing, (~observed).sum(-1, keepdim=True)

    def _count(self, value: Tensor, observed: Tensor) -> Tensor:
        """Numbers of observed places of every category, shape ``(..., categories)``."""
        categories = torch.arange(self.num_categories, device=value.device)
        return (observed.unsqueeze(-1) & (value.unsqueeze(-1) == categories)).sum(-2)


class Count(CountVectors):
    r"""The number of ones among n binary variables: full exchangeability (Niepert and Domingos 2014, Example A.1).

    :math:`|S_{t,e}| = \binom{\text{free}}{t - \text{ones}}`. Every query costs O(n), with weights of the variables
    :math:`O(n^2)`, and modes O(n log n).
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

    @cached_property
    def _tree(self) -> PairTree:
        return Partition(torch.zeros(self.num_variables, dtype=torch.long)).tree

    def log_mass(self, log_weights: Tensor) -> Tensor:
        """Elementary symmetric polynomials; see :meth:`Statistic.log_mass`."""
        tree = self._tree.to(log_weights.device)
        return block_log_mass(tree, block_tables(tree, log_weights.double()))[..., : self.num_levels]

    def log_peaks(self, log_weights: Tensor) -> Tensor:
        """Sums over the variables of largest log-odds, and the others; see :meth:`Statistic.log_peaks`."""
        order = self._descending(log_weights)
        off, on = (side.gather(-1, order) for side in log_weights.double().unbind(-1))
        ones = torch.nn.functional.pad(on.cumsum(-1), (1, 0))
        return ones + torch.nn.functional.pad(off.flip(-1).cumsum(-1).flip(-1), (0, 1))

    def weighted_sample(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """Numbers of ones in halves, in halves of halves and so on; see :meth:`Statistic.weighted_sample`."""
        counts = torch.nn.functional.pad(level.unsqueeze(-1), (0, self.num_variables - 1))
        tree = self._tree.to(log_weights.device)
        return split_counts(tree, block_tables(tree, log_weights.double()), counts)

    def weighted_mode(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """Ones where log-odds are largest; see :meth:`Statistic.weighted_mode`."""
        return (self._descending(log_weights).argsort(-1) < level.unsqueeze(-1)).long()

    def weighted_log_marginals(self, level_weights: Tensor, log_weights: Tensor) -> Tensor:
        """From the numbers of ones among all others; see :meth:`Statistic.weighted_log_marginals`."""
        cells = torch.nn.functional.pad(level_weights.double(), (0, self.num_variables - 1), value=-math.inf)
        tree = self._tree.to(log_weights.device)
        return block_log_marginals(tree, block_tables(tree, log_weights.double()), cells)

    def _descending(self, log_weights: Tensor) -> Tensor:
        """Variables in the order of their log-odds, the largest first, shape ``(..., n)``."""
        return log_odds(*log_weights.unbind(-1)).argsort(dim=-1, descending=True, stable=True)


class CategoryCounts(CountVectors):
    r"""The numbers of variables, among n, in each of r categories: full exchangeability of categorical variables.

    :math:`|S_{t,e}| = (\text{free})! / \prod_c (t_c - \text{observed}_c)!`. There are :math:`\binom{n + r - 1}{r - 1}`
    levels; :attr:`counts` lists their count vectors, in lexicographic order. Every query costs that many times r,
    with weights of the variables n times as much.

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
        # Numbers of ways in which up to m variables can be in one category and the following ones, for all categories
        # but the last: sums of sums of ones.
        sums = [np.ones(self.num_variables + 1, dtype=np.int64)]
        for _ in range(self.num_categories - 1):
            sums.append(np.cumsum(sums[-1]))
        self._ways = torch.from_numpy(np.stack(sums[1:][::-1])) if sums[1:] else torch.zeros(0, 1, dtype=torch.long)

    def value(self, x: Tensor) -> Tensor:
        """Ranks of the count vectors, shape ``(...)``."""
        return self._rank(self._count(x, torch.ones_like(x, dtype=torch.bool)))

    def _rank(self, counts: Tensor) -> Tensor:
        """Ranks of count vectors, shape ``(...)``."""
        counts = counts[..., :-1]
        after = self.num_variables - counts.cumsum(-1)
        # Vectors that agree so far and have a smaller next count come before.
        ways, category = self._ways.to(counts.device), torch.arange(len(self._ways), device=counts.device)
        return (ways[category, after + counts] - ways[category, after]).sum(-1)

    def _log_ways(self, free: Tensor, missing: Tensor) -> Tensor:
        return log_multinomial(free, missing)

    @cached_property
    def _automaton(self) -> Automaton:
        """A state is the level if all variables that have not been read are in the last category."""
        letters = torch.eye(self.num_categories, dtype=torch.long, device=self.counts.device)
        after = self.counts.unsqueeze(-2) + letters - letters[-1]
        # No variable is left to be read in a state without any in the last category, where no word leads on.
        after = torch.where((after < 0).any(-1, keepdim=True), self.counts.unsqueeze(-2), after)
        levels = torch.arange(self.num_levels)
        return Automaton(self.num_variables, self._rank(after).unsqueeze(0), levels, self.num_levels)


class BlockCounts(Product):
    r"""The numbers of ones in the blocks of a partition (Niepert and Domingos 2014, Example A.2).

    :math:`|S_{t,e}| = \prod_b \binom{\text{free}_b}{t_b - \text{ones}_b}`. Unlike an
    :class:`~pyro_structured.distributions.ExchangeablePartition`, whose blocks are independent, this has a weight for
    every combination of counts, :math:`\prod_b (n_b + 1)` of them.

    :param blocks: Variables of every block, a partition of ``range(n)``.
    :raises ValueError: if blocks are empty or overlap, or leave a variable out, or there are more than ``2 ** 22``
        levels.

    Example::

        >>> BlockCounts([[0, 1], [2]]).log_sizes.exp().round().unflatten(-1, (3, 2))
        tensor([[1., 1.],
                [2., 2.],
                [1., 1.]], dtype=torch.float64)
    """

    def __init__(self, blocks: Sequence[Sequence[int]]) -> None:
        groups = checked_partition("blocks", blocks)
        check_levels("blocks", math.prod(len(group) + 1 for group in groups), INSTEAD)
        super().__init__([Count(len(group)) for group in groups], groups)
        self.blocks = self.groups
