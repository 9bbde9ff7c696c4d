"""Plans of sums over the states of a junction tree whose variables are counted, in nested subsets."""

__all__ = ["CountedPlan", "CountedSchedule", "CountedStep", "CountProduct", "CountSum"]

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from pyro_structured.junction_trees.ops.chordal_graph import clique_forest
from pyro_structured.junction_trees.ops.table_budget import check_table_entries

# First cells of all messages: an impossible one, and one that changes nothing.
IMPOSSIBLE, NEUTRAL = range(2)
# Terms up to which nodes of one level are always computed together, padded to the longest sum.
FEW_TERMS = 4096


@dataclass(frozen=True)
class CountedStep:
    """Nodes that are computed together: O cells of messages, one after the other.

    :ivar int start: The first of these cells.
    :ivar int width: Number of cells of a row, for products; 1 for sums.
    :ivar Tensor weighed: Cells, counted from the first, to which entries of the tables of counts are added.
    :ivar Tensor weights: These entries.
    :ivar Tensor nodes: Numbers of the nodes, shape ``(N,)``.
    :ivar Tensor left: Numbers of the nodes that they are computed from; the number of all nodes where there is none.
    """

    start: int
    width: int
    weighed: Tensor
    weights: Tensor
    nodes: Tensor
    left: Tensor

    def to(self: "Step", device: torch.device) -> "Step":
        """The step with its tensors on a device."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)


Step = TypeVar("Step", bound=CountedStep)


@dataclass(frozen=True)
class CountSum(CountedStep):
    """Sums of a message times a clique's table over R joint states, or over counts.

    :ivar Tensor cells: Cells of the message, shape ``(O, R)``.
    :ivar Tensor entries: Entries of the tables, of the same shape; ``table_size`` where there is none.
    :ivar Tensor cliques: Numbers of the nodes' cliques, shape ``(N,)``; the number of all cliques where there is none.
    """

    cells: Tensor
    entries: Tensor
    cliques: Tensor


@dataclass(frozen=True)
class CountProduct(CountedStep):
    """Convolutions: sums of the counts of two messages, for P joint states, with cells in rows of ``width``.

    :ivar Tensor first: Cells of one message, shape ``(P, A)``.
    :ivar Tensor second: Cells of the other one and, in a last column, the impossible one, shape ``(P, B + 1)``.
    :ivar Tensor rests: Column of ``second`` that goes with each count of ``first``, shape ``(width, A)``.
    :ivar Tensor right: Numbers of the nodes of ``second``, shape ``(N,)``.
    """

    first: Tensor
    second: Tensor
    rests: Tensor
    right: Tensor


@dataclass
class _Node:
    """Message: a function of the states of its scope and of a count.

    :ivar tuple scope: Variables, in increasing order.
    :ivar int width: Number of counts, from 0.
    :ivar tuple inputs: Nodes that it is computed from: two for a product, at most one for a sum.
    :ivar tuple domain: Variables of a sum, of which those in the scope are kept.
    :ivar int clique: Clique whose table is multiplied in, or -1.
    :ivar frozenset counted: Variables of the domain that are counted here.
    :ivar bool is_release: Whether the counts are summed out.
    :ivar list subsets: Subsets whose table weighs the count.
    """

    scope: tuple[int, ...]
    width: int
    inputs: tuple[int, ...] = ()
    domain: tuple[int, ...] = ()
    clique: int = -1
    counted: frozenset[int] = frozenset()
    is_release: bool = False
    subsets: list[int] = field(default_factory=list)


class CountedSchedule(NamedTuple):
    """Steps of a pass, from the leaves to the roots.

    :ivar tuple steps: The steps.
    :ivar Tensor roots: Cells of the roots, which have a single state and count.
    :ivar Tensor root_nodes: Numbers of the roots.
    :ivar int num_cells: Number of cells of all messages.
    :ivar int num_nodes: Number of nodes.
    :ivar int num_terms: Number of terms of all sums, with padding.
    """

    steps: tuple[CountedStep, ...]
    roots: Tensor
    root_nodes: Tensor
    num_cells: int
    num_nodes: int
    num_terms: int


class CountedPlan:
    r"""Messages of a junction tree that are functions of a separator's states and of the number of counted variables.

    A subset of variables is compatible with the cliques if the variables of one clique lie on all edges that cross its
    boundary. Its message is a function of the states of these variables, its *cover*, and of its count: without the
    cover, every component of the graph lies inside or outside. Smaller subsets come first, and are replaced by their
    messages; inside, each component is a junction tree, whose cliques multiply the messages of their children, the
    narrowest first.

    :param cliques: Variables of the cliques, in increasing order; those of a junction tree.
    :param cardinalities: Numbers of states of the variables.
    :param subsets: Variables of each subset; of any two, one contains the other, or they are disjoint.
    :param marks: For every variable the states, as booleans, in which it counts in its subsets; others are not used.
    :raises ValueError: if a subset is not compatible with the cliques.
    """

    def __init__(
        self,
        cliques: Sequence[tuple[int, ...]],
        cardinalities: Sequence[int],
        subsets: Sequence[frozenset[int]],
        marks: Sequence[tuple[bool, ...]],
    ) -> None:
        self._cliques, self._sizes, self._subsets, self._marks = tuple(cliques), cardinalities, tuple(subsets), marks
        self.num_variables, self.num_cliques = len(cardinalities), len(cliques)
        table_sizes = [math.prod(cardinalities[d] for d in clique) for clique in cliques]
        self._first_entries = np.cumsum([0, *table_sizes]).tolist()
        self.table_size = self._first_entries[-1]
        #: Numbers of entries of the tables of counts.
        self.count_sizes = [len(subset) + 1 for subset in subsets]
        self._first_weights = np.cumsum([0, *self.count_sizes]).tolist()
        self.count_size = self._first_weights[-1]
        owners = [next(c for c, clique in enumerate(cliques) if d in clique) for d in range(len(cardinalities))]
        strides = [
            math.prod(cardinalities[other] for other in cliques[owner] if other > d) for d, owner in enumerate(owners)
        ]
        firsts = [self._first_entries[owner] for owner in owners]
        self._places = torch.tensor([owners, firsts, strides, list(cardinalities)])
        # Whether each state of a variable counts, and whether each variable is in a subset, in double precision.
        self._counting = torch.zeros(len(marks), max(cardinalities), dtype=torch.double)
        self._members = torch.zeros(len(marks), len(subsets), dtype=torch.double)
        for d, row in enumerate(marks):
            self._counting[d, : len(row)] = torch.tensor(row, dtype=torch.double)
        for index, subset in enumerate(subsets):
            self._members[sorted(subset), index] = 1.0
        #: Entries of the tables of subsets without variables, which are constants.
        self.constants = [
            first for first, subset in zip(self._first_weights, self._subsets, strict=False) if not subset
        ]
        self._remember()
        # Whether subsets are compatible does not depend on the counts that are possible.
        _Contraction(self._cliques, self._sizes, self._subsets, ())

    def _remember(self) -> None:
        self._schedule = lru_cache(maxsize=2)(self._build)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_schedule"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._remember()

    def schedule(self, limits: tuple[int, ...], device: torch.device) -> CountedSchedule:
        """Steps of a pass.

        :param tuple limits: The largest possible count of each subset; empty if all are possible.
        :raises NotImplementedError: if sums have more terms than tables may have entries.
        """
        return self._schedule(limits, device)

    def limits(self, count_logits: Tensor) -> tuple[int, ...]:
        """Largest counts that tables of counts allow in any row, in the form of :meth:`schedule`.

        :param Tensor count_logits: Log-potentials, shape ``(rows, count_size)``.
        """
        possible = (count_logits != -math.inf).any(0)
        if not len(count_logits) or bool(possible.all()):
            return ()
        tables = possible.cpu().split(self.count_sizes)
        return tuple(int(table.nonzero().max()) if bool(table.any()) else 0 for table in tables)

    def counts(self, states: Tensor) -> Tensor:
        """Numbers of variables of each subset that are in a counted state.

        :param Tensor states: Integers of shape ``(..., n)``.
        :return: Integers of shape ``(..., number of subsets)``.
        """
        marks = self._counting.to(states.device)
        hits = marks[torch.arange(len(marks), device=states.device), states]
        return (hits @ self._members.to(states.device)).round().long()

    def count_entries(self, states: Tensor) -> Tensor:
        """Entries of the tables of counts that values meet; arguments and shape as for :meth:`counts`."""
        return self.counts(states) + torch.tensor(self._first_weights[:-1], dtype=torch.long, device=states.device)

    def states(self, entries: Tensor) -> Tensor:
        """States of all variables from an entry of each clique's table.

        :param Tensor entries: Indices among the entries of all tables, shape ``(cliques, ...)``.
        :return: Integers of shape ``(n, ...)``.
        """
        owner, first, stride, size = (row.to(entries.device) for row in self._places)
        shape = (-1,) + (1,) * (entries.dim() - 1)
        states: Tensor = (entries[owner] - first.view(shape)) // stride.view(shape) % size.view(shape)
        return states

    def _build(self, limits: tuple[int, ...], device: torch.device) -> CountedSchedule:
        if device.type != "cpu":
            schedule = self.schedule(limits, torch.device("cpu"))
            return schedule._replace(
                steps=tuple(step.to(device) for step in schedule.steps),
                roots=schedule.roots.to(device),
                root_nodes=schedule.root_nodes.to(device),
            )
        nodes, roots = _Contraction(self._cliques, self._sizes, self._subsets, limits).result
        return _Layout(self._cliques, self._sizes, self._marks, nodes).schedule(roots, self._first_weights)


class _Contraction:
    """Sums over the variables of subset after subset, the smallest first, and then over all that are left."""

    def __init__(
        self,
        cliques: tuple[tuple[int, ...], ...],
        sizes: Sequence[int],
        subsets: tuple[frozenset[int], ...],
        limits: tuple[int, ...],
    ) -> None:
        self._cliques, self._sizes, self._subsets = list(cliques), sizes, subsets
        self._num_tables = len(cliques)
        self._nodes: list[_Node] = []
        self._holders: list[set[int]] = [set() for _ in sizes]
        for index, clique in enumerate(cliques):
            for d in clique:
                self._holders[d].add(index)
        self._live, self._is_counted = [True] * len(sizes), [False] * len(sizes)
        # Messages that wait for a clique, messages of subsets that wait for the subset around them, and for each
        # variable the subsets whose waiting messages depend on it.
        self._hung: dict[int, list[int]] = {}
        self._waiting: dict[int, int] = {}
        self._dependent: list[set[int]] = [set() for _ in sizes]
        order = [index for index in sorted(range(len(subsets)), key=lambda i: len(subsets[i])) if subsets[index]]
        parents, children = self._nest(order)
        most = [len(subset) for subset in subsets]
        for index in reversed(order):
            above = most[parents[index]] if index in parents else most[index]
            most[index] = min(limits[index] if limits else most[index], above)
        roots = []
        for index in order:
            self._most = most[index]
            node = self._contract(index, children[index])
            owner = self._clique_with(self._nodes[node].scope)
            if index in parents:
                self._waiting[index] = node
                for d in self._nodes[node].scope:
                    self._dependent[d].add(index)
                continue
            node = self._add(_Node(self._nodes[node].scope, 1, (node,), self._nodes[node].scope, is_release=True))
            if owner is None:
                roots.append(node)
            else:
                self._hung.setdefault(owner, []).append(node)
        self._most = 0
        roots += self._sum_out({d for d, live in enumerate(self._live) if live}, [], False)
        self.result = self._nodes, roots

    def _nest(self, order: list[int]) -> tuple[dict[int, int], list[list[int]]]:
        """For each subset the smallest one around it, and those just inside it."""
        parents: dict[int, int] = {}
        children: list[list[int]] = [[] for _ in self._subsets]
        owner: dict[int, int] = {}
        for index in order:
            inside = {owner[d] for d in self._subsets[index] if d in owner}
            children[index] = sorted(inside)
            parents.update(dict.fromkeys(inside, index))
            owner.update(dict.fromkeys(self._subsets[index], index))
        return parents, children

    def _contract(self, index: int, inner: list[int]) -> int:
        """Message of a subset as a function of its cover and its count.

        :param inner: The subsets just inside it.
        """
        subset = self._subsets[index]
        messages = [self._waiting.pop(i) for i in inner]
        for i in inner:
            for dependents in self._dependent:
                dependents.discard(i)
        live = [d for d in sorted(subset) if self._live[d]]
        outer = {d for node in messages for d in self._nodes[node].scope if d not in subset}
        cover = self._cover(index, live, outer | {d for d in live if self._dependent[d]})
        inside = set(live) - cover
        met = [node for node in messages if inside.intersection(self._nodes[node].scope)]
        factors = self._sum_out(inside, met, True)
        factors += [node for node in messages if node not in met]
        for d in live:
            if d in cover and not self._is_counted[d]:
                self._is_counted[d] = True
                factors.append(self._add(_Node((d,), self._truncated(2), (), (d,), counted=frozenset([d]))))
        node = self._multiply(factors)
        self._nodes[node].subsets.append(index)
        return node

    def _cover(self, index: int, live: list[int], forced: set[int]) -> set[int]:
        """Variables of one clique that lie on all edges between a subset and others: as few others as possible.

        :param live: Variables of the subset that are left.
        :param forced: Variables that it has to contain.
        """
        subset = self._subsets[index]
        crossing = sorted({(u, w) for u in live for c in self._holders[u] for w in self._cliques[c] if w not in subset})
        if not crossing and not forced:
            return set()
        ends = [min(forced)] if forced else crossing[0]
        best: tuple[int, int, list[int]] | None = None
        for c in sorted(set().union(*(self._holders[d] for d in ends))):
            cover = set(self._cliques[c])
            if not forced <= cover or not all(u in cover or w in cover for u, w in crossing):
                continue
            for d in sorted(cover - forced, key=lambda d: (d in subset, -self._sizes[d], d)):
                if all(w in cover if u == d else u in cover for u, w in crossing if d in (u, w)):
                    cover.remove(d)
            found = len(cover - subset), math.prod(self._sizes[d] for d in cover), sorted(cover)
            best = found if best is None else min(best, found)
            if not best[0] and len(best[2]) == 1:
                break
        if best is None:
            tables = self._cliques[: self._num_tables]
            edges = sorted({(u, w) for c in tables for u in c if u in subset for w in c if w not in subset})
            raise ValueError(
                "counted: expected variables of which those of one clique lie on all edges that leave them, "
                f"but {_listed(edges)} leave those of counted[{index}], {sorted(subset)}"
            )
        return set(best[2])

    def _sum_out(self, inside: set[int], attached: list[int], counts: bool) -> list[int]:
        """Sums over variables, component by component; returns functions of the variables around these.

        :param attached: Messages of smaller subsets that depend on the variables.
        :param bool counts: Whether the variables are counted.
        """
        results = []
        for component in self._components(inside):
            cliques = sorted({c for d in component for c in self._holders[d]})
            around = {d for c in cliques for d in self._cliques[c]} - component
            waiting: dict[int, list[int]] = {}
            for node in attached:
                met = set(self._nodes[node].scope)
                if met & component:
                    owner = next(c for c in cliques if met <= set(self._cliques[c]))
                    waiting.setdefault(owner, []).append(node)
            for c, parent in self._upward(cliques, around):
                above = around if parent is None else set(self._cliques[parent])
                scope = tuple(d for d in self._cliques[c] if d in above)
                messages = self._hung.pop(c, []) + waiting.pop(c, [])
                message = [self._multiply(messages)] if messages else []
                new = {d for d in self._cliques[c] if d not in above and counts and not self._is_counted[d]}
                width = (self._nodes[message[0]].width if message else 1) + len(new)
                table = c if c < self._num_tables else -1
                node = self._add(
                    _Node(scope, self._truncated(width), tuple(message), self._cliques[c], table, frozenset(new))
                )
                if parent is None:
                    results.append(node)
                else:
                    waiting.setdefault(parent, []).append(node)
                for d in self._cliques[c]:
                    self._holders[d].discard(c)
            for d in component:
                self._live[d], self._is_counted[d] = False, self._is_counted[d] or counts
        return results

    def _components(self, inside: set[int]) -> Iterator[set[int]]:
        """Components of the graph of some variables."""
        left = set(inside)
        for start in sorted(inside):
            if start not in left:
                continue
            left.discard(start)
            component, reached = {start}, [start]
            for d in reached:
                for c in self._holders[d]:
                    new = left.intersection(self._cliques[c])
                    left -= new
                    component |= new
                    reached += sorted(new)
            yield component

    def _upward(self, cliques: list[int], around: set[int]) -> Iterator[tuple[int, int | None]]:
        """Cliques of a junction tree, children first, with their parents; the root contains the variables around."""
        parents = clique_forest([frozenset(self._cliques[c]) for c in cliques])
        assert parents is not None
        neighbours: list[list[int]] = [[] for _ in cliques]
        for place, parent in enumerate(parents):
            if parent != place:
                neighbours[place].append(parent)
                neighbours[parent].append(place)
        # The centre is the only root; the nearest clique that contains the variables around becomes the new one.
        root = next(place for place, parent in enumerate(parents) if parent == place)
        order = _breadth_first(neighbours, root)
        root = next(place for place, _ in order if around <= set(self._cliques[cliques[place]]))
        for place, above in reversed(_breadth_first(neighbours, root)):
            yield cliques[place], None if above is None else cliques[above]

    def _multiply(self, nodes: list[int]) -> int:
        """Adds up counts, of the two narrowest messages at a time."""
        heap = [(self._nodes[node].width, node) for node in nodes]
        heapq.heapify(heap)
        while len(heap) > 1:
            (_, a), (_, b) = heapq.heappop(heap), heapq.heappop(heap)
            scope = tuple(sorted({*self._nodes[a].scope, *self._nodes[b].scope}))
            width = self._truncated(self._nodes[a].width + self._nodes[b].width - 1)
            node = self._add(_Node(scope, width, (a, b), scope))
            heapq.heappush(heap, (width, node))
        return heap[0][1]

    def _truncated(self, width: int) -> int:
        return min(width, self._most + 1)

    def _clique_with(self, scope: tuple[int, ...]) -> int | None:
        """A clique that contains a message's variables, a new one without a table if all have been summed over."""
        if not scope:
            return None
        for c in sorted(self._holders[scope[0]]):
            if set(scope) <= set(self._cliques[c]):
                return c
        self._cliques.append(scope)
        for d in scope:
            self._holders[d].add(len(self._cliques) - 1)
        return len(self._cliques) - 1

    def _add(self, node: _Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1


def _breadth_first(neighbours: list[list[int]], root: int) -> list[tuple[int, int | None]]:
    """Nodes of a tree in the order of their distance from the root, with their parents."""
    order: list[tuple[int, int | None]] = [(root, None)]
    for node, parent in order:
        order += [(other, node) for other in neighbours[node] if other != parent]
    return order


def _listed(edges: list[tuple[int, int]]) -> str:
    return ", ".join(map(str, edges[:6])) + (", ..." if len(edges) > 6 else "")


class _Layout:
    """Cells of all messages, and steps that compute many of them together.

    :param cliques: Variables of the cliques.
    :param sizes: Numbers of states of the variables.
    :param marks: States of each variable that count, as booleans.
    :param nodes: The messages.
    """

    def __init__(
        self,
        cliques: Sequence[tuple[int, ...]],
        sizes: Sequence[int],
        marks: Sequence[tuple[bool, ...]],
        nodes: list[_Node],
    ) -> None:
        self._cliques, self._sizes, self._nodes = cliques, sizes, nodes
        self._marks = [np.array(row, dtype=int) for row in marks]
        self._first_entries = np.cumsum([0, *(math.prod(sizes[d] for d in clique) for clique in cliques)])
        self._start, self._stride = [0] * len(nodes), [0] * len(nodes)

    def schedule(self, roots: list[int], first_weights: Sequence[int]) -> CountedSchedule:
        """Steps, level by level.

        :param roots: Nodes without variables and counts.
        :param first_weights: First entry of the table of counts of each subset.
        """
        levels: list[list[int]] = []
        depths: list[int] = []
        for number, node in enumerate(self._nodes):
            depths.append(1 + max((depths[child] for child in node.inputs), default=-1))
            levels += [[]] if depths[-1] == len(levels) else []
            levels[depths[-1]].append(number)
        self._cells, self._terms = 2, 0
        steps: list[CountedStep] = []
        for level in levels:
            sums = [number for number in level if len(self._nodes[number].inputs) < 2]
            products = [number for number in level if len(self._nodes[number].inputs) == 2]
            steps += [self._sum(group, first_weights) for group in self._groups(sums)]
            steps += [self._product(group, first_weights) for group in self._groups(products)]
        cells = _integers([self._start[root] for root in roots])
        return CountedSchedule(tuple(steps), cells, _integers(roots), self._cells, len(self._nodes), self._terms)

    def _groups(self, numbers: list[int]) -> Iterator[list[int]]:
        """Nodes of similar sizes, of which padding at most doubles the number of terms if it is not small."""
        group: list[int] = []
        total, most = 0, 0
        for size, cells, number in sorted((*self._shape(number), number) for number in numbers):
            padded = (most + cells) * size
            if group and padded > max(FEW_TERMS, 2 * (total + cells * size)):
                yield group
                group, total, most = [], 0, 0
            group.append(number)
            total, most = total + cells * size, most + cells
        if group:
            yield group

    def _shape(self, number: int) -> tuple[int, int]:
        """Number of terms of a cell, and of cells."""
        node = self._nodes[number]
        cells = self._states(node.scope) * node.width
        if len(node.inputs) == 2:
            return min(self._nodes[child].width for child in node.inputs), cells
        rest = (
            self._nodes[node.inputs[0]].width
            if node.is_release
            else self._states(node.domain) // self._states(node.scope)
        )
        return rest, cells

    def _states(self, scope: Sequence[int]) -> int:
        return math.prod(self._sizes[d] for d in scope)

    def _place(self, group: list[int], width: int | None) -> int:
        """Lays out the rows of the messages of a group, of a common width if there is one; returns the first cell."""
        first = self._cells
        for number in group:
            node = self._nodes[number]
            self._start[number], self._stride[number] = self._cells, width or node.width
            self._cells += self._states(node.scope) * self._stride[number]
        return first

    def _sum(self, group: list[int], first_weights: Sequence[int]) -> CountSum:
        shapes = [self._shape(number) for number in group]
        longest = max(size for size, _ in shapes)
        self._check(longest * sum(cells for _, cells in shapes))
        start = self._place(group, None)
        cells, entries = zip(*map(self._sum_terms, group), strict=True)
        nothing = int(self._first_entries[-1])
        nodes = [self._nodes[number] for number in group]
        return CountSum(
            start,
            1,
            *self._weights(group, start, first_weights),
            _integers(group),
            _integers([node.inputs[0] if node.inputs else len(self._nodes) for node in nodes]),
            _integers(np.concatenate([_padded(rows, longest, IMPOSSIBLE) for rows in cells])),
            _integers(np.concatenate([_padded(rows, longest, nothing) for rows in entries])),
            _integers([node.clique if node.clique >= 0 else len(self._cliques) for node in nodes]),
        )

    def _sum_terms(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Cells of the message and entries of the table, shape ``(cells of the node, terms)``."""
        node = self._nodes[number]
        if node.is_release:
            (child,) = node.inputs
            counts = np.arange(self._nodes[child].width)
            rows = np.arange(self._states(node.scope))[:, None]
            cells = self._start[child] + rows * self._stride[child] + counts
            return cells, np.full(cells.shape, self._first_entries[-1])
        order = node.scope + tuple(d for d in node.domain if d not in node.scope)
        shape = self._states(node.scope), 1, -1
        shift = self._joint(order, {d: self._marks[d] for d in node.counted}).reshape(shape)
        counts = np.arange(node.width)[:, None] - shift
        if node.inputs:
            (child,) = node.inputs
            inside = (counts >= 0) & (counts < self._nodes[child].width)
            rows = self._joint(order, self._strides(self._nodes[child].scope)).reshape(shape)
            cells = np.where(inside, self._start[child] + rows * self._stride[child] + counts, IMPOSSIBLE)
        else:
            cells = np.where(counts == 0, NEUTRAL, IMPOSSIBLE)
        entries = np.full(shift.shape, self._first_entries[-1])
        if node.clique >= 0:
            entries = self._joint(order, self._strides(self._cliques[node.clique])).reshape(shape)
            entries = entries + self._first_entries[node.clique]
        return cells.reshape(-1, cells.shape[-1]), np.broadcast_to(entries, cells.shape).reshape(-1, cells.shape[-1])

    def _product(self, group: list[int], first_weights: Sequence[int]) -> CountProduct:
        nodes = [self._nodes[number] for number in group]
        pairs = [sorted(node.inputs, key=lambda child: self._nodes[child].width) for node in nodes]
        width = max(node.width for node in nodes)
        most = [max(self._nodes[pair[side]].width for pair in pairs) for side in range(2)]
        self._check(width * most[0] * sum(self._states(node.scope) for node in nodes))
        start = self._place(group, width)
        sides = [
            np.concatenate(
                [self._rows(node.scope, pair[side], columns) for node, pair in zip(nodes, pairs, strict=True)]
            )
            for side, columns in ((0, most[0]), (1, most[1] + 1))
        ]
        rests = np.arange(width)[:, None] - np.arange(most[0])
        return CountProduct(
            start,
            width,
            *self._weights(group, start, first_weights),
            _integers(group),
            _integers([first for first, _ in pairs]),
            _integers(sides[0]),
            _integers(sides[1]),
            _integers(np.where((rests >= 0) & (rests < most[1]), rests, most[1])),
            _integers([second for _, second in pairs]),
        )

    def _rows(self, scope: tuple[int, ...], child: int, columns: int) -> np.ndarray:
        """Cells of a message for the joint states of a larger scope, shape ``(states, columns)``."""
        rows = self._joint(scope, self._strides(self._nodes[child].scope))
        cells = self._start[child] + rows[:, None] * self._stride[child] + np.arange(self._nodes[child].width)
        return _padded(cells, columns, IMPOSSIBLE)

    def _weights(self, group: list[int], start: int, first_weights: Sequence[int]) -> tuple[Tensor, Tensor]:
        cells, weights = [np.zeros(0, dtype=int)], [np.zeros(0, dtype=int)]
        for number in group:
            node = self._nodes[number]
            rows = self._start[number] - start + self._stride[number] * np.arange(self._states(node.scope))
            for subset in node.subsets:
                counts = np.arange(node.width)
                cells.append((rows[:, None] + counts).ravel())
                weights.append(np.tile(first_weights[subset] + counts, len(rows)))
        return _integers(np.concatenate(cells)), _integers(np.concatenate(weights))

    def _strides(self, scope: Sequence[int]) -> dict[int, np.ndarray]:
        """What each state of a variable adds to the number of a joint state."""
        return {
            d: math.prod(self._sizes[other] for other in scope[place + 1 :]) * np.arange(self._sizes[d])
            for place, d in enumerate(scope)
        }

    def _joint(self, scope: Sequence[int], values: dict[int, np.ndarray]) -> np.ndarray:
        """Sums of the values of the variables' states, for all joint states of a scope in order."""
        total = np.zeros(1, dtype=int)
        for d in scope:
            total = (total[:, None] + values.get(d, np.zeros(self._sizes[d], dtype=int))).ravel()
        return total

    def _check(self, terms: int) -> None:
        self._terms += terms
        check_table_entries("counted", "the sums over states and counts", self._terms)


def _padded(rows: np.ndarray, columns: int, filler: int) -> np.ndarray:
    return np.pad(rows, ((0, 0), (0, columns - rows.shape[1])), constant_values=filler)


def _integers(numbers: object) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64))
