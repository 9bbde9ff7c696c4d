"""Noise of costs, in both tails."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import kstest
from torch.distributions import AffineTransform, ExpTransform, SigmoidTransform

from pyro_structured.distributions import TruncatedNormal
from pyro_structured.optima.distributions.cost_entries import cost_entries
from pyro_structured.optima.inference.noncentered_costs import has_noise, noise_transform

pytestmark = pytest.mark.statistical

# Probabilities from 1e-300 to 1 - 1e-300.
BELLS, EXPONENTIALS = st.floats(-37, 37), st.floats(-690, 690)
WAITS = st.one_of(st.floats(-300, 2.8), st.floats(-1, 2.8)).map(lambda power: 10.0**power)
FAMILIES = {
    "normal": (dist.Normal, BELLS),
    "half-normal": (lambda loc, scale: dist.HalfNormal(scale), WAITS.map(lambda noise: noise / 20)),
    "lognormal": (dist.LogNormal, BELLS),
    "sigmoid": (
        lambda loc, scale: dist.TransformedDistribution(dist.Normal(loc, scale), [SigmoidTransform()]),
        st.floats(-3, 3),
    ),
    "exponential": (lambda loc, scale: dist.Exponential(scale), WAITS),
    "shifted": (
        lambda loc, scale: dist.TransformedDistribution(dist.Exponential(scale), [AffineTransform(loc, 1.0)]),
        WAITS,
    ),
    "weibull": (lambda loc, scale: dist.Weibull(scale, loc.exp()), WAITS),
    "laplace": (dist.Laplace, EXPONENTIALS),
    "logistic": (dist.Logistic, EXPONENTIALS),
    "gumbel": (dist.Gumbel, st.floats(-6.5, 690)),
    "uniform": (lambda loc, scale: dist.Uniform(0 * loc, scale), EXPONENTIALS),
    "negative uniform": (lambda loc, scale: dist.Uniform(-scale, 0 * loc), EXPONENTIALS),
    "unit interval": (lambda loc, scale: TruncatedNormal(loc, scale, 0.0, 1.0), EXPONENTIALS),
    "half line": (lambda loc, scale: TruncatedNormal(loc, scale, 0.0), EXPONENTIALS),
    "negative": (lambda loc, scale: TruncatedNormal(loc, scale, -2.0, 0.0), EXPONENTIALS),
    "whole line": (TruncatedNormal, EXPONENTIALS),
}
LOCATED = ("normal", "shifted", "laplace", "logistic", "gumbel", "whole line")
PARAMETERS = st.tuples(st.floats(-2, 2), st.floats(-3, 1).map(math.exp))


def double(number):
    return torch.tensor(number, dtype=torch.double)


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("name", FAMILIES)
@given(st.data())
def test_no_digits_are_lost(name, data):
    """Costs make noise that makes them again, and other costs of the same probability for other parameters."""
    family, noises = FAMILIES[name]
    noise = double(data.draw(noises))
    odds, errors = [], []
    for loc, scale in (map(double, data.draw(PARAMETERS)) for _ in range(2)):
        base = family(loc, scale)
        transform, entries = noise_transform(base), cost_entries(base)
        costs = transform(noise)
        assume(costs.isfinite() and (costs.abs() > 1e-300 or name in LOCATED))
        # Errors of rounding: near a bound of zero, nothing but relative errors.
        is_located = name in LOCATED or costs.abs() > 1e-6 * scale
        error = 4 * torch.finfo(torch.double).eps * (costs.abs() + loc.abs() + scale)
        assert (transform(transform.inv(costs)) - costs).abs() <= 1e-12 * costs.abs() + error * is_located
        nearby = torch.stack([costs - error, costs, costs + error])
        _, below, above = entries.log_terms(nearby, *entries.parameters)
        near = below - above
        odds.append(near[1])
        errors.append(1e-11 * (1 + near[1].abs()) + (near[2] - near[0]))
    assert (odds[0] - odds[1]).abs() <= sum(errors)


@pytest.mark.parametrize("family", [dist.Cauchy, lambda loc, scale: dist.HalfCauchy(scale)])
def test_noise_has_no_parameters(family):
    """Where tails have no closed form here."""
    torch.manual_seed(0)
    for loc, scale in ((0.3, 2.0), (-5.0, 0.1)):
        base = family(torch.full((2_000,), loc).double(), torch.full((2_000,), scale).double())
        costs = base.sample()
        noise = noise_transform(base).inv(costs)
        standard = family(torch.tensor(0.0), torch.tensor(1.0))
        assert kstest(standard.cdf(noise), "uniform").pvalue > 2e-9
        torch.testing.assert_close(noise_transform(base)(noise), costs)


QUANTILES = {
    "gamma": (dist.Gamma(double([0.2, 3.0]), 0.7), scipy.stats.gamma([0.2, 3.0], scale=1 / 0.7)),
    "chi-squared": (dist.Chi2(double([0.5, 7.0])), scipy.stats.chi2([0.5, 7.0])),
    "inverse gamma": (dist.InverseGamma(double([0.6, 3.0]), 0.7), scipy.stats.invgamma([0.6, 3.0], scale=0.7)),
    "student": (dist.StudentT(double([1.5, 8.0]), 0.3, 2.0), scipy.stats.t([1.5, 8.0], 0.3, 2.0)),
}


@pytest.mark.parametrize("name", QUANTILES)
def test_noise_of_quantiles(name):
    """It is logistic: logarithms of the odds of what is below, or above if it turns."""
    base, expected = QUANTILES[name]
    torch.manual_seed(0)
    transform = noise_transform(base.to_event(1))
    costs = base.sample((2_000,))
    noise = transform.inv(costs)
    torch.testing.assert_close(transform(noise), costs, rtol=1e-9, atol=1e-12)
    for column in noise.T.numpy():
        assert kstest(column, "logistic").pvalue > 1e-6
    noise = torch.linspace(-600, 600, 61).double().unsqueeze(-1).expand(-1, 2)
    costs, sign = transform(noise), -1 if name == "inverse gamma" else 1
    with np.errstate(divide="ignore", over="ignore"):
        for tail, odds in ((expected.cdf, sign * noise), (expected.sf, -sign * noise)):
            is_small = (odds < 0) & (costs.abs() > 1e-290) & (costs.abs() < 1e100)
            found = torch.as_tensor(tail(costs.numpy()))[is_small].log()
            torch.testing.assert_close(found, odds.sigmoid().log()[is_small], rtol=1e-8, atol=1e-8)
    # Nothing is said of what underflows.
    assert transform(double([[800.0, -800.0], [math.inf, -math.inf]])).isnan().all()


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_correlated_costs(kind):
    torch.manual_seed(0)
    covariance = torch.tensor([[1.0, 0.5], [0.5, 2.0]])
    base = dist.MultivariateNormal(torch.tensor([0.5, 3.0]), covariance)
    if kind == "lognormal":
        base = dist.TransformedDistribution(base, [ExpTransform()])
    costs = base.sample((5_000,)).double()
    noise = noise_transform(base).inv(costs)
    torch.testing.assert_close(noise.T.cov(), torch.eye(2).double(), atol=0.06, rtol=0)
    assert noise.dtype == torch.double
    torch.testing.assert_close(noise_transform(base)(noise), costs)


def test_bounds_are_kept():
    """Costs are inside the bounds for any noise, infinite noise included."""
    bounds = double([0.0, 1.0])
    for base in (TruncatedNormal(bounds, 0.02, 0.0, 1.0), dist.Uniform(0 * bounds, 0 * bounds + 0.3)):
        transform = noise_transform(base.to_event(1))
        low, high = base.support.lower_bound, base.support.upper_bound
        for noise in (-math.inf, -1e5, -800.0, 0.0, 800.0, 1e5, math.inf):
            costs = transform(double([noise, noise]))
            assert ((costs >= low) & (costs <= high)).all()
        assert (
            transform.inv(0 * bounds + low).eq(-math.inf).all() and transform.inv(0 * bounds + high).eq(math.inf).all()
        )


@pytest.mark.parametrize(
    "base",
    [
        dist.Beta(torch.ones(3), 1.0),
        dist.TransformedDistribution(dist.Normal(torch.zeros(3), 1.0), [dist.transforms.AbsTransform()]),
        dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2, 3), 1.0).to_event(1)),
    ],
)
def test_others_have_no_noise(base):
    assert not has_noise(base)
    with pytest.raises(NotImplementedError, match="base: expected"):
        noise_transform(base)
