"""Means of independent estimates, against exact sums."""

import math
import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import binom

from pyro_structured.distributions import RBM, EstimateWarning, GeneralizedMatching, RandOM
from pyro_structured.inference import AnnealedImportanceSampling, AnnealedMatching, ShellSMC, replicate_estimate
from pyro_structured.structures import Matching
from pyro_structured.testing.standard_errors import FAILURE_RATE

pytestmark = pytest.mark.statistical

ROWS, REPLICATES = 400, 8


def boltzmann(estimator):
    # Rows of a batch have chains of their own.
    weights, visible, hidden = torch.randn(ROWS, 3, 6).double(), torch.randn(ROWS, 6).double(), torch.randn(ROWS, 3)
    d = RBM(weights, visible, hidden.double(), estimator=estimator)
    return d.estimate_log_partition, d.log_partition_function


def matrix(estimator):
    two = torch.full((5,), -torch.inf).index_fill(0, torch.tensor([2]), 0.0).double().expand(4, 5)
    d = GeneralizedMatching(torch.randn(4, 4).double().expand(ROWS, 4, 4), two, two, estimator=estimator)
    return d.estimate_log_partition, d.log_partition_function


def matching(estimator):
    base = dist.Normal(torch.randn(2, 2).double().expand(ROWS, 2, 2), 1.0).to_event(2)
    value = torch.tensor([1, 0])
    return RandOM(base, Matching(2), estimator=estimator).estimate_log_prob, RandOM(base, Matching(2)).log_prob(value)


@pytest.mark.slow(keep=1)
@pytest.mark.filterwarnings("ignore::pyro_structured.distributions.EstimateWarning")
@pytest.mark.parametrize(
    "make, estimator",
    [
        (boltzmann, AnnealedImportanceSampling(8, 4)),
        (matrix, AnnealedMatching(8, 8)),
        (matching, ShellSMC(10, 2)),
    ],
)
def test_rough_estimates_have_the_right_mean_and_error(make, estimator):
    """Unbiased before the logarithm; as many are within two standard errors as Student's factor promises."""
    torch.manual_seed(0)
    estimate, exact = make(estimator)
    call = (lambda: estimate(torch.tensor([1, 0]))) if make is matching else estimate
    found = replicate_estimate(call, REPLICATES)
    assert found.value.shape == found.standard_error.shape == exact.shape == (ROWS,)
    ratios = (found.value - exact).exp()
    assert abs(ratios.mean() - 1) < 6 * ratios.std() / math.sqrt(ROWS) + 1e-6
    # A single estimate has a larger error, so that the spread of the replicates has been averaged.
    assert (found.value - exact).std() < 0.5 * (found.replicates - exact).std()
    covered = int(((found.value - exact).abs() < 2 * found.standard_error).sum())
    assert binom.sf(covered, ROWS, 0.97) > FAILURE_RATE and binom.cdf(covered, ROWS, 0.9) > FAILURE_RATE


def test_formulas():
    torch.manual_seed(0)
    found = replicate_estimate(lambda: (torch.rand(3), torch.ones(3)), 5)
    again = replicate_estimate(lambda: torch.rand(3), 5)
    assert found.replicates.shape == (5, 3) and len(found.replicates.unique()) == 15
    assert not set(found.replicates.flatten().tolist()) & set(again.replicates.flatten().tolist())
    torch.manual_seed(0)
    assert torch.equal(replicate_estimate(lambda: torch.rand(3), 5).replicates, found.replicates)
    each = found.replicates.exp().numpy()
    np.testing.assert_allclose(found.value, np.log(each.mean(0)))
    np.testing.assert_allclose(found.effective_number, each.sum(0) ** 2 / (each**2).sum(0))
    without = np.stack([np.log(np.delete(each, place, 0).mean(0)) for place in range(5)])
    error = np.sqrt(4 / 5 * ((without - without.mean(0)) ** 2).sum(0))
    # Two of them are the quantile of Student's distribution with 4 degrees of freedom for 97.725 %.
    np.testing.assert_allclose(found.standard_error, error * 2.8693 / 2, rtol=1e-4)


def test_estimates_of_zero():
    def hopeless():
        warnings.warn("each by itself", EstimateWarning, stacklevel=1)
        return torch.tensor([-torch.inf, 0.0])

    with pytest.warns(
        EstimateWarning, match="expected standard errors up to 0.5, got larger ones of <function"
    ) as seen:
        found = replicate_estimate(hopeless, 2)
    assert len(seen) == 1
    assert found.value.tolist() == [-torch.inf, 0.0] and found.standard_error.tolist() == [torch.inf, 0.0]
    assert found.effective_number.tolist() == [0.0, 2.0]


def test_undefined_estimates_are_named():
    values = iter([0.0, torch.nan, 0.0, torch.nan])
    with pytest.warns(EstimateWarning, match=r"^estimate: expected logarithms, got NaN in replicates 1, 3$"):
        found = replicate_estimate(lambda: torch.tensor([next(values), 0.0]), 4)
    assert found.value[0].isnan() and found.value[1] == 0.0 and found.replicates[[0, 2], 0].tolist() == [0.0, 0.0]
    with pytest.warns(EstimateWarning, match=r"replicates 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more$"):
        replicate_estimate(lambda: torch.tensor(torch.nan), 12)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"estimate": 1.0}, "estimate: expected a function without arguments, got 1.0"),
        ({"num_replicates": 1}, "num_replicates: expected an integer of at least 2, got 1"),
        ({"n_jobs": 1.5}, "n_jobs: expected None or an integer other than 0, got 1.5"),
        ({"estimate": lambda: 1.0}, "estimate: expected one that returns an estimated logarithm"),
        ({"estimate": tuple}, "estimate: expected one that returns an estimated logarithm"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        replicate_estimate(**{"estimate": lambda: torch.zeros(()), **arguments})
