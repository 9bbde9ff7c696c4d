"""Shares of draws, against exact log-probabilities."""

import pickle

import pyro.distributions as dist
import pytest
import torch

from pyro_structured.distributions import EstimateWarning, RandOM
from pyro_structured.inference import PlainMonteCarlo
from pyro_structured.structures import TopK

pytestmark = pytest.mark.statistical

LOC = torch.tensor([0.0, 1.0, 0.3, -0.7]).double()


def test_against_exact():
    torch.manual_seed(0)
    model = RandOM(dist.Normal(LOC, 1.0).to_event(1), TopK(4, 2), estimator=PlainMonteCarlo(20_000))
    values = model.enumerate_support()
    value, error = model.estimate_log_prob(values)
    exact = model.log_prob(values)
    assert ((value - exact).abs() < 6 * error).all() and (value != exact).all()
    expected = ((1 - exact.exp()) / (20_000 * exact.exp())).sqrt()
    torch.testing.assert_close(error, expected, rtol=0.1, atol=0)


def test_the_costs_are_those_that_hit():
    torch.manual_seed(0)
    base, problem, value = dist.Normal(LOC, 1.0).to_event(1), TopK(4, 2), torch.tensor([1.0, 0.0, 0.0, 1.0])
    found = PlainMonteCarlo(100).estimate(base, problem, value)
    hit = (problem.solve(found.costs) == value).all(-1)
    assert torch.equal(found.log_weights == 0, hit) and torch.equal(found.log_weights == -torch.inf, ~hit)
    assert found.log_prob.item() == pytest.approx(hit.double().mean().log().item())


def test_nothing_found():
    """Neither an estimate nor a gradient."""
    loc = torch.tensor([0.0, 50.0], dtype=torch.double, requires_grad=True)
    model = RandOM(dist.Normal(loc, 1.0).to_event(1), TopK(2, 1), estimator=PlainMonteCarlo(10))
    with pytest.warns(EstimateWarning):
        value, error = model.estimate_log_prob(torch.tensor([0.0, 1.0]))
    assert value == -torch.inf and error == torch.inf
    value.backward()
    assert (loc.grad == 0).all()


def test_arguments():
    assert repr(pickle.loads(pickle.dumps(PlainMonteCarlo(7)))) == "PlainMonteCarlo(num_samples=7)"
    for wrong in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"num_samples: expected an integer of at least 1, got {wrong!r}"):
            PlainMonteCarlo(wrong)
