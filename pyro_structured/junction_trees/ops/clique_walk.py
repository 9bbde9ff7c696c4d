"""Order in which compiled loops visit the cliques of a junction tree, with the axes of their tables."""

__all__ = ["CliqueWalk", "WeightedWalk"]

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
