"""Reductions over segments against loops."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from pyro_structured.exchangeable.ops.segments import segment_argmax, segment_logsumexp, segment_ranks


@given(st.integers(0, 2**16), st.integers(1, 8))
def test_loops(seed, size):
    generator = torch.Generator().manual_seed(seed)
    terms = 100 * torch.randn(2, size, generator=generator, dtype=torch.float64)
    terms = terms.masked_fill(torch.rand(terms.shape, generator=generator) < 0.2, -torch.inf)
    segments = torch.randint(3, (2, size), generator=generator)
    keys = torch.rand(2, size, generator=generator)
    sums, best = segment_logsumexp(terms, segments, 3), segment_argmax(terms, segments, 3)
    ranks = segment_ranks(keys, segments)
    for row in range(2):
        for segment in range(3):
            members = (segments[row] == segment).nonzero().squeeze(-1)
            torch.testing.assert_close(sums[row, segment], terms[row, members].logsumexp(-1))
            if not len(members):
                assert best[row, segment] == size
                continue
            assert best[row, segment] == members[terms[row, members].argmax()]
            assert torch.equal(ranks[row, members], keys[row, members].argsort().argsort())


def test_derivatives():
    terms = torch.randn(5, dtype=torch.float64, requires_grad=True)
    segments = torch.tensor([0, 2, 0, 2, 2])
    assert gradcheck(lambda t: segment_logsumexp(t, segments, 4)[[0, 2]], terms)
    nothing = torch.full((2,), -torch.inf, dtype=torch.float64, requires_grad=True)
    found = segment_logsumexp(nothing, torch.tensor([0, 0]), 1)
    assert found == -torch.inf and torch.autograd.grad(found.exp().sum(), nothing)[0].isfinite().all()
