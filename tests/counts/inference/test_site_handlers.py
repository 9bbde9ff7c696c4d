"""Latent matrices, exact or too large for exact draws, in StructuredGibbs."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_structured.counts.inference import site_handlers
from pyro_structured.distributions import OverlappingCardinality
from pyro_structured.inference import StructuredGibbs
from pyro_structured.structures import NestedSubsets
from tests.counts.matrices import matching

pytestmark = pytest.mark.statistical


@pytest.mark.slow
@pytest.mark.parametrize("most_states", [2**20, 1])
def test_latent_matrices_in_a_plate(most_states, monkeypatch):
    """Three matrices, observed with noise of unknown mean: posterior marginals given the mean are those of reweight."""
    monkeypatch.setattr(site_handlers, "MOST_STATES", most_states)
    pyro.set_rng_seed(0)
    prior = matching(3, (3, 4), (1, 2), (1,), seed=4)
    noisy = prior.sample() + torch.randn(3, 3, 4)

    def model():
        with pyro.plate("rows", 3):
            z = pyro.sample("z", prior)
            pyro.sample("noisy", dist.Normal(z, 1.0).to_event(2), obs=noisy)

    off, on = (dist.Normal(level, 1.0).log_prob(noisy) for level in (0.0, 1.0))
    expected = prior.reweight(off, on).marginals
    mcmc = MCMC(StructuredGibbs(model), num_samples=200, warmup_steps=10, disable_progbar=True)
    mcmc.run()
    drawn = mcmc.get_samples()["z"]
    deviation = (expected * (1 - expected) / 200).sqrt()
    assert bool(((drawn.mean(0) - expected).abs() <= 5 * deviation + 1e-9).all())


def test_latent_vectors():
    pyro.set_rng_seed(1)
    ring = [NestedSubsets([[0, 1], [2, 3]], 4), NestedSubsets([[1, 2], [3, 0]], 4)]
    prior = OverlappingCardinality(
        torch.zeros(4), [(subsets, torch.tensor([0.0, 1.0, 0.0]).repeat(2)) for subsets in ring]
    )

    def model():
        z = pyro.sample("z", prior)
        pyro.sample("noisy", dist.Normal(z, 0.5).to_event(1), obs=torch.tensor([1.0, 0.2, 0.7, 0.0]))

    mcmc = MCMC(StructuredGibbs(model), num_samples=500, warmup_steps=10, disable_progbar=True)
    mcmc.run()
    off, on = (dist.Normal(level, 0.5).log_prob(torch.tensor([1.0, 0.2, 0.7, 0.0])) for level in (0.0, 1.0))
    torch.testing.assert_close(mcmc.get_samples()["z"].mean(0), prior.reweight(off, on).marginals, rtol=0, atol=0.08)
