"""Results of chains as ArviZ reads them."""

import pickle
import sys
from unittest import mock

import arviz
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, Predictive

import pyro_structured.distributions as sdist
from pyro_structured.inference import BinaryGibbs, ConstrainedSlice, Gibbs, to_arviz
from pyro_structured.optima.structures.matching import Matching

SEEN = torch.tensor([0.5, 1.0, -0.5])


def model(y, mask=True):
    on = pyro.sample("on", dist.Bernoulli(0.5).expand([2]).to_event(1))
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.deterministic("sum", x + on.sum(-1))
    pyro.factor("weight", 0.1 * x)
    with pyro.plate("rows", 3), pyro.poutine.mask(mask=mask):
        pyro.sample("y", dist.Normal(x + on.sum(-1), 1.0), obs=y)


@pytest.fixture
def mcmc():
    nuts = NUTS(model, step_size=0.5, adapt_step_size=False, max_tree_depth=2)
    # One after the other, on any machine.
    with mock.patch("pyro.infer.mcmc.api.mp.cpu_count", lambda: 1):
        chain = MCMC(Gibbs([(BinaryGibbs(model), ["on"]), (nuts, None)]), 5, 2, num_chains=2, disable_progbar=True)
    chain.run(SEEN)
    return chain


pytestmark = pytest.mark.filterwarnings("ignore:num_chains=2 is more than available_cpu")


def test_groups(mcmc):
    draws = mcmc.get_samples()
    predicted = Predictive(pyro.poutine.uncondition(model), draws)(SEEN)["y"]
    found = to_arviz(mcmc, {"y": predicted}, ["y"], coords={"row": ["a", "b", "c"]}, dims={"y": ["row"]})
    grouped = mcmc.get_samples(group_by_chain=True)
    for name, value in grouped.items():
        np.testing.assert_array_equal(found.posterior[name].values, value.numpy())
    assert set(found.posterior.data_vars) == {"on", "x"} and set(found.observed_data.data_vars) == {"y"}
    np.testing.assert_array_equal(found.observed_data["y"].values, SEEN.numpy())
    assert found.sample_stats["diverging"].shape == (2, 5)
    np.testing.assert_array_equal(found.posterior_predictive["y"].values, predicted.reshape(2, 5, 3).numpy())
    expected = dist.Normal((grouped["x"] + grouped["on"].sum(-1)).unsqueeze(-1), 1.0).log_prob(SEEN)
    np.testing.assert_allclose(found.log_likelihood["y"].values, expected.numpy(), rtol=1e-5)
    assert found.log_likelihood["y"].dims == ("chain", "draw", "row")


def test_divergences_of_all_kernels(mcmc):
    mcmc._diagnostics[0]["divergences"], mcmc._diagnostics[0]["NUTS 2 divergences"] = [1], [3]
    mcmc._diagnostics[1]["divergences"] = []
    expected = [[False, True, False, True, False], [False] * 5]
    assert to_arviz(mcmc).sample_stats["diverging"].values.tolist() == expected


@pytest.mark.skipif(not hasattr(arviz, "concat"), reason="xarray concatenates results of ArviZ 1")
def test_chains_of_several_programs(mcmc):
    """Results can be sent to another process, and be put together there."""
    parts = [pickle.loads(pickle.dumps(to_arviz(mcmc))) for _ in range(2)]
    merged = arviz.concat(*parts, dim="chain")
    expected = mcmc.get_samples(group_by_chain=True)["x"].repeat(2, 1)
    assert np.array_equal(merged.posterior["x"].values, expected) and merged.posterior.chain.values.tolist() == [
        0,
        1,
        2,
        3,
    ]
    assert merged.sample_stats["diverging"].shape == (4, 5)
    assert torch.equal(torch.tensor(merged.observed_data["y"].values), SEEN)


def test_kernels_without_divergences():
    chain = MCMC(BinaryGibbs(lambda: pyro.sample("x", dist.Bernoulli(0.5))), 3, 0, disable_progbar=True)
    chain.run()
    assert not hasattr(to_arviz(chain), "sample_stats")


def test_masked_rows_count_nothing(mcmc):
    mcmc._kwargs = {"mask": torch.tensor([True, False, True])}
    found = to_arviz(mcmc, log_likelihood=["y"]).log_likelihood["y"].values
    assert (found[..., 1] == 0).all() and (found[..., 0] != 0).all()


def optima(y, w=None):
    costs = pyro.sample("costs", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    pyro.sample("best", sdist.Argmin(costs, Matching(3)), obs=y)
    pyro.sample("other", sdist.RandOM(dist.Normal(costs, 1.0).to_event(2), Matching(3)), obs=y)


def test_optima_are_refused():
    chain = MCMC(Gibbs([(ConstrainedSlice(optima), None)]), 2, 0, disable_progbar=True)
    chain.run(torch.tensor([0, 1, 2]))
    found = to_arviz(chain)
    assert found.posterior["costs"].shape == (1, 2, 3, 3) and "other_costs" in found.posterior
    with pytest.raises(ValueError, match="log_likelihood: expected sites with .*, got 'other': log_prob: the prob"):
        to_arviz(chain, log_likelihood=["other"])
    with pytest.raises(ValueError, match="log_likelihood: expected sites with .*, got 'best': an Argmin is certain"):
        to_arviz(chain, log_likelihood=["best"])


@pytest.mark.parametrize("names", [["x"], ["nonsense"], ["weight"], ["sum"], "y"])
def test_sites_that_are_not_observed(mcmc, names):
    with pytest.raises(ValueError, match=r"log_likelihood: expected a list of observed sites, \['y'\], got"):
        to_arviz(mcmc, log_likelihood=names)


def test_other_errors(mcmc, monkeypatch):
    with pytest.raises(ValueError, match="posterior_predictive: expected 10 draws of 'y', .* got 4"):
        to_arviz(mcmc, {"y": torch.zeros(4, 3)})
    for name in ("posterior_predictive", "coords", "dims"):
        with pytest.raises(ValueError, match=f"{name}: expected a mapping of names, or None, got"):
            to_arviz(mcmc, **{name: [1]})
    with pytest.raises(ValueError, match="posterior_predictive: expected a tensor of draws of 'y', got 1.0"):
        to_arviz(mcmc, posterior_predictive={"y": 1.0})
    with pytest.raises(ValueError, match="log_likelihood: expected a list of observed sites, .*, got 3"):
        to_arviz(mcmc, log_likelihood=3)
    with pytest.raises(ValueError, match="mcmc: expected a pyro.infer.MCMC, got 3"):
        to_arviz(3)
    with pytest.raises(ValueError, match="mcmc: expected a finished run, got none"):
        to_arviz(MCMC(NUTS(model), 3))
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install pyro-structured\[arviz\]"):
        to_arviz(mcmc)
