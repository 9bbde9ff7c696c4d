"""Rows of categories, and counts of their joint states."""

__all__ = ["CategoricalRows", "least_information", "mutual_information", "state_type"]

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import entr, xlogy

from pyro_structured.foundation.ops.process_sums import each, summed
from pyro_structured.foundation.ops.row_pieces import distinct_rows, row_pieces

# All pairs of states are counted at once if there are at most so many states, in whose table they take 512 MB, and at
# most so many in a variable on average, beyond which most products of matrices would be of zeros; more in a variable if
# ``hits`` have at most so many entries.
MOST_COUNTED, MOST_IN_PAIRS, MOST_HITS = 2**13, 6, 2**22


class CategoricalRows:
    """Rows of discrete variables with weights; equal rows are merged.

    Where several processes learn together, each has some of the rows; counts, and what is said to be of all rows, are
    of those of all processes.

    :param np.ndarray values: States, integers of shape ``(N, n)``; -1 where one is missing.
    :param cardinalities: Numbers of states of the variables.
    :param np.ndarray weights: Weights of the rows, at least 0, shape ``(N,)``; ``None``: all are 1.
    :param known: Numbers of the first states that rows of training data can have; ``None``: all. The other states are
        for values to come.
    :ivar values: Different rows, column by column, in the smallest signed dtype, shape ``(n, R)``.
    :ivar weights: Weights of the different rows, shape ``(R,)``.
    """

    def __init__(
        self,
        values: np.ndarray,
        cardinalities: Sequence[int],
        weights: np.ndarray | None = None,
        known: Sequence[int] | None = None,
    ) -> None:
        self.cardinalities = tuple(int(size) for size in cardinalities)
        self._known = self.cardinalities if known is None else tuple(int(size) for size in known)
        weights = np.ones(len(values)) if weights is None else weights
        columns = ((column, -1, size + 1) for column, size in zip(values.T, self.cardinalities, strict=True))
        first, place = distinct_rows(columns, len(values))
        self.values = np.empty((len(self.cardinalities), len(first)), dtype=state_type(self.cardinalities))
        for piece in row_pieces(len(first)):
            self.values[:, piece] = values[first[piece]].T
        self.weights = np.bincount(place, weights, len(first))

    def reweighted(self, weights: np.ndarray) -> "CategoricalRows":
        """The same rows with other weights, without rows of weight 0.

        :param np.ndarray weights: Weights of at least 0, shape ``(R,)``.
        """
        kept = weights > 0
        return self._copy(np.ascontiguousarray(self.values[:, kept]), weights[kept], self.cardinalities)

    def recoded(self, values: np.ndarray, cardinalities: Sequence[int]) -> "CategoricalRows":
        """The same rows and weights, described by other variables; equal rows are not merged.

        :param np.ndarray values: States, column by column, shape ``(m, R)``.
        :param cardinalities: Numbers of states of the m variables, all of which rows can have.
        """
        sizes = tuple(cardinalities)
        copy = self._copy(np.ascontiguousarray(values), self.weights, sizes)
        copy._known = sizes
        return copy

    @cached_property
    def known(self) -> "CategoricalRows":
        """Rows without the states that are only for values to come."""
        return self if self._known == self.cardinalities else self._copy(self.values, self.weights, self._known)

    def _copy(self, values: np.ndarray, weights: np.ndarray, cardinalities: tuple[int, ...]) -> "CategoricalRows":
        copy = CategoricalRows.__new__(CategoricalRows)
        copy.values, copy.weights, copy.cardinalities, copy._known = values, weights, cardinalities, self._known
        return copy

    @cached_property
    def total(self) -> float:
        """Sum of the weights of all rows."""
        return float(each(float(self.weights.sum())).sum())

    def mean(self, numbers: np.ndarray) -> float:
        """Weighted mean over all rows of a number for each row, shape ``(R,)``."""
        return float(each(float((numbers * self.weights).sum())).sum() / self.total)

    @cached_property
    def observed(self) -> np.ndarray:
        """Whether entries are not missing, shape ``(n, R)``."""
        observed: np.ndarray = self.values >= 0
        return observed

    @cached_property
    def is_complete(self) -> bool:
        """Whether no entry of all rows is missing."""
        return bool(each(all(bool((column >= 0).all()) for column in self.values)).all())

    def counts(self, variables: Sequence[int]) -> np.ndarray:
        """Weighted counts of the joint states of some variables, the last one fastest, shape ``(states,)``.

        Only rows in which none of these variables is missing are counted.
        """
        return self.counts_of_all([variables])[0]

    def counts_of_all(self, cliques: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Counts of the joint states of several sets of variables; of all processes, in one sum."""
        own: list[np.ndarray] = []
        blocks: dict[int, np.ndarray] = {}
        for place, variables in enumerate(cliques):
            if len(variables) == 2 and self.counts_pairs_at_once:
                rows, columns = (slice(self.starts[d], self.starts[d] + self.cardinalities[d]) for d in variables)
                blocks[place] = self.pair_counts[rows, columns].ravel()
            else:
                own.append(self._own_counts(variables))
        if own:
            counts = np.split(summed(np.concatenate(own)), np.cumsum([len(each) for each in own])[:-1])
            rest = (place for place in range(len(cliques)) if place not in blocks)
            blocks.update(zip(rest, counts, strict=True))
        return [blocks[place] for place in range(len(cliques))]

    def _own_counts(self, variables: Sequence[int]) -> np.ndarray:
        """Counts among the rows of this process."""
        counts, is_complete = np.zeros(math.prod(self.cardinalities[d] for d in variables)), self.is_complete
        for piece in row_pieces(len(self.weights)):
            states, weights = self.joint_states(variables, piece), self.weights[piece]
            if not is_complete:
                complete = (self.values[list(variables), piece] >= 0).all(0)
                states, weights = states[complete], weights[complete]
            counts += np.bincount(states, weights, len(counts))
        return counts

    def joint_states(self, variables: Sequence[int], rows: slice = slice(None)) -> np.ndarray:
        """Numbers of the rows' joint states of some variables, the last one fastest, in the smallest dtype; arbitrary
        where one of them is missing.
        """
        number = math.prod(self.cardinalities[d] for d in variables)
        # Reading them is limited by memory bandwidth.
        kind = np.min_scalar_type(number - 1)
        states = np.zeros(len(self.weights[rows]), dtype=kind)
        for d in variables:
            # A number of states that the dtype does not hold becomes 0: then, all states before this one are.
            states *= np.array(self.cardinalities[d]).astype(kind)
            states += self.values[d, rows].astype(kind)
        return states

    @cached_property
    def counts_pairs_at_once(self) -> bool:
        """Whether memory allows for :attr:`pair_counts`."""
        number = self._num_states
        few = number <= MOST_IN_PAIRS * len(self.cardinalities) or each(len(self.weights)).sum() * number <= MOST_HITS
        return few and number <= MOST_COUNTED

    @property
    def _num_states(self) -> int:
        """Number of states of all variables together."""
        return sum(self.cardinalities)

    @cached_property
    def starts(self) -> np.ndarray:
        """Numbers of the variables' first states, if single states are numbered through all variables."""
        return np.cumsum((0, *self.cardinalities[:-1]))

    @cached_property
    def hits(self) -> np.ndarray:
        """Whether rows have single states, shape ``(R, states)``."""
        return self._hits_of(slice(None))

    def _hits_of(self, rows: slice) -> np.ndarray:
        hits = np.zeros((len(self.weights[rows]), self._num_states))
        for start, column in zip(self.starts, self.values[:, rows], strict=True):
            known = (column >= 0).nonzero()[0]
            hits[known, start + column[known].astype(np.int64)] = 1.0
        return hits

    @cached_property
    def pair_counts(self) -> np.ndarray:
        """Weighted counts of pairs of single states, by products of matrices, shape ``(states, states)``."""
        counts = np.zeros((self._num_states, self._num_states))
        for piece in row_pieces(len(self.weights), self._num_states):
            hits = self._hits_of(piece)
            counts += (hits * self.weights[piece, None]).T @ hits
        return summed(counts)


def state_type(cardinalities: Sequence[int]) -> np.dtype[Any]:
    """Smallest dtype of the variables' states, and of -1."""
    return np.min_scalar_type(-max(cardinalities, default=1))


def mutual_information(rows: CategoricalRows) -> np.ndarray:
    r"""Mutual information of all pairs of variables, in nats.

    The information of two variables is that of the rows in which neither of them is missing; zero if there are none.

    :return: Symmetric, shape ``(n, n)``, entropies on the diagonal. Cost :math:`O(N (\sum_d r_d)^2)` where memory
        allows for :attr:`CategoricalRows.pair_counts`; else :math:`O(n^2 N + (\sum_d r_d)^2)`, a pair at a time.

    Example::

        >>> rows = CategoricalRows(np.array([[0, 0, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]), [2, 2, 2])
        >>> mutual_information(rows).round(3)
        array([[0.693, 0.693, 0.   ],
               [0.693, 0.693, 0.   ],
               [0.   , 0.   , 0.693]])
    """
    if rows.counts_pairs_at_once:
        return _mean_information(*_information(rows.pair_counts, rows.starts))
    sizes = rows.cardinalities
    information = np.zeros((len(sizes), len(sizes)))
    for first, second in combinations(range(len(sizes)), 2):
        counts = rows.counts([first, second]).reshape(sizes[first], sizes[second])
        information[first, second] = information[second, first] = _information_of(counts)
    for d in range(len(sizes)):
        counts = rows.counts([d])
        total = counts.sum()
        information[d, d] = entr(counts / total).sum() if total else 0.0
    return information


def least_information(rows: CategoricalRows) -> np.ndarray:
    r"""Least mutual information of all pairs of variables, in nats, given no other variable or any single one.

    .. math::
        \min\bigl(I(u; v), \min_{w} I(u; v \mid w)\bigr).

    Small where a third variable explains why two depend on each other.

    :return: Symmetric, shape ``(n, n)``, zeros on the diagonal. Cost :math:`O(n N (\sum_d r_d)^2)`.

    Example::

        >>> x = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0]])  # the last is noisy
        >>> least_information(CategoricalRows(x, [2, 2, 2])).round(3)
        array([[0.   , 0.637, 0.   ],
               [0.637, 0.   , 0.   ],
               [0.   , 0.   , 0.   ]])
    """
    least = mutual_information(rows)
    np.fill_diagonal(least, 0.0)
    for d, column in enumerate(rows.values):
        given, total = np.zeros_like(least), np.zeros_like(least)
        for state in range(rows.cardinalities[d]):
            hits = rows.hits[column == state]
            counts = summed((hits * rows.weights[column == state, None]).T @ hits)
            for total_of_states, added in zip((given, total), _information(counts, rows.starts), strict=True):
                total_of_states += added
        # The information of a variable given itself is zero, and is left out of the minimum.
        given[d] = given[:, d] = np.inf
        np.minimum(least, _mean_information(given, total), out=least, where=total > 0)
    return least


def _information(counts: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mutual information of all pairs times the weight of their rows, from counts of pairs of states; and the weight of
    their rows, shape ``(n, n)`` each.
    """

    def add_up(states: np.ndarray) -> np.ndarray:
        """Sums over the states of the second variable."""
        return np.add.reduceat(states, starts, 1)

    # Counts of the first variable's states in the rows in which the second one is known.
    single = add_up(counts)
    rows = add_up(single.T).T
    owner = np.searchsorted(starts, np.arange(len(counts)), side="right") - 1
    terms = add_up(xlogy(counts, counts) - xlogy(counts, single.T[owner])) - xlogy(single, single)
    return add_up(terms.T).T + xlogy(rows, rows), rows


def _information_of(counts: np.ndarray) -> float:
    """Mutual information of two variables from the counts of their joint states, shape ``(r, s)``."""
    first, second, total = counts.sum(1), counts.sum(0), counts.sum()
    terms = xlogy(counts, counts).sum() - xlogy(first, first).sum() - xlogy(second, second).sum()
    return float(max(terms + xlogy(total, total), 0.0) / total) if total else 0.0


def _mean_information(information: np.ndarray, rows: np.ndarray) -> np.ndarray:
    # Sums of weights that are no integers may differ in the last bit from those of the transposed pair.
    means: np.ndarray = np.maximum(information + information.T, 0.0) / np.where(rows > 0, rows + rows.T, 1.0)
    return means
