import math

import hypothesis
import hypothesis.strategies as st
import torch

from pyro_structured.counts.ops import log_convolution
from pyro_structured.counts.ops.log_convolution import log_convolve, log_correlate, max_convolve
from pyro_structured.foundation.ops.log_space import logsumexp


def logarithms(size):
    number = st.one_of(st.floats(-800, 800), st.sampled_from([-math.inf, 0.0, -1e4, 1e4]))
    return st.lists(number, min_size=size, max_size=size).map(lambda x: torch.tensor(x, dtype=torch.float64))


pairs = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(lambda n: st.tuples(*map(logarithms, n)))


def reference(left, right, combine):
    size = len(left) + len(right) - 1
    terms = [[left[i] + right[k - i] for i in range(len(left)) if 0 <= k - i < len(right)] for k in range(size)]
    return torch.stack([combine(torch.stack(t)) for t in terms])


@hypothesis.given(pairs)
def test_convolutions_equal_their_definition(pair):
    left, right = pair
    expected = reference(left, right, lambda t: torch.logsumexp(t, 0))
    torch.testing.assert_close(log_convolve(left, right), expected, rtol=1e-14, atol=1e-13)
    torch.testing.assert_close(max_convolve(left, right), reference(left, right, lambda t: t.amax(0)), rtol=0, atol=0)


@hypothesis.given(pairs)
def test_correlation_is_the_adjoint_of_convolution(pair):
    left, right = pair
    total = log_convolve(left, right)
    expected = torch.stack([torch.logsumexp(total[i : i + len(right)] + right, 0) for i in range(len(left))])
    torch.testing.assert_close(log_correlate(total, right), expected, rtol=1e-14, atol=1e-13)


def test_chunks_change_nothing(monkeypatch):
    left, right = torch.randn(2, 3, 9), torch.randn(2, 3, 14)
    whole = log_convolve(left, right)
    monkeypatch.setattr(log_convolution, "CHUNK_TERMS", 40)
    torch.testing.assert_close(log_convolve(left, right), whole, rtol=0, atol=0)


def test_derivatives_are_finite_where_all_terms_are_impossible():
    terms = torch.tensor([[-math.inf, -math.inf], [0.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(
        logsumexp(terms).masked_fill(torch.tensor([True, False]), 0.0).sum(), terms, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), terms)
    assert first.isfinite().all() and second.isfinite().all()


def test_gradients():
    inputs = (torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64))
    inputs = tuple(x.requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(log_convolve, inputs)
    assert torch.autograd.gradgradcheck(log_convolve, inputs)
