"""Classes by their definition, and rows by the chance of every row given its class."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from pyro_structured.datasets import conjunction_task, disjunction_task

pytestmark = pytest.mark.statistical

TASKS = [(conjunction_task, np.all), (disjunction_task, np.any)]


@pytest.mark.parametrize(("task", "rule"), TASKS)
def test_classes(task, rule):
    x, y = task([30, 2, 7], 2000, seed=1)
    assert x.shape == (2000, 1000) and x.dtype == np.uint8
    assert y.shape == (2000,) and y.dtype == np.int64
    assert {int(value) for value in np.unique(x)} == {0, 1}
    np.testing.assert_array_equal(y, rule(x[:, [2, 7, 30]] == 1, axis=1))


@pytest.mark.parametrize(("task", "rule"), TASKS)
@pytest.mark.parametrize("attributes", [[1], [0, 2], range(4)])
def test_every_row(task, rule, attributes):
    """Balanced classes, and a uniform row given the class."""
    x, _ = task(attributes, 20000, 4, seed=3)
    rows = np.array(list(product((0, 1), repeat=4)))
    observed = [int((x == row).all(1).sum()) for row in rows]
    classes = rule(rows[:, list(attributes)] == 1, axis=1).astype(int)
    expected = 20000 / 2 / np.bincount(classes)[classes]
    assert stats.chisquare(observed, expected).pvalue > 2e-9


@pytest.mark.parametrize(("task", "rule"), TASKS)
def test_seed(task, rule):
    first, second, other = (task([0, 1], 50, 20, seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize(("task", "rule"), TASKS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attributes": []}, r"attributes: expected one or several different indices below 4, got \[\]"),
        ({"attributes": [1, 1]}, r"attributes: expected .* different indices below 4, got \[1, 1\]"),
        ({"attributes": [0, 4]}, r"attributes: expected .* indices below 4, got \[0, 4\]"),
        ({"attributes": [-1]}, r"attributes: expected .* indices below 4, got \[-1\]"),
        ({"num_rows": 0}, "num_rows: expected an integer of at least 1, got 0"),
        ({"num_variables": 0}, "num_variables: expected an integer of at least 1, got 0"),
        ({"seed": "a"}, "seed: expected an integer of at least 0, got 'a'"),
    ],
)
def test_bad_arguments(task, rule, arguments, message):
    with pytest.raises(ValueError, match=message):
        task(**{"attributes": [0], "num_rows": 3, "num_variables": 4, "seed": 0, **arguments})
