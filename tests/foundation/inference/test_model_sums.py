"""Sums of draws, by which two models are told apart."""

import math

import pyro
import pyro.distributions as dist
import torch

from pyro_structured.foundation.inference.checkpoint import model_sums, other_sites


def counts(probability=0.5):
    with pyro.plate("rows", 100_000):
        pyro.sample("count", dist.Bernoulli(probability), obs=torch.ones(100_000))


def test_sums_are_those_of_the_model():
    """From one seed, whatever comes before and after."""
    torch.manual_seed(3)
    before, found = torch.get_rng_state(), model_sums(counts, (), {})
    assert torch.equal(torch.get_rng_state(), before)
    assert found.keys() == {"rows", "count"} and 49_000 < found["count"] < 51_000
    torch.rand(5)
    assert model_sums(counts, (), {}) == found != model_sums(counts, (0.51,), {})
    assert other_sites(model_sums(counts, (0.51,), {}), found) == ["count"]
    # As rounding on another machine might change them.
    assert other_sites({**found, "count": found["count"] + 3}, found) == []
    assert other_sites({"count": math.nan}, {"count": math.nan}) == []
    assert other_sites({"count": math.nan}, {"count": 0.0}) == ["count"]


def test_models_that_cannot_draw_have_no_sums():
    def improper():
        pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))

    for model in (None, improper):
        assert model_sums(model, (), {}) == {} and other_sites({}, {"x": 1.0}) == []
