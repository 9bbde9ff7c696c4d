"""Counts and information of rows of categories, with missing ones, against plain loops."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.junction_trees.ops import categorical_rows
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows, least_information, mutual_information


def random_rows(seed):
    rng = np.random.default_rng(seed)
    number, size = int(rng.integers(1, 30)), int(rng.integers(2, 6))
    cardinalities = rng.integers(1, 4, size)
    values = rng.integers(cardinalities, size=(number, size))
    values[:, 1:] = np.where(rng.random((number, size - 1)) < 0.5, values[:, :1] % cardinalities[1:], values[:, 1:])
    values[rng.random(values.shape) < rng.choice([0.0, 0.4])] = -1
    return values, cardinalities.tolist(), rng.choice([0.0, 1.0, 2.5], number)


def plain_information(values, weights, one, other):
    """From the rows in which both are known."""
    chosen = (values[:, [one, other]] >= 0).all(1)
    values, weights = values[chosen][:, [one, other]], weights[chosen]
    total, found = weights.sum(), 0.0
    for a, b in itertools.product(*(set(column) for column in values.T)):
        first, second = values[:, 0] == a, values[:, 1] == b
        joint = weights[first & second].sum() / total if total else 0.0
        if joint > 0:
            found += joint * math.log(joint * total**2 / (weights[first].sum() * weights[second].sum()))
    return found, total


@given(st.integers(0, 10**9))
def test_information(seed):
    values, cardinalities, weights = random_rows(seed)
    rows = CategoricalRows(values, cardinalities, weights)
    information, least = mutual_information(rows), least_information(rows)
    with mock.patch.object(categorical_rows, "MOST_COUNTED", 0):
        single = CategoricalRows(values, cardinalities, weights)
        np.testing.assert_allclose(mutual_information(single), information, atol=1e-12)
        assert "pair_counts" not in vars(single)
    for one, other in itertools.combinations(range(len(cardinalities)), 2):
        expected, _ = plain_information(values, weights, one, other)
        assert information[one, other] == information[other, one] == pytest.approx(expected, abs=1e-12)
        for third in set(range(len(cardinalities))) - {one, other}:
            parts = [
                plain_information(values[at], weights[at], one, other)
                for at in (values[:, third] == state for state in range(cardinalities[third]))
            ]
            if total := sum(rows for _, rows in parts):
                expected = min(expected, sum(part * rows for part, rows in parts) / total)
        assert least[one, other] == pytest.approx(expected, abs=1e-12)
    assert not least.diagonal().any()


@given(st.integers(0, 10**9))
def test_counts(seed):
    values, cardinalities, weights = random_rows(seed)
    rows = CategoricalRows(values, cardinalities, weights)
    chosen = list(range(0, len(cardinalities), 2))
    expected = np.zeros([cardinalities[d] for d in chosen])
    for row, weight in zip(values[:, chosen], weights, strict=True):
        if (row >= 0).all():
            expected[tuple(row)] += weight
    assert rows.counts(chosen) == pytest.approx(expected.ravel())
    assert rows.is_complete == bool((values >= 0).all())
    assert rows.total == pytest.approx(weights.sum())


def test_entropy_of_many_states_takes_no_square():
    """The states of a column alone are as many numbers, however many there are."""
    number = 300_000
    rows = CategoricalRows(np.stack([np.arange(number), np.arange(number) % 2], 1), [number, 2])
    entropies = np.diag(mutual_information(rows))
    np.testing.assert_allclose(entropies, [math.log(number), math.log(2)], rtol=1e-12)
