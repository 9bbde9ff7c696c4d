"""Nested families of subsets."""

__all__ = ["NestedSubsets"]

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.foundation.structures.argument_checks import (
    check_last_axis,
    check_size,
    checked_broadcast,
    checked_sequence,
)
from pyro_structured.foundation.structures.representation import Represented


class NestedSubsets(Represented):
    r"""Subsets of :math:`\{0, \dots, D-1\}` of which any two are disjoint or one contains the other.

    Every subset ``s`` owns a table of ``len(s) + 1`` numbers, one for each count of its variables; the tables stand one
    after the other, in the order in which the subsets are given. Equal subsets keep a table each, and their potentials
    add up; a subset of one variable has a table of two numbers, the empty subset one of a single number, a constant.
    Variables that are in no subset are independent of all others.

    :param subsets: Integers in ``range(num_variables)``, each at most once in a subset.
    :param int num_variables: Number of variables D, at least 1.
    :raises ValueError: if two subsets cross (the message names them), or an element is repeated or out of range.

    The cost of construction is :math:`O(\sum_k |s_k| \log D)`. Instances are immutable and picklable.

    **References**

    Tarlow, Swersky, Zemel, Adams, Frey (2012): Fast exact inference for recursive cardinality models. UAI. Sections 4.1
    (nested subsets) and 5.2 (the binary tree, here merged smallest first, as in Huffman's code).

    Example::

        >>> subsets = NestedSubsets([range(0, 2), range(2, 4), range(4)], num_variables=4)
        >>> subsets.sizes
        (2, 2, 4)
        >>> subsets.table_size
        11
        >>> NestedSubsets([[0, 1], [1, 2]], num_variables=3)
        Traceback (most recent call last):
            ...
        ValueError: subsets: expected nested subsets, but subsets[0] and subsets[1] cross: ...
    """

    def __init__(self, subsets: Iterable[Iterable[int]], num_variables: int) -> None:
        check_size("num_variables", num_variables)
        given = checked_sequence("subsets", subsets)
        members = [_members(subset, index, int(num_variables)) for index, subset in enumerate(given)]
        self._initialise(members, int(num_variables))

    def _initialise(self, members: list[np.ndarray], num_variables: int) -> None:
        self.num_variables = num_variables
        self.subsets = tuple(members)
        self.sizes = tuple(len(m) for m in members)
        is_single = self.sizes == (num_variables,)
        merges: np.ndarray | None
        if is_single:
            merges, nodes = None, [-1]
        else:
            merges, nodes = _build_tree(members, num_variables)
        tables = tuple(zip(nodes, self.sizes, strict=True))
        self.forest = CountForest(num_variables) if is_single else CountForest(num_variables, merges, tables)
        self._freeze()

    def _freeze(self) -> None:
        for members in self.subsets:
            members.setflags(write=False)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._freeze()

    @classmethod
    def from_linkage(cls, linkage: np.ndarray) -> "NestedSubsets":
        """Makes a subset of every cluster of a hierarchical clustering (Section 6.4 of the paper).

        :param numpy.ndarray linkage: Result of :func:`scipy.cluster.hierarchy.linkage`, shape ``(D - 1, 4)``.
        :return: The ``D - 1`` clusters of two or more variables, in the order of the linkage's rows.

        Example::

            >>> from scipy.cluster.hierarchy import linkage
            >>> subsets = NestedSubsets.from_linkage(linkage([[0.0], [1.0], [5.0]]))
            >>> [subset.tolist() for subset in subsets.subsets]
            [[0, 1], [0, 1, 2]]
        """
        try:
            linkage = np.asarray(linkage)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"linkage: expected a scipy linkage matrix of shape (D - 1, 4), got {linkage!r}") from None
        if linkage.ndim != 2 or linkage.shape[1] != 4 or linkage.shape[0] < 1 or linkage.dtype.kind not in "fiu":
            raise ValueError(
                f"linkage: expected a scipy linkage matrix of shape (D - 1, 4), got shape {linkage.shape} and dtype "
                f"{linkage.dtype}"
            )
        clusters = [np.array([d]) for d in range(linkage.shape[0] + 1)]
        free = [True] * len(clusters)
        for row, pair in enumerate(linkage[:, :2].tolist()):
            known = all(0 <= c < len(clusters) and c == int(c) and free[int(c)] for c in pair)
            if not known or pair[0] == pair[1]:
                raise ValueError(
                    f"linkage: expected two clusters made by earlier rows and not yet merged, got ({pair[0]:g}, "
                    f"{pair[1]:g}) in row {row}"
                )
            left, right = map(int, pair)
            free[left] = free[right] = False
            free.append(True)
            clusters.append(np.union1d(clusters[left], clusters[right]))
        return cls(clusters[linkage.shape[0] + 1 :], linkage.shape[0] + 1)

    @classmethod
    def balanced(cls, num_variables: int) -> "NestedSubsets":
        """All subsets of a balanced binary partition, which halves the variables again and again, smallest first.

        :param int num_variables: Number of variables.

        Example::

            >>> [subset.tolist() for subset in NestedSubsets.balanced(4).subsets]
            [[0, 1], [2, 3], [0, 1, 2, 3]]
        """
        check_size("num_variables", num_variables)
        ranges, pending = [], [(0, num_variables)]
        while pending:
            following = []
            for start, stop in pending:
                if stop - start > 1:
                    ranges.append((start, stop))
                    middle = (start + stop + 1) // 2
                    following += [(start, middle), (middle, stop)]
            pending = following
        ranges.sort(key=lambda r: (r[1] - r[0], r[0]))
        return cls((range(*r) for r in ranges), num_variables)

    @property
    def table_size(self) -> int:
        r"""Length of all tables together, :math:`\sum_k (|s_k| + 1)`."""
        return self.forest.table_size

    @property
    def event_shape(self) -> torch.Size:
        """Shape of a vector of variables, ``(num_variables,)``."""
        return torch.Size([self.num_variables])

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones."""
        return constraints.independent(constraints.boolean, 1)

    def pack(self, tables: Sequence[Tensor]) -> Tensor:
        """Concatenates tables, one for each subset.

        :param tables: Tensors of shape ``batch + (len(subset) + 1,)`` whose batch shapes broadcast.
        :return: Shape ``batch + (table_size,)``.
        :raises ValueError: if the number of tables or the length of one is wrong.

        Example::

            >>> NestedSubsets([[0], [0, 1]], 2).pack([torch.zeros(2), torch.ones(3)])
            tensor([0., 0., 1., 1., 1.])
        """
        if len(tables) != len(self.sizes):
            raise ValueError(f"tables: expected {len(self.sizes)} tables, one for each subset, got {len(tables)}")
        for index, (table, size) in enumerate(zip(tables, self.sizes, strict=True)):
            check_last_axis(f"tables[{index}]", table, size + 1)
        if not tables:
            return torch.zeros(0)
        batch = checked_broadcast("tables", [table.shape[:-1] for table in tables])
        return torch.cat([table.expand(batch + table.shape[-1:]) for table in tables], -1)

    def split(self, count_logits: Tensor) -> tuple[Tensor, ...]:
        """Splits packed tables, as of :meth:`pack` or ``count_marginals``, into a view for each subset.

        :param Tensor count_logits: Packed tables, shape ``(..., table_size)``.
        :return: Tensors of shape ``(..., len(subset) + 1)``.
        """
        check_last_axis("count_logits", count_logits, self.table_size)
        tables: tuple[Tensor, ...] = count_logits.split([size + 1 for size in self.sizes], -1)
        return tables

    def counts(self, value: Tensor) -> Tensor:
        """Counts the ones in every subset, in :math:`O(D)` a vector.

        :param Tensor value: Zeros and ones, shape ``(..., num_variables)``.
        :return: Integers (long), without derivatives, shape ``(..., number of subsets)``.

        Example::

            >>> NestedSubsets([[0], [0, 2]], 3).counts(torch.tensor([1.0, 1.0, 1.0]))
            tensor([1, 2])
        """
        check_last_axis("value", value, self.num_variables)
        return self.forest.counts(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NestedSubsets):
            return NotImplemented
        same = self.num_variables == other.num_variables and self.sizes == other.sizes
        return same and all(np.array_equal(a, b) for a, b in zip(self.subsets, other.subsets, strict=True))

    def __hash__(self) -> int:
        return hash((self.num_variables, self.sizes))

    def __repr__(self) -> str:
        return f"NestedSubsets({len(self.sizes)} subsets, num_variables={self.num_variables})"


def _members(subset: Iterable[int], index: int, num_variables: int) -> np.ndarray:
    try:
        elements = np.asarray(subset if isinstance(subset, (range, np.ndarray)) else list(subset))
    except (TypeError, ValueError):
        raise ValueError(f"subsets: expected integers in subsets[{index}], got {subset!r}") from None
    if elements.size == 0:
        return np.zeros(0, dtype=np.int64)
    if elements.ndim != 1 or not np.issubdtype(elements.dtype, np.integer):
        raise ValueError(f"subsets: expected integers in subsets[{index}], got {subset!r}")
    ordered = np.sort(elements.astype(np.int64))
    if ordered[0] < 0 or ordered[-1] >= num_variables:
        outside = ordered[-1] if ordered[-1] >= num_variables else ordered[0]
        raise ValueError(f"subsets: expected elements in range({num_variables}) in subsets[{index}], got {outside}")
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(f"subsets: expected every element once in subsets[{index}], got {repeated[0]} repeatedly")
    return ordered


def _build_tree(members: list[np.ndarray], num_variables: int) -> tuple[np.ndarray, list[int]]:
    """Merges the variables and smaller subsets inside every subset, smallest first.

    :return: The merges, and the node of every subset (-1 for the empty one).
    """
    merges: list[tuple[int, int]] = []
    size = [1] * num_variables
    top = np.arange(num_variables)
    owner: dict[int, int] = {}
    nodes = [-1] * len(members)
    for index in sorted(range(len(members)), key=lambda i: len(members[i])):
        inside = members[index]
        if not len(inside):
            continue
        parts = np.unique(top[inside]).tolist()
        if sum(size[part] for part in parts) != len(inside):
            raise ValueError(_crossing(members, owner, index, parts, size))
        heap = [(size[part], part) for part in parts]
        while len(heap) > 1:
            (size_a, a), (size_b, b) = heapq.heappop(heap), heapq.heappop(heap)
            merges.append((a, b))
            size.append(size_a + size_b)
            heapq.heappush(heap, (size_a + size_b, len(size) - 1))
        nodes[index] = heap[0][1]
        owner.setdefault(nodes[index], index)
        top[inside] = nodes[index]
    return np.array(merges, dtype=np.int64).reshape(-1, 2), nodes


def _crossing(members: list[np.ndarray], owner: dict[int, int], index: int, parts: list[int], size: list[int]) -> str:
    for node in parts:
        if node not in owner:
            continue
        owner_index = owner[node]
        extra = np.setdiff1d(members[owner_index], members[index])
        if len(extra):
            first, second = sorted((owner_index, index))
            both = np.intersect1d(members[first], members[second])[0]
            only_first = np.setdiff1d(members[first], members[second])[0]
            only_second = np.setdiff1d(members[second], members[first])[0]
            return (
                f"subsets: expected nested subsets, but subsets[{first}] and subsets[{second}] cross: {both} is in "
                f"both, {only_first} only in the first, {only_second} only in the second"
            )
    raise AssertionError("a crossing family has a crossing pair")
