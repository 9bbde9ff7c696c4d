"""Ends of lines on which values stay optimal, for problems without compiled chords."""

import pytest
import torch

from pyro_structured.optima.ops.ray_shooting import chord
from pyro_structured.structures import BipartiteAssignment, LinearProblem, Matching, Ranking, SpanningTree, TopK

EDGES = torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [3, 4], [1, 4], [2, 4]])
PROBLEMS = {
    "matching": Matching(4),
    "rewards": Matching(4, maximize=True),
    "wide matching": Matching(3, 5),
    "ranking": Ranking(5),
    "subsets": LinearProblem(TopK(6, 3).solve, [6], is_feasible_fn=lambda value: value.sum(-1) == 3),
    "tree": SpanningTree(EDGES, 5),
    "assignment": BipartiteAssignment(torch.tensor([1, 2, 1]), torch.tensor([1, 2, 1, 1])),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_costs_of_many_magnitudes(name):
    """Values are optimal up to the ends, whatever ties there are between the largest costs."""
    problem, count = PROBLEMS[name], 2000
    generator = torch.Generator().manual_seed(0)
    size, noise, share = torch.randn(3, count, *problem.cost_shape, generator=generator, dtype=torch.double)
    costs = noise * (20 * size).exp()
    value = problem.solve(costs)
    incidence = problem.incidence(value).double()
    direction = incidence * share.abs() * costs.abs() * (-1 if problem.maximize else 1)
    low, high = chord(problem.flatten((count,)), costs, incidence, direction)
    for end in (low, high):
        distance = (1 - 1e-9) * end.clamp(-1e9, 1e9).reshape(-1, *(1,) * len(problem.cost_shape))
        assert problem.contains(costs + distance * direction, value).all()
