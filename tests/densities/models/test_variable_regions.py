"""Regions of variables against linkage and spanning trees that others compute."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree
from sklearn.metrics import mutual_info_score

from pyro_structured.densities.models.variable_regions import maximum_spanning_trees, pair_information, variable_regions


def random_rows(seed, n, number=60):
    """Rows of variables that depend on each other, and weights, so that no two pairs are equally dependent."""
    generator = np.random.default_rng(seed)
    classes = generator.integers(3, size=number)
    rows = generator.random((number, n)) < generator.random((3, n))[classes]
    return torch.from_numpy(rows).double(), torch.from_numpy(generator.integers(10**6, size=number)).double()


def information(values, weights):
    """Mutual information by scikit-learn, which counts whole rows."""
    found = np.zeros((values.shape[1], values.shape[1]))
    for a, b in itertools.permutations(range(len(found)), 2):
        cells = (2 * values[:, a] + values[:, b]).long()
        table = torch.zeros(4).double().index_add(0, cells, weights).reshape(2, 2)
        found[a, b] = mutual_info_score(None, None, contingency=table.numpy())
    return found


def average_linkage(similarity, largest):
    """Joins the sets whose pairs of variables have the largest mean, found anew in every step."""
    sets = [[d] for d in range(len(similarity))]
    while True:
        pairs = [
            (similarity[np.ix_(a, b)].mean(), a, b)
            for i, a in enumerate(sets)
            for b in sets[i + 1 :]
            if len(a) + len(b) <= largest
        ]
        if not pairs:
            return {frozenset(each) for each in sets}
        _, a, b = max(pairs, key=lambda pair: pair[0])
        sets = [each for each in sets if each not in (a, b)] + [a + b]


def weight_of_largest_tree(weights):
    """Weight of the largest tree by scipy, which finds trees of smallest weight, and takes zeros for missing edges."""
    largest = weights.max() + 1
    distances = largest - weights
    np.fill_diagonal(distances, 0.0)
    return (len(weights) - 1) * largest - minimum_spanning_tree(distances).sum()


@given(st.integers(0, 2**16), st.integers(1, 9), st.integers(1, 5))
def test_regions(seed, n, largest):
    values, weights = random_rows(seed, n)
    regions, parents = variable_regions(values, weights, largest)
    members = [torch.nonzero(regions == region).squeeze(-1).tolist() for region in range(len(parents))]
    expected = information(values, weights)
    assert {frozenset(each) for each in members} == average_linkage(expected, largest)
    assert parents[0] == 0 and (parents[1:] < torch.arange(1, len(parents))).all()
    strongest = np.array([[expected[np.ix_(a, b)].max() for b in members] for a in members])
    found = sum(strongest[region, above] for region, above in enumerate(parents.tolist()) if region)
    assert found == pytest.approx(weight_of_largest_tree(strongest), abs=1e-9)


def test_regions_are_dependent_groups():
    values = torch.randint(2, (500, 3)).repeat_interleave(2, 1)[:, [0, 2, 4, 1, 3, 5]].float()
    regions, _ = variable_regions(values, torch.ones(500), 3)
    assert regions[:3].tolist() == regions[3:].tolist() and sorted(regions[:3].tolist()) == [0, 1, 2]


@given(st.integers(0, 2**16), st.integers(1, 5))
def test_mutual_information(seed, n):
    values, weights = random_rows(seed, n)
    values[:, 0] = 1.0  # a variable that never varies
    share = weights / weights.sum()
    found = pair_information(share @ values, values.mT @ (values * share.unsqueeze(-1)))
    np.testing.assert_allclose(found, information(values, weights), atol=1e-12)


@given(st.integers(0, 2**16), st.integers(1, 4), st.integers(1, 9))
def test_spanning_trees(seed, number, n):
    weights = torch.rand(number, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    weights = weights + weights.mT
    order, parents = maximum_spanning_trees(weights)
    for each, nodes, above in zip(weights, order.tolist(), parents.tolist(), strict=True):
        assert sorted(nodes) == list(range(n)) and above[nodes[0]] == nodes[0]
        assert all(nodes.index(above[d]) < nodes.index(d) for d in nodes[1:])
        found = sum(float(each[d, above[d]]) for d in nodes[1:])
        assert found == pytest.approx(weight_of_largest_tree(each.numpy()))
