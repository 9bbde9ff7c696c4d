"""The compiled update of edges' costs against draws from boxes, and over many updates; compiled paths."""

import pyro.distributions as dist
import pytest
import torch

from pyro_structured.distributions import TruncatedNormal
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import sweep
from pyro_structured.optima.inference.independent_costs import ShiftedCosts
from pyro_structured.structures import ShortestPath

BASES = {
    "truncated": lambda loc: TruncatedNormal(loc, 0.5, 0.0, 1.5),
    "uniform": lambda loc: dist.Uniform(loc / 2, loc + 1),
    "log-normal": lambda loc: dist.LogNormal(loc, 0.7),
    "exponential": lambda loc: dist.Exponential(1 / (loc + 0.1)),
    "weibull": lambda loc: dist.Weibull(loc + 0.1, torch.full_like(loc, 0.8)),
    "gamma": lambda loc: dist.Gamma(loc + 0.5, loc + 1),
    "inverse gamma": lambda loc: dist.InverseGamma(loc + 2, loc + 1),
    "half-normal": lambda loc: dist.HalfNormal(loc + 0.1),
    "half-Cauchy": lambda loc: dist.HalfCauchy(loc + 0.1),
    "mixture": lambda loc: dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.3, 0.7]).expand(*loc.shape, 2)),
        dist.Weibull(loc.unsqueeze(-1) + torch.tensor([0.1, 2.0]), torch.tensor([0.8, 2.0]).double()),
    ),
}


def grid(side):
    nodes = torch.arange(side * side).view(side, side)
    steps = (nodes[1:], nodes[:-1]), (nodes[:, 1:], nodes[:, :-1])
    pairs = torch.cat([torch.stack([a.ravel(), b.ravel()], 1) for a, b in steps])
    return torch.cat([pairs, pairs.flip(1)])


def random_problem(num_nodes, num_edges, batch):
    """With loops, parallel edges, dead ends, and nodes that cannot be reached; every row has its own source and target,
    which some steps lead to.
    """
    edges = torch.cat([torch.tensor([[0, 1]]), torch.randint(num_nodes, (num_edges - 1, 2))])
    reached = torch.eye(num_nodes).index_put(tuple(edges.T), torch.ones(num_edges)).matrix_power(num_nodes) > 0
    ends = (reached & ~torch.eye(num_nodes, dtype=torch.bool)).nonzero()
    source, target = ends[torch.randint(len(ends), batch)].unbind(-1)
    return ShortestPath(edges, num_nodes, source, target)


def chain(problem, start, value, conditionals, number):
    torch.manual_seed(1)
    costs, found = start, []
    for _ in range(number):
        costs, info = sweep(costs, value, problem, conditionals, 1)
        assert info.num_boxes > 0
        found.append(costs)
    return torch.stack(found)


def compare_chains(problem, prior, hide_numba, start=None, number=3, shift=None):
    """Several sweeps with and without numba."""
    conditionals = cost_conditionals(prior, 1)
    start = prior.sample() if start is None else start
    if shift is not None:
        conditionals, start = ShiftedCosts(conditionals, shift), start + shift
    value = problem.solve(start)
    ours = chain(problem, start, value, conditionals, number)
    assert problem.contains(ours, value).all()
    assert (ours[0] != start).double().mean() > 0.5
    hide_numba()
    theirs = chain(problem, start, value, conditionals, number)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.slow(keep=12)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("num_nodes, num_edges", [(2, 2), (5, 9), (9, 25), (12, 60), (40, 130)])
def test_equals_draws_from_boxes(num_nodes, num_edges, base, hide_numba):
    """Rows of a batch differ in all respects but the edges."""
    problem = random_problem(num_nodes, num_edges, (3, 2))
    loc = torch.rand(3, 2, num_edges, dtype=torch.double)
    compare_chains(problem, BASES[base](loc).to_event(1), hide_numba)


@pytest.mark.parametrize("base", BASES)
def test_costs_to_which_numbers_are_added(base, hide_numba):
    problem, shift = random_problem(9, 25, (3, 2)), torch.rand(2, 25).double()
    compare_chains(problem, BASES[base](torch.rand(3, 2, 25).double()).to_event(1), hide_numba, shift=shift)


@pytest.mark.parametrize("factor", [0.01, 1.0, 10.0])
def test_paths_that_become_longer_or_shorter(factor, hide_numba):
    """In a grid most of whose nodes are too far away to matter, from costs with another mean."""
    prior = dist.LogNormal(torch.zeros(3, 360, dtype=torch.double), 0.5).to_event(1)
    problem = ShortestPath(grid(10), 100, torch.tensor([11, 38, 90]), torch.tensor([77, 41, 9]))
    compare_chains(problem, prior, hide_numba, factor * prior.sample(), number=2)


@pytest.mark.parametrize("base", [base for base in BASES if base not in ("truncated", "uniform")])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_ties_at_zero(base, share, hide_numba):
    """Costs many of which are zero, as they may be after draws that are too small for a number."""
    problem, loc = random_problem(8, 30, (20,)), torch.rand(20, 30).double()
    prior = BASES[base](loc).to_event(1)
    compare_chains(problem, prior, hide_numba, (torch.rand(20, 30) < share) * prior.sample())


@pytest.mark.slow
def test_data_that_broadcasts(hide_numba):
    """Costs of a batch, with one base and one path for all."""
    problem = ShortestPath(grid(3), 9, 0, 8)
    start = torch.rand(24).double().expand(4, 24)
    value, conditionals = (
        problem.solve(start[0]),
        cost_conditionals(dist.LogNormal(torch.zeros(24), 1.0).to_event(1), 1),
    )
    ours = chain(problem, start, value, conditionals, 2)
    hide_numba()
    torch.testing.assert_close(ours, chain(problem, start, value, conditionals, 2), rtol=0, atol=1e-9)
    assert torch.equal(start[0], start[1])


@pytest.mark.parametrize("tied", [False, True])
def test_compiled_paths_are_as_short(tied, hide_numba):
    problem = random_problem(30, 90, (50,))
    costs = torch.rand(2, 50, 90).double()
    costs = costs.round(decimals=1) if tied else costs
    ours = problem.solve(costs)
    shared = problem.solve(costs[0, 0])
    assert problem.is_feasible(ours).all() and problem.is_feasible(shared).all()
    hide_numba()
    for given, found in ((costs, ours), (costs[0, 0], shared)):
        expected = problem.solve(given)
        torch.testing.assert_close(problem.objective(given, found), problem.objective(given, expected))
        assert tied or torch.equal(found, expected)


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("base", BASES)
def test_many_updates_stay_in_the_inverse_set(base):
    """25,000 sweeps for each of the distributions."""
    edges = grid(4)
    prior = BASES[base](torch.rand(1_000, len(edges), dtype=torch.double)).to_event(1)
    problem, conditionals = ShortestPath(edges, 16, 0, 15), cost_conditionals(prior, 1)
    costs = prior.sample()
    value = problem.solve(costs)
    for _ in range(25):
        costs, _ = sweep(costs, value, problem, conditionals, 1)
        excess = problem.objective(costs, value) - problem.objective(costs, problem.solve(costs))
        assert (excess <= 1e-9 * (costs.amax(-1) - costs.amin(-1))).all()
