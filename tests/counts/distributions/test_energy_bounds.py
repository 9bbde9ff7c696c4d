"""Bounds of models with pairs that nothing represents, against the enumeration of all vectors."""

import math
import pickle

import numpy as np
import pytest
import torch

from pyro_structured.counts.ops.pair_bounds import plan_pairs, tightest_bound
from pyro_structured.distributions import EnergyBounds, KSubset, RecursiveCardinality
from pyro_structured.distributions.cardinality_potentials import exactly
from pyro_structured.structures import NestedSubsets

INF = math.inf
SIZE = 8
ALL_PAIRS = torch.triu_indices(SIZE, SIZE, 1).T
PATH = [(d, d + 1) for d in range(SIZE - 1)]
VECTORS = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * SIZE)
FAMILIES = {
    "no subsets": NestedSubsets([], SIZE),
    "whole": NestedSubsets([range(SIZE)], SIZE),
    "nested": NestedSubsets.balanced(SIZE),
    "some": NestedSubsets([[1, 4, 6], [6], [], [4, 1, 6], [1, 4], [0, 7]], SIZE),
    "references": NestedSubsets(
        [[0, 2, 5], range(SIZE)], SIZE, references=[[0, 0, 1], [1, 0, 1, 1, 0, 0, 1, 0]], edges=[(0, 2), (2, 5), (5, 7)]
    ),
    "path": NestedSubsets([[0, 1, 2], range(SIZE)], SIZE, edges=PATH),
    "star": NestedSubsets([range(SIZE)], SIZE, edges=[(3, d) for d in range(SIZE) if d != 3]),
    "links": NestedSubsets(
        [range(4), range(4, SIZE)], SIZE, edges=[(1, 0)], links=[(0, 1, None)], references=[[1, 0, 0, 1], [1] * 4]
    ),
}


def random_model(subsets, rows, seed, scale=1.0, pairs=ALL_PAIRS, impossible=0.0):
    """A batch of models; about ``impossible`` of the logits and of the counts' tables are infinite."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.double, generator=generator)

    def chosen(tensor):
        return torch.rand(tensor.shape, generator=generator) < impossible

    logits, tables = scale * draw(rows, SIZE), scale * draw(rows, subsets.table_size)
    logits = torch.where(chosen(logits), INF * logits.sign(), logits)
    tables = tables.masked_fill(chosen(tables), -INF)
    edges = scale * draw(rows, len(subsets.edges), 2, 2) if subsets.edges else None
    links = scale * draw(rows, subsets.link_table_size) if subsets.links else None
    pair_logits = scale * draw(rows, len(pairs), 2, 2)
    possible = RecursiveCardinality(logits, tables, subsets, edges, links).unchecked_log_partition > -INF
    parts = (None if part is None else part[possible] for part in (logits, tables, edges, links))
    logits, tables, edges, links = parts
    return RecursiveCardinality(logits, tables, subsets, edges, links), pairs, pair_logits[possible]


def energies(distribution, pairs, pair_logits):
    """Exponents of all vectors, by a formula of its own, shape (2^D, rows)."""
    found = distribution.unnormalized_log_prob(VECTORS.unsqueeze(1))
    for number, (a, b) in enumerate(pairs.tolist()):
        states = VECTORS[:, [a, b]].long()
        found = found + pair_logits[:, number, states[:, 0], states[:, 1]].T
    return found


def rounding(distribution, pair_logits):
    """Of sums of all parameters, shape (rows,)."""
    tables = (distribution.logits, distribution.count_logits, distribution.edge_logits, distribution.link_logits)
    given = [table.flatten(1) for table in (*tables, pair_logits) if table is not None]
    return 1e-12 + 1e-13 * torch.cat([table.masked_fill(table.isinf(), 0.0) for table in given], -1).abs().sum(-1)


def is_between(low, number, high, error):
    return bool(((low <= number + error) & (number <= high + error)).all())


@pytest.mark.slow(keep=12)
@pytest.mark.parametrize("scale, impossible", [(0.3, 0.0), (10.0, 0.15), (1e5, 0.0)])
@pytest.mark.parametrize("name", FAMILIES)
def test_energies_and_log_z_lie_between_the_bounds(name, scale, impossible):
    """At every vector, in more than a thousand models."""
    model = random_model(FAMILIES[name], 46, len(name), scale, impossible=impossible)
    bounds = EnergyBounds(*model, num_steps=2)
    exact = energies(*model)
    error = rounding(model[0], model[2])
    assert exact.shape[1] >= (30 if impossible else 46)  # of 8 families at 3 scales
    scores = bounds.unnormalized_log_prob(VECTORS.unsqueeze(1))
    assert is_between(scores, exact, scores, error)
    below, above = (d.unnormalized_log_prob(VECTORS.unsqueeze(1)) for d in (bounds.lower, bounds.upper))
    assert is_between(below, exact, above, error)
    log_z = exact.logsumexp(0)
    assert is_between(bounds.log_partition_bounds()[0], log_z, bounds.log_partition_bounds()[1], error)
    low, high = bounds.log_prob_bounds(VECTORS.unsqueeze(1))
    assert is_between(low, exact - log_z, high, error)
    assert bool(((low == -INF) == (exact == -INF)).all() and (high <= 0).all())


def test_bounds_for_any_means_and_counts():
    generator = torch.Generator().manual_seed(0)
    plan = plan_pairs([np.arange(5), np.arange(2)], [(4, 7)], ALL_PAIRS.numpy(), SIZE, torch.device("cpu"))
    weights = torch.randn(100, plan.ends.shape[1] + 1, dtype=torch.double, generator=generator)
    means = torch.rand(100, SIZE, dtype=torch.double, generator=generator)
    bound = tightest_bound(plan, weights, means, 10 * torch.rand(100, 2, dtype=torch.double, generator=generator))
    products = torch.cat([VECTORS[:, plan.ends].prod(1), VECTORS[:, [4, 7]].prod(-1, keepdim=True)], -1)
    in_pair, in_five = VECTORS[:, :2].prod(-1), VECTORS[:, :5].sum(-1)
    counts = torch.stack([in_five * (in_five - 1) / 2 - in_pair, in_pair], -1)
    found = counts @ bound.levels.T + bound.constant + VECTORS @ bound.unary.T
    found = found + VECTORS[:, [4, 7]].prod(-1, True) * bound.kept.T
    assert bool((found >= products @ weights.T - 1e-12).all())


@pytest.mark.parametrize("name", ["nested", "references"])
def test_more_steps_are_never_worse(name):
    model = random_model(FAMILIES[name], 12, 1)
    steps = (0, 1, 3, 8)
    bounds = [EnergyBounds(*model, num_steps=num_steps).log_partition_bounds() for num_steps in steps]
    low, high = map(torch.stack, zip(*bounds, strict=True))
    assert bool((high.diff(dim=0) <= 1e-10).all()) and bool((high[-1] < high[0] - 0.01).all())
    # Where the descent ends is one of the starts of the ascent, so that only its gains on the whole are sure.
    assert bool((low[-1] > low[0] - 0.01).all()) and float((low[-1] - low[0]).mean()) > 0.05


def test_larger_families_are_narrower():
    """Groups of similar weights: counts are worth much, and a forest what it holds."""
    distribution, pairs, pair_logits = random_model(FAMILIES["no subsets"], 20, 2)
    pair_logits = 0.4 * pair_logits + torch.tensor([[0.0, 0.0], [0.0, 0.7]])

    def width(name):
        subsets = FAMILIES[name]
        edges = torch.zeros(len(subsets.edges), 2, 2).double() if subsets.edges else None
        base = RecursiveCardinality(distribution.logits, torch.zeros(subsets.table_size).double(), subsets, edges)
        low, high = EnergyBounds(base, pairs, pair_logits, num_steps=6).log_partition_bounds()
        return (high - low).mean()

    unaries, whole, nested, path = map(width, ("no subsets", "whole", "nested", "path"))
    assert whole < 0.6 * unaries and nested < whole and path < whole


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["whole", "nested", "references", "path"])
def test_bounds_meet_where_the_model_is_representable(name, sign):
    """One weight for each group of pairs of variables that differ from references; any weights on edges."""
    subsets = FAMILIES[name]
    distribution, pairs, pair_logits = random_model(subsets, 6, 3)
    references = subsets.references or [np.zeros(size, bool) for size in subsets.sizes]
    tables = torch.zeros(6, len(pairs), 2, 2, dtype=torch.double)
    for members, reference in zip(subsets.subsets, references, strict=True):
        differ = dict(zip(members.tolist(), reference.tolist(), strict=True))
        strength = sign * torch.rand(6, dtype=torch.double)
        for number, (a, b) in enumerate(pairs.tolist()):
            if {a, b} <= set(differ):
                tables[:, number, 1 - differ[a], 1 - differ[b]] += strength
    on_edges = torch.tensor([tuple(pair) in {tuple(sorted(edge)) for edge in subsets.edges} for pair in pairs.tolist()])
    tables[:, on_edges] += pair_logits[:, on_edges]
    # Tables that are sums over single variables are no pairs.
    tables += pair_logits[..., :1, :] + 2 * pair_logits[..., :, 1:]
    bounds = EnergyBounds(distribution, pairs.flip(-1), tables.mT)
    log_z = energies(distribution, pairs, tables).logsumexp(0)
    for bound in bounds.log_partition_bounds():
        torch.testing.assert_close(bound, log_z, rtol=0, atol=1e-10)
    low, high = bounds.marginal_bounds()
    torch.testing.assert_close(low, high, rtol=0, atol=1e-10)


def test_bounds_meet_where_one_variable_of_each_pair_is_known():
    distribution, _, pair_logits = random_model(FAMILIES["path"], 20, 4)
    pairs = torch.tensor([[0, 4], [4, 7], [4, 2], [4, 4 - 1], [5, 4]])
    bounds = EnergyBounds(distribution, pairs, pair_logits[:, :5], num_steps=1).condition(
        (torch.arange(20) % 2).unsqueeze(-1), torch.arange(SIZE) == 4
    )
    low, high = bounds.log_partition_bounds()
    torch.testing.assert_close(low, high, rtol=0, atol=1e-10)


def test_repeated_and_reversed_pairs_add_up():
    distribution, pairs, pair_logits = random_model(FAMILIES["nested"], 10, 5)
    once = EnergyBounds(distribution, pairs, pair_logits, num_steps=3)
    twice = EnergyBounds(
        distribution, torch.cat([pairs, pairs.flip(-1)]), torch.cat([0.25 * pair_logits, 0.75 * pair_logits.mT], 1), 3
    )
    for one, other in zip(once.log_partition_bounds(), twice.log_partition_bounds(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["whole", "references"])
def test_bounds_of_probabilities(name):
    model = random_model(FAMILIES[name], 7, 6, impossible=0.2)
    bounds = EnergyBounds(*model, num_steps=2)
    probs = energies(*model).softmax(0)
    marginals = probs.T @ VECTORS
    low, high = bounds.marginal_bounds()
    assert low.shape == marginals.shape and is_between(low, marginals, high, 1e-10)
    assert float((high - low).mean()) < 0.7
    observed = torch.arange(SIZE) < 3
    values = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * 3)
    values = torch.nn.functional.pad(values, (0, SIZE - 3), value=5.0).unsqueeze(1)
    same = (VECTORS[:, None, :3] == values[:, 0, :3]).all(-1).double()
    expected = (same.T @ probs).log()
    low, high = bounds.marginal_log_prob_bounds(values, observed)
    assert is_between(low, expected, high, 1e-9) and bool((high <= 0).all())
    assert bool(((high == -INF) == (expected == -INF)).all() and ((low == -INF) == (expected == -INF)).all())
    assert bool((expected == -INF).any())
    # What is known already makes what follows surer.
    given = bounds.condition(values[expected.argmax(0), 0], observed)
    known = given.distribution.logits.isinf()
    low, high = given.marginal_bounds()
    torch.testing.assert_close(low[known], (given.distribution.logits == INF).double()[known])
    torch.testing.assert_close(high[known], low[known])


def test_counts_that_are_known():
    """Exactly three of eight, with pairs that repel each other: neither a count nor a tree."""
    generator = torch.Generator().manual_seed(7)
    weights = -0.5 - 0.2 * torch.rand(10, len(ALL_PAIRS), dtype=torch.double, generator=generator)
    tables = torch.nn.functional.pad(weights[..., None, None], (1, 0, 1, 0))
    bounds = EnergyBounds(KSubset(torch.zeros(SIZE).double(), 3), ALL_PAIRS, tables)
    model = RecursiveCardinality(torch.zeros(SIZE).double(), exactly(SIZE, 3).double()), ALL_PAIRS, tables
    low, high = bounds.log_partition_bounds()
    assert is_between(low, energies(*model).logsumexp(0), high, 1e-10)
    assert float((high - low).max()) < 0.5
    for d in (bounds.lower, bounds.upper):
        assert bool((d.sample((20,)).sum(-1) == 3).all())


@pytest.mark.parametrize("name", ["nested", "references"])
def test_gradients(name):
    """Along all parameters, those of bounds that meet, and finite ones at infinite parameters."""
    distribution, pairs, pair_logits = random_model(FAMILIES[name], 2, 8, impossible=0.1)
    given = [distribution.logits, distribution.count_logits, 0.3 * pair_logits]
    edges = distribution.edge_logits
    given = [tensor.clone().requires_grad_() for tensor in given]

    def bounds(logits, tables, pair_logits):
        base = RecursiveCardinality(logits, tables, distribution.subsets, edges)
        return EnergyBounds(base, pairs, pair_logits, num_steps=10)

    for which in range(2):
        found = torch.autograd.grad(bounds(*given).log_partition_bounds()[which].sum(), given)
        assert all(bool(gradient.isfinite().all()) for gradient in found)
        with torch.no_grad():
            step = [1e-6 * torch.randn_like(tensor) for tensor in given]
            ends = (
                bounds(*(t + side * s for t, s in zip(given, step, strict=True))).log_partition_bounds()[which]
                for side in (1, -1)
            )
            change = torch.stack([*ends]).double()
        expected = sum(float((g * s).sum()) for g, s in zip(found, step, strict=True))
        # The optimum does not move, to first order; ties of the upper bound are not met exactly.
        assert float((change[0] - change[1]).sum()) / 2 == pytest.approx(expected, rel=0.05, abs=1e-7)


def test_single_precision_empty_batches_and_copies():
    distribution, pairs, pair_logits = random_model(FAMILIES["nested"], 4, 9)
    double = EnergyBounds(distribution, pairs, pair_logits)
    single = EnergyBounds(
        RecursiveCardinality(distribution.logits.float(), distribution.count_logits.float(), distribution.subsets),
        pairs,
        pair_logits.float(),
    )
    assert single.lower.logits.dtype == torch.double
    for one, other in zip(single.log_partition_bounds(), double.log_partition_bounds(), strict=True):
        assert one.dtype == torch.float and other.dtype == torch.double
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    empty = EnergyBounds(distribution.expand((0, 4)), pairs, pair_logits)
    assert [bound.shape for bound in empty.log_partition_bounds()] == [(0, 4)] * 2
    copied = pickle.loads(pickle.dumps(double))
    torch.testing.assert_close(copied.log_partition_bounds(), double.log_partition_bounds())
    assert repr(copied).startswith("EnergyBounds(distribution=")


def test_batches_broadcast_and_are_mapped():
    distribution, pairs, pair_logits = random_model(FAMILIES["path"], 3, 10)
    few = pair_logits[:2, None]

    def bounds(pair_logits):
        return EnergyBounds(distribution, pairs, pair_logits, num_steps=2).log_partition_bounds()

    together = bounds(few)
    assert together[0].shape == (2, 3)
    mapped = torch.vmap(bounds)(few)
    for one, other in zip(together, mapped, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"distribution": None}, "distribution: expected a RecursiveCardinality, got NoneType"),
        ({"pairs": torch.tensor([[0, 0]])}, "pairs: expected at least one edge, and no loops, got a loop"),
        ({"pairs": torch.tensor([[0, 8]])}, "pairs: expected .*8"),
        ({"pair_logits": torch.zeros(3, 2, 2)}, r"pair_logits: expected shape \(..., 28, 2, 2\), got \(3, 2, 2\)"),
        ({"pair_logits": torch.zeros(3, 28, 2, 2)}, r"pair_logits: expected a batch that broadcasts with \(2,\)"),
        ({"pair_logits": torch.full((28, 2, 2), -INF)}, "pair_logits: expected finite numbers, got others"),
        ({"num_steps": -1}, "num_steps: expected an integer of at least 0, got -1"),
        (
            {"distribution": RecursiveCardinality(torch.full((SIZE,), INF), exactly(SIZE, 2))},
            "count_logits: expected at least one vector of positive probability",
        ),
    ],
)
def test_errors(changes, message):
    arguments = {
        "distribution": RecursiveCardinality(torch.zeros(2, SIZE), torch.zeros(SIZE + 1)),
        "pairs": ALL_PAIRS,
        "pair_logits": torch.zeros(len(ALL_PAIRS), 2, 2),
    }
    with pytest.raises(ValueError, match=message):
        EnergyBounds(**{**arguments, **changes})
