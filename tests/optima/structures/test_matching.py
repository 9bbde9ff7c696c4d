"""Costs of pairs that may not be matched, convexity, and arguments of matchings."""

import pytest
import torch

from pyro_structured.optima.structures.bipartite_assignment import BipartiteAssignment
from pyro_structured.optima.structures.matching import Matching

ALLOWED = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=torch.bool)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("forbidden", [1e12, torch.inf])
def test_costs_of_forbidden_pairs_do_not_matter(forbidden, maximize):
    problem = Matching(3, allowed=ALLOWED, maximize=maximize)
    costs, direction = torch.randn(2, 20, 3, 3, dtype=torch.double)
    costs[0] = torch.tensor([[0.0, 1.0, 9.0], [9.0, 0.0, 1.0], [1.0, 9.0, 0.0]])
    others = costs.masked_fill(~ALLOWED, forbidden)
    value = problem.solve(costs)
    assert torch.equal(problem.solve(others), value)
    torch.testing.assert_close(problem.objective(others, value), problem.objective(costs, value))
    both = torch.tensor([[[0, 1, 2]], [[1, 2, 0]]])
    contained = problem.contains(others, both)
    assert torch.equal(contained, problem.contains(costs, both)) and (contained.sum(0) == 1).all()
    for found, expected in zip(
        problem.chord(others, value, direction), problem.chord(costs, value, direction), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("forbidden", [torch.nan, torch.inf, -1e300])
@pytest.mark.parametrize("make", [Matching, lambda *_, **given: BipartiteAssignment(*torch.ones(2, 3).long(), **given)])
def test_directions_of_forbidden_pairs_do_not_matter(make, forbidden):
    torch.manual_seed(0)
    problem = make(3, allowed=ALLOWED | torch.eye(3, dtype=torch.bool))
    costs, direction = torch.randn(2, 20, 3, 3, dtype=torch.double)
    value, others = problem.solve(costs), direction.masked_fill(~problem.allowed, forbidden)
    expected = problem.chord(costs, value, direction.masked_fill(~problem.allowed, 0.0))
    for found in problem.chord(costs, value, others), (expected[0], problem.reach(costs, value, others)):
        torch.testing.assert_close(found, expected)


def test_errors():
    with pytest.raises(ValueError, match="num_rows: expected an integer of at least 1, got 0"):
        Matching(0)
    with pytest.raises(ValueError, match="num_columns: expected at least as many as rows, 3, got 2"):
        Matching(3, 2)
    sparse = torch.ones(2, 3).bool().to_sparse()
    for make in (lambda: Matching(2, 3, allowed=sparse), lambda: BipartiteAssignment(1, 1, allowed=sparse)):
        with pytest.raises(ValueError, match="allowed: expected a dense tensor of real numbers, got torch.bool"):
            make()
    with pytest.raises(ValueError, match=r"allowed: expected booleans of shape \(..., 2, 3\), got torch.float32"):
        Matching(2, 3, allowed=torch.ones(2, 3))
    with pytest.raises(ValueError, match="allowed: expected pairs that leave every row a column of its own, got none"):
        Matching(2, allowed=torch.tensor([[True, False], [True, False]]))
