"""Counts, scores and histograms against loops over blocks and rows."""

import tracemalloc
from itertools import product
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.exchangeable.ops.packed_counts import FEW_SINGLES, PackedCounts
from pyro_structured.structures import Partition


def partitions(number, width, seed):
    """Canonical labels of random partitions."""
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(rng.integers(1, width + 1), size=width) for _ in range(number)])
    return Partition(torch.from_numpy(labels)).labels.numpy()


def rows_with_gaps(seed, number, width, missing):
    rng = np.random.default_rng(seed)
    values = (rng.random((number, width)) < rng.random(width)).astype(float)
    values[rng.random(values.shape) < missing] = np.nan
    return values, rng


def blocks_of(labels):
    """Class and members of every block, but for single variables if they are many, in the order of the cells."""
    few = sum((row == name).sum() == 1 for row in labels for name in row) <= FEW_SINGLES * len(labels)
    for k, row in enumerate(labels):
        for name in np.unique(row):
            members = np.flatnonzero(row == name)
            if few or len(members) > 1:
                yield k, members


SHAPES = [(1, 1), (1, 5), (3, 7), (4, 30), (2, 900)]


@given(st.sampled_from(SHAPES), st.integers(0, 2**31), st.sampled_from([0.0, 0.3]))
def test_scores_and_histograms(shape, seed, missing):
    labels = partitions(*shape, seed)
    width = shape[1] if shape[1] < 100 else 20  # many variables: only few of them vary, but their digits are large
    values, rng = rows_with_gaps(seed, 9, width, missing)
    values = np.hstack([values, np.ones((9, shape[1] - width))])
    rows = BinaryRows.from_matrix(values)
    counts = PackedCounts(labels, rows.largest_gap)
    log_levels = rng.normal(size=(counts.num_levels, len(counts.cell_block)))
    weights = rng.random((shape[0], len(rows)))
    others = rng.normal(size=(2, shape[1], 3))
    words, sums = counts.words(rows.ones, rows.gaps, counts.weights(*others))
    expected = np.nan_to_num(values) @ others[0] + np.isnan(values) @ others[1]
    np.testing.assert_allclose(sums, expected.T, rtol=1e-9, atol=1e-9)
    scores = np.zeros((shape[0], len(rows)))
    counts.add_scores(words, counts.tables(log_levels), scores)
    expected, histogram = np.zeros_like(scores), np.zeros_like(log_levels)
    for start, (k, members) in zip(counts.starts, blocks_of(labels), strict=True):
        for r, row in enumerate(values[:, members]):
            cell = np.isnan(row).sum(), start + int(np.nansum(row))
            expected[k, r] += log_levels[cell]
            histogram[cell] += weights[k, r]
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(counts.histogram(words, weights), histogram, rtol=1e-12, atol=1e-12)


def test_long_words_take_no_more_memory_than_their_cells():
    size = 600
    gaps = np.ones((1, size))
    tracemalloc.start()
    counts = PackedCounts(np.zeros((1, size), dtype=int), size)
    log_levels = counts.levels(np.zeros(size + 1))
    words, _ = counts.words(0 * gaps, gaps)
    scores = np.zeros((1, 1))
    counts.add_scores(words, counts.tables(log_levels), scores)
    histogram = counts.histogram(words, gaps[:, :1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scores == pytest.approx(size * np.log(2)) and histogram[size, 0] == histogram.sum() == 1
    assert peak < 4 * log_levels.nbytes


@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 2**31))
def test_cells(number, width, seed):
    labels = partitions(number, width, seed)
    counts = PackedCounts(labels)
    found = list(blocks_of(labels))
    np.testing.assert_array_equal(counts.classes, [k for k, _ in found])
    np.testing.assert_array_equal(counts.names, [members[0] for _, members in found])
    cells = [(b, t, len(m), comb(len(m), t)) for b, (_, m) in enumerate(found) for t in range(len(m) + 1)]
    for i, name in enumerate(("cell_block", "cell_count", "cell_size")):
        np.testing.assert_array_equal(getattr(counts, name), [cell[i] for cell in cells])
    np.testing.assert_allclose(np.exp(counts.log_choices), [cell[3] for cell in cells])
    assert counts.single.sum() == labels.size - sum(len(members) for _, members in found)


@pytest.mark.parametrize("size", [2, 3, 6])
def test_gaps_are_summed_out(size):
    counts = PackedCounts(np.zeros((1, size), dtype=int), size)
    log_cells = np.random.default_rng(size).normal(size=size + 1)
    log_levels = counts.levels(log_cells)
    for gaps in range(size + 1):
        for ones in range(size + 1):
            filled = [ones + sum(extra) for extra in product((0, 1), repeat=gaps)]
            expected = sum(np.exp(log_cells[t]) for t in filled) if ones + gaps <= size else 0.0
            assert np.exp(log_levels[gaps, ones]) == pytest.approx(expected)


def test_gaps_are_filled_in():
    counts = PackedCounts(np.array([[0, 0, 0, 0], [0, 0, 2, 2]]), 4)
    rng = np.random.default_rng(0)
    log_cells = rng.normal(size=len(counts.cell_block))
    histogram = rng.random((counts.num_levels, len(log_cells)))
    histogram[np.isneginf(counts.levels(log_cells))] = 0
    expected = np.zeros(len(log_cells))
    for gaps, cell in np.argwhere(histogram):
        totals = [cell + sum(extra) for extra in product((0, 1), repeat=int(gaps))]
        odds = np.exp(log_cells[totals])
        np.add.at(expected, totals, histogram[gaps, cell] * odds / odds.sum())
    np.testing.assert_allclose(counts.fill(histogram, counts.levels(log_cells)), expected)


def test_levels_are_added():
    labels = np.array([[0, 0, 0, 3], [0, 0, 2, 2]])
    counts = PackedCounts(labels, 1)
    assert [counts.with_gaps(gap).num_levels for gap in (0, 1, 2, 3, 4)] == [2, 2, 3, 4, 4]
    assert PackedCounts(labels).with_gaps(0).num_levels == 1


def test_means_of_blocks():
    counts = PackedCounts(np.array([[0, 0, 2], [0, 1, 2], [0, 1, 1]]))
    means = np.arange(9.0).reshape(3, 3)
    np.testing.assert_array_equal(counts.block_means(means), [0.5, 2, 3, 4, 5, 6, 7.5])
