"""The compiled update of a matching's costs against draws from boxes, and over a million updates."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_structured.distributions import TruncatedNormal
from pyro_structured.optima.inference.compiled_sweep import sweep_compiled
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import sweep
from pyro_structured.optima.inference.independent_costs import ShiftedCosts
from pyro_structured.optima.structures.matching import Matching


def random_problem(shape, batch, maximize, has_forbidden):
    rows, columns = shape
    allowed = torch.rand(*batch, rows, columns) < (0.45 if has_forbidden else 1.0)
    some = torch.rand(*batch, columns).argsort(-1)[..., :rows]
    return Matching(rows, columns, allowed=allowed.scatter(-1, some.unsqueeze(-1), True), maximize=maximize)


def mixture(components):
    logits = torch.linspace(-0.5, 0.5, components.batch_shape[-1], dtype=torch.double)
    return dist.MixtureSameFamily(dist.Categorical(logits=logits.expand(components.batch_shape)), components)


BASES = {
    "normal": lambda loc: dist.Normal(loc, 0.5),
    "truncated": lambda loc: TruncatedNormal(loc, 0.5, loc - 0.4, 1.5),
    "uniform": lambda loc: dist.Uniform(loc - 1, loc + 1),
    "log-normal": lambda loc: dist.LogNormal(loc, 0.5),
    "exponential": lambda loc: dist.Exponential(1 / (loc + 0.1)),
    "laplace": lambda loc: dist.Laplace(loc, 0.5),
    "logistic": lambda loc: dist.Logistic(loc, 0.5),
    "gumbel": lambda loc: dist.Gumbel(loc, 0.5),
    "weibull": lambda loc: dist.Weibull(loc + 0.1, torch.full_like(loc, 1.5)),
    "gamma": lambda loc: dist.Gamma(loc + 0.5, loc + 1),
    "inverse gamma": lambda loc: dist.InverseGamma(loc + 2, loc + 1),
    "half-normal": lambda loc: dist.HalfNormal(loc + 0.1),
    "Cauchy": lambda loc: dist.Cauchy(loc, 0.5),
    "Student": lambda loc: dist.StudentT(loc + 0.5, loc, 0.5),
    "mixture": lambda loc: mixture(dist.Normal(loc.unsqueeze(-1) + torch.tensor([0.0, 3.0]), 0.5)),
    "mixture of truncated": lambda loc: mixture(
        TruncatedNormal(loc.unsqueeze(-1) + torch.tensor([0.0, 0.5]), 0.5, loc.unsqueeze(-1) - 0.4, 1.5)
    ),
    "mixture of Gumbel": lambda loc: mixture(dist.Gumbel(loc.unsqueeze(-1), torch.tensor([0.3, 1.0, 2.0]).double())),
}


def compare_chains(problem, prior, hide_numba, shift=None, start=None):
    """Several sweeps with and without numba: the potentials of one row are those of the next."""
    conditionals = cost_conditionals(prior, 2)
    start = prior.sample() if start is None else start
    if shift is not None:
        conditionals, start = ShiftedCosts(conditionals, shift.flatten(-2)), start + shift
    value = problem.solve(start)
    chains = []
    for _ in range(2):
        torch.manual_seed(1)
        costs, chain = start, []
        for _ in range(5):
            costs, info = sweep(costs, value, problem, conditionals, 1)
            assert info.num_boxes == 2 * problem.num_rows
            chain.append(costs)
        chains.append(torch.stack(chain))
        hide_numba()
    assert problem.contains(chains[0], value).all()
    assert (chains[0] != start).all()
    torch.testing.assert_close(*chains, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("has_forbidden", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (4, 4), (4, 7), (6, 6)])
def test_equals_draws_from_boxes(shape, has_forbidden, maximize, base, hide_numba):
    """Rows of a batch differ in all respects."""
    problem = random_problem(shape, (3, 2), maximize, has_forbidden)
    loc = torch.rand(3, 2, *shape, dtype=torch.double)
    compare_chains(problem, BASES[base](loc).to_event(2), hide_numba)


@pytest.mark.parametrize("base", BASES)
def test_costs_to_which_numbers_are_added(base, hide_numba):
    problem, shift = random_problem((4, 5), (3, 2), True, True), torch.randn(2, 4, 5).double()
    compare_chains(problem, BASES[base](torch.rand(3, 2, 4, 5).double()).to_event(2), hide_numba, shift)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_many_columns(scale, hide_numba):
    problem, loc = random_problem((50, 55), (2,), False, True), torch.randn(2, 50, 55).double()
    compare_chains(problem, dist.Normal(loc, scale).to_event(2), hide_numba)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("ends", [(-0.4, math.inf), (-math.inf, 2.0), (-1.0, 1e-3), (4.0, 60.0)])
def test_many_bounded_columns(ends, maximize, hide_numba):
    problem, loc = random_problem((20, 22), (2,), maximize, True), torch.randn(2, 20, 22).double()
    prior = TruncatedNormal(loc, 0.7, *(loc + end for end in ends)).to_event(2)
    compare_chains(problem, prior, hide_numba, torch.randn(20, 22).double())


@pytest.mark.parametrize("digits", [0, 1])
def test_ties(digits, hide_numba):
    """Cycles of moves that cost nothing, or what rounding makes of that."""
    problem, loc = random_problem((12, 12), (20,), False, False), torch.rand(20, 12, 12).double()
    prior = dist.Normal(loc, 1.0).to_event(2)
    compare_chains(problem, prior, hide_numba, start=prior.sample().round(decimals=digits))


@pytest.mark.parametrize("excess", [0.0, 3.0])
def test_columns_without_a_way_back(excess, hide_numba):
    """Some rows may take all columns, others only their own: searches from the former do not reach the latter.

    Where the former pay for columns of the latter, potentials of these have to be raised after most draws.
    """
    allowed, loc = torch.ones(12, 12, dtype=torch.bool), torch.zeros(12, 12).double()
    allowed[6:, :6] = False
    loc[:6, 6:] = excess
    # The order of the rows decides from which side one comes.
    order = torch.stack([torch.randperm(12) for _ in range(500)])
    problem = Matching(12, allowed=allowed[order])
    compare_chains(problem, dist.Normal(loc[order], 1.0).to_event(2), hide_numba)


@pytest.mark.parametrize("base", ["uniform", "mixture"])
def test_rounding_does_not_lead_out_of_bounds(base, hide_numba):
    """Where costs of a row differ by more digits than there are."""
    pyro.set_rng_seed(0)
    high = torch.tensor(
        [[6e7, 1e6, 1e19, 2e36], [4e22, 1e19, 3e31, 3e14], [6e10, 43.0, 4e29, 3e13], [2e21, 3e18, 1e34, 42.0]]
    ).double()
    start = torch.tensor(
        [[2e7, 4e5, 8e18, 3e35], [3e21, 6e18, 6e30, 2e14], [4e9, 10.0, 7e28, 8e12], [8e19, 2e18, 7e33, 7.0]]
    ).double()
    prior = dist.Uniform(torch.zeros_like(high), high)
    if base == "mixture":
        prior = mixture(dist.Uniform(torch.zeros(4, 4, 2).double(), high.unsqueeze(-1).expand(4, 4, 2)))
    problem, value = Matching(4), torch.tensor([2, 3, 1, 0])
    for _ in range(2):
        costs, conditionals = start.expand(300, 4, 4), cost_conditionals(prior.to_event(2), 2)
        for _ in range(3):
            costs, _ = sweep(costs, value, problem, conditionals, 1)
            assert ((costs >= 0) & (costs <= high)).all()
        hide_numba()


def test_data_that_broadcasts(hide_numba):
    """Costs of a batch, with one base, one set of allowed pairs, and one value for all."""
    problem = Matching(3, allowed=torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=torch.bool))
    prior = dist.Normal(torch.zeros(3, 3), 1.0).to_event(2)
    start = torch.eye(3, dtype=torch.double).sub(1).neg().expand(4, 3, 3)
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(sweep(start, torch.arange(3), problem, cost_conditionals(prior, 2), 1)[0])
        hide_numba()
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)
    assert (start.diagonal(dim1=-2, dim2=-1) == 0).all()


def test_other_costs_have_no_compiled_loop():
    costs, value, problem = torch.eye(2).double().neg(), torch.arange(2), Matching(2)
    for prior in (dist.Beta(torch.ones(2, 2), 2.0), dist.VonMises(torch.zeros(2, 2), 1.0)):
        assert sweep_compiled(costs, value, problem, cost_conditionals(prior.to_event(2), 2)) is None


@pytest.mark.parametrize("size, num_chains", [(5, 1000), (10, 1000)])
def test_a_million_updates_stay_in_the_inverse_set(size, num_chains):
    loc = torch.rand(num_chains, size, size, dtype=torch.double)
    prior = dist.Normal(loc, 0.1).to_event(2)
    problem, conditionals = Matching(size), cost_conditionals(prior, 2)
    costs = prior.sample()
    value = problem.solve(costs)
    for _ in range(10**6 // (2 * num_chains * size)):
        costs, _ = sweep(costs, value, problem, conditionals, 1)
        excess = problem.objective(costs, value) - problem.objective(costs, problem.solve(costs))
        assert (excess <= 1e-9 * (costs.amax((-2, -1)) - costs.amin((-2, -1)))).all()


@pytest.mark.parametrize("stores_some", [False, True])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_shortest_paths_whatever_the_processor(stores_some, spread, monkeypatch):
    """Both ways to put smaller numbers in the place of others, in plain Python, against Floyd and Warshall."""
    module = pytest.importorskip("pyro_structured.optima.ops.matching_sweep")
    monkeypatch.setattr(module, "STORES_SOME", stores_some)
    rng, count = np.random.default_rng(0), 11
    for _ in range(20):
        heights = rng.normal(size=count)
        arcs = rng.exponential(size=(count, count)) + heights - heights[:, None]
        arcs[rng.random((count, count)) < 0.5] = np.inf
        np.fill_diagonal(arcs, 0.0)
        # Arcs lead from the second axis to the first one.
        exact = arcs.copy()
        for through in range(count):
            exact = np.minimum(exact, exact[:, [through]] + exact[[through]])
        own, potentials, distances = int(rng.integers(count)), np.empty(count), np.empty(count)
        module._find_potentials(arcs, potentials)
        flags, places = np.zeros(16, np.uint8), np.empty(count + 1, np.int64)
        find = module._find_distances.py_func
        find(arcs, own, potentials, distances, np.empty((3, count)), flags, places, spread)
        np.testing.assert_allclose(distances, exact[own], atol=1e-12)
