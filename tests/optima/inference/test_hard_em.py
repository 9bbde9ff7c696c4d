"""The likeliest costs with a margin, against another solver; and hard EM."""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.optim import Adam
from scipy.optimize import minimize

from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.inference import HardEM
from pyro_structured.optima.inference.hard_em import likeliest_costs
from pyro_structured.structures import ConnectedComponents, LinearProblem, Matching, Ranking, TopK

COVARIANCE = torch.tensor([[1.0, 0.6, 0.0], [0.6, 2.0, -0.5], [0.0, -0.5, 0.7]], dtype=torch.double)
PERMUTATIONS = torch.tensor(list(itertools.permutations(range(3))))
SQUARE = torch.tensor([[0.2, 0.7, 0.4], [0.9, 0.3, 0.1], [0.5, 0.6, 0.8]], dtype=torch.double)
CASES = {
    "matching": (dist.Normal(SQUARE, 0.3).to_event(2), Matching(3), PERMUTATIONS),
    "rewards": (dist.Normal(SQUARE, SQUARE).to_event(2), Matching(3, maximize=True), PERMUTATIONS),
    "bounded": (TruncatedNormal(SQUARE, 0.3, 0.1, 0.8).to_event(2), Matching(3), PERMUTATIONS),
    "correlated": (dist.MultivariateNormal(SQUARE[0], COVARIANCE), TopK(3, 1), torch.eye(3)),
    "ranking": (dist.Normal(SQUARE[1], 0.5).to_event(1), Ranking(3), PERMUTATIONS),
}


def by_all_constraints(base, problem, values, value, margin):
    """The same program with all constraints written out, by sequential quadratic programming."""
    sign = -1 if problem.maximize else 1
    differences = sign * (problem.incidence(value) - problem.incidence(values)).flatten(1)
    differences = differences[(values != value).flatten(1).any(1)].numpy()

    def loss(x):
        point = torch.from_numpy(x.copy()).requires_grad_()
        total = -base.log_prob(point[:-1].reshape(problem.cost_shape)) - margin * point[-1]
        return float(total.detach()), torch.autograd.grad(total, point)[0].numpy()

    matrix = np.pad(-differences, ((0, 0), (0, 1)), constant_values=-1.0)
    constraint = {"type": "ineq", "fun": lambda x: matrix @ x, "jac": lambda x: matrix}
    low, high = (bound.expand(problem.cost_shape).flatten().tolist() for bound in support_bounds(base))
    limits = [*zip(low, high, strict=True), (0, None)]
    start = np.append(np.asarray(base.mean.flatten()), 0.0)
    options = {"maxiter": 1000, "ftol": 1e-12}
    return minimize(loss, start, jac=True, bounds=limits, constraints=[constraint], options=options).x[:-1]


@pytest.mark.parametrize("margin", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("name", CASES)
def test_likeliest_costs(name, margin):
    base, problem, values = CASES[name]
    shape = [len(values)]
    found = likeliest_costs(base.expand(shape), problem.expand(shape), values, margin)
    for value, costs in zip(values, found, strict=True):
        expected = by_all_constraints(base, problem, values, value, margin)
        np.testing.assert_allclose(costs.flatten().numpy(), expected, atol=1e-4)
    assert margin == 0 or problem.contains(found, values).all()


@pytest.mark.parametrize("size", [1e-6, 1e4, 1e8, 1e12])
def test_likeliest_costs_grow_with_locations(size):
    """Inverse sets are cones: without a margin, the costs nearest to far locations are those nearest to near ones."""
    values = PERMUTATIONS
    for factor in (1.0, size):
        base = dist.Normal(factor * SQUARE, 1.0).to_event(2).expand([len(values)])
        found = likeliest_costs(base, Matching(3).expand([len(values)]), values, 0.0)
        if factor == 1.0:
            near = found
    torch.testing.assert_close(found / size, near, rtol=0.0, atol=1e-6)


def test_bounds_hold_exactly():
    """Where the density of the M-step is zero outside, also for margins that push costs to the bounds."""
    base = TruncatedNormal(SQUARE, 0.3, 0.1, 0.8).to_event(2).expand([6])
    found = likeliest_costs(base, Matching(3).expand([6]), PERMUTATIONS, 1e6)
    assert base.log_prob(found).isfinite().all()


def test_learning():
    """Without a margin the likeliest costs are on the boundary; the M-step is that of EM."""

    def model(y):
        quality = pyro.param("quality", torch.zeros(3))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", RandOM(dist.Normal(quality, 1.0).to_event(1), TopK(3, 1, maximize=True)), obs=y)

    y = torch.eye(3)[[0, 0, 0, 0, 1, 1, 2]]
    pyro.clear_param_store()
    learner = HardEM(model, lambda y: None, None, margin=1.0)
    learner.step(y)
    rows = likeliest_costs(
        dist.Normal(torch.zeros(7, 3), 1.0).to_event(1), TopK(3, 1, maximize=True).expand([7]), y, 1.0
    )
    torch.testing.assert_close(pyro.param("quality").detach(), rows.mean(0).float(), atol=1e-4, rtol=0)
    wrong = y.clone()
    wrong[3] = 0.0
    with pytest.raises(ValueError, match="y: expected values .*, got .* in 1 of 7 rows, .* number 3"):
        learner.step(wrong)


@pytest.mark.parametrize("optim", [None, Adam({"lr": 0.05})])
def test_margins_that_push_costs_away(optim):
    """Without bounds: at once, or when a scale that is learned has grown; with bounds they are fine."""
    y = torch.eye(3)[[0, 0, 0, 0, 1, 1, 2]]

    def model(base):
        with pyro.plate("rows", len(y)):
            pyro.sample("y", RandOM(base().to_event(1), TopK(3, 1, maximize=True)), obs=y)

    def quality():
        return pyro.param("quality", torch.zeros(3))

    def learned_scale():
        return dist.Normal(quality(), pyro.param("scale", torch.tensor(30.0), constraint=dist.constraints.positive))

    pyro.clear_param_store()
    message = "margin: expected one that pushes costs without bounds by at most 1000 .*, got .*, which pushes by"
    for base in (
        lambda: dist.Normal(quality(), 1.0),
        lambda: TruncatedNormal(quality(), 1.0, -1.0, torch.inf),
        lambda: TruncatedNormal(quality(), 1.0, torch.tensor([-1.0, -torch.inf, 0.0]), 3.0),
    ):
        with pytest.raises(ValueError, match=message):
            HardEM(model, lambda base: None, optim, margin=1e5).step(base)
    learner = HardEM(model, lambda base: None, None, margin=10.0)
    with pytest.raises(ValueError, match=message):
        learner.run(5, learned_scale)
    assert pyro.param("scale").isfinite().all()
    pyro.clear_param_store()
    HardEM(model, lambda base: None, optim, margin=1e5).run(5, lambda: TruncatedNormal(quality(), 1.0, -1.0, 3.0))
    assert pyro.param("quality").abs().max() < 1e3


def test_refusals():
    def model(base, problem, y):
        with pyro.plate("rows", 1):
            pyro.sample("y", RandOM(base, problem), obs=y)

    y = torch.eye(3)[:1]
    loc, graph = torch.zeros(3), torch.tensor([[0, 1], [1, 2], [2, 0]])
    first = LinearProblem(lambda costs: torch.eye(3)[costs.argmin(-1)], (3,))
    for base, problem, value, message in (
        (dist.Exponential(torch.ones(3)), TopK(3, 1), y, "expected normal or truncated normal costs, got Exponential"),
        (dist.Normal(loc, 1.0), first, y, "LinearProblem has only a solver for the best values"),
        (dist.Normal(loc, 1.0), ConnectedComponents(graph, 3, 0.0), torch.zeros(1, 3).long(), "no costs of parts"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            HardEM(model, lambda *args: None, Adam({"lr": 0.1})).step(base.to_event(1), problem, value)
    for margin in (-1.0, float("inf"), "large"):
        with pytest.raises(ValueError, match="margin: expected a finite number of at least 0"):
            HardEM(model, lambda *args: None, None, margin=margin)
