"""Expectation and maximisation for mixtures of partitions into exchangeable blocks."""

__all__ = [
    "BlockParameters",
    "BlockStatistics",
    "accumulate",
    "complete_statistics",
    "expect",
    "fill_gaps",
    "learned_statistics",
    "log_joint",
    "maximize",
]

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_matrix, vstack

from pyro_structured.exchangeable.ops.binary_rows import BinaryRows, Matrix
from pyro_structured.exchangeable.ops.packed_counts import PackedCounts
from pyro_structured.foundation.ops.process_sums import is_shared, summed


@dataclass(frozen=True)
class BlockParameters:
    """Probabilities of a mixture.

    :ivar log_classes: Logarithms of the probabilities of the classes, shape ``(K,)``.
    :ivar log_ones: Logarithms of the probabilities that variables are 1, shape ``(K, n)``; used where a variable is
        left out of the counts.
    :ivar log_zeros: Logarithms of the probabilities that variables are 0, shape ``(K, n)``.
    :ivar log_cells: Logarithms of the probabilities of single configurations of the blocks, shape ``(cells,)``.
    :ivar log_prior: Logarithm, up to a constant, of the prior that the smoothing amounts to.
    """

    log_classes: np.ndarray
    log_ones: np.ndarray
    log_zeros: np.ndarray
    log_cells: np.ndarray
    log_prior: float


@dataclass(frozen=True)
class BlockStatistics:
    """Sums over rows, of all processes that learn together, weighted by the probabilities of the classes.

    :ivar classes: Weights of the classes, shape ``(K,)``.
    :ivar ones: Weights of the ones of all variables, shape ``(K, n)``.
    :ivar gaps: Weights of their missing values, shape ``(K, n)``.
    :ivar histogram: Weights of the counts of all blocks, shape ``(levels, cells)``.
    """

    classes: np.ndarray
    ones: np.ndarray
    gaps: np.ndarray
    histogram: np.ndarray

    def __add__(self, other: "BlockStatistics") -> "BlockStatistics":
        names = ("classes", "ones", "gaps", "histogram")
        return BlockStatistics(*(getattr(self, name) + getattr(other, name) for name in names))

    def of_all(self, log_likelihood: float) -> tuple[float, "BlockStatistics"]:
        """Log-likelihood and statistics, as sums over the processes that learn together."""
        if not is_shared():
            return log_likelihood, self
        parts = self.classes, self.ones, self.gaps, self.histogram
        total, *sums = np.split(
            summed(np.concatenate([[log_likelihood], *(part.ravel() for part in parts)])),
            np.cumsum([1, *(part.size for part in parts[:-1])]),
        )
        return float(total[0]), BlockStatistics(
            *(each.reshape(part.shape) for each, part in zip(sums, parts, strict=True))
        )


def log_joint(counts: PackedCounts, parameters: BlockParameters, rows: BinaryRows) -> np.ndarray:
    """Log-probabilities of rows together with each class, shape ``(K, R)``; gaps are summed out."""
    score = _scorer(counts, parameters)
    return np.concatenate([score(chunk)[0] for _, chunk in rows.chunks()], 1)


def _scorer(
    counts: PackedCounts, parameters: BlockParameters
) -> Callable[[BinaryRows], tuple[np.ndarray, list[np.ndarray]]]:
    """Function from rows to their scores and words; terms that do not depend on rows are computed once."""
    tables = counts.tables(counts.levels(parameters.log_cells))
    offsets, weights = parameters.log_classes, None
    if counts.single.any():
        on, off = (np.where(counts.single, log_probs, 0.0) for log_probs in (parameters.log_ones, parameters.log_zeros))
        offsets, weights = offsets + off.sum(1), counts.weights((on - off).T, -off.T)

    def score(rows: BinaryRows) -> tuple[np.ndarray, list[np.ndarray]]:
        words, sums = counts.words(rows.ones, rows.gaps, weights)
        scores = sums if len(sums) else np.zeros((len(offsets), len(rows)))
        scores += offsets[:, None]
        counts.add_scores(words, tables, scores)
        return scores, words

    return score


def expect(
    counts: PackedCounts, parameters: BlockParameters, rows: BinaryRows, log_allowed: np.ndarray | None = None
) -> tuple[np.ndarray, float, BlockStatistics]:
    """E-step: probabilities of the classes of all rows, log-likelihood, and expected statistics.

    :param np.ndarray log_allowed: Zero for the classes that a row can be of, -inf for the others, shape ``(K, R)``;
        ``None``: all.
    :return: Probabilities of the classes, shape ``(K, R)``; the log-likelihood, of all rows of processes that learn
        together; the statistics for :func:`maximize`.
    """
    posterior, total, statistics = np.empty((len(counts.labels), len(rows))), 0.0, None
    score = _scorer(counts, parameters)
    for place, chunk in rows.chunks():
        scores, words = score(chunk)
        if log_allowed is not None:
            scores += log_allowed[:, place]
        peak = scores.max(0)
        scores -= peak
        np.exp(scores, out=scores)
        mass = scores.sum(0)
        scores /= mass
        posterior[:, place] = scores
        total += float(chunk.weights @ (np.log(mass) + peak))
        sums = _sums(counts, chunk, scores * chunk.weights, words)
        statistics = sums if statistics is None else statistics + sums
    assert statistics is not None
    return posterior, *statistics.of_all(total)


def accumulate(counts: PackedCounts, rows: BinaryRows, posterior: np.ndarray) -> BlockStatistics:
    """Statistics for :func:`maximize`, given probabilities of the classes of all rows, shape ``(K, R)``."""
    sums_of_chunks = (
        _sums(counts, chunk, posterior[:, place] * chunk.weights, counts.words(chunk.ones, chunk.gaps)[0])
        for place, chunk in rows.chunks()
    )
    total = next(sums_of_chunks)
    for sums in sums_of_chunks:
        total = total + sums
    return total.of_all(0.0)[1]


def _sums(counts: PackedCounts, rows: BinaryRows, weights: np.ndarray, words: list[np.ndarray]) -> BlockStatistics:
    ones = (rows.ones.T @ weights.T).T
    gaps = np.zeros_like(ones) if rows.gaps is None else (rows.gaps.T @ weights.T).T
    return BlockStatistics(weights.sum(1), ones, gaps, counts.histogram(words, weights))


def maximize(
    counts: PackedCounts, statistics: BlockStatistics, smoothing: float, previous: BlockParameters | None = None
) -> BlockParameters:
    """The M-step: closed form (Theorem 4.2), with smoothing added to all counts of ones, of zeros and of cells.

    :param previous: The parameters with which the statistics were expected, which give the distribution of the gaps.
        ``None``, for another partition: variables with gaps count as if they were independent.
    """
    known = complete_statistics(counts, statistics, smoothing, previous)
    classes = known.classes
    log_ones, log_zeros = _log_shares(known.ones, np.maximum(classes[:, None] - known.ones, 0), smoothing)
    log_probs = np.log(known.histogram[0] + smoothing) - np.log(_cell_totals(counts, classes, smoothing))
    with np.errstate(divide="ignore"):
        log_classes = np.log(classes / classes.sum())
    single = np.where(counts.single, log_ones + log_zeros, 0.0)
    log_prior = smoothing * float(log_probs.sum() + single.sum())
    return BlockParameters(log_classes, log_ones, log_zeros, log_probs - counts.log_choices, log_prior)


def complete_statistics(
    counts: PackedCounts, statistics: BlockStatistics, smoothing: float, previous: BlockParameters | None = None
) -> BlockStatistics:
    """Expected statistics with all gaps filled in, which have no gaps, and a histogram of shape ``(1, cells)``.

    :param previous: As for :func:`maximize`.
    """
    classes, gaps = statistics.classes, statistics.gaps
    if not gaps.any():
        return BlockStatistics(classes, statistics.ones, gaps, statistics.histogram[:1])
    zeros = np.maximum(classes[:, None] - gaps - statistics.ones, 0)
    log_ones, log_zeros = _log_shares(statistics.ones, zeros, smoothing)
    log_cells = _independent(counts, np.exp(log_ones), np.exp(log_zeros))
    if previous is not None:
        log_ones, log_cells = previous.log_ones, previous.log_cells
    cells = counts.fill(statistics.histogram, counts.levels(log_cells))
    return BlockStatistics(classes, statistics.ones + gaps * np.exp(log_ones), np.zeros_like(gaps), cells[None])


def learned_statistics(
    counts: PackedCounts, parameters: BlockParameters, smoothing: float, total: float
) -> BlockStatistics:
    """Statistics without gaps from which :func:`maximize` makes these parameters.

    :param float total: Sum of the weights of the rows.
    """
    classes = total * np.exp(parameters.log_classes)
    ones = np.exp(parameters.log_ones) * (classes[:, None] + 2 * smoothing) - smoothing
    cells = np.exp(parameters.log_cells + counts.log_choices) * _cell_totals(counts, classes, smoothing) - smoothing
    return BlockStatistics(classes, ones.clip(min=0), np.zeros_like(ones), cells.clip(min=0)[None])


def _cell_totals(counts: PackedCounts, classes: np.ndarray, smoothing: float) -> np.ndarray:
    """Weights of the cells' classes, with the smoothing of all cells of a block, shape ``(cells,)``."""
    totals: np.ndarray = classes[counts.cell_class] + smoothing * (counts.cell_size + 1)
    return totals


def _log_shares(ones: np.ndarray, zeros: np.ndarray, smoothing: float) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the probabilities of ones and of zeros, both finite."""
    log_total = np.log(ones + zeros + 2 * smoothing)
    return np.log(ones + smoothing) - log_total, np.log(zeros + smoothing) - log_total


def _independent(counts: PackedCounts, ones: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Log-probabilities of the cells' configurations if all variables of a block are independent, with one mean."""
    on, off = (np.log(counts.block_means(probabilities))[counts.cell_block] for probabilities in (ones, zeros))
    log_cells: np.ndarray = counts.cell_count * on + (counts.cell_size - counts.cell_count) * off
    return log_cells


def fill_gaps(
    counts: PackedCounts, parameters: BlockParameters, rows: BinaryRows, k: int, rng: np.random.Generator
) -> Matrix:
    """Rows whose missing values are drawn given the others and a class, shape ``(R, n)``; sparse if the ones are."""
    if rows.gaps is None:
        return rows.ones
    parts = [_filled(counts, parameters, chunk, k, rng) for _, chunk in rows.chunks()]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else vstack(parts, "csr")


def _filled(
    counts: PackedCounts, parameters: BlockParameters, rows: BinaryRows, k: int, rng: np.random.Generator
) -> Matrix:
    drawn = csc_matrix(rows.gaps)
    log_levels = counts.levels(parameters.log_cells)
    grouped = np.flatnonzero(~counts.single[k])
    first = np.searchsorted(counts.classes, k)
    members = np.zeros((len(counts.single[k]), np.count_nonzero(counts.classes == k)))
    members[grouped, counts.blocks[k, grouped] - first] = 1
    ones, gaps = ((marked @ members).astype(np.int64) for marked in (rows.ones, drawn))
    for variable in np.flatnonzero(np.diff(drawn.indptr)):
        entries = slice(*drawn.indptr[variable : variable + 2])
        where = drawn.indices[entries]
        if counts.single[k, variable]:
            drawn.data[entries] = np.log(rng.random(len(where))) < parameters.log_ones[k, variable]
            continue
        block = counts.blocks[k, variable]
        place = where, block - first
        cell = counts.starts[block] + ones[place]
        log_share = log_levels[gaps[place] - 1, cell + 1] - log_levels[gaps[place], cell]
        drawn.data[entries] = np.log(rng.random(len(where))) < log_share
        gaps[place] -= 1
        ones[place] += drawn.data[entries].astype(np.int64)
    return (rows.ones + (drawn.toarray() if isinstance(rows.ones, np.ndarray) else drawn)).astype(np.uint8)
