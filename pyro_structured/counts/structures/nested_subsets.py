"""Nested families of subsets."""

__all__ = ["NestedSubsets"]

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.coupled_forest import CoupledForest
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
    Variables that are in no subset, and on no edge, are independent of all others.

    **References of a count** (the minus signs of Section 4.1): the count of a subset is the number of its variables
    that differ from the subset's reference. Of a subset inside another one, the reference is the same there, or the
    complement.

    **Edges** form a forest over the variables; each has a table of 2 x 2 numbers. A subset is compatible with them if
    one vertex lies on all edges that cross its boundary: a subtree, a union of branches of one vertex, a component.

    **Links** form a forest over outermost subsets that no edge crosses; ``(i, j, kind)`` relates the counts
    :math:`c_i` and :math:`c_j` of two of them: ``"=="``, ``"<="`` and ``"<"`` say what is possible, ``"difference"``
    has a table of ``len(i) + len(j) + 1`` numbers, for :math:`c_i - c_j` from ``-len(j)`` to ``len(i)``, and ``None``
    one of ``(len(i) + 1) * (len(j) + 1)`` numbers, a row for each :math:`c_i`.

    :param subsets: Integers in ``range(num_variables)``, each at most once in a subset.
    :param int num_variables: Number of variables D, at least 1.
    :param references: For each subset zeros and ones, as many as it has elements and in the same order; ``None`` means
        zeros, so that ones are counted.
    :param edges: Pairs of variables.
    :param links: Triples of two numbers of subsets and a kind.
    :raises ValueError: if two subsets cross, an element is repeated or out of range, references disagree, edges or
        links have a cycle, or a subset is not compatible with the edges; the message names what conflicts.

    The cost of construction is :math:`O(\sum_k |s_k| \log D)`. Instances are immutable and picklable.

    **References**

    Tarlow, Swersky, Zemel, Adams, Frey (2012): Fast exact inference for recursive cardinality models. UAI. Sections 4.1
    (nested subsets), 5.2 (the binary tree, here merged smallest first, as in Huffman's code) and 5.4 (trees).

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

    As many of the first two as of the last two variables, which form a path::

        >>> NestedSubsets([[0, 1], [2, 3]], 4, edges=[(0, 1), (2, 3)], links=[(0, 1, "==")])
        NestedSubsets(2 subsets, num_variables=4, 2 edges, 1 links)
    """

    def __init__(
        self,
        subsets: Iterable[Iterable[int]],
        num_variables: int,
        references: Iterable[Iterable[int]] | None = None,
        edges: Iterable[tuple[int, int]] = (),
        links: Iterable[tuple[int, int, str | None]] = (),
    ) -> None:
        check_size("num_variables", num_variables)
        given = [_elements(subset, index) for index, subset in enumerate(checked_sequence("subsets", subsets))]
        members = [_members(elements, index, int(num_variables)) for index, elements in enumerate(given)]
        self.num_variables = num_variables = int(num_variables)
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
        self.references = None if references is None else _references(references, given)
        #: Variables whose zeros are counted by the outermost subsets, and subsets whose reference is the complement of
        #: theirs; ``None`` where ones are counted everywhere.
        self.complemented = None if self.references is None else _orient(members, self.references, num_variables)
        #: Whether the zeros of a variable are counted, as a tensor; ``None`` without references.
        self.complemented_variables = None if self.complemented is None else torch.tensor(self.complemented[0])
        self.edges = _forest_edges(edges, num_variables)
        self.links = _forest_links(links, members)
        self.coupling = (
            CoupledForest(self.forest, members, self.edges, tuple((i, j) for i, j, _ in self.links))
            if self.edges or self.links
            else None
        )
        #: Place of each entry of the tables of subsets, edges and links in all parameters together, with a 0 and a -inf
        #: behind them; ``None`` without links, where they are the parameters.
        self.entry_sources = self._entry_sources() if self.links else None
        #: Order of these entries in which complemented variables and counts are plain ones, its own inverse; ``None``
        #: without references.
        self.complemented_entries = (
            None if self.complemented is None else self._complemented_entries(*self.complemented)
        )
        self._freeze()

    def _entry_sources(self) -> Tensor:
        before = self.table_size + 4 * len(self.edges)
        possible, impossible = before + self.link_table_size, before + self.link_table_size + 1
        sources = [np.arange(before)]
        for (i, j, kind), size in zip(self.links, self._link_sizes, strict=True):
            first, second = np.arange(self.sizes[i] + 1)[:, None], np.arange(self.sizes[j] + 1)
            if kind is None:
                entries = before + first * len(second) + second
            elif kind == "difference":
                entries = before + first - second + self.sizes[j]
            else:
                held = {"==": first == second, "<=": first <= second, "<": first < second}[kind]
                entries = np.where(held, possible, impossible)
            sources.append(entries.ravel())
            before += size
        return torch.from_numpy(np.concatenate(sources))

    def _complemented_entries(self, flipped: np.ndarray, reversed_subsets: np.ndarray) -> Tensor:
        order, before = [], 0
        for size, is_reversed in zip(self.sizes, reversed_subsets, strict=True):
            counts = np.arange(size + 1)
            order.append(before + (counts[::-1] if is_reversed else counts))
            before += size + 1
        for a, b in self.edges:
            order.append(before + (np.arange(4) ^ (2 * int(flipped[a]) + int(flipped[b]))))
            before += 4
        total = before if self.coupling is None else self.coupling.table_size
        return torch.from_numpy(np.concatenate([*order, np.arange(before, total)]))

    def _freeze(self) -> None:
        for array in (*self.subsets, *(self.references or ()), *(self.complemented or ())):
            array.setflags(write=False)

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

    @classmethod
    def from_tree(cls, edges: Iterable[tuple[int, int]], num_variables: int, min_size: int = 2) -> "NestedSubsets":
        """Makes a subset of every subtree of at least ``min_size`` variables, and keeps the edges.

        :param edges: Pairs of variables that form a forest, such as a Chow-Liu tree. A tree hangs from its smallest
            variable; the subtree of a variable is this variable with all that hangs from it.
        :param int num_variables: Number of variables.
        :param int min_size: Smallest number of variables of a subset, at least 1.
        :return: The subtrees, the smallest first; cost of the sum of their sizes.

        Example::

            >>> subsets = NestedSubsets.from_tree([(0, 1), (1, 2), (1, 3)], num_variables=5)
            >>> [subset.tolist() for subset in subsets.subsets], subsets.edges
            ([[1, 2, 3], [0, 1, 2, 3]], ((0, 1), (1, 2), (1, 3)))
        """
        check_size("num_variables", num_variables)
        check_size("min_size", min_size)
        pairs = _forest_edges(edges, int(num_variables))
        neighbours: list[list[int]] = [[] for _ in range(num_variables)]
        for a, b in pairs:
            neighbours[a].append(b)
            neighbours[b].append(a)
        parent = [-1] * num_variables
        order: list[int] = []
        for root in range(num_variables):
            if parent[root] < 0:
                parent[root] = root
                reached = [root]
                for d in reached:
                    for other in neighbours[d]:
                        if parent[other] < 0:
                            parent[other] = d
                            reached.append(other)
                order += reached
        below = [[d] for d in range(num_variables)]
        for d in reversed(order):
            if parent[d] != d:
                below[parent[d]] += below[d]
        subtrees: list[list[int]] = [sorted(members) for members in below if len(members) >= min_size]
        subtrees.sort(key=lambda members: (len(members), members))
        return cls(subtrees, num_variables, edges=pairs)

    @property
    def table_size(self) -> int:
        r"""Length of all tables together, :math:`\sum_k (|s_k| + 1)`."""
        return self.forest.table_size

    @property
    def link_table_size(self) -> int:
        """Length of the tables of all links of the kinds ``"difference"`` and ``None`` together."""
        return sum(self._link_sizes)

    @property
    def _link_sizes(self) -> list[int]:
        return [_link_size(kind, self.sizes[i], self.sizes[j]) for i, j, kind in self.links]

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
        return _packed(tables, [size + 1 for size in self.sizes], "one for each subset")

    def pack_links(self, tables: Sequence[Tensor]) -> Tensor:
        """Concatenates tables of links, one for each link of the kinds ``"difference"`` and ``None``, in their order.

        :param tables: Tensors of shape ``batch + (len(i) + len(j) + 1,)``, and of shape ``batch + (len(i) + 1,
            len(j) + 1)``; batch shapes broadcast.
        :return: Shape ``batch + (link_table_size,)``, as :class:`~pyro_structured.distributions.RecursiveCardinality`
            expects.
        :raises ValueError: if the number of tables or the shape of one is wrong.

        Example::

            >>> subsets = NestedSubsets([[0], [1]], num_variables=2, links=[(0, 1, None)])
            >>> subsets.pack_links([torch.eye(2)])
            tensor([1., 0., 0., 1.])
        """
        kinds = [link for link in self.links if link[2] in (None, "difference")]
        flat = [
            table.flatten(-2) if kind is None and table.shape[-2:] == (self.sizes[i] + 1, self.sizes[j] + 1) else table
            for table, (i, j, kind) in zip(tables, kinds, strict=False)
        ]
        sizes = [size for size in self._link_sizes if size]
        return _packed([*flat, *tables[len(flat) :]], sizes, 'one for each link that is None or "difference"')

    def split(self, count_logits: Tensor) -> tuple[Tensor, ...]:
        """Splits packed tables, as of :meth:`pack` or ``count_marginals``, into a view for each subset.

        :param Tensor count_logits: Packed tables, shape ``(..., table_size)``.
        :return: Tensors of shape ``(..., len(subset) + 1)``.
        """
        check_last_axis("count_logits", count_logits, self.table_size)
        tables: tuple[Tensor, ...] = count_logits.split([size + 1 for size in self.sizes], -1)
        return tables

    def counts(self, value: Tensor) -> Tensor:
        """Counts the variables in every subset that differ from its reference, in :math:`O(D)` a vector.

        :param Tensor value: Zeros and ones, shape ``(..., num_variables)``.
        :return: Integers (long), without derivatives, shape ``(..., number of subsets)``.

        Example::

            >>> NestedSubsets([[0], [0, 2]], 3).counts(torch.tensor([1.0, 1.0, 1.0]))
            tensor([1, 2])
        """
        check_last_axis("value", value, self.num_variables)
        if self.complemented is None:
            return self.forest.counts(value)
        flipped, reversed_subsets = (torch.tensor(marks, device=value.device) for marks in self.complemented)
        counts = self.forest.counts((value == 1) ^ flipped)
        sizes = torch.tensor(self.sizes, dtype=torch.long, device=value.device)
        return torch.where(reversed_subsets, sizes - counts, counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NestedSubsets):
            return NotImplemented
        same = self.num_variables == other.num_variables and self.sizes == other.sizes
        same = same and (self.edges, self.links) == (other.edges, other.links)
        same = same and (self.references is None) == (other.references is None)
        pairs = [*zip(self.subsets, other.subsets, strict=False)]
        pairs += zip(self.references or (), other.references or (), strict=False)
        return same and all(np.array_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        return hash((self.num_variables, self.sizes, self.edges, self.links))

    def __repr__(self) -> str:
        parts = [f"{len(self.sizes)} subsets", f"num_variables={self.num_variables}"]
        parts += [
            f"{len(given)} {name}"
            for name, given in (("references", self.references or ()), ("edges", self.edges), ("links", self.links))
            if given
        ]
        return f"NestedSubsets({', '.join(parts)})"


def _packed(tables: Sequence[Tensor], sizes: Sequence[int], of_what: str) -> Tensor:
    if len(tables) != len(sizes):
        raise ValueError(f"tables: expected {len(sizes)} tables, {of_what}, got {len(tables)}")
    for index, (table, size) in enumerate(zip(tables, sizes, strict=True)):
        check_last_axis(f"tables[{index}]", table, size)
    if not tables:
        return torch.zeros(0)
    batch = checked_broadcast("tables", [table.shape[:-1] for table in tables])
    return torch.cat([table.expand(batch + table.shape[-1:]) for table in tables], -1)


def _link_size(kind: str | None, first: int, second: int) -> int:
    """Numbers that the parameters hold for a link of subsets of these sizes."""
    return (first + 1) * (second + 1) if kind is None else first + second + 1 if kind == "difference" else 0


def _references(references: Iterable[Iterable[int]], subsets: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """References in the order of the sorted elements, as booleans."""
    given = checked_sequence("references", references)
    if len(given) != len(subsets):
        raise ValueError(f"references: expected {len(subsets)} references, one for each subset, got {len(given)}")
    result = []
    for index, (reference, elements) in enumerate(zip(given, subsets, strict=True)):
        try:
            bits = np.asarray(reference if isinstance(reference, np.ndarray) else list(reference))
        except (TypeError, ValueError):
            raise ValueError(f"references: expected zeros and ones in references[{index}], got {reference!r}") from None
        if bits.shape != elements.shape or not np.isin(bits, (0, 1)).all():
            raise ValueError(
                f"references: expected {elements.size} zeros and ones in references[{index}], one for each element of "
                f"subsets[{index}], got {reference!r}"
            )
        result.append(bits.astype(bool)[np.argsort(elements)] if elements.size else np.zeros(0, bool))
        result[-1].setflags(write=False)
    return tuple(result)


def _orient(
    members: list[np.ndarray], references: tuple[np.ndarray, ...], num_variables: int
) -> tuple[np.ndarray, np.ndarray]:
    """Reference of each variable in its outermost subset, and whether a subset's reference is the complement of it."""
    owner, flipped = np.full(num_variables, -1), np.zeros(num_variables, dtype=bool)
    is_reversed = np.zeros(len(members), dtype=bool)
    # Of equal subsets, the last one contains the others, as where links look for the outermost.
    for index in sorted(range(len(members)), key=lambda i: (-len(members[i]), -i)):
        inside, reference = members[index], references[index]
        if not len(inside):
            continue
        parent = owner[inside[0]]
        if parent < 0:
            flipped[inside] = reference
        differs = reference ^ flipped[inside]
        if differs.any() and not differs.all():
            raise ValueError(
                f"references: expected in references[{index}] that of subsets[{parent}], which contains "
                f"subsets[{index}], or its complement, got {reference.astype(int).tolist()} beside "
                f"{references[parent][np.isin(members[parent], inside)].astype(int).tolist()}"
            )
        is_reversed[index] = bool(differs.any())
        owner[inside] = index
    return flipped, is_reversed


def _forest_edges(edges: Iterable[tuple[int, int]], num_variables: int) -> tuple[tuple[int, int], ...]:
    pairs = []
    component = list(range(num_variables))
    for edge in checked_sequence("edges", edges):
        try:
            a, b = (int(end) for end in edge)
            is_pair = (a, b) == tuple(edge) and a != b and 0 <= min(a, b) and max(a, b) < num_variables
        except (TypeError, ValueError, OverflowError):
            is_pair = False
        if not is_pair:
            raise ValueError(f"edges: expected pairs of two different integers in range({num_variables}), got {edge!r}")
        _join(component, a, b, f"edges: expected a forest, but ({a}, {b}) closes a cycle")
        pairs.append((a, b))
    return tuple(pairs)


def _join(component: list[int], a: int, b: int, message: str) -> None:
    """Joins two trees, in a list of ancestors, or raises a ValueError if they are the same."""
    roots = []
    for node in (a, b):
        while component[node] != node:
            component[node] = node = component[component[node]]
        roots.append(node)
    if roots[0] == roots[1]:
        raise ValueError(message)
    component[roots[0]] = roots[1]


def _forest_links(
    links: Iterable[tuple[int, int, str | None]], members: list[np.ndarray]
) -> tuple[tuple[int, int, str | None], ...]:
    given = checked_sequence("links", links)
    kinds = (None, "==", "<=", "<", "difference")
    component, result = list(range(len(members))), []
    owner = {}
    for index in sorted(range(len(members)), key=lambda i: len(members[i])) if given else ():
        owner.update(dict.fromkeys(members[index].tolist(), index))
    for link in given:
        try:
            i, j, kind = link
            is_link = (int(i), int(j)) == (i, j) and i != j and 0 <= min(i, j) and max(i, j) < len(members)
            is_link = is_link and kind in kinds
        except (TypeError, ValueError, OverflowError):
            is_link = False
        if not is_link:
            raise ValueError(
                f"links: expected triples (i, j, kind) of two different numbers of the {len(members)} subsets and one "
                f"of {', '.join(map(repr, kinds))}, got {link!r}"
            )
        for end in (int(i), int(j)):
            if not len(members[end]) or owner[int(members[end][0])] != end:
                outer = f"subsets[{owner[int(members[end][0])]}] contains it" if len(members[end]) else "it is empty"
                raise ValueError(f"links: expected outermost subsets, got subsets[{end}] in {link!r}, but {outer}")
        _join(component, int(i), int(j), f"links: expected a forest, but {link!r} closes a cycle")
        result.append((int(i), int(j), kind))
    return tuple(result)


def _elements(subset: Iterable[int], index: int) -> np.ndarray:
    """Elements in the given order."""
    try:
        elements = np.asarray(subset if isinstance(subset, (range, np.ndarray)) else list(subset))
    except (TypeError, ValueError):
        raise ValueError(f"subsets: expected integers in subsets[{index}], got {subset!r}") from None
    if elements.size == 0:
        return np.zeros(0, dtype=np.int64)
    if elements.ndim != 1 or not np.issubdtype(elements.dtype, np.integer):
        raise ValueError(f"subsets: expected integers in subsets[{index}], got {subset!r}")
    return elements


def _members(elements: np.ndarray, index: int, num_variables: int) -> np.ndarray:
    if not len(elements):
        return elements
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
