"""Costs of spanning trees, and arguments."""

import pytest
import torch

from pyro_structured.structures import SpanningTree


def kruskal(costs, edges, num_nodes):
    """The smallest total cost, by Kruskal's algorithm."""
    label, total = list(range(num_nodes)), 0.0
    for edge in costs.argsort().tolist():
        tail, head = (label[end] for end in edges[edge].tolist())
        if tail != head:
            total += costs[edge].item()
            label = [tail if each == head else each for each in label]
    return total


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("shift", [-5.0, 0.0, 1e12])
def test_solutions_cost_as_much_as_those_of_kruskal(shift, maximize):
    edges = torch.cat([torch.tensor([[i, i + 1] for i in range(19)]), torch.randint(20, (60, 2))])
    edges = edges[edges[:, 0] != edges[:, 1]]
    problem = SpanningTree(edges, 20, maximize)
    for costs in (torch.randn(20, len(edges), dtype=torch.double), torch.randint(-1, 2, (20, len(edges))).double()):
        value = problem.solve(costs + shift)
        sign = -1 if maximize else 1
        expected = [sign * kruskal(sign * each, edges, 20) + 19 * shift for each in costs]
        assert problem.objective(costs + shift, value).tolist() == pytest.approx(expected, rel=1e-14)
        assert problem.is_feasible(value).all() and (problem.incidence(value).sum(-1) == 19).all()


def test_errors():
    edges = torch.tensor([[0, 1], [2, 3], [3, 4], [2, 4]])
    with pytest.raises(ValueError, match="edges: expected a connected graph, got no path from node 0 to node 2"):
        SpanningTree(edges, 5)
    with pytest.raises(ValueError, match="edges: expected at least one edge, and no loops, got a loop, number 2"):
        SpanningTree(torch.tensor([[0, 1], [1, 2], [2, 2]]), 3)
    with pytest.raises(ValueError, match="edges: expected at least one edge, and no loops, got none"):
        SpanningTree(edges[:0], 5)
    with pytest.raises(ValueError, match="edges: expected nodes from 0 to 3, got some from 0 to 4"):
        SpanningTree(edges, 4)
    with pytest.raises(ValueError, match=r"edges: expected a tensor of integers of shape \(E, 2\), got list"):
        SpanningTree([[0, 1]], 2)
    with pytest.raises(ValueError, match="num_nodes: expected an integer of at least 1, got True"):
        SpanningTree(edges, True)
