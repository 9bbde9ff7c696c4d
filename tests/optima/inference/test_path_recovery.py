"""Parameters of simulated paths in a grid, found again by three learners."""

from typing import NamedTuple

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import ClippedAdam

from pyro_structured.distributions import RandOM
from pyro_structured.inference import MCEM, Splitting
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_sweep import interior_point, sweep
from pyro_structured.structures import ShortestPath
from pyro_structured.testing.standard_errors import most_standard_errors

pytestmark = pytest.mark.statistical

SIDE, TRUTH = 5, torch.tensor([1.0, -0.5], dtype=torch.double)


class Data(NamedTuple):
    features: torch.Tensor
    problem: ShortestPath
    paths: torch.Tensor

    def costs(self, weights):
        return dist.LogNormal(self.features @ weights, 1.0).to_event(1)


def simulate(num_rows):
    """From one of the four nodes in a corner to one of those in the opposite corner, along 40 edges."""
    nodes = torch.arange(SIDE**2).view(SIDE, SIDE)
    steps = (nodes[:-1], nodes[1:]), (nodes[:, :-1], nodes[:, 1:])
    edges = torch.cat([torch.stack([tails.ravel(), heads.ravel()], 1) for tails, heads in steps])
    ends = (corner.ravel()[torch.randint(4, (num_rows,))] for corner in (nodes[:2, :2], nodes[3:, 3:]))
    features, problem = torch.randn(num_rows, len(edges), 2).double(), ShortestPath(edges, SIDE**2, *ends)
    return Data(features, problem, RandOM(dist.LogNormal(features @ TRUTH, 1.0).to_event(1), problem).sample())


def model(data, estimator=None):
    weights = pyro.param("weights", torch.zeros_like(TRUTH))
    with pyro.plate("rows", len(data.paths)):
        pyro.sample("path", RandOM(data.costs(weights), data.problem, estimator=estimator), obs=data.paths)


def no_guide(*args):
    pass


def standard_errors(data, weights, num_sweeps=150):
    """By outer products of scores, which are means over two chains for each row: the product has no bias."""
    base = data.costs(weights).expand((2, len(data.paths)))
    costs, _ = interior_point(data.problem, data.paths, base.sample(), torch.zeros(()), torch.tensor(torch.inf))
    conditionals, scores = cost_conditionals(base, 1), torch.zeros(2, len(data.paths), 2).double()
    for _ in range(num_sweeps):
        costs, _ = sweep(costs, data.paths, data.problem, conditionals, 1)
        scores += ((costs.log() - data.features @ weights).unsqueeze(-1) * data.features).sum(-2) / num_sweeps
    information = scores[0].T @ scores[1]
    return ((information + information.T) / 2).inverse().diagonal().sqrt()


def assert_recovered(data, weights):
    errors = standard_errors(data, weights)
    assert (errors < 0.3).all()
    assert ((weights - TRUTH).abs() < most_standard_errors(len(data.paths)) * errors).all()


def shrinking(lr, num_steps):
    """Steps that end ten times smaller than they started."""
    return ClippedAdam({"lr": lr, "lrd": 0.1 ** (1 / num_steps)})


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "optim, num_steps", [(None, 120), (shrinking(0.1, 200), 200)], ids=["to convergence", "Fisher gradient"]
)
def test_monte_carlo_em(optim, num_steps):
    pyro.set_rng_seed(0)
    data, found = simulate(60), []
    learner = MCEM(model, no_guide, optim)
    for step in range(num_steps):
        learner.step(data)
        found += [pyro.param("weights").detach().clone()] if step >= num_steps * 2 // 3 else []
    assert_recovered(data, torch.stack(found).mean(0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyro_structured.distributions.EstimateWarning")
def test_svi():
    pyro.set_rng_seed(0)
    data, num_steps = simulate(40), 14
    svi = SVI(model, no_guide, shrinking(0.25, num_steps), Trace_ELBO())
    for _ in range(num_steps):
        svi.step(data, Splitting(20, num_sweeps=1))
    assert_recovered(data, pyro.param("weights").detach())
