"""Mixtures of distributions of several classes against enumeration."""

import pytest
import torch

from pyro_structured.distributions import (
    ExchangeablePartition,
    JunctionTree,
    LatentTree,
    MixtureOfDensities,
    RecursiveCardinality,
    SumProductNetwork,
)
from pyro_structured.structures import CliqueTree, HiddenTree, Partition, RegionTree
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit


def members(seed, dtype=torch.float64):
    """One of each class of vectors, of four binary variables."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=dtype)  # noqa: E731
    tree = CliqueTree([[0, 1, 2], [2, 3]], [2] * 4)
    blocks = Partition(torch.tensor([0, 1, 0, 1]))
    pairs = Partition(torch.tensor([0, 0, 2, 2]))
    regions = RegionTree(
        torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 0]]), torch.tensor([[[0, 0, 2, 2]]]), pairs.expand([1, 1])
    )
    network = draw(1), draw(1, 2, 1, 1), draw(1, 2, 1, 2), draw(1, 1, 4, 2), draw(1, 1, pairs.table_size)
    return [
        JunctionTree(draw(tree.table_size), tree),
        LatentTree(draw(4, 3, 3), draw(4, 3, 2), HiddenTree([0, 0, 1, 1], 3)),
        ExchangeablePartition(draw(blocks.table_size), blocks),
        SumProductNetwork(*network, regions),
        RecursiveCardinality(draw(4), draw(5)),
    ]


def test_enumeration():
    for seed in range(20):
        parts = members(seed)
        logits = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
        d = MixtureOfDensities(logits, parts)
        values = d.enumerate_support()
        joint = torch.stack([each.log_prob(values.double()) for each in parts], -1) + logits.log_softmax(-1)
        torch.testing.assert_close(d.log_prob(values), joint.logsumexp(-1))
        probs = joint.exp().sum(-1)
        ones = (probs.unsqueeze(-1) * values).sum(0)
        torch.testing.assert_close(d.marginals, torch.stack([1 - ones, ones], -1))
        torch.testing.assert_close(d.posterior(values).logits, joint.log_softmax(-1))
        value, seen = torch.tensor([1, 0, 0, 1]), torch.tensor([True, False, False, True])
        weights = torch.randn(4, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
        given = d.reweight(weights).condition(value, seen)
        agrees = ((values == value) | ~seen).all(-1)
        total = joint.logsumexp(-1) + weights[torch.arange(4), values].sum(-1)
        total = total.masked_fill(~agrees, -torch.inf)
        torch.testing.assert_close(given.log_prob(values), total - total.logsumexp(0))
        change = given.log_partition_function - d.log_partition_function
        torch.testing.assert_close(change, total.logsumexp(0))
        pair = torch.zeros(2, 2, dtype=torch.double)
        pair.index_put_((values[:, 3], values[:, 1]), probs, accumulate=True)
        torch.testing.assert_close(d.marginals_of([3, 1]), pair)


@pytest.mark.statistical
def test_samples():
    torch.manual_seed(0)
    d = MixtureOfDensities(torch.zeros(5), members(0, torch.float32)).expand((2,))
    drawn = d.sample((3000,))
    assert drawn.dtype == torch.long
    values = d.enumerate_support(expand=False)[:, 0]
    for row in range(2):
        counts = (drawn[:, row].unsqueeze(1) == values).all(-1).sum(0)
        discrete_goodness_of_fit(counts, d.log_prob(values.unsqueeze(1)).exp()[:, row])


def test_component():
    parts = members(1)
    d = MixtureOfDensities(torch.zeros(5, dtype=torch.double), parts)
    value, seen = torch.tensor([1, 0, 0, 0]), torch.tensor([True, False, False, False])
    given = d.condition(value, seen)
    values = d.enumerate_support()
    for m, part in enumerate(parts):
        alone = given.component(torch.tensor(m))
        assert type(alone) is type(part)
        torch.testing.assert_close(
            alone.log_prob(values.double()), part.condition(value, seen).log_prob(values.double())
        )
    several = given.component(torch.arange(5)).log_prob(values.unsqueeze(1))
    torch.testing.assert_close(several, given.component_log_prob(values))


def test_gradients():
    parts = members(2)
    logits = torch.zeros(5, dtype=torch.double, requires_grad=True)
    table = parts[0].clique_logits.requires_grad_()
    d = MixtureOfDensities(logits, [JunctionTree(table, parts[0].tree), *parts[1:]])
    values = d.enumerate_support()
    d.log_prob(values[3]).backward()
    assert logits.grad.abs().max() > 0 and table.grad.abs().max() > 0
    torch.testing.assert_close(logits.grad, d.posterior(values[3]).probs - 0.2)


def test_errors():
    parts = members(0)
    with pytest.raises(ValueError, match=r"^members: expected at least one distribution of discrete vectors, got none"):
        MixtureOfDensities(torch.zeros(1), [])
    with pytest.raises(ValueError, match=r"^members: .* got JunctionTree"):
        MixtureOfDensities(torch.zeros(1), parts[0])
    with pytest.raises(ValueError, match=r"^members\[1\]: expected a distribution of discrete .*, got Bernoulli"):
        MixtureOfDensities(torch.zeros(2), [parts[0], torch.distributions.Bernoulli(0.5)])
    other = JunctionTree(torch.zeros(6), CliqueTree([[0, 1]], [2, 3]))
    with pytest.raises(ValueError, match=r"^members\[1\]: expected .* the numbers of states \(2, 2, 2, 2\)"):
        MixtureOfDensities(torch.zeros(2), [parts[0], other])
    with pytest.raises(ValueError, match=r"^mixture_logits: expected a last axis of 2 numbers"):
        MixtureOfDensities(torch.zeros(3), parts[:2])
    with pytest.raises(ValueError, match=r"^members\[1\]: expected a batch shape that broadcasts with \(3,\)"):
        MixtureOfDensities(torch.zeros(3, 2), [parts[0], parts[1].expand((2,))])
