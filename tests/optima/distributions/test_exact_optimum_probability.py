"""Derivatives of exact probabilities where corners of densities coincide, and numbers of very different sizes."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.optima.distributions.exact_optimum_costs import exact_costs
from pyro_structured.optima.ops.order_probability import log_plackett_luce
from pyro_structured.structures import ConnectedComponents, Matching, Ranking, TopK

SCALE = torch.tensor([1.0, 2.0, 0.5]).double()
ONE = torch.ones(3).double()


def shifted_exponential(loc, factor):
    return dist.TransformedDistribution(dist.Exponential(ONE), [dist.transforms.AffineTransform(loc, factor)])


def power(base, exponent):
    return dist.TransformedDistribution(base, [dist.transforms.PowerTransform(exponent)])


FAMILIES = {
    "normal": lambda p: dist.Normal(p, 1.0),
    "half-normal": lambda p: dist.HalfNormal(p.exp()),
    "truncated": lambda p: TruncatedNormal(p, 1.0, -1.0, 1.0),
    "truncated at lower ends": lambda p: TruncatedNormal(0.0, 1.0, p, 3.0),
    "truncated at upper ends": lambda p: TruncatedNormal(0.0, 1.0, -2.0, p + 1),
    "uniform": lambda p: dist.Uniform(p, p + 2),
    "uniform between ends": lambda p: dist.Uniform(-SCALE, p.exp()),
    "exponential": lambda p: dist.Exponential(p.exp() * SCALE),
    "shifted exponential": lambda p: shifted_exponential(p, SCALE),
    "negated exponential": lambda p: shifted_exponential(p, -SCALE),
    "gumbel": lambda p: dist.Gumbel(p, SCALE),
    "laplace": lambda p: dist.Laplace(p, 1.0),
    "laplace of many scales": lambda p: dist.Laplace(p, SCALE),
    "logistic": lambda p: dist.Logistic(p, 1.0),
    "lognormal": lambda p: dist.LogNormal(p, 1.0),
    "weibull": lambda p: dist.Weibull(p.exp(), (p - 0.5).exp()),
    "pareto": lambda p: dist.Pareto(p.exp(), 3.0),
    "kumaraswamy": lambda p: dist.Kumaraswamy((p + 0.5).exp(), (0.7 - p).exp()),
    "inverse exponential": lambda p: power(dist.Exponential(p.exp()), -SCALE),
    "powers of half-normal": lambda p: power(dist.HalfNormal(SCALE), p - 3),
    "powers of uniform": lambda p: power(dist.Uniform(0 * SCALE, SCALE), p + 2),
}
FIRST = torch.tensor([0.0, 1.0, 0.0])
PROBLEMS = {
    "first": (TopK(3, 1), FIRST),
    "first two": (TopK(3, 2), 1 - FIRST),
    "last": (TopK(3, 1, maximize=True), FIRST),
    "order": (Ranking(3), torch.tensor([2, 0, 1])),
}
PLACES = {
    "zeros": torch.zeros(3).double(),
    "two": torch.tensor([0.1, 0.1, -0.2]).double(),
    "kinks": torch.tensor([0.1, 0.3, -0.2]).double(),  # of Laplace: 0.3 - 2 * 0.25 is -0.2
}
# Where ends of supports depend on parameters, and densities or their slopes jump.
MOVING = {
    "truncated at lower ends",
    "truncated at upper ends",
    "uniform",
    "uniform between ends",
    "shifted exponential",
    "negated exponential",
    "laplace",
    "laplace of many scales",
    "pareto",
}
STEP = 1e-6


def log_prob(family, problem, parameters):
    problem, value = PROBLEMS[problem]
    return RandOM(FAMILIES[family](parameters).to_event(1), problem).log_prob(value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_first_derivatives(family, problem, place):
    """Also where ends of supports, or kinks, of several costs are the same."""
    leaf = PLACES[place].clone().requires_grad_()
    (found,) = torch.autograd.grad(log_prob(family, problem, leaf), leaf)
    steps = STEP * torch.cat([torch.eye(3), -torch.eye(3)]).double()
    right, left = log_prob(family, problem, PLACES[place] + steps).split(3)
    torch.testing.assert_close(found, (right - left) / (2 * STEP), rtol=1e-5, atol=1e-4)


@pytest.mark.slow(keep=8)
@pytest.mark.parametrize("problem", ["first two", "order"])
@pytest.mark.parametrize("family", FAMILIES)
def test_second_derivatives(family, problem):
    """They are right where corners differ, and refused where they coincide and move."""
    leaf = torch.tensor([0.1234, 0.3456, -0.2789]).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda p: log_prob(family, problem, p), (leaf,), atol=1e-4)
    leaf = torch.zeros(3).double().requires_grad_()
    if family in MOVING:
        with pytest.raises(RuntimeError, match=r"log_prob: second derivatives were taken where ends of supports"):
            torch.autograd.functional.hessian(lambda p: log_prob(family, problem, p), leaf)
    else:
        assert torch.autograd.gradgradcheck(lambda p: log_prob(family, problem, p), (leaf,), atol=1e-4)


@pytest.mark.parametrize("name", ["normal", "uniform", "gumbel", "laplace", "logistic", "shifted exponential"])
def test_a_large_part_in_common(name):
    """Differences of such numbers are exact: so are probabilities."""
    for problem, value in PROBLEMS.values():
        near, far = (
            RandOM(FAMILIES[name](offset + torch.arange(3.0).double() / 2).to_event(1), problem).log_prob(value)
            for offset in (0.0, 1e12)
        )
        torch.testing.assert_close(far, near, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("far", [1e5, 1e9, 1e13, 1e17, 1e30])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", ["normal", "laplace", "logistic"])
def test_an_item_that_is_far_away(name, place, far):
    """It does not matter, wherever it stands; nor do costs of pairs that are not allowed."""
    near = [item for item in range(3) if item != place]
    loc = torch.full((3,), far, dtype=torch.double)
    loc[near] = torch.tensor([0.0, 0.5], dtype=torch.double)
    alone, gradients = loc[near].clone().requires_grad_(), []
    family = getattr(dist, name.capitalize())
    expected = RandOM(family(alone, 1.0).to_event(1), TopK(2, 1)).log_prob(torch.tensor([1.0, 0.0]))
    allowed = torch.arange(3) != place
    best = torch.zeros(3)
    best[near[0]] = 1.0
    for problem, value, rank in (
        (TopK(3, 1), best, 1),
        (Ranking(3), torch.tensor([*near, place]), 1),
        (Matching(1, 3, allowed=allowed.unsqueeze(0)), torch.tensor([near[0]]), 2),
    ):
        leaf = loc.clone().requires_grad_()
        base = family(leaf if rank == 1 else leaf.unsqueeze(0), 1.0).to_event(rank)
        found = RandOM(base, problem).log_prob(value)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        gradients.append(torch.autograd.grad(found, leaf)[0])
        assert gradients[-1][place].abs() < 1e-9
    (own,) = torch.autograd.grad(expected, alone)
    for gradient in gradients:
        torch.testing.assert_close(gradient[near], own, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("loc", [10.0, 1e4, 1e6, 1e8, 1e12])
def test_truncated_normal_costs_far_from_their_location(loc):
    """They are exponential ones next to the bound, in the limit."""
    leaf = torch.tensor([loc], dtype=torch.double, requires_grad=True)
    edge = ConnectedComponents(torch.tensor([[0, 1]]), 2, 1 - 1 / loc)
    found = RandOM(TruncatedNormal(leaf, 1.0, 0.0, 1.0).to_event(1), edge).log_prob(torch.tensor([0, 0]))
    # Of the distances from the bound, z = loc - 1 is the rate.
    with mpmath.workdps(60):

        def log_tail(point):
            point = mpmath.mpf(point)
            mass = [mpmath.quad(lambda x: mpmath.exp(-(x**2) / 2 - x * (point - 1)), [0, end]) for end in ends(point)]
            return mpmath.log(mass[0] / mass[1])

        def ends(point):
            # Beyond, nothing counts.
            return [1 - mpmath.mpf(1 - 1 / loc), min(mpmath.mpf(1), 150 / (point - 1))]

        expected, slope = log_tail(loc), mpmath.diff(log_tail, loc, h=mpmath.mpf(loc) * mpmath.mpf("1e-15"))
    assert abs(found.item() - expected) < 1e-12 * abs(expected)
    assert abs(torch.autograd.grad(found, leaf)[0].item() - slope) < 1e-9 * abs(slope)


def test_gumbel_rewards_with_a_large_part_in_common():
    """Their differences are exact."""
    loc = torch.tensor([0.0, 1.0, 2.5], dtype=torch.double)
    far = RandOM(dist.Gumbel(loc + 1e12, 1.0).to_event(1), TopK(3, 1, maximize=True)).log_prob(
        torch.tensor([0, 0, 1.0])
    )
    torch.testing.assert_close(far, loc.log_softmax(-1)[2], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("common", [1.0, 1e4, 1e8, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_that_both_matchings_share(common, dtype):
    """It cancels: the difference of both costs has mean -1 and variance 3; and so it does in draws."""
    factor = torch.tensor([[common, 0, 0, 0], [common, 1, 0, 0], [common, 0, 1, 0], [common, 0, 0, 1.0]], dtype=dtype)
    joint = dist.MultivariateNormal(torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=dtype), scale_tril=factor)
    reshaped = dist.TransformedDistribution(joint, [torch.distributions.transforms.ReshapeTransform((4,), (2, 2))])
    expected = torch.special.log_ndtr(torch.tensor(1 / 3**0.5, dtype=torch.double))
    found = RandOM(reshaped, Matching(2)).log_prob(torch.tensor([0, 1]))
    torch.testing.assert_close(found.double(), expected, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0.0)
    draw = exact_costs(reshaped, Matching(2))
    assert draw(torch.tensor([[0, 1]])).isfinite().all()


@pytest.mark.parametrize("shape", [[0.1, 0.5, 0.2], [10.0, 0.5, 0.2], [1.2, 0.5, 2.2]])
@pytest.mark.parametrize("problem", [TopK(3, 1), Ranking(3)], ids=["sets", "orders"])
def test_singular_densities(shape, problem):
    """At zero those of Weibull variables are infinite."""
    model = RandOM(dist.Weibull(SCALE, torch.tensor(shape).double()).to_event(1), problem)
    assert model.log_prob(model.enumerate_support()).exp().sum().item() == pytest.approx(1.0, abs=1e-9)


def through(base, *transforms):
    return dist.TransformedDistribution(base, [*transforms])


LOC = torch.tensor([0.2, 1.0, 0.6]).double()
MINUS, EXP = dist.transforms.AffineTransform(0.0, -1.0), dist.transforms.ExpTransform()
SQUARE_ROOT = dist.transforms.PowerTransform(torch.tensor(0.5).double())
SIGNS = torch.tensor([-1.0, 2.0, -0.5]).double()
# Costs; simpler ones of the same order; and whether the order is the other way round.
EQUAL_ORDERS = {
    "decreasing, then increasing": (through(dist.Normal(LOC, SCALE), MINUS, EXP), dist.Normal(LOC, SCALE), True),
    "increasing, then decreasing": (through(dist.Normal(LOC, SCALE), EXP, MINUS), dist.Normal(LOC, SCALE), True),
    "twice decreasing": (through(dist.Laplace(LOC, SCALE), MINUS, EXP, MINUS), dist.Laplace(LOC, SCALE), False),
    "signs that differ": (
        through(dist.Normal(LOC, SCALE), dist.transforms.AffineTransform(ONE, SIGNS), EXP),
        dist.Normal(1 + SIGNS * LOC, SIGNS.abs() * SCALE),
        False,
    ),
    "three of a bounded variable": (
        through(dist.Exponential(SCALE), SQUARE_ROOT, MINUS, dist.transforms.SigmoidTransform()),
        dist.Exponential(SCALE),
        True,
    ),
    "two increasing ones around a decreasing one": (
        through(dist.Uniform(-LOC, LOC + 1), dist.transforms.TanhTransform(), MINUS, EXP),
        dist.Uniform(-LOC, LOC + 1),
        True,
    ),
    "Plackett and Luce's": (through(dist.Gumbel(LOC, ONE), MINUS, EXP), dist.Gumbel(LOC, ONE), True),
    "inverse": (power(dist.HalfNormal(SCALE), -ONE), dist.HalfNormal(SCALE), True),
    "nested": (through(through(dist.Normal(LOC, SCALE), MINUS), EXP), dist.Normal(LOC, SCALE), True),
}


POSITIVE = {
    "exponential": (dist.Exponential(SCALE), [stats.expon(scale=1 / s) for s in SCALE.tolist()]),
    "half-normal": (dist.HalfNormal(SCALE), [stats.halfnorm(scale=s) for s in SCALE.tolist()]),
    "uniform": (dist.Uniform(0 * SCALE, SCALE), [stats.uniform(0, s) for s in SCALE.tolist()]),
    "uniform away from zero": (dist.Uniform(SCALE, SCALE + 1), [stats.uniform(s, 1) for s in SCALE.tolist()]),
    "weibull": (dist.Weibull(SCALE, 3 * SCALE), [stats.weibull_min(3 * s, scale=s) for s in SCALE.tolist()]),
    "lognormal": (
        dist.LogNormal(LOC, SCALE),
        [stats.lognorm(s, scale=m) for m, s in zip(LOC.exp().tolist(), SCALE.tolist(), strict=True)],
    ),
    "truncated normal": (
        TruncatedNormal(torch.tensor([-20.0, 1.0, 3.0]).double(), SCALE, 0.0, torch.inf),
        [stats.truncnorm(-m / s, math.inf, loc=m, scale=s) for m, s in ((-20.0, 1.0), (1.0, 2.0), (3.0, 0.5))],
    ),
}
NEAR_ZERO = [10.0**-n for n in range(14, 1, -3)]
PIECES = [0.0, *NEAR_ZERO, *np.linspace(0.02, 0.98, 20), *(1 - p for p in reversed(NEAR_ZERO)), 1.0]


@pytest.mark.slow(keep=8)
@pytest.mark.filterwarnings("ignore:.*integrand behavior")
@pytest.mark.filterwarnings("ignore:.*roundoff error")
@pytest.mark.filterwarnings("ignore:(divide by zero|overflow) encountered")
@pytest.mark.parametrize("exponents", [(-1.0, -1.0, -1.0), (2.0, 3.0, 0.5), (-1.0, 2.0, -1.5), (0.2, -0.1, 5.0)])
@pytest.mark.parametrize("name", POSITIVE)
def test_powers(name, exponents):
    """Against integrals over probabilities, in steps towards both ends."""
    base, peers = POSITIVE[name]
    costs = power(base, torch.tensor(exponents).double()).to_event(1)

    def integrand(probability, first):
        log_cost = exponents[first] * np.log(max(peers[first].ppf(probability), 0.0))  # scipy: -1e-17
        others = [(peers[i], exponents[i]) for i in range(3) if i != first]
        ends = [(peer, np.exp(log_cost / exponent), exponent > 0) for peer, exponent in others]
        return math.prod(peer.sf(x) if rises else peer.cdf(x) for peer, x, rises in ends)

    expected = [
        sum(quad(integrand, a, b, (first,), epsabs=1e-13)[0] for a, b in pairwise(PIECES)) for first in range(3)
    ]
    found = RandOM(costs, TopK(3, 1)).log_prob(torch.eye(3).double()).exp()
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.double), rtol=0, atol=1e-9)
    ranking = RandOM(costs, Ranking(3))
    orders = ranking.enumerate_support()
    probabilities = ranking.log_prob(orders).exp()
    best = torch.stack([probabilities[orders[:, 0] == item].sum() for item in range(3)])
    torch.testing.assert_close(best, found, rtol=1e-9, atol=1e-12)


def test_powers_of_negative_numbers_have_no_order():
    costs = power(dist.Normal(LOC, SCALE), 2 * ONE).to_event(1)
    with pytest.raises(NotImplementedError, match="log_prob: the probability that TopK has a given optimum"):
        RandOM(costs, TopK(3, 1)).log_prob(FIRST)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", EQUAL_ORDERS)
def test_order_after_several_transforms(name, maximize):
    costs, simpler, reverses = EQUAL_ORDERS[name]
    for make in (lambda most: TopK(3, 1, most), lambda most: TopK(3, 2, most), lambda most: Ranking(3, most)):
        found, expected = (
            RandOM(base.to_event(1), make(most)) for base, most in ((costs, maximize), (simpler, maximize != reverses))
        )
        values = found.enumerate_support()
        torch.testing.assert_close(found.log_prob(values), expected.log_prob(values), rtol=1e-9, atol=1e-9)


def test_several_transforms_against_a_million_draws():
    """Whose scales differ after the exponential, so that there is no simpler order."""
    torch.manual_seed(0)
    base = through(
        TruncatedNormal(LOC, SCALE, -1.0, 2.0), MINUS, EXP, dist.transforms.AffineTransform(ONE, -SCALE)
    ).to_event(1)
    costs = base.sample((10**6,))
    cycle = torch.tensor([[0, 1], [1, 2], [2, 0]])
    for problem in (TopK(3, 1), Ranking(3, maximize=True), ConnectedComponents(cycle, 3, 0.0)):
        model = RandOM(base, problem)
        values = model.enumerate_support()
        share = (problem.solve(costs) == values.unsqueeze(1)).all(-1).double().mean(1)
        exact = model.log_prob(values).exp()
        assert ((share - exact).abs() < 5 * (exact * (1 - exact) / len(costs)).sqrt()).all()
        assert exact.sum().item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    "loc", [[0.0, 1.0, 2.0], [0.0, 400.0, -500.0], [0.0, 10.0, -720.0], [700.0, -700.0, 0.0], [0.0, 5e3, -5e3]]
)
@pytest.mark.parametrize("value", [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
def test_best_of_gumbel_rewards_thousands_of_scales_apart(loc, value):
    """Against the sum of both orders of the two best, in closed form."""
    loc = torch.tensor(loc, dtype=torch.double, requires_grad=True)
    best, rest = ([i for i in range(3) if value[i] == on] for on in (1.0, 0.0))
    orders = torch.tensor([[*best, *rest], [*best[::-1], *rest]])
    exact = log_plackett_luce(loc[orders]).logsumexp(0)
    base = dist.Gumbel(loc, torch.ones(3, dtype=torch.double)).to_event(1)
    found = RandOM(base, TopK(3, 2, maximize=True)).log_prob(torch.tensor(value))
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    slopes = (torch.autograd.grad(result, loc)[0] for result in (found, exact))
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [dist.Normal, dist.Laplace])
@pytest.mark.parametrize(
    "loc, order",
    [
        ([120.0, 0.0, 0.1], [0, 1, 2]),
        ([39.68, -29.04, -29.27], [0, 1, 2]),
        ([0.0, 100.0, 200.0, -100.0], [2, 1, 0, 3]),
        ([0.0, 700.0, 0.2], [1, 0, 2]),
        ([0.0, 1.0, 2.0], [2, 0, 1]),
    ],
)
def test_derivatives_of_improbable_rankings(kind, loc, order):
    """Against differences; nothing changes if all costs are shifted."""
    loc = torch.tensor(loc, dtype=torch.double)

    def log_prob(loc):
        base = kind(loc, torch.ones_like(loc)).to_event(1)
        return RandOM(base, Ranking(len(loc))).log_prob(torch.tensor(order))

    (found,) = torch.autograd.grad(log_prob(wanted := loc.clone().requires_grad_()), wanted)
    steps = 1e-3 * torch.eye(len(loc), dtype=torch.double)
    differences = torch.stack([(log_prob(loc + step) - log_prob(loc - step)) / 2e-3 for step in steps])
    torch.testing.assert_close(found, differences, rtol=1e-6, atol=1e-6)
    assert abs(found.sum()) < 1e-8 * (1 + found.abs().max())
    if kind is dist.Normal:
        hessian = torch.autograd.functional.hessian(log_prob, loc)
        assert hessian.sum(0).abs().max() < 1e-7
