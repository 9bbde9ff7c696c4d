"""Compiled ends of the lines on which matchings stay optimal, against calls of a solver."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.optima.ops.ray_shooting import chord
from pyro_structured.optima.structures.matching import Matching

SHAPES = st.tuples(st.integers(1, 6), st.integers(0, 2)).map(lambda shape: (shape[0], shape[0] + shape[1]))


class Slow(Matching):
    """Matchings whose chords are not compiled."""

    def _chord(self, costs, incidence, direction):
        return chord(self, costs, incidence, direction)


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
