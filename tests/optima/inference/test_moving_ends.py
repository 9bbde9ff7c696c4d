"""Costs between ends that parameters move: the right maximum, or a refusal by name."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.optim import Adam
from torch.distributions import transforms

from pyro_structured.distributions import Argmin, RandOM, TruncatedNormal
from pyro_structured.inference import MCEM, HardEM, MaxMargin, PerturbAndMAP, PlainMonteCarlo
from pyro_structured.structures import TopK

pytestmark = pytest.mark.statistical

CHOICE = TopK(3, 1)
Y = torch.eye(3)[[0, 0, 0, 1, 2] * 4]
ZERO, ONE = torch.zeros(3), torch.ones(3)
BEST = torch.tensor([1.327, 2.792, 2.792])


def no_guide(*args):
    pass


def uniform(high):
    return dist.Uniform(torch.zeros_like(high), high).to_event(1)


def choices():
    high = pyro.param("high", torch.full((3,), 2.0))
    with pyro.plate("rows", len(Y)):
        pyro.sample("y", RandOM(uniform(high), CHOICE), obs=Y)


@pytest.fixture(scope="module")
def exact():
    """The largest log-probability, which all multiples of these ends have."""
    logarithms = torch.zeros(3, dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.LBFGS([logarithms], max_iter=30, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        found = RandOM(uniform(logarithms.exp()), CHOICE).log_prob(torch.eye(3))
        loss = -found @ torch.tensor([0.6, 0.2, 0.2]).double()
        loss.backward()
        return loss

    optimiser.step(closure)
    return logarithms.detach().exp().float()


def test_the_exact_maximum(exact):
    assert torch.allclose(exact / exact[0], BEST / BEST[0], atol=2e-3)
    found = RandOM(uniform(exact), CHOICE).log_prob(torch.eye(3)).exp()
    assert torch.allclose(found, torch.tensor([0.6, 0.2, 0.2]), atol=1e-4)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("learner", ["SVI", "PerturbAndMAP"])
def test_learners_that_reach_it(exact, learner):
    """By the exact log-probability, or by matched moments."""
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    optim, found = Adam({"lr": 0.03}), []
    if learner == "SVI":
        steps = SVI(choices, no_guide, optim, Trace_ELBO())
    else:
        steps = PerturbAndMAP(choices, no_guide, optim, num_samples=200)
    for step in range(120):
        steps.step()
        found += [pyro.param("high").detach().clone()] if step >= 60 else []
    mean = torch.stack(found).mean(0)
    assert torch.allclose(mean / mean[0], exact / exact[0], atol=0.1)


def moving(base):
    """A model whose costs have a distribution that is a function of a parameter."""

    def model():
        high = pyro.param("high", torch.full((3,), 2.0), constraint=constraints.positive)
        with pyro.plate("rows", len(Y), subsample_size=10) as rows:
            pyro.sample("y", RandOM(base(high), CHOICE), obs=Y[rows])

    return model


def exponential(high, *parts):
    return dist.TransformedDistribution(dist.Exponential(ONE), list(parts)).to_event(1)


MOVING = {
    "uniform": uniform,
    "truncated normal": lambda high: TruncatedNormal(ONE, 1.0, 0.0, high).to_event(1),
    "exponential of uniform": lambda high: dist.TransformedDistribution(
        dist.Uniform(ZERO, high), transforms.ExpTransform()
    ).to_event(1),
    "shifted": lambda high: exponential(high, transforms.AffineTransform(high, 1.0)),
    "composed": lambda high: exponential(
        high, transforms.ComposeTransform([transforms.AffineTransform(high, 1.0), transforms.ExpTransform()])
    ),
    "mixture": lambda high: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(3, 2)), dist.Uniform(torch.zeros(3, 2), high.unsqueeze(-1) * torch.ones(2))
    ).to_event(1),
}


@pytest.mark.parametrize("name", MOVING)
def test_refusals(name):
    """With the names of the site and of the parameter; nothing is changed."""
    pyro.clear_param_store()
    learner = MCEM(moving(MOVING[name]), no_guide, Adam({"lr": 0.1}))
    with pytest.raises(NotImplementedError, match="y_costs: expected .* ends that no parameter moves.*'high'; use SVI"):
        learner.step()
    assert torch.equal(pyro.param("high"), torch.full((3,), 2.0)) and not learner.state_dict()["chains"]
    with pytest.raises(ValueError, match="base: expected costs whose support has no derivatives"):
        pyro.clear_param_store()
        high = torch.full((3,), 2.0, requires_grad=True)
        RandOM(MOVING[name](high), CHOICE, estimator=PlainMonteCarlo(10)).estimate_log_prob(Y)


def test_refusals_of_other_learners_and_models():
    """Hard EM; latent ends; costs that are named."""
    optim = Adam({"lr": 0.1})
    pyro.clear_param_store()
    with pytest.raises(NotImplementedError, match="y_costs: .* got TruncatedNormal costs, .* depend on 'high'"):
        HardEM(moving(MOVING["truncated normal"]), no_guide, optim).step()

    def latent():
        high = pyro.sample("high", dist.Gamma(5 * ONE, 2.0).to_event(1))
        with pyro.plate("rows", len(Y)):
            costs = pyro.sample("w", uniform(high))
            pyro.sample("y", Argmin(costs, CHOICE), obs=Y)

    pyro.clear_param_store()
    guide = AutoDelta(pyro.poutine.block(latent, expose=["high"]))
    with pytest.raises(NotImplementedError, match="w: .* got Uniform costs, whose ends depend on 'AutoDelta.high'"):
        MCEM(latent, guide, optim).step()
    pyro.clear_param_store()
    MaxMargin(choices, no_guide, optim).step()
    assert (pyro.param("high") != 2.0).any()


FIXED = {
    "truncated normal": lambda scale: TruncatedNormal(scale, scale, 0.0, 4.0).to_event(1),
    "exponential": lambda scale: dist.Exponential(scale).to_event(1),
    "scaled": lambda scale: exponential(scale, transforms.AffineTransform(0.0, scale)),
    "log-normal": lambda scale: dist.LogNormal(scale, scale).to_event(1),
    "weibull": lambda scale: dist.Weibull(scale, scale).to_event(1),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_ends_are_not_refused(name):
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    learner = MCEM(moving(FIXED[name]), no_guide, Adam({"lr": 0.1}))
    learner.run(3)
    assert (pyro.param("high") != 2.0).all()
