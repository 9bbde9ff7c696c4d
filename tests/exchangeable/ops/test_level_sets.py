"""Sizes of level sets against Python's integers."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.exchangeable.ops.level_sets import choose_places, log_binomial, log_multinomial, normalize


@given(st.integers(0, 2000), st.integers(-2, 2002))
def test_binomials(total, chosen):
    found = float(log_binomial(torch.tensor(total), torch.tensor(chosen), 10 + total))
    exact = math.comb(total, chosen) if 0 <= chosen <= total else 0
    assert found == -math.inf if exact == 0 else math.isclose(found, math.log(exact), rel_tol=1e-12, abs_tol=1e-10)


def test_multinomials():
    counts = torch.tensor([[2, 0, 3], [1, 1, 3], [-1, 3, 3]])
    found = log_multinomial(torch.tensor(5), counts)
    torch.testing.assert_close(found.exp(), torch.tensor([10.0, 20.0, 0.0]).double())


@given(st.integers(0, 2**16))
def test_places(seed):
    generator = torch.Generator().manual_seed(seed)
    free = torch.rand(4, 6, generator=generator) < 0.7
    first = (free.sum(-1) * torch.rand(4, generator=generator)).long()
    counts = torch.stack([first, free.sum(-1) - first], -1)
    chosen = choose_places(free, counts, torch.rand(4, 6, generator=generator))
    assert torch.equal(((chosen == 0) & free).sum(-1), first)
    assert torch.equal(((chosen == 1) & free).sum(-1), counts[:, 1])


def test_normalizing_has_finite_derivatives():
    weights = torch.tensor([0.0, -math.inf, 1.0], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(normalize(weights).exp().sum(), torch.tensor(1.0).double())
    assert torch.autograd.grad(normalize(weights)[0], weights)[0].isfinite().all()
