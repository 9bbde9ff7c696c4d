"""Dtypes that Pyro's MCMC loses."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

import pyro_structured.distributions as sdist
from pyro_structured.inference import BinaryGibbs, restore_dtypes
from pyro_structured.optima.structures.matching import Matching


def model(scale=1.0):
    pyro.sample("k", dist.Categorical(torch.ones(5)))
    pyro.sample("on", dist.Bernoulli(0.5).expand([2]).to_event(1))
    pyro.sample("x", dist.Normal(torch.zeros((), dtype=torch.double), scale))


def test_dtypes_are_those_of_the_model():
    samples = {"k": torch.tensor([[3.0, 4.0]]), "on": torch.ones(1, 2, 2).double(), "x": torch.zeros(1, 2)}
    found = restore_dtypes(samples, model, scale=2.0)
    assert {name: value.dtype for name, value in found.items()} == {
        "k": torch.long,
        "on": torch.float32,
        "x": torch.float64,
    }
    assert found["k"].tolist() == [[3, 4]]
    assert torch.equal(restore_dtypes(found, model)["k"], found["k"])


def test_after_a_chain():
    def bits():
        pyro.sample("x", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1))

    mcmc = MCMC(BinaryGibbs(bits), num_samples=3, warmup_steps=0, disable_progbar=True)
    mcmc.run()
    assert mcmc.get_samples()["x"].dtype == torch.float64
    assert restore_dtypes(mcmc.get_samples(), bits)["x"].dtype == torch.float32


def test_costs_and_booleans():
    def costs():
        pyro.sample("y", sdist.RandOM(dist.Normal(torch.zeros(2, 2), 1.0).to_event(2), Matching(2)))

    assert restore_dtypes({"y_costs": torch.zeros(2, 2).double()}, costs)["y_costs"].dtype == torch.float32

    def truth():
        pyro.sample("t", dist.Delta(torch.tensor(True)))

    assert restore_dtypes({"t": torch.tensor([0.0, 1.0])}, truth)["t"].tolist() == [False, True]
    with pytest.raises(ValueError, match="t: expected values of torch.bool"):
        restore_dtypes({"t": torch.tensor([2.0])}, truth)


@pytest.mark.parametrize(
    "samples, message",
    [
        ({"z": torch.zeros(1)}, r"samples: expected latent sites of the model, \['k', 'on', 'x'\], got \['z'\]"),
        (
            {"k": torch.tensor([0.5])},
            "k: expected values of torch.int64, the dtype of .*, got 0.5",
        ),
        ({"k": torch.tensor([torch.nan])}, "k: expected values of torch.int64"),
        (
            {"k": torch.tensor([2.0**24])},
            "k: expected integers below 16777216 .*float32, got up to 16777216",
        ),
        ({"k": torch.tensor([-(2.0**53)]).double()}, "k: expected integers below 9007199254740992 .*float64"),
    ],
)
def test_errors(samples, message):
    with pytest.raises(ValueError, match=message):
        restore_dtypes(samples, model)


def test_largest_exact_integers():
    found = restore_dtypes({"k": torch.tensor([2.0**24 - 1, 1 - 2.0**24])}, model)
    assert found["k"].tolist() == [2**24 - 1, 1 - 2**24]
