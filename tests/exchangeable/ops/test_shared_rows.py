"""Distinct rows of several processes, against those of a single one."""

import numpy as np
import pytest
from scipy import sparse

from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.exchangeable.ops.shared_rows import SharedRows
from tests.foundation.ops.teams import outcomes_of_threads


def plain(rows):
    """Zeros, ones and NaN."""
    ones, gaps = (each.toarray() if sparse.issparse(each) else each for each in (rows.ones, rows.gaps))
    return ones.astype(float) if gaps is None else np.where(gaps, np.nan, ones)


def distinct(values, numbers, weights):
    rows, place = BinaryRows.from_matrix(values, weights).merged()
    return SharedRows(rows, numbers[np.unique(place, return_index=True)[1]])


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_those_of_one_process(seed):
    """Dense and sparse ones, with gaps in some of the processes, and rows that several have."""
    rng = np.random.default_rng(seed)
    number, width, size = 40, int(rng.choice([3, 8, 11])), int(rng.integers(2, 5))
    values = (rng.random((number, width)) < rng.choice([0.1, 0.5])).astype(float)
    values[rng.integers(number, size=10)] = values[0]
    owner, weights = np.arange(number) % size, rng.random(number)
    if seed % 2:
        values[np.ix_(owner == 1, rng.random(width) < 0.3)] = np.nan
    if seed % 3 == 0:
        values = sparse.csr_array(values)
    single = distinct(values, np.arange(number), weights)
    chosen = np.flatnonzero(rng.random(single.number) < 0.5)
    totals, share = single.weights(single.rows.weights), rng.choice([0.0, 0.5, 1.0, 2.0])
    is_heavy = totals > share * totals.mean()

    def found(rank):
        own = owner == rank
        shared = distinct(values[own], np.flatnonzero(own), weights[own])
        np.testing.assert_array_equal(plain(shared.rows), plain(single.rows)[shared.place])
        taken = shared.taken(chosen)
        sums, heavy = shared.weights(shared.rows.weights), shared.heavy(shared.rows.weights, share)
        return shared.number, shared.has_gaps, sums, heavy, plain(taken), taken.weights

    for count, has_gaps, sums, (numbers, heavy, rest), taken, ones in outcomes_of_threads(found, size):
        assert (count, has_gaps) == (single.number, single.has_gaps)
        np.testing.assert_allclose(sums, totals, rtol=1e-12)
        np.testing.assert_array_equal(numbers, np.flatnonzero(is_heavy))
        np.testing.assert_allclose(heavy, totals[is_heavy], rtol=1e-12)
        np.testing.assert_allclose(rest, totals[~is_heavy].sum(), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(taken, plain(single.rows)[chosen])
        assert (ones == 1).all() and len(ones) == len(chosen)
    np.testing.assert_array_equal(plain(single.taken(chosen)), plain(single.rows)[chosen])
