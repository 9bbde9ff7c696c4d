"""Ends of curves on which values stay optimal, against all values on a fine grid."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.optima.ops.curve_chord import curve_chord
from pyro_structured.structures import (
    BipartiteAssignment,
    Matching,
    MinimumCut,
    ShortestPath,
    SpanningTree,
    TopK,
)

EDGES = torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]])
PROBLEMS = {
    "matchings": Matching(3),
    "best matchings": Matching(2, 4, maximize=True),
    "assignments": BipartiteAssignment(torch.tensor([1, 2]), torch.tensor([1, 1, 1])),
    "paths": ShortestPath(EDGES, 4, 0, 3),
    "cuts": MinimumCut(EDGES, 4),
    "trees": SpanningTree(EDGES, 4),
    "choices": TopK(5, 2, maximize=True),
}
MOST = 3.0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PROBLEMS)), st.booleans(), st.integers(0, 2**31))
def test_ends_are_those_of_a_grid(name, is_positive, seed):
    problem, generator = PROBLEMS[name], torch.Generator().manual_seed(seed)
    offset, growth, loc = torch.randn(3, 6, *problem.cost_shape, generator=generator, dtype=torch.double)
    if is_positive or name in ("paths", "cuts"):
        offset, loc = offset.exp(), torch.zeros_like(loc)
    growth[torch.rand(growth.shape, generator=generator) < 0.2] = 0.0
    growth[0] = 0.0
    costs = loc + offset
    value = problem.solve(costs)
    most = torch.full((6,), MOST, dtype=torch.double)
    low, high = curve_chord(problem, value, costs, offset, growth, -most, most)
    assert (low <= 0).all() and (high >= 0).all() and torch.isinf(torch.stack([low, high])[:, 0]).all()

    def contains(x):
        return problem.contains(costs + offset * torch.expm1(growth * x.reshape(-1, *(1,) * (costs.dim() - 1))), value)

    first, last = (end.clamp(-MOST, MOST) for end in (low, high))
    for share in torch.linspace(1e-9, 1 - 1e-9, 100, dtype=torch.double):
        assert contains(first + share * (last - first)).all()
    for end, step in ((low, -1e-6), (high, 1e-6)):
        assert not (contains(end.nan_to_num(0, 0, 0) + step) & end.isfinite()).any()


@settings(max_examples=60, deadline=None)
@given(st.floats(-2.0, 2.0), st.floats(1e-4, 2.0), st.booleans())
def test_intervals_end_where_values_first_stop_to_be_optimal(start, width, maximize):
    """A curve may come back into the inverse set, however shortly it is outside."""
    growth, most = torch.tensor([1.0, 2.0], dtype=torch.double), torch.tensor(7.0, dtype=torch.double)
    # Costs 2 a e^x and 1 + e^(2 x) are equal at two places, on either side of 0.
    offset = torch.tensor([2 * math.cosh(width / 2), 1.0], dtype=torch.double) * torch.exp(growth * start)
    costs = offset + torch.tensor([0.0, 1.0], dtype=torch.double)
    problem = TopK(2, 1, maximize=maximize)
    low, high = curve_chord(problem, problem.solve(costs), costs, offset, growth, -most, most)
    first, last = -width / 2 - start, width / 2 - start
    expected = (-math.inf, first) if first > 0 else (last, math.inf) if last < 0 else (first, last)
    torch.testing.assert_close(
        torch.stack([low, high]), torch.tensor(expected, dtype=torch.double), rtol=0.0, atol=1e-10
    )
