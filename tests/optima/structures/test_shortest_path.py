"""Paths, their restrictions, and arguments."""

import itertools

import networkx
import pytest
import torch

from pyro_structured.structures import ShortestPath
from pyro_structured.testing import check_problem

# With a loop, parallel edges, cycles through the source and the target, and a dead end.
EDGES = torch.tensor(
    [[0, 1], [1, 2], [0, 2], [2, 1], [2, 3], [1, 3], [1, 3], [3, 0], [2, 2], [4, 1], [3, 4], [2, 0], [2, 5]]
)


def paths(edges, source, target):
    def walks(node, seen, used):
        if node == target:
            yield [float(e in used) for e in range(len(edges))]
        for e, (tail, head) in enumerate(edges.tolist()):
            if tail == node != target and head not in seen:
                yield from walks(head, seen | {head}, used + [e])

    return torch.tensor(list(walks(source, {source}, [])))


def grid(side):
    nodes = torch.arange(side * side).view(side, side)
    pairs = torch.cat(
        [torch.stack([a.ravel(), b.ravel()], 1) for a, b in ((nodes[1:], nodes[:-1]), (nodes[:, 1:], nodes[:, :-1]))]
    )
    return torch.cat([pairs, pairs.flip(1)])


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(
    "edges, source, target",
    [
        (torch.tensor([[0, 1]]), 0, 1),
        (torch.tensor([[1, 0], [1, 0], [1, 0]]), 1, 0),
        (EDGES, 0, 3),
        (EDGES, 0, 4),
        (EDGES.int(), torch.tensor([[0], [4]]), torch.tensor([3, 2])),
        (EDGES, torch.tensor([0, 3], dtype=torch.int32), 4),
    ],
)
def test_contract(edges, source, target):
    problem = ShortestPath(edges, 6, source, target)
    ends = zip(problem.source.flatten().tolist(), problem.target.flatten().tolist(), strict=True)
    listed = [paths(edges, *each) for each in ends]
    check_problem(problem, listed)


def test_feasible_values_are_paths():
    values = torch.tensor(list(itertools.product([0.0, 1.0], repeat=9)))
    edges = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 3], [3, 2], [3, 4], [4, 3], [1, 1], [2, 0]])
    problem = ShortestPath(edges, 5, torch.tensor([0, 4, 2]), torch.tensor([2, 2, 0]))
    feasible = problem.is_feasible(values.unsqueeze(1))
    for row, (source, target) in enumerate([(0, 2), (4, 2), (2, 0)]):
        expected = (values.unsqueeze(1) == paths(edges, source, target)).all(-1).any(-1)
        assert torch.equal(feasible[:, row], expected)


def test_lengths_are_those_of_networkx():
    edges = torch.cat([grid(7), torch.randint(49, (40, 2))])
    source, target = torch.tensor([0, 3, 3, 17]), torch.tensor([48, 40, 2, 16])
    problem = ShortestPath(edges, 49, source, target)
    # One vector of costs for each row, or one for all of them.
    for costs in (torch.rand(4, len(edges)), torch.rand(len(edges)).round(decimals=1), torch.rand(5, 1, len(edges))):
        value = problem.solve(costs.double())
        assert problem.is_feasible(value).all()
        lengths = problem.objective(costs.double(), value)
        rows = costs.double().expand(value.shape).reshape(-1, len(edges))
        for row, found in enumerate(lengths.flatten()):
            graph = networkx.DiGraph()
            for (tail, head), cost in zip(edges.tolist(), rows[row].tolist(), strict=True):
                if cost < graph.get_edge_data(tail, head, {"weight": torch.inf})["weight"]:
                    graph.add_edge(tail, head, weight=cost)
            ends = int(source[row % 4]), int(target[row % 4])
            assert found.item() == pytest.approx(networkx.dijkstra_path_length(graph, *ends), rel=1e-12)


def test_rows_may_share_costs():
    problem = ShortestPath(EDGES, 6, torch.tensor([[0], [4]]), torch.tensor([[3], [2]]))
    costs = torch.rand(5, len(EDGES))
    value = problem.solve(costs)
    assert value.shape == (2, 5, len(EDGES))
    for row, column in itertools.product(range(2), range(5)):
        assert torch.equal(value[row, column], problem[row, 0].solve(costs[column]))


def test_edges_that_are_too_far_away_are_visited_at_once():
    edges = grid(30)
    problem = ShortestPath(edges, 900, 0, 3)
    costs = 1 + torch.rand(2, len(edges), dtype=torch.double)
    value = problem.solve(costs)
    boxes = list(problem.boxes(costs, value))
    assert len(boxes) < 60
    visited = sum(torch.zeros_like(costs).scatter_add(-1, box.index, box.free.double()) for box in boxes)
    assert torch.equal(visited, torch.ones_like(costs))
    # Two edges lead from the source, so that each is exchanged for the other in the first two boxes.
    first, second = boxes[:2]
    assert torch.equal(first.index[:, 0], value.argmax(-1)) and (first.low == 0).all()
    assert problem.contains(costs.scatter(-1, first.index, first.high - 1e-6), value).all()
    assert not problem.contains(costs.scatter(-1, first.index, first.high + 1e-6), value).any()
    assert problem.contains(costs.scatter(-1, second.index, second.low + 1e-6), value).all()


def test_costs_are_read_again_for_every_box():
    """Also from rows that do not lie in memory one after the other."""
    problem = ShortestPath(EDGES, 6, 0, 3)
    layout = torch.rand(len(EDGES), 4, dtype=torch.double)
    together, apart = layout.T.contiguous(), layout.T
    value = problem.solve(together)
    pairs = zip(problem.boxes(together, value), problem.boxes(apart, value), strict=True)
    for number, (box, other) in enumerate(pairs):
        torch.testing.assert_close((box.low, box.high), (other.low, other.high), rtol=0, atol=0)
        changed = together.scatter(-1, box.index, box.low.clamp(max=number % 3))
        changed = torch.where(
            torch.zeros_like(changed).scatter(-1, box.index, box.free.double()) > 0, changed, together
        )
        together.copy_(changed)
        apart.copy_(changed)


def test_no_rows():
    assert ShortestPath(EDGES, 6, 0, 3).solve(torch.zeros(2, 0, len(EDGES))).shape == (2, 0, len(EDGES))


def test_errors():
    problem = ShortestPath(EDGES, 6, 0, 3)
    for number in (-1.0, torch.inf):
        with pytest.raises(ValueError, match=f"costs: expected finite numbers of at least 0, got {number:g}"):
            problem.solve(torch.full((len(EDGES),), number))
    with pytest.raises(ValueError, match=r"target: expected a batch shape that broadcasts with \(2,\), .* got \(3,\)"):
        ShortestPath(EDGES, 6, torch.tensor([0, 1]), torch.tensor([3, 3, 3]))
    with pytest.raises(ValueError, match="source: expected integers from 0 to 5, got 'a'"):
        ShortestPath(EDGES, 6, "a", 3)
    with pytest.raises(ValueError, match="target: expected another node than the source, got the same"):
        ShortestPath(EDGES, 6, torch.tensor([0, 1]), torch.tensor([3, 1]))
    with pytest.raises(ValueError, match="target: expected a node that the source leads to, got one that it does not"):
        ShortestPath(EDGES, 6, torch.tensor([0, 5]), 3)
    with pytest.raises(ValueError, match="source: expected integers from 0 to 5, got 6"):
        ShortestPath(EDGES, 6, 6, 3)
    with pytest.raises(ValueError, match="target: expected integers from 0 to 5, got 1.0"):
        ShortestPath(EDGES, 6, 0, 1.0)
    with pytest.raises(ValueError, match="edges: expected nodes from 0 to 4, got some from 0 to 5"):
        ShortestPath(EDGES, 5, 0, 3)
    with pytest.raises(
        ValueError, match=r"edges: expected a tensor of integers of shape \(E, 2\), got torch.float32 of"
    ):
        ShortestPath(EDGES.float(), 6, 0, 3)
    with pytest.raises(ValueError, match="edges: expected at least one, got none"):
        ShortestPath(EDGES[:0], 6, 0, 3)
    with pytest.raises(ValueError, match="num_nodes: expected an integer of at least 1, got 0"):
        ShortestPath(EDGES, 0, 0, 3)
