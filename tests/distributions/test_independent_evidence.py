"""``reweight`` and ``log_evidence`` of all classes that have them, against enumeration."""

import math

import pytest
import torch

import pyro_structured.distributions as sdist
from pyro_structured.structures import (
    CategoryCounts,
    CliqueTree,
    Count,
    NestedThreshold,
    Partition,
    Product,
    RegionTree,
    Transitions,
)
from tests.distributions.test_contract import FACTORIES, LastIsOne

pytestmark = pytest.mark.statistical

NUM_CASES = 300


def tables(*shape, impossible=0.1):
    """Random log-weights, some of them -inf, but not the first."""
    numbers = 2 * torch.randn(NUM_CASES, *shape, dtype=torch.float64)
    excluded = torch.rand(numbers.shape) < impossible
    excluded[..., 0] = False
    return numbers.masked_fill(excluded, -math.inf)


def count_tables(partition, *shape):
    """Of the counts of all blocks; blocks without ones are possible."""
    numbers = tables(*shape, partition.table_size)
    return torch.where((partition.cell_counts == 0) & (numbers == -math.inf), 0.0, numbers)


def block(statistic):
    return sdist.ExchangeableBlock(tables(statistic.num_levels), statistic)


def partition():
    blocks = Partition(torch.randint(4, (NUM_CASES, 6)))
    return sdist.ExchangeablePartition(count_tables(blocks), blocks)


def exchangeable_mixture():
    blocks = Partition(torch.randint(3, (NUM_CASES, 3, 5)))
    return sdist.ExchangeableMixture(tables(3), count_tables(blocks, 3), blocks)


def sum_product_network():
    structure = RegionTree(
        torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0]]),
        torch.tensor([[0, 0], [0, 0]]),
        torch.tensor([[[0, 3, 0, 3, 1], [2, 1, 2, 1, 4]], [[1, 2, 2, 0, 4], [0, 1, 2, 3, 2]]]),
        Partition(torch.tensor([[[0, 1, 0, 1, 1], [0, 1, 2, 1, 4]], [[0, 0, 0, 0, 0], [0, 1, 1, 0, 4]]])),
    )
    odds, counts = tables(2, 2, 5, 2, impossible=0.0), count_tables(structure.partition, 2, 2)
    return sdist.SumProductNetwork(tables(2), tables(2, 2, 2, 2), tables(2, 2, 2, 2), odds, counts, structure)


def mixture_of_junction_trees():
    sizes = [2, 3, 2, 1]
    trees = [CliqueTree([[0, 1], [1, 2], [3]], sizes), CliqueTree([[0, 2], [1], [3]], sizes)]
    cliques = torch.cat([tables(size) for tree in trees for size in tree.table_sizes], -1)
    return sdist.MixtureOfJunctionTrees(tables(2), cliques, trees)


RANDOM = {
    "Count": lambda: block(Count(7)),
    "CategoryCounts": lambda: block(CategoryCounts(4, 3)),
    "Transitions": lambda: block(Transitions(6)),
    "NestedThreshold": lambda: block(NestedThreshold([[0, 3], [4, 1, 2]], 1)),
    "Product": lambda: block(Product([CategoryCounts(2, 3), CategoryCounts(2, 3)], [[3, 0], [1, 2]])),
    "own statistic": lambda: block(LastIsOne()),
    "ExchangeablePartition": partition,
    "ExchangeableMixture": exchangeable_mixture,
    "SumProductNetwork": sum_product_network,
    "MixtureOfJunctionTrees": mixture_of_junction_trees,
}


OTHERS = [
    factory
    for name, factories in FACTORIES.items()
    if hasattr(getattr(sdist, name), "reweight") and name not in {type(make()).__name__ for make in RANDOM.values()}
    for factory in factories
]


def draw_evidence(values, sampled):
    """Log-weights of all states, some of them -inf but not those of a sample, and their sums for all values."""
    number = int(values.max()) + 1
    log_weights = tables(*values.shape[2:], number, impossible=0.15)
    of_sample = torch.nn.functional.one_hot(sampled.long(), number).bool()
    log_weights = torch.where(of_sample & (log_weights == -math.inf), 0.3, log_weights)
    on = torch.nn.functional.one_hot(values.long(), number).bool()
    given = log_weights.unbind(-1) if values.is_floating_point() else (log_weights,)
    return given, torch.where(on, log_weights, 0.0).flatten(2).sum(-1)


def check_posterior(d, values, joint):
    """Queries of a distribution whose log-weights are ``joint``."""
    log_z = joint.logsumexp(0)
    expected = joint - log_z
    torch.testing.assert_close(d.log_partition_function, log_z, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(d.log_prob(values), expected, rtol=1e-10, atol=1e-10)
    probs, on = expected.exp(), torch.nn.functional.one_hot(values.long(), int(values.max()) + 1).double()
    marginals = (probs.reshape(probs.shape + (1,) * (on.dim() - 2)) * on).sum(0)
    marginals = marginals[..., 1] if values.is_floating_point() else marginals
    torch.testing.assert_close(d.marginals, marginals, rtol=1e-9, atol=1e-10)
    entropy = -torch.where(probs > 0, probs * expected, 0.0).sum(0)
    torch.testing.assert_close(d.entropy(), entropy, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(d.log_prob(d.mode), expected.amax(0), rtol=1e-9, atol=1e-9)
    drawn = d.sample((2,))
    assert drawn.shape == (2, *d.batch_shape, *d.event_shape) and drawn.dtype == values.dtype
    assert (d.log_prob(drawn) > -math.inf).all()


def check_evidence(d):
    """Weights, observations and weights, one after the other in any order."""
    values, sampled = d.enumerate_support(expand=False), d.sample()
    prior = d.log_prob(values) + d.log_partition_function
    (first, first_sums), (second, second_sums) = (draw_evidence(values, sampled) for _ in range(2))
    gained = (prior + first_sums).logsumexp(0) - d.log_partition_function
    torch.testing.assert_close(d.log_evidence(*first), gained, rtol=1e-10, atol=1e-10)
    weighted = d.reweight(*first)
    check_posterior(weighted, values, prior + first_sums)
    observed = torch.rand(sampled.shape) < 0.3
    agrees = ((values == sampled) | ~observed).flatten(2).all(-1)
    value = torch.where(observed, sampled, 7)
    joint = (prior + first_sums).masked_fill(~agrees, -math.inf)
    seen = joint.logsumexp(0) - weighted.log_partition_function
    torch.testing.assert_close(weighted.marginal_log_prob(value, observed), seen, rtol=1e-10, atol=1e-10)
    check_posterior(weighted.condition(value, observed), values, joint)
    check_posterior(d.condition(value, observed).reweight(*first), values, joint)
    joint = joint + second_sums
    check_posterior(weighted.condition(value, observed).reweight(*second), values, joint)
    check_posterior(weighted.reweight(*second).condition(value, observed), values, joint)


@pytest.mark.parametrize("name", RANDOM)
def test_evidence_in_any_order(name):
    torch.manual_seed(0)
    check_evidence(RANDOM[name]())


@pytest.mark.parametrize("factory", OTHERS, ids=lambda factory: factory.__name__)
def test_evidence_of_other_classes(factory):
    torch.manual_seed(0)
    check_evidence(factory((NUM_CASES,), torch.float64))
