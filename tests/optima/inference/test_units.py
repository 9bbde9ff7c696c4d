"""Neither estimates nor draws depend on the unit in which costs are measured, nor, where only their differences count,
on their zero.
"""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.inference import ConstrainedSlice, PlainMonteCarlo, ShellSMC, Splitting
from pyro_structured.optima.inference.hard_em import likeliest_costs
from pyro_structured.structures import (
    BipartiteAssignment,
    ConnectedComponents,
    LinearProblem,
    Matching,
    MinimumCut,
    Ranking,
    ShortestPath,
    SpanningTree,
    TopK,
)
from pyro_structured.testing.standard_errors import most_standard_errors

# Few particles, as numbers are compared with each other.
pytestmark = [
    pytest.mark.statistical,
    pytest.mark.filterwarnings("ignore::pyro_structured.distributions.EstimateWarning"),
]
LOC = torch.tensor([0.0, 1.0, 0.3, -0.7, 0.5]).double()
SQUARE = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])
ROADS = torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]])
MATRIX = torch.tensor([[0.1, 0.6, 0.9], [0.5, 0.2, 0.3], [0.7, 0.4, 0.2]]).double()
SETS = TopK(5, 2).feasible_values().double()
ESTIMATORS = [Splitting(20, 2), ShellSMC(20, 2), PlainMonteCarlo(100)]
# Powers of ten are not powers of two: all numbers are rounded.
UNITS = [1e-150, 1e-100, 1e-30, 1e-16, 1e-3, 1e16, 1e100, 1e150]
FAR = [1e-150, 1e-16, 1e150]


def transformed(base, unit):
    return dist.TransformedDistribution(base, [dist.transforms.AffineTransform(torch.zeros(5).double(), unit)])


# Of a unit: costs, and a problem.
CASES = {
    "set": lambda u: (dist.Normal(LOC * u, u), TopK(5, 2)),
    "set of joint costs": lambda u: (
        dist.MultivariateNormal(LOC * u, scale_tril=u * (torch.eye(5).double() + 0.1).tril()),
        TopK(5, 2, maximize=True),
    ),
    "set of sliced costs": lambda u: (transformed(dist.Gamma(LOC.exp(), 1.0), u), TopK(5, 2)),
    "order": lambda u: (dist.Normal(LOC * u, u), Ranking(5)),
    "order of positive costs": lambda u: (dist.Exponential(LOC.exp() / u), Ranking(5)),
    "matching": lambda u: (dist.Normal(MATRIX * u, 0.3 * u), Matching(3)),
    "matching of truncated rewards": lambda u: (TruncatedNormal(MATRIX * u, 0.3 * u, 0, u), Matching(3, maximize=True)),
    "matching of intervals": lambda u: (dist.Uniform(MATRIX * u, MATRIX * u + u), Matching(3)),
    "assignment": lambda u: (dist.Normal(MATRIX * u, 0.3 * u), BipartiteAssignment(1, 2, num_rows=3, num_columns=3)),
    "path": lambda u: (dist.LogNormal(LOC / 2 + math.log(u), 0.5), ShortestPath(ROADS, 4, 0, 3)),
    "tree": lambda u: (dist.Normal(LOC * u, u), SpanningTree(SQUARE, 4)),
    "components": lambda u: (dist.Normal(LOC * u, u), ConnectedComponents(SQUARE, 4, 0.4 * u)),
    "cut": lambda u: (dist.Uniform(0.0, u * (1 + LOC.abs()[[0, 1, 2, 3, 4, 0, 1, 2]])), MinimumCut(SQUARE[:2], 3)),
    "own solver": lambda u: (
        dist.Normal(LOC * u, 0.8 * u),
        LinearProblem(lambda costs: SETS[(costs @ SETS.T).argmin(-1)], [5]),
    ),
}  # fmt: skip


def make(name, unit):
    entries, problem = CASES[name](unit)
    rank = len(problem.cost_shape) - len(entries.event_shape)
    return (entries.to_event(rank) if rank else entries), problem


def estimates(base, problem, value):
    """Of all estimators that apply."""
    found = []
    for estimator in ESTIMATORS:
        torch.manual_seed(0)
        try:
            found.extend(RandOM(base, problem, estimator=estimator).estimate_log_prob(value))
        except NotImplementedError:
            assert isinstance(estimator, ShellSMC)
    return torch.stack(found)


def likely(base, problem):
    torch.manual_seed(0)
    return problem.solve(base.sample())


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", CASES)
def test_estimates(name):
    value = likely(*make(name, 1.0))
    expected = estimates(*make(name, 1.0), value)
    for unit in FAR:
        torch.testing.assert_close(estimates(*make(name, unit), value), expected, rtol=1e-6, atol=1e-6)


def test_rows_have_units_of_their_own():
    units = torch.tensor(UNITS, dtype=torch.double).unsqueeze(-1)
    model = RandOM(dist.Normal(LOC * units, units).to_event(1), TopK(5, 1), estimator=Splitting(800, 20))
    value = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    torch.manual_seed(0)
    found, error = model.estimate_log_prob(value)
    assert ((found - model.log_prob(value)).abs() < most_standard_errors(20) * error).all() and (error < 0.3).all()


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", ["set", "order", "matching", "assignment", "tree", "own solver"])
def test_common_parts(name):
    base, problem = make(name, 1.0)
    value = likely(base, problem)
    expected = estimates(base, problem, value)
    for shift in (-1e6, 1e6):
        shifted = dist.Normal(base.base_dist.loc + shift, base.base_dist.scale).to_event(len(problem.cost_shape))
        torch.testing.assert_close(estimates(shifted, problem, value), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_draws(name):
    def draws(unit):
        base, problem = make(name, unit)
        pyro.set_rng_seed(0)
        run = MCMC(
            ConstrainedSlice(lambda: pyro.sample("y", RandOM(base, problem), obs=value)), 2, 1, disable_progbar=True
        )
        run.run()
        return run.get_samples()["y_costs"] / unit

    value = likely(*make(name, 1.0))
    expected = draws(1.0)
    for unit in FAR:
        torch.testing.assert_close(draws(unit), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["set", "order", "matching", "matching of truncated rewards", "assignment", "tree"])
def test_second_best_values(name):
    base, problem = make(name, 1.0)
    torch.manual_seed(0)
    costs = base.sample((20,))
    value = problem.solve(costs)
    for unit in UNITS:
        assert torch.equal(problem.second_best(costs * unit, value), problem.second_best(costs, value))


@pytest.mark.parametrize("name", ["set", "set of joint costs", "order", "matching", "matching of truncated rewards"])
def test_likeliest_costs(name):
    """A margin is worth so much for each unit."""
    value = likely(*make(name, 1.0)).flip(-1)
    expected = likeliest_costs(*make(name, 1.0), value, 2.0)
    for unit in FAR:
        torch.testing.assert_close(
            likeliest_costs(*make(name, unit), value, 2.0 / unit) / unit, expected, rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("name", ["set", "order", "order of positive costs", "components"])
def test_exact_probabilities(name):
    base, problem = make(name, 1.0)
    values = problem.feasible_values()
    expected = RandOM(base, problem).log_prob(values)
    for unit in FAR:
        torch.testing.assert_close(RandOM(*make(name, unit)).log_prob(values), expected, rtol=1e-9, atol=1e-9)
