"""Quantiles between bounds, with and without compiled loops, against arithmetic of many digits."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.distributions import InverseGamma

from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.optima.inference.cost_conditionals import MixtureCosts, SlicedCosts, cost_conditionals
from pyro_structured.optima.inference.independent_costs import (
    CauchyCosts,
    GumbelCosts,
    LaplaceCosts,
    LogisticCosts,
    WeibullCosts,
)
from pyro_structured.optima.structures.box import Box

DIGITS = 1200
SHAPE = 1.7


def laplace(x):
    return mpmath.exp(x) / 2 if x < 0 else 1 - mpmath.exp(-x) / 2


CUMULATIVE = {
    LaplaceCosts: laplace,
    LogisticCosts: lambda x: 1 / (1 + mpmath.exp(-x)),
    GumbelCosts: lambda x: mpmath.exp(-mpmath.exp(-x)),
    WeibullCosts: lambda x: 1 - mpmath.exp(-(x**SHAPE)),
    CauchyCosts: lambda x: (
        mpmath.acot(-x) / mpmath.pi if x < 0 else 1 - mpmath.acot(x) / mpmath.pi if x else mpmath.mpf(0.5)
    ),
}
# Quantiles lose digits of probabilities that are near 1 to the next double, no more.
EPSILON = 2.0**-52


@st.composite
def intervals(draw):
    """Bounds of all sizes, in either tail, wide and narrow, and none."""
    low = draw(st.one_of(st.just(-math.inf), st.floats(-900.0, 900.0), st.floats(-5.0, 5.0)))
    start = low if low > -math.inf else draw(st.floats(-900.0, 900.0))
    width = draw(st.one_of(st.just(math.inf), st.floats(0.0, 1e-6), st.floats(0.0, 3.0), st.floats(0.0, 1500.0)))
    return low, start + width


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(CUMULATIVE)), intervals(), st.floats(1e-12, 1 - 1e-12))
def test_quantiles(kind, interval, uniform):
    low, high = interval
    loc, scale = 0.0, 1.0
    if kind is WeibullCosts:
        low, high, loc = (abs(low) if low > -math.inf else 0.0), high, SHAPE
        high = max(low, high)
    numbers = [torch.tensor(x, dtype=torch.double) for x in (uniform, loc, scale, low, high)]
    found = float(kind.quantile(*numbers))
    assert low <= found <= high and not math.isnan(found)
    check(kind, found, uniform, low, high)
    compiled = compiled_function("optima.ops.compiled_draw", "compiled_draw")
    if compiled is not None:
        base = torch.tensor([loc, scale, low, high, 0.0], dtype=torch.double).numpy()
        again = compiled(uniform, kind.family, base, -math.inf, math.inf)
        assert again == pytest.approx(found, rel=1e-12, abs=1e-12)


def check(kind, found, uniform, low, high):
    """The share of the interval's probability that is below, one rounding error of the number to either side."""
    with mpmath.workdps(DIGITS):
        cumulative = CUMULATIVE[kind]
        ends = [cumulative(mpmath.mpf(x)) if math.isfinite(x) else mpmath.mpf(x > 0) for x in (low, high)]
        if math.isinf(found):
            pytest.fail("a draw is infinite")
        if ends[0] == ends[1]:
            return
        step = 64 * EPSILON * max(abs(found), 1.0)
        places = [min(max(mpmath.mpf(found) + side * step, low), high) for side in (-1, 1)]
        shares = [(cumulative(mpmath.mpf(place)) - ends[0]) / (ends[1] - ends[0]) for place in places]
        assert shares[0] - 64 * EPSILON <= uniform <= shares[1] + 64 * EPSILON, (kind, uniform, low, high, found)


@pytest.mark.parametrize(
    "concentration, low, high, expected",
    [
        (100.0, 1e-5, 5e-4, [5e-4 * share ** (1 / 100) for share in (0.1, 0.5, 0.9)]),
        (50.0, 0.0, 1e-7, [1e-7 * share ** (1 / 50) for share in (0.1, 0.5, 0.9)]),
        (1.5, 1e-30, 3e-30, [(1e-45 + share * ((3e-30) ** 1.5 - 1e-45)) ** (2 / 3) for share in (0.1, 0.5, 0.9)]),
        (5.0, 1e70, 1e71, [1e70] * 3),
        (5.0, 0.0, 0.0, [0.0] * 3),
    ],
)
def test_weibull_powers_beyond_the_range_of_numbers(concentration, low, high, expected):
    uniform = torch.tensor([0.1, 0.5, 0.9], dtype=torch.double)
    rest = [torch.tensor(x, dtype=torch.double).expand(3) for x in (concentration, 1.0, low, high)]
    found = WeibullCosts.quantile(uniform, *rest)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.double), rtol=1e-12, atol=0.0)
    compiled = compiled_function("optima.ops.compiled_draw", "compiled_draw")
    if compiled is not None:
        base = torch.tensor([concentration, 1.0, low, high, 0.0], dtype=torch.double).numpy()
        again = [compiled(share, WeibullCosts.family, base, -math.inf, math.inf) for share in uniform.tolist()]
        assert again == pytest.approx(found.tolist(), rel=1e-12)


@pytest.mark.parametrize(
    "base",
    [
        torch.distributions.Gamma(torch.tensor([2.0, 2e6]), 1.0),
        InverseGamma(torch.tensor([2.0, 2e6]), 1.0),
        torch.distributions.StudentT(torch.tensor([2.0, 2e5])),
    ],
)
def test_what_would_lose_digits_takes_slices(base):
    costs = torch.distributions.Independent(base, 1)
    assert isinstance(cost_conditionals(costs, 1), SlicedCosts)


@pytest.mark.parametrize(
    "components, is_exact",
    [
        (torch.distributions.Normal(torch.tensor([[-3.0, 3.0]]), 1.0), True),
        (torch.distributions.Uniform(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 2.0]])), False),
        (torch.distributions.Gamma(torch.tensor([[2.0, 3.0]]), 1.0), False),
    ],
)
def test_mixtures_of_entries(components, is_exact):
    """Exact draws reach all components at once; others are slices."""
    weights = torch.distributions.Categorical(torch.tensor([[0.25, 0.75]]))
    mixture = torch.distributions.MixtureSameFamily(weights, components)
    family = cost_conditionals(torch.distributions.Independent(mixture, 1), 1)
    assert isinstance(family, SlicedCosts) and isinstance(family, MixtureCosts) == is_exact
    if not is_exact:
        return
    costs, uniform = torch.full((1,), -3.0).double(), torch.linspace(1e-6, 1 - 1e-6, 1001).double()
    box = Box(torch.zeros(1, dtype=torch.long), *torch.tensor([[-torch.inf], [torch.inf]]).double())
    drawn = family.draw(costs.expand(1001, 1), box, uniform.unsqueeze(-1))
    assert ((drawn < 0).double().mean() - 0.25).abs() < 2e-3
    # An interval without a length, and one where the weights are others.
    box = Box(box.index, *torch.tensor([[2.0], [2.0]]).double())
    assert (family.draw(costs.expand(1001, 1), box, uniform.unsqueeze(-1)) == 2.0).all()
    low, high = torch.tensor([[-0.5], [1.0]]).double()
    drawn = family.draw(costs.expand(1001, 1), Box(box.index, low, high), uniform.unsqueeze(-1)).squeeze(-1)
    places = torch.linspace(-0.5, 1.0, 10_001).double()
    density = mixture.log_prob(places.unsqueeze(-1).float()).exp().squeeze(-1).double()
    expected = (places * density).sum() / density.sum()
    assert (drawn.mean() - expected).abs() < 2e-3
