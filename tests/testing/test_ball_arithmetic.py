"""Ball arithmetic against enumeration where that is possible, and closed forms where it is not."""

import math

import pytest
import torch

from pyro_structured.testing import ball_arithmetic, brute_force

NESTED = [[0, 2], [1], [], [0, 1, 2, 3], [2, 0]]
TABLE_SIZE = 14


def parameters(seed, clamp=False, forbid=False):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(5, generator=generator, dtype=torch.float64)
    f = 3 * torch.randn(TABLE_SIZE, generator=generator, dtype=torch.float64)
    if clamp:
        x[1], x[4] = math.inf, -math.inf
    if forbid:
        f[[0, 8, 12]] = -math.inf
    return x, f


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("forbid", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_enumeration_agrees(seed, clamp, forbid):
    x, f = parameters(seed, clamp, forbid)
    found = ball_arithmetic.beliefs(x, f, NESTED)
    tolerance = {"rtol": 1e-13, "atol": 1e-13}
    torch.testing.assert_close(found.log_partition, brute_force.log_partition(x, f, NESTED), **tolerance)
    torch.testing.assert_close(found.marginal_logits, brute_force.marginal_logits(x, f, NESTED), **tolerance)
    torch.testing.assert_close(found.count_marginals, brute_force.count_marginals(x, f, NESTED), **tolerance)
    assert ball_arithmetic.log_partition(x, f, NESTED) == found.log_partition


@pytest.mark.parametrize("forbid", [False, True])
def test_hessian_vector_product(forbid):
    x, f = parameters(0, forbid=forbid)
    along = torch.randn_like(x), torch.randn_like(f)
    leaves = x.requires_grad_(), f.requires_grad_()
    gradient = torch.autograd.grad(brute_force.log_partition(*leaves, NESTED), leaves, create_graph=True)
    slope = sum((g * v).sum() for g, v in zip(gradient, along, strict=True))
    expected = torch.autograd.grad(slope, leaves)
    found = ball_arithmetic.hessian_vector_product(x, f, along, NESTED)
    for actual, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-12, atol=1e-13)


def test_many_variables_with_a_closed_form():
    """Independent variables: the posterior is the prior, and log Z is a sum."""
    x = torch.linspace(-50.0, 50.0, 700, dtype=torch.float64)
    found = ball_arithmetic.beliefs(x, torch.zeros(701))
    expected = sum(math.log1p(math.exp(-abs(v))) + max(v, 0.0) for v in x.tolist())
    assert math.isclose(found.log_partition.item(), expected, rel_tol=1e-15)
    torch.testing.assert_close(found.marginal_logits, x, rtol=1e-15, atol=1e-15)
    assert math.isclose(found.count_marginals.sum().item(), 1.0, abs_tol=1e-13)


def test_poisson_binomial():
    found = ball_arithmetic.poisson_binomial(torch.zeros(1000))
    exact = [math.log(math.comb(1000, k)) - 1000 * math.log(2) for k in range(1001)]
    torch.testing.assert_close(found.log_prob, torch.tensor(exact, dtype=torch.float64), rtol=1e-14, atol=1e-13)
    below = torch.logcumsumexp(found.log_prob, -1)
    torch.testing.assert_close(found.log_cdf, below.clamp(max=0.0), rtol=1e-12, atol=1e-12)
    # By symmetry P(K > k) = P(K <= 999 - k).
    torch.testing.assert_close(found.log_survival[:-1], found.log_cdf[:-1].flip(0), rtol=1e-15, atol=0.0)
    assert found.log_survival[-1] == -math.inf
    clamped = ball_arithmetic.poisson_binomial(torch.tensor([math.inf, 0.0, -math.inf]))
    half = -math.log(2)
    assert clamped.log_prob.tolist() == [-math.inf, half, half, -math.inf]
    assert clamped.log_cdf.tolist() == [-math.inf, half, 0.0, 0.0]
    assert clamped.log_survival.tolist() == [0.0, half, -math.inf, -math.inf]


def test_low_precision_is_refused():
    x, f = parameters(0)
    with pytest.raises(ArithmeticError, match="precision: expected enough bits"):
        ball_arithmetic.beliefs(x, f, NESTED, precision=60)


def test_empty_support():
    impossible = torch.full((6,), -math.inf)
    assert ball_arithmetic.log_partition(torch.zeros(5), impossible) == -math.inf
    with pytest.raises(ValueError, match="count_logits: expected at least one vector of positive probability"):
        ball_arithmetic.beliefs(torch.zeros(5), impossible)


def test_wrong_shapes():
    with pytest.raises(ValueError, match="count_logits: expected 6 numbers, got 5"):
        ball_arithmetic.log_partition(torch.zeros(5), torch.zeros(5))
    with pytest.raises(ValueError, match=r"without batch axes, got shapes \(2, 5\) and \(6,\)"):
        ball_arithmetic.log_partition(torch.zeros(2, 5), torch.zeros(6))
