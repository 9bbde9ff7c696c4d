"""Counts of ones in the blocks of many partitions at once, several counts in every number."""

__all__ = ["PackedCounts"]

import numpy as np
from scipy.special import gammaln

from pyro_structured.exchangeable.ops.binary_rows import Matrix

# A float64 sum of integers is exact up to this many bits.
COLUMN_BITS = 52
# Tables of words have to stay in the cache, and must not be longer than there are rows.
WORD_BITS = 10
# Largest number of single variables in a class that are counted; more are left to a product with their log-odds.
FEW_SINGLES = 16


class PackedCounts:
    r"""Counts of ones, and of gaps, in all blocks of K partitions, packed into words, without many single variables.

    A count of a block of s variables is a digit of :math:`\lceil\log_2(s + 1)\rceil` bits; gaps count for
    :math:`s + 1` ones each. Digits make words, and words make columns of a matrix, one product with which gives
    all counts; and one look-up gives the sum of the log-weights of all counts in a word. So a row costs little more
    than in a naive Bayes model. A block whose digit is too long for a word with others has a *long* word.

    Blocks are numbered class by class, from 0 to B - 1, without those that are left out.

    *Cells* are the counts :math:`0, \dots, s` of all blocks, one after the other: their log-weights are those of single
    configurations. Gaps are missing values. Their numbers make *levels*: a cell at level m is a number of ones beside m
    gaps; the cells themselves are level 0. There are C cells, :math:`\sum_b (s_b + 1)`.

    :param np.ndarray labels: Smallest variables of the blocks that variables are in, integers of shape ``(K, n)``.
    :param int largest_gap: The largest number of gaps in a row, at least 0.

    Arrays are of integers, unless stated otherwise.

    :ivar labels: The parameter of this name.
    :ivar single: Whether variables are alone and left out, booleans of shape ``(K, n)``.
    :ivar blocks: Blocks that the variables are in, shape ``(K, n)``; arbitrary for those that are left out.
    :ivar sizes: Numbers of variables of the blocks, shape ``(B,)``.
    :ivar classes: Classes of the blocks, in increasing order, shape ``(B,)``.
    :ivar names: Smallest variables of the blocks, shape ``(B,)``.
    :ivar starts: First cells of the blocks, where they have no ones, shape ``(B,)``.
    :ivar cell_block: Blocks of the cells, shape ``(C,)``.
    :ivar cell_count: Numbers of ones that the cells stand for, shape ``(C,)``.
    :ivar cell_size: Sizes of the cells' blocks, shape ``(C,)``.
    :ivar log_choices: Logarithms of the numbers of configurations with so many ones, float64, shape ``(C,)``.
    :ivar num_levels: Number of levels: 1 more than the largest number of gaps that a block can have in a row.
    """

    def __init__(self, labels: np.ndarray, largest_gap: int = 0) -> None:
        number, width = labels.shape
        apart = labels + np.arange(number)[:, None] * width
        sizes = np.bincount(apart.ravel(), minlength=number * width)
        smallest = 1 if (sizes == 1).sum() <= FEW_SINGLES * number else 2
        kept = np.flatnonzero(sizes >= smallest)
        self.labels, self.single = labels, sizes[apart] < smallest
        self.sizes, self.classes, self.names = sizes[kept], kept // width, kept % width
        blocks = np.searchsorted(kept, apart)
        ends = np.cumsum(self.sizes + 1)
        self.starts = ends - self.sizes - 1
        self.cell_block = np.repeat(np.arange(len(self.sizes)), self.sizes + 1)
        self.cell_count = np.arange(len(self.cell_block)) - self.starts[self.cell_block]
        self.cell_size = self.sizes[self.cell_block]
        self.log_choices = gammaln(self.cell_size + 1.0) - gammaln(self.cell_count + 1.0)
        self.log_choices -= gammaln(self.cell_size - self.cell_count + 1.0)
        self.num_levels = 1 + min(largest_gap, int(self.sizes.max(initial=0)))
        self.blocks = blocks
        self._pack(width)

    def with_gaps(self, largest_gap: int) -> "PackedCounts":
        """The same cells, with levels for up to ``largest_gap`` gaps in a row."""
        enough = largest_gap < self.num_levels or self.num_levels > self.sizes.max(initial=0)
        return self if enough else PackedCounts(self.labels, largest_gap)

    @property
    def cell_class(self) -> np.ndarray:
        """Classes of the cells, shape ``(C,)``."""
        classes: np.ndarray = self.classes[self.cell_block]
        return classes

    def block_means(self, means: np.ndarray) -> np.ndarray:
        """Means over the variables of each block, shape ``(B,)``, of numbers of shape ``(K, n)``."""
        classes, variables = np.nonzero(~self.single)
        owner = self.blocks[classes, variables]
        block_means: np.ndarray = np.bincount(owner, means[classes, variables], len(self.sizes)) / self.sizes
        return block_means

    def _pack(self, width: int) -> None:
        """Gives digits places in words, and words in columns.

        Arrays over the W words: ``_word_bits``, their lengths; ``_word_class``; ``_word_column`` and ``_word_shift``,
        their places in the columns; ``_lengths``, their numbers of values, zero for long words. ``_long`` are pairs
        of a long word and its block. ``_ones`` and ``_gaps``, float64, shape ``(n, columns)``, are the amounts that a
        one or a gap of a variable adds to columns.
        """
        self._block_levels = np.minimum(self.sizes, self.num_levels - 1) + 1
        bits = np.array([int(n - 1).bit_length() for n in self._block_levels * (self.sizes + 1)], dtype=np.int64)
        word, offset, self._word_bits = _fill(bits, self.classes, WORD_BITS)
        self._word_class = np.zeros(len(self._word_bits), dtype=np.int64)
        self._word_class[word] = self.classes
        column, self._word_shift, used = _fill(self._word_bits, np.zeros_like(self._word_bits), COLUMN_BITS)
        self._word_column = column
        classes, variables = np.nonzero(~self.single)
        owner = self.blocks[classes, variables]
        place, unit = (variables, column[word][owner]), 2.0 ** (self._word_shift[word] + offset)
        self._ones, self._gaps = np.zeros((width, len(used))), np.zeros((width, len(used)))
        np.add.at(self._ones, place, unit[owner])
        np.add.at(self._gaps, place, (unit * (self.sizes + 1))[owner])
        is_long = self._word_bits[word] > WORD_BITS
        self._long = list(zip(word[is_long].tolist(), np.flatnonzero(is_long).tolist(), strict=True))
        self._lengths = np.where(self._word_bits > WORD_BITS, 0, 1 << self._word_bits)
        self._index_entries(word, offset, bits)

    def _index_entries(self, word: np.ndarray, offset: np.ndarray, bits: np.ndarray) -> None:
        """Cells of the digits of all values of the short words: ``_cells``, at their levels, and ``_entries`` of the
        list of all values, a pair for each digit of each value.
        """
        entries, cells = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        starts = np.cumsum(self._lengths) - self._lengths
        for block in np.flatnonzero(self._lengths[word]).tolist():
            value, size = np.arange(self._lengths[word[block]]), self.sizes[block]
            gaps, ones = np.divmod((value >> offset[block]) & ((1 << bits[block]) - 1), size + 1)
            possible = (ones + gaps <= size) & (gaps < self.num_levels)
            entries.append(starts[word[block]] + value[possible])
            cells.append((gaps * len(self.cell_block) + self.starts[block] + ones)[possible])
        self._entries, self._cells = np.concatenate(entries), np.concatenate(cells)

    def _block_cells(self, block: int, cells: np.ndarray) -> np.ndarray:
        """A block's part of an array of shape ``(levels, cells)``: that of a long word's values, in their order."""
        start = self.starts[block]
        return cells[: self._block_levels[block], start : start + self.sizes[block] + 1]

    def weights(self, ones: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights of ones and of gaps, for :meth:`words`: the counting weights, and others of shape ``(n, K)``."""
        return np.hstack([self._ones, ones]), np.hstack([self._gaps, gaps])

    def words(
        self, ones: Matrix, gaps: Matrix | None = None, weights: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Counts of rows, packed.

        :param ones: Zeros and ones, dense or sparse, shape ``(R, n)``; zero where values are missing.
        :param gaps: Ones where values are missing, the same shape.
        :param weights: Result of :meth:`weights`; ``None``: the counting weights only.
        :return: An integer for each row and word; and the sums of the other weights, shape ``(K, R)``.
        """
        for_ones, for_gaps = (self._ones, self._gaps) if weights is None else weights
        sums = _product(ones, for_ones)
        if gaps is not None:
            sums += _product(gaps, for_gaps)
        number = self._ones.shape[1]
        columns = sums[:number].astype(np.int64)
        words = []
        for column, shift, bits in zip(self._word_column, self._word_shift, self._word_bits, strict=True):
            word = columns[column] >> shift
            word &= (1 << bits) - 1
            words.append(word)
        return words, sums[number:]

    def tables(self, log_levels: np.ndarray) -> list[np.ndarray]:
        """Log-weights of all values of the words, from those of the cells, shape ``(levels, cells)``."""
        ends = np.cumsum(self._lengths)
        table = np.bincount(self._entries, log_levels.ravel()[self._cells], self._lengths.sum())
        tables = [table[end - length : end] for end, length in zip(ends, self._lengths, strict=True)]
        for word, block in self._long:
            tables[word] = self._block_cells(block, log_levels).ravel()
        return tables

    def add_scores(self, words: list[np.ndarray], tables: list[np.ndarray], scores: np.ndarray) -> None:
        """Adds to the scores of all classes, shape ``(K, R)``, the log-weights of their counts."""
        for index, table, row in zip(words, tables, self._word_class.tolist(), strict=True):
            row_scores = scores[row]
            row_scores += table.take(index)

    def histogram(self, words: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
        """Weights of all cells at all levels, shape ``(levels, cells)``, from weights of shape ``(K, R)``."""
        of_words: list[np.ndarray] = [np.zeros(0)]
        for word in np.flatnonzero(self._lengths).tolist():
            of_words.append(np.bincount(words[word], weights[self._word_class[word]], self._lengths[word]))
        size = self.num_levels * len(self.cell_block)
        histogram = np.bincount(self._cells, np.concatenate(of_words)[self._entries], size).astype(
            np.float64, copy=False
        )
        histogram = histogram.reshape(self.num_levels, -1)
        for word, block in self._long:
            rows = self._block_cells(block, histogram)
            rows += np.bincount(words[word], weights[self._word_class[word]], rows.size).reshape(rows.shape)
        return histogram

    def levels(self, log_cells: np.ndarray) -> np.ndarray:
        """Log-weights of numbers of ones beside gaps, the last being a zero or a one; shape ``(levels, cells)``."""
        log_sums = np.full((self.num_levels, len(log_cells)), -np.inf)
        log_sums[0] = log_cells
        for level in range(1, self.num_levels):
            possible = np.flatnonzero(self.cell_count + level <= self.cell_size)
            log_sums[level, possible] = np.logaddexp(log_sums[level - 1, possible], log_sums[level - 1, possible + 1])
        return log_sums

    def fill(self, histogram: np.ndarray, log_levels: np.ndarray) -> np.ndarray:
        """Expected weights of the cells if all gaps are filled in at random, given the ones; shape ``(cells,)``."""
        filled: np.ndarray = histogram[-1]
        for level in range(self.num_levels - 1, 0, -1):
            present = np.flatnonzero(filled)
            zero = filled[present] * np.exp(log_levels[level - 1, present] - log_levels[level, present])
            one = filled[present] - zero
            filled = histogram[level - 1].copy()
            filled[present] += zero
            filled[present + 1] += one
        return filled


def _fill(bits: np.ndarray, groups: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Words and offsets of all digits, and bits of the words; no word has digits of two groups.

    A digit that is longer than the capacity has a word of its own.
    """
    word, offset = np.zeros_like(bits), np.zeros_like(bits)
    used: list[int] = []
    last = -1
    for digit in np.lexsort((bits, groups)).tolist():
        if groups[digit] != last or used[-1] + bits[digit] > capacity:
            used.append(0)
            last = int(groups[digit])
        word[digit], offset[digit] = len(used) - 1, used[-1]
        used[-1] += int(bits[digit])
    return word, offset, np.array(used, dtype=np.int64)


def _product(values: Matrix, weights: np.ndarray) -> np.ndarray:
    """Sums of weights over rows, shape ``(columns, R)``."""
    product: np.ndarray = weights.T @ values.T if isinstance(values, np.ndarray) else (values @ weights).T
    return np.ascontiguousarray(product)
