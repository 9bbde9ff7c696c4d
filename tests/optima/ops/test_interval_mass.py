"""Probabilities of intervals, with and without compiled loops, against many digits."""

import math

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.optima.ops.density_family import DensityFamily
from pyro_structured.optima.ops.interval_mass import LEAST_LOG_MASS, WITH_MASS, interval_mass

DIGITS = 1200
POSITIVE = (DensityFamily.LOG_NORMAL, DensityFamily.EXPONENTIAL, DensityFamily.WEIBULL)


def below_and_above(family, x, concentration):
    """Probabilities on both sides of a standardised number."""
    exp, half = mpmath.exp, mpmath.mpf(0.5)
    if family == DensityFamily.LAPLACE:
        return (exp(x) / 2, 1 - exp(x) / 2) if x < 0 else (1 - exp(-x) / 2, exp(-x) / 2)
    if family == DensityFamily.LOGISTIC:
        return 1 / (1 + exp(-x)), 1 / (1 + exp(x))
    if family == DensityFamily.GUMBEL:
        return exp(-exp(-x)), -mpmath.expm1(-exp(-x))
    if family == DensityFamily.CAUCHY:
        angle = mpmath.atan(x) / mpmath.pi
        return half + angle, half - angle
    if family == DensityFamily.NORMAL:
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2, mpmath.erfc(x / mpmath.sqrt(2)) / 2
    if family == DensityFamily.LOG_NORMAL:
        return below_and_above(DensityFamily.NORMAL, mpmath.log(x) if x > 0 else -mpmath.inf, 1.0)
    start = x if family == DensityFamily.EXPONENTIAL else x**concentration
    return -mpmath.expm1(-start), exp(-start)


@st.composite
def intervals(draw):
    """Standardised bounds near zero or far from it, wide and narrow, and none."""
    family = draw(st.sampled_from(sorted(WITH_MASS - {DensityFamily.UNIFORM})))
    low = draw(st.one_of(st.floats(-5, 5), st.floats(-40, 40), st.floats(-300, 300)))
    width = draw(st.one_of(st.just(math.inf), st.floats(-6, 2).map(lambda power: 10.0**power)))
    low = abs(low) if family in POSITIVE else draw(st.sampled_from([low, -math.inf]))
    high = low + width if low > -math.inf else draw(st.floats(-40, 40))
    return family, low, high


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(intervals(), st.floats(0.3, 3.0))
@example((DensityFamily.NORMAL, 37.0, 38.0), 1.0)
@example((DensityFamily.NORMAL, -1.0, math.inf), 1.0)
@example((DensityFamily.LOG_NORMAL, 0.0, 1e-200), 1.0)
@example((DensityFamily.GUMBEL, -5.0, -4.9), 1.0)
def test_masses(interval, concentration):
    family, low, high = interval
    loc = concentration if family == DensityFamily.WEIBULL else 0.0
    numbers = (loc, 1.0, low, high)
    found = float(interval_mass(family, *(torch.tensor(x, dtype=torch.double) for x in numbers)))
    with mpmath.workdps(DIGITS):
        least, most = (below_and_above(family, mpmath.mpf(x), mpmath.mpf(concentration)) for x in (low, high))
        mass = max(most[0] - least[0], least[1] - most[1])
        expected = float(mpmath.log(mass)) if mass > 0 else LEAST_LOG_MASS
    # Narrow intervals lose digits of powers, of logarithms and of angles.
    narrow = 4e-16 * max(1.0, abs(low)) / min(high - low, 1.0) if low > -math.inf else 0.0
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12 + 4 * max(concentration, 1 / concentration) * narrow)
    compiled = compiled_function("optima.ops.compiled_interval", "compiled_interval_mass")
    if compiled is not None:
        assert compiled(int(family), *numbers) == pytest.approx(found, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("family", sorted(WITH_MASS))
def test_intervals_without_a_length(family):
    """No probability; and locations and scales are those that standardise."""
    loc, scale = torch.tensor([0.5, 2.0], dtype=torch.double)
    low = torch.tensor([1.0, 1.0, 1.2], dtype=torch.double)
    high = torch.tensor([1.0, 0.5, 1.9], dtype=torch.double)
    masses = interval_mass(family, loc, scale, low, high)
    assert masses[0] == masses[1] == -torch.inf and masses[2] < 0
    if family not in (DensityFamily.UNIFORM, DensityFamily.WEIBULL, DensityFamily.LOG_NORMAL):
        start = 0.0 if family == DensityFamily.EXPONENTIAL else loc
        again = interval_mass(family, 0 * loc, scale / scale, (low - start) / scale, (high - start) / scale)
        torch.testing.assert_close(masses, again, rtol=1e-12, atol=0.0)
    compiled = compiled_function("optima.ops.compiled_interval", "compiled_interval_mass")
    if compiled is not None:
        again = [
            compiled(int(family), float(loc), float(scale), *ends)
            for ends in zip(low.tolist(), high.tolist(), strict=True)
        ]
        assert again == pytest.approx(masses.tolist(), rel=1e-12)
