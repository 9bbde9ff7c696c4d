"""Queries of matrices with laws of counts equal enumeration; bounds contain log Z; errors say what conflicts."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.counts.ops import count_diagram
from pyro_structured.distributions import GeneralizedMatching, RecursiveCardinality
from pyro_structured.inference import AnnealedMatching, CountMeanField, LoopyBP, TreeReweighted
from tests.counts.matrices import enumerated, law, matching, random_matrix


def possible_matrix(seed, **sizes):
    """A random matrix of which every row of the batch has a possible value, and its enumeration; ``None`` else."""
    given_tables = random_matrix(seed, **sizes)
    values, log_weights = enumerated(*given_tables)
    log_z = torch.logsumexp(log_weights, 0)
    return (GeneralizedMatching(*given_tables), values, log_weights, log_z) if bool((log_z > -math.inf).all()) else None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_queries(seed):
    found = possible_matrix(seed)
    if found is None:
        with pytest.raises(ValueError, match="at least one matrix of positive probability"):
            _ = GeneralizedMatching(*random_matrix(seed)).log_partition_function
        return
    d, values, log_weights, log_z = found
    torch.testing.assert_close(d.log_partition_function, log_z, rtol=1e-12, atol=1e-11)
    log_probs = d.log_prob(values.unsqueeze(1))
    torch.testing.assert_close(log_probs, log_weights - log_z, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(d.unnormalized_log_prob(values.unsqueeze(1)), log_weights, rtol=1e-10, atol=1e-10)
    probs = (log_weights - log_z).exp()
    torch.testing.assert_close(d.marginals, torch.einsum("vr,vij->rij", probs, values), rtol=1e-9, atol=1e-11)
    for axis, counts in ((-1, d.row_count_marginals), (-2, d.column_count_marginals)):
        one = torch.nn.functional.one_hot(values.sum(axis).long(), counts.shape[-1]).double()
        torch.testing.assert_close(counts, torch.einsum("vr,vkc->rkc", probs, one), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(d.unnormalized_log_prob(d.mode), log_weights.amax(0), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_contain_log_z(seed):
    """Some 1,100 cases."""
    logits, *tables = random_matrix(seed, rows=40)
    values, log_weights = enumerated(logits, *tables)
    possible = log_weights.amax(0) > -math.inf
    if not bool(possible.any()):
        return
    d = GeneralizedMatching(logits[possible], *(table.expand(40, -1, -1)[possible] for table in tables))
    log_weights = log_weights[:, possible]
    log_z = log_weights.logsumexp(0)
    low, high = d.log_partition_bounds()
    slack = 1e-8 * (1 + log_z.abs())
    assert bool((low <= log_z + slack).all()) and bool((high >= log_z - slack).all())
    assert bool((low <= high).all())
    least, most = d.log_prob_bounds(values.unsqueeze(1))
    log_probs = log_weights - log_z
    assert bool(((least <= log_probs + slack) & (most >= log_probs - slack)).all())


@pytest.mark.slow
def test_certain_beliefs():
    """Of 2 x 2 one-to-one, Bethe's optimum is the better matching, and messages grow for ever: not to the other one."""
    torch.manual_seed(0)
    logits = torch.tensor([0.01, 1.0, 10.0]).repeat_interleave(200).reshape(-1, 1, 1) * torch.randn(600, 2, 2)
    d = GeneralizedMatching(logits.double(), law(2, 2, (1,)), law(2, 2, (1,)))
    found = d.approximate_marginals(LoopyBP())
    best = d.unnormalized_log_prob(d.mode)
    done = found.converged
    assert done.double().mean() > 0.6 and bool((found.marginals - d.mode).abs()[done].amax() < 1e-6)
    torch.testing.assert_close(found.log_partition[done], best[done])
    low, high = d.log_partition_bounds()
    log_z = d.log_partition_function
    assert bool((low <= log_z + 1e-9).all()) and bool((high >= log_z - 1e-9).all())
    for scale, share in ((10.0, 0.3), (3.0, 0.4)):
        logits = scale * torch.randn(300, 3, 3, dtype=torch.double)
        forbidden = logits.masked_fill(torch.rand(300, 3, 3) < share, -math.inf)
        _, log_weights = enumerated(forbidden, law(3, 3, (1,)).unsqueeze(0), law(3, 3, (1,)).unsqueeze(0))
        log_z = log_weights.logsumexp(0)
        possible = log_z > -math.inf
        d = GeneralizedMatching(forbidden[possible], law(3, 3, (1,)), law(3, 3, (1,)))
        low, high = d.log_partition_bounds()
        assert bool((low <= log_z[possible] + 1e-7).all()) and bool((high >= log_z[possible] - 1e-7).all())


def test_gradients_of_bounds():
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.double) for shape in ((3, 3), (3, 4), (3, 4))]
    masks = [law(3, 3, (1, 2)), law(3, 3, (0, 1, 2))]

    def bound(side, logits, *tables):
        tables = [torch.where(mask == 0, 0.3 * table, mask) for mask, table in zip(masks, tables, strict=True)]
        return GeneralizedMatching(logits, *tables).log_partition_bounds()[side]

    for side in (0, 1):
        slope, expected = along(partial(bound, side), tensors)
        torch.testing.assert_close(slope, expected, rtol=0, atol=1e-5)


def test_elements_of_a_batch_by_themselves():
    """Tables of one element that are impossible do not change the bounds and beliefs of the others."""
    torch.manual_seed(1)
    logits, rows, columns = (torch.randn(shape, dtype=torch.double) for shape in ((4, 3, 3), (4, 3, 4), (4, 3, 4)))
    rows[0, 1, 2], columns[1, 0, 0], rows[1, 0, 3] = -math.inf, -math.inf, -math.inf
    together = GeneralizedMatching(logits, rows, columns)
    found, bounds = together.approximate_marginals(LoopyBP()), together.log_partition_bounds()
    for k in range(4):
        alone = GeneralizedMatching(logits[k], rows[k], columns[k])
        torch.testing.assert_close(alone.approximate_marginals(LoopyBP()).marginals, found.marginals[k])
        for mine, joint in zip(alone.log_partition_bounds(), bounds, strict=True):
            torch.testing.assert_close(mine, joint[k], rtol=1e-4, atol=1e-4)
    with pytest.raises(NotImplementedError, match="found none for some element"):
        together.approximate_marginals(CountMeanField())
    with pytest.raises(NotImplementedError, match="map: cannot be called under torch.vmap"):
        torch.vmap(lambda x: GeneralizedMatching(x, rows[2], columns[2]).map()[0])(logits)


def test_refusal_is_fast():
    d = GeneralizedMatching(torch.zeros(100, 150), law(150, 100, (3,)), law(100, 150, range(5)))
    with pytest.raises(NotImplementedError, match="exact sums"):
        d.sample()


def test_bounds_given_evidence():
    """Those of the distribution before are not kept."""
    d = matching(3, (3, 4), (1, 2), (1, 2))
    before = d.log_partition_bounds()
    value = d.mode
    for given_entries in (d.condition(value, value == 1), d.expand([2, 3]), d.reweight(-value, value)):
        low, high = given_entries.log_partition_bounds()
        log_z = given_entries.log_partition_function
        assert low.shape == log_z.shape and bool((low <= log_z + 1e-9).all()) and bool((high >= log_z - 1e-9).all())
    assert bool((d.log_partition_bounds()[0] == before[0]).all())


def test_bethe_is_a_bound_only_for_laws_with_real_roots():
    """Of rows with none or three ones, Bethe's log Z is larger than log Z; the bound is not."""
    d = matching(50, (4, 6), (0, 3), (1, 2))
    log_z = d.log_partition_function
    bethe = d.approximate_marginals(LoopyBP()).log_partition
    assert bool((bethe > log_z).any())
    assert bool((d.log_partition_bounds()[0] <= log_z).all())
    exact = matching(50, (4, 6), (2, 3), (1, 2))
    low = exact.log_partition_bounds()[0]
    torch.testing.assert_close(low, exact.approximate_marginals(LoopyBP()).log_partition, rtol=0, atol=1e-7)


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_permanents_are_near_bethes(size):
    """One-to-one, log Z is at most half of J log 2 above Bethe's approximation (Anari and Rezaei 2019)."""
    d = matching(25, (size, size), (1,), (1,), scale=2.0)
    bethe = d.approximate_marginals(LoopyBP()).log_partition
    difference = d.log_partition_function - bethe
    assert bool((difference >= -1e-9).all()) and bool((difference <= size / 2 * math.log(2.0) + 1e-9).all())
    low, high = d.log_partition_bounds()
    assert bool((high - low <= size / 2 * math.log(2.0) + 1e-7).all())


def along(function, tensors):
    """Derivative in a random direction, by autograd and by central differences."""
    directions = [torch.randn_like(tensor) for tensor in tensors]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    found = torch.autograd.grad(function(*leaves), leaves)
    slope = sum((g * d).sum() for g, d in zip(found, directions, strict=True))
    ends = [function(*(t + sign * 1e-5 * d for t, d in zip(tensors, directions, strict=True))) for sign in (1, -1)]
    return slope, (ends[0] - ends[1]) / 2e-5


@pytest.mark.parametrize("method", [LoopyBP(), TreeReweighted(1e-9), CountMeanField(1e-9)], ids=str)
def test_gradients_of_approximations(method):
    """Of log Z along log-odds: the marginals, to 1e-6; along tables: probabilities of counts, by differences."""
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.double) for shape in ((3, 4), (3, 5), (4, 4))]
    logits = tensors[0].clone().requires_grad_()
    found = GeneralizedMatching(logits, *tensors[1:]).approximate_marginals(method)
    (gradient,) = torch.autograd.grad(found.log_partition, logits)
    torch.testing.assert_close(gradient, found.marginals, rtol=0, atol=1e-6)
    slope, expected = along(lambda *t: GeneralizedMatching(*t).approximate_marginals(method).log_partition, tensors)
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", [LoopyBP(1e-13), TreeReweighted(1e-12)], ids=str)
@pytest.mark.parametrize("laws", ["soft", "hard"])
def test_gradients_of_marginals(method, laws):
    torch.manual_seed(1)
    logits = torch.randn(3, 4, dtype=torch.double)
    logits[0, 1], logits[2, 2] = -math.inf, math.inf
    finite = logits.isfinite()
    soft = [torch.randn(3, 5, dtype=torch.double), torch.randn(4, 4, dtype=torch.double)]
    masks = [law(4, 3, (1, 2)), law(3, 4, (1, 2))] if laws == "hard" else [torch.zeros_like(table) for table in soft]
    weights = torch.randn(3, 4, dtype=torch.double)

    def energy(free, *tables):
        tables = [torch.where(mask == 0, table, mask) for mask, table in zip(masks, tables, strict=True)]
        d = GeneralizedMatching(torch.where(finite, free, logits), *tables)
        return (d.approximate_marginals(method).marginals * weights).sum()

    tensors = [logits.masked_fill(~finite, 0.0), *soft]
    slope, expected = along(energy, tensors)
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-6)
    with pytest.raises(NotImplementedError, match="derivatives of the first order"):
        torch.autograd.grad(energy(tensors[0].requires_grad_(), *soft), tensors[0], create_graph=True)


def test_one_row_is_exact():
    torch.manual_seed(2)
    logits, rows = torch.randn(20, 1, 6, dtype=torch.double), torch.randn(20, 1, 7, dtype=torch.double)
    d = GeneralizedMatching(logits, rows, torch.randn(6, 2, dtype=torch.double))
    single = RecursiveCardinality(logits[:, 0] + d.column_count_logits.diff(dim=-1)[..., 0], rows[:, 0])
    found = d.approximate_marginals(LoopyBP())
    torch.testing.assert_close(found.marginals[:, 0], single.marginals)
    for result in (found.log_partition, d.log_partition_function):
        expected = single.log_partition_function + d.column_count_logits[..., 0].sum(-1)
        torch.testing.assert_close(result, expected)
    assert bool(found.converged.all())


@pytest.mark.parametrize(
    "shape, rows, columns",
    [((3, 5), (2, 3), (1, 2)), ((4, 6), (2, 3), (1, 2))],
    ids=str,
)
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_accuracy_of_belief_propagation(shape, rows, columns, scale):
    d = matching(50, shape, rows, columns, scale)
    found = d.approximate_marginals(LoopyBP())
    assert bool(found.converged.all()) and bool((found.error <= 1e-9).all())
    error = (found.marginals - d.marginals).abs().mean()
    nodes = (d.logits.sigmoid() - d.marginals).abs().mean()
    assert error <= 0.01 and error <= nodes / 10


def test_where_plain_steps_crawl():
    """All counts are forced to two: plain steps do not get near the fixed point, and say so; extrapolated ones do."""
    d = matching(1, (20, 20), (2, 3), (1, 2))
    found = d.approximate_marginals(LoopyBP(1e-12))
    assert bool(found.converged)
    torch.testing.assert_close(found.marginals.sum(-1), torch.full((1, 20), 2.0, dtype=torch.double))
    plain = d.approximate_marginals(LoopyBP(1e-4, max_iterations=100, memory=0))
    distance = (plain.marginals - found.marginals).abs().amax()
    assert not bool(plain.converged) and 1e-4 < distance < 2 * plain.residual


def test_unfinished_runs_say_so():
    d = matching(3, (5, 5), (1,), (1,), scale=2.0)
    found = d.approximate_marginals(LoopyBP(max_iterations=1))
    assert not bool(found.converged.any()) and bool((found.num_iterations == 3).all())


def test_laws_that_no_matrix_meets():
    logits = torch.zeros(2, 4, 5)
    cases = {
        "rows need at least 8 in all, but columns allow at most 5": (law(5, 4, (2,)), law(4, 5, (1,))),
        "columns need at least 20 in all, but rows allow at most 8": (law(5, 4, (2,)), law(4, 5, (4,))),
        "row_count_logits of row 0 allows no count": (law(5, 4, ()), law(4, 5, (1,))),
    }
    for text, laws in cases.items():
        d = GeneralizedMatching(logits, *laws)
        for query in (
            lambda d: d.log_partition_function,
            lambda d: d.sample(),
            lambda d: d.mode,
            lambda d: d.marginals,
            lambda d: d.log_partition_bounds(),
            lambda d: d.approximate_marginals(LoopyBP()),
        ):
            with pytest.raises(ValueError, match=f"{text}.*in rows 0, 1"):
                query(d)
    forbidden = torch.zeros(3, 3)
    forbidden[:2, 1:] = -math.inf
    d = GeneralizedMatching(forbidden, law(3, 3, (1,)), law(3, 3, (1,)))
    for query in (lambda d: d.mode, lambda d: d.approximate_marginals(LoopyBP()), lambda d: d.log_partition_function):
        with pytest.raises(ValueError, match="none meets the counts of all rows and columns"):
            query(d)
    clamped = torch.zeros(2, 2)
    clamped[0] = math.inf
    with pytest.raises(ValueError, match="row 0 allows counts of 1, but its variables can have 2"):
        _ = GeneralizedMatching(clamped, law(2, 2, (1,)), law(2, 2, (0, 1))).log_partition_function


def test_beyond_the_budget(monkeypatch):
    monkeypatch.setattr(count_diagram, "MOST_STATES", 50)
    d = matching(2, (4, 7), (2, 3), (1, 2), seed=8)
    for query in (lambda: d.sample(), lambda: d.log_prob(d.mode), lambda: d.marginals):
        with pytest.raises(NotImplementedError, match=r"approximate_marginals\(LoopyBP\(\)\)"):
            query()
    assert bool((d.mode.sum((-2, -1)) >= 8).all())
    low, high = d.log_partition_bounds()
    assert bool((low < high).all())
    gaps = matching(2, (4, 7), (0, 3), (1, 2), seed=8)
    value, gap = gaps.map()
    assert bool((gap == 0).all()) and bool((gaps.unnormalized_log_prob(value) > -math.inf).all())
    monkeypatch.undo()
    torch.testing.assert_close(gaps.unnormalized_log_prob(value), gaps.unnormalized_log_prob(gaps.mode))


def test_wrong_arguments():
    logits, rows, columns = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(3, 3)
    for name, given_tensors in {
        "logits": (torch.zeros(3), rows, columns),
        "row_count_logits": (logits, torch.zeros(2, 3), columns),
        "column_count_logits": (logits, rows, torch.zeros(2, 3)),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            GeneralizedMatching(*given_tensors)
    d = GeneralizedMatching(logits, rows, columns)
    with pytest.raises(ValueError, match="method: expected a MarginalApproximation"):
        d.approximate_marginals("LoopyBP")
    with pytest.raises(ValueError, match="max_seconds: expected a number above 0"):
        d.map(max_seconds=0)
    for settings_of in ({"tolerance": 0.0}, {"max_iterations": 0}, {"memory": -1}):
        with pytest.raises(ValueError, match=next(iter(settings_of))):
            LoopyBP(**settings_of)
    with pytest.raises(NotImplementedError, match="LoopyBP and TreeReweighted"):
        matching(1, (3, 3), (1,), (1,)).approximate_marginals(CountMeanField())


def test_no_rows_and_single_precision():
    d = GeneralizedMatching(torch.zeros(0, 2, 3), torch.zeros(2, 4), torch.zeros(3, 3))
    value, gap = d.map()
    found = d.approximate_marginals(LoopyBP())
    assert value.shape == found.marginals.shape == (0, 2, 3)
    assert gap.shape == found.converged.shape == d.log_partition_bounds()[0].shape == (0,)
    single = GeneralizedMatching(torch.eye(3), law(3, 3, (1,)).float(), law(3, 3, (1,)).float())
    results = [single.marginals, *single.approximate_marginals(LoopyBP())[:3], *single.log_partition_bounds()]
    assert all(result.dtype == torch.float32 for result in results)


@pytest.mark.slow
@pytest.mark.statistical
def test_sweeps_reach_the_marginals():
    """Chains from the mode: marginals of 4 x 6 within three standard errors of the exact ones."""
    torch.manual_seed(0)
    d = matching(3, (4, 6), (2, 3), (1, 2))
    chains = d.sweep(d.mode.expand(4000, 3, 4, 6), num_sweeps=30)
    deviation = (d.variance / 4000).sqrt()
    assert bool(((chains.mean(0) - d.marginals).abs() <= 4 * deviation).double().mean() > 0.99)
    assert chains.dtype == torch.float64 and bool((d.log_prob(chains) > -math.inf).all())


def test_sweeps_that_may_not_reach_everything():
    d = matching(2, (4, 7), (0, 3), (1, 2))
    with pytest.warns(UserWarning, match=r"row 0 allows \(0, 3\) have a gap, and a column does not allow all counts"):
        d.sweep(d.mode)
    with pytest.raises(ValueError, match="value: expected possible matrices"):
        d.sweep(torch.zeros(4, 7))
    with pytest.raises(ValueError, match="num_sweeps: expected"):
        d.sweep(d.mode, 0)
    empty = GeneralizedMatching(torch.zeros(0, 2, 2), torch.zeros(2, 3), torch.zeros(2, 3))
    assert empty.sweep(torch.zeros(5, 0, 2, 2)).shape == (5, 0, 2, 2)


@pytest.mark.slow(keep=1)
@pytest.mark.statistical
@pytest.mark.parametrize(
    "shape, rows, columns", [((3, 5), (2, 3), (1, 2)), ((4, 6), (0, 3), (1, 2)), ((5, 5), (1,), (1,))], ids=str
)
def test_estimates(shape, rows, columns):
    """Annealed importance sampling: within four standard errors, with gradients; log_prob beyond the budget."""
    torch.manual_seed(0)
    plain = matching(4, shape, rows, columns)
    logits = plain.logits.clone().requires_grad_()
    tables = plain.row_count_logits, plain.column_count_logits
    d = GeneralizedMatching(logits, *tables, estimator=AnnealedMatching(60, 200))
    value, error = d.estimate_log_partition()
    assert bool(((value - plain.log_partition_function).abs() < 4 * error).all()) and bool((error < 0.3).all())
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    torch.testing.assert_close(gradient, plain.marginals, rtol=0, atol=0.25)
    estimate, spread = d.estimate_log_prob(plain.mode)
    assert bool(((estimate - plain.log_prob(plain.mode)).abs() < 4 * spread).all())
    torch.testing.assert_close(d.log_prob(plain.mode), plain.log_prob(plain.mode))


def test_estimates_where_sums_take_too_long(monkeypatch):
    d = matching(1, (3, 4), (1, 2), (1,))
    estimator = AnnealedMatching(20, 50)
    estimated = GeneralizedMatching(d.logits, d.row_count_logits, d.column_count_logits, estimator=estimator)
    exact = d.log_prob(d.mode)
    monkeypatch.setattr("pyro_structured.counts.distributions.generalized_matching.MOST_STATES", 3)
    torch.manual_seed(0)
    found = estimated.log_prob(d.mode)
    assert found != exact and bool((found - exact).abs() < 0.5)
    with pytest.raises(ValueError, match="estimator: expected one"):
        d.estimate_log_partition()
    with pytest.raises(ValueError, match="estimator: expected one"):
        GeneralizedMatching(d.logits, d.row_count_logits, d.column_count_logits, estimator="annealed")
    infeasible = GeneralizedMatching(torch.zeros(2, 2), law(2, 2, (2,)), law(2, 2, (1,)), estimator=estimator)
    with pytest.raises(ValueError, match="rows need at least 4 in all"):
        infeasible.estimate_log_partition()
    empty = GeneralizedMatching(torch.zeros(0, 2, 2), torch.zeros(2, 3), torch.zeros(2, 3), estimator=estimator)
    assert empty.estimate_log_partition()[1].shape == (0,)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_labels_with_counts(seed):
    """One label a thing, with laws of the labels' numbers: probabilities equal the sum over all labellings."""
    rng = np.random.default_rng(seed)
    height, width = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    logits = torch.from_numpy(rng.choice([0.3, 2.0]) * rng.normal(size=(2, height, width)))
    tables = torch.from_numpy(rng.normal(size=(width, height + 1)))
    tables[torch.from_numpy(rng.random(tables.shape) < 0.2)] = -math.inf
    labels = torch.cartesian_prod(*[torch.arange(width)] * height).reshape(-1, height)
    values = torch.nn.functional.one_hot(labels, width).double()
    totals = torch.einsum("vij,rij->vr", values, logits)
    counts = values.sum(1).long()
    totals = totals + sum(tables[j, counts[:, j]] for j in range(width)).unsqueeze(-1)
    log_z = totals.logsumexp(0)
    if not bool((log_z > -math.inf).all()):
        return
    d = GeneralizedMatching.of_labels(logits, tables)
    torch.testing.assert_close(d.log_partition_function, log_z)
    expected = torch.einsum("vr,vij->rij", (totals - log_z).exp(), values)
    torch.testing.assert_close(d.marginals, expected, rtol=1e-9, atol=1e-11)
    if seed % 5 == 0:
        low, high = d.log_partition_bounds()
        assert bool((low <= log_z + 1e-8).all()) and bool((high >= log_z - 1e-8).all())


def test_labels_of_many_pixels():
    """1,024 pixels with three labels whose areas are known, beyond exact sums."""
    torch.manual_seed(0)
    areas = torch.tensor([100, 300, 624])
    laws = torch.full((3, 1025), -math.inf, dtype=torch.double).scatter(1, areas.unsqueeze(-1), 0.0)
    d = GeneralizedMatching.of_labels(torch.randn(1024, 3, dtype=torch.double), laws)
    found = d.approximate_marginals(LoopyBP())
    assert bool(found.converged)
    torch.testing.assert_close(found.marginals.sum(-2), areas.double())
    torch.testing.assert_close(d.mode.sum(-2), areas.double())
    moved = d.sweep(d.mode)
    assert bool((moved.sum(-1) == 1).all()) and bool((moved.sum(-2) == areas).all())
    with pytest.raises(ValueError, match=r"logits: expected shape \(..., I, J\)"):
        GeneralizedMatching.of_labels(torch.zeros(3), laws)


def test_tree_reweighted_with_large_log_odds():
    """Log-odds that leave hardly any choice: the bound is met, not a limit of messages."""
    torch.manual_seed(1)
    logits = torch.randn(4, 4, dtype=torch.double) * torch.tensor([1.0, 30.0, 1000.0]).reshape(3, 1, 1)
    d = GeneralizedMatching(logits, law(4, 4, (1,)), law(4, 4, (1,)))
    found = d.approximate_marginals(TreeReweighted())
    difference = found.log_partition - d.log_partition_function
    assert bool(found.converged.all()) and bool((found.error < 1e-6).all()) and bool((difference >= -1e-9).all())
    assert bool((difference[1:] < 0.1 * difference[:1]).all())


def test_errors_name_what_was_given():
    logits, tables = torch.zeros(3, 2), torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"^label_count_logits: expected shape \(..., 2, 4\), got \(2, 3\)"):
        GeneralizedMatching.of_labels(logits, tables)
    for wrong, text in ((logits.long(), "got one of torch.int64"), (logits.numpy(), "got ndarray|got array")):
        with pytest.raises(ValueError, match=f"^logits: expected a floating point tensor, {text}"):
            GeneralizedMatching(wrong, torch.zeros(3, 3), torch.zeros(2, 4))
    d = GeneralizedMatching(logits, torch.zeros(3, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="^observed: expected a boolean tensor, got "):
        d.condition(logits, np.ones((3, 2), dtype=bool))
    empty = GeneralizedMatching(logits, law(2, 3, ()), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="row 0 allows no count"):
        empty.approximate_marginals(CountMeanField())
