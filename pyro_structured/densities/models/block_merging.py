"""Blocks of exchangeable categorical variables, found by merging blocks as long as a penalised likelihood grows."""

__all__ = ["merge_blocks"]

import math

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.special import xlogy

from pyro_structured.exchangeable.structures.category_counts import CategoryCounts
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows


def merge_blocks(rows: CategoricalRows, price: float, most_levels: int, joined: bool) -> list[list[int]]:
    r"""Merges blocks of variables with equally many states, two at a time, as long as this gains anything.

    A block of s variables with r states whose counts t have been seen with total weights :math:`N_t` is worth

    .. math::
        \sum_t N_t \log \frac{N_t}{N |S_t|} - c \Bigl(\binom{s + r - 1}{r - 1} - 1\Bigr),

    its log-likelihood less the price of its parameters. A merger gains what the union is worth, less what the two
    blocks are worth as independent ones or, if they may be joined by an edge, with a table of all pairs of levels,
    whichever is more. The best pair is merged first; the result is a local optimum.

    :param CategoricalRows rows: Rows without missing entries, and their weights.
    :param float price: Price c of a parameter, in nats, at least 0.
    :param int most_levels: Largest number of levels of a merged block.
    :param bool joined: Whether blocks may be joined by edges instead.
    :return: The blocks, a partition of the variables. Cost O(R n) for R rows for each variable and each merger.

    Example::

        >>> equal = np.random.default_rng(0).integers(3, size=(500, 2)).repeat(2, axis=1)
        >>> merge_blocks(CategoricalRows(equal, [3] * 4), price=3.0, most_levels=20, joined=False)
        [[0, 1], [2, 3]]
    """
    blocks = _Blocks(rows, price, most_levels, joined)
    gains = np.stack([blocks.gains(block) for block in range(len(blocks.members))])
    while gains.max() > 0:
        first, second = sorted(map(int, np.unravel_index(gains.argmax(), gains.shape)))
        blocks.merge(first, second)
        gains[second] = gains[:, second] = -np.inf
        gains[first] = gains[:, first] = blocks.gains(first)
    return [sorted(members) for members in blocks.members if members]


class _Blocks:
    """Blocks, named after their first variables, and their levels in all rows."""

    def __init__(self, rows: CategoricalRows, price: float, most_levels: int, joined: bool) -> None:
        self.weights, self.total = rows.weights, rows.total
        self.price, self.most_levels, self.joined = price, most_levels, joined
        self.known: dict[tuple[int, int], CategoryCounts] = {}
        self.members = [[d] for d in range(len(rows.cardinalities))]
        self.kinds = [self._kind(1, size) for size in rows.cardinalities]
        columns = torch.from_numpy(rows.values).long().unsqueeze(-1)
        self.levels = [kind.value(column).numpy() for kind, column in zip(self.kinds, columns, strict=True)]
        self.counts = [self._count(*each) for each in zip(self.kinds, self.levels, strict=True)]
        self.worth = np.array([self._worth(*each) for each in zip(self.kinds, self.counts, strict=True)])

    def _kind(self, size: int, num_states: int) -> CategoryCounts:
        if (size, num_states) not in self.known:
            self.known[size, num_states] = CategoryCounts(size, num_states)
        return self.known[size, num_states]

    def _count(self, kind: CategoryCounts, levels: np.ndarray) -> np.ndarray:
        return np.bincount(levels, self.weights, kind.num_levels)

    def _worth(self, kind: CategoryCounts, counts: np.ndarray) -> np.ndarray:
        """Penalised log-likelihoods of blocks whose levels have been seen so often, shape ``(..., levels)``."""
        fit = xlogy(counts, counts).sum(-1) - counts @ kind.log_sizes.numpy() - xlogy(self.total, self.total)
        worth: np.ndarray = fit - self.price * (kind.num_levels - 1)
        return worth

    def _union(self, first: CategoryCounts, second: CategoryCounts) -> CategoryCounts | None:
        """Statistic of the union of two blocks; ``None`` if they may not be merged."""
        size, states = first.num_variables + second.num_variables, first.num_categories
        if states != second.num_categories or math.comb(size + states - 1, states - 1) > self.most_levels:
            return None
        return self._kind(size, states)

    def merge(self, first: int, second: int) -> None:
        """Joins two blocks under the name of the first."""
        union = self._union(self.kinds[first], self.kinds[second])
        assert union is not None
        places = _joint_levels(self.kinds[first], self.kinds[second], union)
        self.levels[first] = places[self.levels[first], self.levels[second]]
        self.members[first] += self.members[second]
        self.members[second] = []
        self.kinds[first], self.counts[first] = union, self._count(union, self.levels[first])
        self.worth[first] = self._worth(union, self.counts[first])

    def gains(self, block: int) -> np.ndarray:
        """Gains of merging a block with each of the others; -inf where this is not allowed."""
        gains = np.full(len(self.members), -np.inf)
        others: dict[CategoryCounts, list[int]] = {}
        for other, members in enumerate(self.members):
            if members and other != block:
                others.setdefault(self.kinds[other], []).append(other)
        mine = self.kinds[block]
        for theirs, same in others.items():
            union = self._union(mine, theirs)
            if union is None:
                continue
            size = mine.num_levels * theirs.num_levels
            cells = self.levels[block] * theirs.num_levels + np.stack([self.levels[other] for other in same])
            cells += size * np.arange(len(same))[:, None]
            tables = np.bincount(cells.ravel(), np.tile(self.weights, len(same)), size * len(same)).reshape(-1, size)
            places = _joint_levels(mine, theirs, union).ravel()
            joins = csr_matrix((np.ones(size), (places, np.arange(size))), (union.num_levels, size))
            gains[same] = self._worth(union, (joins @ tables.T).T) - self.worth[block] - self.worth[same]
            if self.joined:
                single = np.array([xlogy(self.counts[other], self.counts[other]).sum() for other in [block, *same]])
                edge = xlogy(tables, tables).sum(1) - single[0] - single[1:] + xlogy(self.total, self.total)
                edge -= self.price * (mine.num_levels - 1) * (theirs.num_levels - 1)
                gains[same] -= np.maximum(edge, 0.0)
        return gains


def _joint_levels(first: CategoryCounts, second: CategoryCounts, union: CategoryCounts) -> np.ndarray:
    """Levels of the union of two blocks, for each pair of their levels, shape ``(levels, levels)``."""
    members = []
    for axis, kind in enumerate((first, second)):
        nothing = torch.zeros(kind.num_variables, dtype=torch.long)
        member = kind.complete(torch.arange(kind.num_levels), nothing, nothing.bool())
        members.append(member.unsqueeze(1 - axis).expand(first.num_levels, second.num_levels, kind.num_variables))
    levels: np.ndarray = union.value(torch.cat(members, -1)).numpy()
    return levels
