"""Mass functions of sums of independent variables against ball arithmetic, by all ways to them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.counts.ops import poisson_binomial
from pyro_structured.counts.ops.poisson_binomial import bulk_mass, log_mass, probs_to_logits
from pyro_structured.testing import ball_arithmetic


@pytest.fixture(params=["compiled", "direct", "windows"])
def loops(request, monkeypatch, hide_numba):
    """Ways to the mass function."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    else:
        hide_numba()
    monkeypatch.setattr(poisson_binomial, "DIRECT_TERMS", math.inf if request.param == "direct" else 0)


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("size", [1, 7, 150])
def test_relative_accuracy_at_every_count(size, scale, loops):
    logits = scale * torch.randn(2, size, dtype=torch.float64)
    if size > 2:
        logits[0, 0], logits[0, 1] = math.inf, -math.inf
    found, bulk = log_mass(logits), bulk_mass(logits)
    for row in range(2):
        exact = ball_arithmetic.poisson_binomial(logits[row]).log_prob
        possible = exact > -math.inf
        assert torch.equal(found[row] > -math.inf, possible)
        assert ((found[row] - exact)[possible].abs() <= 1e-10 + 1e-15 * exact[possible].abs()).all()
        assert (bulk[row] - exact.exp()).abs().max() < 1e-14


def test_tails_of_4096_trials():
    logits = torch.stack([torch.randn(4096), 100 * torch.rand(4096) - 50]).double()
    found = log_mass(logits)
    for row in range(2):
        exact = ball_arithmetic.poisson_binomial(logits[row])
        assert (found[row] - exact.log_prob).abs().max() < 1e-9


def test_odds_beyond_the_range_of_numbers():
    """Rows that compiled loops leave to others, in the midst of some that they solve; and no rows."""
    logits = torch.tensor([[1.0, -2.0, 0.5], [900.0, -800.0, 0.0], [math.inf, -1.0, -math.inf]]).double()
    found = log_mass(logits)
    assert log_mass(logits[:0]).shape == (0, 4)
    for row in range(3):
        exact = ball_arithmetic.poisson_binomial(logits[row], precision=4000).log_prob
        torch.testing.assert_close(found[row], exact, rtol=1e-14, atol=1e-14)


@given(st.integers(0, 10**6))
def test_compiled_loops_keep_the_range_of_numbers(seed):
    """Scales that have to be chosen anew often, as odds jump from tiny to large ones."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 120))
    centre, spread = rng.choice([0.0, 40.0, -200.0, 500.0]), rng.choice([0.0, 1.0, 60.0])
    logits = centre * np.sign(rng.standard_normal(size)) ** rng.integers(1, 3) + spread * rng.standard_normal(size)
    logits = torch.from_numpy(np.sort(logits) if rng.random() < 0.5 else logits).unsqueeze(0)
    exact = ball_arithmetic.poisson_binomial(logits[0], precision=2000).log_prob
    torch.testing.assert_close(log_mass(logits)[0], exact, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize(
    "logits",
    [
        [-556.0, -658.0, -722.0],
        [297.0, -146.0, -741.0],
        [-121.0, -243.0, 202.0, -521.0, -585.0],
        [-153.0, -539.0, -347.0, -230.0],
    ],
)
def test_products_of_small_odds_keep_their_digits(logits):
    """Before they meet the ratios of scales, which bring them back to ordinary size."""
    exact = ball_arithmetic.poisson_binomial(torch.tensor(logits, dtype=torch.float64), precision=4000).log_prob
    found = log_mass(torch.tensor([logits], dtype=torch.float64))[0]
    torch.testing.assert_close(found, exact, rtol=1e-13, atol=1e-12)


def test_derivatives():
    logits = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_mass, logits)
    assert torch.autograd.gradgradcheck(log_mass, logits)
    clamped = torch.tensor([[math.inf, 0.5, -math.inf]], requires_grad=True, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(log_mass(clamped)[0, 1:3].sum(), clamped)
    assert gradient.isfinite().all() and gradient[0, [0, 2]].abs().max() < 1e-12


def change_of_logits(logits, count):
    """Derivative of the log-probability of a count, from all vectors."""
    values = torch.cartesian_prod(*[torch.arange(2.0)] * len(logits)).reshape(-1, len(logits)).double()
    values = values[values.sum(-1) == count]
    signs = 2 * values - 1
    posterior = torch.softmax(torch.nn.functional.logsigmoid(signs * logits).sum(-1), 0)
    return posterior @ values - torch.sigmoid(logits)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@given(st.integers(0, 10**6))
def test_derivatives_with_nearly_certain_trials(seed):
    """Also of counts that contradict many of them."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    scales = rng.choice([1.0, 20.0, 45.0, 60.0, 300.0], size)
    logits = torch.from_numpy(scales * rng.choice([-1, 1], size) + rng.standard_normal(size))
    if rng.random() < 0.3:
        logits[0] = math.inf * logits[0].sign()
    reverse, forward = torch.func.jacrev(log_mass)(logits[None])[0], torch.func.jacfwd(log_mass)(logits[None])[0]
    for count in range(size + 1):
        if log_mass(logits[None])[0, count] > -math.inf:
            exact = change_of_logits(logits, count)
            # Derivatives with respect to certainties are those of probabilities.
            for found in (reverse[count, 0], forward[count, 0]):
                torch.testing.assert_close(found[logits.isfinite()], exact[logits.isfinite()], rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_second_derivatives_with_nearly_certain_trials():
    """Those of log P(1): the covariance of two trials given that one of them succeeds, which are else certain."""
    logits = torch.tensor([[45.0, 40.0]], dtype=torch.float64)
    share = torch.sigmoid(torch.tensor(5.0, dtype=torch.float64))
    covariance = share * (1 - share) * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    for derivative in (torch.func.jacrev, torch.func.jacfwd):
        hessian = derivative(torch.func.jacrev(lambda x: log_mass(x)[0, 1]))(logits)
        torch.testing.assert_close(hessian.reshape(2, 2), covariance, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "probs",
    [[1.0, 0.3, 0.2], [0.0, 0.3], [1.0, 0.0, 0.5, 1e-30], [1.0, 1 - 1e-12, 0.5], [1.0, 1.0, 0.5], [1e-200, 0.5, 1.0]],
)
def test_derivatives_with_respect_to_probabilities_of_zero_and_one(probs, dtype):
    """In the probability of a trial, that of a count is a straight line."""
    probs = torch.tensor(probs, dtype=dtype)
    size = len(probs)

    def mass(probs):
        return log_mass(probs_to_logits(probs).double()[None])[0]

    reverse, forward = torch.func.jacrev(mass)(probs).double(), torch.func.jacfwd(mass)(probs).double()
    at = mass(probs).exp()
    for trial in range(size):
        others = torch.cat([probs[:trial], probs[trial + 1 :]])
        without = torch.nn.functional.pad(mass(others).exp(), (1, 1))
        exact = (without[:-1] - without[1:]) / at
        for found in (reverse, forward):
            tolerance = 1e-5 if dtype == torch.float32 else 1e-9
            assert_close = torch.testing.assert_close
            assert_close(found[at > 0, trial], exact[at > 0], rtol=tolerance, atol=tolerance)


def test_vmap():
    logits = torch.randn(3, 2, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(log_mass)(logits)[1], log_mass(logits[1]))
