"""Optima of several problems for the same costs."""

import pytest
import torch

from pyro_structured.optima.structures.joint_problem import JointProblem
from pyro_structured.structures import LinearProblem, Matching, Ranking, ShortestPath, TopK
from pyro_structured.testing import check_problem
from pyro_structured.testing.check_inverse_sets import check_boxes

ROADS = torch.tensor([[0, 1], [1, 3], [0, 2], [2, 3], [1, 2]])
TRIPS = ShortestPath(ROADS, 4, torch.tensor([0, 0, 1]), torch.tensor([3, 2, 3]))
ALLOWED = torch.tensor([[[1, 1], [1, 1]], [[1, 0], [1, 1]]]).bool()


def cheapest(costs):
    return torch.nn.functional.one_hot(costs.argmin(-1), costs.shape[-1]).double()


def single(problem):
    return problem.expand((1,))


PROBLEMS = {
    "trips": [TRIPS],
    "sets of different sizes": [TopK(4, torch.tensor([1, 2]))],
    "a set and a ranking of rewards": [single(TopK(3, 1)), single(Ranking(3, maximize=True))],
    "a path and the cheapest road": [TRIPS[:1], single(LinearProblem(cheapest, [5]))],
    "matchings": [Matching(2, allowed=ALLOWED)],
}


def random_costs(problem, *shape):
    costs = torch.randn(*shape, *problem.cost_shape, dtype=torch.double)
    return torch.where(problem.cost_low > -torch.inf, costs.abs(), costs)


def optimal_values(problem):
    """All values that costs lead to, by many draws."""
    return problem.solve(random_costs(problem, 5_000)).unique(dim=0)


@pytest.mark.slow
def test_contract():
    """Where some costs lead to every combination of values."""
    problem = JointProblem(PROBLEMS["matchings"])
    check_problem(problem, optimal_values(problem))


@pytest.mark.slow
def test_contract_of_batches():
    targets = ShortestPath(ROADS, 4, torch.tensor([[0], [1]]), torch.tensor([[2, 3], [3, 3]]))
    problem = JointProblem([targets])
    assert problem.batch_shape == (2,)
    check_problem(problem, [optimal_values(problem[row]) for row in range(2)])


@pytest.mark.parametrize("case", PROBLEMS)
def test_inverse_sets_are_intersections(case):
    problem, costs = JointProblem(PROBLEMS[case]), random_costs(JointProblem(PROBLEMS[case]), 100)
    expected = torch.ones(100, 100, dtype=torch.bool)
    for part in PROBLEMS[case]:
        for row in range(part.batch_shape[0]):
            expected &= part[row].contains(costs.unsqueeze(1), part[row].solve(costs))
    assert torch.equal(problem.contains(costs.unsqueeze(1), problem.solve(costs)), expected) and not expected.all()
    check_boxes(problem)


@pytest.mark.parametrize("case", PROBLEMS)
def test_feasible_points(case):
    """Between bounds that leave costs, and those that leave none; the point is away from the bounds."""
    problem = JointProblem(PROBLEMS[case])
    values = optimal_values(problem)
    point = problem.feasible_point(values, 0.0, 2.0)
    assert torch.equal(problem.contains(point.unsqueeze(1), values), torch.eye(len(values)).bool())
    assert (point > 0.1).all() and (point < 1.9).all()
    nearby = point + 1e-2 * torch.rand_like(point).sub(0.5)
    assert problem.contains(nearby, values).all()
    costs = random_costs(problem, 4)
    low, high = costs - 1e-6, costs + 1e-6
    low = low.maximum(problem.cost_low)
    values = problem.solve(costs)
    inside = problem.contains(problem.feasible_point(values.unsqueeze(1), low, high), values.unsqueeze(1))
    assert torch.equal(inside, problem.contains(costs, values.unsqueeze(1)))


def test_values_that_exclude_each_other():
    """The cheapest item is one of the cheapest two: only ties allow anything else."""
    problem = JointProblem([TopK(3, torch.tensor([1, 2]))])
    value = torch.tensor([1.0, 0, 0, 0, 1, 1])
    assert problem.is_feasible(value) and not problem.contains(problem.feasible_point(value), value)
    assert not problem.is_feasible(value.roll(1))
