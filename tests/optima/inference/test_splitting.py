"""Probabilities of optima by splitting, against exact ones and against draws whose optima enumeration finds."""

import pickle

import pyro.distributions as dist
import pytest
import torch

from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.inference import Splitting
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

pytestmark = pytest.mark.statistical

NUM_DRAWS, NUM_GROUPS = 10**6, 40
SQUARE = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])
ROADS = torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]])
LOC = torch.tensor([0.0, 1.0, 0.3, -0.7, 0.5]).double()


def splitting(num_particles):
    """With so many groups that standard errors are known well."""
    return Splitting(num_particles, NUM_GROUPS)


def agree(found, error, expected, expected_error=0.0, num_groups=NUM_GROUPS):
    assert (error < 0.5).all()
    distance = (found - expected).abs() / (error**2 + expected_error**2).sqrt()
    assert (distance < most_standard_errors(num_groups)).all()


EXACT = {
    "sets": (dist.Normal(LOC, 1.0), TopK(5, 2)),
    "sets of rewards": (dist.Gumbel(LOC, 1.0), TopK(5, 1, maximize=True)),
    "orders": (dist.Laplace(LOC[:4], 1.0), Ranking(4)),
    "orders of rewards": (TruncatedNormal(LOC[:4], 1.0, -0.5, 2.0), Ranking(4, maximize=True)),
    "orders of positive costs": (dist.LogNormal(LOC[:3], 1.0), Ranking(3)),
    "components": (dist.Normal(LOC, 1.0), ConnectedComponents(SQUARE, 4, 0.4)),
    "one row": (dist.Uniform(LOC[:4].unsqueeze(0), LOC[:4].unsqueeze(0) + 2), Matching(1, 4)),
    "two rows": (dist.Normal(LOC[:4].reshape(2, 2), 1.0), Matching(2, maximize=True)),
}


@pytest.mark.parametrize("name", EXACT)
def test_against_exact(name):
    """The first, the middle and the last of all values, in one batch."""
    torch.manual_seed(0)
    entries, problem = EXACT[name]
    model = RandOM(entries.to_event(len(problem.cost_shape)), problem, estimator=splitting(400))
    values = model.enumerate_support()
    exact = model.log_prob(values)
    values, exact = values[exact > -torch.inf], exact[exact > -torch.inf]
    some = torch.tensor([0, len(values) // 2, -1])
    agree(*model.estimate_log_prob(values[some]), exact[some])


BINARY = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.double)] * 5)
SETS = TopK(5, 2).feasible_values().double()
PATHS = BINARY[ShortestPath(ROADS, 4, 0, 3).is_feasible(BINARY)]
TREES = BINARY[SpanningTree(SQUARE, 4).is_feasible(BINARY)]
CUTS = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.double)] * 3)
ENTRIES = torch.eye(4, dtype=torch.double).reshape(4, 2, 2)
PAIRS = ENTRIES[[0, 0, 1, 1]] + ENTRIES[[3, 2, 2, 3]]
PAIRS = PAIRS[(PAIRS.sum(-1) == 1).all(-1) & (PAIRS.sum(-2) == 1).all(-1)]
# Costs, problem, all values, and the estimator.
ENUMERATED = {
    "path": (dist.LogNormal(LOC / 2, 0.5), ShortestPath(ROADS, 4, 0, 3), PATHS, Splitting(60, 20, num_sweeps=1)),
    "cut": (
        dist.Uniform(0.0, 1 + LOC.abs()[[0, 1, 2, 3, 4, 0, 1, 2]]),
        MinimumCut(SQUARE[:2], 3),
        CUTS,
        splitting(200),
    ),
    "tree": (dist.Normal(LOC, 1.0), SpanningTree(SQUARE, 4), TREES, splitting(400)),
    "assignment": (
        dist.Normal(LOC[:4].reshape(2, 2), 0.6),
        BipartiteAssignment(1, 1, num_rows=2, num_columns=2),
        PAIRS,
        splitting(400),
    ),
    "own solver": (
        dist.Normal(LOC, 0.8),
        LinearProblem(lambda costs: SETS[(costs @ SETS.T).argmin(-1)], [5]),
        SETS,
        splitting(400),
    ),
}


@pytest.mark.parametrize("name", ENUMERATED)
def test_against_a_million_draws(name):
    """Of all values the one whose probability is closest to 1/10."""
    torch.manual_seed(0)
    entries, problem, values, estimator = ENUMERATED[name]
    base = entries.to_event(len(problem.cost_shape))
    coefficients = problem.incidence(values).flatten(1)
    costs = base.sample((NUM_DRAWS,)).flatten(1)
    shares = (costs @ coefficients.T).argmin(-1).bincount(minlength=len(values)) / NUM_DRAWS
    place = (shares - 0.1).abs().argmin()
    assert 0.01 < shares[place] < 0.5
    expected_error = ((1 - shares[place]) / shares[place] / NUM_DRAWS).sqrt()
    model = RandOM(base, problem, estimator=estimator)
    agree(*model.estimate_log_prob(values[place]), shares[place].log(), expected_error, estimator.num_groups)


@pytest.mark.slow
def test_improbable_values():
    torch.manual_seed(0)
    loc = torch.tensor([[0.0, 5.0, 10.0], [0.0, 8.0, 0.0]]).double()
    model = RandOM(dist.Normal(loc, 1.0).to_event(1), TopK(3, 1), estimator=splitting(4000))
    value = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    exact = model.log_prob(value)
    assert (exact < -20).all()
    agree(*model.estimate_log_prob(value), exact)


def test_costs_are_in_the_inverse_sets_and_follow_their_distribution():
    torch.manual_seed(0)
    base, problem, value = dist.Normal(LOC, 1.0).to_event(1), TopK(5, 2), torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0])
    found = Splitting(4000).estimate(base, problem, value)
    inside = found.log_weights > -torch.inf
    assert problem.contains(found.costs[inside], value).all()
    draws = base.sample((100_000,))
    draws = draws[(problem.solve(draws) == value).all(-1)]
    mean = (found.log_weights.softmax(0).unsqueeze(-1) * found.costs).sum(0)
    error = draws.std(0) * (1 / len(draws) + 4 / 4000) ** 0.5
    assert len(draws) > 1000 and ((mean - draws.mean(0)).abs() < 6 * error).all()


def test_certain_and_impossible_values():
    """Also in one batch with others."""
    torch.manual_seed(0)
    loc = torch.tensor([[10.0, 0.0], [0.0, 10.0], [0.3, 0.0]]).double()
    model = RandOM(dist.Uniform(loc, loc + 1).to_event(1), TopK(2, 1), estimator=splitting(400))
    value, error = model.estimate_log_prob(torch.tensor([1.0, 0.0]))
    assert value[:2].tolist() == [-torch.inf, 0.0] and error[:2].tolist() == [0.0, 0.0]
    agree(value[2], error[2], model.log_prob(torch.tensor([1.0, 0.0]))[2])


def test_refusals_and_arguments():
    estimator = pickle.loads(pickle.dumps(Splitting(60, 3, 4, 5)))
    assert repr(estimator) == "Splitting(num_particles=60, num_groups=3, num_sweeps=4, num_lines=5)"
    for arguments, message in [
        ((10, 10), "num_particles: expected an integer of at least 20, got 10"),
        ((25, 10), "num_particles: expected a multiple of num_groups, 10, got 25"),
        ((100, 0), "num_groups: expected an integer of at least 2, got 0"),
        ((100, 10, 0), "num_sweeps: expected an integer of at least 1, got 0"),
        ((100, 10, 1, 0.5), "num_lines: expected an integer of at least 1, got 0.5"),
    ]:
        with pytest.raises(ValueError, match=message):
            Splitting(*arguments)
