"""Pieces of rows, and distinct rows, against numpy's own search for them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.foundation.ops import row_pieces


@given(st.integers(0, 10**9))
def test_distinct_rows_are_numpy_s(seed):
    """Also of so many columns that several words are needed."""
    rng = np.random.default_rng(seed)
    number, size = int(rng.integers(1, 60)), int(rng.choice([1, 3, 70, 130]))
    least, sizes = rng.integers(-3, 3, size), rng.choice([1, 2, 3, 200], size)
    values = least + rng.integers(sizes, size=(number, size))
    values = values[rng.integers(max(1, number // 3), size=number)].astype(rng.choice(["int16", "int64"]))
    # Rows that differ in a column alone, whichever it is.
    values[0], values[-1] = least, least
    values[-1, rng.integers(size)] += 1
    columns = zip(values.T, least.tolist(), (sizes + 1).tolist(), strict=True)
    first, place = row_pieces.distinct_rows(columns, number)
    expected, index, inverse = np.unique(values, axis=0, return_index=True, return_inverse=True)
    assert np.array_equal(values[first], expected)
    assert np.array_equal(first, index)
    assert np.array_equal(place, inverse.ravel())


def test_pieces_are_all_rows_and_hold_few_numbers(monkeypatch):
    monkeypatch.setattr(row_pieces, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(row_pieces, "HELD_AT_ONCE", 12)
    for number in (0, 1, 10, 11, 35):
        for width, most in ((0, 10), (1, 10), (3, 4), (100, 1)):
            pieces = list(row_pieces.row_pieces(number, width))
            assert [row for piece in pieces for row in range(number)[piece]] == list(range(number))
            assert len(pieces) == max(1, -(-number // most))
