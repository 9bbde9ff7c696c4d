"""Labels, the geometry of their inverse sets, and arguments of connected components."""

import pytest
import torch

from pyro_structured.structures import ConnectedComponents

SQUARE = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
GRAPH = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [2, 1], [3, 4], [5, 4]])


def smallest_connected(weights, edges, num_nodes, threshold):
    """By the definition: the largest smallest weight of a path, over all paths (Equation 7)."""
    bottleneck = torch.full((num_nodes, num_nodes), -torch.inf).double().fill_diagonal_(torch.inf)
    for (tail, head), weight in zip(edges.tolist(), weights, strict=True):
        bottleneck[tail, head] = bottleneck[head, tail] = max(weight, bottleneck[tail, head])
    for middle in range(num_nodes):
        through = torch.minimum(bottleneck[:, middle, None], bottleneck[middle])
        bottleneck = torch.maximum(bottleneck, through)
    return (bottleneck > threshold).double().argmax(-1)


def test_labels_are_the_smallest_connected_nodes():
    problem = ConnectedComponents(GRAPH, 7, 0.0)
    for weights in (torch.randn(200, 8, dtype=torch.double), torch.randint(-1, 2, (200, 8)).double()):
        expected = torch.stack([smallest_connected(each, GRAPH, 7, 0.0) for each in weights])
        assert torch.equal(problem.solve(weights), expected)
        assert problem.contains(weights, expected).all() and (problem.objective(weights, expected) == 0).all()
        wrong = (expected != expected.flip(0)).any(-1)
        assert torch.equal(problem.contains(weights, expected.flip(0)), ~wrong)
        assert torch.equal(problem.objective(weights, expected.flip(0)), torch.where(wrong, torch.inf, 0.0).double())


def test_weights_at_the_threshold_do_not_connect():
    problem = ConnectedComponents(SQUARE[:1], 2, 0.1)
    weights = torch.tensor([[0.1]], dtype=torch.double)
    above = torch.nextafter(weights, torch.ones_like(weights))
    assert problem.solve(torch.cat([weights, above])).tolist() == [[0, 1], [0, 0]]
    (apart, _), (_, together) = (list(problem.boxes(w, problem.solve(w))) for w in (weights, above))
    assert apart.high.item() == weights.item() and together.low.item() == above.item()


def test_inverse_sets_are_not_convex():
    """Proposition 4, by its counterexample."""
    problem = ConnectedComponents(SQUARE, 4, threshold=0.6)
    first, second = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 1.0])
    together = torch.zeros(4)
    assert problem.contains(first, together) and problem.contains(second, together)
    assert problem.solve((first + second) / 2).tolist() == [0, 0, 2, 2]


def test_inverse_sets_are_star_convex():
    """Proposition 5: all of the rectangle between the centre and any point belongs to the inverse set."""
    problem = ConnectedComponents(GRAPH, 7, torch.rand(5000, dtype=torch.double))
    weights = torch.rand(5000, 8, dtype=torch.double)
    value = problem.solve(weights)
    centre = problem.feasible_point(value)
    assert torch.equal(centre, (value[:, GRAPH[:, 0]] == value[:, GRAPH[:, 1]]).double())
    for share in (torch.rand(5000, 1), torch.rand(5000, 8), torch.rand(5000, 8).round()):
        assert problem.contains(weights + share * (centre - weights), value).all()


def test_no_weights_within_bounds_give_labels_beyond_the_threshold():
    problem = ConnectedComponents(SQUARE, 4, threshold=2.0)
    together = torch.zeros(4, dtype=torch.long)
    assert not problem.contains(problem.feasible_point(together), together)
    assert problem.contains(problem.feasible_point(together, high=3.0), together)


def test_errors():
    with pytest.raises(ValueError, match="num_nodes: expected an integer of at least 1, got 0"):
        ConnectedComponents(SQUARE, 0, 0.5)
    with pytest.raises(ValueError, match=r"edges: expected a tensor of integers of shape \(E, 2\), got torch.float32"):
        ConnectedComponents(SQUARE.float(), 4, 0.5)
    with pytest.raises(ValueError, match="edges: expected nodes from 0 to 2, got some from 0 to 3"):
        ConnectedComponents(SQUARE, 3, 0.5)
    with pytest.raises(ValueError, match="edges: expected at least one edge, and no loops, got a loop, number 1"):
        ConnectedComponents(torch.tensor([[0, 1], [1, 1]]), 4, 0.5)
    with pytest.raises(ValueError, match="threshold: expected finite numbers, got 'a'"):
        ConnectedComponents(torch.tensor([[0, 1]]), 2, "a")
    with pytest.raises(ValueError, match="threshold: expected finite numbers, got nan"):
        ConnectedComponents(SQUARE, 4, float("nan"))
    for name in ("chord", "reach"):
        with pytest.raises(
            NotImplementedError, match=f"{name}: ConnectedComponents has inverse sets that are not convex"
        ):
            getattr(ConnectedComponents(SQUARE, 4, 0.5), name)(torch.rand(4), torch.arange(4), torch.ones(4))
