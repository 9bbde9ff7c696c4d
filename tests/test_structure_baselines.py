"""The benchmarks' structure learners against brute force, and against each other."""

import importlib
from itertools import combinations, permutations

import networkx
import numpy as np
import pandas
import pyagrum
import pytest
import torch

from pyro_structured.distributions import JunctionTree
from pyro_structured.junction_trees.models.chordal_search import ChordalScore
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows, mutual_information
from pyro_structured.junction_trees.ops.chordal_graph import elimination_cliques, is_chordal, maximum_cardinality_order
from pyro_structured.models import BayesianNetwork
from pyro_structured.structures import CliqueTree


@pytest.fixture(scope="module")
def load():
    return lambda name: importlib.import_module(f"benchmarks.junction_trees.{name}")


def edges_of(neighbors):
    return {(one, other) for one, near in enumerate(neighbors) for other in near if one < other}


def width(neighbors):
    return max(map(len, elimination_cliques(neighbors, maximum_cardinality_order(neighbors)))) - 1


def score_of(score, neighbors):
    order = maximum_cardinality_order(neighbors)
    cliques = zip(order, elimination_cliques(neighbors, order), strict=True)
    return sum(score.term(clique) - score.term(clique - {d}) for d, clique in cliques)


def family_score(score, parents):
    families = [(frozenset(above), d) for d, above in enumerate(parents)]
    return sum(score.term(above | {d}) - score.term(above) for above, d in families)


def chain_of_order_two(number):
    """A network of treewidth two; all parents have one influence, as learners are sure to find only what is strong."""
    parents = [list(range(max(d - 2, 0), d)) for d in range(number)]
    ones = [1 / (1 + np.exp(len(above) - 2 * np.indices((2,) * len(above)).sum(0))) for above in parents]
    tables = [np.stack([1 - each, each], -1) for each in ones]
    return BayesianNetwork([f"x{d}" for d in range(number)], [("0", "1")] * number, parents, tables)


@pytest.fixture
def make_rows(load):
    def make(number, seed, num_rows=300):
        synthetic, rng = load("synthetic_network"), np.random.default_rng(seed)
        network = synthetic.random_network(number, "tables", 3, (2, number), rng)
        return CategoricalRows(synthetic.draw(network, num_rows, rng), network.cardinalities)

    return make


@pytest.mark.statistical
def test_synthetic_networks_are_not_thin(load):
    synthetic, rng = load("synthetic_network"), np.random.default_rng(0)
    for kind in synthetic.KINDS:
        network = synthetic.random_network(15, kind, 4, (5, 8), rng)
        assert 5 <= network.to_junction_tree().tree.treewidth <= 8
        assert max(map(len, network.parents)) <= 4
        drawn = synthetic.draw(network, 20_000, rng)
        exact = network.to_junction_tree().marginals[:, 1].numpy()
        assert np.abs(drawn.mean(0) - exact).max() < 6 * 0.5 / np.sqrt(len(drawn))


@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(5))
def test_chow_liu_is_the_best_tree(load, make_rows, seed):
    rows = make_rows(5, seed)
    information = mutual_information(rows)
    trees = (networkx.from_prufer_sequence([*code]).edges for code in np.ndindex(5, 5, 5))
    best = max(sum(information[pair] for pair in tree) for tree in trees)
    found = edges_of(load("chow_liu").chow_liu_tree(rows))
    assert len(found) == 4
    assert sum(information[pair] for pair in found) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(5))
def test_ordering_search_finds_the_best_network(load, make_rows, seed):
    """As it does for most data, which no local search finds for all."""
    score = ChordalScore(make_rows(5, seed))

    def best_of(d, before):
        return max(
            score.term(frozenset([*above, d])) - score.term(frozenset(above))
            for size in range(3)
            for above in combinations(before, size)
        )

    best = max(sum(best_of(d, order[:i]) for i, d in enumerate(order)) for order in permutations(range(5)))
    parents = load("ordering_search").search_orders(score, 2, np.random.default_rng(seed))
    assert max(map(len, parents)) <= 2
    assert family_score(score, parents) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(3))
def test_ordering_search_is_no_worse_than_another_package(load, make_rows, seed):
    """For most data, as both are local searches."""
    rows = make_rows(12, seed, 1000)
    values = np.repeat(rows.values.T, rows.weights.astype(int), axis=0)
    learner = pyagrum.BNLearner(pandas.DataFrame(values, columns=[f"x{d}" for d in range(12)]))
    learner.useScoreBIC()
    learner.setMaxIndegree(3)
    learner.useLocalSearchWithTabuList(100, 2)
    found = learner.learnDAG()
    peer = [sorted(found.parents(d)) for d in range(12)]
    score = ChordalScore(rows)
    parents = load("ordering_search").search_orders(score, 3, np.random.default_rng(seed))
    assert family_score(score, parents) >= family_score(score, peer) - 1e-6


def test_tables_of_a_network_are_those_of_a_junction_tree(load):
    values = np.random.default_rng(0).integers(0, [2, 3, 2], (50, 3))
    network = load("ordering_search").fit_network(values, [2, 3, 2], [(1,), (), (1,)], 4.0)
    expected = JunctionTree.from_data(torch.from_numpy(values), CliqueTree([(0, 1), (1, 2)], [2, 3, 2]), 4.0)
    rows = torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(2))
    torch.testing.assert_close(network.to_junction_tree().log_prob(rows), expected.log_prob(rows))


@pytest.mark.statistical
@pytest.mark.parametrize("treewidth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_local_search_ends_where_no_edge_improves(load, make_rows, treewidth, seed):
    score, neighbors = ChordalScore(make_rows(8, seed)), [set() for _ in range(8)]
    start = score_of(score, neighbors)
    gain = load("triangulated_search").climb_triangulated_graphs(score, neighbors, treewidth)
    end = score_of(score, neighbors)
    assert is_chordal(neighbors) and width(neighbors) <= treewidth
    assert end - start == pytest.approx(gain) and gain > 0
    for one, other in combinations(range(8), 2):
        near = [set(each) for each in neighbors]
        near[one] ^= {other}
        near[other] ^= {one}
        if is_chordal(near) and width(near) <= treewidth:
            assert score_of(score, near) <= end + 1e-6


def test_local_search_removes_edges(load, make_rows):
    score = ChordalScore(make_rows(6, 0), 100.0)
    neighbors = [set(range(6)) - {d} for d in range(6)]
    load("triangulated_search").climb_triangulated_graphs(score, neighbors, 5)
    assert not edges_of(neighbors)


@pytest.mark.statistical
@pytest.mark.parametrize("treewidth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_graphs_are_k_trees(load, make_rows, treewidth, seed):
    rows = make_rows(9, seed)
    neighbors = load("greedy_k_tree").grow_k_tree(ChordalScore(rows, 0.0), treewidth)
    assert is_chordal(neighbors) and width(neighbors) == treewidth
    assert len(edges_of(neighbors)) == treewidth * (treewidth + 1) // 2 + (8 - treewidth) * treewidth
    if treewidth == 1:
        assert edges_of(neighbors) == edges_of(load("chow_liu").chow_liu_tree(rows))


def test_few_variables_are_one_clique(load, make_rows):
    rows = make_rows(4, 0)
    for neighbors in (
        load("greedy_k_tree").grow_k_tree(ChordalScore(rows, 0.0), 4),
        load("principled_junction_tree").learn_principled_tree(rows, 3),
    ):
        assert len(edges_of(neighbors)) == 6


@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(3))
def test_principled_learner_recovers_a_thin_network(load, seed):
    rng = np.random.default_rng(seed)
    network = chain_of_order_two(8)
    rows = CategoricalRows(load("synthetic_network").draw(network, 50_000, rng), network.cardinalities)
    neighbors = load("principled_junction_tree").learn_principled_tree(rows, 2)
    assert edges_of(neighbors) == {(d, other) for d in range(8) for other in (d + 1, d + 2) if other < 8}


@pytest.mark.statistical
@pytest.mark.parametrize("treewidth", [1, 2])
def test_principled_learner_keeps_the_width(load, make_rows, treewidth):
    for seed in range(10):
        neighbors = load("principled_junction_tree").learn_principled_tree(make_rows(7, seed, 50), treewidth)
        assert is_chordal(neighbors) and width(neighbors) <= treewidth


def test_principled_learner_takes_few_variables(load):
    rows = CategoricalRows(np.zeros((2, 21), dtype=int), [2] * 21)
    with pytest.raises(ValueError, match="rows: expected at most 20 variables, got 21"):
        load("principled_junction_tree").learn_principled_tree(rows, 1)
