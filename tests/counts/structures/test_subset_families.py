"""Families as factors, as counters, and what they say of each other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.counts.ops.certified_counts import infer_counts
from pyro_structured.counts.ops.real_roots import has_real_roots
from pyro_structured.counts.structures.subset_families import CountFamily, SubsetFamilies, matching_families
from pyro_structured.structures import NestedSubsets


def disjoint_family(seed):
    """Disjoint subsets of some variables, of several sizes, some with references."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 10))
    order = rng.permutation(number)
    cuts = np.sort(rng.integers(0, number + 1, 3))
    subsets = [order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] : cuts[2]]]
    references = [rng.integers(0, 2, len(subset)) for subset in subsets]
    return NestedSubsets(subsets, number, references if rng.random() < 0.5 else None), rng


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_disjoint_subsets_are_summed_side_by_side(seed):
    """By groups of one size, and as one forest: the same sums and posteriors, clamps included."""
    subsets, rng = disjoint_family(seed)
    family = CountFamily(subsets)
    assert family.is_flat
    logits = torch.from_numpy(rng.choice([0.3, 20.0]) * rng.normal(size=(3, subsets.num_variables)))
    logits[torch.from_numpy(rng.random(logits.shape) < 0.1)] = math.inf
    logits[torch.from_numpy(rng.random(logits.shape) < 0.1)] = -math.inf
    tables = torch.from_numpy(rng.normal(size=(3, subsets.table_size)))
    log_z, odds = family(logits, tables)
    flipped = torch.zeros(subsets.num_variables, dtype=torch.bool) if family.flipped is None else family.flipped
    turned = torch.where(flipped, -logits, logits)
    expected = infer_counts(turned, tables, family.forest)
    moved = logits.where(flipped & logits.isfinite(), 0.0).sum(-1)
    torch.testing.assert_close(log_z, expected.log_partition + moved)
    torch.testing.assert_close(odds, torch.where(flipped, -expected.marginal_logits, expected.marginal_logits))


def test_counters_of_edges_and_links():
    """An edge counts its first end twice, a link its first subset by the size of the second, plus one."""
    links = [(0, 1, None)]
    family = CountFamily(NestedSubsets([[0, 1], [2, 3, 4]], 5, edges=[(0, 1)], links=links))
    counters = family.counters(start=7)
    assert [counter.size for counter in counters] == [3, 4, 4, 12]
    assert [counter.start for counter in counters] == [7, 10, 14, 18]
    assert counters[2].on.tolist() == [2, 1] and counters[3].on.tolist() == [4, 4, 1, 1, 1]
    assert not any(counter.off.any() for counter in counters)
    value = torch.tensor([True, False, True, True, False])
    cells = family.cells(value)
    for counter, cell in zip(counters, cells, strict=True):
        assert int(counter.on @ value[counter.members].long().numpy()) + counter.start - 7 == cell


def test_families_that_cross():
    rows, columns = matching_families(3, 4).factors
    assert matching_families(3, 4).is_bipartite and matching_families(3, 4).crossing == (True, True)
    assert rows.order == list(range(12)) and columns.order[:3] == [0, 4, 8]
    pairs = NestedSubsets([[0, 1], [2, 3]], 4)
    halves = NestedSubsets([[0, 2], [1, 3]], 4)
    whole = NestedSubsets([range(4)], 4)
    tree = NestedSubsets([], 4, edges=[(0, 1), (2, 3)])
    assert SubsetFamilies([pairs, halves]).crossing == (True, True)
    # Two variables of a count that stand in one subset, or on an edge, are not independent.
    assert SubsetFamilies([pairs, whole]).crossing == (False, False)
    assert SubsetFamilies([tree, halves]).crossing == (True, True)
    assert SubsetFamilies([tree, pairs]).crossing == (False, False)
    for families in ([pairs], [pairs, halves, whole], [tree, halves]):
        assert not SubsetFamilies(families).is_bipartite


@pytest.mark.parametrize("gap", [False, True])
def test_laws_with_real_roots(gap):
    """Counts that no gap separates from those of the value stay possible."""
    family = matching_families(1, 5).factors[0]
    tables = torch.tensor([[0.0, 0.2, -math.inf if gap else 0.1, 0.3, 0.0, 0.5]], dtype=torch.double)
    value = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])
    lowered = family.with_real_roots(tables, torch.full((1, 5), 0.2, dtype=torch.double), value)
    assert bool((lowered <= tables).all()) and has_real_roots(lowered[0].numpy())
    assert (lowered[0] > -math.inf).tolist() == [not gap, not gap, not gap, True, True, True]
