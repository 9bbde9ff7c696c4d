"""Blocks of exchangeable variables, found by merging as long as that makes the partition more probable."""

__all__ = ["merge_partition"]

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor

from pyro_structured.distributions.argument_checks import check_weights
from pyro_structured.models.argument_checks import check_binary
from pyro_structured.structures import Partition

# Rows of so little weight, relative to the heaviest, do not tell which blocks to merge.
NEGLIGIBLE = 1e-6


def merge_partition(values: Tensor, weights: Tensor | None = None) -> Partition:
    r"""Merges single variables, and then blocks, two at a time, as long as the partition becomes more probable.

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
    :return: Partitions of batch shape ``(...)``. Cost about :math:`O(N n^2)` for every class, less if ones are rare;
        memory :math:`O(N n + n^2)`.
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
    rows, batch = values.detach().cpu().numpy(), weights.shape[:-1]
    classes = weights.detach().double().cpu().reshape(-1, len(values)).numpy()
    labels = np.stack([merge_labels(rows, each) for each in classes])
    return Partition(torch.from_numpy(labels).reshape(batch + (rows.shape[1],)).to(values.device))


def merge_labels(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Labels of one class's blocks; arguments as for :func:`merge_partition`."""
    heavy = weights > NEGLIGIBLE * weights.max(initial=0.0)
    if not heavy.any():
        return np.arange(values.shape[1])
    blocks = _Blocks(values[heavy], weights[heavy])
    gains = blocks.pair_gains()
    best = gains.argmax(1)
    gain = gains.max(1)
    price = np.log(values.shape[1])
    while gain.max() > price:
        first, second = sorted((int(gain.argmax()), int(best[gain.argmax()])))
        blocks.merge(first, second)
        gains[second], gains[:, second], gain[second] = -np.inf, -np.inf, -np.inf
        others, found = blocks.gains(first)
        gains[first, others] = gains[others, first] = found
        # Only a block whose best partner has changed has to look at all others again.
        stale = np.append(others[(best[others] == first) | (best[others] == second)], first)
        best[stale] = gains[stale].argmax(1)
        gain[stale] = gains[stale, best[stale]]
        better = others[found > gain[others]]
        best[better], gain[better] = first, gains[first, better]
    return blocks.labels


class _Blocks:
    """Blocks, and which rows have which counts.

    Every positive count that occurs in a block has a column of indicators: where it occurs. A merged block takes the
    columns of its two parts, of which some may stay unused (owner -1).
    """

    def __init__(self, values: np.ndarray, weights: np.ndarray) -> None:
        number = values.shape[1]
        self.weights, self.total = weights, weights.sum()
        self.indicators = np.ascontiguousarray(values, dtype=np.float64)
        self.labels, self.sizes = np.arange(number), np.ones(number, dtype=np.int64)
        self.owner, self.count = np.arange(number), np.ones(number, dtype=np.int64)
        self.mass = weights @ self.indicators
        self.columns = [np.array([d]) for d in range(number)]
        self.rows = [np.flatnonzero(column) for column in values.T]
        self.counts = [np.ones(len(rows), dtype=np.int64) for rows in self.rows]
        histogram = np.stack([self.total - self.mass, self.mass], 1)
        self.evidence = self._evidence(histogram, self.sizes)

    def _evidence(self, histogram: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Log evidence of blocks; histograms ``(blocks, counts)`` may leave out counts that do not occur."""
        counts, top = np.arange(histogram.shape[1]), sizes[:, None]
        choices = gammaln(top + 1.0) - gammaln(counts + 1.0) - gammaln(np.maximum(top - counts, 0) + 1.0)
        evidence: np.ndarray = (gammaln(histogram + 1) - histogram * choices).sum(1)
        evidence += gammaln(sizes + 1.0) - gammaln(self.total + sizes + 1)
        return evidence

    def pair_gains(self) -> np.ndarray:
        """Gains of merging any two single variables, -inf on the diagonal."""
        both = (self.indicators * self.weights[:, None]).T @ self.indicators
        one = np.maximum(self.mass[:, None] + self.mass - 2 * both, 0)
        none = np.maximum(self.total - one - both, 0)
        joint = gammaln(none + 1) + gammaln(one + 1) + gammaln(both + 1) - one * np.log(2)
        gains: np.ndarray = joint + gammaln(3) - gammaln(self.total + 3) - self.evidence[:, None] - self.evidence
        np.fill_diagonal(gains, -np.inf)
        return gains

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
        self.columns[first] = used
        self.labels[self.labels == second] = first
        self.sizes[first] += self.sizes[second]
        self.sizes[second] = 0
        self.evidence[first] = self._evidence(histogram[None], self.sizes[first : first + 1])[0]

    def gains(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Other blocks, and the gains of merging them with one."""
        others = np.flatnonzero((self.sizes > 0) & (np.arange(len(self.sizes)) != block))
        histogram = self._joined_histogram(block, others)
        sizes = self.sizes[others] + self.sizes[block]
        return others, self._evidence(histogram, sizes) - self.evidence[others] - self.evidence[block]

    def _joined_histogram(self, block: int, others: np.ndarray) -> np.ndarray:
        """Weights of the counts of one block together with each other block, shape ``(others, counts)``."""
        mine = self.columns[block]
        theirs = np.flatnonzero((self.owner >= 0) & (self.owner != block))
        place = np.searchsorted(others, self.owner[theirs])
        rows, counts = self.rows[block], self.count[theirs]
        weighted = np.zeros((len(rows), len(mine)))
        weighted[np.arange(len(rows)), self.counts[block] - 1] = self.weights[rows]
        joint = (weighted.T @ self.indicators[rows])[:, theirs]
        width = len(mine) + counts.max(initial=0) + 1
        alone = (place * width + np.arange(1, len(mine) + 1)[:, None]).ravel()
        both = alone + np.tile(counts, len(mine))
        size = len(others) * width
        # Rows where both have ones are first counted as if the other block had none.
        histogram = np.zeros(size)
        histogram += np.bincount(both, joint.ravel(), size) - np.bincount(alone, joint.ravel(), size)
        histogram += np.bincount(place * width + counts, self.mass[theirs] - joint.sum(0), size)
        table = histogram.reshape(len(others), width)
        table[:, 1 : len(mine) + 1] += self.mass[mine]
        table = np.maximum(table, 0)
        table[:, 0] = np.maximum(self.total - table[:, 1:].sum(1), 0)
        return table
