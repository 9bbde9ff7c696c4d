"""Probabilities of matchings and rankings by growing problems, against scipy, plain draws, sums and each other."""

import itertools
import math
import pickle

import pyro.distributions as dist
import pytest
import torch
from scipy.stats import binom, multivariate_normal

from pyro_structured.distributions import EstimateWarning, RandOM, TruncatedNormal
from pyro_structured.inference import ShellSMC
from pyro_structured.structures import Matching, Ranking, TopK
from pyro_structured.testing.standard_errors import most_standard_errors

pytestmark = pytest.mark.statistical

NUM_DRAWS, NUM_GROUPS = 20_000, 40
GENERATOR = torch.Generator().manual_seed(0)
LOC = torch.rand(5, 5, dtype=torch.double, generator=GENERATOR)
ROOT = torch.randn(4, 4, dtype=torch.double, generator=GENERATOR)
JOINT = dist.MultivariateNormal(ROOT[0], ROOT @ ROOT.T + 0.1 * torch.eye(4, dtype=torch.double))
# Made here, so that they are the same under all seeds: how improbable these values are depends on them.
GENERATOR = torch.Generator().manual_seed(0)
PLACES = torch.rand(30, 30, dtype=torch.double, generator=GENERATOR)
NOISE = 0.1 * torch.randn(30, 30, dtype=torch.double, generator=GENERATOR)
GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.randn(10, dtype=torch.double, generator=GENERATOR)
ORDER = (SCORES + 0.1 * torch.randn(10, dtype=torch.double, generator=GENERATOR)).argsort(descending=True)
FORBIDDEN = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 1]]).bool()


def shells(num_particles):
    """With so many groups that standard errors are known well."""
    return ShellSMC(num_particles, NUM_GROUPS)


def agree(model, value, expected, expected_error=0.0, most=0.2):
    """Whether estimates are as near as they should be, with standard errors that are small enough to mean something."""
    found, error = model.estimate_log_prob(value)
    assert (error < most).all()
    distance = (found - expected).abs() / (error**2 + expected_error**2).sqrt()
    assert (distance < most_standard_errors(NUM_GROUPS)).all()


def matching_cdf(loc, scale):
    """The probability of the identity of three rows: five differences of normal costs are negative."""
    others = [order for order in itertools.permutations(range(3)) if order != (0, 1, 2)]
    identity = torch.eye(3).flatten()
    change = torch.stack([identity - torch.eye(3)[list(order)].flatten() for order in others]).double()
    mean, covariance = change @ loc.flatten(), change @ torch.diag(scale.flatten() ** 2) @ change.T
    peer = multivariate_normal(mean.numpy(), covariance.numpy(), allow_singular=True, abseps=1e-6, maxpts=10**6)
    return math.log(peer.cdf([0.0] * 5))


def test_three_rows_against_scipy():
    torch.manual_seed(0)
    loc, scale = LOC[:3, :3], 0.2 + LOC[2:, 2:]
    model = RandOM(dist.Normal(loc, scale).to_event(2), Matching(3), estimator=shells(4000))
    agree(model, torch.arange(3), matching_cdf(loc, scale), 1e-3, most=0.03)


def test_all_permutations_add_up_to_one():
    torch.manual_seed(0)
    values = torch.tensor(list(itertools.permutations(range(5))))
    model = RandOM(dist.Normal(LOC, 0.3).to_event(2), Matching(5), estimator=shells(400))
    log_prob, error = model.estimate_log_prob(values)
    total, spread = log_prob.exp().sum(), (log_prob.exp() * error).square().sum().sqrt()
    assert (total - 1).abs() < most_standard_errors(NUM_GROUPS) * spread and spread < 0.03


@pytest.mark.slow
def test_two_orders_of_thirty_rows():
    """The order of the rows is that of the shells; the probability does not depend on it."""
    value, found = Matching(30).solve(PLACES + NOISE), []
    torch.manual_seed(0)
    for order in (torch.arange(30), torch.randperm(30)):
        base = dist.Normal(PLACES[order], 0.1).to_event(2)
        found.append(RandOM(base, Matching(30), estimator=shells(800)).estimate_log_prob(value[order]))
    (first, first_error), (second, second_error) = found
    assert -40 < first < -20 and max(first_error, second_error) < 1
    distance = (first - second).abs() / (first_error**2 + second_error**2).sqrt()
    assert distance < most_standard_errors(NUM_GROUPS)


def _most_frequent(values):
    different, counts = values.unique(dim=0, return_counts=True)
    return different[counts.argmax()]


BASES = {
    "normal": dist.Normal(LOC[:3, :4], 0.3),
    "truncated": TruncatedNormal(LOC[:3, :4], 0.3, 0.0, torch.tensor([0.6, 1.0, 1.0, torch.inf]).double()),
    "tails": TruncatedNormal(LOC[:3, :4], 0.1, 3.0, 4.0),
    "uniform": dist.Uniform(LOC[:3, :4], LOC[:3, :4] + 0.7),
}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", BASES)
def test_bounds_spare_columns_and_forbidden_pairs(name, maximize):
    torch.manual_seed(0)
    base = BASES[name].to_event(2)
    problem = Matching(3, 4, torch.stack([torch.ones_like(FORBIDDEN), FORBIDDEN]), maximize=maximize)
    draws = problem.solve(base.sample((NUM_DRAWS, 1)).expand(-1, 2, -1, -1))
    value = torch.stack([_most_frequent(column) for column in draws.unbind(1)])
    share = (draws == value).all(-1).double().mean(0)
    agree(RandOM(base, problem, estimator=shells(1000)), value, share.log(), ((1 - share) / share / NUM_DRAWS).sqrt())


def test_costs_are_in_the_inverse_sets_and_follow_their_distribution():
    torch.manual_seed(0)
    base, problem = TruncatedNormal(LOC[:3, :4], 0.3, 0.0, 1.0).to_event(2), Matching(3, 4, FORBIDDEN, maximize=True)
    value = torch.tensor([0, 1, 2])
    found = ShellSMC(4000).estimate(base, problem, value)
    assert problem.contains(found.costs, value).all()
    draws = base.sample((NUM_DRAWS,))
    draws = draws[(problem.solve(draws) == value).all(-1)]
    weights = found.log_weights.softmax(0)[:, None, None]
    mean = (weights * found.costs).sum(0)
    error = draws.std(0) * (1 / len(draws) + weights.square().sum() * 2).sqrt()
    assert len(draws) > 1000 and ((mean - draws.mean(0)).abs() < 6 * error).all()


@pytest.mark.parametrize("maximize", [False, True])
def test_rankings_against_scipy(maximize):
    torch.manual_seed(0)
    problem = Ranking(4, maximize=maximize)
    values = torch.tensor([[0, 1, 2, 3], [2, 0, 3, 1]])
    expected = []
    for order in values:
        ascending = order.flip(0) if maximize else order
        change = torch.eye(4, dtype=torch.double)[ascending][:-1] - torch.eye(4, dtype=torch.double)[ascending][1:]
        covariance = change @ JOINT.covariance_matrix @ change.T
        peer = multivariate_normal((change @ JOINT.loc).numpy(), covariance.numpy(), abseps=1e-7)
        expected.append(math.log(peer.cdf([0.0] * 3)))
    agree(RandOM(JOINT, problem, estimator=shells(4000)), values, torch.tensor(expected), 1e-4)


def test_rankings_of_independent_costs():
    """Which have an exact log-probability too."""
    torch.manual_seed(0)
    loc = LOC[0] * torch.tensor([[1.0], [2.0]])
    model = RandOM(dist.Normal(loc, 1.0).to_event(1), Ranking(5), estimator=shells(2000))
    value = torch.tensor([3, 0, 4, 1, 2])
    assert model.log_prob(value)[1] < -6
    agree(model, value, model.log_prob(value), most=0.3)


@pytest.mark.slow
def test_unlikely_rankings():
    """Intervals of two standard errors to both sides cover 90 % at least: this number of 50 is not smaller than it
    would be by chance of one in a million.
    """
    torch.manual_seed(0)
    model = RandOM(dist.Normal(SCORES.expand(50, 10) / 2, 1.0).to_event(1), Ranking(10), estimator=ShellSMC(600))
    exact = model.log_prob(ORDER)
    assert (exact < -20).all()
    found, error = model.estimate_log_prob(ORDER)
    assert ((found - exact).abs() < 2 * error).sum() >= binom.ppf(1e-6, 50, 0.9)
    assert (found - exact).square().mean().sqrt() < 0.25


@pytest.mark.filterwarnings("ignore::pyro_structured.distributions.EstimateWarning")
def test_rankings_that_hardly_any_costs_lead_to():
    """They end, and say what they do not know."""
    torch.manual_seed(0)
    loc = torch.tensor([0.0, 1e4, 1e4]).double()
    model = RandOM(dist.MultivariateNormal(loc, torch.eye(3).double()), Ranking(3), estimator=ShellSMC(40, 4))
    found, error = model.estimate_log_prob(torch.tensor([2, 1, 0]))
    # The least squares that lead there, of (1e4)^2 2 / 3 / 2.
    assert found < -3e7 and error > 0.5


def test_one_row():
    torch.manual_seed(0)
    model = RandOM(dist.Normal(LOC[:1, :4], 0.3).to_event(2), Matching(1, 4), estimator=shells(2000))
    values = torch.arange(4).unsqueeze(-1)
    agree(model, values, model.log_prob(values))
    single = RandOM(dist.Normal(LOC[:1, :1], 0.3).to_event(2), Matching(1), estimator=shells(2000))
    agree(single, torch.tensor([0]), 0.0, 1e-9)


def test_certain_and_impossible_values():
    torch.manual_seed(0)
    certain = Matching(3, allowed=torch.eye(3).bool())
    agree(
        RandOM(dist.Normal(LOC[:3, :3], 0.3).to_event(2), certain, estimator=shells(1000)),
        torch.arange(3), 0.0, 1e-9, most=0.05,
    )  # fmt: skip
    apart = dist.Uniform(10 * torch.eye(3).double(), 10 * torch.eye(3).double() + 1).to_event(2)
    model = RandOM(apart, Matching(3), estimator=ShellSMC(100))
    with pytest.warns(EstimateWarning):
        value, error = model.estimate_log_prob(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    assert value[0] == -torch.inf and error[0] == torch.inf and value[1].isfinite()


def test_refusals_and_arguments():
    estimator = pickle.loads(pickle.dumps(ShellSMC(100, 5)))
    assert repr(estimator) == "ShellSMC(num_particles=100, num_groups=5)"
    refused = [
        (
            dist.Normal(LOC[0], 1.0).to_event(1),
            TopK(5, 2),
            "problem: expected a Matching or a Ranking .* use Splitting",
        ),
        (dist.Gumbel(LOC, 1.0).to_event(2), Matching(5), "base: expected independent normal.*got .*use Splitting"),
        (dist.Gumbel(LOC[0], 1.0).to_event(1), Ranking(5), "base: expected normal costs .*use Splitting"),
    ]
    for base, problem, message in refused:
        with pytest.raises(NotImplementedError, match=message):
            RandOM(base, problem, estimator=estimator).estimate_log_prob(problem.solve(base.sample()))
    for arguments, message in [
        ((100, 1), "num_groups: expected an integer of at least 2, got 1"),
        ((105, 10), "num_particles: expected a multiple of num_groups, 10, got 105"),
        ((5, 10), "num_particles: expected an integer of at least 10, got 5"),
        ((100.0,), "num_particles: expected an integer of at least 10, got 100.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            ShellSMC(*arguments)
