"""The order of passes through a junction tree, and which entries of its tables go together."""

__all__ = ["CliqueGroup", "CliquePlan"]

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class CliqueGroup:
    r"""Cliques of one level whose tables are alike: G of them.

    The variables of a clique are those that it has in common with its parent, the separator, with S joint states; and
    the others, with R joint states. *Messages* of a level are those of its groups, one after the other, G S for each.

    :ivar tuple shape: ``(G, S, R)``.
    :ivar Tensor entries: Places of the cliques' entries in the packed tables, shape ``(G * S * R,)``, by separator's
        state.
    :ivar Tensor messages: Messages of the next level that an entry meets, shape ``(children, G * S * R)``.
    :ivar Tensor sources: Entries of the level above that sum up to a separator's state, shape ``(G * S * T,)``.
    :ivar Tensor states: Single states that joint states of the other variables consist of, numbered through all
        variables, shape ``(variables, G * R)``.
    :ivar Tensor separators: Variables of the separators, shape ``(G, variables)``.
    :ivar Tensor separator_strides: What a state of them adds to the number of the joint state, of the same shape.
    :ivar Tensor variables: The other variables, shape ``(G, variables)``.
    :ivar Tensor strides: As for the separators.
    :ivar Tensor cardinalities: Their numbers of states.
    """

    shape: tuple[int, int, int]
    entries: Tensor
    messages: Tensor
    sources: Tensor
    states: Tensor
    separators: Tensor
    separator_strides: Tensor
    variables: Tensor
    strides: Tensor
    cardinalities: Tensor

    def to(self, device: torch.device) -> "CliqueGroup":
        """The same on a device."""
        tensors = (getattr(self, field.name).to(device) for field in fields(self)[1:])
        return CliqueGroup(self.shape, *tensors)


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
        self._starts = np.concatenate([[0], np.cumsum(tables)])
        self._first_states = np.concatenate([[0], np.cumsum(cardinalities)])
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
        self._levels = self._build()
        order = torch.cat([group.entries for level in self._levels for group in level])
        self._order = order.argsort()
        widest = max(map(len, cliques))
        strides = [_strides([cardinalities[d] for d in clique]) for clique in cliques]
        self._scopes = torch.tensor([[*clique, *[0] * (widest - len(clique))] for clique in cliques])
        self._strides = torch.tensor([[*each, *[0] * (widest - len(each))] for each in strides])
        self._on_device = lru_cache(maxsize=8)(self._move)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_on_device"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._on_device = lru_cache(maxsize=8)(self._move)

    def levels(self, device: torch.device) -> list[list[CliqueGroup]]:
        """Groups of cliques, from the roots."""
        return self._on_device(device)[0]

    def order(self, device: torch.device) -> Tensor:
        """Where the packed tables' entries are among those of all groups."""
        return self._on_device(device)[1]

    def table_index(self, states: Tensor) -> Tensor:
        """The cliques' entries of joint states, shape ``(..., cliques)``, from integers of shape ``(..., n)``."""
        _, _, scopes, strides, starts = self._on_device(states.device)
        return (states[..., scopes] * strides).sum(-1) + starts

    def _move(self, device: torch.device) -> tuple[list[list[CliqueGroup]], Tensor, Tensor, Tensor, Tensor]:
        levels = [[group.to(device) for group in level] for level in self._levels]
        starts = torch.from_numpy(self._starts[:-1])
        order, scopes, strides = (tensor.to(device) for tensor in (self._order, self._scopes, self._strides))
        return levels, order, scopes, strides, starts.to(device)

    def _build(self) -> list[list[CliqueGroup]]:
        children: list[list[int]] = [[] for _ in self._cliques]
        level = [index for index, parent in enumerate(self._parents) if parent == index]
        for index, parent in enumerate(self._parents):
            if parent != index:
                children[parent].append(index)
        members: list[list[list[int]]] = []
        while level:
            found: dict[tuple[int, ...], list[int]] = {}
            for index in level:
                found.setdefault(self._key(index, len(children[index])), []).append(index)
            members.append(list(found.values()))
            level = [child for group in members[-1] for index in group for child in children[index]]
        # Where entries start in their level, and messages in theirs.
        places, messages = np.zeros(len(self._cliques), dtype=int), np.zeros(len(self._cliques), dtype=int)
        for groups in members:
            entry = message = 0
            for index in (index for group in groups for index in group):
                places[index], messages[index] = entry, message
                entry += self._size(self._cliques[index])
                message += self._size(self._separators[index])
        return [[self._group(group, children, places, messages) for group in groups] for groups in members]

    def _size(self, variables: tuple[int, ...]) -> int:
        return math.prod(self._sizes[d] for d in variables)

    def _key(self, index: int, num_children: int) -> tuple[int, ...]:
        separator, rest = self._separators[index], self._rests[index]
        above = self._cliques[self._parents[index]]
        return self._size(separator), self._size(rest), self._size(above), num_children, len(separator), len(rest)

    def _group(
        self, group: list[int], children: list[list[int]], places: np.ndarray, messages: np.ndarray
    ) -> CliqueGroup:
        first = group[0]
        shape = len(group), self._size(self._separators[first]), self._size(self._rests[first])
        scopes = [self._separators[index] + self._rests[index] for index in group]
        entries = [
            self._starts[i] + self._places(self._cliques[i], scope) for i, scope in zip(group, scopes, strict=True)
        ]
        met = [
            [messages[child] + self._places(self._separators[child], scope) for child in children[index]]
            for index, scope in zip(group, scopes, strict=True)
        ]
        sources = [self._sources(index, places) for index in group]
        states = [self._rest_states(self._rests[index]) for index in group]
        tensors = (
            np.concatenate(entries),
            np.concatenate(met, -1) if met[0] else np.zeros((0, math.prod(shape))),
            np.concatenate(sources),
            np.concatenate(states, -1),
            [self._separators[index] for index in group],
            [_strides([self._sizes[d] for d in self._separators[index]]) for index in group],
            [self._rests[index] for index in group],
            [_strides([self._sizes[d] for d in self._rests[index]]) for index in group],
            [[self._sizes[d] for d in self._rests[index]] for index in group],
        )
        return CliqueGroup(shape, *(torch.from_numpy(np.asarray(each, dtype=np.int64)) for each in tensors))

    def _places(self, variables: tuple[int, ...], scope: tuple[int, ...]) -> np.ndarray:
        """For all joint states of a scope, in order, those of some of its variables, as numbers in their own order."""
        strides = dict(zip(variables, _strides([self._sizes[d] for d in variables]), strict=True))
        found = np.zeros(1, dtype=int)
        for d in scope:
            found = (found[:, None] + strides.get(d, 0) * np.arange(self._sizes[d])).ravel()
        return found

    def _sources(self, index: int, places: np.ndarray) -> np.ndarray:
        parent = self._parents[index]
        if parent == index:
            return np.zeros(0, dtype=int)
        above = self._separators[parent] + self._rests[parent]
        separator = self._separators[index]
        rest = tuple(d for d in above if d not in separator)
        found: np.ndarray = places[parent] + self._places(above, separator + rest)
        return found

    def _rest_states(self, rest: tuple[int, ...]) -> np.ndarray:
        size = self._size(rest)
        found = [self._first_states[d] + self._places((d,), rest) for d in rest]
        return np.stack(found) if found else np.zeros((0, size), dtype=int)


def _strides(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
