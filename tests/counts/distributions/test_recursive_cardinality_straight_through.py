"""Samples that carry the gradient of the marginals."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam

from pyro_structured.distributions import (
    KSubset,
    KSubsetStraightThrough,
    RecursiveCardinality,
    RecursiveCardinalityStraightThrough,
)


@pytest.mark.parametrize("sample_shape", [(), (2,), (4, 2)])
def test_gradient_is_that_of_the_marginals(sample_shape):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    f = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(*sample_shape, 3, 4, dtype=torch.float64)
    drawn = RecursiveCardinalityStraightThrough(x, f).rsample(sample_shape)
    assert drawn.shape == weights.shape and ((drawn - drawn.round()).abs() < 1e-12).all()
    found = torch.autograd.grad((drawn * weights).sum(), (x, f))
    marginals = RecursiveCardinality(x, f).marginals
    expected = torch.autograd.grad((marginals * weights).sum(), (x, f))
    for g, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(g, reference)


def test_samples_and_queries_are_those_of_the_base():
    x = torch.randn(4)
    d, base = KSubsetStraightThrough(x, 2), KSubset(x, 2)
    assert not d.sample().requires_grad and d.has_rsample
    pyro.set_rng_seed(1)
    drawn = d.rsample((5,))
    pyro.set_rng_seed(1)
    assert torch.equal(drawn, base.sample((5,)))
    assert torch.equal(d.marginals, base.marginals)
    assert type(d.expand((3,))) is KSubsetStraightThrough and d.expand((3,)).has_rsample


def test_learning_through_samples():
    """A guide over subsets is trained through its samples, to find the two large weights."""
    pyro.set_rng_seed(0)
    weights = torch.tensor([3.0, -3.0, 3.0, -3.0])

    def model():
        chosen = pyro.sample("chosen", KSubset(torch.zeros(4), 2))
        pyro.factor("score", (chosen * weights).sum(-1))

    def guide():
        logits = pyro.param("logits", torch.zeros(4))
        pyro.sample("chosen", KSubsetStraightThrough(logits, 2))

    svi = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(100):
        svi.step()
    assert KSubset(pyro.param("logits").detach(), 2).mode.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_names_say_what_is_biased():
    for cls, base in ((KSubsetStraightThrough, KSubset), (RecursiveCardinalityStraightThrough, RecursiveCardinality)):
        assert issubclass(cls, base) and cls.has_rsample and not base.has_rsample
        assert isinstance(cls, type(dist.OneHotCategoricalStraightThrough))
