"""All problems keep the contract, and their inverse sets have the geometry that the paper proves."""

import itertools
import math

import pytest
import torch

from pyro_structured.distributions import Argmin
from pyro_structured.structures import (
    BipartiteAssignment,
    ConnectedComponents,
    LinearProblem,
    Matching,
    Ranking,
    ShortestPath,
    SpanningTree,
    TopK,
)
from pyro_structured.testing import check_problem

ALLOWED = torch.tensor(
    [
        [[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0]],
        [[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]],
        [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
    ],
    dtype=torch.bool,
)
# Two squares with a diagonal and a parallel edge, and a path to another node.
GRAPH = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [2, 1], [3, 4]])


def injections(num_rows, num_columns, allowed=None):
    found = torch.tensor(list(itertools.permutations(range(num_columns), num_rows)))
    return found if allowed is None else found[allowed[torch.arange(num_rows), found].all(-1)]


def subsets(num_items, size):
    chosen = [[float(i in c) for i in range(num_items)] for c in itertools.combinations(range(num_items), size)]
    return torch.tensor(chosen)


def labels(edges, num_nodes):
    """The smallest node that every node reaches, by going along the edges again and again."""
    found = list(range(num_nodes))
    for _ in range(num_nodes):
        for tail, head in edges:
            found[tail] = found[head] = min(found[tail], found[head])
    return found


def edge_sets(edges):
    return itertools.chain.from_iterable(itertools.combinations(range(len(edges)), k) for k in range(len(edges) + 1))


def spanning_trees(edges, num_nodes):
    trees = [
        c for c in edge_sets(edges) if len(c) == num_nodes - 1 and max(labels(edges[list(c)].tolist(), num_nodes)) == 0
    ]
    return torch.tensor([[int(e in c) for e in range(len(edges))] for c in trees])


def components(edges, num_nodes):
    return torch.tensor(sorted({tuple(labels(edges[list(c)].tolist(), num_nodes)) for c in edge_sets(edges)}))


CASES = {
    "one pair": (Matching(1), injections(1, 1)),
    "permutations": (Matching(3), injections(3, 3)),
    "rewards of permutations": (Matching(3, maximize=True), injections(3, 3)),
    "more columns than rows": (Matching(2, 4), injections(2, 4)),
    "some pairs are not allowed": (Matching(3, 4, allowed=ALLOWED[0]), injections(3, 4, ALLOWED[0])),
    "allowed pairs differ": (
        Matching(3, 4, allowed=ALLOWED, maximize=True),
        [injections(3, 4, allowed) for allowed in ALLOWED],
    ),
    "one item": (TopK(1, 1), subsets(1, 1)),
    "no item": (TopK(3, 0), subsets(3, 0)),
    "all items": (TopK(3, 3, maximize=True), subsets(3, 3)),
    "two of five": (TopK(5, 2), subsets(5, 2)),
    "the best three of five": (TopK(5, 3, maximize=True), subsets(5, 3)),
    "numbers of items differ": (
        TopK(4, torch.tensor([[0, 3], [1, 4]], dtype=torch.int32)),
        [subsets(4, size) for size in (0, 3, 1, 4)],
    ),
    "ranking of one": (Ranking(1), injections(1, 1)),
    "ranking of two": (Ranking(2, maximize=True), injections(2, 2)),
    "ranking": (Ranking(4), injections(4, 4)),
    "ranking of rewards": (Ranking(4, maximize=True), injections(4, 4)),
    "spanning tree": (SpanningTree(GRAPH, 5), spanning_trees(GRAPH, 5)),
    "dearest spanning tree": (SpanningTree(GRAPH, 5, maximize=True), spanning_trees(GRAPH, 5)),
    "the graph is a tree": (SpanningTree(GRAPH[:3], 4), torch.ones(1, 3)),
    "parallel edges": (SpanningTree(torch.tensor([[0, 1], [1, 0], [0, 1]]), 2), torch.eye(3)),
    "connected components": (ConnectedComponents(GRAPH, 5, 0.1), components(GRAPH, 5)),
    "thresholds differ": (
        ConnectedComponents(GRAPH[1:6], 5, torch.tensor([0.0, 0.3, 0.7])),
        components(GRAPH[1:6], 5),
    ),
    "one edge": (ConnectedComponents(GRAPH[:1], 2, 0), components(GRAPH[:1], 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_contract(case):
    check_problem(*CASES[case])


@pytest.mark.parametrize(
    "problem",
    [
        Matching(3),
        Matching(2, 3, maximize=True),
        TopK(4, 2),
        TopK(4, 1, maximize=True),
        Ranking(3),
        SpanningTree(GRAPH, 5),
        SpanningTree(GRAPH, 5, maximize=True),
    ],
)
def test_inverse_sets_of_linear_objectives_are_convex_cones(problem):
    """Proposition 3."""
    costs = torch.randn(4000, *problem.cost_shape, dtype=torch.double)
    value = problem.solve(costs)
    # Neighbours among the rows with the same value.
    same = value.unique(dim=0, return_inverse=True)[1].argsort()
    costs, value = costs[same], value[same]
    pairs = (value[1:] == value[:-1]).flatten(1).all(1)
    assert pairs.sum() > 3900
    first, second, value = costs[1:][pairs], costs[:-1][pairs], value[1:][pairs]
    share = torch.rand(len(first), *(1 for _ in problem.cost_shape), dtype=torch.double)
    assert problem.contains(share * first + (1 - share) * second, value).all()
    assert problem.contains(10 * share * first, value).all()


def test_feasible_values():
    """Sorted; of a batch all that some row allows; none if they are many."""
    assert Ranking(3).feasible_values().tolist() == [list(order) for order in itertools.permutations(range(3))]
    sets = TopK(4, torch.tensor([1, 3])).feasible_values()
    assert sets.tolist() == sorted([*subsets(4, 1).tolist(), *subsets(4, 3).tolist()])
    rows = [set(map(tuple, injections(3, 4, allowed).tolist())) for allowed in ALLOWED[:2]]
    found = Matching(3, 4, ALLOWED[:2]).feasible_values().tolist()
    assert found == sorted(map(list, rows[0] | rows[1]))
    graph = ConnectedComponents(GRAPH, 5, 0.5)
    every = torch.cartesian_prod(*[torch.arange(5)] * 5)
    assert torch.equal(graph.feasible_values(), every[graph.is_feasible(every)])
    many = [Ranking(7), TopK(30, 15), Matching(7), ConnectedComponents(GRAPH.repeat(2, 1), 5, 0.5)]
    assert all(problem.feasible_values() is None for problem in [*many, SpanningTree(GRAPH, 5)])


TRIANGLE = torch.tensor([[0, 1], [1, 2], [0, 2]])
PAIRS = BipartiteAssignment(1, 1, num_rows=3, num_columns=3)
HUGE = 1e12


def matrix(block):
    """Costs of four pairs, and large ones of the others but the last."""
    found = torch.full((3, 3), HUGE, dtype=torch.double)
    found[:2, :2], found[2, 2] = torch.tensor(block), 0.0
    return found


@pytest.mark.parametrize(
    "problem, costs, best, other",
    [
        (TopK(4, 1), [1.0, 2.0, 3.0, HUGE], [1, 0, 0, 0], [0, 1, 0, 0]),
        (TopK(4, 3, maximize=True), [1.0, 2.0, 3.0, HUGE], [0, 1, 1, 1], [1, 0, 1, 1]),
        (TopK(2, 1), [1.0, 1.0 + 1e-14], [1, 0], [0, 1]),
        (Ranking(3), [1.0, 2.0, HUGE], [0, 1, 2], [1, 0, 2]),
        (Ranking(3), [1.0, 1.0 + 1e-14, 2.0], [0, 1, 2], [1, 0, 2]),
        (SpanningTree(TRIANGLE, 3), [-HUGE, 1.0, 2.0], [1, 1, 0], [1, 0, 1]),
        (
            ShortestPath(torch.tensor([[0, 1], [1, 2], [0, 2], [2, 3]]), 4, 0, 3),
            [1, 1, 50, HUGE],
            [1, 1, 0, 1],
            [0, 0, 1, 1],
        ),
        (Matching(3), matrix([[0.0, 1.0], [1.0, 5.0]]), [1, 0, 2], [0, 1, 2]),
        (PAIRS, matrix([[0.0, 1.0], [1.0, 5.0]]), torch.eye(3)[[1, 0, 2]], torch.eye(3)),
        (LinearProblem(lambda costs: torch.eye(3)[costs.argmin(-1)], [3]), [1.0, 2.0, HUGE], [1, 0, 0], [0, 1, 0]),
    ],
)
def test_large_costs_elsewhere_do_not_make_values_optimal(problem, costs, best, other):
    costs, best, other = torch.as_tensor(costs, dtype=torch.double), torch.as_tensor(best), torch.as_tensor(other)
    assert torch.equal(problem.solve(costs).double(), best.double())
    assert problem.contains(costs, best) and not problem.contains(costs, other)


INFINITE = torch.tensor([[1.0, torch.inf], [torch.inf, 2.0]])


@pytest.mark.parametrize(
    "problem, costs, best, other",
    [
        (TopK(3, 1), [1.0, 2.0, torch.inf], [1, 0, 0], [0, 0, 1]),
        (TopK(3, 2, maximize=True), [1.0, 2.0, -torch.inf], [1, 1, 0], [0, 1, 1]),
        (Ranking(3), [1.0, torch.inf, 0.0], [2, 0, 1], [2, 1, 0]),
        (SpanningTree(TRIANGLE, 3), [1.0, torch.inf, 2.0], [1, 0, 1], [1, 1, 0]),
        (Matching(2), INFINITE, [0, 1], [1, 0]),
        (Matching(2, maximize=True), -INFINITE, [0, 1], [1, 0]),
        (BipartiteAssignment(1, 1, num_rows=2, num_columns=2), INFINITE, torch.eye(2), 1 - torch.eye(2)),
    ],
)
def test_infinite_costs_forbid(problem, costs, best, other):
    costs = torch.as_tensor(costs)
    for value, expected in ((best, 0.0), (other, -torch.inf)):
        assert Argmin(costs, problem).log_prob(torch.as_tensor(value)) == expected
    assert torch.equal(Argmin(costs, problem).sample(), torch.as_tensor(best).to(problem.solve(costs)))


@pytest.mark.parametrize(
    "problem, costs",
    [
        (TopK(2, 2), torch.tensor([1.0, torch.inf])),
        (SpanningTree(TRIANGLE[:2], 3), torch.tensor([torch.inf, 1.0])),
        (Matching(2), INFINITE[[0, 0]]),
        (BipartiteAssignment(1, 1, num_rows=2, num_columns=2), INFINITE[[0, 0]]),
    ],
)
def test_infinite_costs_everywhere_are_refused(problem, costs):
    with pytest.raises(
        ValueError, match="costs: expected some value without infinite costs, got infinite costs in all"
    ):
        problem.solve(costs)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Matching(3, maximize=1), "maximize: expected True or False, got 1"),
        (lambda: TopK(3, 1, maximize=torch.ones(3)), r"maximize: expected True or False, got tensor\("),
        (lambda: Ranking(3, maximize="yes"), "maximize: expected True or False, got 'yes'"),
        (lambda: SpanningTree(GRAPH, 5, maximize=None), "maximize: expected True or False, got None"),
        (lambda: BipartiteAssignment(1, 1, num_rows=1, num_columns=1, maximize=[]), "maximize: expected True or False"),
        (lambda: LinearProblem(torch.neg, [3], maximize=0.0), "maximize: expected True or False, got 0.0"),
        (lambda: Matching(3, allowed=int), "allowed: expected booleans .*, got <class 'int'>"),
        (lambda: SpanningTree(GRAPH, 10**30), "num_nodes: expected an integer below 2 .* 31, got 1000"),
        (lambda: SpanningTree(GRAPH, 10**9), "edges: expected a connected graph, of 999999999 edges at least, got 7"),
        (lambda: ConnectedComponents(GRAPH, 10**30, 0.0), "num_nodes: expected an integer below 2"),
        (lambda: LinearProblem(torch.neg, [3], support=2.5), "support: expected a constraint, .*got 2.5"),
        (lambda: LinearProblem(torch.neg, [3], cost_low="low"), "cost_low: expected numbers of at most 0, .*got 'low'"),
        (lambda: LinearProblem(torch.neg, [3], cost_low=torch.nan), "cost_low: expected numbers of at most 0, .*nan"),
    ],
)
def test_arguments_of_other_kinds(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "problem, costs, expected",
    [
        (TopK(5, 2), [1.0, math.inf, 2.0, 3.0, 4.0], 3.0),
        (TopK(5, 2, maximize=True), [1.0, -math.inf, 2.0, 3.0, 4.0], 7.0),
        (Matching(2), [[1.0, math.inf], [2.0, 1.0]], 2.0),
    ],
)
def test_objectives_beside_infinite_costs(problem, costs, expected):
    costs = torch.tensor(costs, dtype=torch.double)
    assert problem.objective(costs, problem.solve(costs)) == expected


def test_second_best_values_beside_infinite_costs():
    """As if these were much larger, or smaller, than all others."""
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 3], [1, 3], [3, 4]])
    for problem, infinite in (
        (TopK(5, 2), [torch.inf]),
        (TopK(5, 2, maximize=True), [torch.inf, -torch.inf]),
        (TopK(5, 1, maximize=True), [torch.inf, torch.inf]),
        (SpanningTree(edges, 5), [torch.inf]),
    ):
        costs = torch.randn(200, *problem.cost_shape, dtype=torch.double)
        # The last edge is a bridge.
        costs[:, : len(infinite)] = torch.tensor(infinite).double()
        large = costs.nan_to_num(0.0, 1e6, -1e6)
        large[:, : len(infinite)] += torch.arange(len(infinite))
        value = problem.solve(large)
        second = problem.second_best(costs, value)
        if infinite == [torch.inf, torch.inf]:
            assert (second == torch.eye(5)[0]).all()
        else:
            assert torch.equal(second, problem.second_best(large, value))
