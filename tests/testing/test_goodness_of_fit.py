import pytest
import torch
from scipy.stats import binom, chi2

from pyro_structured.testing.goodness_of_fit import density_goodness_of_fit, discrete_goodness_of_fit
from pyro_structured.testing.standard_errors import FAILURE_RATE

pytestmark = pytest.mark.statistical

PROBS = torch.tensor([0.0, 0.5, 0.3, 0.19, 0.0099, 0.0001])


def test_good_counts_have_uniform_p_values():
    counts = torch.distributions.Multinomial(1000, PROBS).sample((400,))
    p_values = torch.tensor([discrete_goodness_of_fit(PROBS, c) for c in counts])
    for level in (0.02, 0.1, 0.5, 0.9):
        # Pearson's statistic is discrete: its levels are right to a tenth of them.
        number = int((p_values < level).sum())
        assert binom.cdf(number, 400, 0.9 * level) > FAILURE_RATE / 2
        assert binom.sf(number - 1, 400, 1.1 * level) > FAILURE_RATE / 2
    assert p_values.min() > FAILURE_RATE


def test_bad_counts_have_tiny_p_values():
    for excess, bound in ((100, 1e-3), (200, 1e-10), (1000, 1e-100), (100000, 1e-200)):
        assert discrete_goodness_of_fit(PROBS, 1000 * PROBS + excess * torch.eye(6)[2]) < bound
    assert discrete_goodness_of_fit(PROBS, 1000 * PROBS + torch.eye(6)[0]) == 0.0


def test_rare_values_are_pooled():
    """Three draws are too few for the last two values, even together: they count with the second."""
    probs = torch.tensor([0.9, 0.097, 0.002, 0.001], dtype=torch.float64)
    expected = discrete_goodness_of_fit(torch.tensor([0.9, 0.1], dtype=torch.float64), torch.tensor([890, 110]))
    for counts in ([890, 107, 1, 2], [890, 110, 0, 0], [890, 0, 60, 50]):
        found = discrete_goodness_of_fit(probs, torch.tensor(counts))
        assert found == pytest.approx(expected, rel=1e-6)
    enough = torch.tensor([0.9, 0.09, 0.006, 0.004])
    assert discrete_goodness_of_fit(enough, torch.tensor([890, 50, 30, 30])) < 1e-10


def test_one_value_fits():
    assert discrete_goodness_of_fit(torch.tensor([0.0, 1.0]), torch.tensor([0, 50])) == 1.0


def test_densities():
    normal = torch.distributions.Normal(0.0, 1.0)
    samples = normal.sample((2000,))
    assert density_goodness_of_fit(samples, normal.log_prob(samples).exp()) > FAILURE_RATE
    assert density_goodness_of_fit(2 * samples, normal.log_prob(2 * samples).exp()) < 1e-30
    assert density_goodness_of_fit(samples, 1.5 * normal.log_prob(samples).exp()) < 1e-30
    vectors = normal.sample((4000, 2))
    # Two that are nearest to each other count one distance twice, which at most doubles the statistic of 16 cells.
    least = chi2.sf(2 * chi2.isf(FAILURE_RATE, 15), 15)
    assert density_goodness_of_fit(vectors, normal.log_prob(vectors).sum(-1).exp()) > least
    assert density_goodness_of_fit(1.5 * vectors, normal.log_prob(1.5 * vectors).sum(-1).exp()) < 1e-30
