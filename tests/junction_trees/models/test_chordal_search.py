"""Chordal graphs that fit data: what they score, and that they stay chordal and small."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree

from pyro_structured.distributions import JunctionTree
from pyro_structured.junction_trees.models.chordal_search import ChordalScore, grow_chordal_graph, polish_chordal_graph
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows, mutual_information
from pyro_structured.junction_trees.ops.chordal_graph import is_chordal, neighbor_sets
from pyro_structured.structures import CliqueTree


def random_rows(seed, size=7, number=200):
    """Data from a chain with some noise."""
    rng = np.random.default_rng(seed)
    cardinalities = rng.integers(1, 4, size)
    values = np.zeros((number, size), dtype=int)
    for d in range(size):
        fresh = rng.integers(cardinalities[d], size=number)
        before = values[:, int(rng.integers(max(d, 1)))] % cardinalities[d]
        values[:, d] = np.where(rng.random(number) < 0.6, before, fresh)
    return values, cardinalities.tolist()


def tree_of(neighbors, cardinalities):
    return CliqueTree.from_edges([(d, e) for d, near in enumerate(neighbors) for e in near if d < e], cardinalities)


def penalised(values, neighbors, cardinalities, penalty):
    """From the maximum likelihood of the distribution, and the numbers of entries of cliques and separators."""
    tree = tree_of(neighbors, cardinalities)
    x = torch.from_numpy(values)
    size = sum(tree.table_sizes) - sum(math.prod(cardinalities[d] for d in each) for each in tree.separators)
    roots = sum(parent == index for index, parent in enumerate(tree.parents))
    return float(JunctionTree.from_data(x, tree).log_prob(x).sum()) - penalty * math.log(len(values)) / 2 * (
        size - roots
    )


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from([0.25, 1.0]))
def test_score_and_width(seed, treewidth, penalty):
    values, cardinalities = random_rows(seed)
    score = ChordalScore(CategoricalRows(values, cardinalities), penalty)
    neighbors = neighbor_sets(len(cardinalities), [])
    empty = penalised(values, neighbors, cardinalities, penalty)
    gain = grow_chordal_graph(score, neighbors, treewidth)
    reached = penalised(values, neighbors, cardinalities, penalty)
    assert is_chordal(neighbors) and tree_of(neighbors, cardinalities).treewidth <= treewidth
    assert reached - empty == pytest.approx(gain, abs=1e-6)
    assert no_edge_helps(score, neighbors, treewidth)
    more = polish_chordal_graph(score, neighbors, treewidth, 0.02, np.random.default_rng(seed))
    assert is_chordal(neighbors) and tree_of(neighbors, cardinalities).treewidth <= treewidth
    assert penalised(values, neighbors, cardinalities, penalty) - reached == pytest.approx(more, abs=1e-6)


def no_edge_helps(score, neighbors, treewidth):
    """Whether no edge has a gain, by trying all of them."""
    for one, other in itertools.combinations(range(len(neighbors)), 2):
        if other in neighbors[one]:
            continue
        edges = [(d, e) for d, near in enumerate(neighbors) for e in near] + [(one, other)]
        wider = neighbor_sets(len(neighbors), edges)
        if is_chordal(wider) and len(neighbors[one] & neighbors[other]) < treewidth:
            if score.gain((one, other), frozenset(neighbors[one] & neighbors[other])) > 1e-9:
                return False
    return True


def test_spanning_tree_of_most_information():
    """With a treewidth of 1 and no penalty, the graph is that of Chow and Liu, whose weight scipy finds too."""
    values, cardinalities = random_rows(3)
    rows = CategoricalRows(values, cardinalities)
    neighbors = neighbor_sets(len(cardinalities), [])
    gain = grow_chordal_graph(ChordalScore(rows, 0.0), neighbors, 1)
    information = mutual_information(rows)
    best = -float(minimum_spanning_tree(-np.triu(information, 1)).sum())
    assert gain == pytest.approx(best * len(values))


def test_mutual_information():
    values, cardinalities = random_rows(5)
    weights = np.random.default_rng(0).random(len(values))
    found = mutual_information(CategoricalRows(values, cardinalities, weights))
    for d, e in itertools.product(range(7), repeat=2):
        joint = np.zeros((cardinalities[d], cardinalities[e]))
        np.add.at(joint, (values[:, d], values[:, e]), weights / weights.sum())
        peer = joint.sum(1, keepdims=True) * joint.sum(0)
        expected = sum(p * math.log(p / q) for p, q in zip(joint.ravel(), peer.ravel(), strict=True) if p > 0)
        assert found[d, e] == pytest.approx(expected, abs=1e-12)


def test_polishing_improves():
    values, cardinalities = random_rows(11, size=10, number=2_000)
    score = ChordalScore(CategoricalRows(values, cardinalities))
    neighbors = neighbor_sets(10, [])
    assert polish_chordal_graph(score, neighbors, 2, 0.3, np.random.default_rng(0)) > 0
