"""E-steps and M-steps against loops over classes, rows and completions of gaps."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, issparse
from scipy.special import logsumexp, softmax

from pyro_structured.distributions import ExchangeableMixture
from pyro_structured.exchangeable.models.block_mixture import BlockMixture
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.exchangeable.ops.expectation_maximization import (
    accumulate,
    expect,
    fill_gaps,
    learned_statistics,
    log_joint,
    maximize,
)
from pyro_structured.exchangeable.ops.packed_counts import FEW_SINGLES, PackedCounts
from pyro_structured.structures import Partition
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical

LABELS = np.array([[0, 0, 0, 3, 3], [0, 1, 0, 1, 0], [0, 1, 2, 3, 4]])


@pytest.fixture(autouse=True, params=[0, FEW_SINGLES])
def few_singles(request, monkeypatch):
    """Variables that are alone are counted, or have log-odds of their own."""
    monkeypatch.setattr("pyro_structured.exchangeable.ops.packed_counts.FEW_SINGLES", request.param)


def example(missing, seed=0, number=40):
    rng = np.random.default_rng(seed)
    values = (rng.random((number, 5)) < 0.4).astype(float)
    values[rng.random(values.shape) < missing] = np.nan
    rows = BinaryRows.from_matrix(values, rng.random(number) + 0.5)
    counts = PackedCounts(LABELS, rows.largest_gap)
    posterior = rng.dirichlet(np.ones(3), number).T
    return values, rows, counts, posterior, maximize(counts, accumulate(counts, rows, posterior), 0.3)


def joint(counts, parameters, values):
    """By the Pyro distribution."""
    mixture = BlockMixture(counts, parameters).to_pyro()
    value, observed = torch.from_numpy(np.nan_to_num(values)), torch.from_numpy(~np.isnan(values))
    components = mixture.component(torch.arange(3)).marginal_log_prob(value.unsqueeze(1), observed.unsqueeze(1))
    return (components + torch.from_numpy(parameters.log_classes)).numpy().T


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_joint_probabilities(missing):
    values, rows, counts, _, parameters = example(missing)
    np.testing.assert_allclose(log_joint(counts, parameters, rows), joint(counts, parameters, values), rtol=1e-10)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_expectation(missing):
    values, rows, counts, _, parameters = example(missing)
    posterior, total, statistics = expect(counts, parameters, rows)
    scores = joint(counts, parameters, values)
    np.testing.assert_allclose(posterior, softmax(scores, 0), rtol=1e-9)
    assert total == pytest.approx(rows.weights @ logsumexp(scores, 0))
    again = accumulate(counts, rows, posterior)
    for name in ("classes", "ones", "gaps", "histogram"):
        np.testing.assert_allclose(getattr(statistics, name), getattr(again, name), atol=1e-12)


def test_expectation_with_known_classes():
    _, rows, counts, _, parameters = example(0.0)
    known = np.arange(len(rows)) % 3
    log_allowed = np.where(np.equal.outer(np.arange(3), known), 0.0, -np.inf)
    posterior, total, _ = expect(counts, parameters, rows, log_allowed)
    np.testing.assert_array_equal(posterior, np.isfinite(log_allowed))
    scores = log_joint(counts, parameters, rows)[known, np.arange(len(rows))]
    assert total == pytest.approx(rows.weights @ scores)


@pytest.mark.parametrize("smoothing", [0.1, 2.0])
def test_maximum_is_the_distribution_s_own(smoothing):
    values, rows, counts, posterior, _ = example(0.0)
    found = BlockMixture(counts, maximize(counts, accumulate(counts, rows, posterior), smoothing)).to_pyro()
    weights = torch.from_numpy(posterior * rows.weights)
    expected = ExchangeableMixture.from_data(
        torch.from_numpy(values), (weights / weights.sum(0)).T, Partition(torch.from_numpy(LABELS)), smoothing
    )
    for k in range(3):  # weights of rows do not fit into memberships, so class by class
        part = type(expected.component(torch.tensor(k))).from_data(
            torch.from_numpy(values), Partition(torch.from_numpy(LABELS[k])), smoothing, weights[k]
        )
        torch.testing.assert_close(found.component(torch.tensor(k)).count_marginals, part.count_marginals)
    classes = weights.sum(1)
    torch.testing.assert_close(found.class_probs, classes / classes.sum())


def test_maximum_with_gaps():
    """The M-step is that of the completed rows, weighted by how probable they are."""
    values, rows, counts, _, parameters = example(0.4, number=12)
    posterior, _, statistics = expect(counts, parameters, rows)
    found = maximize(counts, statistics, 0.2, parameters)
    for k in range(3):
        completed, weights = [], []
        part = BlockMixture(counts, parameters).to_pyro().component(torch.tensor(k))
        for row, weight in zip(values, posterior[k] * rows.weights, strict=True):
            options = [(0.0, 1.0) if np.isnan(x) else (x,) for x in row]
            filled = torch.tensor(list(product(*options)), dtype=torch.float64)
            completed.append(filled)
            weights.append(weight * part.log_prob(filled).softmax(0))
        expected = type(part).from_data(torch.cat(completed), part.partition, 0.2, torch.cat(weights))
        component = BlockMixture(counts, found).to_pyro().component(torch.tensor(k))
        torch.testing.assert_close(component.count_marginals, expected.count_marginals)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_statistics_are_found_in_the_parameters(missing):
    _, rows, counts, posterior, parameters = example(missing)
    found = learned_statistics(counts, parameters, 0.3, rows.weights.sum())
    if not missing:
        statistics = accumulate(counts, rows, posterior)
        for name in ("classes", "ones", "histogram"):
            np.testing.assert_allclose(getattr(found, name), getattr(statistics, name), atol=1e-12)
    again = maximize(counts, found, 0.3)
    for name in ("log_classes", "log_ones", "log_zeros", "log_cells", "log_prior"):
        np.testing.assert_allclose(getattr(again, name), getattr(parameters, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_objective_never_falls(missing):
    _, rows, counts, _, parameters = example(missing, seed=1)
    before = -np.inf
    for _ in range(15):
        _, total, statistics = expect(counts, parameters, rows)
        assert total + parameters.log_prior >= before - 1e-9
        before = total + parameters.log_prior
        parameters = maximize(counts, statistics, 0.3, parameters)


@pytest.mark.parametrize("at_once", [7, 100])
def test_sparse_rows_stay_sparse_when_gaps_are_filled(at_once, monkeypatch):
    monkeypatch.setattr("pyro_structured.exchangeable.ops.binary_rows.ROWS_AT_ONCE", at_once)
    values, rows, counts, _, parameters = example(0.4)
    gaps, ones = np.isnan(values).astype(float), np.nan_to_num(values)
    filled, expected = (
        fill_gaps(
            counts, parameters, BinaryRows(form(ones), csr_matrix(gaps), rows.weights), 0, np.random.default_rng(0)
        )
        for form in (csr_matrix, np.array)
    )
    assert issparse(filled) and filled.dtype == np.uint8
    np.testing.assert_array_equal(filled.toarray(), expected)
    np.testing.assert_array_equal(expected[gaps == 0], ones[gaps == 0])
    assert 0 < expected[gaps == 1].mean() < 1


@pytest.mark.parametrize("k", range(3))
def test_filled_gaps(k):
    _, _, counts, _, parameters = example(0.4)
    row = np.array([1.0, np.nan, np.nan, np.nan, 0.0])
    rows = BinaryRows.from_matrix(np.tile(row, (4000, 1)))
    drawn = fill_gaps(counts, parameters, rows, k, np.random.default_rng(k)).toarray()
    np.testing.assert_array_equal(drawn[:, [0, 4]], np.tile([1, 0], (4000, 1)))
    filled = torch.tensor([[1.0, *rest, 0.0] for rest in product((0.0, 1.0), repeat=3)], dtype=torch.float64)
    part = BlockMixture(counts, parameters).to_pyro().component(torch.tensor(k))
    index = torch.from_numpy(drawn[:, 1:4].astype(np.int64) @ [4, 2, 1])
    counted = torch.bincount(index, minlength=8)
    assert discrete_goodness_of_fit(part.log_prob(filled).softmax(0), counted) > 2e-9
