"""Flips and swaps against enumeration, in and out of plates."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from pyro.ops.stats import effective_sample_size

import pyro_structured.distributions as sdist
from pyro_structured.inference import BinaryGibbs
from pyro_structured.structures import CliqueTree, Count
from pyro_structured.testing import brute_force

pytestmark = pytest.mark.statistical

VECTORS = brute_force.binary_vectors(4).float()
WEIGHTS = torch.tensor([1.0, -1.0, 0.5, 2.0])
PRIORS = {
    "fixed number": sdist.KSubset(torch.tensor([0.0, 1.0, -1.0, 0.5]), 2),
    "few numbers": sdist.RecursiveCardinality(WEIGHTS, torch.tensor([-math.inf, 0.0, 1.0, -math.inf, -math.inf])),
    "at most": sdist.RecursiveCardinality(torch.zeros(4), sdist.cardinality_potentials.at_most(4, 2)),
    "block": sdist.ExchangeableBlock(torch.tensor([0.0, 1.0, -1.0, 0.5, 0.0]), Count(4)),
    "tree": sdist.JunctionTree(torch.linspace(-1, 1, 12), CliqueTree.chain(4, 2)),
    "independent": dist.Bernoulli(torch.tensor([0.2, 0.5, 0.5, 0.9])).to_event(1),
}


def draws(model, number=20):
    mcmc = MCMC(BinaryGibbs(model), num_samples=number, warmup_steps=20, disable_progbar=True)
    mcmc.run()
    return mcmc


def check_means(found, expected):
    """Within four Monte Carlo standard errors."""
    size = effective_sample_size(found.unsqueeze(0).double() + 1e-9 * torch.randn(found.shape, dtype=torch.double))
    error = (expected * (1 - expected) / size).clamp(min=1e-6).sqrt()
    assert ((found.double().mean(0) - expected).abs() < 6 * error).all()


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name, dtype", [*((name, torch.float32) for name in PRIORS), ("few numbers", torch.float64)])
def test_posterior_of_a_vector(name, dtype):
    def model():
        x = pyro.sample("x", PRIORS[name])
        pyro.sample("y", dist.Normal(x.to(dtype) @ WEIGHTS.to(dtype), 1.0), obs=torch.tensor(1.5, dtype=dtype))

    joint = PRIORS[name].log_prob(VECTORS) + dist.Normal(VECTORS @ WEIGHTS, 1.0).log_prob(torch.tensor(1.5))
    mcmc = draws(model, 250)
    found = mcmc.get_samples()["x"]
    assert (PRIORS[name].log_prob(found) > -math.inf).all()
    check_means(found, joint.double().softmax(0) @ VECTORS.double())


def test_rows_of_a_plate_are_updated_together():
    """Many rows of a plate take as many runs of the model as a single row."""
    runs = []

    def model():
        runs.append(1)
        with pyro.plate("rows", 50):
            x = pyro.sample("x", PRIORS["at most"])
            with pyro.plate("readings", 2):
                pyro.sample("y", dist.Normal(x @ WEIGHTS, 1.0), obs=torch.full((2, 50), 1.5))

    likelihood = 2 * dist.Normal(VECTORS @ WEIGHTS, 1.0).log_prob(torch.tensor(1.5))
    joint = PRIORS["at most"].log_prob(VECTORS) + likelihood
    found = draws(model, 40).get_samples()["x"]
    assert len(runs) < 61 * 12
    expected = joint.double().softmax(0) @ VECTORS.double()
    assert (found.double().mean((0, 1)) - expected).abs().max() < 0.06


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("total_first", [False, True])
def test_rows_that_a_site_outside_the_plate_ties(total_first):
    def model():
        with pyro.plate("rows", 3):
            x = pyro.sample("x", dist.Bernoulli(0.4))
            if total_first:
                pyro.factor("each", 0.3 * x)
        with pyro.plate("others", 2, dim=-1):
            pyro.sample("total", dist.Normal(x.sum(), 0.5), obs=torch.tensor([2.0, 2.5]))

    bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=3)))
    totals = dist.Normal(bits.sum(-1, keepdim=True), 0.5).log_prob(torch.tensor([2.0, 2.5])).sum(-1)
    joint = dist.Bernoulli(0.4).log_prob(bits).sum(-1) + totals + 0.3 * total_first * bits.sum(-1)
    check_means(draws(model, 250).get_samples()["x"], joint.double().softmax(0) @ bits.double())


def test_rows_that_depend_on_each_other_against_their_plate():
    def model():
        with pyro.plate("rows", 3):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(x.sum(), 1.0), obs=torch.ones(3))

    with pytest.raises(ValueError, match="x: expected rows of its plates to be independent given all other sites"):
        draws(model, 20)


def test_two_sites_with_masks_and_scales():
    """A masked site counts nothing; a scaled one counts more often."""

    def model():
        with pyro.poutine.scale(scale=2.0):
            a = pyro.sample("a", dist.Bernoulli(0.3))
        with pyro.poutine.mask(mask=False):
            b = pyro.sample("b", dist.Bernoulli(0.01))
        pyro.sample("y", dist.Normal(a - b, 1.0), obs=torch.tensor(0.5))

    bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=2)))
    joint = 2 * dist.Bernoulli(0.3).log_prob(bits[:, 0])
    joint = joint + dist.Normal(bits[:, 0] - bits[:, 1], 1.0).log_prob(torch.tensor(0.5))
    samples = draws(model, 400).get_samples()
    check_means(torch.stack([samples["a"], samples["b"]], -1), joint.double().softmax(0) @ bits.double())


def test_masked_rows():
    """Masks of distributions, in the prior and in the likelihood."""

    def model():
        with pyro.plate("rows", 3):
            x = pyro.sample("x", dist.Bernoulli(torch.tensor([0.2, 0.2, 0.9])).mask(torch.tensor([True, False, True])))
            seen = dist.Normal(x, 0.8).mask(torch.tensor([True, True, False]))
            pyro.sample("y", seen, obs=torch.ones(3))

    likelihood = math.exp(0.5 / 0.8**2)
    expected = torch.tensor([0.2 * likelihood / (0.2 * likelihood + 0.8), likelihood / (likelihood + 1), 0.9])
    check_means(draws(model, 400).get_samples()["x"], expected.double())


def test_categories_as_vectors():
    """The error about categories advises vectors with a single one, which are sampled."""
    logits = torch.tensor([0.0, 1.0, -1.0])

    def model():
        x = pyro.sample("x", sdist.KSubset(logits, 1))
        pyro.sample("y", dist.Normal(x @ torch.arange(3.0), 1.0), obs=torch.tensor(1.5))

    joint = logits + dist.Normal(torch.arange(3.0), 1.0).log_prob(torch.tensor(1.5))
    check_means(draws(model, 300).get_samples()["x"], joint.double().softmax(0))


def test_report():
    def model():
        pyro.sample("x", sdist.KSubset(torch.zeros(3), 1))

    (found,) = draws(model, 30)._diagnostics
    assert found == {
        "BinaryGibbs flip acceptance": 0.0,
        "BinaryGibbs swap acceptance": 1.0,
        "BinaryGibbs stuck steps": 0,
    }


def test_stuck_steps_are_counted():
    def model():
        pyro.sample("x", sdist.KSubset(torch.tensor([math.inf, 0.0]), 1))

    (found,) = draws(model, 30)._diagnostics
    assert found["BinaryGibbs stuck steps"] == 50


def test_booleans_stay_booleans():
    class Coin(dist.Bernoulli):
        def sample(self, sample_shape=()):
            return super().sample(sample_shape).bool()

        def log_prob(self, value):
            assert value.dtype == torch.bool
            return super().log_prob(value.float())

    mcmc = draws(lambda: pyro.sample("x", Coin(0.5)), 30)
    assert mcmc.get_samples()["x"].dtype == torch.bool


def test_errors():
    with pytest.raises(
        ValueError, match="x: expected a binary site for BinaryGibbs, .* got Categorical.*KSubset.* StepKernel"
    ):
        draws(lambda: pyro.sample("x", dist.Categorical(torch.ones(3))))
    with pytest.raises(ValueError, match="model: expected a Pyro model, got 3"):
        BinaryGibbs(3)
