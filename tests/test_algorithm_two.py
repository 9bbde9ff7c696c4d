"""The benchmark's version of the paper's sampler: corrected, it agrees with the package; as printed, it does not."""

import importlib

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import ks_2samp

from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import sweep
from pyro_structured.optima.structures.matching import Matching

pytestmark = pytest.mark.statistical

SIZE, SCALE, STEP = 4, 0.5, 0.5


@pytest.fixture(scope="module")
def peer():
    return importlib.import_module("benchmarks.optima.algorithm_two")


@pytest.fixture
def instance():
    rng = np.random.default_rng(3)
    loc = rng.random((SIZE, SIZE))
    costs = loc + SCALE * rng.standard_normal(loc.shape)
    return loc, costs, linear_sum_assignment(costs)[1]


@pytest.fixture
def exact(instance):
    """Nearly independent states of the package's sampler: every fifth."""
    loc, costs, columns = instance
    conditionals = cost_conditionals(dist.Normal(torch.from_numpy(loc).expand(500, SIZE, SIZE), SCALE).to_event(2), 2)
    states, kept = torch.from_numpy(costs).expand(500, SIZE, SIZE), []
    for i in range(110):
        states, _ = sweep(states, torch.from_numpy(columns), Matching(SIZE), conditionals, 1)
        if i >= 10 and not i % 5:
            kept.append(states)
    return torch.cat(kept).numpy()


def is_optimal(states, columns):
    return Matching(SIZE).contains(torch.from_numpy(states), torch.from_numpy(columns)).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dynamic", "scipy"])
def test_corrected_has_the_same_distribution(peer, instance, exact, name):
    loc, costs, columns = instance
    kept = np.empty((20_000, SIZE, SIZE))
    run = getattr(peer, f"run_{name}")
    run(costs.copy(), columns, loc, SCALE, STEP, kept, peer.make_solver(SIZE), np.random.default_rng(0))
    assert is_optimal(kept, columns).all()
    # States that are far apart are nearly independent.
    for row, column in np.ndindex(SIZE, SIZE):
        assert ks_2samp(kept[::20, row, column], exact[:, row, column]).pvalue > 2e-9


def number_outside(peer, instance, exact, corrected):
    loc, _, columns = instance
    states, rng, solver = exact.copy(), np.random.default_rng(0), peer.make_solver(SIZE)
    for i, state in enumerate(states):
        peer.update_row_scipy(state, columns, i % SIZE, loc, SCALE, STEP, solver, rng, corrected)
    return (~is_optimal(states, columns)).sum()


def test_as_printed_leaves_the_inverse_set(peer, instance, exact):
    assert number_outside(peer, instance, exact, corrected=True) == 0
    assert number_outside(peer, instance, exact, corrected=False) > 20
