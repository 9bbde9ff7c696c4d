"""Quantiles of Student's t distribution between bounds, with and without compiled loops, against many digits."""

import math

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.optima.inference.independent_costs import StudentCosts
from pyro_structured.optima.ops.student_quantile import student_quantile

DIGITS = 60
EPSILON = 2.0**-52


@st.composite
def intervals(draw):
    """Degrees of freedom of all sizes, and bounds near zero or far from it, wide and narrow, and none."""
    freedom = 10.0 ** draw(st.floats(-1, 4))
    low = draw(st.one_of(st.floats(-5, 5), st.floats(-60, 60), st.floats(-1e8, 1e8), st.floats(-1e200, 1e200)))
    width = draw(st.one_of(st.just(math.inf), st.floats(-12, 1).map(lambda power: 10.0**power)))
    high = low + width * max(abs(low), 1.0)
    return freedom, draw(st.sampled_from([low, -math.inf])), high


def tensors(*numbers):
    return [torch.tensor(x, dtype=torch.double) for x in numbers]


@settings(max_examples=300, deadline=None)
@given(intervals(), st.floats(1e-12, 1 - 1e-12))
@example((3.0, -math.inf, math.inf), 0.5)
@example((3.0, -math.inf, -1e180), 0.3)
@example((1e4, 50.0, 60.0), 0.3)
def test_quantiles(interval, uniform):
    freedom, low, high = interval
    found = float(student_quantile(*tensors(uniform, *interval)))
    assert low <= found <= high
    check(freedom, found, uniform, low, high)
    draw = compiled_function("optima.ops.compiled_draw", "compiled_draw")
    if draw is not None:
        base = torch.stack(tensors(freedom, 1.0, low, high, 0.0)).numpy()
        again = draw(uniform, StudentCosts.family, base, -math.inf, math.inf)
        assert low <= again <= high
        check(freedom, again, uniform, low, high)
        assert again == pytest.approx(found, rel=1e-9, abs=1e-10)


def check(freedom, found, uniform, low, high):
    """The share of the interval's probability that is below, some rounding errors of the number to either side."""
    with mpmath.workdps(DIGITS):
        half = mpmath.mpf(freedom) / 2

        def above(x):
            if math.isinf(x):
                return mpmath.mpf(0)
            return mpmath.betainc(half, mpmath.mpf(0.5), 0, 2 * half / (2 * half + x**2), regularized=True) / 2

        def tail(x):
            """Of the smaller side, whose probability keeps its digits; signed, so that it grows with the number."""
            if low > 0:
                return -above(x)
            return above(-x) if x <= 0 else 1 - above(x)

        ends = tail(mpmath.mpf(low)), tail(mpmath.mpf(high))
        if ends[0] == ends[1]:
            return
        step = 2**12 * EPSILON * max(abs(found), 1.0)
        shares = [
            (tail(mpmath.mpf(min(max(mpmath.mpf(found) + side * step, low), high))) - ends[0]) / (ends[1] - ends[0])
            for side in (-1, 1)
        ]
        assert shares[0] - 1e-11 <= uniform <= shares[1] + 1e-11


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
@pytest.mark.parametrize("freedom", [0.1, 1.0, 30.0, 1e5])
def test_ends_and_intervals_without_mass(uniform, freedom):
    """Nothing that is no number, and the same with and without compiled loops."""
    draw = compiled_function("optima.ops.compiled_draw", "compiled_draw")
    for low, high in ((-1e300, 1e300), (-1e-300, 1e-300), (1e200, 1e201), (-1e201, -1e200), (50.0, 50.1), (0.0, 1e-9)):
        found = float(student_quantile(*tensors(uniform, freedom, low, high)))
        assert low <= found <= high
        if draw is not None:
            base = torch.stack(tensors(freedom, 1.0, low, high, 0.0)).numpy()
            again = draw(uniform, StudentCosts.family, base, -math.inf, math.inf)
            assert again == pytest.approx(found, rel=1e-8, abs=1e-10)
