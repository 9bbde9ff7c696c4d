import itertools
import math
import pickle
import random

import pytest
import torch
from torch.distributions import kl_divergence

from pyro_structured.distributions import CountedJunctionTree, JunctionTree, RecursiveCardinality
from pyro_structured.junction_trees.ops import counted_passes
from pyro_structured.structures import CliqueTree, NestedSubsets
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit


def random_tree(rng, largest):
    """Cliques of up to four variables of one to three states, in forests, some of them twice or inside others."""
    while True:
        sizes = [rng.randint(1, 3) for _ in range(rng.randint(1, largest))]
        cliques = []
        for d in range(len(sizes)):
            base = () if not d or rng.random() < 0.1 else rng.choice(cliques)
            cliques.append(tuple(sorted([*rng.sample(base, rng.randint(0, min(3, len(base)))), d])))
        if math.prod(sizes) <= 1500:
            names = rng.sample(range(len(sizes)), len(sizes))
            cliques = [[names[d] for d in clique] for clique in cliques] + [[names[0]]]
            return CliqueTree(cliques, [size for _, size in sorted(zip(names, sizes, strict=True))])


def is_compatible(tree, variables):
    crossing = [(u, w) for c in tree.cliques for u in c if u in variables for w in c if w not in variables]
    return any(all(u in c or w in c for u, w in crossing) for c in tree.cliques)


def random_family(rng, tree):
    """Compatible nested lists of pairs, of connected variables or any; one of them may be empty, or another's copy."""
    number, family = tree.num_variables, []
    for _ in range(60):
        variables = set(rng.sample(range(number), rng.randint(1, number)))
        if rng.random() < 0.7:
            size, variables = len(variables), set(rng.choice(tree.cliques))
            while len(variables) < size and (
                near := {d for c in tree.cliques if variables & {*c} for d in c} - variables
            ):
                variables.add(rng.choice(sorted(near)))
        nested = all(variables <= other or other <= variables or not variables & other for other in family)
        if nested and is_compatible(tree, variables) and len(family) < 5:
            family.append(variables)
    family += [set()] if rng.random() < 0.1 else []
    rng.shuffle(family)
    counted = [rng.sample(range(size), rng.randint(1, size)) for size in tree.cardinalities]
    return [[(d, state) for d in variables for state in counted[d]] for variables in family]


def random_case(seed, largest=7, impossible=0.1):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    while True:
        tree = random_tree(rng, largest)
        family = random_family(rng, tree)
        sizes = [len({d for d, _ in pairs}) + 1 for pairs in family]
        tables, numbers = (3 * torch.randn(size, dtype=torch.double) for size in (tree.table_size, sum(sizes)))
        for numbers_of in (tables, numbers):
            numbers_of[torch.rand(numbers_of.shape) < impossible] = -math.inf
        if seed % 4 == 0 and len(numbers):
            numbers[-1] = -math.inf
        d = CountedJunctionTree(tables, tree, numbers, family)
        weights = log_weights(tree, family, tables, numbers)
        if weights.logsumexp(0) > -math.inf:
            return d, weights, sizes


def counts_of(values, pairs):
    hits = [(values[:, d] == state).long() for d, state in pairs]
    return sum(hits) if hits else torch.zeros(len(values), dtype=torch.long)


def log_weights(tree, family, tables, numbers):
    """Log-weights of all values, from the definition."""
    values = torch.tensor(list(itertools.product(*map(range, tree.cardinalities))))
    total = torch.zeros(len(values), dtype=torch.double)
    for clique, table in zip(tree.cliques, tree.split(tables), strict=True):
        total = total + table[tuple(values[:, d] for d in clique)]
    start = 0
    for pairs in family:
        total = total + numbers[start + counts_of(values, pairs)]
        start += len({d for d, _ in pairs}) + 1
    return total


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("part", range(3))
def test_queries_equal_enumeration(part):
    for seed in range(100 * part, 100 * part + 100):
        d, weights, sizes = random_case(seed)
        values, log_z = d.enumerate_support(), weights.logsumexp(0)
        probs = (weights - log_z).exp()
        close(d.log_partition_function, log_z)
        close(d.log_prob(values), weights - log_z)
        assert weights[(values == d.mode).all(-1)].item() == pytest.approx(weights.max().item(), abs=1e-10)
        close(d.entropy(), -torch.xlogy(probs, probs).sum())
        states = torch.arange(d.marginals.shape[-1])
        close(d.marginals, (probs[:, None, None] * (values.unsqueeze(-1) == states)).sum(0))
        for pairs, found in zip(d.counted, d.count_marginals.split(sizes), strict=True):
            close(found, torch.zeros(len(found), dtype=torch.double).index_add(0, counts_of(values, pairs), probs))
        for pairs, found in zip(d.counted, d.counts(values).unbind(-1), strict=True):
            assert torch.equal(found, counts_of(values, pairs))
        for clique, found in zip(d.tree.cliques, d.tree.split(d.clique_marginals), strict=True):
            close(found, d.marginals_of(clique))
        wanted = sorted({0, len(values[0]) - 1})
        table = torch.zeros([d.tree.cardinalities[v] for v in wanted], dtype=torch.double)
        close(d.marginals_of(wanted), table.index_put(tuple(values[:, v] for v in wanted), probs, accumulate=True))
        observed = torch.rand(len(values[0])) < 0.4
        agrees = ((values == values[probs.argmax()]) | ~observed).all(-1)
        given = d.condition(values[probs.argmax()], observed)
        close(given.log_partition_function, weights[agrees].logsumexp(0))
        close(given.log_prob(values[agrees]), weights[agrees].log_softmax(0))
        assert torch.isin(d.sample((20,)) @ places(d), (values @ places(d))[probs > 0]).all()


def places(d):
    """Weights that number the joint states."""
    sizes = d.tree.cardinalities
    return torch.tensor([math.prod(sizes[place + 1 :]) for place in range(len(sizes))])


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("part", range(3))
def test_derivatives_equal_those_of_enumeration(part):
    """Gradients and Hessian-vector products of log Z and of a log-probability."""
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        d, weights, _ = random_case(seed, largest=6)
        value = d.enumerate_support()[weights.argmax()]
        parameters = [p.clone().requires_grad_() for p in (d.clique_logits, d.count_logits)]
        again = CountedJunctionTree(parameters[0], d.tree, parameters[1], d.counted)
        expected = log_weights(d.tree, d.counted, *parameters)
        results = []
        for log_z, score in (
            (again.log_partition_function, again.log_prob(value)),
            (finite_logsumexp(expected), expected[weights.argmax()] - finite_logsumexp(expected)),
        ):
            torch.manual_seed(seed)
            first = torch.autograd.grad(log_z, parameters, create_graph=True, allow_unused=True)
            along = sum((g * torch.randn_like(g)).sum() for g in first if g is not None)
            second = torch.autograd.grad(along, parameters, retain_graph=True, allow_unused=True)
            results.append([*first, *second, *torch.autograd.grad(score, parameters, allow_unused=True)])
        for ours, theirs in zip(*results, strict=True):
            if theirs is not None:
                close(torch.zeros_like(theirs) if ours is None else ours, theirs)


def finite_logsumexp(weights):
    return weights[weights > -math.inf].logsumexp(0)


@pytest.mark.statistical
def test_samples():
    for seed in range(2000, 2040):
        d, weights, _ = random_case(seed)
        drawn = d.sample((2000,)) @ places(d)
        assert discrete_goodness_of_fit(weights.softmax(0), drawn.bincount(minlength=len(weights))) > 2e-9


def test_twelve_variables_and_large_numbers():
    for seed, scale in itertools.product(range(5), (1.0, 300.0)):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        cliques = [[0, 1, 2]] + [[*sorted(rng.sample(range(d), 2)), d] for d in range(3, 12)]
        tree = CliqueTree.from_cliques(cliques, [2] * 12)
        family = [[(d, 1) for d in variables] for variables in tree.subtrees(3)]
        numbers = scale * torch.randn(sum(len(pairs) + 1 for pairs in family), dtype=torch.double)
        tables = scale * torch.randn(tree.table_size, dtype=torch.double)
        d = CountedJunctionTree(tables, tree, numbers, family)
        weights = log_weights(tree, family, tables, numbers)
        close(d.log_partition_function, weights.logsumexp(0), 1e-12)
        close(d.log_prob(d.enumerate_support()), weights.log_softmax(0), 1e-10)


def test_one_list_on_a_path_equals_recursive_cardinality():
    torch.manual_seed(0)
    edges = [(d, d + 1) for d in range(59)]
    subsets = NestedSubsets.from_tree(edges, 60, min_size=10)
    tables, numbers = torch.randn(59, 2, 2).double(), torch.randn(subsets.table_size).double()
    counts = RecursiveCardinality(torch.zeros(60).double(), numbers, subsets, edge_logits=tables)
    pairs = [[(d, 1) for d in subset.tolist()] for subset in subsets.subsets]
    tree = CliqueTree.chain(60, 2)
    d = CountedJunctionTree(tree.pack(list(tables)), tree, numbers, pairs)
    close(d.log_partition_function, counts.log_partition_function)
    close(d.marginals[:, 1], counts.marginals)
    close(d.count_marginals, counts.count_marginals)


def test_without_counts_it_is_a_junction_tree():
    tree = CliqueTree([[0, 1, 2], [1, 2, 3]], [2, 3, 2, 2])
    tables = torch.randn(2, tree.table_size, generator=torch.Generator().manual_seed(0))
    d, plain = CountedJunctionTree(tables, tree, torch.zeros(0), []), JunctionTree(tables, tree)
    close(d.marginals, plain.marginals, 1e-6)
    close(d.log_partition_function, plain.log_partition_function, 1e-6)
    flat = CountedJunctionTree(tables, tree, torch.zeros(5), [(v, 0) for v in range(4)])
    close(flat.log_prob(plain.mode), plain.log_prob(plain.mode), 1e-6)
    again = pickle.loads(pickle.dumps(flat))
    assert torch.equal(again.marginals, flat.marginals)


def test_subtrees_are_compatible():
    for seed in range(30):
        tree = random_tree(random.Random(seed), 12)
        for variables in tree.subtrees(1):
            assert is_compatible(tree, set(variables))
        family = [[(d, 0) for d in variables] for variables in tree.subtrees(1)]
        numbers = torch.zeros(sum(len(pairs) + 1 for pairs in family))
        CountedJunctionTree(torch.zeros(tree.table_size), tree, numbers, family).log_partition_function  # noqa: B018


PATH = CliqueTree.chain(5, 2)


@pytest.mark.parametrize(
    "counted, message",
    [
        (
            [[(0, 1), (1, 1)], [(1, 1), (2, 1)]],
            r"counted: .* counted\[0\] and counted\[1\] cross: variable 1 is in both",
        ),
        (
            [(0, 1), (2, 1), (4, 1)],
            r"counted: .* but \(0, 1\), .*, \(4, 3\) leave .* counted\[0\], \[0, 2, 4\]",
        ),
        (
            [[(0, 1)], [(0, 0), (1, 1)]],
            r"counted: expected the same states .* \[1\] of variable 0 in counted\[0\] .* \[0\]",
        ),
        ([(5, 0)], r"counted: expected variables in range\(5\) .* got \(5, 0\) in counted\[0\]"),
        ([(0, 2)], r"counted: .* got \(0, 2\)"),
        ([(0, 1), (0, 1)], r"counted: expected different pairs"),
        ([[0, 1, 2]], r"counted: expected pairs \(variable, state\) .* got 0"),
        (3, r"counted: expected"),
    ],
)
def test_wrong_lists_are_named(counted, message):
    with pytest.raises(ValueError, match=message):
        CountedJunctionTree(torch.zeros(16), PATH, torch.zeros(3), counted)


def test_wrong_shapes_and_impossible_counts_are_named():
    pairs = [(d, 1) for d in range(5)]
    with pytest.raises(ValueError, match="clique_logits: expected a last axis of 16 numbers"):
        CountedJunctionTree(torch.zeros(11), PATH, torch.zeros(6), pairs)
    with pytest.raises(ValueError, match="count_logits: expected a last axis of 6 numbers"):
        CountedJunctionTree(torch.zeros(16), PATH, torch.zeros(4), pairs)
    with pytest.raises(ValueError, match="count_logits: expected at least one value of positive probability"):
        CountedJunctionTree(torch.zeros(16), PATH, torch.full((6,), -math.inf), pairs).sample()


@pytest.mark.slow
@pytest.mark.parametrize("most", [3, 5])
def test_long_chains_of_few_counted_variables(most):
    """Counts beyond the possible ones take no place; against a forward recursion."""
    size = 6000
    tables = torch.randn(size - 1, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    numbers = torch.full((size + 1,), -math.inf).double()
    numbers[: most + 1] = torch.arange(most + 1)
    d = CountedJunctionTree(tables.flatten(), CliqueTree.chain(size, 2), numbers, [(v, 1) for v in range(size)])
    message = torch.full((2, most + 1), -math.inf).double()
    message[0, 0] = message[1, 1] = 0.0
    for table in tables:
        joined = torch.logsumexp(message.unsqueeze(1) + table.unsqueeze(-1), 0)
        message = torch.stack([joined[0], torch.cat([torch.full((1,), -math.inf).double(), joined[1, :-1]])])
    close(d.log_partition_function, (message.logsumexp(0) + numbers[: most + 1]).logsumexp(0), 1e-9)
    assert (d.counts(d.sample((3,))) <= most).all()
    with pytest.raises(NotImplementedError, match="counted: expected at most .* numbers"):
        CountedJunctionTree(d.clique_logits, d.tree, torch.zeros(size + 1), d.counted).log_partition_function  # noqa: B018


def test_further_samples_repeat_no_pass(monkeypatch):
    passes = []
    upward = counted_passes._upward
    monkeypatch.setattr(counted_passes, "_upward", lambda *given: passes.append(given) or upward(*given))
    d = CountedJunctionTree(torch.zeros(16), PATH, torch.zeros(6), [(v, 1) for v in range(5)])
    for _ in range(3):
        d.sample((2,))
    assert len(passes) == 1


@pytest.mark.parametrize(
    "value, message",
    [
        (torch.tensor([0, 1, 0, 1, -1]), r"value: expected integers from 0 to below \(2, 2, 2, 2, 2\), got others"),
        (torch.tensor([0, 1, 0, 1, 2]), "value: expected integers"),
        (torch.tensor([0, 1, 0, 1, 0.5]), "value: expected integers"),
        (torch.full((5,), math.nan), "value: expected integers"),
        (torch.zeros(4), r"value: expected a tensor of shape \(..., 5\), got \(4,\)"),
        ([0, 1, 0, 1, 0], r"value: expected a tensor of shape \(..., 5\), got list"),
    ],
)
def test_counts_of_other_values_are_refused(value, message):
    d = CountedJunctionTree(torch.zeros(16), PATH, torch.zeros(6), [(v, 1) for v in range(5)])
    with pytest.raises(ValueError, match=message):
        d.counts(value)


def test_divergences_from_and_to_a_tree_without_counts():
    for seed in range(60):
        d, weights, _ = random_case(seed, impossible=0.0)
        plain = JunctionTree(torch.randn(2, d.tree.table_size, dtype=torch.double), d.tree)
        values, most = d.enumerate_support(), d.mode
        if seed % 2:
            observed = torch.rand(len(most)) < 0.3
            d, plain = d.condition(most, observed), plain.condition(most, observed)
            values = values[((values == most) | ~observed).all(-1)]
        ours, theirs = d.log_prob(values).unsqueeze(-1), plain.log_prob(values.unsqueeze(1))
        terms = torch.where(ours > -math.inf, ours.exp() * (ours - theirs), 0.0)
        close(kl_divergence(d, plain), terms.sum(0))
        close(kl_divergence(plain, d), (theirs.exp() * (theirs - ours)).sum(0))
    with pytest.raises(NotImplementedError, match="kl_divergence: expected two distributions with the same tree"):
        kl_divergence(JunctionTree(torch.zeros(16), PATH), d)
    impossible = JunctionTree(torch.full((d.tree.table_size,), -math.inf), d.tree)
    for pair in ((impossible, d), (d, impossible)):
        with pytest.raises(ValueError, match="clique_logits: expected at least one value of positive probability"):
            kl_divergence(*pair)
