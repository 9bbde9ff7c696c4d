"""Labellings, their restrictions, and arguments."""

import itertools

import networkx
import pytest
import torch

from pyro_structured.structures import MinimumCut
from pyro_structured.testing import check_problem

# A triangle with a tail of two parallel edges.
EDGES = torch.tensor([[0, 1], [1, 2], [2, 0], [2, 3], [3, 2]])


@pytest.mark.parametrize("edges, num_nodes", [(EDGES, 4), (EDGES[:0], 1), (EDGES[:1], 2), (EDGES[:2].int(), 5)])
def test_contract(edges, num_nodes):
    problem = MinimumCut(edges, num_nodes)
    check_problem(problem, torch.tensor(list(itertools.product([0, 1], repeat=num_nodes))))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e9, 1e200])
def test_cuts_are_those_of_networkx(scale):
    nodes = torch.arange(36).view(6, 6)
    edges = torch.cat(
        [
            torch.stack([nodes[:, 1:].ravel(), nodes[:, :-1].ravel()], 1),
            torch.stack([nodes[1:].ravel(), nodes[:-1].ravel()], 1),
        ]
    )
    problem = MinimumCut(edges, 36)
    unary0, unary1 = torch.rand(2, 5, 36, dtype=torch.double) * scale
    weights = torch.rand(5, len(edges), dtype=torch.double) * 0.5 * scale
    # Differences of six orders of magnitude.
    unary0[:, ::5] *= 1e-6
    costs = problem.pack(unary0, unary1, weights)
    found = problem.objective(costs, problem.solve(costs))
    assert problem.contains(costs, problem.solve(costs)).all()
    for row in range(5):
        graph = networkx.DiGraph()
        for node in range(36):
            graph.add_edge("source", node, capacity=unary1[row, node].item())
            graph.add_edge(node, "sink", capacity=unary0[row, node].item())
        for (tail, head), weight in zip(edges.tolist(), weights[row].tolist(), strict=True):
            graph.add_edge(tail, head, capacity=weight)
            graph.add_edge(head, tail, capacity=weight)
        assert found[row].item() == pytest.approx(networkx.minimum_cut_value(graph, "source", "sink"), rel=1e-12)


@pytest.mark.parametrize("size", [1e15, 1e18, 1e30, 1e300])
@pytest.mark.parametrize("place", [0, 5, 8, 11])
def test_costs_that_no_optimum_incurs(place, size):
    """However large they are, labels are those of costs just large enough; enumerated."""
    problem = MinimumCut(torch.tensor([[0, 1], [1, 2], [2, 3], [0, 3]]), 4)
    torch.manual_seed(place)
    costs, values = torch.rand(50, 12, dtype=torch.double), torch.tensor(list(itertools.product([0, 1], repeat=4)))
    others = costs.clone()
    costs[:, place], others[:, place] = size, 100.0
    best = problem.objective(others.unsqueeze(1), values).amin(-1)
    torch.testing.assert_close(problem.objective(others, problem.solve(costs)), best)


def test_nodes_without_edges():
    """Their own costs count, whatever those of others are."""
    problem = MinimumCut(torch.tensor([[0, 1]]), 4)
    unary = torch.tensor([[1.0, 1.0, 1e18, 1e-3], [2.0, 0.5, 0.0, 0.0]], dtype=torch.double)
    for weight in (0.0, 0.1):
        costs = problem.pack(*unary, torch.tensor([weight], dtype=torch.double))
        assert problem.solve(costs).tolist() == [0.0, 1.0, 1.0, 1.0]


def test_pack_and_split():
    problem = MinimumCut(EDGES, 4)
    parts = torch.randn(3, 1, 4), torch.randn(2, 4), torch.rand(5)
    packed = problem.pack(*parts)
    assert packed.shape == (3, 2, 13)
    for part, found in zip(parts, problem.split(packed), strict=True):
        assert torch.equal(found, part.expand(found.shape))
    assert torch.equal(problem.cost_low.isinf(), torch.arange(13) < 8)
    assert not problem.cost_support.check(problem.pack(parts[0], parts[1], -parts[2])).any()
    assert problem.cost_support.check(packed).all()


def test_no_rows():
    assert MinimumCut(EDGES, 4).solve(torch.zeros(2, 0, 13)).shape == (2, 0, 4)


def test_errors():
    problem = MinimumCut(EDGES, 4)
    for number, place in ((-1.0, 8), (-torch.inf, 0), (torch.inf, 12)):
        with pytest.raises(
            ValueError, match=f"costs: expected finite numbers, and at least 0 for edges, got {number:g}"
        ):
            problem.solve(torch.zeros(13).index_fill(0, torch.tensor(place), number))
    with pytest.raises(ValueError, match=r"costs: expected a tensor of shape \(..., 13\), got shape \(12,\)"):
        problem.solve(torch.zeros(12))
    with pytest.raises(ValueError, match=r"unary1: expected a tensor with a last axis of 4 numbers, got shape \(3,\)"):
        problem.pack(torch.zeros(4), torch.zeros(3), torch.zeros(5))
    with pytest.raises(ValueError, match="edges: expected pairs of different nodes, got a node twice"):
        MinimumCut(torch.tensor([[0, 1], [1, 1]]), 2)
    with pytest.raises(ValueError, match="edges: expected nodes from 0 to 2, got some from 0 to 3"):
        MinimumCut(EDGES, 3)
    with pytest.raises(ValueError, match="num_nodes: expected an integer of at least 1, got 2.0"):
        MinimumCut(EDGES, 2.0)
