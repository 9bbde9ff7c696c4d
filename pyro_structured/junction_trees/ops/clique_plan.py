"""Plans of passes through a junction tree: its levels, and the entries of its tables that are combined."""

__all__ = ["CliqueBlock", "CliqueLevel", "CliquePlan", "split_runs"]

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_structured.junction_trees.ops.chain_passes import Chain, chain_of
from pyro_structured.junction_trees.ops.clique_walk import CliqueWalk
from pyro_structured.junction_trees.ops.table_budget import check_table_entries

# Number of variables from which chains gain from fewer steps.
SHORTEST_CHAIN = 8
# Indices of messages and states that are allowed for each entry that tables may have.
PLACES_OF_AN_ENTRY = 16


@dataclass(frozen=True)
class CliqueBlock:
    r"""G cliques of one level with tables of the same form, and M states of all their separators together.

    The variables of a clique are those that it has in common with its parent, the separator; and the other ones, with R
    joint states.

    :ivar tuple shape: ``(M, R)``.
    :ivar Tensor starts: First index of each clique's separator states among the M, shape ``(G,)``.
    :ivar Tensor separators: Variables of the separators, shape ``(G, variables)``.
    :ivar Tensor separator_strides: Strides of these variables in the number of the joint state, of the same shape; 0
        where a separator has fewer variables.
    :ivar Tensor variables: The other variables, shape ``(G, variables)``.
    :ivar Tensor strides: Strides of the other variables, of the same shape.
    :ivar Tensor cardinalities: Numbers of states of the other variables, of the same shape.
    """

    shape: tuple[int, int]
    starts: Tensor
    separators: Tensor
    separator_strides: Tensor
    variables: Tensor
    strides: Tensor
    cardinalities: Tensor

    def to(self, device: torch.device) -> "CliqueBlock":
        """The block with its tensors on a device."""
        return CliqueBlock(self.shape, *(getattr(self, field.name).to(device) for field in fields(self)[1:]))


@dataclass(frozen=True)
class CliqueLevel:
    """Cliques at one distance from the roots, whose E entries are ordered by block, and within it by separator state.

    There is a *message* for each state of each separator, in the same order.

    :ivar tuple blocks: Blocks of the level.
    :ivar tuple sums: Runs of messages that are sums of equally many entries, as pairs ``(messages, entries)``.
    :ivar tuple source_sums: Runs of separator states that are sums of equally many entries of the level above, as pairs
        ``(states, entries)``.
    :ivar Tensor entries: Indices of the entries in the packed tables, shape ``(E,)``.
    :ivar Tensor owners: Index of the message that each entry adds to, shape ``(E,)``.
    :ivar Tensor sources: Indices of the entries of the level above that add up to the separator states, in order.
    :ivar Tensor messages: Indices of the messages of the next level that multiply each entry, shape ``(children, E)``;
        the number of messages where a clique has fewer children.
    :ivar Tensor states: Indices of the single states of each entry's other variables, numbered through all variables,
        shape ``(variables, E)``; the number of single states where a clique has fewer variables.
    """

    blocks: tuple[CliqueBlock, ...]
    sums: tuple[tuple[int, int], ...]
    source_sums: tuple[tuple[int, int], ...]
    entries: Tensor
    owners: Tensor
    sources: Tensor
    messages: Tensor
    states: Tensor

    def to(self, device: torch.device) -> "CliqueLevel":
        """The level with its tensors on a device."""
        blocks = tuple(block.to(device) for block in self.blocks)
        tensors = (getattr(self, field.name).to(device) for field in fields(self)[3:])
        return CliqueLevel(blocks, self.sums, self.source_sums, *tensors)

    def split(self, entries: Tensor) -> list[Tensor]:
        """Values of the entries by block, shapes ``(M, R, rows)``."""
        return split_runs(entries, tuple(block.shape for block in self.blocks))


def split_runs(numbers: Tensor, runs: tuple[tuple[int, int], ...]) -> list[Tensor]:
    """Parts of the first axis as matrices, shapes ``(*run, rows)``."""
    parts = numbers.split([math.prod(run) for run in runs])
    return [run_numbers.reshape(*run, numbers.shape[-1]) for run_numbers, run in zip(parts, runs, strict=True)]


class CliquePlan:
    """Levels of a junction tree, from the roots.

    :param cliques: Variables of the cliques, in increasing order.
    :param parents: Parents of the cliques in the junction tree; those of roots are themselves.
    :param cardinalities: Numbers of states of the variables.
    :ivar int num_states: Number of all single states.
    :ivar int table_size: Number of entries of all tables.
    """

    def __init__(
        self, cliques: Sequence[tuple[int, ...]], parents: Sequence[int], cardinalities: Sequence[int]
    ) -> None:
        self._cliques, self._parents, self._sizes = cliques, parents, cardinalities
        tables = [math.prod(cardinalities[d] for d in clique) for clique in cliques]
        self._starts, self._first_states = _bounds(tables), _bounds(cardinalities)
        self.table_size, self.num_states = int(self._starts[-1]), int(self._first_states[-1])
        self.num_variables = len(cardinalities)
        self._separators = [
            () if parent == index else tuple(d for d in cliques[index] if d in cliques[parent])
            for index, parent in enumerate(parents)
        ]
        self._rests = [
            tuple(d for d in clique if d not in separator)
            for clique, separator in zip(cliques, self._separators, strict=True)
        ]
        self._children: list[list[int]] = [[] for _ in cliques]
        for index, parent in enumerate(parents):
            if parent != index:
                self._children[parent].append(index)
        self._members = self._grouped()
        self._check_budget()
        widest = max(map(len, cliques))
        strides = [_strides([cardinalities[d] for d in clique]) for clique in cliques]
        self._scopes = torch.tensor([[*clique, *[0] * (widest - len(clique))] for clique in cliques])
        self._strides = torch.tensor(
            [[*clique_strides, *[0] * (widest - len(clique_strides))] for clique_strides in strides]
        )
        self._chain = chain_of(cliques, cardinalities) if self.num_variables >= SHORTEST_CHAIN else None
        self._forget()

    def _forget(self) -> None:
        """Empties what is kept for devices."""
        self._on_device = lru_cache(maxsize=8)(self._move)
        self._levels_on_device = lru_cache(maxsize=8)(self._move_levels)

    def __getstate__(self) -> dict[str, object]:
        kept = {"_on_device", "_levels_on_device", "_levels"}
        return {name: value for name, value in self.__dict__.items() if name not in kept}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    @cached_property
    def walk(self) -> CliqueWalk:
        """The order in which compiled loops visit the cliques: that of :meth:`levels`."""
        order = [index for blocks in self._members for block in blocks for index in block]
        place = {index: number for number, index in enumerate(order)}
        scopes = {index: self._rests[index] + self._separators[index] for index in order}
        strides, above = [], []
        for index in order:
            own = dict(zip(self._cliques[index], self._strides_of(self._cliques[index]), strict=True))
            strides += [own[d] for d in scopes[index]]
            met = self._separators[index]
            above += [scopes[self._parents[index]].index(d) if d in met else 0 for d in scopes[index]]
        is_root = [self._parents[index] == index for index in order]
        axes = _bounds([len(scopes[index]) for index in order])
        return CliqueWalk(
            np.array([-1 if root else place[self._parents[index]] for index, root in zip(order, is_root, strict=True)]),
            self._starts[order],
            np.array([self._size(self._cliques[index]) for index in order]),
            axes,
            axes[1:] - np.array([len(self._separators[index]) for index in order]),
            np.array([d for index in order for d in scopes[index]]),
            np.array(strides),
            np.array(above),
            _bounds([len(self._children[index]) for index in order]),
            np.array([place[child] for index in order for child in self._children[index]], dtype=np.int64),
            _bounds([self._size(self._separators[index]) for index in order]),
            _bounds([0 if root else len(scopes[self._parents[i]]) for i, root in zip(order, is_root, strict=True)]),
            self._first_states,
        )

    def levels(self, device: torch.device) -> list[CliqueLevel]:
        """Levels of cliques, from the roots."""
        levels: list[CliqueLevel] = self._levels_on_device(device)[0]
        return levels

    def chain(self, device: torch.device) -> Chain | None:
        """The tree as a chain of at least eight variables, if it is one, on a device."""
        chain: Chain | None = self._on_device(device)[-1]
        return chain

    def order(self, device: torch.device) -> Tensor:
        """Indices of the packed tables' entries among those of all levels, shape ``(table_size,)``."""
        order: Tensor = self._levels_on_device(device)[1]
        return order

    def table_index(self, states: Tensor) -> Tensor:
        """Indices of the cliques' entries for joint states, shape ``(..., cliques)``.

        :param Tensor states: Integers of shape ``(..., n)``.
        """
        scopes, strides, starts, _ = self._on_device(states.device)
        places: Tensor = (states[..., scopes] * strides).sum(-1) + starts
        return places

    def magnitude(self, tables: Tensor) -> Tensor:
        """Upper bound of the absolute finite logarithms of all sums of products of entries.

        :param Tensor tables: The largest absolute log-weights of all entries, shape ``(table_size,)``.
        """
        owner = self._levels_on_device(tables.device)[2]
        peaks = tables.new_zeros(len(self._cliques)).scatter_reduce(0, owner, tables, "amax")
        return peaks.sum() + sum(map(math.log, self._sizes))

    def _move(self, device: torch.device) -> tuple[Any, ...]:
        tensors = (self._scopes, self._strides, torch.from_numpy(self._starts[:-1]))
        chain = None if self._chain is None else self._chain.to(device)
        return *(tensor.to(device) for tensor in tensors), chain

    def _move_levels(self, device: torch.device) -> tuple[list[CliqueLevel], Tensor, Tensor]:
        order = torch.cat([level.entries for level in self._levels]).argsort()
        owner = torch.repeat_interleave(torch.from_numpy(np.diff(self._starts)))
        return [level.to(device) for level in self._levels], order.to(device), owner.to(device)

    def _grouped(self) -> list[list[list[int]]]:
        """Cliques of all levels, by block."""
        level = [index for index, parent in enumerate(self._parents) if parent == index]
        members: list[list[list[int]]] = []
        while level:
            groups: dict[tuple[int, ...], list[int]] = {}
            for index in level:
                groups.setdefault(self._key(index), []).append(index)
            members.append([groups[key] for key in sorted(groups)])
            level = [child for block in members[-1] for index in block for child in self._children[index]]
        return members

    @cached_property
    def _levels(self) -> list[CliqueLevel]:
        # Indices of each clique's first entry and first message in its level.
        entries, messages = np.zeros(len(self._cliques), dtype=int), np.zeros(len(self._cliques), dtype=int)
        for blocks in self._members:
            order = [index for block in blocks for index in block]
            entries[order] = _starts([self._size(self._cliques[index]) for index in order])
            messages[order] = _starts([self._size(self._separators[index]) for index in order])
        return [self._level(blocks, entries, messages) for blocks in self._members]

    def _check_budget(self) -> None:
        """Raises an error if the indices of messages and states would take more memory than tables may have."""
        places = []
        for blocks in self._members:
            level = [index for block in blocks for index in block]
            most_met = sum(max(len(members[index]) for index in level) for members in (self._children, self._rests))
            places.append((sum(self._size(self._cliques[index]) for index in level) * most_met, level))
        _, level = max(places)
        largest = self._cliques[max(level, key=lambda index: self._size(self._cliques[index]))]
        what = f"what the cliques' entries meet, divided by {PLACES_OF_AN_ENTRY}, most of it about {largest}"
        check_table_entries("tree", what, sum(number for number, _ in places) // PLACES_OF_AN_ENTRY)

    def _size(self, variables: tuple[int, ...]) -> int:
        return math.prod(self._sizes[d] for d in variables)

    def _key(self, index: int) -> tuple[int, ...]:
        rest, parent = self._rests[index], self._parents[index]
        above = 0 if parent == index else self._size(self._cliques[parent]) // self._size(self._separators[index])
        return self._size(rest), above, len(rest)

    def _level(self, blocks: list[list[int]], entries: np.ndarray, messages: np.ndarray) -> CliqueLevel:
        children = self._children
        order = [index for block in blocks for index in block]
        scopes = {index: self._separators[index] + self._rests[index] for index in order}
        below = [child for index in order for child in children[index]]
        num_messages = sum(self._size(self._separators[child]) for child in below)
        starts = [[(messages[child], self._separators[child]) for child in children[index]] for index in order]
        met = map(self._all_places, starts, scopes.values())
        starts = [[(self._first_states[d], (d,)) for d in self._rests[index]] for index in order]
        states = map(self._all_places, starts, scopes.values())
        most_children, most_rests = (max(len(members[i]) for i in order) for members in (children, self._rests))
        sizes = [self._size(self._cliques[index]) for index in order]
        places = [self._starts[index] + self._places(self._cliques[index], scopes[index]) for index in order]
        shapes = [(self._size(self._separators[index]), self._size(self._rests[index])) for index in order]
        above = [self._key(index)[1] for index in order]
        return CliqueLevel(
            tuple(self._block(block, messages) for block in blocks),
            _runs(shapes),
            _runs([(number, size) for (number, _), size in zip(shapes, above, strict=True)]),
            _integers(np.concatenate(places)),
            _integers(np.repeat(np.arange(sum(m for m, _ in shapes)), np.concatenate([[r] * m for m, r in shapes]))),
            _integers(np.concatenate([self._sources(index, entries) for index in order])),
            _integers(_padded(met, most_children, sizes, num_messages)),
            _integers(_padded(states, most_rests, sizes, self.num_states)),
        )

    def _block(self, block: list[int], messages: np.ndarray) -> CliqueBlock:
        separators, rests = [self._separators[index] for index in block], [self._rests[index] for index in block]
        widest = max(map(len, separators))
        tensors = (
            messages[block] - messages[block[0]],
            [separator + (0,) * (widest - len(separator)) for separator in separators],
            [[*self._strides_of(separator), *[0] * (widest - len(separator))] for separator in separators],
            rests,
            [self._strides_of(rest) for rest in rests],
            [[self._sizes[d] for d in rest] for rest in rests],
        )
        shape = sum(self._size(separator) for separator in separators), self._size(rests[0])
        return CliqueBlock(shape, *map(_integers, tensors))

    def _strides_of(self, variables: tuple[int, ...]) -> list[int]:
        return _strides([self._sizes[d] for d in variables])

    def _places(self, variables: tuple[int, ...], scope: tuple[int, ...]) -> np.ndarray:
        """Numbers of the joint states of some variables, for all joint states of a scope in order, shape ``(states of
        the scope,)``.
        """
        strides = dict(zip(variables, self._strides_of(variables), strict=True))
        numbers = np.zeros(1, dtype=int)
        for d in scope:
            numbers = (numbers[:, None] + strides.get(d, 0) * np.arange(self._sizes[d])).ravel()
        return numbers

    def _all_places(
        self, starts: Sequence[tuple[int, tuple[int, ...]]], scope: tuple[int, ...]
    ) -> Iterator[np.ndarray]:
        """Numbers of :meth:`_places` plus an offset, for one set of variables after the other, since they are large."""
        for start, variables in starts:
            yield start + self._places(variables, scope)

    def _sources(self, index: int, places: np.ndarray) -> np.ndarray:
        parent = self._parents[index]
        if parent == index:
            return np.zeros(0, dtype=int)
        above = self._separators[parent] + self._rests[parent]
        separator = self._separators[index]
        rest = tuple(d for d in above if d not in separator)
        entries: np.ndarray = places[parent] + self._places(above, separator + rest)
        return entries


def _strides(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]


def _runs(pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Pairs in which neighbours with the same second number are merged, their first numbers added."""
    groups = itertools.groupby(pairs, key=lambda pair: pair[1])
    return tuple((sum(number for number, _ in group), size) for size, group in groups)


def _starts(sizes: Sequence[int]) -> np.ndarray:
    return _bounds(sizes)[:-1]


def _bounds(sizes: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *sizes])


def _padded(rows: Iterable[Iterable[np.ndarray]], longest: int, sizes: Sequence[int], filler: int) -> np.ndarray:
    """Lists of index arrays side by side, shape ``(longest, sum(sizes))``, with a filler below shorter lists."""
    padded = np.full((longest, sum(sizes)), filler)
    for row, start, size in zip(rows, _starts(sizes), sizes, strict=True):
        for place, numbers in enumerate(row):
            padded[place, start : start + size] = numbers
    return padded


def _integers(numbers: object) -> Tensor:
    return torch.from_numpy(np.asarray(numbers, dtype=np.int64))
