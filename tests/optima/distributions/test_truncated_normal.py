"""Truncated normal variables against scipy and against their own definition."""

import math
import pickle

import mpmath
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.distributions.testing.gof import auto_goodness_of_fit
from pyro.infer import MCMC, NUTS
from scipy import stats

from pyro_structured.distributions import TruncatedNormal

pytestmark = pytest.mark.statistical

LOCATIONS = st.floats(-3, 3)


@settings(max_examples=50, deadline=None)
@given(LOCATIONS, st.floats(0.1, 3), st.floats(-4, 4), st.one_of(st.floats(0.1, 5), st.just(math.inf)))
def test_equals_scipy(loc, scale, low, width):
    high = low + width
    found = TruncatedNormal(*(torch.tensor(x, dtype=torch.double) for x in (loc, scale, low, high)))
    expected = stats.truncnorm((low - loc) / scale, (high - loc) / scale, loc, scale)
    points = low + min(width, 5.0) * torch.linspace(0.0, 1.0, 7, dtype=torch.double)
    for ours, theirs in (
        (found.log_prob(points), expected.logpdf(points)),
        (found.cdf(points), expected.cdf(points)),
        (found.icdf(torch.tensor([0.1, 0.5, 0.9], dtype=torch.double)), expected.ppf([0.1, 0.5, 0.9])),
        (found.mean, expected.mean()),
    ):
        torch.testing.assert_close(ours, torch.as_tensor(theirs, dtype=torch.double), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "loc, low, high", [(0.0, -1.0, 2.0), (0.0, 30.0, 31.0), (5.0, -math.inf, 4.0), (0.0, 0.0, 1e-3)]
)
def test_samples(loc, low, high):
    pyro.set_rng_seed(0)
    d = TruncatedNormal(*(torch.tensor(x, dtype=torch.double) for x in (loc, 1.0, low, high)))
    samples = d.sample((20_000,))
    assert ((samples >= low) & (samples <= high)).all()
    assert auto_goodness_of_fit(samples, d.log_prob(samples).exp()) > 2e-9


def test_single_precision_stays_in_the_support():
    d = TruncatedNormal(torch.tensor(0.3), torch.tensor(0.1), 0.1, 0.3000001)
    samples = d.sample((10_000,))
    assert samples.dtype == torch.float32 and d.support.check(samples).all()


def test_outside_of_the_bounds():
    d = TruncatedNormal(0.0, 1.0, 0.0, 1.0, validate_args=False)
    assert torch.equal(d.log_prob(torch.tensor([-0.1, 1.1, math.inf])), torch.full((3,), -math.inf))
    assert torch.equal(d.cdf(torch.tensor([-1.0, 0.0, 1.0, 2.0])), torch.tensor([0.0, 0.0, 1.0, 1.0]))


def test_pathwise_derivatives():
    """Those of means are derivatives of the exact mean."""
    pyro.set_rng_seed(0)
    leaves = [torch.tensor(x, dtype=torch.double, requires_grad=True) for x in (0.3, 0.5, 0.0, 1.0)]
    d = TruncatedNormal(*leaves)
    estimated = torch.autograd.grad(d.rsample((200_000,)).mean(), leaves)
    exact = torch.autograd.grad(TruncatedNormal(*leaves).mean, leaves)
    torch.testing.assert_close(torch.stack(estimated), torch.stack(exact), rtol=0.02, atol=0.003)


def test_mixed_bounds():
    """Each entry may have bounds of its own, some of them infinite."""
    low = torch.tensor([-math.inf, 0.0])
    d = TruncatedNormal(torch.zeros(2), torch.ones(2), low)
    assert d.support.check(d.sample((100,))).all()
    expected = torch.stack(
        [dist.Normal(0.0, 1.0).log_prob(torch.tensor(0.5)), dist.HalfNormal(1.0).log_prob(torch.tensor(0.5))]
    )
    torch.testing.assert_close(d.log_prob(torch.tensor([0.5, 0.5])), expected)


@pytest.mark.slow
def test_as_a_latent_site():
    """NUTS stays inside, and finds the moments."""
    pyro.set_rng_seed(0)

    def model():
        pyro.sample("x", TruncatedNormal(torch.tensor(0.5), torch.tensor(0.4), 0.0, 1.0))

    mcmc = MCMC(NUTS(model), num_samples=500, warmup_steps=200, disable_progbar=True)
    mcmc.run()
    samples = mcmc.get_samples()["x"]
    exact = TruncatedNormal(torch.tensor(0.5), torch.tensor(0.4), 0.0, 1.0)
    assert ((samples > 0) & (samples < 1)).all()
    assert abs(samples.mean() - exact.mean) < 0.06 and abs(samples.std() - exact.stddev) < 0.06


def test_copies():
    d = TruncatedNormal(torch.tensor(0.3, requires_grad=True), 1.0, 0.0)
    d.log_prob(torch.tensor(1.0))
    assert torch.equal(pickle.loads(pickle.dumps(d)).log_prob(torch.tensor(1.0)), d.log_prob(torch.tensor(1.0)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0.0, -1.0, 0.0, 1.0), "scale"),
        ((math.nan, 1.0, 0.0, 1.0), "loc"),
        ((math.inf, 1.0), "loc: expected finite numbers, got"),
        ((0.0, torch.tensor([1.0, math.inf]), 0.0, 1.0), "scale: expected finite numbers, got"),
        ((0.0, 1.0, 1.0, 1.0), "high: expected larger numbers than low"),
        ((0.0, 1.0, math.nan, 1.0), "high: expected larger numbers than low"),
        ((torch.zeros(2), torch.ones(3), 0.0, 1.0), "loc: expected shapes that broadcast"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        TruncatedNormal(*arguments, validate_args=True)


@pytest.mark.parametrize("wrong", [None, "a", [1.0], torch.tensor([1.0 + 2.0j])])
@pytest.mark.parametrize("name", ["loc", "scale", "low", "high"])
def test_arguments_of_other_kinds(name, wrong):
    with pytest.raises(ValueError, match="loc, scale, low, high: expected "):
        TruncatedNormal(**{"loc": 0.0, "scale": 1.0, "low": -1.0, "high": 1.0, name: wrong})


@pytest.mark.parametrize("loc, scale", [(-1e38, 1.0), (1e20, 1.0)])
def test_bounds_that_rounding_makes_equal(loc, scale):
    with pytest.raises(ValueError, match=r"loc, scale: expected numbers for which \(low - loc\) / scale .* got"):
        TruncatedNormal(torch.tensor(loc), torch.tensor(scale), -1.0, 1.0)


def exact_log_prob(loc, scale, low, high, value):
    """In 120 digits."""
    loc, scale, low, high, value = (mpmath.mpf(number) for number in (loc, scale, low, high, value))
    below, above, place = ((number - loc) / scale for number in (low, high, value))
    if above < 0:
        below, above = -above, -below
    tails = [mpmath.erfc(end / mpmath.sqrt(2)) / 2 for end in (below, above)]
    return -(place**2) / 2 - mpmath.log(tails[0] - tails[1]) - mpmath.log(scale) - mpmath.log(2 * mpmath.pi) / 2


@pytest.mark.parametrize(
    "parameters",
    [
        (0.0, 1.0, 1e3, math.inf, 1e3 + 1e-3),
        (0.0, 1.0, 1e6, math.inf, 1e6 + 1e-6),
        (0.0, 1.0, 1e8, math.inf, 1e8),
        (0.0, 1.0, -math.inf, -1e5, -1e5 - 1e-5),
        (3.0, 0.1, 60.0, math.inf, 60.001),
        (0.0, 1.0, 300.0, 300.0 + 1e-6, 300.0 + 4e-7),
        (0.0, 1.0, -300.0 - 1e-6, -300.0, -300.0 - 4e-7),
        (0.0, 2.0, -1e-9, 1e-9, 0.0),
        (0.5, 0.3, 0.0, 1.0, 0.2),
        (0.0, 1.0, 50.0, 60.0, 51.0),
        (0.0, 1.0, -1e-3, 5e-3, 1e-3),
        (5e8, 1.0, 0.0, 1.0, 0.3),
        (0.0, 1.0, -2.0, 9.0, 1.0),
    ],
)
def test_digits_and_derivatives_far_out(parameters):
    *given, value = parameters
    tensors = [torch.tensor(number, dtype=torch.double, requires_grad=math.isfinite(number)) for number in given]
    found = TruncatedNormal(*tensors).log_prob(torch.tensor(value, dtype=torch.double))
    with mpmath.workdps(120):
        assert abs(found.item() / exact_log_prob(*parameters) - 1) < 1e-14
        free = [place for place, number in enumerate(given) if math.isfinite(number)]
        gradient = torch.autograd.grad(found, [tensors[place] for place in free])
        for place, slope in zip(free, gradient, strict=True):

            def along(number, place=place):
                return exact_log_prob(*given[:place], number, *given[place + 1 :], value)

            exact = mpmath.diff(along, mpmath.mpf(given[place]), h=mpmath.mpf(10) ** -40)
            assert abs(slope.item() - exact) <= 1e-9 * abs(exact) + 1e-12


@pytest.mark.parametrize("loc", [0.3, -2.0, 5e4])
@pytest.mark.parametrize("scale", [1e4, 2e5, 1e8, 1e12, 1e16])
def test_quantiles_between_bounds_that_are_close(loc, scale):
    """Digits of the distance from the bound do not depend on the scale, nor do their derivatives."""
    low, high = 0.0, 1.0
    leaves = [torch.tensor(number, dtype=torch.double, requires_grad=True) for number in (low, high)]
    with mpmath.workdps(60):
        ends = [mpmath.ncdf((end - mpmath.mpf(loc)) / mpmath.mpf(scale)) for end in (low, high)]
        for uniform in (0.01, 0.25, 0.5, 0.77, 1 - 1e-9):
            d = TruncatedNormal(torch.tensor(loc, dtype=torch.double), scale, *leaves)
            quantile = d.icdf(torch.tensor(uniform, dtype=torch.double))
            point = (mpmath.mpf(quantile.item()) - mpmath.mpf(loc)) / mpmath.mpf(scale)
            reached = (mpmath.ncdf(point) - ends[0]) / (ends[1] - ends[0])
            assert abs(reached - mpmath.mpf(uniform)) < 1e-10
            slopes = torch.autograd.grad(quantile, leaves)
            torch.testing.assert_close(torch.stack(slopes).sum(), torch.ones(()).double(), rtol=1e-3, atol=1e-3)
    assert d.sample((1000,)).unique().numel() == 1000


@pytest.mark.parametrize("distance", [1e3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("is_upper", [True, False])
def test_far_from_the_location(distance, is_upper):
    """There, the distance from the bound is exponential; sums with the location have no digits of it."""
    ends = (-math.inf, 0.0) if is_upper else (0.0, math.inf)
    loc = torch.tensor(distance if is_upper else -distance, dtype=torch.double)
    d, rate = TruncatedNormal(loc, 1.0, *ends), 1 / distance
    sign = -1 if is_upper else 1
    torch.testing.assert_close(sign * d.mean.item() / rate, 1.0, rtol=4 * rate**2 + 1e-12, atol=0)
    torch.testing.assert_close(d.variance.item() / rate**2, 1.0, rtol=8 * rate**2 + 1e-12, atol=0)
    draws = d.sample((2000,))
    assert stats.kstest(sign * draws.numpy(), "expon", args=(0, rate)).pvalue > 1e-3
    torch.testing.assert_close(d.icdf(d.cdf(draws)), draws, rtol=1e-9, atol=0)


def test_scales_whose_squares_overflow():
    d = TruncatedNormal(torch.tensor(0.3, dtype=torch.double), 1e200, 0.0, 2.0)
    torch.testing.assert_close(d.variance.item(), 1 / 3)
    torch.testing.assert_close(d.mean.item(), 1.0)


BOUNDS = [
    (-math.inf, math.inf),
    (0.0, math.inf),
    (-math.inf, 1.0),
    (0.0, 1.0),
    (-2.0, 0.5),
    (0.3, 0.9),
    (-math.inf, 0.3),
]


def parameters_of(loc, scale, low, high):
    return [
        torch.tensor(number, dtype=torch.double, requires_grad=math.isfinite(number))
        for number in (loc, scale, low, high)
    ]


@pytest.mark.parametrize("low, high", BOUNDS)
@pytest.mark.parametrize("loc", [-30.0, 0.0, 0.3, 1.0, 40.0])
def test_derivatives_of_probabilities_and_quantiles(low, high, loc):
    """Those of the distribution function with respect to values are densities, of quantiles their inverses, infinite
    bounds or not; with respect to parameters they are those of differences.
    """
    leaves = parameters_of(loc, 1.2, low, high)
    d = TruncatedNormal(*leaves)
    shares = torch.tensor([1e-30, 1e-9, 0.2, 0.5, 0.9, 1 - 1e-6], dtype=torch.double, requires_grad=True)
    values = d.icdf(shares)
    density = d.log_prob(values.detach()).exp()
    (slopes,) = torch.autograd.grad(values.sum(), shares, retain_graph=True)
    # Where rounding leads to a bound, there are none.
    is_inside = (values > low) & (values < high)
    assert is_inside[1:].all()
    torch.testing.assert_close((slopes * density)[is_inside], torch.ones(6).double()[is_inside], rtol=1e-9, atol=0)
    at = values.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(d.cdf(at).sum(), at, retain_graph=True)
    torch.testing.assert_close(slopes[is_inside], density[is_inside], rtol=1e-9, atol=0)
    inside = values.detach()[2:5]
    free = tuple(leaf for leaf in leaves if leaf.requires_grad)

    def of_parameters(*parameters):
        numbers = iter(parameters)
        return TruncatedNormal(*(next(numbers) if leaf.requires_grad else leaf for leaf in leaves), validate_args=False)

    assert torch.autograd.gradcheck(lambda *parameters: of_parameters(*parameters).cdf(inside), free, atol=1e-6)
    for slope in torch.autograd.grad(d.cdf(inside).sum(), free):
        assert slope.isfinite()


@pytest.mark.parametrize(
    "loc, low, high", [(0.0, 0.0, math.inf), (1.0, -math.inf, 1.0), (0.0, 0.0, 1.0), (1.0, 0.0, 1.0)]
)
def test_second_derivatives_where_a_bound_is_the_location(loc, low, high):
    leaves, value = parameters_of(loc, 1.2, low, high), torch.tensor(0.5, dtype=torch.double)
    places = [place for place, leaf in enumerate(leaves) if leaf.requires_grad]

    def found(function, shift):
        def of_parameters(*numbers):
            parameters = list(leaves)
            for place, number in zip(places, numbers, strict=True):
                parameters[place] = number
            parameters[0] = parameters[0] + shift
            return getattr(TruncatedNormal(*parameters), function)(value)

        rows = torch.autograd.functional.hessian(of_parameters, tuple(leaves[place] for place in places))
        return torch.stack([torch.stack(row) for row in rows])

    for function in ("log_prob", "cdf"):
        for shift in (-1e-9, 1e-9):
            torch.testing.assert_close(found(function, 0.0), found(function, shift), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loc", [0.0, -1.0, -50.0, -1e7])
@pytest.mark.parametrize("share", [1e-300, 1e-30, 1e-14, 1e-8, 1e-3])
def test_small_quantiles(loc, share):
    """Relative errors of the distance from the bound stay those of rounding."""
    d = TruncatedNormal(torch.tensor(loc, dtype=torch.double), 1.0, 0.0)
    place = d.icdf(torch.tensor(share, dtype=torch.double)).item()
    distance, reach = -mpmath.mpf(loc), 15 if loc > -10 else -100 / loc

    def density(x):
        return mpmath.exp(-x * (distance + x / 2))

    with mpmath.workdps(30):
        total = mpmath.quad(density, mpmath.linspace(0, reach, 40))
        reached = mpmath.quad(density, [0, mpmath.mpf(place)])
        assert abs(reached / total / share - 1) < 1e-10


def test_bounds_are_in_the_support():
    for d in (TruncatedNormal(0.0, 1.0, -math.inf, 0.0), TruncatedNormal(1e4, 1.0, -math.inf, 1e2)):
        assert d.log_prob(d.high).isfinite()
        assert d.log_prob(d.sample((2000,))).isfinite().all()
    assert TruncatedNormal(0.0, 1.0, 0.0, 1.0).icdf(0.5) == TruncatedNormal(0.0, 1.0, 0.0, 1.0).icdf(torch.tensor(0.5))
