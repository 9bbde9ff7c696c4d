"""Queries of several families of nested subsets equal enumeration; one family equals RecursiveCardinality."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.counts.ops import count_diagram
from pyro_structured.distributions import GeneralizedMatching, OverlappingCardinality, RecursiveCardinality
from pyro_structured.distributions.cardinality_potentials import parity
from pyro_structured.inference import LoopyBP, TreeReweighted
from pyro_structured.structures import NestedSubsets


def random_subsets(rng, number):
    """A nested family: blocks of a random order, some of them merged, with references for some."""
    order = rng.permutation(number)
    cuts = np.sort(rng.choice(number + 1, 2))
    subsets = [order[: cuts[0]], order[cuts[0] : cuts[1]], order[: cuts[1]]][: rng.integers(1, 4)]
    references = [rng.integers(0, 2, number)[subset] for subset in subsets]
    if len(subsets) == 3:
        references[2] = np.concatenate([references[0], references[1]])
    return NestedSubsets(subsets, number, references if rng.random() < 0.5 else None)


def random_families(seed, most=7):
    rng = np.random.default_rng(seed)
    number = int(rng.integers(2, most + 1))
    scale = rng.choice([0.1, 1.0, 20.0])
    families, logits = [], torch.from_numpy(scale * rng.normal(size=(2, number)))
    for _ in range(rng.integers(1, 4)):
        subsets = random_subsets(rng, number)
        table = scale * rng.normal(size=(2, subsets.table_size))
        table[rng.random(table.shape) < 0.1] = -math.inf
        families.append((subsets, torch.from_numpy(table)))
    if rng.random() < 0.5:
        order = rng.permutation(number)
        tree = NestedSubsets([order[:2]], number, edges=list(itertools.pairwise(order.tolist())))
        tables = [torch.from_numpy(rng.normal(size=shape)) for shape in ((number,), (3,), (number - 1, 2, 2))]
        families.append(RecursiveCardinality(tables[0], tables[1], tree, edge_logits=tables[2]))
    return logits, families


def enumerated(logits, families):
    values = torch.tensor(list(itertools.product((0.0, 1.0), repeat=logits.shape[-1])), dtype=torch.double)
    total = (values.unsqueeze(1) * logits).sum(-1)
    for family in families:
        if isinstance(family, RecursiveCardinality):
            total = total + family.unnormalized_log_prob(values).unsqueeze(-1)
            continue
        subsets, table = family
        for counts, part in zip(subsets.counts(values).T, subsets.split(table), strict=True):
            total = total + part[:, counts].T
    return values, total


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_queries(seed):
    logits, families = random_families(seed)
    values, log_weights = enumerated(logits, families)
    log_z = torch.logsumexp(log_weights, 0)
    d = OverlappingCardinality(logits, families)
    if not bool((log_z > -math.inf).all()):
        with pytest.raises(ValueError, match="families: expected at least one vector of positive probability"):
            _ = d.log_partition_function
        return
    torch.testing.assert_close(d.log_partition_function, log_z, rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(d.log_prob(values.unsqueeze(1)), log_weights - log_z, rtol=1e-10, atol=1e-10)
    probs = (log_weights - log_z).exp()
    torch.testing.assert_close(d.marginals, torch.einsum("vr,vd->rd", probs, values), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(d.unnormalized_log_prob(d.mode), log_weights.amax(0), rtol=1e-9, atol=1e-9)
    for number, family in enumerate(families):
        if not isinstance(family, RecursiveCardinality):
            subsets = family[0]
            counts = subsets.counts(values)
            parts = [torch.nn.functional.one_hot(c, size + 1) for c, size in zip(counts.T, subsets.sizes, strict=True)]
            expected = torch.einsum("vr,vt->rt", probs, torch.cat(parts, -1).double())
            torch.testing.assert_close(d.table_marginals(number), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_contain_log_z(seed):
    logits, families = random_families(seed)
    log_z = torch.logsumexp(enumerated(logits, families)[1], 0)
    if bool((log_z > -math.inf).all()):
        low, high = OverlappingCardinality(logits, families).log_partition_bounds()
        slack = 1e-8 * (1 + log_z.abs())
        assert bool((low <= log_z + slack).all()) and bool((high >= log_z - slack).all())


@pytest.mark.parametrize("method", [LoopyBP(), TreeReweighted()], ids=str)
def test_one_family_is_exact(method):
    logits, families = random_families(4)
    for family in families:
        d = OverlappingCardinality(logits, [family])
        found = d.approximate_marginals(method)
        torch.testing.assert_close(found.marginals, d.marginals)
        torch.testing.assert_close(found.log_partition, d.log_partition_function)
        assert bool(found.converged.all()) and bool((found.num_iterations == 1).all())


def test_messages_of_trees_and_nested_counts():
    """Where messages stand on a tree of families that share one variable, they are exact."""
    left = NestedSubsets([[0, 1], [0, 1, 2]], 5)
    right = NestedSubsets([[2, 3]], 5, edges=[(3, 4)])
    torch.manual_seed(0)
    tables = [torch.randn(size, dtype=torch.double) for size in (left.table_size, right.table_size)]
    edges = torch.randn(1, 2, 2, dtype=torch.double)
    whole = RecursiveCardinality(torch.zeros(5, dtype=torch.double), tables[1], right, edge_logits=edges)
    d = OverlappingCardinality(torch.randn(5, dtype=torch.double), [(left, tables[0]), whole])
    found = d.approximate_marginals(LoopyBP())
    torch.testing.assert_close(found.marginals, d.marginals)
    torch.testing.assert_close(found.log_partition, d.log_partition_function)


def test_rows_and_columns_are_a_matrix():
    torch.manual_seed(1)
    logits, rows, columns = (torch.randn(shape, dtype=torch.double) for shape in ((3, 4), (3, 5), (4, 4)))
    matrix = GeneralizedMatching(logits, rows, columns)
    places = np.arange(12).reshape(3, 4)
    families = [(NestedSubsets(places, 12), rows.flatten()), (NestedSubsets(places.T, 12), columns.flatten())]
    d = OverlappingCardinality(logits.flatten(), families)
    torch.testing.assert_close(d.log_partition_function, matrix.log_partition_function)
    torch.testing.assert_close(d.marginals, matrix.marginals.flatten())
    for mine, other in zip(d.log_partition_bounds(), matrix.log_partition_bounds(), strict=True):
        torch.testing.assert_close(mine, other)


def test_a_family_with_clamps_and_evidence():
    logits, families = random_families(0)
    number = logits.shape[-1]
    subsets = NestedSubsets([range(number)], number)
    given_logits = torch.zeros(number, dtype=torch.double)
    given_logits[0] = math.inf
    whole = RecursiveCardinality(given_logits, torch.zeros(number + 1, dtype=torch.double), subsets)
    evidence = torch.arange(number).double() * 0.1
    d = OverlappingCardinality(logits, [*families[:1], whole.reweight(-evidence, evidence)])
    plain = OverlappingCardinality(logits, families[:1])
    observed = torch.arange(number) == 0
    expected = plain.reweight(-evidence, evidence).condition(torch.ones(number), observed)
    torch.testing.assert_close(d.marginals, expected.marginals)
    torch.testing.assert_close(d.log_partition_function, expected.log_partition_function)


def test_beyond_the_budget(monkeypatch):
    monkeypatch.setattr(count_diagram, "MOST_STATES", 3)
    logits, families = random_families(17)
    d = OverlappingCardinality(logits, families)
    with pytest.raises(NotImplementedError, match="at most 3 states"):
        d.sample()
    values, log_weights = enumerated(logits, families)
    torch.testing.assert_close(d.unnormalized_log_prob(d.mode), log_weights.amax(0))


def test_laws_that_no_vector_meets():
    subsets = [NestedSubsets([[0, 1]], 3), NestedSubsets([[1, 2]], 3)]
    none, two = (torch.full((3,), -math.inf).index_fill(0, torch.tensor([k]), 0.0) for k in (0, 2))
    d = OverlappingCardinality(torch.zeros(3), [(subsets[0], none), (subsets[1], two)])
    for query in (lambda: d.log_partition_function, lambda: d.mode, lambda: d.approximate_marginals(LoopyBP())):
        with pytest.raises(ValueError, match="none meets the counts of all families"):
            query()
    never = OverlappingCardinality(torch.zeros(3), [(subsets[0], torch.full((3,), -math.inf))])
    with pytest.raises(ValueError, match=r"the table of families\[0\], subset 0 allows no count"):
        _ = never.log_partition_function


def test_wrong_arguments():
    subsets, table = NestedSubsets([[0, 1]], 3), torch.zeros(3)
    edges = NestedSubsets([[0, 1]], 3, edges=[(0, 1)])
    cases = {
        "families: expected at least one": [],
        r"families\[0\]: expected a pair": [table],
        r"families\[1\]\[1\]: expected a last axis of 3": [(subsets, table), (subsets, torch.zeros(4))],
        r"families\[0\]: expected subsets without edges": [(edges, table)],
        r"families\[0\]: expected 3 variables": [(NestedSubsets([[0, 1]], 2), table)],
        r"families: expected batches that broadcast": [(subsets, torch.zeros(3, 3)), (subsets, torch.zeros(2, 3))],
    }
    for text, families in cases.items():
        with pytest.raises(ValueError, match=text):
            OverlappingCardinality(torch.zeros(3), families)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_parity_codes(seed):
    """Posterior bits of random codes, and of their syndromes, equal the sum over all words of the code."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(3, 11))
    checks = [rng.permutation(number)[: rng.integers(1, number + 1)].tolist() for _ in range(rng.integers(1, number))]
    word = rng.integers(0, 2, number)
    odd = [bool(word[check].sum() % 2) for check in checks]
    received = torch.from_numpy(3 * rng.normal(size=(2, number)))
    tables = [parity(len(check), is_odd).double() for check, is_odd in zip(checks, odd, strict=True)]
    d = OverlappingCardinality.from_subsets(received, checks, tables)
    words = torch.tensor(list(itertools.product((0.0, 1.0), repeat=number)), dtype=torch.double)
    fits = torch.ones(len(words), dtype=torch.bool)
    for check, is_odd in zip(checks, odd, strict=True):
        fits &= words[:, check].sum(-1) % 2 == int(is_odd)
    scores = (words[fits].unsqueeze(1) * received).sum(-1)
    probs = scores.softmax(0)
    torch.testing.assert_close(d.marginals, torch.einsum("vr,vd->rd", probs, words[fits]), rtol=1e-9, atol=1e-11)
    if seed % 5 == 0:
        torch.testing.assert_close(d.unnormalized_log_prob(d.mode), scores.amax(0))
        low, high = d.log_partition_bounds()
        log_z = scores.logsumexp(0)
        assert bool((low <= log_z + 1e-8).all()) and bool((high >= log_z - 1e-8).all())


def test_decoding():
    """A code of 96 bits, beyond exact sums: messages correct nearly all of the errors of the received words."""
    torch.manual_seed(0)
    orders = [torch.arange(96), torch.randperm(96), torch.randperm(96)]
    checks = [check.tolist() for order in orders for check in order.split(6)]
    received = 4.0 * (0.7 * torch.randn(200, 96, dtype=torch.double) - 1.0)
    d = OverlappingCardinality.from_subsets(received, checks, [parity(6).double()] * 48)
    assert [len(subsets.sizes) for subsets, _ in d.families] == [16, 16, 16]
    found = d.approximate_marginals(LoopyBP(1e-3, max_iterations=20))
    wrong = (found.marginals > 0.5).double().mean()
    assert wrong < 0.1 * (received > 0).double().mean() and found.converged.double().mean() > 0.9
    with pytest.raises(NotImplementedError, match="LoopyBP"):
        d.sample()


def test_families_of_subsets():
    logits = torch.zeros(6, dtype=torch.double)
    subsets = [[0, 1], [0, 1, 2], [2, 3], [4, 5], [1, 4], [], [3]]
    tables = [torch.randn(3, len(subset) + 1, dtype=torch.double) for subset in subsets]
    d = OverlappingCardinality.from_subsets(logits, subsets, tables)
    assert [len(family.sizes) for family, _ in d.families] == [5, 2] and d.batch_shape == (3,)
    values = torch.tensor(list(itertools.product((0.0, 1.0), repeat=6)), dtype=torch.double)
    total = sum(table[:, values[:, subset].sum(-1).long()].T for subset, table in zip(subsets, tables, strict=True))
    torch.testing.assert_close(d.unnormalized_log_prob(values.unsqueeze(1)), total)
    with pytest.raises(ValueError, match="tables: expected 7, one for each subset, got 6"):
        OverlappingCardinality.from_subsets(logits, subsets, tables[:-1])
    with pytest.raises(ValueError, match=r"tables\[2\]: expected numbers less than \+inf"):
        OverlappingCardinality.from_subsets(logits, subsets, [*tables[:2], tables[2] + math.inf, *tables[3:]])
    with pytest.raises(ValueError, match=r"families\[0\]\[1\]: expected numbers less than \+inf"):
        OverlappingCardinality(logits, [(NestedSubsets([[0]], 6), torch.tensor([0.0, math.nan]))])
    with pytest.raises(ValueError, match=r"subsets: expected every element once"):
        OverlappingCardinality.from_subsets(logits, [[0, 0]], [torch.zeros(3)])
