"""Integrals as means of ratios of densities, against closed forms; and draws against the density they come with."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import ks_1samp

from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.piecewise_exponential import piecewise_exponential

pytestmark = pytest.mark.statistical

NUM = 4000
CASES = {
    "normal": (lambda x: -(x**2) / 2, -30.0, 30.0, math.log(2 * math.pi) / 2, 0.0),
    "narrow": (lambda x: -(((x - 7.3) / 1e-6) ** 2) / 2, -1e3, 1e3, math.log(2 * math.pi) / 2 - 6 * math.log(10), 7.3),
    "end of a normal": (lambda x: -(x**2) / 2, 5.0, 40.0, math.log(math.sqrt(2 * math.pi) * 2.866515719e-7), 5.1865),
    "exponential": (lambda x: -3 * x, 0.0, 100.0, -math.log(3), 1 / 3),
    "rising": (lambda x: 3 * x, -100.0, 0.0, -math.log(3), -1 / 3),
    "constant": (lambda x: torch.zeros_like(x) - 700, -2.0, 3.0, math.log(5) - 700, 0.5),
    "gumbel": (lambda x: -x - (-x).exp(), -20.0, 60.0, 0.0, 0.5772157),
    # Zero at an end.
    "gamma": (lambda x: 3 * x.clamp(min=1e-300).log() - x, 0.0, 100.0, math.log(6), 4.0),
    "box in a wide bracket": (
        lambda x: torch.zeros_like(x).masked_fill((x < -1) | (x > 2), IMPOSSIBLE), -4.0, 4.0, math.log(3), 0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_integrals_and_means(name):
    log_density, low, high, log_total, mean = CASES[name]
    torch.manual_seed(0)
    ends = (torch.full((NUM,), end, dtype=torch.double) for end in (low, high))
    density = piecewise_exponential(log_density, *ends)
    x, log_q = density.draw(*density.ends)
    assert ((x >= low) & (x <= high)).all()
    ratio = (log_density(x) - log_q - log_total).exp()
    assert ratio.std() < (2 if "box" in name else 0.5)
    for found, expected in ((ratio, 1.0), (ratio * x, mean)):
        assert abs(found.mean().item() - expected) < 6 * found.std().item() / math.sqrt(NUM) + 1e-9


def test_exponential_densities_are_met_exactly():
    torch.manual_seed(0)
    low = torch.zeros(NUM, dtype=torch.double)
    density = piecewise_exponential(lambda x: -x, low, low + 2.0)
    x, log_q = density.draw(*density.ends)
    torch.testing.assert_close(log_q, -x - math.log(-math.expm1(-2.0)))
    assert ks_1samp(x.numpy(), lambda x: np.expm1(-x) / math.expm1(-2.0)).pvalue > 2e-9


def test_rows_are_independent():
    """Each row has its own density, bounds and draw."""
    torch.manual_seed(0)
    loc = torch.tensor([[-5.0, 0.0, 50.0]], dtype=torch.double).expand(NUM, 3)
    density = piecewise_exponential(lambda x: -((x - loc) ** 2) / 2, loc - 20, loc + 30)
    x, log_q = density.draw(*density.ends)
    ratio = (-((x - loc) ** 2) / 2 - log_q).exp()
    torch.testing.assert_close(ratio.mean(0), torch.full((3,), math.sqrt(2 * math.pi)).double(), rtol=0.02, atol=0)
    assert x.T.corrcoef().fill_diagonal_(0).abs().max() < 6 / math.sqrt(NUM)
