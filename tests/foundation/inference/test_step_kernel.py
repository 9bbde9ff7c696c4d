"""A kernel that says no more than how it starts and goes on keeps the whole contract."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_structured.inference import Gibbs, StepKernel
from pyro_structured.testing import check_kernel


def model(y):
    rate = pyro.sample("rate", dist.Gamma(3.0, 2.0))
    x = pyro.sample("x", dist.Gamma(2.0, rate))
    pyro.sample("y", dist.Poisson(x), obs=y)


def draw():
    rate = dist.Gamma(3.0, 2.0).sample()
    x = dist.Gamma(2.0, rate).sample()
    return {"rate": rate, "x": x}, (dist.Poisson(x).sample(),)


class Conjugate(StepKernel):
    """Both rates from their conditional distributions; values are positive, as in the model."""

    def prepare(self, model, names, warmup_steps, args, kwargs):
        (self.y,) = args

    def step(self, values):
        x = dist.Gamma(2.0 + self.y, values["rate"] + 1.0).sample()
        return {"rate": dist.Gamma(5.0, 2.0 + x).sample(), "x": x}


def test_contract():
    check_kernel(Conjugate, model, draw, {"rate": torch.tensor(torch.nan)}, num_replicates=50, contexts=["fork"])


def test_reports_nothing_unless_overridden():
    mcmc = MCMC(Conjugate(model), num_samples=4, warmup_steps=0, disable_progbar=True)
    mcmc.run(torch.tensor(2.0))
    assert mcmc.diagnostics().keys() == {"rate", "x"}


class OneSite(StepKernel):
    """Draws one site given the other, which only the model that it is given knows."""

    def prepare(self, model, names, warmup_steps, args, kwargs):
        (self.name,) = names
        self.live, self.args = model, args

    def step(self, values):
        assert list(values) == [self.name]
        nodes = pyro.poutine.trace(self.live).get_trace(*self.args).nodes
        if self.name == "x":
            return {"x": dist.Gamma(2.0 + self.args[0], nodes["rate"]["value"] + 1.0).sample()}
        return {"rate": dist.Gamma(5.0, 2.0 + nodes["x"]["value"]).sample()}


def test_sees_the_present_values_of_others():
    pyro.set_rng_seed(0)
    kernel = Gibbs([(OneSite(model), ["x"]), (OneSite(model), ["rate"])])
    mcmc = MCMC(kernel, num_samples=2_000, warmup_steps=10, disable_progbar=True)
    mcmc.run(torch.tensor(4.0))
    # With the rate summed out, p(x | y) is proportional to this.
    x = torch.linspace(0, 60, 100_001, dtype=torch.double)
    weight = x**5 * torch.exp(-x) / (2 + x) ** 5
    found, expected = float(mcmc.get_samples()["x"].double().mean()), float((weight * x).sum() / weight.sum())
    assert found == pytest.approx(expected, abs=0.2)


def test_model_that_is_none():
    with pytest.raises(ValueError, match="model: expected a Pyro model, got None"):
        Conjugate(None)
