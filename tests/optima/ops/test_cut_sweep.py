"""The compiled update of costs of cuts against draws from boxes, and over many updates."""

import pyro.distributions as dist
import pytest
import torch

from pyro_structured.distributions import TruncatedNormal
from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import sweep
from pyro_structured.optima.inference.independent_costs import ShiftedCosts
from pyro_structured.structures import MinimumCut

# Costs of edges are at least 0; some families give the costs of labels negative values, too.
BASES = {
    "truncated": lambda loc, low: TruncatedNormal(loc, 0.5, low, 1.5),
    "uniform": lambda loc, low: dist.Uniform(low, loc + 1),
    "log-normal": lambda loc, low: dist.LogNormal(loc, 0.7),
    "exponential": lambda loc, low: dist.Exponential(1 / (loc + 0.1)),
    "weibull": lambda loc, low: dist.Weibull(loc + 0.1, torch.full_like(loc, 0.8)),
}


def grid(height, width):
    nodes = torch.arange(height * width).view(height, width)
    pairs = (nodes[1:], nodes[:-1]), (nodes[:, 1:], nodes[:, :-1])
    return torch.cat([torch.stack([a.ravel(), b.ravel()], 1) for a, b in pairs])


def random_problem(num_nodes, num_edges):
    """With parallel edges and isolated nodes."""
    edges = torch.randint(num_nodes, (num_edges, 2))
    return MinimumCut(edges[edges[:, 0] != edges[:, 1]], num_nodes)


def random_prior(problem, kind, batch):
    shape = (*batch, *problem.cost_shape)
    low = torch.where(problem.cost_low == 0, 0.0, -1.0).expand(shape).double()
    loc = torch.rand(shape, dtype=torch.double)
    return BASES[kind](loc, low).to_event(1)


def chain(problem, start, value, conditionals, number):
    torch.manual_seed(1)
    costs, found = start, []
    for _ in range(number):
        costs, info = sweep(costs, value, problem, conditionals, 1)
        assert info.num_boxes == 2 * problem.num_nodes + len(problem.edges)
        found.append(costs)
    return torch.stack(found)


def compare_chains(problem, prior, hide_numba, start=None, shift=None, scale=1.0):
    """Several sweeps with and without numba."""
    conditionals = cost_conditionals(prior, 1)
    start = prior.sample() if start is None else start
    if shift is not None:
        conditionals, start = ShiftedCosts(conditionals, shift), start + shift
    value = problem.solve(start)
    ours = chain(problem, start, value, conditionals, 3)
    assert problem.contains(ours, value).all()
    assert (ours[0] != start).double().mean() > 0.9
    hide_numba()
    assert compiled_function("optima.ops.cut_sweep", "cut_sweep") is None
    theirs = chain(problem, start, value, conditionals, 3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * scale)


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("num_nodes, num_edges", [(1, 0), (2, 3), (5, 6), (8, 20)])
def test_equals_draws_from_boxes(num_nodes, num_edges, kind, hide_numba):
    """Rows of a batch differ in all respects but the edges."""
    problem = random_problem(num_nodes, num_edges)
    compare_chains(problem, random_prior(problem, kind, (3, 2)), hide_numba)


@pytest.mark.parametrize("kind", BASES)
def test_costs_to_which_numbers_are_added(kind, hide_numba):
    problem = random_problem(6, 9)
    shift = torch.rand(2, *problem.cost_shape).double()
    compare_chains(problem, random_prior(problem, kind, (3, 2)), hide_numba, shift=shift)


@pytest.mark.parametrize("weight", [0.01, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
def test_grids(weight, scale, hide_numba):
    """From many small regions of both labels to one label everywhere; sums of all sizes."""
    problem = MinimumCut(grid(4, 5), 20)
    means = torch.where(problem.cost_low == 0, weight, 1.0).double() * scale
    prior = dist.Exponential((1 / means).expand(3, -1)).to_event(1)
    compare_chains(problem, prior, hide_numba, scale=scale * max(weight, 1.0))


def test_costs_of_many_sizes(hide_numba):
    problem = MinimumCut(grid(4, 4), 16)
    prior = dist.LogNormal(torch.zeros(4, *problem.cost_shape).double(), 6.0).to_event(1)
    start = prior.sample()
    conditionals, value = cost_conditionals(prior, 1), problem.solve(start)
    ours = chain(problem, start, value, conditionals, 1)
    hide_numba()
    theirs = chain(problem, start, value, conditionals, 1)
    # A change of a row's largest cost in its last digits is seen in its smallest.
    size = torch.maximum(ours, theirs).amax(-1, keepdim=True)
    assert ((ours - theirs).abs() <= 1e-12 * size + 1e-9 * theirs.abs()).all()


@pytest.mark.parametrize("num_nodes, num_edges", [(2, 3), (5, 6), (8, 20), (12, 16)])
def test_ends_of_intervals(num_nodes, num_edges, hide_numba):
    """Every cost is drawn at one end of its interval or the other, where other labels are as cheap."""
    problem = random_problem(num_nodes, num_edges)
    prior = random_prior(problem, "uniform", (30,))
    costs, conditionals = prior.sample(), cost_conditionals(prior, 1)
    value, ends = problem.solve(costs), torch.randint(2, costs.shape).double()
    ours, _ = sweep(costs, value, problem, conditionals, 1, ends)
    hide_numba()
    theirs, _ = sweep(costs, value, problem, conditionals, 1, ends)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("decimals", [None, 0])
def test_ties(decimals, hide_numba):
    """Costs that were all zero, or small whole numbers, so that several labellings are the cheapest."""
    problem = random_problem(6, 12)
    prior = random_prior(problem, "uniform", (20,))
    start = 0 * prior.sample() if decimals is None else (3 * prior.sample().abs()).round()
    # Chains start between the bounds.
    prior = dist.Uniform(prior.base_dist.low, prior.base_dist.high + 6).to_event(1)
    compare_chains(problem, prior, hide_numba, start)


def test_data_that_broadcasts(hide_numba):
    """Costs of a batch, with one base and one labelling for all; the start stays as it was."""
    problem = MinimumCut(grid(3, 3), 9)
    prior = dist.Exponential(torch.ones(problem.cost_shape).double()).to_event(1)
    first = prior.sample()
    start, value, conditionals = first.expand(4, -1), problem.solve(first), cost_conditionals(prior, 1)
    ours = chain(problem, start, value, conditionals, 2)
    hide_numba()
    torch.testing.assert_close(ours, chain(problem, start, value, conditionals, 2), rtol=0, atol=1e-9)
    assert torch.equal(start[0], first)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("kind", BASES)
def test_many_updates_stay_in_the_inverse_set(kind):
    """25,000 sweeps for each of the distributions."""
    problem = MinimumCut(grid(4, 4), 16)
    prior = random_prior(problem, kind, (1_000,))
    costs, conditionals = prior.sample(), cost_conditionals(prior, 1)
    value = problem.solve(costs)
    for _ in range(25):
        costs, _ = sweep(costs, value, problem, conditionals, 1)
        excess = problem.objective(costs, value) - problem.objective(costs, problem.solve(costs))
        assert (excess <= 1e-9 * (costs.amax(-1) - costs.amin(-1))).all()
