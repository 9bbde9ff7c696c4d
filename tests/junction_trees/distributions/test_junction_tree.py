"""Every query of a junction tree, against enumeration."""

import copy
import itertools
import math
import pickle

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from pyro_structured.distributions import JunctionTree
from pyro_structured.junction_trees.ops import junction_tree
from pyro_structured.structures import CliqueTree

SMALL = 1024


@st.composite
def trees(draw):
    """Any chordal graph's cliques, and others inside; forests among them."""
    n = draw(st.integers(1, 10))
    sizes = draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    while math.prod(sizes) > SMALL:
        sizes[sizes.index(max(sizes))] -= 1
    pairs = list(itertools.combinations(range(n), 2))
    edges = draw(st.lists(st.sampled_from(pairs), max_size=2 * n)) if pairs else []
    tree = CliqueTree.from_edges(edges, sizes)
    inside = [clique[: draw(st.integers(1, len(clique)))] for clique in tree.cliques if draw(st.booleans())]
    return CliqueTree(draw(st.permutations([*tree.cliques, *inside])), sizes)


def random_logits(tree, batch, impossible, scale):
    logits = scale * torch.randn(*batch, tree.table_size, dtype=torch.double)
    return logits.masked_fill(torch.rand_like(logits) < impossible, -torch.inf)


def weights_of(tree, logits, values):
    """Log-weights of joint states, from the split tables."""
    total = 0.0
    for clique, table in zip(tree.cliques, tree.split(logits), strict=True):
        index = tuple(values[:, d] for d in clique)
        total = total + table[(..., *index)].movedim(-1, 0)
    return total


def all_values(tree):
    return torch.tensor(list(itertools.product(*map(range, tree.cardinalities))))


def close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.slow
@settings(max_examples=300)
@given(trees(), st.integers(0, 2**31), st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from([0.3, 3.0, 50.0]))
def test_queries(tree, seed, impossible, scale):
    torch.manual_seed(seed)
    logits, values = random_logits(tree, (2,), impossible, scale), all_values(tree)
    value = values[torch.randint(len(values), (2,))]
    observed = torch.rand(2, len(tree.cardinalities)) < torch.rand(())
    weights = weights_of(tree, logits, values)
    agrees = ((values.unsqueeze(1) == value) | ~observed).all(-1)
    d = JunctionTree(logits, tree)
    log_z = weights.logsumexp(0)
    if bool((log_z == -torch.inf).any()):
        with pytest.raises(ValueError, match="clique_logits: expected at least one value of positive probability"):
            _ = d.log_partition_function
        return
    close(d.log_partition_function, log_z)
    close(d.log_prob(values.unsqueeze(1)), weights - log_z, 1e-9 if scale == 50 else 1e-10)
    known = weights.masked_fill(~agrees, -torch.inf)
    evidence = known.logsumexp(0)
    close(d.marginal_log_prob(value, observed), evidence - log_z)
    given_value = d.condition(value, observed)
    if bool((evidence == -torch.inf).any()):
        with pytest.raises(ValueError, match="value: expected evidence of positive probability"):
            _ = given_value.marginals
        return
    check_posterior(tree, given_value, values, known, evidence)


def check_posterior(tree, d, values, weights, log_z):
    """Weights are those of all values, shape ``(values, 2)``."""
    probs = (weights - log_z).exp()
    close(d.log_partition_function, log_z)
    close(d.log_prob(values.unsqueeze(1)), weights - log_z, 1e-9)
    widest = max(tree.cardinalities)
    hits = (values.unsqueeze(-1) == torch.arange(widest)).double()
    close(d.marginals, torch.einsum("vb,vds->bds", probs, hits))
    assert d.marginals.shape == (2, tree.num_variables, widest)
    for clique, table in zip(tree.cliques, tree.split(d.clique_marginals), strict=True):
        close(table, joint(tree, values, probs, clique))
    wanted = torch.randperm(tree.num_variables)[:3].tolist()
    close(d.marginals_of(wanted), joint(tree, values, probs, wanted))
    close(d.entropy(), torch.special.entr(probs).sum(0))
    best = (values.unsqueeze(1) == d.mode).all(-1)
    close(weights.masked_fill(~best, -torch.inf).amax(0), weights.amax(0))


def joint(tree, values, probs, variables):
    shape = [tree.cardinalities[d] for d in variables]
    place = torch.zeros(len(values), dtype=torch.long)
    for d, size in zip(variables, shape, strict=True):
        place = place * size + values[:, d]
    return torch.zeros(2, math.prod(shape), dtype=torch.double).index_add(1, place, probs.T).reshape(2, *shape)


def test_derivatives():
    tree = CliqueTree([[0, 1], [1, 2], [1], [3]], [2, 3, 2, 2])
    torch.manual_seed(0)
    logits = torch.randn(tree.table_size, dtype=torch.double, requires_grad=True)
    value, observed = (
        torch.tensor([[0, 1, 0, 1], [1, 2, 1, 0]]),
        torch.tensor([[True, False, False, False], [False] * 4]),
    )

    def queries(logits):
        d = JunctionTree(logits, tree)
        known = d.condition(value, observed)
        return d.log_partition_function, known.log_prob(value), known.marginals, known.clique_marginals, known.entropy()

    assert gradcheck(queries, logits) and gradgradcheck(queries, logits)
    (gradient,) = torch.autograd.grad(JunctionTree(logits, tree).log_partition_function, logits)
    close(gradient, JunctionTree(logits, tree).clique_marginals.detach())


def test_extreme_tables():
    """Messages that differ by thousands, and constants that would swallow digits."""
    tree = CliqueTree.chain(200, 2)
    same = torch.tensor([[50.0, -50.0], [-50.0, 50.0]], dtype=torch.double)
    tables = [same + 1e9 * (index % 2) for index in range(199)]
    d = JunctionTree(tree.pack(tables), tree)
    first = torch.zeros(200, dtype=torch.long)
    half = torch.tensor(math.log(0.5), dtype=torch.double)
    close(d.log_prob(first), half, 1e-12)
    close(d.log_prob(first.index_fill(0, torch.tensor([7]), 1)), half - 200, 1e-12)
    observed = torch.arange(200) == 0
    close(d.condition(first, observed).marginals[-1], torch.tensor([1.0, 0.0]).double())


def test_logarithms_of_marginals():
    """With derivatives where other states are impossible, and to the least number of double precision in single."""
    logits = torch.zeros(4, requires_grad=True)
    d = JunctionTree(logits, CliqueTree.chain(2, 2)).condition(torch.tensor([1, 0]), torch.tensor([True, False]))
    assert d.marginal_logits[0].tolist() == [-math.inf, 0.0]
    (gradient,) = torch.autograd.grad(d.marginal_logits[1, 0], logits)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 0.0, 0.5, -0.5]))
    single = JunctionTree(torch.tensor([0.0, 0.0, -150.0, -150.0]), CliqueTree.chain(2, 2))
    torch.testing.assert_close(single.marginal_logits[0], torch.tensor([0.0, -150.0]))


def test_pickle_and_expand():
    tree = CliqueTree.grid(2, 3, 2)
    d = JunctionTree(torch.randn(tree.table_size), tree)
    value = d.sample()
    _ = d.marginals
    again = pickle.loads(pickle.dumps(d))
    assert again.tree == tree and torch.equal(again.log_prob(value), d.log_prob(value))
    wide = d.expand([4, 3]).condition(value, torch.tensor([True] * 2 + [False] * 4))
    assert wide.sample((5,)).shape == (5, 4, 3, 6)
    assert wide.marginals.shape == (4, 3, 6, 2)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda tree: JunctionTree(torch.zeros(3), tree), r"clique_logits: expected a last axis of 8 numbers.*\(3,\)"),
        (lambda tree: JunctionTree(torch.zeros(8), "tree"), "tree: expected a CliqueTree, got str"),
        (lambda tree: JunctionTree(torch.zeros(8), tree).marginals_of([0, 0]), "variables: expected different ones"),
        (lambda tree: JunctionTree(torch.zeros(8), tree).marginals_of([3]), "variables: expected different ones"),
        (
            lambda tree: JunctionTree(torch.zeros(8), tree).condition(torch.tensor([2, 0, 0]), torch.ones(3).bool()),
            r"value: expected zeros and ones where observed",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make(CliqueTree.chain(3, 2))


def test_refusals():
    tree = CliqueTree.chain(20, 4)
    d = JunctionTree(torch.zeros(tree.table_size), tree)
    with pytest.raises(NotImplementedError, match="variables: expected one clique's, or at most 4096 joint states"):
        d.marginals_of(range(0, 20, 2))
    with pytest.raises(NotImplementedError, match="mean: categories have none"):
        _ = d.mean
    with pytest.raises(NotImplementedError, match="enumerate_support: expected at most 4096 values"):
        d.enumerate_support()


@settings(max_examples=30)
@given(trees(), st.integers(0, 2**31), st.sampled_from([0.0, 0.5, 4.0]))
def test_from_data(tree, seed, smoothing):
    """Probabilities of cliques are those of the data with a uniform prior."""
    torch.manual_seed(seed)
    x = torch.stack([torch.randint(size, (20,)) for size in tree.cardinalities], -1)
    d = JunctionTree.from_data(x, tree, smoothing)
    close(d.log_partition_function, torch.zeros((), dtype=torch.double))
    for clique in tree.cliques:
        shape = [tree.cardinalities[d] for d in clique]
        counts = torch.zeros(shape, dtype=torch.double)
        for row in x[:, list(clique)]:
            counts[tuple(row)] += 1
        close(d.marginals_of(clique), (counts + smoothing / math.prod(shape)) / (20 + smoothing))
    if smoothing:
        weights = torch.rand(3, 20, dtype=torch.double)
        single = JunctionTree.from_data(x, tree, smoothing, weights[1])
        close(JunctionTree.from_data(x, tree, smoothing, weights).log_prob(x.unsqueeze(1))[:, 1], single.log_prob(x))


def test_from_factors():
    torch.manual_seed(0)
    sizes = [2, 3, 2, 4]
    factors = [
        ([2, 0], torch.randn(5, 2, 2)),
        ([1], torch.randn(3).double()),
        ([0, 1], torch.randn(2, 3)),
        ([], torch.ones(())),
    ]
    d = JunctionTree.from_factors(factors, sizes)
    assert d.batch_shape == (5,) and d.clique_logits.dtype == torch.double
    x = d.sample()
    expected = factors[0][1][range(5), x[:, 2], x[:, 0]] + factors[1][1][x[:, 1]] + factors[2][1][x[:, 0], x[:, 1]] + 1
    close(d.unnormalized_log_prob(x), expected.double(), 1e-6)


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
def test_empty_batches(batch):
    """Every query has a result without rows, also where the evidence has none, and derivatives."""
    tree = CliqueTree([[0, 1], [1, 2], [2], [3]], [2, 3, 2, 2])
    value, observed = torch.zeros(4, dtype=torch.long), torch.tensor([True, False, False, True])
    logits = torch.randn(*batch, tree.table_size, requires_grad=True)
    for d in (
        JunctionTree(logits, tree),
        JunctionTree(torch.randn(tree.table_size), tree).expand(batch),
        JunctionTree(torch.randn(tree.table_size), tree).condition(value.expand(*batch, 4), observed),
    ):
        assert d.batch_shape == batch
        assert d.sample((3,)).shape == (3, *batch, 4) and d.mode.shape == (*batch, 4)
        assert d.marginals.shape == (*batch, 4, 3) and d.clique_marginals.shape == (*batch, tree.table_size)
        assert d.marginals_of([2, 1]).shape == (*batch, 2, 3) and d.marginals_of([2, 0]).shape == (*batch, 2, 2)
        assert d.condition(value, observed).entropy().shape == d.log_partition_function.shape == batch
        assert d.log_prob(value).shape == d.log_prob(d.sample()).shape == batch
        assert d.marginal_log_prob(value, observed).shape == batch
    JunctionTree(logits, tree).entropy().sum().backward()
    assert logits.grad.shape == logits.shape
    full = JunctionTree(torch.randn(3, tree.table_size), tree)
    assert full.sample((0,)).shape == (0, 3, 4) and full.log_prob(torch.zeros(0, 1, 4)).shape == (0, 3)
    assert JunctionTree.from_data(torch.zeros(0, 4), tree, 1.0).marginals.shape == (4, 3)


def test_impossible_rows():
    """Errors name the first ten rows whose evidence is impossible; log-probabilities of all rows are had at once."""
    tree = CliqueTree.chain(3, 2)
    same = torch.eye(2).log()
    d = JunctionTree(tree.pack([same, same]), tree)
    value = torch.tensor([0, 0, 1]).expand(20, 3).clone()
    value[[3, 7]] = 1
    observed = torch.tensor([True, True, True])
    log_probs = d.marginal_log_prob(value, observed)
    assert torch.equal(log_probs.isfinite().nonzero().flatten(), torch.tensor([3, 7]))
    message = (
        "value: expected evidence of positive probability in every batch element, but no value is compatible with it"
    )
    rows = ", in rows 0, 1, 2, 4, 5, 6, 8, 9, 10, 11 and 8 more"
    for query in ("marginals", "mode", "clique_marginals", "log_partition_function"):
        with pytest.raises(ValueError, match=f"^{message}{rows}$"):
            getattr(d.condition(value, observed), query)
    with pytest.raises(ValueError, match=r"compatible with it, in row \(1, 2\)$"):
        d.condition(value[[3, 3, 3, 3, 3, 0]].reshape(2, 3, 3), observed).sample()
    with pytest.raises(ValueError, match="compatible with it$"):
        d.condition(value[0], observed).entropy()
    with pytest.raises(ValueError, match="compatible with it$"):
        torch.func.vmap(lambda each: d.condition(each, observed).marginals)(value)


def test_budget_of_evidence():
    """One table with many rows of evidence: probabilities of all cliques are refused, what needs less is not."""
    tree = CliqueTree.chain(4, 2)
    logits = torch.randn(tree.table_size, requires_grad=True)
    d, plain = (
        JunctionTree(each, tree).condition(torch.zeros(10, 4), torch.tensor([True, False, False, False]))
        for each in (logits, logits.detach())
    )
    message = r"value: expected at most 119 numbers \(pyro_structured_max_table_entries\) in .* 10 rows of .*, got 120"
    for query in (lambda d: d.clique_marginals, lambda d: d.marginals_of([0, 1]), lambda d: d.log_partition_function):
        with pyro.settings.context(pyro_structured_max_table_entries=119):
            with pytest.raises(NotImplementedError, match=message):
                query(d.expand([10]))
            assert query(JunctionTree(torch.randn(20, tree.table_size), tree)).shape[0] == 20
        with pyro.settings.context(pyro_structured_max_table_entries=120):
            assert query(d.expand([10])).shape[0] == 10
    with pyro.settings.context(pyro_structured_max_table_entries=12):
        assert plain.marginals.shape == (10, 4, 2) and plain.sample().shape == plain.mode.shape == (10, 4)


def test_budget_of_messages():
    """A large clique with many neighbours is refused although its table is not too large."""
    star = CliqueTree([[0, 1], *([0, d] for d in range(2, 102))], [2] * 102)
    d = JunctionTree(torch.zeros(star.table_size), star)
    with pyro.settings.context(pyro_structured_max_table_entries=40):
        message = r"tree: expected at most 40 numbers .* about \(0, 1\), got \d+; pyro.settings.set"
        with pytest.raises(NotImplementedError, match=message):
            _ = d.marginals
    assert d.marginals.shape == (102, 2)


def test_samples_are_drawn_in_groups(monkeypatch):
    """Groups are of any size, and nothing but the memory depends on it."""
    tree = CliqueTree([[0, 1], [1, 2], [3]], [2, 2, 2, 3])
    same = torch.eye(2).log()
    d = JunctionTree(tree.pack([same, same, torch.tensor([0.0, 1.0, -torch.inf])]), tree)
    for group in (1, 7, 100):
        monkeypatch.setattr(junction_tree, "DRAWN_AT_ONCE", group)
        drawn = d.sample((3000,))
        assert (drawn[:, :3] == drawn[:, :1]).all()
        close(drawn[:, [0, 3]].double().mean(0), torch.tensor([0.5, math.e / (1 + math.e)]).double(), 0.05)


def test_vmap():
    """Over tables, over evidence, and over what is observed."""
    tree = CliqueTree([[0, 1], [1, 2], [2], [3]], [2, 3, 2, 2])
    torch.manual_seed(0)
    logits, table = torch.randn(5, tree.table_size), torch.randn(tree.table_size)
    logits[:, [1, 4]] = -torch.inf
    value, observed = JunctionTree(table, tree).sample((5,)), torch.rand(5, 4) < 0.5

    def draw(logits):
        return JunctionTree(logits, tree).sample((50,))

    drawn = torch.func.vmap(draw, randomness="different")(logits)
    assert drawn.shape == (5, 50, 4) and bool(JunctionTree(logits[:, None], tree).log_prob(drawn).isfinite().all())
    assert not torch.equal(drawn[0], drawn[1])

    def ask(value, observed):
        d = JunctionTree(table, tree).condition(value, observed)
        return d.mode, d.marginals, d.sample()

    empty = torch.func.vmap(lambda logits: JunctionTree(logits, tree).marginals)(torch.zeros(5, 0, tree.table_size))
    assert empty.shape == (5, 0, 4, 3)
    mode, marginals, drawn = torch.func.vmap(ask, randomness="different")(value, observed)
    d = JunctionTree(table, tree).condition(value, observed)
    close(marginals, d.marginals, 1e-6)
    assert torch.equal(mode, d.mode) and torch.equal(drawn[observed], value[observed])


@pytest.mark.parametrize(
    "factors, sizes, message",
    [
        ([([0], torch.zeros(3))], [2], r"factors: expected a tensor of shape \(..., 2\) for \[0\], got shape \(3,\)"),
        (5, [2], "factors: expected a sequence, got 5"),
        (torch.zeros(()), [2], r"factors: expected a sequence, got tensor\(0.\)"),
        ([5], [2], "factors: expected pairs of variables and a tensor, got 5"),
        ([([0],)], [2], r"factors: expected pairs of variables and a tensor, got \(\[0\],\)"),
        ([([0], [0.0, 1.0])], [2], r"factors: expected a tensor of shape \(..., 2\) for \[0\], got list"),
        ([([0, 1], torch.zeros(2))], [2, 2], r"factors: expected a tensor of shape \(..., 2, 2\) .* got shape \(2,\)"),
        ([([0, 0], torch.zeros(2, 2))], [2], r"factors: expected different variables in range\(1\), got \[0, 0\]"),
        ([([-1], torch.zeros(2))], [2], r"factors: expected different variables in range\(1\), got \[-1\]"),
        (
            [([0], torch.zeros(3, 2)), ([0], torch.zeros(4, 2))],
            [2],
            r"factors: expected batch shapes that broadcast, got \[\(3,\), \(4,\)\]",
        ),
    ],
)
def test_bad_factors(factors, sizes, message):
    with pytest.raises(ValueError, match=message):
        JunctionTree.from_factors(factors, sizes)


def test_factors_that_the_tree_does_not_hold():
    one, both = torch.zeros(2), torch.zeros(2, 2)
    with pytest.raises(ValueError, match=r"tree: expected one of variables with \(2,\) states, got \(3,\)"):
        JunctionTree.from_factors([([0], one)], [2], CliqueTree([[0]], [3]))
    with pytest.raises(ValueError, match=r"factors: expected .* in one clique of the tree, got \[0, 1\]"):
        JunctionTree.from_factors([([0, 1], both)], [2, 2], CliqueTree([[0], [1]], [2, 2]))


def test_values_without_rows():
    d = JunctionTree(torch.zeros(8), CliqueTree.chain(3, 2))
    assert d.log_prob(torch.zeros(0, 3)).shape == (0,)
    for shape in ((0,), (3, 0), (0, 2)):
        with pytest.raises(ValueError, match=r"value: expected a shape that broadcasts with .* \(3,\), got"):
            d.log_prob(torch.zeros(shape))
    with pytest.raises(ValueError, match="batch_shape: expected a sequence of integers, got 3"):
        d.expand(3)


def test_what_is_no_tree():
    message = "tree: expected a CliqueTree, got str"
    with pytest.raises(ValueError, match=message):
        JunctionTree(torch.zeros(2), "tree")
    with pytest.raises(ValueError, match=message):
        JunctionTree.from_data(torch.zeros(3, 2), "tree")
    with pytest.raises(ValueError, match=message):
        JunctionTree.from_factors([([0], torch.zeros(2))], [2], "tree")


@pytest.mark.parametrize(
    "parents, tables, message",
    [
        ([[1], [0]], [torch.ones(2, 2)] * 2, r"parents: expected no .* own ancestor, got a cycle among \[0, 1\]"),
        ([[0]], [torch.ones(2, 2)], r"parents: expected different .* other variables, .* variable 0, got \[0\]"),
        ([[], [0, 0]], [torch.ones(2), torch.ones(2, 2, 2)], r"parents: expected different .* got \[0, 0\]"),
        ([[], [-1]], [torch.ones(2), torch.ones(2, 2)], r"parents: .* below 2, for variable 1, got \[-1\]"),
        ([[], []], [torch.ones(2)], "tables: expected 2, one for each variable, got 1"),
        ([[], [0]], [torch.ones(2)] * 2, r"tables: expected a tensor of at least 2 axes for variable 1, got .*\(2,\)"),
        ([[]], 5, "tables: expected a sequence, got 5"),
        ([[]], [[0.5, 0.5]], "tables: expected a tensor of at least 1 axes for variable 0, got list"),
        (
            [[]],
            [torch.zeros(2)],
            "tables: expected rows of .* at least 0 with a positive sum for variable 0, got others",
        ),
        ([[]], [torch.tensor([2.0, -1.0])], "tables: expected rows of numbers of at least 0"),
        ([[]], [torch.tensor([1.0, math.nan])], "tables: expected rows of numbers of at least 0"),
    ],
)
def test_bad_networks(parents, tables, message):
    with pytest.raises(ValueError, match=message):
        JunctionTree.from_bayesian_network(parents, tables)


def test_copies_of_expanded_instances_with_gradients():
    d = JunctionTree(torch.zeros(8, requires_grad=True), CliqueTree.chain(3, 2)).expand((2,))
    copied = copy.deepcopy(d)
    assert torch.equal(copied.marginals, d.marginals) and copied.clique_logits.shape == (2, 8)


@pytest.mark.slow
@settings(max_examples=150)
@given(trees(), st.integers(0, 2**31), st.sampled_from([0.0, 0.2]), st.sampled_from([0.3, 3.0, 50.0]), st.booleans())
def test_evidence_of_states(tree, seed, impossible, scale, observe):
    """Against enumeration; evidence has a batch of its own, and what stands past a variable's states says nothing."""
    torch.manual_seed(seed)
    logits, values, sizes = random_logits(tree, (2,), 0.0, scale), all_values(tree), torch.tensor(tree.cardinalities)
    most = max(tree.cardinalities)
    evidence = scale * torch.randn(3, 1, len(sizes), most, dtype=torch.double)
    evidence = evidence.masked_fill(torch.rand_like(evidence) < impossible, -torch.inf)
    beyond = torch.arange(most) >= sizes.unsqueeze(-1)
    d = JunctionTree(logits, tree)
    weights = weights_of(tree, logits, values)
    if observe:
        observed = torch.rand(len(sizes)) < 0.3
        d = d.condition(values[0], observed)
        weights = weights.masked_fill(~((values == values[0]) | ~observed).all(-1, keepdim=True), -torch.inf)
    terms = evidence[..., torch.arange(len(sizes)), values].sum(-1).movedim(-1, 0)
    joint = weights[:, None] + terms
    log_z = joint.logsumexp(0)
    tolerance = 1e-9 if scale == 50 else 1e-10
    expected = log_z - weights.logsumexp(0)
    for filler in (0.0, torch.nan):
        close(d.log_evidence(evidence.masked_fill(beyond, filler)), expected, tolerance)
    given_evidence = d.reweight(evidence)
    if bool((log_z == -torch.inf).any()):
        with pytest.raises(ValueError, match="value: expected evidence of positive probability"):
            _ = given_evidence.marginals
        return
    close(given_evidence.log_partition_function, log_z, tolerance)
    close(given_evidence.log_prob(values[:, None, None]), joint - log_z, 1e-9 if scale == 50 else 1e-10)
    assert given_evidence.sample((4,)).shape == (4, 3, 2, len(sizes))


def test_gradients_of_evidence():
    tree = CliqueTree([[0, 1], [1, 2], [1]], [2, 3, 2])
    logits, evidence = torch.randn(tree.table_size).double(), torch.randn(2, 3, 3).double()

    def query(logits, evidence):
        return JunctionTree(logits, tree).log_evidence(evidence)

    gradcheck(query, (logits.requires_grad_(), evidence.requires_grad_()))
    gradgradcheck(query, (logits, evidence))


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ([[0.0]], r"log_weights: expected a floating point tensor, got \[\[0.0\]\]"),
        (torch.zeros(3, 2, dtype=torch.long), "log_weights: expected a floating point tensor"),
        (torch.zeros(3, 2), r"log_weights: expected shape \(..., 3, 3\), got \(3, 2\)"),
        (torch.zeros(3), r"log_weights: expected shape \(..., 3, 3\), got \(3,\)"),
        (torch.full((3, 3), torch.nan), r"log_weights: expected numbers less than \+inf, got \+inf or NaN"),
    ],
)
def test_bad_evidence(evidence, message):
    tree = CliqueTree([[0, 1], [1, 2]], [2, 3, 2])
    with pytest.raises(ValueError, match=message):
        JunctionTree(torch.zeros(tree.table_size), tree).reweight(evidence)
