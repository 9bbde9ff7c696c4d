"""Elimination, chordal graphs and junction trees, against brute force."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.junction_trees.ops.chordal_graph import (
    clique_forest,
    elimination_cliques,
    elimination_order,
    eliminations,
    is_chordal,
    maximum_cardinality_order,
    neighbor_sets,
    width_of,
)


@st.composite
def graphs(draw, most=7):
    n = draw(st.integers(1, most))
    pairs = list(itertools.combinations(range(n), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return n, edges


def fill(n, edges, order):
    """Edges that eliminating nodes one by one adds, and the largest number of neighbours on the way."""
    graph, width = neighbor_sets(n, edges), 0
    added = []
    for node in order:
        near = graph[node]
        width = max(width, len(near))
        for one, other in itertools.combinations(sorted(near), 2):
            if other not in graph[one]:
                graph[one].add(other)
                graph[other].add(one)
                added.append((one, other))
        for other in near:
            graph[other].discard(node)
        graph[node] = set()
    return added, width


def has_chordless_cycle(n, edges):
    """A set of at least four nodes whose subgraph is a cycle."""
    graph = neighbor_sets(n, edges)
    for size in range(4, n + 1):
        for nodes in itertools.combinations(range(n), size):
            inside = [graph[node] & set(nodes) for node in nodes]
            reached = {nodes[0]}
            while grown := set().union(*(graph[node] & set(nodes) for node in reached)) - reached:
                reached |= grown
            if all(len(near) == 2 for near in inside) and len(reached) == size:
                return True
    return False


@given(graphs())
def test_chordal_graphs(graph):
    n, edges = graph
    neighbors = neighbor_sets(n, edges)
    assert is_chordal(neighbors) == (not has_chordless_cycle(n, edges))
    order = maximum_cardinality_order(neighbors)
    assert sorted(order) == list(range(n))
    if is_chordal(neighbors):
        assert not fill(n, edges, order)[0]


@given(graphs(), st.sampled_from(["min_fill", "min_weight"]), st.randoms())
def test_elimination(graph, heuristic, random):
    n, edges = graph
    neighbors = neighbor_sets(n, edges)
    sizes = [math.log(random.randint(1, 4)) for _ in range(n)]
    for order in (elimination_order(neighbors, sizes, heuristic), random.sample(range(n), n)):
        added, width = fill(n, edges, order)
        assert sorted(order) == list(range(n)) and width_of(neighbors, order) == width
        completed = neighbor_sets(n, edges + added)
        assert is_chordal(completed)
        cliques = elimination_cliques(neighbors, order)
        assert {pair for clique in cliques for pair in itertools.combinations(sorted(clique), 2)} == {
            tuple(sorted(pair)) for pair in edges + added
        }
    if is_chordal(neighbors) and heuristic == "min_fill":
        assert not fill(n, edges, elimination_order(neighbors, sizes))[0]


@given(graphs(), st.sampled_from(["min_fill", "min_weight"]), st.randoms())
def test_every_elimination_is_the_best_next_one(graph, heuristic, random):
    n, edges = graph
    neighbors, left = neighbor_sets(n, edges), set(range(n))
    sizes = [math.log(random.randint(1, 4)) for _ in range(n)]
    order, cliques = elimination_order(neighbors, sizes, heuristic), []
    for node, near in eliminations(neighbors, sizes, heuristic):
        cliques.append(near | {node})
        graph = neighbor_sets(n, [pair for pair in edges if left.issuperset(pair)])
        keys = {}
        for other in left:
            added = len(fill(n, [pair for pair in edges if left.issuperset(pair)], [other])[0])
            weight = sizes[other] + math.fsum(sizes[each] for each in graph[other])
            keys[other] = (added, weight, other) if heuristic == "min_fill" else (weight, added, other)
        assert node == min(left, key=keys.__getitem__) and near == graph[node]
        left.remove(node)
        edges = sorted({*edges, *itertools.combinations(sorted(near), 2)})
    assert not left and cliques == elimination_cliques(neighbors, order)


def is_junction_tree(cliques, parents):
    for node in set().union(*cliques):
        members = {index for index, clique in enumerate(cliques) if node in clique}
        tops = [index for index in members if parents[index] == index or parents[index] not in members]
        if len(tops) != 1:
            return False
    return True


@given(st.lists(st.frozensets(st.integers(0, 4), min_size=1), min_size=1, max_size=4))
def test_clique_forest(cliques):
    """A tree is found if and only if there is one."""
    parents = clique_forest(cliques)
    if parents is not None:
        assert is_junction_tree(cliques, parents)
        return
    for choice in itertools.product(range(len(cliques)), repeat=len(cliques)):
        rooted = all(_ends(choice, index) for index in range(len(cliques)))
        assert not (rooted and is_junction_tree(cliques, choice))


def _ends(parents, index):
    for _ in parents:
        index = parents[index]
    return parents[index] == index
