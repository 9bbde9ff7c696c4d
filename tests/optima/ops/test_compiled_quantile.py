"""Compiled quantiles of truncated normal variables against those of torch."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pyro_structured.optima.ops.compiled_quantile import compiled_quantile
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
