"""Every kernel keeps the contract of Pyro's MCMC, and leaves the posterior invariant."""

import inspect
import itertools
import tempfile
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS
from pyro.infer.mcmc import RandomWalkKernel
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel

import pyro_structured.distributions as sdist
from pyro_structured import inference
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.inference import (
    BinaryGibbs,
    Checkpoint,
    ConstrainedSlice,
    FieldGibbs,
    Gibbs,
    Interweave,
    StructuredGibbs,
)
from pyro_structured.optima.structures.matching import Matching
from pyro_structured.testing import check_kernel

pytestmark = pytest.mark.statistical

INPUTS = torch.tensor([[1.0, 0.5, -1.0], [0.0, 1.0, 1.0], [-1.0, 0.5, 0.0], [1.0, 1.0, 1.0]])


def prior_of_switches():
    return sdist.RecursiveCardinality(torch.tensor([0.0, 0.5, -0.5]), sdist.cardinality_potentials.at_most(3, 2))


def scale():
    return pyro.param("scale", lambda: torch.tensor(0.7))


def regression(y):
    s = pyro.sample("s", prior_of_switches())
    weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("rows", 4):
        pyro.sample("y", dist.Normal(INPUTS @ (s * weights), scale()), obs=y)


def draw_regression():
    s, weights = prior_of_switches().sample(), torch.randn(3)
    return {"s": s, "weights": weights}, (dist.Normal(INPUTS @ (s * weights), scale().detach()).sample(),)


def switches_in_rows(y, total):
    rate = pyro.sample("rate", dist.Beta(2.0, 2.0))
    with pyro.plate("rows", 3):
        s = pyro.sample("s", sdist.KSubset(torch.tensor([0.0, 1.0, -1.0, 0.5]), 2))
        a = pyro.sample("a", dist.Bernoulli(rate))
        pyro.sample("y", dist.Normal(s @ torch.arange(4.0) + a, scale()), obs=y)
    pyro.sample("total", dist.Normal(a.sum(-1), 0.5), obs=total)


def draw_switches_in_rows():
    rate = dist.Beta(2.0, 2.0).sample()
    s = sdist.KSubset(torch.tensor([0.0, 1.0, -1.0, 0.5]), 2).sample((3,))
    a = dist.Bernoulli(rate).sample((3,))
    y = dist.Normal(s @ torch.arange(4.0) + a, scale().detach()).sample()
    return {"rate": rate, "s": s, "a": a}, (y, dist.Normal(a.sum(), 0.5).sample())


def outliers(x):
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 3):
        s = pyro.sample("s", sdist.KSubset(torch.tensor([0.0, 1.0, -1.0, 0.5]), 2))
        pyro.sample("x", dist.Normal(level.unsqueeze(-1) * s, scale()).to_event(1), obs=x)


def draw_outliers():
    level, s = dist.Normal(0.0, 1.0).sample(), sdist.KSubset(torch.tensor([0.0, 1.0, -1.0, 0.5]), 2).sample((3,))
    return {"level": level, "s": s}, (dist.Normal(level * s, scale().detach()).sample(),)


def matching(y):
    pyro.sample(
        "y", sdist.RandOM(dist.Normal(scale() * torch.eye(2), 1.0).expand([2, 2]).to_event(2), Matching(2)), obs=y
    )


def draw_matching():
    costs = dist.Normal(scale().detach() * torch.eye(2), 1.0).sample()
    return {"y_costs": costs}, (Matching(2).solve(costs),)


def learned_matching(y):
    liking = pyro.sample("liking", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 3):
        pyro.sample("y", sdist.RandOM(dist.Normal(liking * torch.eye(2), scale()).to_event(2), Matching(2)), obs=y)


def draw_learned_matching():
    liking = torch.randn(())
    costs = dist.Normal(liking * torch.eye(2), scale().detach()).sample((3,))
    return {"liking": liking, "y_costs": costs}, (Matching(2).solve(costs),)


def liked_matching(y):
    liking = pyro.sample("liking", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 3):
        pyro.sample("y", sdist.RandOM(dist.Laplace(liking * torch.eye(2), scale()).to_event(2), Matching(2)), obs=y)


def draw_liked_matching():
    liking = torch.randn(())
    costs = dist.Laplace(liking * torch.eye(2), scale().detach()).sample((3,))
    return {"liking": liking, "y_costs": costs}, (Matching(2).solve(costs),)


def prior_of_labels():
    pattern = torch.tensor([[[2.0, -1.0], [-1.0, 1.0]]])
    d = sdist.PatternCRF(torch.zeros(2, 2), torch.ones(4), pattern, torch.zeros(1), Grid(2, 2))
    return d.condition(torch.ones(2, 2), torch.tensor([[True, False], [False, False]]))


def noisy_labels(x):
    y = pyro.sample("y", prior_of_labels())
    level = pyro.sample("level", dist.Normal(3.0, 0.5))
    pyro.sample("x", dist.Normal(level * y, scale()).to_event(2), obs=x)


def draw_noisy_labels():
    y, level = prior_of_labels().sample(), dist.Normal(3.0, 0.5).sample()
    return {"y": y, "level": level}, (dist.Normal(level * y, scale().detach()).sample(),)


def nuts(model):
    return NUTS(model, step_size=0.5, adapt_step_size=False, max_tree_depth=3)


def gibbs(model):
    return Gibbs([(BinaryGibbs(model), ["s"]), (nuts(model), None)])


def binary(model):
    return Gibbs([(BinaryGibbs(model), ["s", "a"]), (RandomWalkKernel(model), ["rate"])])


def field(model):
    return Gibbs([(FieldGibbs(model, num_sweeps=2), ["y"]), (RandomWalkKernel(model), ["level"])])


def checkpoint(model):
    return Checkpoint(ConstrainedSlice(model), Path(FOLDER.name) / f"{next(NUMBERS)}.pt", every=2)


def interweave(model):
    return Gibbs(
        [(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), (RandomWalkKernel(model), ["liking"])]
    )


def structured(model):
    return Gibbs([(StructuredGibbs(model), ["s"]), (RandomWalkKernel(model), ["level"])])


FOLDER, NUMBERS = tempfile.TemporaryDirectory(), itertools.count()
NAN = torch.tensor(torch.nan)
CASES = {
    "Gibbs": (gibbs, regression, draw_regression, {"s": torch.ones(3)}, ["fork", "spawn"]),
    "BinaryGibbs": (binary, switches_in_rows, draw_switches_in_rows, {"s": torch.ones(3, 4)}, ["fork"]),
    "Checkpoint": (checkpoint, matching, draw_matching, {"y_costs": NAN.expand(2, 2)}, ["fork"]),
    "ConstrainedSlice": (
        ConstrainedSlice,
        liked_matching,
        draw_liked_matching,
        {"y_costs": NAN.expand(3, 2, 2)},
        ["fork"],
    ),
    "FieldGibbs": (field, noisy_labels, draw_noisy_labels, {"y": torch.zeros(2, 2)}, ["fork"]),
    "StructuredGibbs": (structured, outliers, draw_outliers, {"s": torch.ones(3, 4)}, ["fork"]),
    "Interweave": (interweave, learned_matching, draw_learned_matching, {"y_costs": NAN.expand(3, 2, 2)}, ["fork"]),
}


def test_every_kernel_is_checked():
    kinds = [kind for name in inference.__all__ if isinstance(kind := getattr(inference, name), type)]
    assert set(CASES) == {
        kind.__name__ for kind in kinds if issubclass(kind, MCMCKernel) and not inspect.isabstract(kind)
    }


@pytest.mark.parametrize("name", CASES)
def test_kernel(name):
    factory, model, draw, infeasible, contexts = CASES[name]
    parameters = {"scale": torch.tensor(3.0)}
    check_kernel(factory, model, draw, infeasible, parameters, num_replicates=50, contexts=contexts)
