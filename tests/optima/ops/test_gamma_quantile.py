"""Quantiles of gamma variables between bounds, with and without compiled loops, against arithmetic of many digits."""

import math

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.optima.inference.independent_costs import GammaCosts, InverseGammaCosts
from pyro_structured.optima.ops.gamma_quantile import gamma_quantile

DIGITS = 80
EPSILON = 2.0**-52


@st.composite
def intervals(draw):
    """Concentrations of all sizes, and bounds near the mode or far from it, wide and narrow, and none."""
    concentration = 10.0 ** draw(st.floats(-2, 4))
    deviations = draw(st.one_of(st.floats(-3, 3), st.floats(-40, 40), st.floats(-700, 700)))
    low = concentration * math.exp(max(min(deviations / math.sqrt(concentration), 20), -600))
    low = draw(st.one_of(st.just(0.0), st.just(low)))
    width = draw(st.one_of(st.just(math.inf), st.floats(-12, 1).map(lambda power: 10.0**power)))
    return concentration, low, low + width * max(low, math.sqrt(concentration))


def tensors(*numbers):
    return [torch.tensor(x, dtype=torch.double) for x in numbers]


@settings(max_examples=300, deadline=None)
@given(intervals(), st.floats(1e-12, 1 - 1e-12))
@example((2.0, 0.0, math.inf), 1e-12)
@example((2.0, 1e5, math.inf), 0.5)
@example((0.01, 1e-280, 1e-270), 0.5)
@example((1e4, 0.0, 10.0), 0.5)
@example((100.0, 2000.0, math.inf), 0.3)
@example((5000.0, 9000.0, math.inf), 0.3)
@example((300.0, 0.01, 1.0), 0.3)
def test_quantiles(interval, uniform):
    concentration, low, high = interval
    found = float(gamma_quantile(*tensors(uniform, *interval)))
    assert low <= found <= high
    check(concentration, found, uniform, low, high)
    draw = compiled_function("optima.ops.compiled_draw", "compiled_draw")
    if draw is not None:
        for kind, share, ends in ((GammaCosts, uniform, (low, high)), (InverseGammaCosts, 1 - uniform, (0.0, 0.0))):
            if kind is InverseGammaCosts:
                ends = 1 / high, 1 / low if low > 0 else math.inf
            base = torch.stack(tensors(concentration, 1.0, *ends, 0.0)).numpy()
            expected = float(kind.quantile(*tensors(share, concentration, 1.0, *ends)))
            assert ends[0] <= expected <= ends[1]
            again = draw(share, kind.family, base, -math.inf, math.inf)
            assert again == pytest.approx(expected, rel=1e-10, abs=1e-300)
            # Shares near 1 have lost digits that those near 0 have.
            if uniform > 1e-3 and found > 1e-300:
                assert again == pytest.approx(found if kind is GammaCosts else 1 / found, rel=1e-10)


def check(concentration, found, uniform, low, high):
    """The share of the interval's probability that is below, some rounding errors of the number to either side."""
    with mpmath.workdps(DIGITS):
        a = mpmath.mpf(concentration)

        def tail(x):
            """Of the smaller side, whose probability keeps its digits; signed, so that it grows with the number."""
            if low > concentration:
                return -mpmath.gammainc(a, x, regularized=True) if x < math.inf else mpmath.mpf(0)
            return mpmath.gammainc(a, 0, x, regularized=True) if x < math.inf else mpmath.mpf(1)

        ends = tail(mpmath.mpf(low)), tail(mpmath.mpf(high))
        if ends[0] == ends[1]:
            return
        # Far tails are powers or exponentials of the number, and so is what its rounding changes.
        step = max(128 * EPSILON * found, 1e-300)
        shares = [
            (tail(min(max(mpmath.mpf(found) + side * step, low), high)) - ends[0]) / (ends[1] - ends[0])
            for side in (-1, 1)
        ]
        assert shares[0] - 4096 * EPSILON <= uniform <= shares[1] + 4096 * EPSILON


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0])
@pytest.mark.parametrize("concentration", [1e-3, 0.5, 1.0, 2.0, 300.0, 1e5])
@pytest.mark.parametrize("kind", [GammaCosts, InverseGammaCosts])
def test_ends_and_intervals_without_mass(uniform, concentration, kind):
    """Nothing that is no number, and the same with and without compiled loops."""
    draw = compiled_function("optima.ops.compiled_draw", "compiled_draw")
    least = kind.least
    far = ((1e200, math.inf), (1e300, math.inf), (1e305, 1e306))
    for low, high in ((least, math.inf), (least, least), (least, 1e-200), *far, (1e5, 1e5), (5.0, 5.0)):
        if kind is GammaCosts:
            assert low <= float(gamma_quantile(*tensors(uniform, concentration, low, high))) <= high
        found = float(kind.quantile(*tensors(uniform, concentration, 1.0, low, high)))
        assert low <= found <= high
        if draw is not None:
            base = torch.stack(tensors(concentration, 1.0, low, high, 0.0)).numpy()
            assert draw(uniform, kind.family, base, -math.inf, math.inf) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("concentration", [1e5, 1e6])
def test_large_concentrations(concentration):
    """Against an expansion around normal variables."""
    draw = compiled_function("optima.ops.compiled_draw", "compiled_draw")
    uniform = torch.tensor([1e-9, 0.1, 0.5, 0.9, 1 - 1e-9], dtype=torch.double)
    found = gamma_quantile(uniform, *tensors(concentration, 0.0, math.inf))
    deviations = (found - concentration) / math.sqrt(concentration)
    # The third-order expansion of Cornish and Fisher: what is left falls with the concentration to the power of 3/2.
    z, root = torch.special.ndtri(uniform), math.sqrt(concentration)
    expected = z + (z**2 - 1) / (3 * root) + (z**3 - 7 * z) / (36 * concentration)
    torch.testing.assert_close(deviations, expected, rtol=0, atol=3e-6)
    if draw is not None:
        base = torch.stack(tensors(concentration, 1.0, 0.0, math.inf, 0.0)).numpy()
        again = [draw(share, GammaCosts.family, base, -math.inf, math.inf) for share in uniform.tolist()]
        assert (torch.tensor(again, dtype=torch.double) - concentration).div(root) == pytest.approx(expected, abs=3e-6)
