"""Blocks of exchangeable variables, found by merging blocks as long as the partition becomes more probable."""

__all__ = ["ENOUGH_ROWS", "NEGLIGIBLE", "merge_labels", "merge_partition", "merge_rows", "telling_rows"]

from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csc_matrix, csr_matrix
from scipy.special import gammaln
from torch import Tensor

from pyro_structured.exchangeable.ops.binary_rows import Matrix
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.distributions.argument_checks import check_weights
from pyro_structured.foundation.models.argument_checks import check_binary, plain_array
from pyro_structured.foundation.ops.row_pieces import row_pieces

# Share of all weights whose rows, the lightest, are left out.
NEGLIGIBLE = 1e-4
# Number of rows that are enough; of more, a sample is taken.
ENOUGH_ROWS = 2**14
# Share of positive counts below which lists of them are faster than matrices.
LISTED = 0.1


def merge_partition(values: Tensor, weights: Tensor | None = None, start: Partition | None = None) -> Partition:
    r"""Merges blocks of variables, two at a time, as long as the partition becomes more probable.

    A block of s variables whose counts t have been seen with total weights :math:`N_t` has the evidence

    .. math::
        \frac{s!\, \prod_t \Gamma(N_t + 1)}{\Gamma(\sum_t N_t + s + 1)} \prod_{t=0}^s \binom{s}{t}^{-N_t},

    its likelihood averaged over all distributions of the count, none preferred; partitions have the product. A block
    of s variables has as many free numbers as s independent ones. But there are many pairs, and the best of them
    looks good by chance: each merger has to gain :math:`\log n` nats, as if partitions into B blocks had the prior
    probability :math:`\propto n^B`. The best pair is merged first; the result is a local optimum. Each row of
    weights is a class that is partitioned by itself.

    :param Tensor values: Zeros and ones, shape ``(N, n)``.
    :param Tensor weights: Weights of the rows in every class, at least 0, shape ``(..., N)``; ``None``: all are 1.
    :param Partition start: Blocks to begin with, of batch shape ``(...)``; ``None``: single variables.
    :return: Partitions of batch shape ``(...)``. Cost about :math:`O(N n^2)` for every class, less if ones are rare or
        there are few blocks; memory :math:`O(N n + n^2)`. The lightest rows, with one in ten thousand of all weight,
        are not looked at; of more than ``2 ** 14`` rows, a sample is, spread evenly over the weights.
    :raises ValueError: if values are not zeros and ones, or weights are negative, or shapes do not fit.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Section 3.3 leaves better structure learning than by
    Welch tests (:func:`welch_partition`) to future work; this is ours.

    Example::

        >>> pairs = torch.randint(2, (200, 2)).repeat_interleave(2, dim=1)  # the first two are equal, and the others
        >>> merge_partition(pairs).blocks()
        [[0, 1], [2, 3]]
    """
    check_binary(values)
    weights = torch.ones(len(values)) if weights is None else weights
    check_weights(weights, len(values))
    if not weights.numel():
        raise ValueError(f"weights: expected at least one row of weights, got shape {tuple(weights.shape)}")
    if start is not None and (not isinstance(start, Partition) or start.num_variables != values.shape[1]):
        raise ValueError(f"start: expected a Partition of {values.shape[1]} variables, got {start!r}")
    rows, shape = plain_array(values), weights.shape[:-1] + values.shape[1:]
    classes = weights.detach().double().cpu().reshape(-1, len(values)).numpy()
    labels = (Partition(torch.arange(values.shape[1])) if start is None else start).expand(weights.shape[:-1]).labels
    first = labels.cpu().reshape(len(classes), -1).numpy()
    merged = np.stack(
        [merge_labels(rows, class_weights, blocks) for class_weights, blocks in zip(classes, first, strict=True)]
    )
    return Partition(torch.from_numpy(merged).reshape(shape).to(values.device))


def merge_labels(values: Matrix, weights: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The smallest variables of one class's blocks; arguments as for :func:`merge_partition`."""
    if not weights.any():
        return labels
    rows, weights = telling_rows(np.arange(len(weights)), weights)
    return merge_rows(values[rows], weights, labels)


def merge_rows(values: Matrix, weights: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The smallest variables of one class's blocks, found by all rows; arguments as for :func:`merge_partition`."""
    names, index = np.unique(labels, return_inverse=True)
    members = csr_matrix((np.ones(len(labels)), (np.arange(len(labels)), index)))
    blocks = _Blocks(csc_matrix(values @ members), np.bincount(index), weights)
    _merge_best(blocks, np.log(len(labels)))
    return names[blocks.name[index]]


def telling_rows(rows: np.ndarray, weights: np.ndarray, rest: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows without the lightest, and their weights; of too many, a systematic sample.

    :param np.ndarray rows: Increasing numbers of the rows that come into question.
    :param np.ndarray weights: Their weights.
    :param float rest: Weight of all others, each of which is lighter.
    """
    negligible = NEGLIGIBLE * (rest + weights.sum())
    # Only rows that weigh little, together more than is negligible, have to be sorted.
    bound = max(negligible / max(len(weights), 1), float(np.finfo(float).tiny))
    low = weights <= bound
    while rest + weights[low].sum() <= negligible and not low.all():
        bound *= 4
        low = weights <= bound
    lightest = np.flatnonzero(low)
    lightest = lightest[np.argsort(weights[lightest], kind="stable")]
    kept = ~low
    kept[lightest[rest + np.cumsum(weights[lightest]) > negligible]] = True
    rows, weights = rows[kept], weights[kept]
    if len(rows) <= ENOUGH_ROWS:
        return rows, weights
    total, ends = weights.sum(), np.cumsum(weights)
    drawn, times = np.unique(
        np.searchsorted(ends, (np.arange(ENOUGH_ROWS) + 0.5) * total / ENOUGH_ROWS), return_counts=True
    )
    # A sample is no more evidence than its own rows are.
    return rows[drawn], times * min(total / ENOUGH_ROWS, 1.0)


def _merge_best(blocks: "_Blocks", price: float) -> None:
    """Merges the best pair, as long as it gains more than its price."""
    gains = blocks.all_gains()
    best, gain = gains.argmax(1), gains.max(1)
    while gain.max() > price:
        first, second = sorted((int(gain.argmax()), int(best[gain.argmax()])))
        blocks.merge(first, second)
        gains[second], gains[:, second], gain[second] = -np.inf, -np.inf, -np.inf
        gains[first] = gains[:, first] = blocks.gains(first)
        # Only a block whose best partner has changed has to look at all others again.
        stale = np.flatnonzero(np.isfinite(gain) & ((best == first) | (best == second)))
        stale = np.append(stale, first)
        best[stale] = gains[stale].argmax(1)
        gain[stale] = gains[stale, best[stale]]
        better = np.flatnonzero(gains[:, first] > gain)
        best[better], gain[better] = first, gains[better, first]


class _Blocks:
    """Blocks, and the rows in which their counts are positive.

    Every positive count that occurs in a block has a column. A merged block takes the columns of its two parts, some of
    which may stay unused (owner -1). Which column a row's positive counts have is known from a list for all
    rows, or, if there are many, from a matrix of indicators.
    """

    def __init__(self, counts: csc_matrix, sizes: np.ndarray, weights: np.ndarray) -> None:
        self.weights, self.total, self.sizes = weights, weights.sum(), sizes.copy()
        self.name = np.arange(len(sizes))
        parts = list(pairwise(counts.indptr.tolist()))
        self.rows = [counts.indices[start:end].astype(np.int64) for start, end in parts]
        self.counts = [counts.data[start:end].astype(np.int64) for start, end in parts]
        self.largest = np.array([block_counts.max(initial=0) for block_counts in self.counts])
        ends = np.cumsum(self.largest)
        self.columns = [np.arange(end - top, end) for end, top in zip(ends, self.largest, strict=True)]
        self.owner = np.repeat(self.name, self.largest)
        self.count = np.arange(ends[-1]) - (ends - self.largest)[self.owner] + 1
        columns = np.concatenate([own[each - 1] for own, each in zip(self.columns, self.counts, strict=True)])
        rows = np.concatenate(self.rows)
        # Counts of nothing would be integers.
        self.mass = np.bincount(columns, weights[rows], ends[-1]).astype(np.float64, copy=False)
        self.indicators: np.ndarray | None = None
        if len(rows) > LISTED * len(weights) * len(sizes):
            self.indicators = np.zeros((len(weights), ends[-1]))
            self.indicators[rows, columns] = 1
        order = np.argsort(rows, kind="stable")
        self.starts = np.searchsorted(rows[order], np.arange(len(weights) + 1))
        self.entries = columns[order]
        places = np.empty(len(rows), dtype=np.int64)
        places[order] = np.arange(len(rows))
        self.places = [places[start:end] for start, end in parts]
        self.log_factorials = gammaln(np.arange(2 * sizes.sum() + 1) + 1.0)
        # Terms of the evidence that depend on sizes alone.
        self.log_sizes = self.log_factorials - gammaln(self.total + np.arange(2 * sizes.sum() + 1) + 1)
        histograms = [np.append(0.0, self.mass[own]) for own in self.columns]
        self.evidence = self._evidence(np.concatenate(histograms), self.largest + 1, sizes)

    def _evidence(self, histograms: np.ndarray, widths: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Log evidence of blocks.

        :param np.ndarray histograms: Weights of the counts 0, 1, ..., block after block; those of 0 are what the others
            leave of all weights, and are written to it.
        :param np.ndarray widths: Numbers of counts of the blocks.
        """
        starts = np.cumsum(widths) - widths
        histograms[starts] = 0
        histograms[starts] = np.maximum(self.total - np.add.reduceat(histograms, starts), 0)
        top, counts = np.repeat(sizes, widths), np.arange(len(histograms)) - np.repeat(starts, widths)
        choices = self.log_factorials[top] - self.log_factorials[counts] - self.log_factorials[top - counts]
        terms, present = -histograms * choices, np.flatnonzero(histograms)
        terms[present] += gammaln(histograms[present] + 1)
        evidence: np.ndarray = np.add.reduceat(terms, starts) + self.log_sizes[sizes]
        return evidence

    def merge(self, first: int, second: int) -> None:
        """Joins two blocks under the name of the first."""
        place = np.full(len(self.weights), -1)
        place[self.rows[first]] = np.arange(len(self.rows[first]))
        place = place[self.rows[second]]
        both, alone = place >= 0, place < 0
        counts = self.counts[first].copy()
        counts[place[both]] += self.counts[second][both]
        self.counts[first] = counts = np.concatenate([counts, self.counts[second][alone]])
        self.rows[first] = rows = np.concatenate([self.rows[first], self.rows[second][alone]])
        unused = self.places[second][both]
        self.places[first] = np.concatenate([self.places[first], self.places[second][alone]])
        free = np.concatenate([self.columns[first], self.columns[second]])
        largest = counts.max(initial=0)
        used = free[:largest]
        self.entries[unused], self.entries[self.places[first]] = -1, used[counts - 1]
        if self.indicators is not None:
            self.indicators[:, free] = 0
            self.indicators[rows, used[counts - 1]] = 1
        histogram = np.bincount(counts, self.weights[rows], largest + 1).astype(np.float64, copy=False)
        self.owner[free], self.owner[used] = -1, first
        self.count[used], self.mass[used] = np.arange(1, largest + 1), histogram[1:]
        self.columns[first], self.largest[first] = used, largest
        self.name[self.name == second] = first
        self.sizes[first] += self.sizes[second]
        self.sizes[second] = 0
        self.evidence[first] = self._evidence(histogram, np.array([largest + 1]), self.sizes[first : first + 1])[0]

    def all_gains(self) -> np.ndarray:
        """Gains of merging all pairs of blocks, shape ``(blocks, blocks)``; -inf on the diagonal."""
        gains = np.full((len(self.sizes), len(self.sizes)), -np.inf)
        narrow, wide = np.flatnonzero(self.largest <= 1), np.flatnonzero(self.largest > 1)
        for block in wide.tolist():
            gains[block] = gains[:, block] = self.gains(block)
        seen = narrow[self.largest[narrow] == 1]
        joint = np.zeros((len(narrow), len(narrow)))
        joint[np.ix_(self.largest[narrow] == 1, self.largest[narrow] == 1)] = self._joint_ones(seen)
        mass = np.zeros(len(narrow))
        mass[self.largest[narrow] == 1] = self.mass[[self.columns[block][0] for block in seen]]
        for piece in row_pieces(len(narrow), 64 * len(narrow)):
            one, others = narrow[piece], narrow[piece.start :]
            two = joint[piece, piece.start :]
            sizes = self.sizes[one][:, None] + self.sizes[others]
            single = np.maximum(mass[piece, None] + mass[piece.start :] - 2 * two, 0)
            joined = self.log_sizes[sizes] - single * np.log(sizes)
            for weights in (two, single, np.maximum(self.total - single - two, 0)):
                present = weights > 0
                joined[present] += gammaln(weights[present] + 1)
            joined -= two * np.log(sizes * (sizes - 1) / 2)
            joined -= self.evidence[one][:, None] + self.evidence[others]
            gains[np.ix_(one, others)] = joined
            gains[np.ix_(others, one)] = joined.T
        np.fill_diagonal(gains, -np.inf)
        return gains

    def _joint_ones(self, blocks: np.ndarray) -> np.ndarray:
        """Weights of the rows in which both of two blocks, whose largest count is 1, have it."""
        columns = np.concatenate([self.columns[block] for block in blocks]) if len(blocks) else blocks
        if self.indicators is not None:
            ones = self.indicators[:, columns]
            weighted: np.ndarray = (ones * self.weights[:, None]).T @ ones
            return weighted
        rows = [self.rows[block] for block in blocks]
        ends = np.append(0, np.cumsum([len(each) for each in rows]))
        index = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        shape = len(self.weights), len(blocks)
        heavy = csc_matrix((self.weights[index], index, ends), shape)
        joint: np.ndarray = (heavy.T @ csc_matrix((np.ones(len(index)), index, ends), shape)).toarray()
        return joint

    def gains(self, block: int) -> np.ndarray:
        """Gains of merging a block with each of the others, shape ``(blocks,)``; -inf where there is none."""
        others, theirs = np.flatnonzero(self.sizes), np.flatnonzero(self.owner >= 0)
        widths = self.largest[block] + self.largest[others] + 1
        starts = np.cumsum(widths) - widths
        histograms = np.zeros(widths.sum())
        # At first as if one of the two had no ones in any row, then corrected where both have.
        count = np.arange(1, self.largest[block] + 1)
        histograms[starts[:, None] + count] = self.mass[self.columns[block]]
        start, their_count = starts[np.searchsorted(others, self.owner[theirs])], self.count[theirs]
        histograms[start + their_count] += self.mass[theirs]
        joint = self._joint(block)[:, theirs]
        mine, place = joint.nonzero()
        weights, start, their_count, count = joint[mine, place], start[place], their_count[place], count[mine]
        cells = np.concatenate([start + count + their_count, start + count, start + their_count])
        histograms += np.bincount(cells, np.concatenate([weights, -weights, -weights]), len(histograms))
        np.maximum(histograms, 0, out=histograms)
        joined = self._evidence(histograms, widths, self.sizes[block] + self.sizes[others])
        gains = np.full(len(self.sizes), -np.inf)
        gains[others] = joined - self.evidence[block] - self.evidence[others]
        gains[block] = -np.inf
        return gains

    def _joint(self, block: int) -> np.ndarray:
        """Weights of the rows where a block has a positive count and a column is 1, shape ``(counts, columns)``."""
        rows, number = self.rows[block], len(self.owner)
        if self.indicators is not None:
            mine = self.indicators[:, self.columns[block]]
            joint: np.ndarray = (mine * self.weights[:, None]).T @ self.indicators
            return joint
        lengths = self.starts[rows + 1] - self.starts[rows]
        ends = np.cumsum(lengths)
        # Unused entries have the column after the last.
        column = self.entries[np.repeat(self.starts[rows] - ends + lengths, lengths) + np.arange(lengths.sum())]
        cells = np.repeat((self.counts[block] - 1) * (number + 1), lengths) + np.where(column < 0, number, column)
        weights = np.repeat(self.weights[rows], lengths)
        found = np.bincount(cells, weights, self.largest[block] * (number + 1))
        return found.reshape(-1, number + 1)[:, :number]
