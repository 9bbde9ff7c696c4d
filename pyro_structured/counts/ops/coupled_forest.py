"""Plans of counts in nested subsets of variables that a forest of edges couples."""

__all__ = ["AnyForest", "CoupledForest", "CoupledTree", "Link", "Mix", "Product", "Release", "Step"]

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.counts.ops.count_forest import CountForest


class _Pattern(NamedTuple):
    """Channels that a step combines: pairs of a left and a right one, or single ones with an entry of an edge's table.

    The terms of an output stand together. ``second`` holds right channels, or entries of the edge's table; ``None``
    stands for a weight of zero.
    """

    outputs: int
    first: tuple[int, ...]
    second: tuple[int, ...] | None


# Messages have one channel (nothing but a count), two (the state of one vertex), or four (the states of the first and
# the last vertex of a piece of a path, in this order).
SCALARS = _Pattern(1, (0,), (0,))
SPREAD = _Pattern(2, (0, 0), (0, 1))
VERTEX = _Pattern(2, (0, 1), (0, 1))
APPEND = _Pattern(4, (0, 1, 2, 3), (0, 1, 0, 1))
CONCATENATE = _Pattern(4, (0, 1, 0, 1, 2, 3, 2, 3), (0, 2, 1, 3, 0, 2, 1, 3))
BRIDGE_VERTEX = _Pattern(4, (0, 0, 1, 1), (0, 1, 2, 3))
BRIDGE_PATH = _Pattern(4, (0, 1, 0, 1, 2, 3, 2, 3), (0, 2, 1, 3, 0, 2, 1, 3))
HANG_VERTEX = _Pattern(2, (0, 1, 0, 1), (0, 1, 2, 3))
HANG_PATH = _Pattern(2, (0, 1, 2, 3, 0, 1, 2, 3), (0, 0, 1, 1, 2, 2, 3, 3))
TOP = _Pattern(2, (0, 1, 2, 3), None)
SUM_VERTEX = _Pattern(1, (0, 1), None)
SUM_PATH = _Pattern(1, (0, 1, 2, 3), None)
_PRODUCTS = (SCALARS, SPREAD, VERTEX, APPEND, CONCATENATE)
_MIXES = (BRIDGE_VERTEX, BRIDGE_PATH, HANG_VERTEX, HANG_PATH, TOP, SUM_VERTEX, SUM_PATH)
_RELEASE, _LINK = "release", "link"
_TURNED = (0, 2, 1, 3)


@dataclass(frozen=True)
class Step:
    """Nodes that are computed together.

    ``start`` is the first of the ``nodes * channels * width`` cells of the results. ``left`` holds the cells of the
    nodes that they are computed from, shape ``(nodes, channels, width)``; narrower messages are padded with the dummy
    cell, which holds -inf. The ``..._ids``, shape ``(nodes,)``, number the nodes.
    """

    start: int
    channels: int
    width: int
    node_ids: Tensor
    left: Tensor
    left_ids: Tensor

    @property
    def cells(self) -> slice:
        """The cells of the results."""
        return slice(self.start, self.start + self.left.shape[0] * self.channels * self.width)


@dataclass(frozen=True)
class Product(Step):
    """Sums of counts: an output is the sum of convolutions of pairs of channels, ``first`` with ``second``.

    ``first_terms`` and ``second_terms``, shape ``(channels, terms)``, hold the pairs in which a channel of the left
    and of the right nodes occurs.
    """

    right: Tensor
    right_ids: Tensor
    first: Tensor
    second: Tensor
    first_terms: Tensor
    second_terms: Tensor


@dataclass(frozen=True)
class Mix(Step):
    """Sums over states: an output is the sum of channels ``first`` times weights, the same for all counts.

    ``weights`` holds the entries of the tables, shape ``(nodes, channels, terms)``; ``table_size`` stands for zero.
    """

    first: Tensor
    first_terms: Tensor
    weights: Tensor
    has_edge: bool


@dataclass(frozen=True)
class Release(Step):
    """Sums over counts that nothing weighs any more: a width of one."""


@dataclass(frozen=True)
class Link(Step):
    """Counts of other subsets, summed out against a table: ``weights``, shape ``(nodes, right width, left width)``."""

    right: Tensor
    right_ids: Tensor
    weights: Tensor


@dataclass(frozen=True)
class CoupledTree:
    """Schedule for message passing: all messages lie in one buffer of ``num_cells`` cells and a dummy cell.

    Variable ``d`` owns the cells ``4 d`` to ``4 d + 3``: counts 0 and 1 in the states 0 and 1. Entry
    ``potential_entries[i]`` of the tables adds to the cell ``potential_cells[i]``; ``constants`` are the entries of
    empty subsets. ``roots`` holds the cells of the roots, shapes ``(nodes, channels, width)``, ``root_ids`` their
    numbers. ``members`` names for each node one of its variables.
    """

    num_variables: int
    num_nodes: int
    num_cells: int
    steps: tuple[Step, ...]
    roots: tuple[Tensor, ...]
    root_ids: tuple[Tensor, ...]
    potential_entries: Tensor
    potential_cells: Tensor
    constants: Tensor
    members: Tensor


class CoupledForest:
    r"""Counts in nested subsets of variables, edges between variables, and links between counts.

    A subset is compatible with the edges if one vertex lies on all edges that cross its boundary: its message is a
    function of this vertex's state and of the count. Inside, the tree hangs from that vertex; its heavy paths are
    products of matrices of counts' weights, split at the middle of their weight, and what hangs from a path's vertex
    is merged smallest first. So a variable takes part in O(log D) steps for each subset that holds it.

    :param CountForest forest: Counts in the subsets, and their tables.
    :param subsets: Members of each subset, sorted arrays.
    :param edges: Pairs of variables that form a forest; each has a table of four numbers, for the states (0, 0),
        (0, 1), (1, 0) and (1, 1).
    :param links: Pairs of outermost subsets that no edge crosses, which form a forest; each has a table, row by row,
        of the counts of both.
    :raises ValueError: if a subset is not compatible with the edges, or a linked one is crossed by an edge.
    """

    is_single = False

    def __init__(
        self,
        forest: CountForest,
        subsets: Sequence[np.ndarray],
        edges: Sequence[tuple[int, int]],
        links: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.num_variables = forest.num_variables
        self.edges, self.links = tuple(edges), tuple(links)
        self._forest = forest
        self._nodes = _Contraction(subsets, edges, links, forest.num_variables).nodes
        sizes = [len(members) for members in subsets]
        entries = [n + 1 for n in sizes] + [4] * len(edges) + [(sizes[i] + 1) * (sizes[j] + 1) for i, j in links]
        nodes = [*self._nodes.subset_nodes, *[-1] * (len(edges) + len(links))]
        self.tables = tuple((node, number - 1) for node, number in zip(nodes, entries, strict=True))
        self.table_size = sum(entries)
        #: Outermost subset of each variable, or -1; first entries of the tables, and of those of edges.
        self.outermost = np.full(self.num_variables, -1)
        for index in sorted(range(len(subsets)), key=lambda i: sizes[i]):
            self.outermost[subsets[index]] = index
        self.first_entries = tuple(np.cumsum([0, *entries])[:-1].tolist())
        self.edge_start = sum(n + 1 for n in sizes)
        self._remember()

    @cached_property
    def free(self) -> "CoupledForest":
        """The edges alone."""
        return CoupledForest(CountForest(self.num_variables, np.zeros((0, 2), np.int64), ()), (), self.edges)

    def _remember(self) -> None:
        self._tree = lru_cache(maxsize=8)(self._build)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_tree", "free")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._remember()

    def counts(self, value: Tensor) -> Tensor:
        """Counts the ones in every subset; arguments as for :meth:`CountForest.counts`."""
        return self._forest.counts(value)

    def entries(self, value: Tensor) -> Tensor:
        """Entry of each table, counted from its first, that a value meets, shape ``(..., number of tables)``, long."""
        counts = self.counts(value)
        states = value.long()
        parts = [counts]
        if self.edges:
            ends = torch.tensor(self.edges, device=value.device)
            parts.append(2 * states[..., ends[:, 0]] + states[..., ends[:, 1]])
        if self.links:
            first, second = torch.tensor(self.links, device=value.device).unbind(-1)
            widths = torch.tensor([self.tables[j][1] + 1 for _, j in self.links], device=value.device)
            parts.append(counts[..., first] * widths + counts[..., second])
        return torch.cat(parts, -1)

    def tree(self, tables: Tensor) -> CoupledTree:
        """Plans the passes, with messages truncated to the counts that the potentials allow.

        :param Tensor tables: Log-potentials, shape ``(rows, table_size)``.
        """
        sizes = [size + 1 for _, size in self.tables]
        number = len(self._nodes.subset_nodes)
        possible = (tables != -torch.inf).any(0)
        limits: tuple[int, ...] = ()
        if not bool(possible.all()):
            parts = possible.cpu().split(sizes)[:number]
            limits = tuple(int(p.nonzero().max()) if bool(p.any()) else 0 for p in parts)
        return self._tree(limits, tables.device)

    def _build(self, limits: tuple[int, ...], device: torch.device) -> CoupledTree:
        return _plan(self._nodes, [size + 1 for _, size in self.tables], limits, device)


AnyForest = CountForest | CoupledForest


class _Nodes(NamedTuple):
    """Messages to compute, children first: those of the variables, then what ``kinds`` names.

    ``tables`` numbers an edge or a link, ``turned`` says whether its table is to be transposed.
    """

    kinds: list[_Pattern | str | None]
    left: list[int]
    right: list[int]
    tables: list[int]
    turned: list[bool]
    sizes: list[int]
    subset_nodes: list[int]
    roots: list[int]

    def add(self, kind: _Pattern | str, left: int, right: int = -1, table: int = -1, turned: bool = False) -> int:
        """Appends a message."""
        size = 0 if kind == _RELEASE else self.sizes[left]
        if isinstance(kind, _Pattern) and right >= 0:
            size += self.sizes[right]
        self.kinds.append(kind)
        self.left.append(left)
        self.right.append(right)
        self.tables.append(table)
        self.turned.append(turned)
        self.sizes.append(size)
        return len(self.kinds) - 1

    def channels(self, node: int) -> int:
        """Number of channels of a message."""
        kind = self.kinds[node]
        return kind.outputs if isinstance(kind, _Pattern) else 1 if kind == _LINK else 2

    def multiply(self, factors: Iterable[int]) -> int:
        """Adds up the counts of messages of one vertex, or of none, the smallest first."""
        heap = [(self.sizes[node], node) for node in factors]
        heapq.heapify(heap)
        kind = VERTEX if self.channels(heap[0][1]) == 2 else SCALARS
        while len(heap) > 1:
            (_, a), (_, b) = heapq.heappop(heap), heapq.heappop(heap)
            node = self.add(kind, a, b)
            heapq.heappush(heap, (self.sizes[node], node))
        return heap[0][1]


class _Contraction:
    """Contracts subsets, the smallest first: each becomes a message of the vertex through which the rest sees it."""

    def __init__(
        self,
        subsets: Sequence[np.ndarray],
        edges: Sequence[tuple[int, int]],
        links: Sequence[tuple[int, int]],
        num_variables: int,
    ) -> None:
        none = [-1] * num_variables
        kinds: list[_Pattern | str | None] = [None] * num_variables
        self.nodes = _Nodes(
            kinds, [*none], [*none], [*none], [False] * num_variables, [1] * num_variables, [-1] * len(subsets), []
        )
        self._edges = edges
        self._message = list(range(num_variables))
        self._neighbours: list[dict[int, int]] = [{} for _ in range(num_variables)]
        for index, (a, b) in enumerate(edges):
            self._neighbours[a][b] = self._neighbours[b][a] = index
        self._live = np.ones(num_variables, dtype=bool)
        self._owner = np.full(num_variables, -1)
        # Messages of subsets that no vertex stands for, by a member: alone, or at an outer vertex.
        self._alone: dict[int, int] = {}
        self._hanging: dict[int, tuple[int, int]] = {}
        self._hooks: list[list[int]] = [[] for _ in range(num_variables)]
        linked = {end for link in links for end in link}
        for index in sorted(range(len(subsets)), key=lambda i: len(subsets[i])):
            if len(subsets[index]):
                self.nodes.subset_nodes[index] = self._contract(index, subsets[index], index in linked)
        self._finish(links)

    def _contract(self, index: int, members: np.ndarray, is_linked: bool) -> int:
        """Replaces what is left of a subset by one message, which is returned."""
        self._owner[members] = index
        variables, inside = members.tolist(), members[self._live[members]].tolist()
        crossing = [(u, w) for u in inside for w in self._neighbours[u] if self._owner[w] != index]
        outer = [m for m in variables if m in self._hanging and self._owner[self._hanging[m][0]] != index]
        held = [self._hanging[m][0] for m in outer]
        held += [u for u in inside if any(self._owner[m] != index for m in self._hooks[u])]
        vertex = self._common_vertex(index, crossing, held)
        if is_linked and vertex is not None:
            raise ValueError(
                f"links: expected subsets that no edge crosses, but {self._crossing_edges(index)} cross the boundary "
                f"of subsets[{index}]"
            )
        alone = [self._alone.pop(m) for m in variables if m in self._alone]
        remaining = set(inside)
        message = None
        if vertex is not None and self._owner[vertex] == index:
            message = self._component(vertex, remaining)
            message = message if self.nodes.channels(message) == 2 else self.nodes.add(TOP, message)
        elif vertex is not None:
            branches = [self._hang(self._component(u, remaining), vertex, u) for u, _ in crossing]
            message = self.nodes.multiply(branches + [self._unhook(m) for m in outer])
        for u in inside:
            if u in remaining:
                piece = self._component(u, remaining)
                alone.append(self.nodes.add(SUM_VERTEX if self.nodes.channels(piece) == 2 else SUM_PATH, piece))
        if alone:
            rest = self.nodes.multiply(alone)
            message = rest if message is None else self.nodes.add(SPREAD, rest, message)
        assert message is not None
        self._live[members] = False
        if vertex is None:
            self._alone[variables[0]] = message
        elif self._owner[vertex] == index:
            self._live[vertex], self._message[vertex] = True, message
            self._neighbours[vertex] = {w: self._neighbours[vertex][w] for _, w in crossing}
        else:
            for u, _ in crossing:
                del self._neighbours[vertex][u]
            self._hanging[variables[0]] = (vertex, message)
            self._hooks[vertex].append(variables[0])
        return message

    def _common_vertex(self, index: int, crossing: list[tuple[int, int]], held: list[int]) -> int | None:
        """Vertex on all edges that cross a subset's boundary, an inner one where there is a choice.

        :param crossing: Edges from inner to outer vertices that are left.
        :param held: Vertices from which a subset hangs on the other side of the boundary.
        """
        if not crossing and not held:
            return None
        common = set.intersection(*({u, w} for u, w in crossing), *({w} for w in held))
        if not common:
            raise ValueError(
                "subsets: expected for each subset one vertex on all edges that cross its boundary, but "
                f"{self._crossing_edges(index)} cross that of subsets[{index}]"
            )
        return next((u for u, _ in crossing if u in common), next(iter(common)))

    def _crossing_edges(self, index: int) -> str:
        crossing = [(a, b) for a, b in self._edges if (self._owner[a] == index) != (self._owner[b] == index)]
        return f"edges {', '.join(map(str, crossing[:5]))}{' ...' if len(crossing) > 5 else ''}"

    def _unhook(self, member: int) -> int:
        vertex, message = self._hanging.pop(member)
        self._hooks[vertex].remove(member)
        return message

    def _hang(self, piece: int, upper: int, lower: int) -> int:
        """Message of a path to the vertex above it."""
        return self._over_edge(HANG_VERTEX if self.nodes.channels(piece) == 2 else HANG_PATH, piece, upper, lower)

    def _over_edge(self, kind: _Pattern, piece: int, upper: int, lower: int) -> int:
        edge = self._neighbours[lower][upper]
        table = len(self.nodes.subset_nodes) + edge
        return self.nodes.add(kind, piece, table=table, turned=self._edges[edge][0] != upper)

    def _component(self, root: int, remaining: set[int]) -> int:
        """Message of the path that begins at a vertex, with all that hangs from it; takes its vertices out of
        ``remaining``.
        """
        owner, order, parent = self._owner[root], [root], {root: -1}
        remaining.discard(root)
        for v in order:
            for w in self._neighbours[v]:
                if w in remaining:
                    remaining.discard(w)
                    parent[w] = v
                    order.append(w)
        weight, heavy, heaviest = dict.fromkeys(order, 1), {}, dict.fromkeys(order, 0)
        for v in reversed(order):
            weight[v] += self.nodes.sizes[self._message[v]]
            p = parent[v]
            if p >= 0:
                weight[p] += weight[v]
                if weight[v] > heaviest[p]:
                    heavy[p], heaviest[p] = v, weight[v]
        light: dict[int, list[int]] = {v: [] for v in order}
        vectors = {}
        for v in reversed(order):
            hooked = [self._unhook(m) for m in list(self._hooks[v]) if self._owner[m] == owner]
            vectors[v] = self.nodes.multiply([self._message[v], *light.pop(v), *hooked])
            if v != root and heavy[parent[v]] == v:
                continue
            path = [v]
            while path[-1] in heavy:
                path.append(heavy[path[-1]])
            piece = self._piece(path, [vectors.pop(u) for u in path])
            if v == root:
                return piece
            light[parent[v]].append(self._hang(piece, parent[v], v))
        raise AssertionError("the root comes last")

    def _piece(self, path: list[int], vectors: list[int]) -> int:
        """Product of the matrices along a path, split at the middle of its weight."""
        weights = np.cumsum([0] + [self.nodes.sizes[vector] + 1 for vector in vectors])

        def multiply(start: int, stop: int) -> int:
            if stop - start == 1:
                return vectors[start]
            half = (weights[start] + weights[stop]) / 2
            middle = int(np.searchsorted(weights[start + 1 : stop - 1], half)) + start + 1
            if middle > start + 1 and half - weights[middle - 1] < weights[middle] - half:
                middle -= 1
            left, right = multiply(start, middle), multiply(middle, stop)
            bridge = BRIDGE_VERTEX if middle - start == 1 else BRIDGE_PATH
            bridged = self._over_edge(bridge, left, path[middle - 1], path[middle])
            return self.nodes.add(APPEND if stop - middle == 1 else CONCATENATE, bridged, right)

        return multiply(0, len(path))

    def _finish(self, links: Sequence[tuple[int, int]]) -> None:
        """Sums over what no subset holds: counts have no meaning there."""
        nodes = self.nodes
        self._owner[:] = len(nodes.subset_nodes)
        top = np.flatnonzero(self._live).tolist()
        for v in top:
            if self._neighbours[v] or self._hooks[v]:
                self._message[v] = nodes.add(_RELEASE, self._message[v])
                for m in self._hooks[v]:
                    self._hanging[m] = (v, nodes.add(_RELEASE, self._hanging[m][1]))
        remaining = set(top)
        nodes.roots.extend(self._component(v, remaining) for v in top if v in remaining)
        linked: dict[int, list[tuple[int, int]]] = {}
        for index, (i, j) in enumerate(links, len(nodes.subset_nodes) + len(self._edges)):
            linked.setdefault(i, []).append((j, index))
            linked.setdefault(j, []).append((i, index))
        joined, pairs = {nodes.subset_nodes[i] for i in linked}, set(links)
        nodes.roots.extend(message for message in self._alone.values() if message not in joined)
        seen: set[int] = set()
        for root in linked:
            if root in seen:
                continue
            order = [(root, -1, -1)]
            seen.add(root)
            for i, _, _ in order:
                for j, index in linked[i]:
                    if j not in seen:
                        seen.add(j)
                        order.append((j, i, index))
            message = {i: nodes.subset_nodes[i] for i, _, _ in order}
            for j, i, index in reversed(order[1:]):
                message[i] = nodes.add(_LINK, message[i], message[j], index, (i, j) in pairs)
            nodes.roots.append(message[root])


def _plan(nodes: _Nodes, sizes: list[int], limits: tuple[int, ...], device: torch.device) -> CoupledTree:
    """Groups nodes of one kind, height and similar widths, and numbers cells."""
    number = len(nodes.kinds)
    num_variables = nodes.kinds.count(None)
    widths = _widths(nodes, limits)
    starts, strides = np.zeros(number, np.int64), np.full(number, 2)
    starts[:num_variables] = 4 * np.arange(num_variables)
    left, right, tables = (np.array(column, np.int64) for column in (nodes.left, nodes.right, nodes.tables))
    channels = np.array([nodes.channels(node) for node in range(number)])
    first_entries = np.cumsum([0, *sizes])
    dummy_entry = int(first_entries[-1])
    position, groups = 4 * num_variables, []
    for group in _groups(nodes, widths):
        width = int(widths[group].max())
        count = int(channels[group[0]])
        starts[group] = position + count * width * np.arange(len(group))
        strides[group] = width
        groups.append((group, position, width))
        position += count * width * len(group)
    dummy = position

    def cells(group: np.ndarray) -> Tensor:
        counts, channel = np.arange(int(widths[group].max())), np.arange(int(channels[group[0]]))
        found = starts[group][:, None, None] + channel[:, None] * strides[group][:, None, None] + counts
        return torch.from_numpy(np.where(counts < widths[group][:, None, None], found, dummy)).to(device)

    def tensor(numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(device)

    steps: list[Step] = []
    for group, start, width in groups:
        kind = nodes.kinds[group[0]]
        turned = np.array([nodes.turned[node] for node in group])
        others = (cells(right[group]), tensor(right[group])) if right[group[0]] >= 0 else None
        base = (start, int(channels[group[0]]), width, tensor(group), cells(left[group]), tensor(left[group]))
        if kind == _RELEASE:
            steps.append(Release(*base))
        elif kind == _LINK:
            assert others is not None
            rows, columns = np.arange(others[0].shape[-1])[:, None], np.arange(base[4].shape[-1])
            full_rows, full_columns = (np.array([nodes.sizes[n] for n in side[group]]) + 1 for side in (right, left))
            straight = rows * full_columns[:, None, None] + columns
            entries = np.where(turned[:, None, None], columns * full_rows[:, None, None] + rows, straight)
            used = (rows < widths[right[group]][:, None, None]) & (columns < widths[left[group]][:, None, None])
            entries = np.where(used, first_entries[tables[group]][:, None, None] + entries, dummy_entry)
            steps.append(Link(*base, *others, tensor(entries)))
        elif others is not None:
            assert isinstance(kind, _Pattern) and kind.second is not None
            terms = (tensor(_terms(kind.first)), tensor(_terms(kind.second)))
            steps.append(Product(*base, *others, tensor(np.array(kind.first)), tensor(np.array(kind.second)), *terms))
        else:
            assert isinstance(kind, _Pattern)
            shape = (len(group), kind.outputs, len(kind.first) // kind.outputs)
            weights = np.full(shape, dummy_entry)
            if kind.second is not None:
                entries = np.where(turned[:, None], np.array(_TURNED)[list(kind.second)], np.array(kind.second))
                weights = (first_entries[tables[group]][:, None] + entries).reshape(shape)
            first = (tensor(np.array(kind.first)), tensor(_terms(kind.first)))
            steps.append(Mix(*base, *first, tensor(weights), kind.second is not None))
    roots, root_ids = [], []
    for key in sorted({(int(channels[node]), int(widths[node])) for node in nodes.roots}):
        group = np.array([node for node in nodes.roots if (channels[node], widths[node]) == key])
        roots.append(cells(group))
        root_ids.append(tensor(group))
    entries, targets, constants = _potentials(nodes, sizes, starts, strides, channels, widths)
    return CoupledTree(
        num_variables,
        number,
        dummy,
        tuple(steps),
        tuple(roots),
        tuple(root_ids),
        tensor(entries),
        tensor(targets),
        tensor(constants),
        tensor(_members(nodes)),
    )


def _members(nodes: _Nodes) -> np.ndarray:
    members = list(range(nodes.kinds.count(None)))
    for node in range(len(members), len(nodes.kinds)):
        members.append(members[nodes.left[node]])
    return np.array(members, np.int64)


def _terms(channels: tuple[int, ...]) -> np.ndarray:
    """Terms in which each channel occurs, which are equally many, shape ``(channels, terms)``."""
    return np.array([[term for term, c in enumerate(channels) if c == channel] for channel in sorted(set(channels))])


def _potentials(
    nodes: _Nodes, sizes: list[int], starts: np.ndarray, strides: np.ndarray, channels: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of tables of counts, and the cells that they add to; entries that are constants."""
    entries, targets, constants = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    first = 0
    for node, size in zip(nodes.subset_nodes, sizes, strict=False):
        if node < 0:
            constants.append(first)
        else:
            counts = np.arange(min(size, int(widths[node])))
            for channel in range(int(channels[node])):
                entries.append(first + counts)
                targets.append(starts[node] + channel * strides[node] + counts)
        first += size
    return np.concatenate(entries), np.concatenate(targets), np.array(constants, np.int64)


def _widths(nodes: _Nodes, limits: tuple[int, ...]) -> np.ndarray:
    """Numbers of counts that may be possible: bounded by a node's potentials, its children and its parent."""
    own = [len(nodes.kinds)] * len(nodes.kinds)
    for node, limit in zip(nodes.subset_nodes, limits, strict=False):
        if node >= 0:
            own[node] = min(own[node], limit)
    bound = [1] * len(own)
    computed = range(nodes.kinds.count(None), len(own))
    for node in computed:
        kind, left, right = nodes.kinds[node], nodes.left[node], nodes.right[node]
        added = bound[right] if isinstance(kind, _Pattern) and right >= 0 else 0
        bound[node] = 0 if kind == _RELEASE else min(own[node], bound[left] + added)
    for node in reversed(computed):
        kind, left, right = nodes.kinds[node], nodes.left[node], nodes.right[node]
        if kind != _RELEASE:
            bound[left] = min(bound[left], bound[node])
        if isinstance(kind, _Pattern) and right >= 0:
            bound[right] = min(bound[right], bound[node])
    # Variables always own four cells.
    return np.array([1] * len(nodes.kinds[: computed.start]) + bound[computed.start :], np.int64) + 1


def _groups(nodes: _Nodes, widths: np.ndarray) -> list[np.ndarray]:
    height = [0] * len(widths)
    keys: dict[tuple[int, ...], list[int]] = {}
    order = {kind: place for place, kind in enumerate([*_PRODUCTS, *_MIXES, _RELEASE, _LINK])}
    scale = np.ceil(np.log2(widths)).astype(np.int64).tolist()
    for node in range(nodes.kinds.count(None), len(widths)):
        kind, left, right = nodes.kinds[node], nodes.left[node], nodes.right[node]
        assert kind is not None
        height[node] = 1 + max(height[left], height[right] if right >= 0 else 0)
        # Widths of one group differ by less than a factor of two, so that padding wastes little.
        key = (height[node], order[kind], scale[left], scale[right] if right >= 0 else -1, scale[node])
        keys.setdefault(key, []).append(node)
    return [np.array(keys[key], np.int64) for key in sorted(keys)]
