"""Accuracy, certificates and derivatives, against ball arithmetic and enumeration."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from pyro_structured.counts.ops import count_potential, direct_counts, fourier_passes, nested_counts
from pyro_structured.counts.ops.certified_counts import certify, infer_counts, log_partition
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_tree import gather
from pyro_structured.structures import NestedSubsets
from pyro_structured.testing import ball_arithmetic


def log_binomials(size):
    k = torch.arange(size + 1, dtype=torch.float64)
    return (
        torch.lgamma(torch.tensor(size + 1.0, dtype=torch.float64)) - torch.lgamma(k + 1) - torch.lgamma(size - k + 1)
    )


def only(size, *counts):
    table = torch.full((size + 1,), -math.inf, dtype=torch.float64)
    table[list(counts)] = 0.0
    return table


def families(size):
    """The inputs that the accuracy promise is made for."""
    generator = torch.Generator().manual_seed(size)
    normal = torch.randn(size, generator=generator, dtype=torch.float64)
    potential = torch.randn(size + 1, generator=generator, dtype=torch.float64)
    uniform = 100 * torch.rand(size, generator=generator, dtype=torch.float64) - 50
    fraction = torch.arange(size + 1, dtype=torch.float64) / size
    return {
        "random": (normal, potential),
        "logits of 50": (uniform, potential),
        "exactly 0.9 D": (normal - 8, only(size, int(0.9 * size))),
        "all or none": (normal, only(size, 0, size)),
        "parity": (normal, only(size, *range(0, size + 1, 2))),
        "bimodal": (normal, only(size, size // 3, 2 * size // 3)),
        "flattening": (normal, -log_binomials(size)),
        "flattening, logits of 50": (uniform, -log_binomials(size)),
        "convex": (normal, 4 * size * (fraction - 0.5) ** 2),
    }


def check_accuracy(logits, count_logits, subsets, forest):
    exact = ball_arithmetic.beliefs(logits, count_logits, subsets)
    x, f = logits[None].clone().requires_grad_(), count_logits[None].clone().requires_grad_()
    found = infer_counts(x, f, forest)
    certificate = certify(x, f, forest)
    scale = max(1.0, abs(exact.log_partition.item()), logits.abs().sum().item())
    log_z_error = (found.log_partition[0] - exact.log_partition).abs()
    assert log_z_error <= 1e-12 * scale and log_z_error <= certificate.log_partition_error[0]
    finite = exact.marginal_logits.isfinite()
    assert torch.equal(found.marginal_logits[0, ~finite], exact.marginal_logits[~finite])
    odds_error = (found.marginal_logits[0] - exact.marginal_logits)[finite].abs()
    assert odds_error.le(certificate.marginal_logits_error[0, finite]).all()
    for sign in (1, -1):
        probability = torch.sigmoid(sign * exact.marginal_logits)
        visible = probability >= 1e-12
        relative = torch.sigmoid(sign * found.marginal_logits[0])[visible] / probability[visible] - 1
        assert relative.abs().le(1e-9).all()
    assert (found.count_marginals[0] - exact.count_marginals).abs().max() <= 1e-9
    gradients = torch.autograd.grad(found.log_partition.sum(), (x, f))
    assert (gradients[0][0] - torch.sigmoid(exact.marginal_logits)).abs().max() <= 1e-9
    assert (gradients[1][0] - exact.count_marginals).abs().max() <= 1e-9


@pytest.mark.parametrize("name", list(families(2)))
@pytest.mark.parametrize("size", [64, 1024])
def test_one_potential_against_ball_arithmetic(name, size):
    logits, potential = families(size)[name]
    check_accuracy(logits, potential, None, CountForest(size))


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", list(families(2)))
def test_one_potential_of_4096_variables_against_ball_arithmetic(name):
    logits, potential = families(4096)[name]
    check_accuracy(logits, potential, None, CountForest(4096))


def random_family(num_variables, generator):
    """A random nested family: a random binary clustering of which some clusters are kept, perhaps some twice."""
    clusters = [[d] for d in generator.permutation(num_variables).tolist()]
    family = []
    while len(clusters) > 1:
        # Skewed choices make unbalanced trees, too.
        i, j = sorted(
            generator.choice(len(clusters), 2, replace=False) ** 2 // len(clusters)
            if generator.random() < 0.3
            else generator.choice(len(clusters), 2, replace=False)
        )
        if i == j:
            continue
        merged = clusters.pop(j) + clusters.pop(i)
        clusters.append(merged)
        family += [merged] * generator.choice(3, p=[0.3, 0.6, 0.1])
    return family or [[0]]


def random_potentials(subsets, generator, strength, impossible):
    tables = torch.from_numpy(strength * generator.standard_normal(subsets.table_size))
    # A state that stays possible: drawn first, and its counts are never forbidden.
    state = torch.from_numpy(generator.integers(0, 2, subsets.num_variables)).double()
    forbidden = torch.from_numpy(generator.random(subsets.table_size) < impossible)
    sizes = torch.tensor(subsets.sizes)
    forbidden[subsets.counts(state) + (sizes + 1).cumsum(0) - (sizes + 1)] = False
    return tables.masked_fill(forbidden, -math.inf)


@pytest.mark.parametrize("size", [64, 256, 1024])
@pytest.mark.parametrize("fourier_width", [8, 1000])
def test_nested_potentials_against_ball_arithmetic(size, fourier_width, monkeypatch):
    monkeypatch.setattr(fourier_passes, "FOURIER_WIDTH", fourier_width)
    generator = np.random.default_rng(size)
    subsets = NestedSubsets.balanced(size)
    potentials = random_potentials(subsets, generator, 1.0, 0.2)
    check_accuracy(torch.from_numpy(generator.standard_normal(size)), potentials, subsets.subsets, subsets.forest)


@pytest.mark.slow
@pytest.mark.statistical
def test_certificates_hold_on_a_thousand_adversarial_trees(monkeypatch):
    monkeypatch.setattr(fourier_passes, "FOURIER_WIDTH", 6)
    generator = np.random.default_rng(2012)
    for trial in range(1000):
        # Mostly small trees, and some of 256 variables: references take seconds there.
        size = int(2 ** generator.uniform(1, 8 if trial % 100 == 0 else 5))
        subsets = NestedSubsets(random_family(size, generator), size)
        strength, reach = generator.choice([1.0, 10.0, 100.0, 1e4]), generator.choice([1.0, 10.0, 50.0])
        logits = torch.from_numpy(reach * generator.uniform(-1, 1, size))
        potentials = random_potentials(subsets, generator, strength, generator.choice([0.0, 0.3]))
        exact = ball_arithmetic.beliefs(logits, potentials, subsets.subsets, precision=1200)
        found = infer_counts(logits, potentials, subsets.forest)
        bound = certify(logits, potentials, subsets.forest)
        assert (found.log_partition - exact.log_partition).abs() <= bound.log_partition_error, trial
        same = found.marginal_logits == exact.marginal_logits
        error = (found.marginal_logits - exact.marginal_logits).abs().masked_fill(same, 0.0)
        assert error.le(bound.marginal_logits_error).all(), trial


@pytest.mark.statistical
def test_certificates_see_constants_that_cancel():
    """The largest entries of all tables add up to much less than they are, and are rounded as they stand."""
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(100):
        subsets = NestedSubsets([[0, 1], [2, 3], [0, 1, 2, 3], [1]], 4)
        logits = torch.from_numpy(generator.uniform(-1, 1, 4))
        tables = torch.from_numpy(generator.uniform(-1, 1, subsets.table_size))
        levels = generator.uniform(-1e4, 1e4, 3)
        levels = torch.from_numpy(np.append(levels, generator.uniform(-1, 1) - levels.sum()))
        tables = tables + levels.repeat_interleave(torch.tensor([3, 3, 5, 2]))
        exact = ball_arithmetic.beliefs(logits, tables, subsets.subsets).log_partition
        error = (infer_counts(logits, tables, subsets.forest).log_partition - exact).abs()
        bound = certify(logits, tables, subsets.forest)
        assert error <= bound.log_partition_error <= 1e-10
        wrong += int(error > bound.excess_error)
    assert wrong > 10


@pytest.mark.slow
def test_few_nodes_fall_back_on_moderate_inputs(monkeypatch):
    monkeypatch.setattr(fourier_passes, "FOURIER_WIDTH", 6)
    generator = np.random.default_rng(0)
    fallback = nodes = 0
    for _ in range(50):
        subsets = NestedSubsets(random_family(200, generator), 200)
        potentials = torch.from_numpy(generator.standard_normal(subsets.table_size))
        logits = torch.from_numpy(generator.standard_normal(200))
        fallback += certify(logits, potentials, subsets.forest).num_fallback_nodes.item()
        tree = subsets.forest.tree(potentials[None])
        nodes += sum(merge.nodes for merge in tree.merges if fourier_passes.is_fast(tree, merge))
    assert nodes > 1000 and fallback <= 0.1 * nodes


def test_share_of_work():
    """Of direct convolutions, in the row where most is to be done."""
    subsets = NestedSubsets.balanced(16)
    tree = subsets.forest.tree(torch.zeros(3, subsets.table_size).double())
    sizes = [merge.left.shape[1] * merge.right.shape[1] for merge in tree.merges]
    total = sum(size * merge.nodes for size, merge in zip(sizes, tree.merges, strict=True))
    for share in (0.0, 1.0):
        blamed = [torch.full((3, merge.nodes), share > 0) for merge in tree.merges]
        assert nested_counts._share_of_work(tree, blamed) == share
    for size, row in zip(sizes, blamed, strict=True):
        row[:] = False
        row[1, 0] = True
        assert (
            nested_counts._share_of_work(tree, [row if each is row else ~each & each for each in blamed])
            == size / total
        )
    assert nested_counts._share_of_work(tree, [None, *blamed[1:]]) == sum(sizes[1:]) / (
        total - sizes[0] * tree.merges[0].nodes
    )


def test_tilts_magnify_rounding_least(monkeypatch):
    """By the factor of the module's first lines, summed here over all counts of both children."""
    monkeypatch.setattr(fourier_passes, "FOURIER_WIDTH", 4)
    subsets = NestedSubsets.balanced(32)
    generator = torch.Generator().manual_seed(0)
    logits, tables = (3 * torch.randn(4, n, generator=generator).double() for n in (32, subsets.table_size))
    tree = subsets.forest.tree(tables)
    plans = fourier_passes.initial_plan(tree, logits)
    passes = fourier_passes.run_passes(tree, logits, tables, plans)
    chosen = fourier_passes.best_tilts(tree, passes, plans)
    assert sum(plan is not None for plan in chosen) > 1
    for merge, plan in zip(tree.merges, chosen, strict=True):
        if plan is None:
            continue
        left, right = (gather(passes.messages, cells) for cells in (merge.left, merge.right))
        outside = (passes.outside + passes.potentials)[:, merge.start : merge.stop].unflatten(-1, (-1, merge.width))
        counts = torch.arange(merge.width)

        def magnification(tilt, messages=(left, right), outside=outside, counts=counts):
            slope = tilt.unsqueeze(-1) * counts
            inside = sum((m - slope[..., : m.shape[-1]]).logsumexp(-1) for m in messages)
            return inside + (outside + slope).logsumexp(-1)

        least = magnification(plan.tilt)
        for step in (-1.0, -0.1, 0.1, 1.0):
            assert (magnification(plan.tilt + step) >= least - 1e-9).all()


def test_an_exact_count_is_reached_by_tilts(monkeypatch):
    monkeypatch.setattr(fourier_passes, "FOURIER_WIDTH", 64)
    subsets = NestedSubsets.balanced(512)
    generator = np.random.default_rng(3)
    potentials = torch.from_numpy(generator.standard_normal(subsets.table_size))
    potentials[-513:] = only(512, 460)
    logits = torch.from_numpy(generator.standard_normal(512) - 8)
    assert certify(logits, potentials, subsets.forest).num_fallback_nodes == 0
    check_accuracy(logits, potentials, subsets.subsets, subsets.forest)


@pytest.mark.parametrize("name", ["random", "logits of 50", "exactly 0.9 D", "bimodal", "flattening"])
@pytest.mark.parametrize("size", [64, 1024])
def test_hessian_vector_products(name, size):
    logits, potential = families(size)[name]
    x, f = logits.clone().requires_grad_(), potential.clone().requires_grad_()
    generator = torch.Generator().manual_seed(1)
    along = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in (x, f)]
    exact = ball_arithmetic.hessian_vector_product(logits, potential, (along[0], along[1]))
    gradients = torch.autograd.grad(log_partition(x, f, CountForest(size)), (x, f), create_graph=True)
    found = torch.autograd.grad(sum((g * v).sum() for g, v in zip(gradients, along, strict=True)), (x, f))
    largest = max(product.abs().max() for product in exact)
    for a, b in zip(found, exact, strict=True):
        assert (a - b).abs().max() <= 1e-9 * largest


def test_impossible_rows_do_not_disturb_others():
    forest = CountForest(5)
    f = torch.zeros(2, 6, dtype=torch.float64)
    f[0] = -math.inf
    x = torch.randn(2, 5, dtype=torch.float64)
    z = log_partition(x, f, forest)
    assert z[0] == -math.inf
    torch.testing.assert_close(z[1], log_partition(x[1], f[1], forest))


@pytest.mark.parametrize("forest", [CountForest(6), NestedSubsets([[0, 1], [2, 3, 4], range(6)], 6).forest])
def test_vmap_and_function_transforms(forest):
    x = torch.randn(4, 6, dtype=torch.float64)
    f = torch.randn(forest.table_size, dtype=torch.float64)
    expected = log_partition(x, f, forest)
    torch.testing.assert_close(torch.vmap(lambda row: log_partition(row, f, forest))(x), expected)
    torch.testing.assert_close(torch.vmap(lambda row: log_partition(row, f, forest), in_dims=1)(x.T), expected)
    gradient = torch.vmap(torch.func.grad(lambda row: log_partition(row, f, forest)))(x)
    torch.testing.assert_close(gradient, torch.sigmoid(infer_counts(x, f, forest).marginal_logits))


@pytest.mark.parametrize("forest", [CountForest(4), NestedSubsets([[0, 1], [0, 1, 2], []], 4).forest])
def test_derivatives_of_all_orders(forest):
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    f = torch.randn(2, forest.table_size, dtype=torch.float64, requires_grad=True)

    def beliefs(x, f):
        return tuple(infer_counts(x, f, forest))

    assert torch.autograd.gradcheck(beliefs, (x, f))
    assert torch.autograd.gradgradcheck(beliefs, (x, f))


def test_messages_stop_at_the_largest_possible_count():
    forest = NestedSubsets.balanced(64).forest
    free = torch.zeros(1, forest.table_size)
    limited = free.clone()
    limited[:, -65 + 4 :] = -math.inf
    cells, few = (forest.tree(f).num_cells for f in (free, limited))
    assert max(m.width for m in forest.tree(limited).merges) == 4 and few < 0.7 * cells


@pytest.fixture
def windows_first(monkeypatch):
    """Windows for rows of few variables, too."""
    monkeypatch.setattr(count_potential, "DIRECT_WORK", 0)
    monkeypatch.setattr(direct_counts, "WORK", 0)
    monkeypatch.setattr(direct_counts, "is_compiled", lambda tensor: False)


@pytest.mark.parametrize("name", list(families(2)))
def test_windows_and_direct_convolutions_agree(name, monkeypatch):
    """Which of them few variables take goes by cost."""
    (logits, potential), forest = families(200)[name], CountForest(200)
    found, bounds = infer_counts(logits, potential, forest), certify(logits, potential, forest)
    monkeypatch.setattr(count_potential, "DIRECT_WORK", 0)
    expected, others = infer_counts(logits, potential, forest), certify(logits, potential, forest)
    assert bounds.num_fallback_nodes == 0
    assert (found.log_partition - expected.log_partition).abs() <= bounds[0] + others[0] < 1e-9
    assert ((found.marginal_logits - expected.marginal_logits).abs() <= bounds[1] + others[1]).all()
    torch.testing.assert_close(found.count_marginals, expected.count_marginals, rtol=0, atol=1e-10)


def test_retries_are_certified_or_left_to_direct_convolution(monkeypatch, windows_first):
    """A tolerance that no transform can meet sends all rows to log space, with the same results."""
    logits, potential = families(64)["random"]
    expected = infer_counts(logits, potential, CountForest(64))
    monkeypatch.setattr(direct_counts, "LOG_ODDS_TOLERANCE", 0.0)
    found = infer_counts(logits, potential, CountForest(64))
    assert certify(logits, potential, CountForest(64)).num_fallback_nodes == 63
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("retried", [False, True])
def test_enumeration_over_all_small_clamps(retried, monkeypatch, windows_first):
    """Every pattern of clamps of four variables, with every table of zeros and -inf; with windows, too."""
    if retried:
        solve = count_potential._solve_windows

        def fail_without_windows(logits, count_logits, windows, marginals):
            found = solve(logits, count_logits, windows, marginals)
            return found if windows.guards is not None else found._replace(certified=found.certified & False)

        monkeypatch.setattr(count_potential, "_solve_windows", fail_without_windows)
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    forest = CountForest(4)
    patterns = torch.tensor(list(itertools.product([-math.inf, 0.4, math.inf], repeat=4)), dtype=torch.float64)
    tables = torch.tensor(list(itertools.product([-math.inf, 0.3], repeat=5)), dtype=torch.float64)
    found = infer_counts(patterns[:, None], tables, forest)
    weights = states @ patterns.masked_fill(patterns.isinf(), 0.0).T
    clash = ((patterns == math.inf)[:, None] & (states == 0) | (patterns == -math.inf)[:, None] & (states == 1)).any(-1)
    scores = weights.T.masked_fill(clash, -math.inf)[:, None] + tables[:, states.sum(-1).long()]
    expected = torch.logsumexp(scores, -1)
    torch.testing.assert_close(found.log_partition, expected, rtol=1e-12, atol=1e-12)
    possible = expected > -math.inf
    posterior = torch.softmax(scores[possible], -1)
    torch.testing.assert_close(torch.sigmoid(found.marginal_logits[possible]), posterior @ states, rtol=1e-12, atol=0)
    counts = posterior @ torch.nn.functional.one_hot(states.sum(-1).long()).double()
    torch.testing.assert_close(found.count_marginals[possible], counts, rtol=1e-12, atol=1e-15)
    free = patterns[:, None].isfinite().expand_as(found.marginal_logits)
    assert found.marginal_logits[~possible.unsqueeze(-1) & free].isnan().all()
    fallback = certify(patterns[:, None], tables, forest).num_fallback_nodes
    assert (fallback == 0).all()


@pytest.mark.parametrize("size", [64, 1024])
@pytest.mark.parametrize("name", list(families(2)))
def test_hard_inputs_need_no_direct_convolution(name, size, windows_first):
    logits, potential = families(size)[name]
    assert certify(logits, potential, CountForest(size)).num_fallback_nodes == 0


@pytest.mark.parametrize("penalty", [5.0, 200.0, math.inf])
def test_patterns_are_certified_and_accurate(penalty):
    """Nothing, or all, of many variables: one of them has a probability that no sum over other counts may blur."""
    size = 1024
    logits = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    potential = torch.full((size + 1,), -penalty, dtype=torch.float64)
    potential[0], potential[size] = 0.0, -25 - logits.sum()
    check_accuracy(logits, potential, None, CountForest(size))
    assert certify(logits, potential, CountForest(size)).num_fallback_nodes == 0


@pytest.mark.parametrize("count", [0, 1, 2, 50, 50_000, 99_998, 99_999, 100_000])
def test_every_exact_count_of_many_variables_is_certified(count):
    logits = torch.randn(100_000, dtype=torch.float64)
    table = only(100_000, count)
    found = infer_counts(logits, table, CountForest(100_000))
    torch.testing.assert_close(
        torch.sigmoid(found.marginal_logits).sum(),
        torch.tensor(float(count), dtype=torch.float64),
        rtol=1e-9,
        atol=1e-9,
    )
    assert certify(logits, table, CountForest(100_000)).num_fallback_nodes == 0
    if count == 2:
        odds = logits.exp()
        expected = ((odds.sum() ** 2 - odds.square().sum()) / 2).log()
        torch.testing.assert_close(found.log_partition, expected, rtol=1e-12, atol=0)


def test_what_is_left_out_cannot_hide_below_the_smallest_number():
    """The only vectors with the first variable on weigh exp(-1000), where linear bounds would underflow."""
    logits = torch.tensor([-2000.0, -2000, 0, 0, 0, 0], dtype=torch.float64)
    table = only(6, 3)
    table[5] = 1000.0
    found, certificate = infer_counts(logits, table, CountForest(6)), certify(logits, table, CountForest(6))
    exact = ball_arithmetic.beliefs(logits, table)
    assert (found.marginal_logits - exact.marginal_logits).abs().le(certificate.marginal_logits_error).all()
    assert (found.marginal_logits / exact.marginal_logits - 1).abs().max() < 1e-12


@pytest.mark.slow
def test_the_rounding_of_the_result_itself_is_certified():
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        logits = torch.randn(1, generator=generator, dtype=torch.float64)
        table = 1e5 * torch.randn(2, generator=generator, dtype=torch.float64)
        found, certificate = infer_counts(logits, table, CountForest(1)), certify(logits, table, CountForest(1))
        exact = Fraction(logits.item()) + Fraction(table[1].item()) - Fraction(table[0].item())
        assert abs(Fraction(found.marginal_logits.item()) - exact) <= certificate.marginal_logits_error.item()


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("scale", [1e10, 1e13, 1e16, 1e19, 1e30])
@pytest.mark.parametrize("size", [4, 300])
def test_huge_logits_and_tables(size, scale):
    """Log Z is then that of the best vector, whatever is asked for besides; numbers are so large that a lost mass is
    less than their rounding, or than a tolerance in their units.
    """
    generator = torch.Generator().manual_seed(size)
    logits = scale * torch.randn(100, size, generator=generator, dtype=torch.float64)
    tables = scale * size**0.5 * torch.randn(100, size + 1, generator=generator, dtype=torch.float64)
    best = torch.nn.functional.pad(logits.sort(-1, descending=True)[0].cumsum(-1), (1, 0))
    exact = (best + tables).amax(-1)
    forest = CountForest(size)
    for found in (log_partition(logits, tables, forest), infer_counts(logits, tables, forest).log_partition):
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-12 * size * scale + size)


@pytest.mark.parametrize("forest", [CountForest(150), NestedSubsets([range(75), range(150)], 150).forest])
@pytest.mark.parametrize("huge", [1e8, 1e17, 1e300])
def test_huge_logits_leave_the_others_alone(huge, forest):
    logits = torch.linspace(-1, 1, 150, dtype=torch.float64)
    table = torch.cat([torch.zeros(forest.table_size - 151), only(150, 30)]).double()
    logits[:2] = torch.tensor([math.inf, -math.inf])
    expected = infer_counts(logits, table, forest)
    logits[:2] = torch.tensor([huge, -huge])
    found = infer_counts(logits, table, forest)
    torch.testing.assert_close(
        torch.sigmoid(found.marginal_logits), torch.sigmoid(expected.marginal_logits), rtol=1e-9, atol=0
    )


def test_an_empty_support_has_no_gradient():
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    f = torch.stack([torch.zeros(5), torch.full((5,), -math.inf)]).double().requires_grad_()
    for forest, tables in (
        (CountForest(4), f),
        (NestedSubsets([[0, 1], [0, 1, 2, 3]], 4).forest, torch.cat([torch.zeros(2, 3).double(), f], 1)),
    ):
        found = infer_counts(x, tables, forest)
        assert found.log_partition[1] == -math.inf
        result = found.log_partition[0] + found.marginal_logits[0].square().sum() + found.count_marginals[0, 1]
        padded = torch.logsumexp(found.log_partition, 0)
        for gradient in torch.autograd.grad(result + padded, (x, f)):
            assert gradient.isfinite().all() and (gradient[1] == 0).all()


@pytest.mark.parametrize("forest", [CountForest(4), NestedSubsets([[0, 1], [0, 1, 2]], 4).forest])
def test_function_transforms_nest_when_one_parameter_is_fixed(forest):
    x = torch.randn(3, 4, dtype=torch.float64)
    f = torch.randn(forest.table_size, dtype=torch.float64)

    def log_z(x, f):
        return infer_counts(x, f, forest).log_partition

    def odds(x, f):
        return infer_counts(x, f, forest).marginal_logits

    jacobian = torch.vmap(torch.func.jacrev(odds), (0, None))(x, f)
    by_table = torch.func.jacrev(odds, argnums=1)(x[0], f)
    hessian = torch.vmap(torch.func.jacrev(torch.func.jacrev(log_z)), (0, None))(x, f)
    for row in range(3):
        expected = torch.autograd.functional.jacobian(odds, (x[row], f))
        torch.testing.assert_close(jacobian[row], expected[0])
        torch.testing.assert_close(hessian[row], torch.autograd.functional.hessian(lambda x: log_z(x, f), x[row]))
        if row == 0:
            torch.testing.assert_close(by_table, expected[1])
    x.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: odds(x, f), (x,))


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("forest", [CountForest(3), NestedSubsets([[0, 1], [0, 1, 2], []], 3).forest])
def test_both_modes_of_differentiation_nest_in_any_order(forest):
    torch.manual_seed(4)
    x, f = (torch.randn(size, dtype=torch.float64) for size in (3, forest.table_size))
    direction = [torch.randn_like(t) for t in (x, f)]
    forward, reverse = torch.func.jacfwd, torch.func.jacrev

    def along(step):
        return infer_counts(x + step * direction[0], f + step * direction[1], forest)

    zero = torch.zeros((), dtype=torch.float64)
    queries = (
        lambda step: log_partition(x + step * direction[0], f + step * direction[1], forest),
        lambda step: along(step).marginal_logits,
        lambda step: along(step).count_marginals,
    )
    for query, orders in zip(queries, ((2, 3), (2,), (2,)), strict=True):
        for order in orders:
            expected = None
            for modes in itertools.product((reverse, forward), repeat=order):
                function = query
                for mode in modes:
                    function = mode(function)
                found = function(zero)
                expected = found if expected is None else expected
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
