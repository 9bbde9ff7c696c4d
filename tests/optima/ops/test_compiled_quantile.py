"""Compiled quantiles of truncated normal variables against those of torch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pyro_structured.optima.ops.compiled_quantile import compiled_quantile, fill_quantiles
from pyro_structured.optima.ops.truncated_normal import truncated_quantile

ENDS = st.one_of(st.floats(-5, 5), st.floats(-40, 40), st.floats(-1000, 1000))
WIDTHS = st.one_of(st.floats(-10, 2).map(lambda power: 10.0**power), st.just(math.inf))


def check(uniform, low, high):
    expected = truncated_quantile(
        *(torch.tensor(each, dtype=torch.double) for each in (uniform, 0.0, 1.0, low, high))
    ).item()
    found = compiled_quantile(uniform, low, high)
    assert low <= found <= high
    # Two infinite numbers are equal.
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(ENDS, WIDTHS, st.floats(2**-53, 1 - 2**-53), st.booleans())
@example(36.0, math.inf, 0.5, True)
@example(36.0, math.ulp(36.0), 0.5, False)
@example(37.0, math.ulp(37.0), 0.5, True)
@example(-30.0, math.inf, 1e-200, False)
def test_quantiles(end, width, uniform, is_upper):
    check(uniform, *((-end - width, -end) if is_upper else (end, end + width)))


@pytest.mark.parametrize("uniform", [0.0, 1e-300, 1e-16, 0.01, 0.075, 0.3, 0.5, 0.9, 1 - 2**-53, 1.0])
def test_whole_line(uniform):
    check(uniform, -math.inf, math.inf)


def interval(end, width, uniform, is_upper):
    return (uniform, *((-end - width, -end) if is_upper else (end, end + width)))


UNIFORM = st.one_of(st.floats(0, 1), st.floats(-300, 0).map(lambda power: 10.0**power))
INTERVALS = st.builds(interval, ENDS, WIDTHS, UNIFORM, st.booleans())
ONE_SIDED = st.builds(interval, ENDS, st.just(math.inf), UNIFORM, st.booleans())
WHOLE = st.tuples(UNIFORM, st.just(-math.inf), st.just(math.inf))


@given(st.one_of(st.lists(INTERVALS | WHOLE, min_size=1, max_size=9), st.lists(ONE_SIDED | WHOLE, min_size=1)))
@example([(0.5, -math.inf, -36.0), (1e-11, -1.0, math.inf), (0.0, -math.inf, math.inf), (1.0, 0.0, 1e-8)])
def test_many_at_once(each):
    """Quantiles of an array are those of numbers, whatever stands beside them."""
    uniform, low, high = np.array(each).T.copy()
    found, expected = (np.empty((2, len(each))) for _ in range(2))
    bounds = np.stack([low, low]), np.stack([high, high])
    fill_quantiles(uniform, 1 - uniform, *bounds, found)
    expected[:] = [compiled_quantile(*one) for one in each]
    assert ((low <= found) & (found <= high)).all()
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)


def test_more_than_stay_in_fast_memory():
    uniform = np.linspace(0.001, 0.999, 1000)
    low, high = (np.broadcast_to(end, (3, 1000)) for end in (np.linspace(-3, 3, 1000), np.inf))
    found = np.empty((3, 1000))
    fill_quantiles(uniform, 1 - uniform, low.copy(), high.copy(), found)
    expected = [compiled_quantile(*one) for one in zip(uniform, low[0], high[0], strict=True)]
    np.testing.assert_allclose(found, [expected] * 3, rtol=1e-14, atol=1e-14)
