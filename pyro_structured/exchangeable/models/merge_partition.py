"""Blocks of exchangeable variables, found by merging blocks as long as the partition becomes more probable."""

__all__ = ["merge_labels", "merge_partition"]

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor

from pyro_structured.exchangeable.ops.binary_rows import Matrix
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.distributions.argument_checks import check_weights
from pyro_structured.foundation.models.argument_checks import check_binary, plain_array

# Share of all weights whose rows, the lightest, are left out.
NEGLIGIBLE = 1e-4
# Number of rows that are enough; of more, a sample is taken.
ENOUGH_ROWS = 2**14
# Ends of ranges of largest counts: the blocks of one range are compared with a block at once.
MAGNITUDES = np.array([1, 4, 16, 64, 256])


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
    rows, weights = _telling_rows(weights)
    names, index = np.unique(labels, return_inverse=True)
    members = np.equal.outer(index, np.arange(len(names)))
    counts = np.asarray(values[rows] @ members.astype(np.float64)).astype(np.int64)
    blocks = _Blocks(counts, members.sum(0), weights)
    _merge_best(blocks, np.log(len(labels)))
    return names[blocks.name[index]]


def _telling_rows(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows without the lightest, and their weights; of too many, a systematic sample."""
    order = np.argsort(weights, kind="stable")
    rows = np.sort(order[np.cumsum(weights[order]) > NEGLIGIBLE * weights.sum()])
    if len(rows) <= ENOUGH_ROWS:
        return rows, weights[rows]
    total = weights[rows].sum()
    ends = np.cumsum(weights[rows])
    drawn, times = np.unique(
        np.searchsorted(ends, (np.arange(ENOUGH_ROWS) + 0.5) * total / ENOUGH_ROWS), return_counts=True
    )
    # A sample is no more evidence than its own rows are.
    return rows[drawn], times * min(total / ENOUGH_ROWS, 1.0)


def _merge_best(blocks: "_Blocks", price: float) -> None:
    """Merges the best pair, as long as it gains more than its price."""
    gains = np.empty((len(blocks.sizes), len(blocks.sizes)))
    magnitude = np.searchsorted(MAGNITUDES, blocks.largest)
    for group in np.unique(magnitude):
        chosen = np.flatnonzero(magnitude == group)
        gains[chosen] = blocks.gains(chosen)
    best, gain = gains.argmax(1), gains.max(1)
    while gain.max() > price:
        first, second = sorted((int(gain.argmax()), int(best[gain.argmax()])))
        blocks.merge(first, second)
        gains[second], gains[:, second], gain[second] = -np.inf, -np.inf, -np.inf
        gains[first] = gains[:, first] = blocks.gains(np.array([first]))[0]
        # Only a block whose best partner has changed has to look at all others again.
        stale = np.flatnonzero(np.isfinite(gain) & ((best == first) | (best == second)))
        stale = np.append(stale, first)
        best[stale] = gains[stale].argmax(1)
        gain[stale] = gains[stale, best[stale]]
        better = np.flatnonzero(gains[:, first] > gain)
        best[better], gain[better] = first, gains[better, first]


class _Blocks:
    """Blocks, and indicators of their counts in all rows.

    Every positive count that occurs in a block has a column of indicators of the rows where it occurs. A merged block
    takes the columns of its two parts, some of which may stay unused (owner -1).
    """

    def __init__(self, counts: np.ndarray, sizes: np.ndarray, weights: np.ndarray) -> None:
        self.weights, self.total, self.sizes = weights, weights.sum(), sizes.copy()
        self.name = np.arange(len(sizes))
        self.largest = counts.max(0)
        ends = np.cumsum(self.largest)
        self.columns = [np.arange(end - top, end) for end, top in zip(ends, self.largest, strict=True)]
        self.owner = np.repeat(self.name, self.largest)
        self.count = np.arange(ends[-1]) - (ends - self.largest)[self.owner] + 1
        self.rows = [np.flatnonzero(column) for column in counts.T]
        self.counts = [column[rows] for column, rows in zip(counts.T, self.rows, strict=True)]
        self.indicators = np.zeros((len(counts), ends[-1]))
        for rows, block_counts, columns in zip(self.rows, self.counts, self.columns, strict=True):
            self.indicators[rows, columns[block_counts - 1]] = 1
        self.mass = weights @ self.indicators
        self.log_factorials = gammaln(np.arange(2 * sizes.sum() + 1) + 1.0)
        histograms = np.zeros((len(sizes), self.largest.max() + 1))
        histograms[self.owner, self.count] = self.mass
        histograms[:, 0] = self.total - histograms.sum(1)
        self.evidence = self._evidence(histograms, sizes)

    def _evidence(self, histograms: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Log evidence of blocks; histograms ``(blocks, counts)`` may leave out counts that do not occur."""
        counts, top = np.arange(histograms.shape[1]), sizes[:, None]
        choices = self.log_factorials[top] - self.log_factorials[counts]
        choices = choices - self.log_factorials[np.maximum(top - counts, 0)]
        terms, present = -histograms * choices, histograms > 0
        terms[present] += gammaln(histograms[present] + 1)
        evidence: np.ndarray = terms.sum(1)
        evidence += self.log_factorials[sizes] - gammaln(self.total + sizes + 1)
        return evidence

    def merge(self, first: int, second: int) -> None:
        """Joins two blocks under the name of the first."""
        counts = np.zeros(len(self.weights), dtype=np.int64)
        for block in (first, second):
            counts[self.rows[block]] += self.counts[block]
        free = np.concatenate([self.columns[first], self.columns[second]])
        self.rows[first] = np.flatnonzero(counts)
        self.counts[first] = counts[self.rows[first]]
        largest = counts.max()
        used = free[:largest]
        self.indicators[:, free] = 0
        self.indicators[self.rows[first], used[self.counts[first] - 1]] = 1
        histogram = np.bincount(counts, weights=self.weights)
        self.owner[free], self.owner[used] = -1, first
        self.count[used], self.mass[used] = np.arange(1, largest + 1), histogram[1:]
        self.columns[first], self.largest[first] = used, largest
        self.name[self.name == second] = first
        self.sizes[first] += self.sizes[second]
        self.sizes[second] = 0
        self.evidence[first] = self._evidence(histogram[None], self.sizes[first : first + 1])[0]

    def gains(self, chosen: np.ndarray) -> np.ndarray:
        """Gains of merging the chosen blocks with all others, shape ``(chosen, blocks)``; -inf where there is none."""
        mine = np.concatenate([self.columns[block] for block in chosen])
        rows = self.rows[chosen[0]] if len(chosen) == 1 else np.arange(len(self.weights))
        selected = self.indicators[rows]
        joint = (selected[:, mine] * self.weights[rows, None]).T @ selected
        gains = np.full((len(chosen), len(self.sizes)), -np.inf)
        # Blocks with small counts apart from those with large ones, which would make all histograms long.
        magnitude = np.searchsorted(MAGNITUDES, self.largest)
        for group in np.unique(magnitude[self.sizes > 0]):
            others = np.flatnonzero((magnitude == group) & (self.sizes > 0))
            theirs = np.flatnonzero((self.owner >= 0) & (magnitude[self.owner] == group))
            histograms = self._joined_histograms(chosen, mine, others, theirs, joint[:, theirs])
            sizes = self.sizes[chosen][:, None] + self.sizes[others]
            joined = self._evidence(histograms.reshape(-1, histograms.shape[-1]), sizes.ravel()).reshape(sizes.shape)
            gains[:, others] = joined - self.evidence[chosen][:, None] - self.evidence[others]
        gains[np.equal.outer(chosen, np.arange(len(self.sizes)))] = -np.inf
        return gains

    def _joined_histograms(
        self, chosen: np.ndarray, mine: np.ndarray, others: np.ndarray, theirs: np.ndarray, joint: np.ndarray
    ) -> np.ndarray:
        """Weights of the counts of the chosen blocks together with others, shape ``(chosen, others, counts)``.

        :param mine: Columns of the chosen blocks.
        :param theirs: Columns of the others.
        :param joint: Weights of the rows where both of two columns are 1, shape ``(mine, theirs)``.
        """
        place, owner = np.searchsorted(chosen, self.owner[mine]), np.searchsorted(others, self.owner[theirs])
        count, their_count = self.count[mine], self.count[theirs]
        width = count.max(initial=0) + their_count.max(initial=0) + 1
        histograms = np.zeros((len(chosen), len(others), width))
        # At first as if one of the two had no ones in any row, then corrected where both have.
        histograms[place, :, count] += self.mass[mine][:, None]
        histograms[:, owner, their_count] += self.mass[theirs]
        pairs = ((place * len(others))[:, None] + owner) * width
        for sign, mine_too, theirs_too in ((1, 1, 1), (-1, 1, 0), (-1, 0, 1)):
            cells = pairs + (mine_too * count[:, None] + theirs_too * their_count)
            added = np.bincount(cells.ravel(), joint.ravel(), histograms.size)
            histograms += sign * added.reshape(histograms.shape)
        histograms = np.maximum(histograms, 0)
        histograms[..., 0] = np.maximum(self.total - histograms[..., 1:].sum(-1), 0)
        return histograms
