"""Rows in both forms, with and without gaps."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, issparse

from pyro_structured.exchangeable.ops.binary_rows import ROWS_AT_ONCE, BinaryRows, _row_keys


def draw(seed, number=30, width=4, density=0.5, missing=0.2):
    rng = np.random.default_rng(seed)
    values = (rng.random((number, width)) < density).astype(float)
    values[rng.random(values.shape) < missing] = np.nan
    return values, rng.random(number)


def dense(matrix):
    return matrix.toarray() if issparse(matrix) else matrix


@pytest.mark.parametrize("form", [np.asarray, csr_matrix])
@pytest.mark.parametrize("density", [0.05, 0.6])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_values_are_read(form, density, missing):
    values, weights = draw(0, density=density, missing=missing)
    rows = BinaryRows.from_matrix(form(values), weights)
    np.testing.assert_array_equal(dense(rows.ones), np.nan_to_num(values))
    assert (rows.gaps is None) == (not np.isnan(values).any())
    if rows.gaps is not None:
        np.testing.assert_array_equal(dense(rows.gaps), np.isnan(values))
    assert rows.largest_gap == np.isnan(values).sum(1).max()
    assert (len(rows), rows.num_variables) == values.shape


@given(st.integers(0, 2**31), st.sampled_from([np.asarray, csr_matrix]), st.sampled_from([0.1, 0.7]), st.booleans())
def test_equal_rows_are_merged(seed, form, density, grouped):
    values, weights = draw(seed, density=density)
    groups = np.random.default_rng(seed).integers(2, size=len(values)) if grouped else None
    merged, place = BinaryRows.from_matrix(form(values), weights).merged(groups)
    found = np.where(dense(merged.gaps) if merged.gaps is not None else False, np.nan, dense(merged.ones))
    np.testing.assert_array_equal(found[place], values)
    labels = [0] * len(values) if groups is None else groups.tolist()
    keys = [(row.tobytes(), label) for row, label in zip(values, labels, strict=True)]
    assert len(merged) == len(set(keys))
    for i, key in enumerate(keys):
        same = [w for w, other in zip(weights, keys, strict=True) if other == key]
        assert merged.weights[place[i]] == pytest.approx(sum(same))


def test_columns_of_very_many_ones_are_told_apart():
    """Where the columns' places in bytes do not fit into 32 bits; the stored ones before them take no memory."""
    number = 2**29
    stored = SimpleNamespace(
        indices=np.broadcast_to(np.int32(3), number + 1),
        indptr=np.array([number - 2, number - 1, number + 1], dtype=np.int32),
        sort_indices=lambda: None,
    )
    assert list(_row_keys(stored)) == [np.array(row, dtype=np.int32).tobytes() for row in ([3], [3, 3])]


def test_chunks_are_all_rows():
    values, weights = draw(0, number=ROWS_AT_ONCE + 5)
    rows = BinaryRows.from_matrix(values, weights)
    parts = list(rows.chunks())
    assert [len(part) for _, part in parts] == [ROWS_AT_ONCE, 5]
    for place, part in parts:
        np.testing.assert_array_equal(dense(part.ones), dense(rows.ones)[place])
        np.testing.assert_array_equal(part.weights, weights[place])
