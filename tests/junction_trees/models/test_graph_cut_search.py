"""Thin graphs by graph cuts: their width, what they keep, and what their cliques' tables are bounded by."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows, mutual_information
from pyro_structured.junction_trees.ops.chordal_graph import (
    elimination_cliques,
    elimination_order,
    neighbor_sets,
    width_of,
)
from pyro_structured.models import cut_graph

SEEDS = st.integers(0, 10**9)


def random_weights(seed, most):
    """Random weights, some of them zero, many small."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(2, most + 1))
    weights = rng.gamma(0.3, size=(number, number)) * (rng.random((number, number)) < rng.choice([0.3, 0.7, 1.0]))
    weights = np.triu(weights, 1)
    return rng, weights + weights.T


@pytest.mark.slow
@settings(max_examples=150)
@given(SEEDS, st.integers(1, 4), st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from([0.0, 0.3]))
def test_graphs_are_thin(seed, treewidth, discount, tolerance):
    rng, weights = random_weights(seed, 12)
    log_sizes = np.log(rng.integers(1, 5, len(weights)))
    edges = cut_graph(weights, treewidth, log_sizes, discount, tolerance)
    neighbors = neighbor_sets(len(weights), edges)
    assert width_of(neighbors, elimination_order(neighbors, log_sizes)) <= treewidth
    assert edges == sorted(set(edges)) and all(one < other for one, other in edges)


@settings(max_examples=50)
@given(SEEDS)
def test_tables_stay_small(seed):
    rng, weights = random_weights(seed, 10)
    cardinalities = rng.integers(1, 6, len(weights))
    edges = cut_graph(weights, 4, np.log(cardinalities), most_states=40)
    neighbors = neighbor_sets(len(weights), edges)
    order = elimination_order(neighbors, np.log(cardinalities))
    assert all(np.prod(cardinalities[list(clique)]) <= 40 for clique in elimination_cliques(neighbors, order))


def test_thin_graphs_are_kept():
    rng, shares = np.random.default_rng(0), []
    for _ in range(30):
        number, treewidth = int(rng.integers(5, 12)), int(rng.integers(1, 4))
        weights = np.zeros((number, number))
        cliques = [list(range(treewidth + 1))]
        for d in range(treewidth + 1, number):
            base = cliques[int(rng.integers(len(cliques)))]
            cliques.append([*rng.permutation(base)[:treewidth].tolist(), d])
        for clique in cliques:
            for one, other in itertools.combinations(clique, 2):
                weights[one, other] = weights[other, one] = 1 + rng.random()
        shares.append(sum(weights[edge] for edge in cut_graph(weights, treewidth)) / np.triu(weights).sum())
    assert np.mean(shares) > 0.95 and max(shares) <= 1 + 1e-12


def test_trees_have_almost_the_weight_of_the_best():
    from scipy.sparse.csgraph import minimum_spanning_tree

    shares = []
    for seed in range(20):
        _, weights = random_weights(seed, 12)
        best = -minimum_spanning_tree(-weights).sum()
        shares.append(sum(weights[edge] for edge in cut_graph(weights, 1)) / best if best else 1.0)
    assert np.mean(shares) > 0.97 and max(shares) <= 1 + 1e-12


def test_edges_of_strong_information_are_kept():
    rng = np.random.default_rng(1)
    first = rng.integers(2, size=(500, 3))
    x = np.concatenate([first, first ^ (rng.random(first.shape) < 0.05)], 1)
    information = mutual_information(CategoricalRows(x, [2] * 6))
    np.fill_diagonal(information, 0.0)
    assert {(0, 3), (1, 4), (2, 5)} <= set(cut_graph(information, 2))


def test_bad_input():
    weights = np.ones((3, 3))
    for arguments, message in [
        ((np.ones((2, 3)), 1), r"weights: expected a square matrix, got shape \(2, 3\)"),
        ((np.triu(weights), 1), "weights: expected a symmetric matrix of finite numbers of at least 0"),
        ((-weights, 1), "weights: expected a symmetric matrix"),
        ((weights * np.nan, 1), "weights: expected a symmetric matrix"),
        ((weights, 0), "treewidth: expected"),
        ((weights, 1, [1.0]), "log_sizes: expected 3 numbers, one for each node, got 1"),
        ((weights, 1, None, -1.0), "discount: expected a number of at least 0, got -1.0"),
        ((weights, 1, None, 0.1, np.inf), "tolerance: expected a number of at least 0, got inf"),
    ]:
        with pytest.raises(ValueError, match=message):
            cut_graph(*arguments)
    assert cut_graph(weights, 1) == cut_graph(np.ones((3, 3)) - np.eye(3), 1)
