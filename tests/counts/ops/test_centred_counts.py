import math
import warnings
from fractions import Fraction

import pytest
import torch

from pyro_structured.counts.ops.centred_counts import centre_counts
from pyro_structured.counts.ops.compensated_sum import compensated_sum
from pyro_structured.distributions import KSubset, PrecisionWarning, RecursiveCardinality
from pyro_structured.structures import NestedSubsets
from pyro_structured.testing import ball_arithmetic

COUNTS = torch.arange(5, dtype=torch.float64)
NESTED = NestedSubsets([[0, 1], [2, 3], range(4), [0, 1], []], 4)
FAMILIES = [None, NESTED, NestedSubsets.balanced(5)]


def exact_log_probs(d):
    """By enumeration in fractions; only the last step is rounded."""
    logits, tables = ([None if math.isinf(v) else Fraction(v) for v in p.tolist()] for p in (d.logits, d.count_logits))
    values = d.enumerate_support()
    starts = torch.tensor([0, *(size + 1 for size in d.subsets.sizes)]).cumsum(0)[:-1]
    cells = (d.subsets.counts(values) + starts).tolist()
    scores = []
    for value, entries in zip(values.tolist(), cells, strict=True):
        parts = [tables[cell] for cell in entries] + [x for x, on in zip(logits, value, strict=True) if on]
        scores.append(None if None in parts else sum(parts, Fraction(0)))
    best = max(score for score in scores if score is not None)
    # Scores that do not fit into a float are far from the best.
    log_weights = [-math.inf if s is None or s - best < -(10**300) else float(s - best) for s in scores]
    return values, torch.tensor(log_weights, dtype=torch.float64).log_softmax(0)


def check_probabilities(d, tolerance=1e-9):
    values, log_probs = exact_log_probs(d)
    found = d.log_prob(values).double()
    torch.testing.assert_close(found.exp(), log_probs.exp(), rtol=0, atol=tolerance)
    torch.testing.assert_close(d.marginals.double(), log_probs.exp() @ values.double(), rtol=0, atol=tolerance)
    assert (found <= 0).all()


@pytest.mark.parametrize("exponent", [*range(0, 48, 4), 47, 60, 300])
@pytest.mark.parametrize("slope", [1.0, 4 / 3])
def test_lines_in_tables_cancel_against_logits(exponent, slope):
    a = slope * 2.0**exponent
    logits, table = torch.full((4,), -a + 0.5, dtype=torch.float64), a * COUNTS
    d = RecursiveCardinality(logits, table)
    check_probabilities(d)
    exact = ball_arithmetic.beliefs(logits, table, precision=1500)
    torch.testing.assert_close(d.log_partition_function, exact.log_partition, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(d.count_marginals, exact.count_marginals, rtol=0, atol=1e-9)
    assert d.certificate.excess_error < 1e-9 and d.certificate.count_marginals_error < 1e-9


@pytest.mark.statistical
@pytest.mark.parametrize("a", [2.0**20, 2.0**47 / 3, -(2.0**100)])
def test_lines_of_nested_tables_cancel_against_one_another(a):
    torch.manual_seed(0)
    tables = [torch.randn(size + 1, dtype=torch.float64) for size in NESTED.sizes]
    if abs(a) > 2.0**40:
        tables = [table.round() if abs(a) < 1e20 else torch.zeros_like(table) for table in tables]
    line = a * COUNTS
    shifted = [tables[0] - line[:3], tables[1] - line[:3], tables[2] + line, tables[3], tables[4]]
    logits = torch.randn(4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_probabilities(RecursiveCardinality(logits, NESTED.pack(shifted), NESTED))
        check_probabilities(KSubset(logits.round() + a, 2))


@pytest.mark.statistical
@pytest.mark.parametrize("mask", [-1e9, -1e30, -1e300, 1e12])
@pytest.mark.parametrize("subsets", [None, NESTED])
def test_masks_are_no_reason_to_warn(mask, subsets):
    torch.manual_seed(1)
    logits = torch.randn(4, dtype=torch.float64)
    logits[[0, 3]] = mask
    table = torch.randn(5 if subsets is None else subsets.table_size, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_probabilities(RecursiveCardinality(logits, table, subsets))


@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(4))
def test_wrong_probabilities_are_never_silent(seed):
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([0.0, 1.0, 1e3, 1e8, 1e12, 1e16, 1e30, 1e300], dtype=torch.float64)
    flagged = 0
    for trial in range(50):
        subsets = FAMILIES[trial % 3]
        size = 4 if subsets is None else subsets.num_variables
        cells = size + 1 if subsets is None else subsets.table_size
        numbers = [torch.randn(n, generator=generator, dtype=torch.float64) for n in (size, cells)]
        numbers = [n * scales[torch.randint(8, n.shape if trial % 2 else (1,), generator=generator)] for n in numbers]
        numbers[0] += scales[torch.randint(6, (1,), generator=generator)]
        if trial % 5 == 0:
            numbers = [n.clamp(-1e37, 1e37).float() for n in numbers]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            d = RecursiveCardinality(*numbers, subsets)
            _, log_probs = exact_log_probs(d)
            found = d.log_prob(d.enumerate_support()).double()
            _ = d.marginals
        warned = any(issubclass(warning.category, PrecisionWarning) for warning in caught)
        flagged += warned
        error = max(1e-6, 1e-5 * (numbers[0].dtype == torch.float32))
        assert (found <= 0).all() and (warned or (found.exp() - log_probs.exp()).abs().max() <= error), trial
        assert warned or not d.certificate.excess_error > 1e-6
    assert flagged < 25


def test_tables_of_one_subset_that_cancel():
    """Six vectors weigh the same up to 1e16, which is lost in tables of 1e37 and in their sum."""
    b = 1e37
    signs = [-1, 1, -1, 1, 1, -1, -1, -1, 1, 1, -1, -1, -1, 1, 1]
    d = RecursiveCardinality(torch.full((4,), 1e16).double(), b * torch.tensor(signs).double(), NESTED)
    with pytest.warns(PrecisionWarning):
        _ = d.marginals
    assert d.certificate.excess_error > 1e16


# Three vectors that weigh about the same, among terms that no straight line removes.
CANCELLING = torch.tensor([0.0, -1e17, 0.0], dtype=torch.float64)
LOST = torch.tensor([1e17 + 16, -1e17], dtype=torch.float64)


def test_the_warning_is_shown_once_for_each_place():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for step in range(5):
            _ = RecursiveCardinality(LOST * (1 + step), CANCELLING * (1 + step)).marginals
    assert len(caught) == 1 and caught[0].filename == __file__
    assert "certified to no better than" in str(caught[0].message) and "`certificate`" in str(caught[0].message)


def test_under_vmap_the_certificate_tells():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.vmap(lambda x: RecursiveCardinality(x, CANCELLING, validate_args=False).marginals)(LOST.expand(2, 2))
    assert RecursiveCardinality(LOST, CANCELLING).certificate.count_marginals_error > 1e-3


@pytest.mark.statistical
def test_rows_and_derivatives_are_those_of_the_parameters():
    torch.manual_seed(2)
    small = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    x, f = (p.clone().requires_grad_() for p in small)
    line = torch.tensor([0.0, 2.0**20, -(2.0**20)], dtype=torch.float64).unsqueeze(-1)
    value = torch.tensor([1.0, 0.0, 0.0, 1.0])
    plain, moved = RecursiveCardinality(x, f), RecursiveCardinality(x - line, f + line * COUNTS)
    observed = torch.tensor([True, False, False, True])
    for query in (
        lambda d: d.log_prob(value),
        lambda d: d.marginal_logits,
        lambda d: d.entropy(),
        lambda d: d.marginal_log_prob(value, observed),
        lambda d: d.condition(value, observed).marginals[..., 1:3],
    ):
        torch.testing.assert_close(query(moved), query(plain), rtol=1e-8, atol=1e-8)
        gradients = (torch.autograd.grad(query(d).square().sum(), (x, f), retain_graph=True) for d in (moved, plain))
        for found, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    mapped = torch.vmap(lambda x, f: RecursiveCardinality(x, f, validate_args=False).log_prob(value), (1, 0), 1)
    torch.testing.assert_close(mapped(x - line, f + line * COUNTS), moved.log_prob(value))


@pytest.mark.statistical
def test_centring_keeps_every_weight():
    torch.manual_seed(3)
    x = (2.0**30 * torch.randn(4, dtype=torch.float64)).round()
    f = (2.0**30 * torch.randn(NESTED.table_size, dtype=torch.float64)).round()
    x[0], f[0] = math.inf, -math.inf
    centred = centre_counts(x, f, NESTED.forest)
    plain, moved = (RecursiveCardinality(*p, NESTED) for p in ((x, f), centred[:2]))
    values = torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 1, 0], [1.0, 1, 1, 1]])
    difference = plain.unnormalized_log_prob(values) - moved.unnormalized_log_prob(values)
    torch.testing.assert_close(difference, centred.constant.expand(3))


def test_sums_in_twice_the_precision():
    terms = torch.tensor([[1e30, 1.0, -1e30, 1e15, 0.25], [1e300, -1e300, 3.0, -math.inf, 0.0]], dtype=torch.float64)
    assert compensated_sum(terms).tolist() == [1e15 + 1.25, -math.inf]
    assert compensated_sum(terms[:, :0]).tolist() == [0.0, 0.0]
