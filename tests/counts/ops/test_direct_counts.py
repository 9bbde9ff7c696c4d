"""Direct sums over counts, compiled and as products of matrices, against ball arithmetic, transforms and each other."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.counts.ops import direct_counts
from pyro_structured.counts.ops.certified_counts import certify, infer_counts, log_partition
from pyro_structured.counts.ops.convolution_tree import downward, upward
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.direct_counts import (
    differentiable_posteriors,
    direct_passes,
    find_tilts,
    is_direct,
    pull_back_directly,
    solve_directly,
)
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.testing import ball_arithmetic

needs_numba = pytest.mark.skipif(
    compiled_function("counts.ops.compiled_counts", "direct_passes") is None, reason="needs numba"
)
KINDS = ("all", "few", "one", "ends", "parity")


@pytest.fixture(params=["products", *(pytest.param(kind, marks=needs_numba) for kind in ("compiled", "cut"))])
def passes(request, monkeypatch):
    monkeypatch.setattr(direct_counts, "is_compiled", lambda tensor: request.param != "products")
    monkeypatch.setattr(direct_counts, "WHOLE_WORK", 0 if request.param == "cut" else 2**16)
    return request.param


def random_rows(seed, rows=3, most=24):
    """Log-odds, some of them clamps, and potentials, some of them -inf, with a largest one of 0."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, most + 1))
    logits = rng.choice([0.1, 1.0, 10.0, 100.0, 1e4]) * rng.standard_normal((rows, size)) + rng.choice([0.0, -30.0])
    # Some near zero, where most are far away.
    logits = np.where(rng.random(logits.shape) < rng.choice([0.0, 0.3]), rng.standard_normal(logits.shape), logits)
    logits[rng.random(logits.shape) < rng.choice([0.0, 0.2])] = rng.choice([-np.inf, np.inf])
    tables = rng.choice([0.1, 3.0, 100.0]) * rng.standard_normal((rows, size + 1))
    counts, kind = np.arange(size + 1), KINDS[rng.integers(len(KINDS))]
    possible = {
        "all": counts >= 0,
        "few": counts <= 2,
        "one": counts == rng.integers(size + 1),
        "ends": (counts == 0) | (counts == size),
        "parity": counts % 2 == 0,
    }[kind]
    tables = np.where(possible, tables, -np.inf)
    tables -= tables.max(1, keepdims=True)
    return torch.from_numpy(logits), torch.from_numpy(tables)


@pytest.mark.parametrize("block", range(10))
def test_bounds_hold(block, passes):
    """Against ball arithmetic, in 60 rows of each block; those that are not certified say so."""
    certified = 0
    for seed in range(20 * block, 20 * block + 20):
        logits, tables = random_rows(seed)
        found = solve_directly(logits, tables, logits.shape[1])
        sums = solve_directly(logits, tables, logits.shape[1], marginals=False)
        for row, (is_certified, is_summed) in enumerate(zip(found.certified.tolist(), sums.certified, strict=True)):
            if not is_summed:
                assert not is_certified
                continue
            exact = ball_arithmetic.beliefs(logits[row], tables[row], [range(logits.shape[1])], precision=400)
            heaviest = logits[row].masked_fill(logits[row].isinf(), 0.0).clamp(min=0.0)
            excess = exact.log_partition - math.fsum(heaviest.tolist())
            slack = 1e-15 * (exact.log_partition.abs() + heaviest.sum())
            assert (sums.excess[row] - excess).abs() <= sums.excess_error[row] + slack, (seed, row)
            if not is_certified:
                continue
            certified += 1
            assert (found.excess[row] - excess).abs() <= found.excess_error[row] + slack, (seed, row)
            same = found.marginal_logits[row] == exact.marginal_logits
            error = (found.marginal_logits[row] - exact.marginal_logits).abs().masked_fill(same, 0.0)
            assert bool((error <= found.marginal_logits_error[row]).all()), (seed, row)
            # Rarer counts than that may underflow, or are left out.
            rare = 1e-20 if passes == "cut" else 1e-200
            torch.testing.assert_close(found.count_marginals[row], exact.count_marginals, rtol=1e-9, atol=rare)
    assert certified > 20


@given(st.integers(0, 10**6), st.sampled_from([0, 1, 2, 7, 8, 9, 17]), st.integers(1, 40), st.integers(1, 40))
def test_passes(seed, rows, size, limit):
    """Both kinds equal transforms, for any number of rows, of variables, and of counts that are possible."""
    rng = np.random.default_rng(seed)
    on = torch.from_numpy(rng.random((rows, size)))
    weights = torch.from_numpy(rng.random((rows, min(limit, size) + 1)))
    tree = upward(on, 1 - on, weights.shape[1] - 1)
    expected = tree.root, *downward(tree, weights)[:2]
    passes = [direct_passes]
    if compiled_function("counts.ops.compiled_counts", "direct_passes") is not None:
        passes += [partial(compiled_passes, is_cut=False), partial(compiled_passes, is_cut=True)]
    for run in passes:
        for found, wanted in zip(run(on, 1 - on, weights), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
        root, *unused = run(on, 1 - on, weights, marginals=False)
        torch.testing.assert_close(root, expected[0], rtol=1e-12, atol=1e-14)
        assert not any(bool(each.any()) for each in unused)


def compiled_passes(on, off, weights, is_cut, marginals=True):
    results = torch.zeros_like(weights), torch.zeros_like(on), torch.zeros_like(on), on.new_zeros(len(on))
    run = compiled_function("counts.ops.compiled_counts", "direct_passes")
    run(*(each.numpy() for each in (on, off, weights)), is_cut, marginals, *(each.numpy() for each in results))
    assert bool((results[3] < 1e-15).all())
    return results[:3]


@pytest.mark.parametrize(
    "logits",
    [
        [-200.0, -190.0, -3.0, 0.0, 0.5],
        [-42.24004802187121, 0.009300087528341305],
        [math.inf, -200.0, -190.0, -3.0, 0.0, 0.5, -math.inf],
        [-19.09356, 0.3884, -1.37951],
        [-402.67, 1.3],
    ],
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_tilts_stay_within_reach(logits, sign, passes):
    """Newton's steps where the variance is tiny: the only possible count is the largest one, or the smallest."""
    x = sign * torch.tensor(logits, dtype=torch.double)
    d = RecursiveCardinality(x, torch.full((len(x) + 1,), -math.inf, dtype=torch.double))
    end = len(x) - int((x == -math.inf).sum()) if sign > 0 else int((x == math.inf).sum())
    d.count_logits[end] = 0.0
    only = torch.where(x.isinf(), (x > 0).double(), float(sign > 0))
    expected = (only * x.masked_fill(x.isinf(), 0.0)).sum()
    for each in (log_partition(x, d.count_logits, CountForest(len(x))), d.log_partition_function):
        torch.testing.assert_close(each, expected, rtol=1e-13, atol=1e-12)
    assert d.log_prob(only).abs() < 1e-12


def test_empty_rows(passes):
    """Log Z is -inf, its errors are infinite, and clamped variables have what they are clamped to."""
    logits = torch.tensor([[0.0, 1.0, 2.0], [math.inf, 1.0, 2.0], [math.inf, math.inf, -math.inf]]).double()
    tables = torch.full((3, 4), -math.inf, dtype=torch.double)
    tables[1:, 0] = 0.0
    found, certificate = infer_counts(logits, tables, CountForest(3)), certify(logits, tables, CountForest(3))
    assert bool((found.log_partition == -math.inf).all()) and not bool(found.count_marginals.any())
    clamped = logits.isinf()
    assert bool((found.marginal_logits[clamped] == logits[clamped]).all())
    assert bool(found.marginal_logits[~clamped].isnan().all())
    assert bool((certificate.log_partition_error == math.inf).all())


@needs_numba
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_many_variables(scale):
    """What is left out of partial sums is within the bounds; rare counts have a small probability, not none."""
    torch.manual_seed(0)
    logits, tables = scale * torch.randn(2, 700, dtype=torch.double), torch.randn(2, 701, dtype=torch.double)
    tables = tables - tables.amax(-1, keepdim=True)
    found = solve_directly(logits, tables, 700)
    assert bool(found.certified.all()) and bool((found.count_marginals > 0).all())
    for row in range(2):
        exact = ball_arithmetic.beliefs(logits[row], tables[row], [range(700)], precision=400)
        excess = exact.log_partition - logits[row].clamp(min=0.0).sum()
        assert (found.excess[row] - excess).abs() <= min(1e-9, found.excess_error[row])
        error = (found.marginal_logits[row] - exact.marginal_logits).abs()
        assert bool((error <= found.marginal_logits_error[row].clamp(max=1e-9)).all())
        error = (found.count_marginals[row] - exact.count_marginals).abs().max()
        assert 0 < error <= 2 * found.excess_error[row]


@needs_numba
@given(st.integers(0, 2**32 - 1))
def test_rows_are_as_they_are_alone(seed):
    """Nothing is left behind in memory that one row after the other uses."""
    generator = torch.Generator().manual_seed(seed)
    size = int(torch.randint(200, 900, (), generator=generator))
    spread = 4 * torch.rand(6, 1, dtype=torch.double, generator=generator)
    logits = spread * torch.randn(6, size, dtype=torch.double, generator=generator)
    tables = torch.randn(6, size + 1, dtype=torch.double, generator=generator)
    together = solve_directly(logits, tables, size)
    for row in range(6):
        alone = solve_directly(logits[row, None], tables[row, None], size)
        for one, many in zip(alone, together, strict=True):
            torch.testing.assert_close(one[0], many[row], rtol=1e-12, atol=1e-12)


@needs_numba
def test_no_possible_count_is_left(passes):
    """Variables that are nearly certain are more than the largest possible count, so that all sums are cut off."""
    logits = torch.cat([torch.full((2, 60), 40.0), torch.zeros(2, 60)], -1).double()
    tables = torch.full((2, 121), -math.inf, dtype=torch.double)
    tables[:, :8], tables[1] = 0.0, 0.0
    found, certificate = infer_counts(logits, tables, CountForest(120)), certify(logits, tables, CountForest(120))
    for row in range(2):
        exact = ball_arithmetic.beliefs(logits[row], tables[row], [range(120)], precision=2000)
        assert (found.log_partition[row] - exact.log_partition).abs() <= certificate.log_partition_error[row] < 1e-6
        error = (found.marginal_logits[row] - exact.marginal_logits).abs()
        assert bool((error <= certificate.marginal_logits_error[row]).all())


@needs_numba
@given(st.integers(0, 10**6))
def test_tilts_are_those_of_the_other_way(seed):
    """Where means are no differences of nearly equal numbers, which say little about a tilt."""
    logits, tables = random_rows(seed)
    logits = logits.masked_fill(logits.isinf(), 0.0).clamp(-5.0, 5.0)
    found = solve_directly(logits, tables, logits.shape[1])
    torch.testing.assert_close(found.tilts, find_tilts(logits, tables), rtol=1e-8, atol=1e-8)


def test_posteriors_with_derivatives_of_any_order():
    """They are those without; infinite log-odds have derivatives of zero."""
    torch.manual_seed(0)
    logits = torch.cat([torch.randn(3, 4, dtype=torch.double), torch.tensor([[math.inf, -math.inf]] * 3).double()], -1)
    tables = torch.randn(3, 7, dtype=torch.double)
    tables[0, 4:], tables[1, 2] = -math.inf, -math.inf
    tables = tables - tables.amax(-1, keepdim=True)
    found = solve_directly(logits, tables, 6)
    assert bool(found.certified.all())
    inputs = logits.requires_grad_(), tables.requires_grad_()
    odds, counts = differentiable_posteriors(*inputs, found.tilts, 6)
    torch.testing.assert_close(odds.detach(), found.marginal_logits, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(counts.detach(), found.count_marginals, rtol=1e-12, atol=1e-12)
    free = logits.detach().isfinite()

    def means(free_logits):
        filled = logits.detach().masked_scatter(free, free_logits)
        odds, counts = differentiable_posteriors(filled, tables.detach(), found.tilts, 6)
        return torch.sigmoid(odds), counts

    assert torch.autograd.gradcheck(means, logits.detach()[free].requires_grad_())
    assert torch.autograd.gradgradcheck(means, logits.detach()[free].requires_grad_())
    slopes = torch.autograd.grad(torch.sigmoid(odds).sum() + counts[:, 2].sum(), inputs)
    assert all(bool(slope.isfinite().all()) for slope in slopes) and not bool(slopes[0][~free].any())


@needs_numba
@pytest.mark.parametrize("seed", range(40))
def test_derivatives_in_compiled_loops(seed):
    """They are those of products of matrices, in more rows than are computed side by side; cotangents of many sizes."""
    logits, tables = random_rows(seed, rows=70)
    limit, generator = max(int((tables[0] > -math.inf).nonzero()[-1]), 1), torch.Generator().manual_seed(seed)
    found = solve_directly(logits, tables, limit)
    certified = found.certified
    cotangents = [
        torch.randn(each.shape, generator=generator, dtype=torch.double) * 10.0 ** torch.randint(-3, 4, (70, 1))
        for each in (logits, tables)
    ]
    ours = pull_back_directly(logits, tables, found.tilts, found.marginal_logits, *cotangents, limit)
    inputs = logits[certified].requires_grad_(), tables[certified].requires_grad_()
    posteriors = differentiable_posteriors(*inputs, found.tilts[certified], limit)
    theirs = torch.autograd.grad(posteriors, inputs, [each[certified] for each in cotangents])
    size = sum(each[certified].abs().sum(-1, keepdim=True) for each in cotangents)
    for one, other in zip(ours, theirs, strict=True):
        assert bool(((one[certified] - other).abs() <= 1e-12 * size).all())


@pytest.mark.parametrize(("logit", "height"), [(592.0, -221.0), (379.0, -349.0), (-592.0, 221.0), (700.0, -690.0)])
@pytest.mark.parametrize("others", [[], [0.3]])
def test_products_of_probabilities_next_to_the_least_number(logit, height, others):
    """Log-odds that a table all but cancels, and their derivatives, against sums over all vectors."""
    logits = torch.tensor([[logit, *others]], dtype=torch.double, requires_grad=True)
    tables = torch.tensor([[0.0, height, height][: len(others) + 2]], dtype=torch.double)
    odds = RecursiveCardinality(logits, tables).marginal_logits[0, 0]
    with_one = [logits[0, 0] + height, logits.sum() + height]
    without = [tables[0, 0], logits[0, 1:].sum() + height]
    number = len(others) + 1
    exact = torch.stack(with_one[:number]).logsumexp(0) - torch.stack(without[:number]).logsumexp(0)
    torch.testing.assert_close(odds, exact, rtol=1e-14, atol=1e-12)
    slopes = [torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (odds, exact)]
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-12)


@needs_numba
@pytest.mark.parametrize("logit", [-40.0, 40.0])
def test_derivatives_are_accurate_next_to_certainty(logit):
    """Of P(no one) by a log-odds, -p (1 - p) / 2 in closed form: a relative error, although differences are of ones."""
    logits, tables = torch.tensor([[logit, 0.0]], dtype=torch.double), torch.zeros(1, 3, dtype=torch.double)
    grad_counts = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.double)
    found = solve_directly(logits, tables, 2)
    slopes, _ = pull_back_directly(logits, tables, found.tilts, found.marginal_logits, 0 * logits, grad_counts, 2)
    exact = -torch.sigmoid(logits[0, 0]) * torch.sigmoid(-logits[0, 0]) / 2
    torch.testing.assert_close(slopes[0, 0], exact, rtol=1e-12, atol=0.0)


def test_all_variables_clamped(passes):
    """There is nothing to tilt."""
    logits = torch.tensor([[math.inf, -math.inf, math.inf]], dtype=torch.double)
    tables = torch.full((1, 4), -math.inf, dtype=torch.double)
    tables[0, 2] = 0.0
    found = solve_directly(logits, tables, 2)
    assert bool(found.certified.all()) and found.excess.abs() < 1e-14
    assert bool((found.marginal_logits == logits).all()) and found.count_marginals.tolist() == [[0.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize("count", [0, 1, 6, 150, 199, 200])
def test_a_single_count_is_certified(count, passes):
    """A tilt moves the mass function there, although it is 1e-300 without."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(2, 200, dtype=torch.double) + torch.tensor([[-9.0], [9.0]])
    tables = torch.full((2, 201), -math.inf, dtype=torch.double)
    tables[:, count] = 0.0
    found = solve_directly(logits, tables, max(count, 1))
    assert bool(found.certified.all()) == (0 < count < 200)


def test_what_is_not_certified_is_solved_otherwise(passes):
    """Log-odds so large that linear space ends, in one row of three."""
    torch.manual_seed(0)
    logits = torch.tensor([[1.0], [1e4], [1.0]]).double() * torch.randn(3, 30, dtype=torch.double)
    tables = torch.randn(3, 31, dtype=torch.double)
    tables[:, 9:] = -math.inf
    direct = solve_directly(logits, tables - tables.amax(-1, keepdim=True), 8)
    assert is_direct(logits, 8) and direct.certified.tolist() == [True, False, True]
    found, certificate = infer_counts(logits, tables, CountForest(30)), certify(logits, tables, CountForest(30))
    for row in range(3):
        exact = ball_arithmetic.beliefs(logits[row], tables[row], [range(30)], precision=2000)
        assert (found.log_partition[row] - exact.log_partition).abs() <= certificate.log_partition_error[row]
        error = (found.marginal_logits[row] - exact.marginal_logits).abs()
        assert bool((error <= certificate.marginal_logits_error[row]).all())
        error = (found.count_marginals[row] - exact.count_marginals).abs().max()
        assert error <= certificate.count_marginals_error[row] and (error > 0) == (row != 1)


def test_work_decides(monkeypatch):
    """Products of matrices are fast where they are small, compiled passes always."""
    for is_compiled in (False, True):
        monkeypatch.setattr(direct_counts, "is_compiled", lambda tensor, is_compiled=is_compiled: is_compiled)
        assert is_direct(torch.zeros(1, 512), 512) and is_direct(torch.zeros(4, 1000), 60)
        assert is_direct(torch.zeros(1, 1024), 1024) == is_direct(torch.zeros(4, 512), 512) == is_compiled
        assert not is_direct(torch.zeros(4, 0), 1)
        assert is_direct(torch.zeros(0, 5), 5)
