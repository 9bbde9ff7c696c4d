"""``reweight`` and ``log_evidence`` of all classes that have them, against enumeration."""

import math
import pickle

import pytest
import torch

import pyro_structured.distributions as sdist
from pyro_structured.structures import (
    BlockTree,
    CategoryCounts,
    CliqueTree,
    Count,
    HiddenTree,
    NestedThreshold,
    Partition,
    Product,
    RegionTree,
    Transitions,
)
from pyro_structured.testing.distribution_case import substitute
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit
from tests.distributions.test_contract import FACTORIES, LastIsOne

pytestmark = pytest.mark.statistical

NUM_CASES = 300


def tables(number, *shape, impossible=0.1):
    """Random log-weights, some of them -inf, but not the first."""
    numbers = 2 * torch.randn(number, *shape, dtype=torch.float64)
    excluded = torch.rand(numbers.shape) < impossible
    excluded[..., 0] = False
    return numbers.masked_fill(excluded, -math.inf)


def count_tables(number, partition, *shape):
    """Of the counts of all blocks; blocks without ones are possible."""
    numbers = tables(number, *shape, partition.table_size)
    return torch.where((partition.cell_counts == 0) & (numbers == -math.inf), 0.0, numbers)


def block(statistic):
    return lambda number: sdist.ExchangeableBlock(tables(number, statistic.num_levels), statistic)


def partition(number):
    blocks = Partition(torch.randint(4, (number, 6)))
    return sdist.ExchangeablePartition(count_tables(number, blocks), blocks)


def exchangeable_mixture(number):
    blocks = Partition(torch.randint(3, (number, 3, 5)))
    return sdist.ExchangeableMixture(tables(number, 3), count_tables(number, blocks, 3), blocks)


def sum_product_network(number):
    structure = RegionTree(
        torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0]]),
        torch.tensor([[0, 0], [0, 0]]),
        torch.tensor([[[0, 3, 0, 3, 1], [2, 1, 2, 1, 4]], [[1, 2, 2, 0, 4], [0, 1, 2, 3, 2]]]),
        Partition(torch.tensor([[[0, 1, 0, 1, 1], [0, 1, 2, 1, 4]], [[0, 0, 0, 0, 0], [0, 1, 1, 0, 4]]])),
    )
    odds, counts = tables(number, 2, 2, 5, 2, impossible=0.0), count_tables(number, structure.partition, 2, 2)
    states, leaves = tables(number, 2, 2, 2, 2), tables(number, 2, 2, 2, 2)
    return sdist.SumProductNetwork(tables(number, 2), states, leaves, odds, counts, structure)


def mixture_of_junction_trees(number):
    sizes = [2, 3, 2, 1]
    trees = [CliqueTree([[0, 1], [1, 2], [3]], sizes), CliqueTree([[0, 2], [1], [3]], sizes)]
    cliques = torch.cat([tables(number, size) for tree in trees for size in tree.table_sizes], -1)
    return sdist.MixtureOfJunctionTrees(tables(number, 2), cliques, trees)


def mixture_of_counted_trees(number):
    d = mixture_of_junction_trees(number)
    counted = [[[(0, 1), (1, 0), (2, 1)]], [[(0, 0), (0, 1), (2, 1)], [(1, 2)]]]
    counts = tables(number, 9, impossible=0.0)
    return sdist.MixtureOfJunctionTrees(d.mixture_logits, d.clique_logits, d.trees, counts, counted)


def exchangeable_tree(number):
    statistics = [CategoryCounts(2, 3), Transitions(2), Count(1)]
    tree = BlockTree(statistics, [[3, 0], [1, 4], [2]], [[0, 1], [1, 2]])
    return sdist.ExchangeableTree(torch.cat([tables(number, size) for size in tree.levels.table_sizes], -1), tree)


def mixture_of_exchangeable_trees(number):
    trees = [BlockTree.from_counts([[2, 0], [1, 3]], 3, [[0, 1]]), BlockTree.from_counts([[0, 1, 3], [2]], 3)]
    cliques = torch.cat([tables(number, size) for tree in trees for size in tree.levels.table_sizes], -1)
    return sdist.MixtureOfExchangeableTrees(tables(number, 2), cliques, trees)


def latent_tree(number):
    tree = HiddenTree([2, 2, 2, 1, 4], num_states=[2, 3, 2, 1, 2], cardinalities=[2, 1, 3, 2, 2])
    return sdist.LatentTree(tables(number, 5, 3, 3), tables(number, 5, 3, 3), tree)


def mixture_of_densities(number):
    trees = [CliqueTree([[0, 1], [1, 2], [3], [4]], [2] * 5), CliqueTree([[0, 2], [1], [3, 4]], [2] * 5)]
    logits = [torch.cat([tables(number, size) for size in tree.table_sizes], -1) for tree in trees]
    members = [sdist.JunctionTree(table, tree) for table, tree in zip(logits, trees, strict=True)]
    blocks = Partition(torch.randint(3, (number, 3, 5)))
    binary = sdist.ExchangeableMixture(tables(number, 3), count_tables(number, blocks, 3), blocks)
    return sdist.MixtureOfDensities(tables(number, 3), [*members, binary])


# Random members of the classes whose evidence is kept beside the parameters.
RANDOM = {
    "Count": block(Count(7)),
    "CategoryCounts": block(CategoryCounts(4, 3)),
    "Transitions": block(Transitions(6)),
    "NestedThreshold": block(NestedThreshold([[0, 3], [4, 1, 2]], 1)),
    "Product": block(Product([CategoryCounts(2, 3), CategoryCounts(2, 3)], [[3, 0], [1, 2]])),
    "own statistic": block(LastIsOne()),
    "ExchangeablePartition": partition,
    "ExchangeableMixture": exchangeable_mixture,
    "ExchangeableTree": exchangeable_tree,
    "LatentTree": latent_tree,
    "MixtureOfDensities": mixture_of_densities,
    "MixtureOfExchangeableTrees": mixture_of_exchangeable_trees,
    "SumProductNetwork": sum_product_network,
    "MixtureOfJunctionTrees": mixture_of_junction_trees,
    "MixtureOfJunctionTrees that count": mixture_of_counted_trees,
}
OTHERS = [
    factory
    for name, factories in FACTORIES.items()
    if hasattr(getattr(sdist, name), "reweight") and name not in {type(make(1)).__name__ for make in RANDOM.values()}
    for factory in factories
]


def draw_weights(d, sampled, impossible=0.15):
    """Log-weights of all states, some of them -inf but not those of a sample, shape ``sampled.shape + (states,)``."""
    states = int(d.enumerate_support(expand=False).max()) + 1
    log_weights = 2 * torch.randn(*sampled.shape, states, dtype=torch.float64)
    others = ~torch.nn.functional.one_hot(sampled.long(), states).bool()
    return log_weights.masked_fill(others & (torch.rand(log_weights.shape) < impossible), -math.inf)


def arguments(d, log_weights):
    """Arguments of ``reweight``."""
    is_binary = d.enumerate_support(expand=False).is_floating_point()
    return log_weights.unbind(-1) if is_binary else (log_weights,)


def draw_evidence(d, values, sampled):
    """Arguments of ``reweight``, and the log-weights of all values."""
    log_weights = draw_weights(d, sampled)
    on = torch.nn.functional.one_hot(values.long(), log_weights.shape[-1]).bool()
    return arguments(d, log_weights), torch.where(on, log_weights, 0.0).flatten(2).sum(-1)


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
    (first, first_sums), (second, second_sums) = (draw_evidence(d, values, sampled) for _ in range(2))
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
    check_evidence(RANDOM[name](NUM_CASES))


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("factory", OTHERS, ids=lambda factory: factory.__name__)
def test_evidence_of_other_classes(factory):
    torch.manual_seed(0)
    check_evidence(factory((NUM_CASES,), torch.float64))


@pytest.mark.parametrize("name", RANDOM)
def test_samples(name):
    torch.manual_seed(0)
    d = RANDOM[name](2)
    given = d.reweight(*arguments(d, draw_weights(d, d.sample())))
    values = d.enumerate_support(expand=False)
    drawn = given.sample((4000,))
    for row in range(2):
        index = (drawn[:, row].unsqueeze(1) == values.squeeze(1)).all(-1).int().argmax(-1)
        assert (
            discrete_goodness_of_fit(given.log_prob(values)[:, row].exp(), index.bincount(minlength=len(values))) > 2e-9
        )


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("name", RANDOM)
def test_derivatives(name):
    """Along the weights, of every order; finite where weights are -inf."""
    torch.manual_seed(0)
    d = RANDOM[name](1)
    sampled = d.sample()

    def queries(log_weights):
        given = d.reweight(*arguments(d, log_weights))
        return d.log_evidence(*arguments(d, log_weights)), given.marginals, given.entropy(), given.log_prob(sampled)

    finite = draw_weights(d, sampled, impossible=0.0).requires_grad_()
    assert torch.autograd.gradcheck(queries, finite, fast_mode=True)
    assert torch.autograd.gradgradcheck(queries, finite, fast_mode=True)
    impossible = draw_weights(d, sampled, impossible=0.4).requires_grad_()
    sum(query.sum() for query in queries(impossible)).backward()
    assert impossible.grad.isfinite().all()


@pytest.mark.parametrize("name", RANDOM)
def test_shapes_and_transforms(name):
    """Evidence with further axes, expanded distributions, batches without elements, vmap, single precision, pickles."""
    torch.manual_seed(0)
    d = RANDOM[name](3)
    sampled = d.sample((2,))
    log_weights = torch.stack([draw_weights(d, row) for row in sampled])
    given = d.reweight(*arguments(d, log_weights))
    found = d.log_evidence(*arguments(d, log_weights))
    assert given.batch_shape == found.shape == (2, 3)
    alone = torch.stack([d.log_evidence(*arguments(d, row)) for row in log_weights])
    torch.testing.assert_close(found, alone)
    mapped = torch.vmap(lambda row: d.log_evidence(*arguments(d, row)))(log_weights)
    torch.testing.assert_close(mapped, found)
    mapped = torch.vmap(lambda row: d.reweight(*arguments(d, row)).marginals)(log_weights)
    torch.testing.assert_close(mapped, given.marginals)
    torch.testing.assert_close(pickle.loads(pickle.dumps(given)).marginals, given.marginals)
    larger = given.expand((4, 2, 3))
    torch.testing.assert_close(larger.log_prob(sampled), given.log_prob(sampled).expand(4, 2, 3))
    torch.testing.assert_close(larger.entropy(), given.entropy().expand(4, 2, 3))
    assert larger.sample((5,)).shape == (5, 4, 2, 3, *d.event_shape) and larger.mode.shape == (4, 2, 3, *d.event_shape)
    shared = d.reweight(*arguments(d, torch.zeros(log_weights.shape[2:])))
    torch.testing.assert_close(shared.marginals, d.marginals)
    empty = d.reweight(*arguments(d, log_weights[:0]))
    assert empty.marginals.shape == (0, *d.marginals.shape) and empty.sample().shape == (0, 3, *d.event_shape)
    assert empty.mode.shape == (0, 3, *d.event_shape) and empty.entropy().shape == (0, 3)

    single = substitute(d, lambda parameter: parameter.tensor.float())
    weights = arguments(d, log_weights.float())
    result = single.log_evidence(*weights)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), found, rtol=1e-5, atol=1e-5)
    assert single.reweight(*weights).marginals.dtype == torch.float32


@pytest.mark.parametrize("name", RANDOM)
def test_large_weights(name):
    """A large log-weight that all states of a variable share costs no digits of probabilities."""
    torch.manual_seed(0)
    d = RANDOM[name](3)
    log_weights = draw_weights(d, d.sample())
    shift = 1e12 * torch.randn(log_weights.shape[:-1] + (1,), dtype=torch.float64)
    given, exact = (d.reweight(*arguments(d, w)) for w in (log_weights + shift, (log_weights + shift) - shift))
    values = d.enumerate_support(expand=False)
    torch.testing.assert_close(given.log_prob(values), exact.log_prob(values), rtol=1e-10, atol=1e-10)
    total = shift.sum((-2, -1))
    torch.testing.assert_close(d.log_evidence(*arguments(d, log_weights + shift)), total, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", RANDOM)
def test_impossible_evidence_and_errors(name):
    torch.manual_seed(0)
    d = RANDOM[name](3)
    log_weights = draw_weights(d, d.sample())
    log_weights[1, 1] = -math.inf
    given = arguments(d, log_weights)
    assert (d.log_evidence(*given) == -math.inf).tolist() == [False, True, False]
    for query in ("marginals", "mode", "log_partition_function"):
        with pytest.raises(ValueError, match=r"value: expected evidence of positive probability .*, in row 1"):
            getattr(d.reweight(*given), query)
    first = "log_off" if len(given) == 2 else "log_weights"
    with pytest.raises(ValueError, match=rf"{first}: expected a.* tensor, got None"):
        d.reweight(None, *given[1:])
    for wrong in (math.inf, math.nan):
        spoilt = given[0].clone().flatten()
        spoilt[0] = wrong
        checked = substitute(d, lambda parameter: parameter.tensor, validate_args=True)
        with pytest.raises(ValueError, match=rf"{first}: expected numbers less than \+inf, got \+inf or NaN"):
            checked.reweight(spoilt.reshape(given[0].shape), *given[1:])
    with pytest.raises(ValueError, match=rf"{first}: expected .*shape"):
        d.reweight(torch.zeros(2, 9), *given[1:])


def test_numbers_past_the_states_of_a_variable():
    """They are not looked at, whatever they are."""
    torch.manual_seed(0)
    d = RANDOM["MixtureOfJunctionTrees"](3)
    log_weights = draw_weights(d, d.sample())
    spoilt = torch.where(torch.arange(3) < torch.tensor([2, 3, 2, 1]).unsqueeze(-1), log_weights, math.nan)
    checked = substitute(d, lambda parameter: parameter.tensor, validate_args=True)
    for mixture in (d, checked):
        torch.testing.assert_close(mixture.log_evidence(spoilt), d.log_evidence(log_weights), rtol=0, atol=1e-12)
        torch.testing.assert_close(mixture.reweight(spoilt).marginals, d.reweight(log_weights).marginals)


def test_arguments_of_blocks():
    binary, categorical = RANDOM["Count"](1), RANDOM["CategoryCounts"](1)
    with pytest.raises(ValueError, match="log_on: expected a tensor beside log_off for binary variables, got None"):
        binary.reweight(torch.zeros(7))
    with pytest.raises(ValueError, match="log_on: expected None, and log-likelihoods of all 3 categories"):
        categorical.log_evidence(torch.zeros(4, 3), torch.zeros(4, 3))


def test_counts_are_recursive_cardinalities():
    """The same law, for a number of variables that is no power of two, also as counts of two categories."""
    torch.manual_seed(0)
    n = 77
    potentials, (off, on) = tables(3, n + 1), tables(2, 3, n, impossible=0.0)
    certain = torch.rand(3, n)
    off, on = off.masked_fill(certain < 0.1, -math.inf), on.masked_fill(certain > 0.9, -math.inf)
    cardinality = sdist.RecursiveCardinality(torch.zeros(n, dtype=torch.float64), potentials).reweight(off, on)
    counted = sdist.ExchangeableBlock.from_potentials(potentials, Count(n))
    # Levels of categories begin with the largest number of ones.
    reversed_law = sdist.ExchangeableBlock.from_potentials(potentials.flip(-1), CategoryCounts(n, 2))
    for d in (counted.reweight(off, on), reversed_law.reweight(off, on)):
        for query in ("log_partition_function", "marginal_logits"):
            found, expected = getattr(d, query), getattr(cardinality, query)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(d.entropy(), cardinality.entropy(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(d.log_prob(d.mode), cardinality.log_prob(cardinality.mode), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["ExchangeableMixture", "MixtureOfExchangeableTrees", "MixtureOfJunctionTrees"])
def test_classes(name):
    """Classes have a posterior, and keep the distribution that they had before evidence that excludes them."""
    torch.manual_seed(0)
    d = RANDOM[name](3)
    d = substitute(d, lambda p: torch.where(p.tensor == -math.inf, -1.0, p.tensor))
    sampled = d.sample()
    values, log_weights = d.enumerate_support(expand=False), draw_weights(d, sampled)
    on = torch.nn.functional.one_hot(values.long(), log_weights.shape[-1]).bool()
    gained = torch.where(on, log_weights, 0.0).sum((-2, -1))
    given = d.reweight(*arguments(d, log_weights))
    number = d.mixture_logits.shape[-1]
    joint = torch.stack([d.component_log_prob(values)[..., k] + gained for k in range(number)], -1)
    shares = d.mixture_logits.log_softmax(-1) + joint.logsumexp(0)
    torch.testing.assert_close(given.class_probs, shares.softmax(-1), rtol=1e-10, atol=1e-10)
    expected = joint - joint.logsumexp(0)
    torch.testing.assert_close(given.component_log_prob(values), expected, rtol=1e-10, atol=1e-10)
    for k in range(number):
        for z in (torch.tensor(k), torch.full((3,), k)):
            component = given.component(z)
            torch.testing.assert_close(component.log_prob(values), expected[..., k], rtol=1e-10, atol=1e-10)
    whole = d.posterior(sampled).logits
    torch.testing.assert_close(given.posterior(sampled).logits, whole, rtol=1e-10, atol=1e-10)


def test_excluded_classes():
    pairs = Partition(torch.tensor([[0, 0], [0, 1]]))
    equal = torch.tensor([0.0, -math.inf, 0.0, 0.0])
    d = sdist.ExchangeableMixture(torch.zeros(2), torch.stack([equal, torch.zeros(4)]), pairs)
    off, on = torch.tensor([0.0, -math.inf]), torch.tensor([-math.inf, 0.5])
    given = d.reweight(off, on)
    assert given.class_probs.tolist() == [0.0, 1.0]
    one, other = given.component(torch.tensor(0)), given.component(torch.tensor(1))
    assert one.log_prob(torch.ones(2)).exp() == 0.5 and other.log_prob(torch.tensor([0.0, 1.0])).exp() == 1
    weighted = d.reweight(torch.zeros(2), torch.tensor([1.0, 0.0])).reweight(off, on)
    expected = torch.tensor([1.0]).sigmoid()
    torch.testing.assert_close(weighted.component(torch.tensor(0)).log_prob(torch.ones(2)).exp(), expected.squeeze())
