"""Passes through chains agree with passes from the leaves to the root, for random chains, and their samples fit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import JunctionTree
from pyro_structured.junction_trees.ops import junction_tree
from pyro_structured.junction_trees.ops.chain_passes import chain_of
from pyro_structured.structures import CliqueTree
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

INF = math.inf


@st.composite
def chains(draw):
    """Chains in any order, with unequal numbers of states, tables, and evidence, each with some -inf."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=8, max_size=12))
    order = draw(st.permutations(range(len(sizes))))
    tree = CliqueTree([sorted(pair) for pair in zip(order, order[1:], strict=False)], sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale, rows = draw(st.sampled_from([1.0, 50.0, 1e4])), draw(st.sampled_from([1, 3]))

    def numbers(*shape):
        drawn = scale * torch.randn(shape, generator=generator, dtype=torch.double)
        return drawn.masked_fill(torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.1])), -INF)

    return tree, numbers(rows, tree.table_size), numbers(draw(st.sampled_from([1, rows])), sum(sizes))


def both_ways(compute, monkeypatch):
    results = []
    for most in (0, 2**30):
        monkeypatch.setattr(junction_tree, "CHAIN_NUMBERS", most)
        results.append(compute())
    return results


def beliefs(tree, tables, evidence):
    """Log Z, marginals, and derivatives of the first and second order."""
    tables, evidence = tables.clone().requires_grad_(), evidence.clone().requires_grad_()
    found = junction_tree.infer_tree(tables, evidence, tree.plan)
    log_z = found.log_partition.masked_fill(found.log_partition == -INF, 0.0)
    total = log_z.sum() + (found.marginals**2).sum() + (found.clique_marginals**3).sum()
    first = torch.autograd.grad(total, [tables, evidence], create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), [tables, evidence])
    without = junction_tree.log_partition_of_tree(tables.detach(), evidence.detach(), tree.plan)
    return [*found, *first, *second, without]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("observed", [False, True])
def test_beliefs_and_derivatives(observed, monkeypatch):
    @settings(max_examples=100, deadline=None)
    @given(chains())
    def check(case):
        tree, tables, evidence = case
        assert tree.plan.chain(tables.device) is not None
        evidence = evidence if observed else evidence[:, :0]
        expected, found = both_ways(lambda: beliefs(tree, tables, evidence), monkeypatch)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)

    check()


@pytest.mark.statistical
def test_samples(monkeypatch):
    monkeypatch.setattr(junction_tree, "CHAIN_NUMBERS", 2**30)
    order = [3, 0, 8, 5, 1, 7, 2, 6, 4]
    sizes = [2, 1, 3, 2, 2, 1, 2, 3, 2]
    tree = CliqueTree([sorted(pair) for pair in zip(order, order[1:], strict=False)], sizes)
    tables = torch.randn(2, tree.table_size, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    tables[:, 2], tables[1, 7] = -INF, -INF
    d = JunctionTree(tables, tree)
    values = d.enumerate_support(expand=False)
    strides = torch.tensor([math.prod(sizes[place + 1 :]) for place in range(len(sizes))])
    drawn, probs = (d.sample((20_000,)) * strides).sum(-1), d.log_prob(values).exp()
    assert torch.equal((values.squeeze(1) * strides).sum(-1), torch.arange(len(values)))
    for row in range(2):
        counts = torch.bincount(drawn[:, row], minlength=len(values))
        assert not bool(counts[probs[:, row] == 0].any())
        assert discrete_goodness_of_fit(probs[:, row], counts) > 2e-9


def test_what_is_a_chain():
    pairs = [(d, d + 1) for d in range(9)]
    assert chain_of(pairs, [3] * 10).entries.shape == (9, 3, 3)
    assert chain_of(pairs[:1], [2, 3]).entries.tolist() == [[[0, 1, 2], [3, 4, 5], [6, 6, 6]]]
    assert CliqueTree.chain(8, 2).plan.chain(torch.device("cpu")) is not None
    assert CliqueTree.chain(7, 2).plan.chain(torch.device("cpu")) is None
    assert chain_of(pairs, [9] * 10) is None  # many states
    assert chain_of([*pairs[:8], (3, 9)], [2] * 10) is None  # a branch
    assert chain_of([*pairs[:7], (7, 8, 9)], [2] * 10) is None  # a clique of three
    assert chain_of([*pairs[:4], *pairs[5:]], [2] * 10) is None  # two pieces
