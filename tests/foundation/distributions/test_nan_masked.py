"""NaN entries are marginalised inside of pyro.sample."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.optim import Adam

from pyro_structured.distributions import KSubset, NanMasked, RecursiveCardinality
from pyro_structured.testing import brute_force


def test_every_pattern_of_missing_entries():
    x, f = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    d = NanMasked(RecursiveCardinality(x, f))
    for observed in brute_force.binary_vectors(3).bool():
        for vector in brute_force.binary_vectors(3):
            value = vector.masked_fill(~observed, math.nan)
            expected = brute_force.marginal_log_prob(vector, observed, x, f)
            torch.testing.assert_close(d.log_prob(value), expected)


def test_rows_miss_different_entries():
    x, f = torch.randn(3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    value = torch.tensor([[1.0, math.nan, 0.0], [math.nan, math.nan, math.nan], [1.0, 1.0, 0.0]])
    expected = brute_force.marginal_log_prob(value, ~value.isnan(), x, f)
    torch.testing.assert_close(NanMasked(RecursiveCardinality(x, f)).log_prob(value), expected)


def test_complete_values_of_any_dtype():
    d = RecursiveCardinality(torch.randn(3), torch.randn(4))
    for dtype in (torch.bool, torch.long, torch.float64):
        value = torch.tensor([1, 0, 1]).to(dtype)
        torch.testing.assert_close(NanMasked(d).log_prob(value), d.log_prob(value))


def test_gradients_ignore_missing_entries():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    f = torch.randn(4, dtype=torch.float64, requires_grad=True)
    value = torch.tensor([[1.0, math.nan, 0.0], [math.nan] * 3], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *p: NanMasked(RecursiveCardinality(*p)).log_prob(value), (x, f))
    nothing = NanMasked(RecursiveCardinality(x, f)).log_prob(value[1])
    gradients = torch.autograd.grad(nothing, (x, f))
    assert nothing.abs() < 1e-12 and all(g.abs().max() < 1e-12 for g in gradients)


def test_learning_from_incomplete_data():
    torch.manual_seed(0)
    truth = torch.tensor([2.0, 0.0, 0.0, -2.0])
    data = KSubset(truth, 2).sample((600,))
    data[torch.rand(data.shape) < 0.3] = math.nan

    def model():
        logits = pyro.sample("logits", dist.Normal(torch.zeros(4), 3.0).to_event(1))
        with pyro.plate("data", len(data)):
            pyro.sample("y", NanMasked(KSubset(logits, 2)), obs=data)

    guide = AutoDelta(model)
    svi = SVI(model, guide, Adam({"lr": 0.2}), Trace_ELBO())
    for _ in range(50):
        svi.step()
    found = guide.median()["logits"].detach()
    assert (found - found.mean() - truth).abs().max() < 0.6


def test_impossible_evidence():
    d = NanMasked(KSubset(torch.zeros(3), 1), validate_args=False)
    assert d.log_prob(torch.tensor([1.0, 1.0, math.nan])) == -math.inf
    assert d.log_prob(torch.tensor([0.5, math.nan, math.nan])) == -math.inf
    with pytest.raises(ValueError, match="within the support"):
        NanMasked(KSubset(torch.zeros(3), 1)).log_prob(torch.tensor([0.5, math.nan, math.nan]))


@pytest.mark.parametrize(
    "base, name",
    [
        (dist.Normal(torch.zeros(3), 1.0).to_event(1), "Independent"),
        (dist.Bernoulli(torch.zeros(3)), "Bernoulli"),
        (KSubset, "<class .*KSubset"),
        (None, "None"),
    ],
)
def test_bad_base(base, name):
    message = (
        r"base_dist: expected a distribution of vectors, with one event axis, and with a method "
        r"marginal_log_prob\(value, observed\), got "
    )
    with pytest.raises(ValueError, match=message + name):
        NanMasked(base)
