"""Trees of exchangeable blocks against their definition, enumeration, and the classes that are special cases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import ExchangeableBlock, ExchangeablePartition, ExchangeableTree, JunctionTree
from pyro_structured.structures import (
    AutomatonStatistic,
    BlockTree,
    CategoryCounts,
    CliqueTree,
    Count,
    Partition,
    Transitions,
)

# The third level is empty.
SPARSE = AutomatonStatistic(2, torch.tensor([[0, 1], [1, 1], [2, 2]]), torch.tensor([0, 1, 2]))


def random_tree(generator, states=None):
    """Random blocks of five variables, whose random graph is made chordal."""
    draw = lambda high: int(torch.randint(high, (), generator=generator))  # noqa: E731
    order, groups = torch.randperm(5, generator=generator).tolist(), []
    while order:
        size = 1 + draw(min(3, len(order)))
        groups, order = [*groups, order[:size]], order[size:]
    statistics = []
    for group in groups:
        kinds = [Count(len(group)), CategoryCounts(len(group), 3)]
        if states is None:
            kinds += [Transitions(len(group))] + [SPARSE] * (len(group) == 2)
        statistics.append(kinds[1] if states == 3 else kinds[draw(len(kinds))])
    pairs = [(a, b) for b in range(len(groups)) for a in range(b) if draw(2)]
    return BlockTree(statistics, groups, CliqueTree.from_edges(pairs, [2] * len(groups)).cliques)


def random_distribution(seed, batch=(), states=None, impossible=0.2, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    tree = random_tree(generator, states)
    logits = scale * torch.randn(*batch, tree.table_size, dtype=torch.double, generator=generator)
    lost = torch.rand(logits.shape, generator=generator) < impossible
    return ExchangeableTree(logits.masked_fill(lost, -torch.inf), tree), generator


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 1e4]))
def test_definition(seed, scale):
    """Ten distributions at once."""
    d, _ = random_distribution(seed, (10,), impossible=0.1, scale=scale)
    values, tree = d.enumerate_support(), d.tree
    # Without empty levels, which have no members.
    levels = tree.value(values)
    weights = torch.zeros(values.shape[:-1], dtype=torch.double)
    for table, clique in zip(tree.levels.split(d.clique_logits), tree.levels.cliques, strict=True):
        shape, digits = table.shape[1:], [levels[..., b] for b in clique]
        place = torch.zeros_like(digits[0])
        for digit, size in zip(digits, shape, strict=True):
            place = place * size + digit
        weights += table.flatten(1).expand(len(values), 10, -1).gather(-1, place.unsqueeze(-1)).squeeze(-1)
    sizes = torch.stack([tree.log_sizes[b][levels[..., b]] for b in range(len(tree.groups))], -1)
    weights -= sizes.sum(-1)
    log_z = weights.logsumexp(0)
    supported = log_z > -torch.inf
    if not supported.all():
        with pytest.raises(ValueError, match="clique_logits: expected at least one value of positive probability"):
            d.log_partition_function  # noqa: B018
        return
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(d.log_partition_function, log_z, **close)
    torch.testing.assert_close(d.log_prob(values), weights - log_z, **close)
    probs = (weights - log_z).exp()
    for wanted in ([2], [4, 0], [3, 1, 0]):
        table = torch.zeros(10, *(tree.cardinalities[i] for i in wanted), dtype=torch.double)
        cells = torch.zeros_like(levels[..., 0])
        for i in wanted:
            cells = cells * tree.cardinalities[i] + values[..., i]
        table = table.flatten(1).scatter_add(1, cells.expand(-1, 10).T, probs.T).view(table.shape)
        torch.testing.assert_close(d.marginals_of(wanted), table, **close)
        if len(wanted) == 1:
            torch.testing.assert_close(d.marginals[..., wanted[0], : table.shape[-1]], table, **close)
            assert (d.marginals[..., wanted[0], table.shape[-1] :] == 0).all()
    entropy = -(probs * (weights - log_z).masked_fill(probs == 0, 0.0)).sum(0)
    torch.testing.assert_close(d.entropy(), entropy, **close)
    torch.testing.assert_close(d.log_prob(d.mode), (weights - log_z).amax(0), **close)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([(), (2,)]))
def test_evidence(check_evidence, seed, batch):
    d, generator = random_distribution(seed, batch, states=3)
    if bool((d.unnormalized_log_prob(d.enumerate_support()).amax(0) > -torch.inf).all()):
        check_evidence(d, generator, 1e-10)


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_gradients_and_clique_marginals(seed):
    d, generator = random_distribution(seed, (3,), states=3, impossible=0.0)
    value, observed = torch.zeros(5, dtype=torch.long), torch.rand(5, generator=generator) < 0.4
    logits = d.clique_logits.requires_grad_()
    given_some = ExchangeableTree(logits, d.tree).condition(value, observed)
    (gradient,) = torch.autograd.grad(given_some.log_partition_function.sum(), logits, create_graph=True)
    torch.testing.assert_close(gradient, given_some.clique_marginals, rtol=1e-10, atol=1e-10)
    sums = [table.sum() for table in d.tree.levels.split(gradient)]
    torch.testing.assert_close(torch.stack(sums), torch.full((len(sums),), 3.0).double())
    impossible = logits.detach().clone()
    impossible[:, 0] = -torch.inf
    for query in (lambda d: d.entropy(), lambda d: d.marginals.square(), lambda d: d.log_prob(value + 1)):
        result = query(ExchangeableTree(impossible.requires_grad_(), d.tree))
        assert torch.autograd.grad(result.sum(), impossible)[0].isfinite().all()


def test_blocks_without_edges_are_a_partition():
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 0, 0, 1, 5])
    logits = torch.randn(4, 12, dtype=torch.double, generator=generator)
    logits[:, [1, 5]] = -torch.inf
    partition = Partition(labels)
    expected, blocks = ExchangeablePartition(logits, partition), partition.blocks()
    tree = BlockTree.from_counts(blocks)
    d = ExchangeableTree(tree.levels.pack(partition.split(logits)), tree)
    values = d.enumerate_support()
    torch.testing.assert_close(d.log_prob(values), expected.log_prob(values.double()))
    torch.testing.assert_close(d.marginals[..., 1], expected.marginals)
    torch.testing.assert_close(d.entropy(), expected.entropy())
    torch.testing.assert_close(d.mode.double(), expected.mode)
    torch.testing.assert_close(d.log_partition_function, expected.log_partition_function)
    x, weights = torch.randint(2, (30, 6), generator=generator), torch.rand(30, generator=generator).double()
    learned = ExchangeablePartition.from_data(x, partition, weights=weights)
    found = ExchangeableTree.from_data(x, tree, weights=weights)
    torch.testing.assert_close(found.log_prob(values[:, 0]), learned.log_prob(values[:, 0].double()))


def test_a_single_block_is_a_block():
    generator = torch.Generator().manual_seed(1)
    for statistic in (CategoryCounts(4, 3), Transitions(5), SPARSE):
        logits = torch.randn(3, statistic.num_levels, dtype=torch.double, generator=generator)
        d = ExchangeableTree(logits, BlockTree([statistic], [range(statistic.num_variables)]))
        expected = ExchangeableBlock(logits, statistic)
        values = d.enumerate_support()
        torch.testing.assert_close(d.log_prob(values), expected.log_prob(values.to(expected.sample())))
        on = expected.marginals
        marginals = on if statistic.num_categories > 2 else torch.stack([1 - on, on], -1)
        torch.testing.assert_close(d.marginals, marginals)
        torch.testing.assert_close(d.entropy(), expected.entropy())


def test_blocks_of_one_variable_are_a_junction_tree():
    generator = torch.Generator().manual_seed(2)
    cliques = CliqueTree([[0, 1], [1, 2], [3]], [3, 2, 3, 4])
    tree = BlockTree.from_counts([[0], [1], [2], [3]], [3, 2, 3, 4], cliques.cliques)
    expected = JunctionTree(torch.randn(2, cliques.table_size, generator=generator), cliques)
    # Levels of categories count the last one first.
    tables = [
        table.flip([axis - len(clique) for axis, b in enumerate(clique) if b != 1])
        for table, clique in zip(cliques.split(expected.clique_logits), cliques.cliques, strict=True)
    ]
    d = ExchangeableTree(tree.levels.pack(tables), tree)
    assert d.marginals.dtype == torch.float32
    torch.testing.assert_close(d.log_prob(d.enumerate_support()), expected.log_prob(d.enumerate_support()))
    torch.testing.assert_close(d.marginals, expected.marginals)
    assert torch.equal(d.mode, expected.mode)


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_likelihood_is_maximal(seed):
    """No other tables fit better: the gradient of the mean log-likelihood is that of log Z."""
    generator = torch.Generator().manual_seed(seed)
    tree = random_tree(generator, states=3)
    x, weights = torch.randint(3, (200, 5), generator=generator), torch.rand(2, 200, generator=generator).double()
    d = ExchangeableTree.from_data(x, tree, smoothing=2.0, weights=weights)
    assert d.batch_shape == (2,)
    prior = torch.cat([torch.full((size,), 2.0 / size, dtype=torch.double) for size in tree.levels.table_sizes])
    logits = d.clique_logits.requires_grad_()
    again = ExchangeableTree(logits, tree)
    fit = (again.log_prob(x.unsqueeze(1)) * weights.T).sum(0)
    (gradient,) = torch.autograd.grad(fit.sum(), logits)
    torch.testing.assert_close(gradient, 2.0 * d.clique_marginals.detach() - prior, rtol=1e-9, atol=1e-9)


@pytest.mark.statistical
def test_samples():
    d, _ = random_distribution(5, (2,), impossible=0.0)
    value, observed = torch.zeros(5, dtype=torch.long), torch.tensor([True, False, False, False, False])
    for each in (d, d.condition(value, observed)):
        drawn, values = each.sample((20_000,)), each.enumerate_support()
        probs = each.log_prob(values).exp()
        counts = (drawn.unsqueeze(0) == values.unsqueeze(1)).all(-1).double().mean(1)
        errors = (probs * (1 - probs) / 20_000).sqrt()
        assert ((counts - probs).abs() <= 6 * errors + 1e-4).all()


def test_many_blocks():
    """A chain of forty blocks, with parts of them observed."""
    torch.manual_seed(0)
    tree = BlockTree.from_counts([range(3 * b, 3 * b + 3) for b in range(40)], 3, [[b, b + 1] for b in range(39)])
    d = ExchangeableTree(torch.randn(tree.table_size), tree)
    value, observed = d.sample(), torch.arange(120) % 4 == 0
    parts = d.marginal_log_prob(value, observed) + d.condition(value, observed).log_prob(value)
    torch.testing.assert_close(parts, d.log_prob(value))
    assert d.log_prob(d.mode) >= d.log_prob(value)
    with pytest.raises(NotImplementedError, match="variables: expected one clique's, or at most 4096 joint states"):
        d.marginals_of(range(10))


def test_bad_input():
    tree = BlockTree.from_counts([[0, 1], [2]], cliques=[[0, 1]])
    with pytest.raises(ValueError, match="tree: expected a BlockTree, got CliqueTree"):
        ExchangeableTree(torch.zeros(6), tree.levels)
    with pytest.raises(ValueError, match=r"clique_logits: expected shape \(..., 6\), got \(5,\)"):
        ExchangeableTree(torch.zeros(5), tree)
    with pytest.raises(ValueError, match="values: expected integers in range"):
        ExchangeableTree.from_data(torch.full((2, 3), 2), tree)
    mixed = BlockTree.from_counts([[0, 1], [2]], [2, 3])
    with pytest.raises(ValueError, match=r"values: expected integers below \(2, 2, 3\), got larger ones"):
        ExchangeableTree.from_data(torch.full((2, 3), 2), mixed)
    never = ExchangeableTree(torch.full((6,), -torch.inf), tree)
    for query in (
        never.sample,
        never.entropy,
        lambda: never.mode,
        lambda: never.marginals,
        lambda: never.log_prob(torch.zeros(3)),
    ):
        with pytest.raises(ValueError, match="clique_logits: expected at least one value of positive probability"):
            query()
