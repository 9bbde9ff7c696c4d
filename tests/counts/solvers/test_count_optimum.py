"""Best vectors by flows and by constraint programming equal enumeration; conflicts are named."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.counts.solvers.count_optimum import (
    conflicting_counts,
    is_flow,
    maximize_by_constraints,
    maximize_by_flow,
)
from pyro_structured.counts.structures.subset_families import SubsetFamilies
from pyro_structured.structures import NestedSubsets
from tests.counts.distributions.test_overlapping_cardinality import enumerated


def concave_table(rng, sizes):
    parts = []
    for size in sizes:
        table = np.cumsum([rng.normal(), *np.sort(rng.normal(size=size))[::-1]])
        low, high = np.sort(rng.integers(0, size + 1, 2))
        if rng.random() < 0.5:
            table[: low // 2], table[high + 1 :] = -math.inf, -math.inf
        parts.append(table)
    return np.concatenate([*parts, np.zeros(0)])


def random_problem(seed):
    """One or two nested families with concave tables."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(2, 8))
    families = []
    for _ in range(rng.integers(1, 3)):
        order, cut = rng.permutation(number), int(rng.integers(0, number + 1))
        families.append(NestedSubsets([order[:cut], order[: cut // 2], order[cut:], order[:cut]], number))
    tables = [concave_table(rng, family.sizes) for family in families]
    logits = rng.choice([0.1, 1.0, 1e4]) * rng.normal(size=number)
    logits[rng.random(number) < 0.1] = math.inf
    logits[rng.random(number) < 0.1] = -math.inf
    return SubsetFamilies(families), logits, tables


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_best_vectors(seed):
    families, logits, tables = random_problem(seed)
    finite = np.where(np.isinf(logits), 0.0, logits)
    log_weights = np.stack([np.where(logits == math.inf, -math.inf, 0.0), finite], -1)
    log_weights[logits == -math.inf, 1] = -math.inf
    joined = np.concatenate(tables)
    assert is_flow(families.counters, joined)
    pairs = [(f.subsets, torch.from_numpy(t).unsqueeze(0)) for f, t in zip(families.factors, tables, strict=True)]
    values, totals = enumerated(torch.from_numpy(finite).unsqueeze(0), pairs)
    on = values.bool().numpy()
    allowed = np.where(on, log_weights[:, 1], log_weights[:, 0]) > -math.inf
    totals = np.where(allowed.all(-1), totals[:, 0].numpy(), -math.inf)
    for found in (
        maximize_by_flow(families.counters, log_weights, joined),
        maximize_by_constraints(families.counters, log_weights, joined, 10.0),
    ):
        assert found.is_possible == bool(totals.max() > -math.inf)
        if found.is_possible:
            place = (on == found.value).all(-1).argmax()
            scale = np.abs(finite).max() + 1
            assert totals[place] >= totals.max() - 1e-8 * scale and found.gap == 0


def test_what_is_no_flow():
    families = SubsetFamilies([NestedSubsets([[0, 1, 2]], 3)])
    cases = {(0.0, 1.0, 1.5, 1.0): True, (0.0, -math.inf, 0.0, 0.0): False, (0.0, 0.0, 1.0, 0.0): False}
    for table, expected in cases.items():
        assert is_flow(families.counters, np.array(table)) == expected
    turned = SubsetFamilies([NestedSubsets([[0, 1, 2]], 3, [[0, 1, 0]])])
    assert not is_flow(turned.counters, np.zeros(4))
    assert not is_flow(SubsetFamilies([NestedSubsets([[0]], 1)] * 3).counters, np.zeros(6))


def test_what_conflicts():
    rows, columns = NestedSubsets([[0, 1], [2, 3]], 4), NestedSubsets([[0, 2], [1, 3]], 4)
    families = SubsetFamilies([rows, columns])
    names = [["row 0", "row 1", "rows"], ["column 0", "column 1", "columns"]]
    free = np.ones((4, 2), dtype=bool)

    def law(*counts):
        return np.where(np.isin(np.arange(3), counts), 0.0, -math.inf)

    def conflict(*laws, allowed=free):
        return conflicting_counts(families.counters, names, allowed, np.concatenate(laws))

    assert conflict(law(1), law(1), law(1), law(1)) is None
    assert conflict(law(2), law(1), law(1), law(0, 1)) == "rows need at least 3 in all, but columns allow at most 2"
    assert conflict(law(1), law(), law(1), law(1)) == "row 1 allows no count"
    clamped = free.copy()
    clamped[2:, 0] = False
    assert conflict(law(1), law(1), law(1), law(1), allowed=clamped).endswith("of 1, but its variables can have 2")
    clamped[3, 1] = False
    assert conflict(law(1), law(1), law(1), law(1), allowed=clamped) == "variable 3 can be neither 0 nor 1"


def test_a_search_that_ends_early():
    """A search without time finds nothing, or says how far it is."""
    rng = np.random.default_rng(0)
    places = np.arange(400).reshape(20, 20)
    families = SubsetFamilies([NestedSubsets(places, 400), NestedSubsets(places.T, 400)])
    tables = rng.normal(size=2 * 20 * 21) * 5
    log_weights = np.stack([np.zeros(400), rng.normal(size=400)], -1)
    found = maximize_by_constraints(families.counters, log_weights, tables, 0.3)
    assert found.is_possible and found.gap > 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_laws_that_are_not_concave(seed):
    """By constraints, begun with the flow of the concave laws above: as by enumeration, infeasible ones told."""
    rng = np.random.default_rng(seed)
    height, width = (int(size) for size in rng.integers(1, 4, 2))
    places = np.arange(height * width).reshape(height, width)
    subsets = [NestedSubsets(places, places.size), NestedSubsets(places.T, places.size)]
    tables = [3 * rng.normal(size=s.table_size) for s in subsets]
    for table in tables:
        table[rng.random(len(table)) < 0.3] = -math.inf
    logits = rng.normal(size=places.size)
    log_weights = np.stack([np.zeros(places.size), logits], -1)
    families = SubsetFamilies(subsets)
    found = maximize_by_constraints(families.counters, log_weights, np.concatenate(tables), 10.0)
    pairs = [(s, torch.from_numpy(table).unsqueeze(0)) for s, table in zip(subsets, tables, strict=True)]
    values, totals = enumerated(torch.from_numpy(logits).unsqueeze(0), pairs)
    best = float(totals.max())
    assert found.is_possible == (best > -math.inf)
    if found.is_possible:
        place = (values.bool().numpy() == found.value).all(-1).argmax()
        assert float(totals[place]) >= best - 1e-8 and found.gap <= 1e-12


def test_a_value_and_a_bound_without_a_search():
    """Large laws that are not concave: the flow of the concave laws above is there when the time is over."""
    rng = np.random.default_rng(1)
    places = np.arange(2500).reshape(50, 50)
    families = SubsetFamilies([NestedSubsets(places, 2500), NestedSubsets(places.T, 2500)])
    log_weights = np.stack([np.zeros(2500), rng.normal(size=2500)], -1)
    found = maximize_by_constraints(families.counters, log_weights, rng.normal(size=2 * 50 * 51), 0.01)
    assert found.value is not None and 0 < found.gap < 1000
