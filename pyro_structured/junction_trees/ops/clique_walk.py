"""Order in which compiled loops visit the cliques of a junction tree, with the axes of their tables."""

__all__ = ["CliqueWalk", "WeightedWalk", "walk_cliques"]

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class CliqueWalk(NamedTuple):
    """Cliques from the roots to the leaves, all arrays of integers; a clique's number is its place in this order.

    Joint states of a clique are numbered with its other variables before those of its separator, both in increasing
    order, the last one fastest: what is summed out comes first.

    :ivar np.ndarray parents: Numbers of the parents, -1 for roots, shape ``(P,)``.
    :ivar np.ndarray tables: First entries of the packed tables, shape ``(P,)``.
    :ivar np.ndarray sizes: Numbers of entries of the tables, shape ``(P,)``.
    :ivar np.ndarray axes: First axes of the cliques among the A axes of all, and A, shape ``(P + 1,)``.
    :ivar np.ndarray separators: First axes of the separators among all, shape ``(P,)``.
    :ivar np.ndarray variables: Variables of the axes, shape ``(A,)``.
    :ivar np.ndarray strides: Strides of the axes in the tables, shape ``(A,)``.
    :ivar np.ndarray above: For axes of separators, the axis of the parent with the same variable, counted from the
        parent's first one, shape ``(A,)``; zero for others.
    :ivar np.ndarray child_starts: First children of the cliques, and their number, shape ``(P + 1,)``.
    :ivar np.ndarray children: Children of the cliques, one after the other.
    :ivar np.ndarray messages: First messages of the cliques, one for each state of the separator, and the number of
        messages, shape ``(P + 1,)``.
    :ivar np.ndarray steps: First place of each clique among strides of its messages along its parent's axes, and the
        number of these strides, shape ``(P + 1,)``.
    :ivar np.ndarray states: First single states of the variables, and their number, shape ``(n + 1,)``.
    """

    parents: np.ndarray
    tables: np.ndarray
    sizes: np.ndarray
    axes: np.ndarray
    separators: np.ndarray
    variables: np.ndarray
    strides: np.ndarray
    above: np.ndarray
    child_starts: np.ndarray
    children: np.ndarray
    messages: np.ndarray
    steps: np.ndarray
    states: np.ndarray


class WeightedWalk(NamedTuple):
    """Cliques with the weights of their states, of which those are summed over that agree with evidence.

    :ivar CliqueWalk walk: The cliques.
    :ivar np.ndarray weights: Weights of the entries of all tables, shape ``(rows, table_size)`` or ``(1,
        table_size)``; in double precision.
    :ivar bool are_logarithms: Whether ``weights`` are logarithms.
    :ivar np.ndarray least: Least positive weights of the cliques, shape ``(P,)``.
    :ivar np.ndarray evidence: 0 for states that agree with the evidence, -inf for others, shape ``(rows,
        num_states)`` or ``(1, num_states)``, or without columns; in double precision.
    """

    walk: CliqueWalk
    weights: np.ndarray
    are_logarithms: bool
    least: np.ndarray
    evidence: np.ndarray


def walk_cliques(
    order: Sequence[int],
    cliques: Sequence[tuple[int, ...]],
    parents: Sequence[int],
    separators: Sequence[tuple[int, ...]],
    cardinalities: Sequence[int],
) -> CliqueWalk:
    """Arrays of a walk, of O(sum of the cliques' numbers of variables) numbers.

    :param order: Cliques, every one after its parent.
    :param cliques: Variables of the cliques, in increasing order.
    :param parents: Parents of the cliques; those of roots are themselves.
    :param separators: Variables that cliques share with their parents, none for roots.
    :param cardinalities: Numbers of states of the variables.

    Example::

        >>> walk = walk_cliques([0, 1], [(0, 1), (1, 2)], [0, 0], [(), (1,)], [2, 3, 4])
        >>> walk.variables.tolist(), walk.strides.tolist(), walk.above.tolist()
        ([0, 1, 2, 1], [3, 1, 1, 4], [0, 0, 0, 1])
    """
    place = {index: number for number, index in enumerate(order)}
    scopes = {index: (*(d for d in cliques[index] if d not in separators[index]), *separators[index]) for index in order}
    sizes = [math.prod(cardinalities[d] for d in clique) for clique in cliques]
    starts = _starts(sizes)
    children: list[list[int]] = [[] for _ in order]
    strides, above = [], []
    for number, index in enumerate(order):
        clique, parent = cliques[index], parents[index]
        if parent != index:
            children[place[parent]].append(number)
        own = {d: math.prod(cardinalities[e] for e in clique[axis + 1 :]) for axis, d in enumerate(clique)}
        strides += [own[d] for d in scopes[index]]
        above += [scopes[parent].index(d) if d in separators[index] else 0 for d in scopes[index]]
    axes = _starts([len(scopes[index]) for index in order])
    return CliqueWalk(
        _integers([-1 if parents[index] == index else place[parents[index]] for index in order]),
        starts[list(order)],
        _integers([sizes[index] for index in order]),
        axes,
        axes[1:] - _integers([len(separators[index]) for index in order]),
        _integers([d for index in order for d in scopes[index]]),
        _integers(strides),
        _integers(above),
        _starts([len(numbers) for numbers in children]),
        _integers([number for numbers in children for number in numbers]),
        _starts([math.prod(cardinalities[d] for d in separators[index]) for index in order]),
        _starts([0 if parents[index] == index else len(scopes[parents[index]]) for index in order]),
        _starts(cardinalities),
    )


def _starts(sizes: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *sizes], dtype=np.int64)


def _integers(numbers: Sequence[int]) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)
