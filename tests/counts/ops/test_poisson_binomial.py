import math

import pytest
import torch

from pyro_structured.counts.ops import poisson_binomial
from pyro_structured.counts.ops.poisson_binomial import bulk_mass, log_mass
from pyro_structured.testing import ball_arithmetic


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("size", [1, 7, 150])
def test_relative_accuracy_at_every_count(size, scale, direct, monkeypatch):
    monkeypatch.setattr(poisson_binomial, "DIRECT_TERMS", math.inf if direct else 0)
    logits = scale * torch.randn(2, size, dtype=torch.float64)
    if size > 2:
        logits[0, 0], logits[0, 1] = math.inf, -math.inf
    found, bulk = log_mass(logits), bulk_mass(logits)
    for row in range(2):
        exact = ball_arithmetic.poisson_binomial(logits[row]).log_prob
        possible = exact > -math.inf
        assert torch.equal(found[row] > -math.inf, possible)
        assert (found[row] - exact)[possible].abs().max() < 1e-10
        assert (bulk[row] - exact.exp()).abs().max() < 1e-14


def test_tails_of_4096_trials():
    logits = torch.stack([torch.randn(4096), 100 * torch.rand(4096) - 50]).double()
    found = log_mass(logits)
    for row in range(2):
        exact = ball_arithmetic.poisson_binomial(logits[row])
        assert (found[row] - exact.log_prob).abs().max() < 1e-9


def test_derivatives():
    logits = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_mass, logits)
    assert torch.autograd.gradgradcheck(log_mass, logits)
    clamped = torch.tensor([[math.inf, 0.5, -math.inf]], requires_grad=True, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(log_mass(clamped)[0, 1:3].sum(), clamped)
    assert gradient.isfinite().all() and gradient[0, [0, 2]].abs().max() < 1e-12


def test_vmap():
    logits = torch.randn(3, 2, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(log_mass)(logits)[1], log_mass(logits[1]))
