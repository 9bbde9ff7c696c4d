"""Compiled ends of the lines on which matchings stay optimal, against calls of a solver."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.optima.ops.ray_shooting import chord, reach
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.optima.structures.problem import Problem

SHAPES = st.tuples(st.integers(1, 6), st.integers(0, 2)).map(lambda shape: (shape[0], shape[0] + shape[1]))


class Slow(Matching):
    """Matchings whose chords are not compiled."""

    def _chord(self, costs, incidence, direction):
        return chord(self, costs, incidence, direction)

    def _reach(self, costs, incidence, direction):
        return reach(self, costs, incidence, direction)


@settings(max_examples=150, deadline=None)
@given(SHAPES, st.booleans(), st.sampled_from(["normal", "tied", "constant", "ray", "far"]), st.integers(0, 2**31))
def test_chords_equal_those_of_a_solver(shape, maximize, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    costs, direction, other = torch.randn(3, 4, *shape, generator=generator, dtype=torch.double)
    allowed = torch.rand(4, *shape, generator=generator) < 0.8
    allowed |= torch.eye(*shape, dtype=torch.bool)
    if kind == "tied":
        costs, direction = costs.round(), direction.round()
    elif kind == "constant":
        # No end on either side.
        direction = direction[..., :1] + torch.zeros_like(direction) if shape[0] == shape[1] else direction * 0.0
    elif kind == "ray":
        direction = costs - other
    problem, slow = (make(*shape, allowed=allowed, maximize=maximize) for make in (Matching, Slow))
    value = problem.solve(costs)
    if kind == "far":
        # Where differences of costs are small beside these.
        direction = problem.incidence(value) * (0.5 + direction.abs()) * (-1 if maximize else 1)
        costs = costs - 137 * direction
    costs.requires_grad_()
    found, expected = (each.chord(costs, value, direction) for each in (problem, slow))
    for end, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(end, wanted, rtol=1e-9, atol=1e-9)
    for each, (_, wanted) in (problem, found), (slow, expected):
        torch.testing.assert_close(each.reach(costs, value, direction), wanted, rtol=0.0, atol=0.0)
    if kind == "constant":
        assert torch.isinf(torch.stack(found)).all()


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5)])
def test_costs_of_many_magnitudes(shape, maximize):
    """Matchings are optimal up to the ends, whatever the other costs."""
    generator, sign = torch.Generator().manual_seed(0), -1 if maximize else 1
    costs = (12 * torch.randn(2000, *shape, generator=generator, dtype=torch.double)).exp()
    problem = Matching(*shape, maximize=maximize)
    value = problem.solve(costs)
    direction = sign * problem.incidence(value) * torch.rand(2000, *shape, generator=generator, dtype=torch.double)
    end = problem.chord(costs, value, direction)[1]
    inside = costs + ((1 - 1e-9) * end.clamp(max=1e9))[:, None, None] * direction
    assert problem.contains(inside, value).all()


def test_chords_of_many_rows_end_at_other_matchings():
    torch.manual_seed(0)
    costs, direction = torch.randn(2, 3, 40, 40, dtype=torch.double)
    problem = Matching(40)
    value = problem.solve(costs)
    for sign, end in zip((-1, 1), problem.chord(costs, value, direction), strict=True):
        at = [costs + (end + sign * step)[:, None, None] * direction for step in (-1e-6, 1e-6)]
        assert problem.contains(at[0], value).all()
        assert not problem.contains(at[1], value).any()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(SHAPES, st.booleans(), st.sampled_from(["normal", "tied", "shared", "infinite", "far"]), st.integers(0, 2**31))
def test_cheapest_matchings_are_those_of_a_solver(shape, maximize, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    costs, other = torch.randn(2, 40, *shape, generator=generator, dtype=torch.double)
    allowed = (torch.rand(40, *shape, generator=generator) < 0.8) | torch.eye(*shape, dtype=torch.bool)
    problem = Matching(*shape, allowed=allowed, maximize=maximize)
    if kind == "tied":
        costs = costs.round()
    elif kind == "far":
        costs = costs * (10 * other).exp()
    value = problem.solve(costs)
    if kind == "shared":
        # Ties of costs that rounding hides, or makes.
        costs = costs + 1e9 * (problem.incidence(value) + problem.incidence(problem.solve(other)))
        value = problem.solve(costs)
    columns = torch.rand(40, shape[1], generator=generator).argsort(-1)[:, : shape[0]]
    if kind == "infinite":
        costs = costs.masked_fill(
            torch.rand(40, *shape, generator=generator) < 0.1, -torch.inf if maximize else torch.inf
        )
        costs = torch.where(torch.eye(*shape, dtype=torch.bool), other, costs)
        value = problem.solve(costs)
    for asked in (value, columns, value + 1, torch.where(torch.arange(40)[:, None] % 2 == 0, value, columns)):
        for given_value in (asked, asked.double(), asked.float() + 0.5 * (asked == 0)):
            expected = Problem.contains(problem, costs, given_value)
            assert torch.equal(problem.contains(costs, given_value), expected)


def test_matchings_that_are_the_cheapest_beyond_doubt(monkeypatch):
    pytest.importorskip("numba")
    costs = torch.randn(200, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    problem = Matching(5, 6)
    value = problem.solve(costs)
    end = problem.chord(costs, value, problem.incidence(value))[1].reshape(-1, 1, 1)
    monkeypatch.setattr(Problem, "contains", lambda problem, costs, value: None)
    assert problem.contains(costs, value).all()
    assert problem.contains(costs + (1 - 1e-6) * end * problem.incidence(value), value).all()
    for doubtful in (end, (1 + 1e-6) * end):
        assert problem.contains(costs + doubtful * problem.incidence(value), value) is None
    assert problem.contains(costs[:0], value[:0]).shape == (0,)
    # Differences overflow.
    assert problem.contains(1e308 * costs.clamp(-1, 1), value) is None


def test_matchings_are_asked_for_in_any_way():
    """As without compiled loops."""
    costs = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    problem = Matching(3)
    value = problem.solve(costs)
    with torch.device("meta"):
        assert problem.contains(costs, value).all()
    assert problem.contains(costs, torch._neg_view(-value)).all()
    found = torch.vmap(lambda value: problem.contains(costs[0], value))(value)
    assert torch.equal(found, (value == value[0]).all(-1))
    for wrong, name in (((costs.tolist(), value), "costs"), ((costs, value.numpy()), "value")):
        with pytest.raises(ValueError, match=f"{name}: expected a tensor of shape"):
            problem.contains(*wrong)
