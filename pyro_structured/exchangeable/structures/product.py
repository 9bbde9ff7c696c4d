"""Several statistics of disjoint groups of variables."""

__all__ = ["Product"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_structured.exchangeable.structures.statistic import Statistic
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.structures.argument_checks import check_levels, checked_partition

INSTEAD = "use ExchangeablePartition, whose blocks are independent, or fewer groups"


class Product(Statistic):
    r"""The tuple of the statistics of disjoint groups of variables (Niepert and Domingos 2014, Example A.2).

    Level sets are products, :math:`|S_{t,e}| = \prod_g |S^g_{t_g,e}|`. The levels of the groups are the digits of the
    level, the first group's the most significant: see :meth:`digits`. The weights of the tuples are free, so that
    groups may depend on each other; if they do not,
    :class:`~pyro_structured.distributions.ExchangeablePartition` needs far fewer numbers.

    :param statistics: Statistics of the groups, all with the same number of categories.
    :param groups: The variables of every group, a partition of ``range(n)``; the order of a group's variables is that
        in which its statistic sees them.
    :raises ValueError: if groups overlap or leave a variable out, numbers or categories do not fit, or there are more
        than ``2 ** 22`` levels.

    Example::

        >>> from pyro_structured.structures import Count
        >>> rows = Product([Count(2), Count(2)], [[0, 1], [2, 3]])
        >>> rows.num_levels, rows.value(torch.tensor([1, 1, 0, 1]))
        (9, tensor(7))
        >>> rows.digits(torch.tensor(7))
        tensor([2, 1])
    """

    def __init__(self, statistics: Sequence[Statistic], groups: Sequence[Sequence[int]]) -> None:
        members = checked_partition("groups", groups)
        if not isinstance(statistics, Sequence) or len(statistics) != len(members):
            raise ValueError(f"statistics: expected one for each of {len(members)} groups, got {statistics!r}")
        for index, (statistic, group) in enumerate(zip(statistics, members, strict=True)):
            if not isinstance(statistic, Statistic):
                raise ValueError(f"statistics: expected a Statistic in statistics[{index}], got {statistic!r}")
            if statistic.num_variables != len(group):
                raise ValueError(
                    f"groups: expected {statistic.num_variables} variables in groups[{index}], as in its statistic, "
                    f"got {len(group)}"
                )
            if statistic.num_categories != statistics[0].num_categories:
                raise ValueError(
                    f"statistics: expected {statistics[0].num_categories} categories in statistics[{index}], as in the "
                    f"first one, got {statistic.num_categories}"
                )
        self.statistics, self.groups = tuple(statistics), tuple(map(tuple, members))
        self.num_categories = statistics[0].num_categories
        self._bases = [statistic.num_levels for statistic in statistics]
        self.num_levels = math.prod(self._bases)
        check_levels("groups", self.num_levels, INSTEAD)
        self._order = torch.tensor([d for group in members for d in group])
        self._rank = self._order.argsort()
        self.num_variables = len(self._order)

    def digits(self, level: Tensor) -> Tensor:
        """Levels of the groups, shape ``(..., groups)``."""
        digits = []
        for base in reversed(self._bases):
            digits.append(level % base)
            level = level // base
        return torch.stack(digits[::-1], -1)

    def value(self, x: Tensor) -> Tensor:
        """Levels, shape ``(...)``."""
        level = torch.zeros_like(x[..., 0], dtype=torch.long)
        for statistic, base, (columns,) in zip(self.statistics, self._bases, self._split(x), strict=True):
            level = level * base + statistic.value(columns)
        return level

    def log_completions(self, value: Tensor, observed: Tensor) -> Tensor:
        """Logarithms of the numbers of completions: sums of those of the groups."""
        total: Tensor = torch.zeros(1, dtype=torch.double, device=value.device)
        for statistic, columns in zip(self.statistics, self._split(value, observed), strict=True):
            total = (total.unsqueeze(-1) + statistic.log_completions(*columns).unsqueeze(-2)).flatten(-2)
        return total

    def sample(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Independent samples of the groups."""
        digits = self.digits(level).unbind(-1)
        parts = zip(self.statistics, digits, self._split(value, observed), strict=True)
        return self._join([statistic.sample(digit, *columns) for statistic, digit, columns in parts])

    def complete(self, level: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Completions of the groups."""
        digits = self.digits(level).unbind(-1)
        parts = zip(self.statistics, digits, self._split(value, observed), strict=True)
        return self._join([statistic.complete(digit, *columns) for statistic, digit, columns in parts])

    def log_marginals(self, log_weights: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Log-marginals of every group, under the weights of its levels with the other groups summed out."""
        joint = (log_weights.double() + self.log_completions(value, observed)).unflatten(-1, self._bases)
        marginals = []
        for index, (statistic, columns) in enumerate(zip(self.statistics, self._split(value, observed), strict=True)):
            mine = joint.movedim(index - len(self._bases), -1)
            others = math.prod(self._bases) // statistic.num_levels
            alone = logsumexp(mine.reshape(mine.shape[: -len(self._bases)] + (others, statistic.num_levels)), -2)
            # The group's own completions are a part of the sum, and its statistic will add them again.
            own = statistic.log_completions(*columns)
            marginals.append(statistic.log_marginals(alone - own.masked_fill(own == -torch.inf, 0.0), *columns))
        shape = torch.broadcast_shapes(*(marginal.shape[:-2] for marginal in marginals))
        whole = torch.cat([marginal.expand(shape + marginal.shape[-2:]) for marginal in marginals], -2)
        return whole[..., self._rank.to(value.device), :]

    def _split(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """The groups' parts of tensors."""
        order = self._order.to(tensors[0].device)
        sizes = [len(group) for group in self.groups]
        parts = [
            tensor.expand(tensor.shape[:-1] + (self.num_variables,))[..., order].split(sizes, -1) for tensor in tensors
        ]
        return list(zip(*parts, strict=True))

    def _join(self, parts: list[Tensor]) -> Tensor:
        shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        whole = torch.cat([part.expand(shape + part.shape[-1:]) for part in parts], -1)
        return whole[..., self._rank.to(whole.device)]
