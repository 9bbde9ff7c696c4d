"""Masses, quantiles and moments of truncated normal variables against arithmetic with many digits."""

import math

import flint
import pytest
import scipy.stats
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pyro_structured.optima.ops.truncated_normal import (
    log_interval_mass,
    log_normal_tails,
    truncated_from_log_odds,
    truncated_log_odds,
    truncated_moments,
    truncated_quantile,
)

ENDS = st.one_of(st.floats(-5, 5), st.floats(-40, 40), st.floats(-1000, 1000))
WIDTHS = st.one_of(st.floats(-10, 2).map(lambda power: 10.0**power), st.just(math.inf))


def mass(low, high):
    """The probability of an interval as a small ball."""
    with flint.ctx.workprec(2_000):
        ends = (low, high) if low > 0 else (-high, -low)
        tails = [
            1 - math.copysign(1, x) if x in (-math.inf, math.inf) else (flint.arb(x) / flint.arb(2).sqrt()).erfc()
            for x in ends
        ]
        return (tails[0] - tails[1]) / 2


@st.composite
def intervals(draw):
    low = draw(ENDS)
    high = low + draw(WIDTHS)
    return (low, high) if draw(st.booleans()) else (-high, -low)


def double(number):
    return torch.tensor(number, dtype=torch.double)


def standard_quantile(uniform, low, high):
    return truncated_quantile(uniform, double(0.0), double(1.0), low, high)


@given(intervals())
def test_mass(interval):
    expected = float(mass(*interval).log())
    found = log_interval_mass(*map(double, interval)).item()
    assert abs(found - expected) <= 1e-13 * max(1, abs(expected))


@given(intervals(), st.floats(1e-9, 1 - 1e-9))
def test_quantiles(interval, uniform):
    low, high = interval
    found = standard_quantile(double(uniform), double(low), double(high)).item()
    assert low <= found <= high
    with flint.ctx.workprec(2_000):
        # How far the quantile is from the true one, to first order.
        reached = mass(low, found) if found > low else 0
        excess = reached - flint.arb(uniform) * mass(low, high)
        density = (-(flint.arb(found) ** 2) / 2).exp() / (2 * flint.arb.pi()).sqrt()
        error = abs(float(excess / density))
    assert error <= 1e-14 * (1 + abs(found))


def test_quantiles_of_many_draws():
    """Bounds in tails and not, which draws share, and function transforms, which leave out nothing."""
    low, high = double([-9.0, 2.0, -math.inf, -0.5, 30.0]), double([-4.0, 3.0, -1.0, math.inf, 31.0])
    uniform = torch.rand(7, 1, 5, dtype=torch.double)
    found = standard_quantile(uniform, torch.stack([low, -high]), torch.stack([high, -low]))
    assert found.shape == (7, 2, 5)
    for place in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
        draw, row, column = place
        ends = sorted([low[column], high[column]] if row == 0 else [-low[column], -high[column]])
        assert found[draw, row, column] == standard_quantile(uniform[draw, 0, column], *ends)
    mapped = torch.vmap(lambda share: standard_quantile(share, low, high))(uniform)
    torch.testing.assert_close(mapped[:, 0], found[:, 0], rtol=0, atol=0)


@given(st.floats(-3, 3), st.floats(-3, 1).map(math.exp), st.sampled_from([0.3, 2.0, math.inf]), st.floats(-690, 690))
@example(0.0, 1.0, 2.0, -21.0)
def test_log_odds(loc, scale, high, log_odds):
    """Also of numbers so close to a bound of zero that adding the location would lose them."""
    parameters = [double(each) for each in (loc, scale, 0.0, high)]
    value = truncated_from_log_odds(double(log_odds), *parameters)
    found = truncated_log_odds(value, *parameters).item()
    mirrored = [double(each) for each in (-loc, scale, -high, 0.0)]
    assert truncated_from_log_odds(double(-log_odds), *mirrored) == -value
    assert truncated_log_odds(-value, *mirrored) == -found
    if value == high:
        assert found == math.inf
        return
    with flint.ctx.workprec(6_000):
        below, above, rest = (
            ((flint.arb(x) - flint.arb(loc)) / (flint.arb(scale) * flint.arb(2).sqrt())).erfc() if x < math.inf else 0
            for x in (0.0, value.item(), high)
        )
        expected = float(((below - above) / (above - rest)).log())
    assert abs(found - expected) <= 1e-11 * (1 + abs(expected))
    if log_odds < 0:
        assert abs(found - log_odds) <= 1e-11 * (1 + abs(log_odds))


def test_whole_line_and_half_lines():
    infinite = torch.tensor(math.inf, dtype=torch.double)
    assert log_interval_mass(-infinite, infinite) == 0
    assert log_interval_mass(-infinite, double(0.0)).exp() == 0.5
    assert standard_quantile(double(0.5), -infinite, infinite) == 0


@pytest.mark.parametrize(
    "low, high", [(3.0, 5.0), (0.0, 1.0), (-1.0, 1e-3), (0.0, 1e-20), (1e6, 1e6 + 1), (1e9, 1e9 + 1)]
)
@pytest.mark.parametrize("has_low, has_high", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_ends_are_the_bounds(low, high, has_low, has_high, scale):
    """Their derivatives are finite."""
    for sign in (1.0, -1.0):
        ends = sorted([sign * low if has_low else -sign * math.inf, sign * high if has_high else sign * math.inf])
        leaves = [double(number).requires_grad_() for number in (0.0, scale, *ends)]
        for uniform, end in zip((0.0, 1.0), ends, strict=True):
            found = truncated_quantile(double(uniform), *leaves)
            assert found == end
            if math.isfinite(end):
                for slope in torch.autograd.grad(found, leaves):
                    assert slope.isfinite()


@pytest.mark.parametrize("distance", [10.0, 1e3, 1e5, 1e8, 1e12])
@pytest.mark.parametrize("width", [1e-3, 1.0, 30.0, math.inf])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_distances_from_bounds_in_tails(distance, width, sign):
    """Far out, a variable less its bound is exponential: its digits do not depend on the bound, nor do log-odds."""
    uniform = torch.linspace(0.01, 0.99, 7, dtype=torch.double)
    low, high = sorted([0.0, sign * width])
    given = double(-sign * distance), double(1.0), double(low), double(high)
    found = truncated_quantile(uniform if sign > 0 else 1 - uniform, *given)
    reach = min(width, 200 / distance)
    with flint.ctx.workprec(200):
        total, *reached = (
            flint.acb.integral(lambda x, _: (-x * (distance + x / 2)).exp(), 0, end).real
            for end in (reach, *found.abs().tolist())
        )
        for share, below in zip(uniform.tolist(), reached, strict=True):
            assert abs(float(below / total / share) - 1) < 1e-10
    log_odds = truncated_log_odds(found, *given)
    torch.testing.assert_close(log_odds, sign * uniform.logit(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "low, high",
    [(0.0, 1.0), (3.0, math.inf), (50.0, math.inf), (1e3, 1e3 + 1), (-2.0, 1.5), (-math.inf, -5.0), (10.0, 10.0001)],
)
def test_moments(low, high):
    with flint.ctx.workprec(300):
        mode = flint.arb(min(max(0.0, low), high))
        reach = float((mode**2 + 400).sqrt())
        first, last = (flint.acb(x) - flint.acb(mode) for x in (max(low, -reach), min(high, reach)))

        def moment(power, with_log=False):
            def term(x, _):
                drop = x * (x + 2 * flint.acb(mode)) / 2
                return x**power * (-drop).exp() * (drop if with_log else 1)

            return flint.acb.integral(term, first, last).real

        total = moment(0)
        shift = moment(1) / total
        expected = (
            float(shift),
            float((moment(2) / total - shift**2).sqrt()),
            float(total.log() + moment(0, True) / total),
        )
    found = torch.stack(truncated_moments(double(low), double(high), double(high) - double(low)))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.double), rtol=3e-13, atol=1e-15)


def test_derivatives():
    low = torch.tensor([-3.0, 0.5, 30.0, -math.inf, 1.0, -31.0], dtype=torch.double, requires_grad=True)
    high = torch.tensor([1.0, 2.0, 31.0, -5.0, 1.001, -30.9], dtype=torch.double, requires_grad=True)
    chosen = torch.isfinite(low.detach())
    assert torch.autograd.gradcheck(log_interval_mass, (low[chosen], high[chosen]))
    assert torch.autograd.gradgradcheck(log_interval_mass, (low[chosen], high[chosen]))
    uniform = torch.linspace(0.1, 0.9, 5, dtype=torch.double)
    loc, scale = (torch.full((), number, dtype=torch.double, requires_grad=True) for number in (0.3, 1.2))
    given = loc, scale, low[chosen], high[chosen]
    assert torch.autograd.gradcheck(lambda *parameters: truncated_quantile(uniform, *parameters), given)
    for infinite in torch.autograd.grad(log_interval_mass(low, high).sum(), (low, high)):
        assert infinite.isfinite().all()


def test_normal_tails_against_scipy():
    x = torch.tensor([-1e4, -40.0, -3.0, -1e-3, 0.0, 0.5, 6.0, 30.0], dtype=torch.double, requires_grad=True)
    below, above = log_normal_tails(x)
    expected = scipy.stats.norm.logcdf(x.detach().numpy())
    torch.testing.assert_close(below.detach(), torch.from_numpy(expected), rtol=1e-13, atol=0)
    torch.testing.assert_close(above.detach(), torch.from_numpy(scipy.stats.norm.logsf(x.detach())), rtol=1e-13, atol=0)
    for tail in (below, above):
        (slope,) = torch.autograd.grad(tail.sum(), x, retain_graph=True)
        assert slope.isfinite().all() and slope[4].abs().item() == pytest.approx((2 / math.pi) ** 0.5)
