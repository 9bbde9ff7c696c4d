"""Updates of costs given their optima, against costs drawn until the optimum is right."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import ks_2samp

from pyro_structured.distributions import TruncatedNormal
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import interior_point, sweep
from pyro_structured.optima.structures.box import Box
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

pytestmark = pytest.mark.statistical

SQUARE = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])
ROADS = torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [0, 3]])
PROBLEMS = {
    "matching": Matching(3),
    "rectangular matching": Matching(2, 3, maximize=True),
    "assignment": BipartiteAssignment(torch.tensor([1, 2]), torch.tensor([1, 2, 1]), num_rows=2, num_columns=3),
    "top k": TopK(4, 2),
    "ranking": Ranking(4, maximize=True),
    "spanning tree": SpanningTree(SQUARE, 4),
    "path": ShortestPath(ROADS, 4, 0, 3),
    "cut": MinimumCut(torch.tensor([[0, 1], [1, 2]]), 3),
    "components": ConnectedComponents(SQUARE, 4, 0.5),
}


def solve_argmax(rewards):
    return torch.nn.functional.one_hot(rewards.argmax(-1), rewards.shape[-1]).double()


def bases(problem):
    """Distributions of costs from 0 to 1, or nearly."""
    shape, rank = problem.cost_shape, len(problem.cost_shape)
    loc = torch.linspace(0.2, 0.8, shape.numel(), dtype=torch.double).reshape(shape)
    found = {
        "truncated normal": TruncatedNormal(loc, 0.3, 0.0, 1.0).to_event(rank),
        "uniform": dist.Uniform(torch.zeros_like(loc), 0.5 + loc).to_event(rank),
        "gamma": dist.Gamma(2.0 + loc, torch.full_like(loc, 4.0)).to_event(rank),
        "log-normal": dist.LogNormal(loc - 1, 0.3 + loc / 2).to_event(rank),
        "exponential": dist.Exponential(1 / loc).to_event(rank),
        "mixture of entries": dist.MixtureSameFamily(
            dist.Categorical(torch.tensor([0.4, 0.6]).expand(*shape, 2)),
            TruncatedNormal(loc.unsqueeze(-1), torch.tensor([0.1, 0.4]).double(), 0.0, 1.2),
        ).to_event(rank),
    }
    if isinstance(problem.cost_low, float) and problem.cost_low < 0:
        found["normal"] = dist.Normal(loc, 0.3).to_event(rank)
        found["student"] = dist.StudentT(4.0, loc, 0.3).to_event(rank)
        found["laplace"] = dist.Laplace(loc, 0.3).to_event(rank)
    if rank == 1:
        parts = dist.Gamma(torch.tensor([[3.0], [5.0]], dtype=torch.double) + loc, torch.full_like(loc, 10.0))
        found["mixture"] = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), parts.to_event(1))
    if rank == 1 and "normal" in found:
        covariance = 0.05 * (torch.eye(shape[0]) + 0.8).double()
        found["correlated"] = dist.MultivariateNormal(loc, covariance)
    return found


def statistics(costs, value, problem):
    """Functions of costs whose distributions are compared."""
    flat = costs.flatten(-len(problem.cost_shape))
    chosen = problem.incidence(value).expand(costs.shape).flatten(-len(problem.cost_shape)) > 0
    return {
        "first": flat[..., 0],
        "last": flat[..., -1],
        "chosen": flat.masked_fill(~chosen, 0.0).sum(-1),
        "others": flat.masked_fill(chosen, 0.0).sum(-1),
        "largest": flat.amax(-1),
        "spread": flat.std(-1),
    }


def rejection(base, problem, value, number):
    found = []
    while sum(map(len, found)) < number:
        costs = base.sample((4 * number,))
        same = (problem.solve(costs) == value).flatten(1).all(1)
        found.append(costs[same])
    return torch.cat(found)[:number]


def assert_same_distribution(found, expected, value, problem):
    ours, theirs = (statistics(each, value, problem) for each in (found, expected))
    for name, each in ours.items():
        assert ks_2samp(each, theirs[name]).pvalue > 2e-9, name


CASES = [(name, base) for name, problem in PROBLEMS.items() for base in bases(problem)]


@pytest.mark.slow(keep=12)
@pytest.mark.parametrize("name, kind", CASES)
def test_sweeps_lead_to_the_posterior(name, kind):
    """From a start that is the same for all chains, and from exact draws."""
    pyro.set_rng_seed(0)
    problem = PROBLEMS[name]
    # Solvers in loops that are not compiled take their time.
    slow = {"cut": (300, 6), "path": (200, 12)} if kind == "mixture" else {}
    number, num_sweeps = slow.get(name, (1_500, 25))
    base = bases(problem)[kind]
    value = problem.solve(base.sample((2_000,))).unique(dim=0, return_counts=True)
    value = value[0][value[1].argmax()]
    expected = rejection(base, problem, value, number)
    start, inside = interior_point(problem, value, base.sample().double(), *support_bounds(base))
    assert inside
    chains = base.expand((number,))
    rows, values = problem.expand((number,)), value.expand((number, *value.shape))
    conditionals = cost_conditionals(chains, len(problem.cost_shape))
    for costs, times in ((start.expand_as(expected), num_sweeps), (expected, 2)):
        for _ in range(times):
            costs, info = sweep(costs, values, rows, conditionals, 1)
        assert problem.contains(costs, values).all() and base.support.check(costs).all()
        assert info.num_stuck == 0 and info.num_boxes > 0
        assert_same_distribution(costs, expected, value, problem)


LOC = torch.linspace(0.2, 0.8, 4).double()
EXACT = {
    **{
        kind: bases(TopK(4, 2))[kind] for kind in ("normal", "truncated normal", "uniform", "log-normal", "exponential")
    },
    "laplace": dist.Laplace(LOC, 0.3).to_event(1),
    "logistic": dist.Logistic(LOC, 0.3).to_event(1),
    "gumbel": dist.Gumbel(LOC, 0.3).to_event(1),
    "weibull": dist.Weibull(LOC, torch.full_like(LOC, 1.7)).to_event(1),
    "gamma": dist.Gamma(1 + LOC, torch.full_like(LOC, 4.0)).to_event(1),
    "inverse gamma": dist.InverseGamma(1 + LOC, LOC).to_event(1),
    "half-normal": dist.HalfNormal(LOC).to_event(1),
    "cauchy": dist.Cauchy(LOC, 0.3).to_event(1),
    "half-cauchy": dist.HalfCauchy(LOC).to_event(1),
}


@pytest.mark.parametrize("kind", EXACT)
def test_exact_draws_forget_where_they_start(kind):
    """Slice sampling would remember it."""
    base = EXACT[kind]
    torch.manual_seed(0)
    starts, uniform = base.sample((2,)), torch.rand(4, dtype=torch.double)
    box = Box(torch.arange(4), torch.full((4,), 0.1).double(), torch.full((4,), 0.5).double())
    first, second = cost_conditionals(base.expand((2,)), 1).draw(starts, box, uniform)
    assert torch.equal(first, second) and ((first >= box.low) & (first <= box.high)).all()


@pytest.mark.parametrize("kind", EXACT)
def test_intervals_without_a_length(kind):
    """Whatever the density is there, and where rounding leads out of the bounds of the costs, on these."""
    for place in (0.0, 0.3, 1e4):
        ends = torch.full((4,), place).double()
        family = cost_conditionals(EXACT[kind], 1)
        drawn = family.draw(ends, Box(torch.arange(4), ends, ends), torch.rand(4).double())
        assert torch.equal(drawn, ends.clamp(family.low, family.high))


ON_LINES = ("normal", "uniform", "gamma", "log-normal", "exponential", "correlated", "mixture", "laplace", "student")


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("kind", [*ON_LINES, "logistic", "gumbel", "weibull", "inverse gamma", "half-normal", "cauchy"])
def test_lines_lead_to_the_posterior(kind):
    """Where restrictions have no closed form."""
    pyro.set_rng_seed(0)
    problem = LinearProblem(solve_argmax, (3,), maximize=True)
    loc = torch.tensor([0.2, 0.5, 0.8]).double()
    others = {
        "logistic": dist.Logistic(loc, 0.3),
        "gumbel": dist.Gumbel(loc, 0.3),
        "weibull": dist.Weibull(loc, torch.full_like(loc, 1.7)),
        "inverse gamma": dist.InverseGamma(3 + loc, 2 * loc),
        "half-normal": dist.HalfNormal(loc),
        "cauchy": dist.Cauchy(loc, 0.3),
    }
    base = others[kind].to_event(1) if kind in others else bases(problem)[kind]
    value = torch.tensor([0.0, 1.0, 0.0]).double()
    expected = rejection(base, problem, value, 1_500)
    start, inside = interior_point(problem, value, base.sample().double(), *support_bounds(base))
    assert inside
    conditionals = cost_conditionals(base.expand((1_500,)), 1)
    costs, info = sweep(start.expand_as(expected), value.expand_as(expected), problem, conditionals, 60)
    assert problem.contains(costs, value).all() and info.num_solves >= 60 * 2 * 1_500
    assert_same_distribution(costs, expected, value, problem)


def test_a_start_is_found_or_there_is_none():
    """Bounds may leave no costs for which a detour is the shortest path."""
    roads = torch.tensor([[0, 1], [1, 2], [0, 2]])
    problem, detour = ShortestPath(roads, 3, 0, 2), torch.tensor([1.0, 1.0, 0.0]).double()
    for low, high, exists in ((0.0, 1.0, True), (0.4, 1.0, True), (0.6, 1.0, False), (0.0, torch.inf, True)):
        drawn = (torch.tensor([0.9, 0.9, 0.7]) if high < 2 else torch.tensor([3.0, 3.0, 1.0])).double()
        costs, inside = interior_point(problem, detour, drawn, torch.tensor(low).double(), torch.tensor(high).double())
        assert bool(inside) == exists and (not exists or bool(((costs >= low) & (costs <= high)).all()))


def test_a_start_leaves_costs_off_the_path_as_they_were_drawn():
    """Where the path's own costs can fall far enough."""
    problem, base = PROBLEMS["path"], dist.LogNormal(torch.zeros(100, 6).double(), 1.5).to_event(1)
    detour, drawn = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 0.0]).double(), base.sample()
    costs, inside = interior_point(problem, detour, drawn, *support_bounds(base))
    assert inside.all() and problem.contains(costs, detour).all()
    assert torch.equal(costs[:, detour == 0], drawn[:, detour == 0])
    assert ((0 < costs) & (costs <= drawn)).all() and (costs < drawn).any()


@pytest.mark.parametrize("width", [1e-11, 1e-14, 1e-30])
def test_costs_next_to_bounds(width):
    """The shorter road of two is one whose costs are between 0 and a number that others nearly never fall below."""
    problem = ShortestPath(torch.tensor([[0, 1], [0, 1]]), 2, 0, 1)
    low, high = torch.zeros(2).double(), torch.tensor([1.0, width]).double()
    drawn = high * torch.rand(20, 2, dtype=torch.double)
    value = torch.tensor([1.0, 0.0]).expand(20, 2)
    costs, inside = interior_point(problem, value, drawn, low, high)
    assert inside.all() and ((costs > low) & (costs < high)).all() and (costs[:, 0] < costs[:, 1]).all()


def test_costs_of_a_heavy_tail():
    """Far above what a value asks for."""
    problem = ConnectedComponents(torch.tensor([[0, 1], [1, 2], [0, 2]]), 3, 0.6)
    drawn = 10.0 ** torch.linspace(-3, 200, 30, dtype=torch.double).unsqueeze(-1).expand(30, 3)
    value = problem.solve(torch.zeros(3))
    low, high = torch.zeros(3).double(), torch.full((3,), torch.inf, dtype=torch.double)
    for target in (torch.tensor([0, 1, 2]), value):
        costs, inside = interior_point(problem, target.expand(30, 3), drawn, low, high)
        assert inside.all() and (costs > 0).all()


@pytest.mark.slow
def test_lines_do_not_lead_to_the_ends_of_a_support():
    """Where densities have a pole, from which no update would lead back: costs next to it have no digits to go."""
    pyro.set_rng_seed(0)
    problem = LinearProblem(TopK(5, 2).solve, [5], is_feasible_fn=lambda value: value.sum(-1) == 2)
    base = dist.Gamma(0.05, torch.ones(200, 5, dtype=torch.double)).to_event(1)
    costs = base.sample()
    value = problem.solve(costs)
    costs = torch.where(value > 0, 1e-322, costs)
    for _ in range(20):
        costs, _ = sweep(costs, value, problem, cost_conditionals(base, 1), 10)
        assert (costs > 0).all() and problem.contains(costs, value).all()
