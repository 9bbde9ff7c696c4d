"""Chords and inverse sets of problems that others solve."""

import pytest
import torch
from torch.distributions import constraints

from pyro_structured.optima.structures.injection import Injection
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.structures import LinearProblem
from pyro_structured.testing import check_problem


def cheapest_pair(costs):
    """Both of the two adjacent items with the smallest sum."""
    first = (costs[:, 1:] + costs[:, :-1]).argmin(-1, keepdim=True)
    return torch.zeros_like(costs).scatter(-1, torch.cat([first, first + 1], -1), 1.0)


class AdjacentPairs(constraints.Constraint):
    """Vectors with ones at two adjacent places."""

    is_discrete, event_dim = True, 1

    def __eq__(self, other):
        return isinstance(other, AdjacentPairs)

    def __hash__(self):
        return 0

    def check(self, value):
        return is_adjacent_pair(value)


def is_adjacent_pair(value):
    ones, both = value == 1, (value[..., 1:] == 1) & (value[..., :-1] == 1)
    return (ones | (value == 0)).all(-1) & (ones.sum(-1) == 2) & both.any(-1)


def dearest_category(costs):
    return costs.argmax(-1)


def one_hot(value):
    return torch.nn.functional.one_hot(value.long().clamp(0, 4), 5)


def cheapest_level(costs):
    """An integer from 0 to 2 for each of two terms, whose squares cost something else."""
    return costs.new_tensor([0.0, 1.0, 2.0])[
        (costs[:, 0::2, None] * torch.arange(3) + costs[:, 1::2, None] * torch.arange(3) ** 2).argmin(-1)
    ]


def powers(value):
    return torch.stack([value, value**2], -1).flatten(-2)


def wrong_shape(costs):
    return costs[:, 1:]


def test_contract_of_subsets():
    pairs = torch.eye(5)[1:] + torch.eye(5)[:-1]
    assert LinearProblem(cheapest_pair, [5]).support.check(pairs).all()
    problem = LinearProblem(cheapest_pair, [5], support=AdjacentPairs())
    check_problem(problem, pairs)


def test_bounded_costs():
    pairs = torch.eye(4)[1:] + torch.eye(4)[:-1]
    problem = LinearProblem(
        cheapest_pair, (4,), support=AdjacentPairs(), cost_low=torch.tensor([0.0, -torch.inf, -1.0, 0.0])
    )
    check_problem(problem, pairs)
    assert not problem.cost_support.check(torch.tensor([0.0, 0.0, -2.0, 0.0]))


@pytest.fixture
def categories():
    return LinearProblem(dearest_category, [5], [], one_hot, constraints.integer_interval(0, 4), maximize=True)


def test_categories(categories):
    costs = torch.randn(3, 7, 5, dtype=torch.double)
    value = categories.solve(costs)
    assert torch.equal(value, costs.argmax(-1)) and value.dtype == torch.long
    every = torch.arange(5).view(5, 1, 1)
    assert torch.equal(categories.contains(costs, every), every == value)
    direction = torch.randn(3, 7, 5, dtype=torch.double)
    low, high = categories.chord(costs, value, direction)
    rates = direction - direction.gather(-1, value.unsqueeze(-1))
    room = costs.gather(-1, value.unsqueeze(-1)) - costs
    torch.testing.assert_close(high, (room / rates).masked_fill(rates <= 0, torch.inf).amin(-1))
    torch.testing.assert_close(low, (room / rates).masked_fill(rates >= 0, -torch.inf).amax(-1))
    # Infeasible categories are told by the support.
    assert not categories.is_feasible(torch.tensor([5, -1])).any()


def test_chords_are_those_of_the_same_problem():
    matching = Matching(4)
    problem = LinearProblem(matching.solve, [4, 4], [4], matching.incidence, Injection(4, 4))
    costs, direction = torch.randn(2, 100, 4, 4, dtype=torch.double)
    value = problem.solve(costs)
    expected = matching.chord(costs, value, direction)
    torch.testing.assert_close(problem.chord(costs, value, direction), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(problem.feasible_point(value), matching.feasible_point(value))


def test_coefficients_need_not_be_binary():
    problem = LinearProblem(
        cheapest_level, [4], [2], powers, constraints.independent(constraints.integer_interval(0, 2), 1)
    )
    costs, direction = torch.randn(2, 500, 4, dtype=torch.double)
    value = problem.solve(costs)
    assert problem.contains(costs, value).all() and problem.is_feasible(value).all()
    values = torch.cartesian_prod(torch.arange(3), torch.arange(3)).double()
    loss, slope = ((each.unsqueeze(1) * powers(values)).sum(-1) for each in (costs, direction))
    ahead = loss - loss.amin(-1, keepdim=True)
    falling = (direction * powers(value)).sum(-1, keepdim=True) - slope
    expected = (ahead / falling).masked_fill(falling <= 1e-12, torch.inf).amin(-1)
    torch.testing.assert_close(problem.chord(costs, value, direction)[1], expected)
    with pytest.raises(NotImplementedError, match="feasible_point: only known where coefficients are 0 or 1"):
        problem.feasible_point(value)


def test_no_boxes(categories):
    with pytest.raises(NotImplementedError, match="boxes: LinearProblem has none in closed form; use chord"):
        categories.boxes(torch.zeros(5), torch.tensor(0))


def test_feasible_set_that_is_smaller_than_the_support():
    pairs = torch.eye(5)[1:] + torch.eye(5)[:-1]
    check_problem(LinearProblem(cheapest_pair, [5], is_feasible_fn=is_adjacent_pair), pairs)
    for function, got in ((lambda value: True, "True"), (lambda value: value == 1, r"torch.bool of shape \(5,\)")):
        with pytest.raises(ValueError, match=rf"is_feasible_fn: expected booleans of shape \(\), got {got}"):
            LinearProblem(cheapest_pair, [5], is_feasible_fn=function).is_feasible(pairs[0])


def test_errors():
    with pytest.raises(ValueError, match="solve_fn: expected a function, got 3"):
        LinearProblem(3, [2])
    with pytest.raises(ValueError, match="incidence_fn: expected a function, got 3"):
        LinearProblem(cheapest_pair, [2], incidence_fn=3)
    with pytest.raises(ValueError, match="cost_shape: expected a sequence of integers, got 2"):
        LinearProblem(cheapest_pair, 2)
    with pytest.raises(ValueError, match="cost_low: expected numbers of at most 0"):
        LinearProblem(cheapest_pair, [3], cost_low=0.5)
    with pytest.raises(ValueError, match=r"solve_fn: expected values of shape \(1, 3\), got \(1, 2\)"):
        LinearProblem(wrong_shape, [3]).solve(torch.zeros(3))
    with pytest.raises(ValueError, match=r"solve_fn: expected values of shape \(2, 3\), got list"):
        LinearProblem(torch.Tensor.tolist, [3]).solve(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"incidence_fn: expected coefficients of shape \(2, 3\), got \(2, 2\)"):
        LinearProblem(cheapest_pair, [3], incidence_fn=wrong_shape).objective(torch.zeros(3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"event_shape: expected that of the costs, \(3,\), unless .*, got \(2,\)"):
        LinearProblem(cheapest_pair, [3], [2])
    with pytest.raises(ValueError, match="support: expected a constraint with 1 event axes, got 0"):
        LinearProblem(cheapest_pair, [3], support=constraints.boolean)
