"""Several statistics of disjoint groups of variables."""

__all__ = ["Product"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_structured.exchangeable.structures.statistic import Statistic
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
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
        parts = zip(self.statistics, self._split(value, observed), strict=True)
        return _tuple_sums([statistic.log_completions(*columns) for statistic, columns in parts])

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
        columns = self._split(value, observed)
        masses = [statistic.log_completions(*own) for statistic, own in zip(self.statistics, columns, strict=True)]
        parts = zip(self.statistics, self._own_weights(log_weights, masses), columns, strict=True)
        return self._join([statistic.log_marginals(weights, *own) for statistic, weights, own in parts], -2)

    def log_mass(self, log_weights: Tensor) -> Tensor:
        """Sums of those of the groups; see :meth:`Statistic.log_mass`."""
        parts = zip(self.statistics, self._groups_of(log_weights), strict=True)
        return _tuple_sums([statistic.log_mass(own) for statistic, own in parts])

    def log_peaks(self, log_weights: Tensor) -> Tensor:
        """Sums of those of the groups; see :meth:`Statistic.log_peaks`."""
        parts = zip(self.statistics, self._groups_of(log_weights), strict=True)
        return _tuple_sums([statistic.log_peaks(own) for statistic, own in parts])

    def weighted_sample(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """Independent samples of the groups; see :meth:`Statistic.weighted_sample`."""
        parts = zip(self.statistics, self.digits(level).unbind(-1), self._groups_of(log_weights), strict=True)
        return self._join([statistic.weighted_sample(digit, own) for statistic, digit, own in parts])

    def weighted_mode(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """Modes of the groups; see :meth:`Statistic.weighted_mode`."""
        parts = zip(self.statistics, self.digits(level).unbind(-1), self._groups_of(log_weights), strict=True)
        return self._join([statistic.weighted_mode(digit, own) for statistic, digit, own in parts])

    def weighted_log_marginals(self, level_weights: Tensor, log_weights: Tensor) -> Tensor:
        """As :meth:`log_marginals`; see :meth:`Statistic.weighted_log_marginals`."""
        groups = self._groups_of(log_weights)
        masses = [statistic.log_mass(own) for statistic, own in zip(self.statistics, groups, strict=True)]
        parts = zip(self.statistics, self._own_weights(level_weights, masses), groups, strict=True)
        return self._join([statistic.weighted_log_marginals(weights, own) for statistic, weights, own in parts], -2)

    def _own_weights(self, log_weights: Tensor, masses: list[Tensor]) -> list[Tensor]:
        """Log-weights of the levels of every group, with the other groups summed out.

        :param Tensor log_weights: Log-weights of the tuples, shape ``(..., num_levels)``.
        :param masses: Log-sums of the values in the level sets of the groups.
        """
        joint = (log_weights.double() + _tuple_sums(masses)).unflatten(-1, self._bases)
        weights = []
        for index, (base, own) in enumerate(zip(self._bases, masses, strict=True)):
            mine = joint.movedim(index - len(self._bases), -1)
            others = math.prod(self._bases) // base
            alone = logsumexp(mine.reshape(mine.shape[: -len(self._bases)] + (others, base)), -2)
            # The group's own values are a part of the sum, and its statistic will add them again.
            weights.append(alone - own.masked_fill(own == -torch.inf, 0.0))
        return weights

    def _groups_of(self, log_weights: Tensor) -> tuple[Tensor, ...]:
        """Log-weights of the groups' variables, shapes ``(..., size of the group, num_categories)``."""
        ordered = log_weights.index_select(-2, self._order.to(log_weights.device))
        groups: tuple[Tensor, ...] = ordered.split([len(group) for group in self.groups], -2)
        return groups

    def _split(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """The groups' parts of tensors."""
        order = self._order.to(tensors[0].device)
        sizes = [len(group) for group in self.groups]
        parts = [
            tensor.expand(tensor.shape[:-1] + (self.num_variables,))[..., order].split(sizes, -1) for tensor in tensors
        ]
        return list(zip(*parts, strict=True))

    def _join(self, parts: list[Tensor], axis: int = -1) -> Tensor:
        """Tensors of the groups, whose variables are along an axis, as one of all variables in their order."""
        shape = broadcast_shapes(*(part.shape[:axis] for part in parts))
        whole = torch.cat([part.expand(shape + part.shape[axis:]) for part in parts], axis)
        return whole.index_select(axis, self._rank.to(whole.device))


def _tuple_sums(terms: list[Tensor]) -> Tensor:
    """Sums of terms of all groups for all tuples of their levels, the first group's level the most significant."""
    total: Tensor = torch.zeros(1, dtype=torch.double, device=terms[0].device)
    for term in terms:
        total = (total.unsqueeze(-1) + term.unsqueeze(-2)).flatten(-2)
    return total
