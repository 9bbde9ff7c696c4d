"""Plans of nested count potentials: the counts that are added, and the tables that weigh them."""

__all__ = ["CountForest", "balanced_merges"]

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.counts.ops.count_tree import CountTree


def balanced_merges(num_variables: int) -> np.ndarray:
    """Pairs of nodes that add up all variables in a balanced binary tree.

    :param int num_variables: Number of leaves.
    :return: Integers of shape ``(num_variables - 1, 2)``; row ``i`` makes node ``num_variables + i``.

    Example::

        >>> balanced_merges(3).tolist()
        [[0, 1], [3, 2]]
    """
    nodes, merges, following = list(range(num_variables)), [], num_variables
    while len(nodes) > 1:
        pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
        merges.extend(pairs)
        carried = nodes[len(nodes) - 1 :] if len(nodes) % 2 else []
        nodes = list(range(following, following + len(pairs))) + carried
        following += len(pairs)
    return np.array(merges, dtype=np.int64).reshape(-1, 2)


class Level(NamedTuple):
    """Tables of disjoint subsets, the variables in these subsets, and the table of each variable."""

    tables: list[int]
    variables: Tensor
    owners: Tensor


class CountForest:
    """Binary additions of counts, and the nodes that carry potentials.

    :param int num_variables: Number of variables; they are the first nodes.
    :param numpy.ndarray merges: Node ``num_variables + i`` adds the counts of the two nodes ``merges[i]``; ``None``
        for one balanced tree, which is then not built before it is needed.
    :param tables: For every potential its node and its size; ``None`` for a single potential on the count of all
        variables.
    """

    def __init__(
        self,
        num_variables: int,
        merges: np.ndarray | None = None,
        tables: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        if isinstance(num_variables, bool) or not isinstance(num_variables, (int, np.integer)) or num_variables < 0:
            raise ValueError(f"num_variables: expected an integer of at least 0, got {num_variables!r}")
        self.num_variables = num_variables
        self.is_single = tables is None
        root = 2 * num_variables - 2 if num_variables else -1
        self.tables = ((root, num_variables),) if tables is None else tables
        self.table_size = sum(size + 1 for _, size in self.tables)
        self._merges = merges
        self._remember()

    def _remember(self) -> None:
        self._tree = lru_cache(maxsize=8)(self._build)
        self.levels = lru_cache(maxsize=8)(self._levels)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_tree", "levels", "_ranges")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._remember()

    @property
    def merges(self) -> np.ndarray:
        """The binary additions, shape ``(num_merges, 2)``."""
        return balanced_merges(self.num_variables) if self._merges is None else self._merges

    def tree(self, count_logits: Tensor) -> CountTree:
        """Plans the passes, with messages truncated to the counts that the potentials allow.

        :param Tensor count_logits: Log-potentials, shape ``(rows, table_size)``.
        """
        possible = (count_logits != -torch.inf).any(0)
        limits: tuple[int, ...] = ()
        if not bool(possible.all()):
            parts = possible.cpu().split([size + 1 for _, size in self.tables])
            limits = tuple(int(p.nonzero().max()) if bool(p.any()) else 0 for p in parts)
        return self._tree(limits, count_logits.device)

    @cached_property
    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Variables in an order in which those of every table are together, and the first place of each table."""
        if self.is_single:
            return np.arange(self.num_variables), np.zeros(1, dtype=np.int64)
        number, pairs = self.num_variables, self.merges.tolist()
        size, place = [1] * number + [0] * len(pairs), [-1] * (number + len(pairs))
        for node, (left, right) in enumerate(pairs, number):
            size[node] = size[left] + size[right]
        following = 0
        for node in reversed(range(len(size))):
            if place[node] < 0:
                place[node], following = following, following + size[node]
            if node >= number:
                left, right = pairs[node - number]
                place[left], place[right] = place[node], place[node] + size[left]
        order = np.argsort(np.array(place[:number]))
        return order, np.array([place[node] if node >= 0 else 0 for node, _ in self.tables], dtype=np.int64)

    def counts(self, value: Tensor) -> Tensor:
        """Counts the ones among the variables of every table, in O(D) a vector.

        :param Tensor value: Zeros and ones, shape ``(..., num_variables)``.
        :return: Integers (long), without derivatives, shape ``(..., number of tables)``.
        """
        order, first = (torch.as_tensor(range_array, device=value.device) for range_array in self._ranges)
        sizes = torch.tensor([size for _, size in self.tables], dtype=torch.long, device=value.device)
        sums = torch.nn.functional.pad(value[..., order].long().cumsum(-1), (1, 0))
        return sums[..., first + sizes] - sums[..., first]

    def entries(self, value: Tensor) -> Tensor:
        """Entry of each table, counted from its first, that a value meets: the counts."""
        return self.counts(value)

    def _levels(self, device: torch.device) -> list[Level]:
        """All tables with variables, those of the innermost subsets first."""
        order, first = self._ranges
        depth = np.zeros(self.num_variables, dtype=np.int64)
        groups: list[list[int]] = []
        for table in sorted(range(len(self.tables)), key=lambda index: self.tables[index][1]):
            inside = slice(first[table], first[table] + self.tables[table][1])
            if not len(depth[inside]):
                continue
            height = int(depth[inside].max())
            depth[inside] = height + 1
            groups += [[]] * (height == len(groups))
            groups[height] = [*groups[height], table]
        return [
            Level(
                tables,
                torch.from_numpy(np.concatenate([order[first[t] : first[t] + self.tables[t][1]] for t in tables])).to(
                    device
                ),
                torch.tensor(tables).repeat_interleave(torch.tensor([self.tables[t][1] for t in tables])).to(device),
            )
            for tables in groups
        ]

    def _build(self, limits: tuple[int, ...], device: torch.device) -> CountTree:
        merges = self.merges
        max_counts = _max_counts(self.num_variables, merges, self.tables, limits)
        return CountTree.build(self.num_variables, merges, self.tables, max_counts).to(device)


def _max_counts(
    num_variables: int, merges: np.ndarray, tables: tuple[tuple[int, int], ...], limits: tuple[int, ...]
) -> np.ndarray:
    """Largest possible count of every node: bounded by its potential, its children and its parent."""
    size = [1] * num_variables + [0] * len(merges)
    own = [len(size)] * len(size)
    for (node, _), limit in zip(tables, limits, strict=False):
        if node >= 0:
            own[node] = min(own[node], limit)
    pairs = merges.tolist()
    bound = [min(1, limit) for limit in own[:num_variables]] + [0] * len(pairs)
    for node, (left, right) in enumerate(pairs, num_variables):
        bound[node] = min(own[node], bound[left] + bound[right])
    for node, (left, right) in reversed(list(enumerate(pairs, num_variables))):
        bound[left] = min(bound[left], bound[node])
        bound[right] = min(bound[right], bound[node])
    # Variables always own two cells.
    return np.array([1] * num_variables + bound[num_variables:], dtype=np.int64)
