import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.foundation.ops import log_space
from pyro_structured.foundation.ops.log_space import centre_tables, log_cumulative_sums, safe_log


def test_every_table_loses_its_own_largest_entry():
    table = torch.tensor([[1.0, 3.0, -math.inf, 5.0, -2.0], [0.0, -math.inf, -math.inf, -math.inf, -math.inf]])
    found, levels = centre_tables(table, [0, 1, 1])
    assert found.tolist() == [[0.0, 0.0, -math.inf, 0.0, -7.0], [0.0] + 4 * [-math.inf]]
    assert levels.tolist() == [[1.0, 3.0, 5.0], [0.0, 0.0, 0.0]]
    assert centre_tables(table[:, :0], [])[1].tolist() == [[], []]


def test_it_is_a_constant_of_differentiation():
    table = torch.randn(5, requires_grad=True)
    (gradient,) = torch.autograd.grad(centre_tables(table, [4])[0][2], table)
    assert gradient.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_large_tables_are_treated_one_after_the_other(monkeypatch):
    table = torch.randn(2, 3, 9, dtype=torch.double, requires_grad=True)
    with torch.no_grad():
        table[0, 1, 2:5] = -math.inf
    expected = centre_tables(table, [1, 2, 3])
    monkeypatch.setattr(log_space, "LARGE_TABLE", 1)
    found = centre_tables(table, [1, 2, 3])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    (gradient,) = torch.autograd.grad(found[0][0, 0].sum(), table)
    assert torch.equal(gradient[0, 0], torch.ones(9).double()) and not gradient[1:].any()


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@given(st.integers(0, 10**6))
def test_cumulative_sums(seed):
    """Terms of any size, in any order, some of which are nothing: values, and derivatives in both modes."""
    generator = torch.Generator().manual_seed(seed)
    size = int(torch.randint(1, 10, (), generator=generator))
    terms = torch.randn(2, size, dtype=torch.double, generator=generator) * 10.0 ** (seed % 4)
    terms = terms.masked_fill(torch.rand(2, size, generator=generator) < 0.2, -math.inf)
    lower = torch.ones(size, size, dtype=torch.bool).tril()
    exact = terms.unsqueeze(-2).masked_fill(~lower, -math.inf).logsumexp(-1)
    shares = (terms.unsqueeze(-2).masked_fill(~lower, -math.inf) - exact.unsqueeze(-1)).exp().nan_to_num(0.0)
    torch.testing.assert_close(log_cumulative_sums(terms), exact)
    for derivative in (torch.func.jacrev, torch.func.jacfwd):
        found = torch.vmap(derivative(log_cumulative_sums))(terms).where(terms.isfinite().unsqueeze(-2), 0.0)
        torch.testing.assert_close(found, shares, rtol=1e-12, atol=1e-15)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(terms, torch.ones_like(terms))
        tangent = torch.autograd.forward_ad.unpack_dual(log_cumulative_sums(dual)).tangent
    torch.testing.assert_close(tangent[exact > -math.inf], torch.ones_like(exact[exact > -math.inf]))


def test_cumulative_sums_of_nothing():
    assert log_cumulative_sums(torch.zeros(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("number", [1e-300, 1e-160, 1.0, 1e300])
def test_second_derivatives_of_logarithms_of_small_numbers(number):
    """With respect to the logarithm, they are zero."""
    logits = torch.tensor([number, 0.0], dtype=torch.double).log()
    hessian = torch.autograd.functional.hessian(lambda x: safe_log(x.exp()).sum(), logits)
    assert hessian.abs().max() < 1e-12
