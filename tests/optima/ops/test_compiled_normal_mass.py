"""Logarithms of normal probabilities by vector instructions, against many digits."""

import math

import mpmath
import numpy as np
import pytest

pytest.importorskip("numba")

from pyro_structured.optima.ops.compiled_normal_mass import TOGETHER, log_normal_masses


def _masses(low, high):
    low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    masses = np.full_like(low, 7.0)
    log_normal_masses(low, high, masses)
    return masses


def _exact(low, high):
    with mpmath.workdps(60):
        ends = (mpmath.mpf(end) / mpmath.sqrt(2) for end in ((low, high) if low + high <= 0 else (-high, -low)))
        first, last = (mpmath.erfc(-end) / 2 for end in ends)
        return float(mpmath.log(last - first))


@pytest.mark.parametrize("center", [0.0, 0.5, 5.0, 30.0, 300.0])
def test_digits(center):
    """In either tail, in the middle, and across zero; more numbers than are taken together, and some over."""
    rng = np.random.default_rng(0)
    ends = np.sort(center + rng.normal(size=(TOGETHER + 44, 2)) * max(1.0, center / 10), axis=-1)
    low, high = ends.T * rng.choice([-1.0, 1.0], size=TOGETHER + 44)
    low, high = np.minimum(low, high), np.maximum(low, high)
    low[:3], high[3:6] = -math.inf, math.inf
    expected = np.array([_exact(*pair) for pair in zip(low, high, strict=True)])
    # Of differences of tails, and of logarithms as large as squares of bounds.
    size = np.minimum(np.abs(low), np.abs(high))
    error = 1e-14 * (1 + size**2) + 1e-14 / -np.expm1(-np.abs(high - low) * (size + 1))
    assert (np.abs(_masses(low, high) - expected) <= error).all()


def test_ends():
    """Of everything, of nothing, of bounds that cross, and of far ones."""
    inf = math.inf
    found = _masses([-inf, 1.0, 2.0, 2.0, 0.0, -1e200], [inf, 1.0, 1.0, -1.0, inf, 0.0])
    np.testing.assert_allclose(found, [0.0, -inf, math.nan, math.nan, -math.log(2), -math.log(2)], rtol=1e-14)
    assert _masses([], []).shape == (0,)
