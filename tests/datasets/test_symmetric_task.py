"""Classes by their definitions, and rows by the chance of every count and of every row."""

import sys
from itertools import product

import numpy as np
import pytest
from scipy import stats

from pyro_structured.datasets import symmetric_task

pytestmark = pytest.mark.statistical

MEMBERS = {
    "parity": range(1, 1001, 2),
    "counting": range(3, 1001, 5),
    "m_of_n": range(10, 1001),
    "exact": (0, 200, 400, 600, 800, 1000),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_classes(name):
    x, y = symmetric_task(name, 4000, seed=2)
    assert x.shape == (4000, 1000) and x.dtype == np.uint8
    assert y.shape == (4000,) and y.dtype == np.int64
    assert {int(value) for value in np.unique(x)} == {0, 1}
    np.testing.assert_array_equal(y, np.isin(x.sum(1), MEMBERS[name]))
    assert {int(value) for value in np.unique(y)} == {0, 1}


def test_exact_of_few_variables():
    """With seven variables, only none and all are multiples of a fifth."""
    x, y = symmetric_task("exact", 200, 7, seed=2)
    np.testing.assert_array_equal(y, np.isin(x.sum(1), (0, 7)))


def test_every_row():
    """Uniform counts, then uniform places."""
    x, _ = symmetric_task("parity", 20000, 4, seed=3)
    rows = list(product((0, 1), repeat=4))
    observed = [int((x == row).all(1).sum()) for row in rows]
    sizes = [1, 4, 6, 4, 1]
    expected = [20000 / 5 / sizes[sum(row)] for row in rows]
    assert stats.chisquare(observed, expected).pvalue > 2e-9


def test_seed():
    first, second, other = (symmetric_task("parity", 50, 20, seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_chunks(monkeypatch, capsys):
    """Rows do not depend on the size of the chunks; several chunks show a bar."""
    whole = symmetric_task("counting", 50, 20, seed=1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.modules[symmetric_task.__module__], "CHUNK_ENTRIES", 140)
    parts = symmetric_task("counting", 50, 20, seed=1)
    assert "counting: 100%" in capsys.readouterr().err
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "majority"},
            r"name: expected one of \('parity', 'counting', 'm_of_n', 'exact'\), got 'majority'",
        ),
        ({"num_rows": 0}, "num_rows: expected an integer of at least 1, got 0"),
        ({"num_variables": 2.5}, "num_variables: expected an integer of at least 1, got 2.5"),
        ({"seed": -1}, "seed: expected an integer of at least 0, got -1"),
        ({"seed": True}, "seed: expected an integer of at least 0, got True"),
        ({"seed": None}, "seed: expected an integer of at least 0, got None"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        symmetric_task(**{"name": "parity", "num_rows": 3, "num_variables": 4, "seed": 0, **arguments})
