"""Junction trees over discrete variables."""

__all__ = ["CliqueTree", "check_tree"]

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from pyro_structured.foundation.structures.argument_checks import (
    check_choice,
    check_last_axis,
    check_size,
    checked_broadcast,
    checked_groups,
    checked_indices,
    checked_sequence,
)
from pyro_structured.foundation.structures.representation import Represented
from pyro_structured.junction_trees.ops.chordal_graph import (
    HEURISTICS,
    clique_forest,
    elimination_cliques,
    elimination_order,
    neighbor_sets,
)
from pyro_structured.junction_trees.ops.clique_plan import CliquePlan
from pyro_structured.junction_trees.ops.table_budget import check_table_entries


class CliqueTree(Represented):
    r"""Junction tree of cliques of discrete variables: the cliques that contain a variable are connected in the tree.

    Every clique has a table with a number for each joint state of its variables, which are in increasing order, the
    last one fastest; the tables stand one after the other, in the order of the cliques, in a vector of ``table_size``
    numbers. Cliques may have no variable in common, and may contain others. Trees are immutable.

    :param cliques: Sets of variables, every one of ``range(n)`` in some clique.
    :param cardinalities: Numbers of states of the n variables, at least 1.
    :raises ValueError: if no tree of the cliques is a junction tree, or an argument is of another kind.
    :raises NotImplementedError: if ``table_size`` is above the setting ``pyro_structured_max_table_entries`` of
        ``pyro.settings``, ``2 ** 25``: queries take a hundred bytes for each entry, and more. Nothing of that size is
        allocated before; ``pyro.settings.context(pyro_structured_max_table_entries=2**28)`` raises the limit.

    Example::

        >>> tree = CliqueTree([[0, 1], [1, 2]], cardinalities=[2, 3, 2])
        >>> tree.separators, tree.treewidth, tree.table_size
        (((1,),), 1, 12)
        >>> [tuple(table.shape) for table in tree.split(torch.zeros(5, 12))]
        [(5, 2, 3), (5, 3, 2)]
    """

    def __init__(self, cliques: Iterable[Iterable[int]], cardinalities: Iterable[int]) -> None:
        self.cardinalities = _checked_cardinalities(cardinalities)
        groups = checked_groups("cliques", cliques)
        covered = {d for group in groups for d in group}
        wrong = sorted(covered ^ set(range(len(self.cardinalities))))
        got = f"{wrong} in none of them, or beyond" if wrong else ""
        got = got or ("an empty one" if not all(groups) else "")
        got = got or ("some twice in one clique" if any(len(set(group)) < len(group) for group in groups) else "")
        if got:
            raise ValueError(f"cliques: expected sets that cover range({len(self.cardinalities)}), got {got}")
        self.cliques: tuple[tuple[int, ...], ...] = tuple(tuple(sorted(group)) for group in groups)
        self._check_budget()
        parents = clique_forest([frozenset(clique) for clique in self.cliques])
        if parents is None:
            raise ValueError(
                f"cliques: expected those of a chordal graph, got {list(self.cliques)}, of which no tree is a junction "
                "tree; CliqueTree.from_cliques adds what is missing"
            )
        self.parents = tuple(parents)

    @classmethod
    def from_edges(
        cls, edges: Iterable[Iterable[int]], cardinalities: Iterable[int], heuristic: str = "min_fill"
    ) -> "CliqueTree":
        """Cliques of a graph, to which edges are added until it is chordal; none if it is chordal already.

        :param edges: Pairs of variables.
        :param cardinalities: Numbers of states of the n variables, at least 1.
        :param str heuristic: Choice of the variable that is eliminated next: ``"min_fill"``, one that adds the fewest
            edges, or ``"min_weight"``, one of the smallest table. The treewidth that is found may be above the smallest
            one, which is hard to find.

        Example::

            >>> CliqueTree.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], cardinalities=[2] * 4).cliques
            ((0, 1, 3), (1, 2, 3))
        """
        sizes = _checked_cardinalities(cardinalities)
        pairs = checked_groups("edges", edges)
        for pair in pairs:
            if len(pair) != 2 or pair[0] == pair[1] or not all(0 <= d < len(sizes) for d in pair):
                raise ValueError(f"edges: expected pairs of different variables in range({len(sizes)}), got {pair}")
        check_choice("heuristic", heuristic, HEURISTICS)
        neighbors = neighbor_sets(len(sizes), pairs)
        order = elimination_order(neighbors, [math.log(size) for size in sizes], heuristic)
        return cls(_maximal(elimination_cliques(neighbors, order)), sizes)

    @classmethod
    def from_cliques(
        cls, cliques: Iterable[Iterable[int]], cardinalities: Iterable[int], heuristic: str = "min_fill"
    ) -> "CliqueTree":
        """Cliques that contain the given ones, and all variables: the given ones, if they make a junction tree.

        :param cliques: Sets of variables, such as the scopes of factors.
        :param cardinalities: As for :meth:`from_edges`.
        :param str heuristic: As for :meth:`from_edges`.

        Example::

            >>> CliqueTree.from_cliques([[0, 1], [1, 2], [0, 2]], cardinalities=[2] * 4).cliques
            ((0, 1, 2), (3,))
        """
        sizes = _checked_cardinalities(cardinalities)
        check_choice("heuristic", heuristic, HEURISTICS)
        groups = checked_groups("cliques", cliques)
        wrong = sorted(d for group in groups for d in group if not 0 <= d < len(sizes))
        if wrong:
            raise ValueError(f"cliques: expected variables in range({len(sizes)}), got {wrong}")
        covered = {d for group in groups for d in group}
        every = [frozenset(group) for group in groups] + [frozenset([d]) for d in range(len(sizes)) if d not in covered]
        if clique_forest(every) is not None:
            return cls(every, sizes)
        return cls.from_edges((pair for group in every for pair in combinations(group, 2)), sizes, heuristic)

    @classmethod
    def chain(cls, num_variables: int, num_states: int) -> "CliqueTree":
        """Pairs of neighbours in a chain.

        Example::

            >>> CliqueTree.chain(3, 2).cliques
            ((0, 1), (1, 2))
        """
        check_size("num_variables", num_variables)
        check_size("num_states", num_states)
        check_table_entries("num_variables", "the tables of a chain", num_variables * num_states)
        pairs = [(d, d + 1) for d in range(num_variables - 1)]
        return cls(pairs or [(0,)], [num_states] * num_variables)

    @classmethod
    def grid(cls, height: int, width: int, num_states: int) -> "CliqueTree":
        """Cliques of a grid whose variables are numbered row by row; its treewidth is the length of a shorter side.

        Example::

            >>> CliqueTree.grid(2, 3, 2).treewidth
            2
        """
        for name, size in (("height", height), ("width", width), ("num_states", num_states)):
            check_size(name, size)
        side = min(height, width)
        check_table_entries("height", "the tables of a grid", height * width * max(num_states, side))
        if side > 1:
            # Variables that follow each other in the order of their elimination are in one clique.
            places = range(side - 1, 2 * side)
            clique = sorted(k if side == width else k % side * width + k // side for k in places)
            what = f"the table of a single clique of a grid, {tuple(clique)}"
            check_table_entries("height", what, num_states ** (side + 1))
        across = [(y * width + x, y * width + x + 1) for y in range(height) for x in range(width - 1)]
        down = [(d, d + width) for d in range((height - 1) * width)]
        neighbors = neighbor_sets(height * width, across + down)
        order = list(range(height * width))
        if height < width:
            order.sort(key=lambda d: d % width)
        return cls(_maximal(elimination_cliques(neighbors, order)), [num_states] * (height * width))

    def _check_budget(self) -> None:
        largest = max(range(len(self.cliques)), key=self.table_sizes.__getitem__)
        what = f"the tables of all cliques, the largest of which, {self.cliques[largest]}, has"
        check_table_entries("cliques", f"{what} {self.table_sizes[largest]}", self.table_size)

    @property
    def num_variables(self) -> int:
        """Number of variables n."""
        return len(self.cardinalities)

    @property
    def treewidth(self) -> int:
        """Number of variables of the largest clique, less one."""
        return max(len(clique) for clique in self.cliques) - 1

    @cached_property
    def separators(self) -> tuple[tuple[int, ...], ...]:
        """Separators, the variables that cliques share with their parents, one for each edge of the tree."""
        pairs = ((self.cliques[i], self.cliques[parent]) for i, parent in enumerate(self.parents) if i != parent)
        return tuple(tuple(d for d in clique if d in above) for clique, above in pairs)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of variables that are in one clique, in increasing order."""
        return tuple(sorted({pair for clique in self.cliques for pair in combinations(clique, 2)}))

    @cached_property
    def table_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of states of the variables of each clique."""
        return tuple(tuple(self.cardinalities[d] for d in clique) for clique in self.cliques)

    @cached_property
    def table_sizes(self) -> tuple[int, ...]:
        """Numbers of entries of the tables."""
        return tuple(math.prod(shape) for shape in self.table_shapes)

    @property
    def table_size(self) -> int:
        """Number of entries of all tables together."""
        return sum(self.table_sizes)

    @cached_property
    def plan(self) -> CliquePlan:
        """Plan of the passes through the tree."""
        return CliquePlan(self.cliques, self.parents, self.cardinalities)

    @cached_property
    def state_places(self) -> Tensor:
        """Places of single states' numbers among those of all variables, for each entry of the packed tables.

        Numbers of states stand in shape ``(n, K)``, for at most K states, and are followed by a zero; each variable is
        looked up in the first clique that contains it.

        :return: Shape ``(table_size, m)``, with the place n K of the zero where a clique has fewer than m such
            variables.
        """
        most, seen, rows = max(self.cardinalities), set[int](), []
        for clique, shape in zip(self.cliques, self.table_shapes, strict=True):
            states = torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape))
            rows.append([d * most + states[:, axis] for axis, d in enumerate(clique) if d not in seen])
            seen.update(clique)
        widest = max(map(len, rows))
        nothing = most * self.num_variables
        return torch.cat(
            [
                torch.stack(places + [torch.full((size,), nothing)] * (widest - len(places)), -1)
                for places, size in zip(rows, self.table_sizes, strict=True)
            ]
        )

    def pack(self, tables: Sequence[Tensor]) -> Tensor:
        """Packs tables into one vector, one after the other.

        :param tables: A table for each clique, shape ``(..., *table_shapes[c])``; leading axes broadcast.
        :return: Shape ``(..., table_size)``.
        """
        tables = checked_sequence("tables", tables)
        if len(tables) != len(self.cliques):
            raise ValueError(f"tables: expected {len(self.cliques)}, one for each clique, got {len(tables)}")
        for index, (table, shape) in enumerate(zip(tables, self.table_shapes, strict=True)):
            if not isinstance(table, Tensor) or table.shape[max(0, table.dim() - len(shape)) :] != shape:
                got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
                raise ValueError(f"tables: expected shape (..., {shape}) for number {index}, got {got}")
        flat = [table.flatten(table.dim() - len(shape)) for table, shape in zip(tables, self.table_shapes, strict=True)]
        batch = checked_broadcast("tables", [table.shape[:-1] for table in flat])
        return torch.cat([table.expand(batch + table.shape[-1:]) for table in flat], -1)

    def split(self, clique_logits: Tensor) -> tuple[Tensor, ...]:
        """Splits a vector into tables, the inverse of :meth:`pack`: views of shape ``(..., *table_shapes[c])``."""
        check_last_axis("clique_logits", clique_logits, self.table_size)
        parts = clique_logits.split(self.table_sizes, -1)
        return tuple(table.unflatten(-1, shape) for table, shape in zip(parts, self.table_shapes, strict=True))

    def subtrees(self, min_size: int = 2) -> tuple[tuple[int, ...], ...]:
        """Variables that are in a clique or below it, and not in its parent, for each clique: nested sets.

        :param int min_size: Smallest number of variables of a set, at least 1.
        :return: Different sets, the smallest first; cost of the sum of their sizes.

        Example::

            >>> CliqueTree.chain(6, 2).subtrees(2)
            ((0, 1), (4, 5), (0, 1, 2, 3, 4, 5))
        """
        check_size("min_size", min_size)
        below: list[set[int]] = [set(clique) for clique in self.cliques]
        children: list[list[int]] = [[] for _ in self.cliques]
        order = [index for index, parent in enumerate(self.parents) if parent == index]
        for index, parent in enumerate(self.parents):
            if parent != index:
                children[parent].append(index)
                below[index] -= set(self.cliques[parent])
        for index in order:
            order += children[index]
        for index in reversed(order):
            below[index].update(*(below[child] for child in children[index]))
        found = {tuple(sorted(variables)) for variables in below if len(variables) >= min_size}
        return tuple(sorted(found, key=lambda variables: (len(variables), variables)))

    def find(self, variables: Iterable[int]) -> int | None:
        """Number of a smallest clique that contains some variables; ``None`` if there is none."""
        wanted = set(checked_indices("variables", variables))
        numbers = [index for index, clique in enumerate(self.cliques) if wanted <= set(clique)]
        return min(numbers, key=self.table_sizes.__getitem__, default=None)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CliqueTree)
            and self.cliques == other.cliques
            and self.cardinalities == other.cardinalities
        )

    def __hash__(self) -> int:
        return hash((self.cliques, self.cardinalities))

    def __repr__(self) -> str:
        return f"CliqueTree(cliques={list(self.cliques)}, cardinalities={list(self.cardinalities)})"


def check_tree(tree: object) -> None:
    """Raises a ValueError unless it is a :class:`CliqueTree`."""
    if not isinstance(tree, CliqueTree):
        raise ValueError(f"tree: expected a CliqueTree, got {type(tree).__name__}")


def _checked_cardinalities(cardinalities: Iterable[int]) -> tuple[int, ...]:
    sizes = checked_indices("cardinalities", cardinalities)
    if not sizes or min(sizes) < 1:
        raise ValueError(f"cardinalities: expected at least one number, all of at least 1, got {sizes}")
    return tuple(sizes)


def _maximal(cliques: Sequence[frozenset[int]]) -> list[tuple[int, ...]]:
    """Maximal ones of the cliques of an elimination, as increasing variables, in lexicographic order."""
    owners: dict[int, list[frozenset[int]]] = {}
    kept = []
    for clique in sorted(cliques, key=len, reverse=True):
        if not any(clique <= owner for owner in owners.get(min(clique), ())):
            kept.append(tuple(sorted(clique)))
            for d in clique:
                owners.setdefault(d, []).append(clique)
    return sorted(kept)
