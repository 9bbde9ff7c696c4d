"""Differences of a few counts; the stated accuracies, if the data are there."""

import os
import sys

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from pyro_structured.datasets import load_house_frames, load_house_pairs

# Fractions of right landmarks of all pairs and of the training pairs.
ACCURACIES = {10: (0.999, 1.000), 30: (0.988, 0.993), 60: (0.688, 0.676), 90: (0.460, 0.438)}


def test_differences(monkeypatch):
    contexts = np.random.default_rng(1).integers(9, size=(111, 4, 60))
    monkeypatch.setattr(sys.modules[load_house_pairs.__module__], "load_house_frames", lambda: (None, contexts))
    features, matchings = load_house_pairs(109)
    assert features.dtype == np.float64 and features.shape == (2, 4, 4, 60)
    for pair, i, j in np.ndindex(2, 4, 4):
        expected = (contexts[pair, i] - contexts[pair + 109, j]) ** 2
        np.testing.assert_array_equal(features[pair, i, j], expected)
    assert matchings.dtype == np.int64 and matchings.tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("gap", [0, 111, -1, 1.5, True])
def test_bad_gap(gap):
    with pytest.raises(ValueError, match=f"gap: expected an integer from 1 to 110, got {gap}"):
        load_house_pairs(gap)


def test_table_is_documented():
    lines = [line.split() for line in load_house_pairs.__doc__.splitlines()]
    documented = {int(row[0]): tuple(map(float, row[1:])) for row in lines if len(row) == 3 and row[0].isdigit()}
    assert documented == ACCURACIES


def fractions(costs):
    """Of the landmarks of every pair that an assignment gets right."""
    return np.array([(linear_sum_assignment(matrix)[1] == np.arange(30)).mean() for matrix in costs])


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
@pytest.mark.parametrize("gap", ACCURACIES)
def test_stated_accuracies(gap):
    features, matchings = load_house_pairs(gap)
    assert features.shape == (111 - gap, 30, 30, 60) and matchings.shape == (111 - gap, 30)
    right = fractions(features.sum(-1))
    assert (right.mean().round(3), right[::3].mean().round(3)) == ACCURACIES[gap]
    points, _ = load_house_frames()
    assert fractions(((points[:-gap, :, None] - points[gap:, None]) ** 2).sum(-1)).min() == 1
