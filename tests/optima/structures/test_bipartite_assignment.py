"""Assignments, their restrictions, and arguments."""

import itertools

import pytest
import torch

from pyro_structured.optima.solvers.transport import has_transport
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.structures import BipartiteAssignment
from pyro_structured.testing import check_problem

ALLOWED = torch.tensor(
    [[[1, 1, 0, 1], [1, 1, 1, 1]], [[1, 1, 1, 1], [1, 1, 1, 1]], [[1, 0, 1, 1], [0, 1, 1, 1]]], dtype=torch.bool
)


def assignments(row_counts, column_capacities, allowed):
    values = itertools.product([0, 1], repeat=allowed.numel())
    values = torch.tensor(list(values)).view(-1, *allowed.shape)
    feasible = (values.sum(-1) == row_counts).all(-1) & (values.sum(-2) <= column_capacities).all(-1)
    return values[feasible & ~(values.bool() & ~allowed).flatten(1).any(-1)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"row_counts": 1, "column_capacities": 1, "num_rows": 1, "num_columns": 1},
        {"row_counts": 2, "column_capacities": 1, "num_rows": 1, "num_columns": 4, "maximize": True},
        {"row_counts": 1, "column_capacities": 1, "num_rows": 3, "num_columns": 3},
        {"row_counts": torch.tensor([2, 1, 1]), "column_capacities": torch.tensor([3, 1, 0, 2])},
        {"row_counts": torch.tensor([3, 1]), "column_capacities": torch.tensor([1, 1, 1, 2]), "maximize": True},
        {"row_counts": 2, "column_capacities": 2, "allowed": ALLOWED, "maximize": True},
        {"row_counts": torch.tensor([[1, 2], [2, 2]]), "column_capacities": torch.tensor([[[1, 2, 1]], [[2, 2, 1]]])},
    ],
)
def test_contract(arguments):
    problem = BipartiteAssignment(**arguments)
    rows = problem.flatten(problem.batch_shape)
    parts = zip(rows.row_counts, rows.column_capacities, rows.allowed, strict=True)
    listed = [assignments(*each) for each in parts]
    check_problem(problem, listed)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("shift, scale", [(0.0, 1.0), (-7.0, 1.0), (0.0, 1e200)])
def test_matchings_are_the_case_of_ones(shift, scale, maximize):
    # Nearly tied, so that coarse whole numbers would not do.
    costs = torch.randint(4, (20, 12, 15)) + 1e-8 * torch.randn(20, 12, 15, dtype=torch.double)
    costs = costs * scale + shift
    matching = Matching(12, 15, maximize=maximize)
    value = matching.incidence(matching.solve(costs))
    problem = BipartiteAssignment(1, 1, num_rows=12, num_columns=15, maximize=maximize)
    assert torch.equal(problem.solve(costs), value) and problem.contains(costs, value).all()
    for box, other in zip(problem.boxes(costs, value), matching.boxes(costs, matching.solve(costs)), strict=True):
        torch.testing.assert_close((box.low, box.high), (other.low, other.high), rtol=0, atol=0)
        assert torch.equal(box.index, other.index)


@pytest.mark.parametrize("forbidden", [0.0, 0.2])
@pytest.mark.parametrize("digits", [None, 0])
def test_compiled_assignments_are_as_cheap(forbidden, digits, hide_numba):
    """Where there are ties, they need not be the same."""
    costs = torch.randn(100, 5, 7, dtype=torch.double) * 3 - 1
    costs = costs if digits is None else costs.round(decimals=digits)
    costs = costs.masked_fill(torch.rand(100, 5, 7) < forbidden, torch.inf)
    counts, capacities = torch.randint(1, 3, (100, 5)), torch.randint(0, 3, (100, 7)) + 1
    kept = has_transport(costs.isfinite().numpy(), counts.numpy(), capacities.numpy())
    costs, problem = costs[kept], BipartiteAssignment(counts[kept], capacities[kept])
    found = problem.solve(costs)
    assert problem.is_feasible(found).all() and len(costs) > 50
    hide_numba()
    expected = problem.solve(costs)
    totals = [costs.where(value == 1, 0.0).sum((-2, -1)) for value in (found, expected)]
    torch.testing.assert_close(*totals, rtol=0, atol=1e-9)
    assert digits is not None or torch.equal(found, expected)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("size", [1e9, 1e18, 1e300])
def test_costs_that_no_optimum_incurs(size, compiled, hide_numba):
    """However large they are, assignments are those where they are forbidden."""
    costs, dear = torch.rand(50, 5, 8, dtype=torch.double), torch.rand(50, 5, 8) < 0.4
    counts, capacities = torch.full((5,), 2), torch.full((8,), 3)
    allowed = (~dear).numpy()
    kept = has_transport(allowed, counts.expand(50, 5).numpy(), capacities.expand(50, 8).numpy())
    costs, dear, problem = costs[kept], dear[kept], BipartiteAssignment(counts, capacities)
    if not compiled:
        hide_numba()
    expected = problem.solve(costs.masked_fill(dear, torch.inf))
    assert len(costs) > 20 and torch.equal(problem.solve(costs.masked_fill(dear, size)), expected)


def test_each_row_of_a_batch_gets_as_many_columns_as_it_should():
    counts, capacities = torch.tensor([[1, 3], [2, 2]]), torch.tensor([2, 1, 1, 2])
    problem = BipartiteAssignment(counts, capacities)
    value = problem.solve(torch.randn(100, 2, 2, 4))
    assert torch.equal(value.sum(-1).long(), counts.expand(100, 2, 2)) and (value.sum(-2) <= capacities).all()
    assert problem.num_rows == 2 and problem.num_columns == 4


@pytest.mark.parametrize("forbidden", [1e12, torch.inf, torch.nan])
def test_costs_of_forbidden_pairs_do_not_matter(forbidden):
    problem = BipartiteAssignment(2, 2, allowed=ALLOWED)
    costs = torch.randn(3, 2, 4, dtype=torch.double)
    others = costs.masked_fill(~ALLOWED, forbidden)
    value = problem.solve(costs)
    assert torch.equal(problem.solve(others), value) and problem.contains(others, value).all()


def test_errors():
    with pytest.raises(
        ValueError, match=r"column_capacities: expected enough places for row_counts \[2, 2\], got \[1, 1, 1\]"
    ):
        BipartiteAssignment(2, 1, num_rows=2, num_columns=3)
    with pytest.raises(
        ValueError, match=r"column_capacities: expected enough places for row_counts \[3, 3\], got \[3, 3, 3, 3\]"
    ):
        BipartiteAssignment(3, 3, allowed=ALLOWED & torch.tensor([True, True, True, False]))
    with pytest.raises(ValueError, match=r"column_capacities: expected a batch shape that .* \(2,\), .* got \(3,\)"):
        BipartiteAssignment(torch.ones(2, 2).long(), torch.ones(3, 2).long())
    with pytest.raises(ValueError, match="row_counts: expected integers of at least 1, got 'a'"):
        BipartiteAssignment("a", 1, num_rows=1, num_columns=1)
    with pytest.raises(ValueError, match="row_counts: expected integers of at least 1, got 0"):
        BipartiteAssignment(0, 1, num_rows=1, num_columns=1)
    with pytest.raises(ValueError, match="row_counts: expected integers of at least 1, got 1.5"):
        BipartiteAssignment(1.5, 1, num_rows=1, num_columns=1)
    with pytest.raises(ValueError, match="column_capacities: expected integers of at least 0, got -1"):
        BipartiteAssignment(1, -1, num_rows=1, num_columns=1)
    with pytest.raises(ValueError, match="num_rows: expected one number, of the other arguments or this, got None"):
        BipartiteAssignment(1, 1, num_columns=1)
    with pytest.raises(ValueError, match=r"num_columns: expected one number, .*, got \[3, 4\]"):
        BipartiteAssignment(1, 1, allowed=ALLOWED, num_columns=3)
    with pytest.raises(ValueError, match="num_rows: expected an integer of at least 1, got 0"):
        BipartiteAssignment(1, 1, num_rows=0, num_columns=3)
    with pytest.raises(
        ValueError, match=r"allowed: expected booleans of shape \(..., rows, columns\), got torch.int64"
    ):
        BipartiteAssignment(1, 1, allowed=ALLOWED.long())
    problem = BipartiteAssignment(1, 1, num_rows=2, num_columns=2)
    with pytest.raises(
        ValueError, match="costs: expected finite costs, or infinite ones to forbid pairs, got infinite"
    ):
        problem.solve(torch.tensor([[0.0, 1.0], [-torch.inf, 1.0]]))
