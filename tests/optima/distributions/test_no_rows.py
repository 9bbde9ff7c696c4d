"""Batches without rows, as the last of many may be: nothing is drawn, nothing is said, and nothing breaks."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_structured.distributions import Argmin, RandOM, TruncatedNormal
from pyro_structured.inference import ConstrainedSlice, PlainMonteCarlo, ShellSMC, Splitting
from pyro_structured.optima.structures.joint_problem import JointProblem
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

EDGES = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])
PROBLEMS = {
    "set": TopK(5, 2),
    "sets": TopK(5, torch.zeros(0, dtype=torch.long)),
    "order": Ranking(4),
    "matching": Matching(3),
    "matchings": Matching(3, allowed=torch.ones(0, 3, 3).bool()),
    "row": Matching(1, 3),
    "two rows": Matching(2),
    "assignment": BipartiteAssignment(1, 2, num_rows=3, num_columns=3),
    "path": ShortestPath(EDGES, 4, 0, 3),
    "paths": ShortestPath(EDGES, 4, torch.zeros(0, dtype=torch.long), 3),
    "cut": MinimumCut(EDGES, 4),
    "tree": SpanningTree(EDGES, 4),
    "components": ConnectedComponents(EDGES, 4, 0.4),
    "own solver": LinearProblem(lambda costs: (costs < 0).double(), [3]),
    "several": JointProblem([TopK(5, torch.tensor([1, 2]))]),
}


def no_costs(problem):
    return torch.zeros(0, *problem.cost_shape, dtype=torch.double)


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name):
    problem = PROBLEMS[name]
    costs = no_costs(problem)
    value = problem.solve(costs)
    assert value.shape == (0, *problem.event_shape)
    for found in (problem.is_feasible(value), problem.contains(costs, value), problem.objective(costs, value)):
        assert found.shape == (0,)
    if problem.is_linear:
        assert [end.shape for end in problem.chord(costs, value, torch.ones_like(costs))] == [(0,), (0,)]
    if not isinstance(problem, LinearProblem):
        assert all(box.low.numel() == box.high.numel() == 0 for box in problem.boxes(costs, value))
        assert problem.feasible_point(value).shape == costs.shape
    if name not in ("own solver", "several", "components", "cut"):
        assert problem.second_best(costs, value).shape == value.shape


@pytest.mark.parametrize("name", PROBLEMS)
def test_distributions(name):
    problem = PROBLEMS[name]
    base = dist.LogNormal(no_costs(problem), 1.0).to_event(len(problem.cost_shape))
    given = Argmin(no_costs(problem), problem)
    for model in (RandOM(base, problem), given):
        value = model.sample((2,))
        assert value.shape == (2, 0, *problem.event_shape)
    assert given.log_prob(given.sample()).shape == given.entropy().shape == (0,)
    for estimator in (Splitting(20, 2), ShellSMC(20, 2), PlainMonteCarlo(20)):
        estimated = RandOM(base, problem, estimator=estimator).estimate_log_prob(value)
        assert [each.shape for each in estimated] == [(2, 0), (2, 0)]


@pytest.mark.parametrize("name", PROBLEMS)
def test_estimators(name):
    """When they are asked directly."""
    problem = PROBLEMS[name]
    base, value = (
        dist.Normal(no_costs(problem), 1.0).to_event(len(problem.cost_shape)),
        problem.solve(no_costs(problem)),
    )
    shells = [ShellSMC(20, 2)] if isinstance(problem, (Matching, Ranking)) else []
    for estimator in (Splitting(20, 2), PlainMonteCarlo(20), *shells):
        found = estimator.estimate(base, problem, value)
        assert found.log_prob.shape == found.standard_error.shape == (0,)
        assert found.costs.shape == (20, 0, *problem.cost_shape) and found.log_weights.shape == (20, 0)


@pytest.mark.parametrize("family", [dist.LogNormal, dist.Gamma])
@pytest.mark.parametrize("name", PROBLEMS)
def test_steps_of_constrained_slice(name, family):
    problem = PROBLEMS[name]

    def model():
        base = family(no_costs(problem) + 1, 1.0).to_event(len(problem.cost_shape))
        pyro.sample("y", RandOM(base, problem), obs=problem.solve(no_costs(problem)))

    kernel = ConstrainedSlice(model)
    kernel.setup(0)
    state = kernel.initial_params
    for _ in range(2):
        state = kernel.sample(state)
        assert [each.shape for each in state.values()] == [(0, *problem.cost_shape)]


@pytest.mark.parametrize("name", ["set", "order", "row", "two rows", "components"])
def test_exact_probabilities(name):
    problem, families = PROBLEMS[name], (dist.Normal, dist.Laplace, dist.Gumbel)
    for family in families[: 1 if name == "two rows" else None]:
        loc = no_costs(problem).requires_grad_()
        model = RandOM(family(loc, 1.0).to_event(len(problem.cost_shape)), problem)
        assert model.log_prob(model.enumerate_support()).shape == (len(problem.feasible_values()), 0)
        model.log_prob(model.sample()).sum().backward()
        assert loc.grad.shape == loc.shape


def test_truncated_normal():
    d = TruncatedNormal(torch.zeros(0, 3), 1.0, 0.0, 1.0)
    found = (d.mean, d.variance, d.mode, d.entropy(), d.sample(), d.log_prob(d.sample()), d.cdf(d.sample()))
    assert all(each.shape == (0, 3) for each in found)
