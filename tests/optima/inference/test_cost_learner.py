"""Checks of observed optima that all learners of models with latent costs make."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_structured.distributions import RandOM
from pyro_structured.inference import MCEM, HardEM, MaxMargin, PerturbAndMAP
from pyro_structured.structures import Matching

ROWS = 6
ORDER = torch.arange(3)


def model(y):
    shift = pyro.param("shift", torch.zeros(()))
    with pyro.plate("rows", ROWS):
        pyro.sample("y", RandOM(dist.Normal(shift, 1.0).expand([ROWS, 3, 3]).to_event(2), Matching(3)), obs=y)


@pytest.mark.parametrize("kind", [HardEM, MCEM, MaxMargin, PerturbAndMAP])
@pytest.mark.parametrize(
    "y, message",
    [
        (ORDER.repeat(5, 1), r"y: expected observed values of shape \(6, 3\), got \(5, 3\)"),
        (torch.eye(3).repeat(ROWS, 1, 1), r"y: expected observed values of shape \(6, 3\), got \(6, 3, 3\)"),
        (ORDER.repeat(2, ROWS, 1), r"y: expected observed values of shape \(6, 3\), got \(2, 6, 3\)"),
        (ORDER.repeat(ROWS, 1).numpy(), "y: expected a tensor of observed values, got ndarray"),
    ],
)
def test_wrong_observations(kind, y, message):
    with pytest.raises(ValueError, match=message):
        kind(model, lambda y: None, pyro.optim.Adam({"lr": 0.1})).step(y)
