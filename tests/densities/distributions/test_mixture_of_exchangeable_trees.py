"""Mixtures of trees of blocks: their definition, evidence, special cases, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import (
    ExchangeableMixture,
    ExchangeableTree,
    MixtureOfExchangeableTrees,
)
from pyro_structured.structures import BlockTree, CategoryCounts, Partition, Transitions

TREES = [
    BlockTree.from_counts([[0, 1], [2, 3]], 3, [[0, 1]]),
    BlockTree.from_counts([[3, 0, 2], [1]], 3),
    BlockTree([CategoryCounts(1, 3), CategoryCounts(3, 3)], [[2], [1, 0, 3]], [[0, 1]]),
]


def random_mixture(seed, batch, impossible=0.0):
    """The tables of the batch are the same along its first axis."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(*batch[1:], sum(t.table_size for t in TREES), dtype=torch.double, generator=generator)
    tables = tables.masked_fill(torch.rand(tables.shape, generator=generator) < impossible, -torch.inf)
    weights = torch.randn(*batch, len(TREES), dtype=torch.double, generator=generator)
    return MixtureOfExchangeableTrees(weights, tables, TREES), generator


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([(), (2, 3)]))
def test_definition(seed, batch):
    d, _ = random_mixture(seed, batch)
    values = d.enumerate_support()
    parts = d.clique_logits.split([tree.table_size for tree in TREES], -1)
    each = torch.stack([ExchangeableTree(*part).log_prob(values) for part in zip(parts, TREES, strict=True)], -1)
    joint = d.mixture_logits.log_softmax(-1) + each
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(d.log_prob(values), joint.logsumexp(-1), **close)
    torch.testing.assert_close(d.posterior(values).probs, joint.softmax(-1), **close)
    classes = torch.arange(3).reshape(3, *[1] * len(batch))
    torch.testing.assert_close(d.component(classes).log_prob(values.unsqueeze(1)), each.movedim(-1, 1), **close)
    torch.testing.assert_close(d.component(torch.tensor(1)).log_prob(values), each[..., 1], **close)
    table = torch.zeros(*batch, 3, 3, dtype=torch.double)
    for value, prob in zip(values.reshape(81, -1, 4)[:, 0], joint.exp().sum(-1), strict=True):
        table[..., value[3], value[0]] += prob
    torch.testing.assert_close(d.marginals_of([3, 0]), table, **close)


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([(), (2,)]))
def test_evidence(check_evidence, seed, batch):
    d, generator = random_mixture(seed, batch, impossible=0.15)
    parts = d.clique_logits.split([tree.table_size for tree in TREES], -1)
    try:
        for part, tree in zip(parts, TREES, strict=True):
            ExchangeableTree(part, tree).log_partition_function  # noqa: B018
    except ValueError:
        # Some component has no value.
        with pytest.raises(ValueError, match="the support is empty"):
            d.log_partition_function  # noqa: B018
        return
    check_evidence(d, generator, 1e-10)


def test_blocks_without_edges_are_an_exchangeable_mixture():
    generator = torch.Generator().manual_seed(0)
    partition = Partition(torch.tensor([[0, 0, 1, 0], [0, 1, 1, 2]]))
    weights, logits = (torch.randn(*shape, dtype=torch.double, generator=generator) for shape in ((2,), (2, 8)))
    expected = ExchangeableMixture(weights, logits, partition)
    trees = [BlockTree.from_counts(part.blocks()) for part in partition]
    tables = [tree.levels.pack(part.split(table)) for tree, part, table in zip(trees, partition, logits, strict=True)]
    d = MixtureOfExchangeableTrees(weights, torch.cat(tables), trees)
    values = d.enumerate_support()
    torch.testing.assert_close(d.log_prob(values), expected.log_prob(values.double()))
    torch.testing.assert_close(d.marginals[..., 1], expected.marginals)


def test_bad_input():
    tree, logits = TREES[1], torch.zeros(2 * TREES[1].table_size)
    for arguments, message in [
        ((torch.zeros(1), logits, []), "trees: expected at least one BlockTree, got"),
        ((torch.zeros(1), logits, tree), "trees: expected at least one BlockTree, got BlockTree"),
        ((torch.zeros(1), logits, [tree.levels]), "trees: expected at least one BlockTree, got"),
        ((torch.zeros(2), logits, [tree, BlockTree([Transitions(4)], [range(4)])]), "trees: expected the same variabl"),
        ((torch.zeros(2), logits, [tree]), r"mixture_logits: expected shape \(..., 1\), got \(2,\)"),
        ((torch.zeros(1), logits, [tree]), r"clique_logits: expected shape \(..., 13\), got \(26,\)"),
        ((torch.zeros(3, 2), logits.expand(2, -1), [tree, tree]), "clique_logits: expected a batch that broadcasts"),
    ]:
        with pytest.raises(ValueError, match=message):
            MixtureOfExchangeableTrees(*arguments)
    with pytest.raises(ValueError, match="mixture_logits: expected at least one value of positive probability"):
        MixtureOfExchangeableTrees(torch.full((2,), -torch.inf), logits, [tree, tree]).log_prob(torch.zeros(4))
