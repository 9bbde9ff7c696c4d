"""Compiled passes over the entries that agree with evidence have the results of passes over all entries."""

import itertools
import math
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import JunctionTree
from pyro_structured.junction_trees.ops import junction_tree
from pyro_structured.junction_trees.ops.clique_tables import total_score
from pyro_structured.structures import CliqueTree

INF = math.inf


@st.composite
def cases(draw):
    """Trees, forests among them, with large cliques; tables and evidence of one row or of several."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    n, reach = draw(st.integers(1, 9)), draw(st.integers(0, 3))
    sizes = draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    pairs = list(itertools.combinations(range(n), 2))
    edges = draw(st.lists(st.sampled_from(pairs), max_size=n)) if pairs else []
    # Bands, in any order, have cliques that share several variables.
    order = torch.randperm(n, generator=generator).tolist()
    tree = CliqueTree.from_edges([*edges, *((order[a], order[b]) for a, b in pairs if b - a <= reach)], sizes)
    scale, impossible = draw(st.sampled_from([0.3, 3.0, 100.0])), draw(st.sampled_from([0.0, 0.1, 0.4]))
    rows = draw(st.sampled_from([1, 4]))
    tables = scale * torch.randn(draw(st.sampled_from([1, rows])), tree.table_size, generator=generator).double()
    tables = tables.masked_fill(torch.rand(tables.shape, generator=generator) < impossible, -INF)
    share = draw(st.sampled_from([None, 0.0, 0.2, 1.0]))
    if share is None:
        return tree, tables, tables.new_zeros(1, 0)
    value = torch.stack([torch.randint(size, (rows,), generator=generator) for size in sizes], -1)
    observed = torch.rand(rows, n, generator=generator) < share
    columns = [observed[:, d : d + 1] & (value[:, d : d + 1] != torch.arange(size)) for d, size in enumerate(sizes)]
    excluded = torch.cat(columns, -1)
    # Evidence may leave several states, too.
    excluded |= torch.rand(excluded.shape, generator=generator) < draw(st.sampled_from([0.0, 0.1]))
    return tree, tables, torch.zeros(excluded.shape).double().masked_fill(excluded, -INF)


def both_ways(compute, monkeypatch):
    """Results of compiled passes, with which all rows were solved, and of others."""
    calls = []
    levels = junction_tree._solve_by_level
    with monkeypatch.context() as patch:
        patch.setattr(junction_tree, "SMALL_TREE", 0)
        patch.setattr(junction_tree, "_solve_by_level", lambda *given: calls.append(given) or levels(*given))
        found = compute()
    with monkeypatch.context() as patch:
        patch.setattr(junction_tree, "compiled_function", lambda *names: None)
        return found, compute(), calls


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, equal_nan=True)


def close_beliefs(found, expected):
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    assert not found.marginals[found.log_partition == -INF].any()


@pytest.mark.parametrize("scale", [1.0, 300.0, 1e4])
def test_chains_whose_masses_underflow(scale):
    """They are solved in logarithms, with the same results for single states as for all tables."""
    tree = CliqueTree.from_edges([(d, d + 1) for d in range(7)], [3] * 8)
    tables = scale * torch.randn(1, tree.table_size, generator=torch.Generator().manual_seed(0)).double()
    single = JunctionTree(tables[0], tree).marginals.flatten()
    beliefs = junction_tree.infer_tree(tables, tables.new_zeros(1, 0), tree.plan, True)
    close(single, beliefs.marginals[0])
    rows = junction_tree.infer_tree(tables.repeat(100, 1), tables.new_zeros(1, 0), tree.plan, False)
    close(rows.marginals[0], single)


def test_beliefs(monkeypatch):
    pytest.importorskip("numba")

    @settings(max_examples=300, deadline=None)
    @given(cases())
    def check(case):
        tree, tables, evidence = case
        for cliques in (False, True):
            found, expected, calls = both_ways(
                partial(junction_tree.infer_tree, tables, evidence, tree.plan, cliques), monkeypatch
            )
            assert tables[tables > -INF].abs().sum() > 250 or not calls
            if cliques:
                close_beliefs(found, expected)
            else:
                close(found[:2], expected[:2])
        found, expected, _ = both_ways(
            lambda: junction_tree.log_partition_of_tree(tables, evidence, tree.plan), monkeypatch
        )
        close(found, expected)

    check()


def test_most_probable_values(monkeypatch):
    """Values that both find have the same weight, and agree with the evidence."""
    pytest.importorskip("numba")

    @settings(max_examples=150, deadline=None)
    @given(cases())
    def check(case):
        tree, tables, evidence = case
        possible = junction_tree.log_partition_of_tree(tables, evidence, tree.plan) > -INF

        def weight():
            values = junction_tree.maximize_tree(tables, evidence, tree.plan)
            states = values + torch.tensor([0, *tree.cardinalities[:-1]]).cumsum(0)
            found = evidence.expand(len(possible), -1).gather(1, states).sum(1) if evidence.shape[1] else 0.0
            return (found + total_score(tree.plan, tables, values))[possible]

        found, expected, _ = both_ways(weight, monkeypatch)
        close(found, expected)

    check()


def test_samples_of_a_seed(monkeypatch):
    """The same draws, whatever takes them: one and many, from states that are likely and impossible."""
    pytest.importorskip("numba")

    @settings(max_examples=150, deadline=None)
    @given(cases(), st.sampled_from([1, 2, 30]), st.integers(0, 2**31))
    def check(case, number, seed):
        tree, tables, evidence = case
        if bool((junction_tree.log_partition_of_tree(tables, evidence, tree.plan) == -INF).any()):
            return

        def draw():
            torch.manual_seed(seed)
            draws = junction_tree.TreeDraws(tables, evidence, tree.plan)
            assert draws.possible
            return torch.cat([draws(number), draws(2)])

        found, expected, _ = both_ways(draw, monkeypatch)
        assert torch.equal(found, expected)

    check()


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_samples_at_the_ends(uniform, monkeypatch):
    """Impossible states are not drawn, whatever the uniform variables are."""
    tree = CliqueTree([[0, 1], [1, 2]], [3, 4, 3])
    possible = torch.tensor([False, True, False])
    first = torch.full((3, 4), -INF).double()
    first[possible, 1:3] = 0.0
    second = torch.where(possible, 0.0, -INF).double().expand(4, 3)
    d = JunctionTree(tree.pack([first, second]), tree)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.full(shape, uniform, **options))
    monkeypatch.setattr(torch, "rand_like", lambda tensor: torch.full_like(tensor, uniform))
    for number in (1, 50):
        assert (d.sample((number,)) == torch.tensor([1, 2 if uniform else 1, 1])).all()


@pytest.mark.parametrize("most", [1, 40, 2**22])
def test_samples_of_many_rows(most, monkeypatch):
    """Batches of rows have their own tables and evidence."""
    monkeypatch.setattr(junction_tree, "MOST_MESSAGES", most)
    monkeypatch.setattr(junction_tree, "DRAWN_AT_ONCE", 7)
    tree = CliqueTree([[0, 1, 2], [1, 2, 3], [3, 4]], [2, 3, 4, 3, 5])
    tables = torch.full((9, tree.table_size), -INF).double()
    value = torch.stack([torch.randint(size, (9,)) for size in tree.cardinalities], -1)
    tables.scatter_(1, tree.plan.table_index(value), 0.0)
    assert (JunctionTree(tables, tree).sample((3,)) == value).all()
    d = JunctionTree(torch.zeros(tree.table_size), tree).condition(value, torch.rand(9, 5) < 0.7)
    drawn, (known, observed, _) = d.sample((3,)), d._evidence
    assert ((drawn == known) | ~observed).all()
    assert d.sample((0,)).shape == (0, 9, 5)


def test_rows_that_are_left_out(monkeypatch):
    """Rows with finite evidence, and rows whose numbers are too small to be multiplied, among others."""
    pytest.importorskip("numba")
    tree = CliqueTree([[0, 1], [1, 2], [1, 3], [3, 4]], [2, 3, 2, 2, 2])
    tables = torch.randn(1, tree.table_size).double()
    tables[0, [1, 3, 8, 14]] = -250.0
    evidence = torch.zeros(5, 11).double()
    evidence[1, 3] = 0.5
    evidence[3, [0, 2, 4]] = -INF
    evidence[4, [2, 3, 4]] = -INF
    found, expected, calls = both_ways(lambda: junction_tree.infer_tree(tables, evidence, tree.plan), monkeypatch)
    close_beliefs(found, expected)
    ((_, left, *_),) = calls
    assert 1 <= len(left) < 5 and bool((left == evidence[1]).all(-1).any())


@pytest.mark.parametrize("scale", [1e3, 1e5, math.nan])
def test_numbers_that_cannot_be_multiplied(scale, monkeypatch):
    """Weights that overflow, or underflow and are all there is given the evidence, or are none."""
    pytest.importorskip("numba")
    tree = CliqueTree([[0, 1], [1, 2]], [2, 2, 2])
    heavy = torch.tensor([[scale, 0.0, 0.0, scale, 0.0, 0.0, 0.0, scale]]).double()
    evidence = torch.tensor([[0.0, -INF, 0.0, 0.0, -INF, 0.0], [-INF, 0.0, -INF, 0.0, 0.0, 0.0]]).double()
    for tables in (heavy, -heavy):
        found, expected, _ = both_ways(partial(junction_tree.infer_tree, tables, evidence, tree.plan), monkeypatch)
        close_beliefs(found, expected)


def test_messages_that_cannot_be_multiplied(monkeypatch):
    """Products of several small messages, none of which is too small alone, and all there is given the evidence."""
    pytest.importorskip("numba")
    tree = CliqueTree([[0, d] for d in range(1, 7)], [2] * 7)
    small = torch.tensor([[0.0, 0.0], [-200.0, -200.0]]).double()
    last = torch.tensor([[0.0, -INF], [0.0, 0.0]]).double()
    tables = tree.pack([small] * 5 + [last])[None]
    evidence = torch.zeros(1, 14).double()
    evidence[0, 12] = -INF
    found, expected, calls = both_ways(partial(junction_tree.infer_tree, tables, evidence, tree.plan), monkeypatch)
    assert len(calls) == 1
    close_beliefs(found, expected)
    close(found.log_partition, torch.tensor([5 * math.log(2) - 1000], dtype=torch.double))


def test_derivatives(monkeypatch):
    """Of log Z, with compiled marginals, and of marginals."""
    pytest.importorskip("numba")
    tree = CliqueTree([[0, 1, 2], [1, 2, 3], [4]], [2, 3, 2, 4, 2])
    value, observed = torch.tensor([[1, 2, 0, 3, 1], [0, 0, 1, 1, 0]]), torch.rand(2, 5) < 0.4
    for rows in ((), (2,)):
        logits = torch.randn(*rows, tree.table_size).double().requires_grad_()

        def derivatives(logits=logits):
            given = JunctionTree(logits, tree).condition(value, observed)
            total = (given.log_partition_function * torch.tensor([1.0, 3.0])).sum()
            (first,) = torch.autograd.grad(total, logits, create_graph=True)
            (second,) = torch.autograd.grad((first**2).sum() + (given.marginals**2).sum(), logits)
            return first.detach(), second

        found, expected, _ = both_ways(derivatives, monkeypatch)
        for one, other in zip(found, expected, strict=True):
            close(one, other)


def test_plans_are_pickled(hide_numba):
    """With and without what passes have left there."""
    tree = CliqueTree([[0, 1], [1, 2], [2, 3]], [2, 3, 2, 4])
    table = torch.randn(tree.table_size).double()
    found = JunctionTree(table, tree).clique_marginals
    hide_numba()
    for each in (tree, pickle.loads(pickle.dumps(tree)), pickle.loads(pickle.dumps(tree))):
        close(JunctionTree(table, each).clique_marginals, found)
