"""Junction trees of blocks of exchangeable variables."""

__all__ = ["BlockTree", "check_block_tree"]

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from pyro_structured.exchangeable.structures.category_counts import CategoryCounts, Count
from pyro_structured.exchangeable.structures.statistic import Statistic
from pyro_structured.foundation.structures.argument_checks import (
    check_size,
    checked_indices,
    checked_partition,
    checked_sequence,
)
from pyro_structured.foundation.structures.representation import Represented
from pyro_structured.junction_trees.ops.table_budget import check_table_entries
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

# A function of the statistic, the blocks and the variables of a kind.
OfKind = Callable[[Statistic, Tensor, Tensor], Tensor]


class BlockTree(Represented):
    r"""Blocks of discrete variables, each with a statistic, and a junction tree of the statistics' levels.

    It is the structure of an :class:`~pyro_structured.distributions.ExchangeableTree`: given the levels of all blocks,
    values are uniform. The blocks of a clique depend on each other. Blocks may have different statistics and variables
    with different numbers of states; inside a block, all have as many. Structures are immutable.

    Methods take values of shape ``(..., n)`` and evidence as a :class:`~pyro_structured.structures.Statistic` does.
    Their results have a row for each of the B blocks, padded to the largest number of levels L.

    :param statistics: Statistics of the blocks, any :class:`~pyro_structured.structures.Statistic`; one object may
        serve several blocks, which are then treated at once.
    :param groups: The variables of every block, a partition of ``range(n)``; the order of a block's variables is that
        in which its statistic sees them.
    :param cliques: Sets of blocks, those of a junction tree, every block in some clique; ``None``: no block depends on
        another.
    :ivar CliqueTree levels: The junction tree, whose variables are the blocks and whose states are their levels.
        Its ``pack`` makes the tables of a distribution.
    :raises ValueError: if groups overlap or leave a variable out, numbers do not fit, or no tree of the cliques is a
        junction tree.
    :raises NotImplementedError: for larger tables than a :class:`~pyro_structured.structures.CliqueTree` may have.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Problem 2: tractable statistics, and a tractable
    structure over them.

    Example::

        >>> from pyro_structured.structures import Count, Transitions
        >>> tree = BlockTree([Count(3), Transitions(4)], [[0, 1, 2], [3, 4, 5, 6]], cliques=[[0, 1]])
        >>> tree.levels.cardinalities, tree.table_size
        ((4, 3), 12)
        >>> tree.value(torch.tensor([1, 0, 1, 0, 1, 0, 1]))  # two ones; a 1 follows a 0 twice
        tensor([2, 2])
    """

    def __init__(
        self,
        statistics: Sequence[Statistic],
        groups: Sequence[Sequence[int]],
        cliques: Iterable[Iterable[int]] | None = None,
    ) -> None:
        members = checked_partition("groups", groups)
        self.statistics, self.groups = tuple(checked_sequence("statistics", statistics)), tuple(map(tuple, members))
        if len(self.statistics) != len(members):
            raise ValueError(f"statistics: expected one for each of {len(members)} groups, got {len(self.statistics)}")
        for index, (statistic, group) in enumerate(zip(self.statistics, members, strict=True)):
            if not isinstance(statistic, Statistic):
                raise ValueError(f"statistics: expected a Statistic in statistics[{index}], got {statistic!r}")
            if statistic.num_variables != len(group):
                raise ValueError(
                    f"groups: expected {statistic.num_variables} variables in groups[{index}], as in its statistic, "
                    f"got {len(group)}"
                )
        alone = [[index] for index in range(len(members))]
        self.levels = CliqueTree(alone if cliques is None else cliques, [each.num_levels for each in self.statistics])
        self.cliques = self.levels.cliques
        owner = {d: statistic for statistic, group in zip(self.statistics, members, strict=True) for d in group}
        self.cardinalities = tuple(owner[d].num_categories for d in range(len(owner)))

    @classmethod
    def from_counts(
        cls,
        groups: Sequence[Sequence[int]],
        num_categories: int | Sequence[int] = 2,
        cliques: Iterable[Iterable[int]] | None = None,
    ) -> "BlockTree":
        r"""Blocks in which all variables are exchangeable.

        The level of a block of binary variables is the number of ones (:class:`~pyro_structured.structures.Count`);
        with r states, a block of s variables has :math:`\binom{s + r - 1}{r - 1}` levels, one for each vector of counts
        (:class:`~pyro_structured.structures.CategoryCounts`). These are in lexicographic order, so that the levels of a
        single variable are its states backwards; ``statistics[b].counts`` lists those of block b.

        :param groups: The variables of every block, a partition of ``range(n)``.
        :param num_categories: Number of states of the variables, at least 1, or one number for each block.
        :param cliques: As above.

        Example::

            >>> BlockTree.from_counts([[0, 1], [2, 3, 4], [5]], [2, 3, 3], [[0, 1], [1, 2]]).levels.cardinalities
            (3, 10, 3)
        """
        members = checked_partition("groups", groups)
        if isinstance(num_categories, (Sequence, Tensor)):
            numbers = checked_indices("num_categories", num_categories)
        else:
            numbers = [num_categories] * len(members)
        if len(numbers) != len(members):
            raise ValueError(f"num_categories: expected one for each of {len(members)} groups, got {len(numbers)}")
        known: dict[tuple[int, int], Statistic] = {}
        for size, number in zip(map(len, members), numbers, strict=True):
            check_size("num_categories", number)
            if (size, number) not in known:
                counts = number * math.comb(size + number - 1, size)
                check_table_entries("num_categories", f"the count vectors of {size} variables", counts)
                known[size, number] = Count(size) if number == 2 else CategoryCounts(size, number)
        kinds = [known[len(group), number] for group, number in zip(members, numbers, strict=True)]
        return cls(kinds, members, cliques)

    @property
    def num_variables(self) -> int:
        """Number of variables n."""
        return len(self.cardinalities)

    @property
    def table_size(self) -> int:
        """Number of entries of the tables of all cliques."""
        return self.levels.table_size

    @property
    def num_levels(self) -> int:
        """Largest number of levels of a block, L."""
        return max(self.levels.cardinalities)

    @cached_property
    def _kinds(self) -> list[tuple[Statistic, Tensor, Tensor]]:
        """Different statistics, the blocks of each, shape ``(G,)``, and their variables, shape ``(G, s)``."""
        blocks: dict[int, list[int]] = {}
        for index, statistic in enumerate(self.statistics):
            blocks.setdefault(id(statistic), []).append(index)
        return [
            (self.statistics[same[0]], torch.tensor(same), torch.tensor([self.groups[index] for index in same]))
            for same in blocks.values()
        ]

    @cached_property
    def _block_order(self) -> Tensor:
        return torch.cat([blocks for _, blocks, _ in self._kinds]).argsort()

    @cached_property
    def _variable_order(self) -> Tensor:
        return torch.cat([columns.flatten() for _, _, columns in self._kinds]).argsort()

    def _each(self, function: OfKind, device: torch.device) -> list[Tensor]:
        """Results of a function of the statistic, the blocks and the variables of each kind."""
        return [function(kind, blocks.to(device), columns.to(device)) for kind, blocks, columns in self._kinds]

    def _by_level(self, function: OfKind, device: torch.device) -> Tensor:
        """Results of shape ``(..., G, levels)``, padded with -inf and put together."""

        def pad(kind: Statistic, blocks: Tensor, columns: Tensor) -> Tensor:
            missing = self.num_levels - kind.num_levels
            return torch.nn.functional.pad(function(kind, blocks, columns), (0, missing), value=-torch.inf)

        return torch.cat(self._each(pad, device), -2)[..., self._block_order.to(device), :]

    def _by_variable(self, function: OfKind, device: torch.device) -> Tensor:
        """Results of shape ``(..., G, s)``, put together."""
        parts = [part.flatten(-2) for part in self._each(function, device)]
        return torch.cat(parts, -1)[..., self._variable_order.to(device)]

    def _by_state(self, function: OfKind, device: torch.device) -> Tensor:
        """Results of shape ``(..., G, s, states)``, padded with -inf and put together."""
        most = max(self.cardinalities)

        def pad(kind: Statistic, blocks: Tensor, columns: Tensor) -> Tensor:
            missing = most - kind.num_categories
            padded = torch.nn.functional.pad(function(kind, blocks, columns), (0, missing), value=-torch.inf)
            return padded.flatten(-3, -2)

        return torch.cat(self._each(pad, device), -2)[..., self._variable_order.to(device), :]

    def value(self, x: Tensor) -> Tensor:
        """Levels of all blocks, integers of shape ``(..., B)``."""
        parts = self._each(lambda kind, _, columns: kind.value(x[..., columns]), x.device)
        return torch.cat(parts, -1)[..., self._block_order.to(x.device)]

    def log_completions(self, value: Tensor, observed: Tensor) -> Tensor:
        """Logarithms of the numbers of members of every level set that agree with the evidence, shape ``(..., B, L)``;
        -inf past a block's own levels.
        """
        return self._by_level(
            lambda kind, _, columns: kind.log_completions(value[..., columns], observed[..., columns]), value.device
        )

    @cached_property
    def log_sizes(self) -> Tensor:
        """Logarithms of the sizes of all level sets, shape ``(B, L)``; -inf past a block's own levels."""
        nothing = torch.zeros(self.num_variables, dtype=torch.long)
        return self.log_completions(nothing, nothing.bool())

    def sample(self, levels: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Uniform draws given the levels of all blocks, shape ``(..., B)``, and evidence; integers of shape
        ``(..., n)``.
        """
        return self._by_variable(
            lambda kind, blocks, columns: kind.sample(levels[..., blocks], value[..., columns], observed[..., columns]),
            value.device,
        )

    def complete(self, levels: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """One value with given levels, always the same; arguments as for :meth:`sample`."""
        return self._by_variable(
            lambda kind, blocks, columns: kind.complete(
                levels[..., blocks], value[..., columns], observed[..., columns]
            ),
            value.device,
        )

    def log_marginals(self, level_weights: Tensor, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probabilities of the single variables' states, if the blocks were independent.

        :param Tensor level_weights: Log-weights of single members of the level sets, shape ``(..., B, L)``.
        :return: Shape ``(..., n, K)`` for at most K states, in float64; -inf past a variable's own states.
        """
        return self._by_state(
            lambda kind, blocks, columns: kind.log_marginals(
                level_weights[..., blocks, : kind.num_levels], value[..., columns], observed[..., columns]
            ),
            value.device,
        )

    def log_mass(self, log_weights: Tensor) -> Tensor:
        """Logarithms of the sums over all level sets of products of the variables' weights.

        :param Tensor log_weights: Log-weights of all states, shape ``(..., n, K)`` for at most K states, less than
            +inf; numbers past a variable's own states are not looked at.
        :return: As of :meth:`log_completions`.
        """
        return self._by_level(
            lambda kind, _, columns: kind.log_mass(_own_states(log_weights, kind, columns)), log_weights.device
        )

    def log_peaks(self, log_weights: Tensor) -> Tensor:
        """Largest log-weights in all level sets; argument and shape as for :meth:`log_mass`."""
        return self._by_level(
            lambda kind, _, columns: kind.log_peaks(_own_states(log_weights, kind, columns)), log_weights.device
        )

    def weighted_sample(self, levels: Tensor, log_weights: Tensor) -> Tensor:
        """Draws given the levels of all blocks, in proportion to the products of the variables' weights; arguments as
        for :meth:`sample` and :meth:`log_mass`.
        """
        return self._by_variable(
            lambda kind, blocks, columns: kind.weighted_sample(
                levels[..., blocks], _own_states(log_weights, kind, columns)
            ),
            log_weights.device,
        )

    def weighted_mode(self, levels: Tensor, log_weights: Tensor) -> Tensor:
        """A value of largest weight with given levels, always the same; arguments as for :meth:`weighted_sample`."""
        return self._by_variable(
            lambda kind, blocks, columns: kind.weighted_mode(
                levels[..., blocks], _own_states(log_weights, kind, columns)
            ),
            log_weights.device,
        )

    def weighted_log_marginals(self, level_weights: Tensor, log_weights: Tensor) -> Tensor:
        """As :meth:`log_marginals`, with weights of the variables' states in place of evidence."""
        return self._by_state(
            lambda kind, blocks, columns: kind.weighted_log_marginals(
                level_weights[..., blocks, : kind.num_levels], _own_states(log_weights, kind, columns)
            ),
            log_weights.device,
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BlockTree)
            and self.groups == other.groups
            and self.levels == other.levels
            and list(map(repr, self.statistics)) == list(map(repr, other.statistics))
        )

    def __hash__(self) -> int:
        return hash((self.groups, self.levels))


def check_block_tree(tree: object) -> None:
    """Raises a ValueError unless it is a :class:`BlockTree`."""
    if not isinstance(tree, BlockTree):
        raise ValueError(f"tree: expected a BlockTree, got {type(tree).__name__}")


def _own_states(log_weights: Tensor, kind: Statistic, columns: Tensor) -> Tensor:
    """Log-weights of the states of some variables, shape ``(..., G, s, states)``."""
    return log_weights[..., columns, : kind.num_categories]
