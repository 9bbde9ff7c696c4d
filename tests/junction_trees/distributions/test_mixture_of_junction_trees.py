"""Mixtures of junction trees: their definition, evidence that excludes components, and what is refused."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import CountedJunctionTree, JunctionTree, MixtureOfJunctionTrees
from pyro_structured.structures import CliqueTree

PAIRS = list(itertools.combinations(range(5), 2))


def random_mixture(seed, batch, sizes, impossible=0.0, number=3, counts=False):
    """Mixture over random graphs; the tables of the batch are the same along its first axis."""
    generator = torch.Generator().manual_seed(seed)
    graphs = [[pair for pair in PAIRS if torch.rand((), generator=generator) < 0.4] for _ in range(number)]
    trees = [CliqueTree.from_edges(graph, sizes) for graph in graphs]

    def tables(size):
        numbers = torch.randn(*batch[1:], size, dtype=torch.double, generator=generator)
        return numbers.masked_fill(torch.rand(numbers.shape, generator=generator) < impossible, -torch.inf)

    cliques = tables(sum(tree.table_size for tree in trees))
    counted = count_logits = None
    if counts:
        # The first component counts in its subtrees, the second one in all variables, the third one nowhere.
        sets = [dict.fromkeys(trees[0].subtrees(2)), [range(len(sizes))], []]
        counted = [[[(d, sizes[d] - 1) for d in variables] for variables in family] for family in sets]
        count_logits = tables(sum(len(pairs) + 1 for family in counted for pairs in family))
    weights = torch.randn(*batch, number, dtype=torch.double, generator=generator)
    return MixtureOfJunctionTrees(weights, cliques, trees, count_logits, counted), generator


def components(d):
    tables = d.clique_logits.split([tree.table_size for tree in d.trees], -1)
    if d.counted is None:
        return [JunctionTree(*part) for part in zip(tables, d.trees, strict=True)]
    numbers = d.count_logits.split([sum(len(pairs) + 1 for pairs in family) for family in d.counted], -1)
    return [CountedJunctionTree(*part) for part in zip(tables, d.trees, numbers, d.counted, strict=True)]


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([(), (2,), (2, 3)]), st.booleans())
def test_definition(seed, batch, counts):
    d, _ = random_mixture(seed, batch, [2, 3, 1, 2, 3], counts=counts)
    assert MixtureOfJunctionTrees.infer_shapes(
        d.mixture_logits.shape, d.clique_logits.shape, d.trees, d.count_logits.shape if counts else None, d.counted
    ) == (d.batch_shape, d.event_shape)
    values = d.enumerate_support()
    each = torch.stack([component.log_prob(values) for component in components(d)], -1)
    joint = d.mixture_logits.log_softmax(-1) + each
    probs = joint.exp().sum(-1)
    torch.testing.assert_close(d.log_prob(values), probs.log())
    torch.testing.assert_close(d.component_log_prob(values), each.expand(joint.shape))
    torch.testing.assert_close(d.posterior(values).probs, joint.softmax(-1))
    torch.testing.assert_close(d.class_probs, d.mixture_logits.softmax(-1))
    for wanted in ([1], [4, 0], [3, 1, 0]):
        table = torch.zeros(*batch, *(d.trees[0].cardinalities[i] for i in wanted), dtype=torch.double)
        for value, prob in zip(values, probs, strict=True):
            table[(..., *value.reshape(-1, 5)[0, wanted])] += prob
        torch.testing.assert_close(d.marginals_of(wanted), table)
        if len(wanted) == 1:
            torch.testing.assert_close(d.marginals[..., wanted[0], :], table)
    observed = torch.tensor([True, False, False, True, False])
    given_some = d.posterior(values[-1], observed).probs
    agrees = (values[..., observed] == values[-1][..., observed]).all(-1)
    expected = (joint.exp() * agrees.unsqueeze(-1)).sum(0)
    torch.testing.assert_close(given_some, expected / expected.sum(-1, keepdim=True))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([(), (2,)]), st.booleans())
def test_evidence(check_evidence, seed, batch, counts):
    d, generator = random_mixture(seed, batch, [3] * 5, impossible=0.15, counts=counts)
    with torch.no_grad():
        if not all(bool((each._log_z > -torch.inf).all()) for each in d._free):
            with pytest.raises(ValueError, match="expected at least one value of positive probability"):
                d.log_partition_function  # noqa: B018
            return
    check_evidence(d, generator)


def test_components_that_evidence_excludes():
    trees = [CliqueTree([[0, 1], [2]], [2, 2, 2]), CliqueTree([[0], [1, 2]], [2, 2, 2])]
    same, free = torch.eye(2, dtype=torch.double).log(), torch.zeros(2, dtype=torch.double)
    tables = torch.cat([trees[0].pack([same, free]), trees[1].pack([free, same])])
    d = MixtureOfJunctionTrees(torch.zeros(2, dtype=torch.double), tables.requires_grad_(), trees)
    given_first = d.condition(torch.tensor([0, 1, 0]), torch.tensor([True, True, False]))
    torch.testing.assert_close(given_first.class_probs, torch.tensor([0.0, 1.0], dtype=torch.double))
    torch.testing.assert_close(given_first.marginals[2], torch.tensor([0.0, 1.0], dtype=torch.double))
    assert given_first.sample((20,)).tolist() == [[0, 1, 1]] * 20
    gradient = torch.autograd.grad(given_first.marginals[2, 1] + given_first.log_partition_function, tables)[0]
    assert gradient.isfinite().all()


def test_many_variables():
    tree = CliqueTree.chain(60, 3)
    torch.manual_seed(0)
    d = MixtureOfJunctionTrees(torch.zeros(2), torch.randn(2 * tree.table_size), [tree, tree])
    value, observed = d.sample(), torch.arange(60) % 3 == 0
    parts = d.marginal_log_prob(value, observed), d.condition(value, observed).log_prob(value)
    torch.testing.assert_close(sum(parts), d.log_prob(value))
    for query in (lambda: d.mode, d.entropy):
        with pytest.raises(NotImplementedError, match="mixture's has no closed form"):
            query()


def test_no_rows_and_no_samples():
    d, _ = random_mixture(0, (2,), [2] * 5)
    assert d.sample((0,)).shape == (0, 2, 5)
    none = MixtureOfJunctionTrees(d.mixture_logits[:0], d.clique_logits, d.trees)
    assert none.sample((3,)).shape == (3, 0, 5) and none.mode.shape == (0, 5)
    assert none.log_prob(torch.zeros(0, 5)).shape == none.entropy().shape == (0,)
    assert none.posterior(torch.zeros(0, 5)).probs.shape == (0, 3)


def test_bad_input():
    tree, logits, pairs = CliqueTree.chain(3, 2), torch.zeros(8), [(0, 1), (1, 1), (2, 1)]
    for arguments, message in [
        ((torch.zeros(1), logits, []), "trees: expected at least one CliqueTree, got"),
        ((torch.zeros(1), logits, tree), "trees: expected at least one CliqueTree, got CliqueTree"),
        ((torch.zeros(1), logits, [4]), "trees: expected at least one CliqueTree, got"),
        ((torch.zeros(2), logits, [tree, CliqueTree.chain(2, 2)]), "trees: expected the same variables"),
        ((torch.zeros(2), logits, [tree]), r"mixture_logits: expected shape \(..., 1\), got \(2,\)"),
        ((torch.zeros(1), logits[1:], [tree]), r"clique_logits: expected shape \(..., 8\), got \(7,\)"),
        ((torch.zeros(2, 1), torch.zeros(3, 8), [tree]), "clique_logits: expected a batch that broadcasts"),
        ((torch.zeros(1), logits.log() * torch.nan, [tree]), "clique_logits"),
        (
            (torch.zeros(1), logits, [tree], torch.zeros(3)),
            "count_logits: expected a tensor where something is counted",
        ),
        ((torch.zeros(1), logits, [tree], None, [[]]), "count_logits: expected a tensor where something is counted"),
        ((torch.zeros(1), logits, [tree], torch.zeros(3), [pairs]), r"count_logits: expected shape \(..., 4\)"),
        ((torch.zeros(1), logits, [tree], torch.zeros(4), pairs), "counted: expected a list for each of the 1"),
        ((torch.zeros(1), logits, [tree], torch.zeros(4), [[(3, 0)]]), "counted: expected variables .* of component 0"),
        (
            (torch.zeros(2), torch.zeros(16), [tree] * 2, torch.zeros(4), [pairs, 1]),
            "counted: expected a sequence, .* 1",
        ),
        ((torch.zeros(1), logits, [tree], torch.zeros(4) * torch.nan, [pairs]), "count_logits"),
    ]:
        with pytest.raises(ValueError, match=message):
            MixtureOfJunctionTrees(*arguments)
    d = MixtureOfJunctionTrees(torch.zeros(1), logits, [tree])
    with pytest.raises(ValueError, match=r"variables: expected different ones in range\(3\), got \[0, 3\]"):
        d.marginals_of([0, 3])
    with pytest.raises(ValueError, match="mixture_logits: expected at least one value of positive probability"):
        MixtureOfJunctionTrees(torch.full((1,), -torch.inf), logits, [tree]).log_prob(torch.zeros(3))


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_component(batch, counts):
    """Given a class or several of them, and evidence."""
    d, _ = random_mixture(3, batch, [2, 3, 2, 2, 2], counts=counts)
    value, observed = torch.tensor([1, 2, 0, 0, 0]), torch.tensor([True, True, False, False, False])
    values = d.enumerate_support()
    alone = components(d)
    for mixture, given_each in (
        (d, alone),
        (d.condition(value, observed), [component.condition(value, observed) for component in alone]),
    ):
        expected = torch.stack([component.log_prob(values).expand(len(values), *batch) for component in given_each], 1)
        z = torch.arange(3).reshape(3, *(1,) * len(batch))
        several = mixture.component(z)
        assert several.batch_shape == (3, *batch)
        torch.testing.assert_close(several.log_prob(values.unsqueeze(1)), expected)
        for k in range(3):
            found = mixture.component(torch.tensor(k))
            assert isinstance(found, CountedJunctionTree if counts else JunctionTree) and found.batch_shape == batch
            torch.testing.assert_close(found.log_prob(values), expected[:, k])
            torch.testing.assert_close(mixture.component_log_prob(values)[..., k], expected[:, k])


def test_component_that_the_evidence_excludes():
    """An excluded component keeps the distribution that it had before, with the evidence that did not exclude it."""
    trees = [CliqueTree([[0, 1], [2]], [2, 2, 2]), CliqueTree([[0], [1], [2]], [2, 2, 2])]
    d = MixtureOfJunctionTrees(
        torch.zeros(2), torch.cat([trees[0].pack([torch.eye(2).log(), torch.zeros(2)]), torch.zeros(6)]), trees
    )
    value, first, second = (
        torch.tensor([1, 0, 0]),
        torch.tensor([True, False, False]),
        torch.tensor([True, True, False]),
    )
    before = d.condition(value, first)
    after = before.condition(value, second)  # the first two are equal in the first class
    assert after.class_probs.tolist() == [0.0, 1.0]
    values = d.enumerate_support()
    expected = before.component(torch.tensor(0)).log_prob(values)
    assert expected.exp().sum() == 1 and (expected[:4] == -torch.inf).all()
    for z in (torch.tensor(0), torch.tensor([0])):
        torch.testing.assert_close(after.component(z).log_prob(values).reshape(8), expected)
    torch.testing.assert_close(after.component_log_prob(values)[:, 0], expected)
    # Contradictory observations leave no distribution at all.
    with pytest.raises(ValueError, match="no value is compatible"):
        after.condition(torch.zeros(3), first).log_prob(values)


@pytest.mark.parametrize(
    "z, message",
    [
        (torch.tensor(1.0), "z: expected a tensor of integers, got torch.float32"),
        (1, "z: expected a tensor of integers, got 1"),
        (torch.tensor(3), r"z: expected integers in range\(3\), got others"),
        (torch.zeros(3, dtype=torch.long), r"z: expected a shape that broadcasts with \(2,\), got \(3,\)"),
    ],
)
def test_wrong_class(z, message):
    d, _ = random_mixture(3, (2,), [2] * 5)
    with pytest.raises(ValueError, match=message):
        d.component(z)
