"""Exponentials and logarithms of many numbers against those in extended precision."""

import math

import numpy as np
import pytest

pytest.importorskip("numba")

from pyro_structured.foundation.ops.compiled_exponentials import HIGHEST, LEAST, LOWEST, MOST, exponentials, logarithms


def computed(function, numbers):
    results, space = np.full((2, len(numbers)), np.nan)
    function(numbers, results, space)
    return results


def errors(found, exact):
    """In units of the last place."""
    return np.abs((found - exact) / np.spacing(np.abs(exact).astype(float))).astype(float)


@pytest.mark.parametrize("width", [709.0, 30.0, 1e-3, 1e-200])
def test_exponentials(width):
    numbers = np.random.default_rng(0).uniform(max(-width, LOWEST), width, 20_000)
    assert errors(computed(exponentials, numbers), np.exp(numbers.astype(np.longdouble))).max() < 2


@pytest.mark.parametrize("width", [708.0, 30.0, 0.4, 1e-3, 1e-12])
def test_logarithms(width):
    numbers = np.exp(np.random.default_rng(1).uniform(-width, width, 20_000))
    numbers = numbers[numbers != 1]
    assert errors(computed(logarithms, numbers), np.log(numbers.astype(np.longdouble))).max() < 2


def test_numbers_that_overflow_and_underflow():
    numbers = np.array([-math.inf, -1e300, -746.0, LOWEST, -0.0, 0.0, HIGHEST, 709.7, 710.0, math.inf, math.nan])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(computed(exponentials, numbers), np.exp(numbers), rtol=4e-16)
    numbers = np.array([0.0, 5e-324, 1e-310, LEAST, math.nextafter(1, 0), 1.0, MOST, 1.7e308, math.inf, math.nan])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(computed(logarithms, numbers), np.log(numbers), rtol=4e-16)


def test_no_numbers():
    assert len(computed(exponentials, np.empty(0))) == len(computed(logarithms, np.empty(0))) == 0
