"""Distributions, chains and learners on a device: ``python tests/device_runs.py [cuda]`` prints those that fail there.

Without an argument, they run on a device that is none.
"""

import contextlib
import sys
import traceback
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC

import pyro_structured.distributions as sdist
from pyro_structured import models
from pyro_structured.inference import (
    MCEM,
    ConstrainedSlice,
    ContrastiveDivergence,
    ExpectedLoss,
    HardEM,
    MaxMargin,
    MeanFieldLoss,
    PerturbAndMAP,
    PseudoLikelihood,
    ShellSMC,
    Splitting,
    StructuredGibbs,
)
from pyro_structured.optima.distributions.truncated_normal import TruncatedNormal
from pyro_structured.structures import (
    CategoryCounts,
    Grid,
    Matching,
    MinimumCut,
    Ranking,
    ShortestPath,
    SpanningTree,
    TopK,
    Transitions,
)
from tests.distributions.test_contract import FACTORIES
from tests.foreign_device import foreign_device

PROCESSOR = torch.device("cpu")
EDGES = torch.tensor([(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3), (3, 4), (2, 4), (4, 5), (3, 5)])
PROBLEMS = {
    "matchings": Matching(3),
    "rankings": Ranking(4),
    "paths": ShortestPath(EDGES, 6, 0, 5),
    "trees": SpanningTree(EDGES, 6),
    "cuts": MinimumCut(EDGES, 6),
    "best items": TopK(10, 2),
}
BASES = {
    "normal": lambda x, one: dist.Normal(x * one, one),
    "normal scales": lambda x, one: dist.Normal(0 * one, x.exp() * one),
    "truncated normal": lambda x, one: TruncatedNormal(x * one, one, -2 * one, 3 * one),
    "half-normal": lambda x, one: dist.HalfNormal(x.exp() * one),
    "uniform": lambda x, one: dist.Uniform(one, one + x.exp() * one),
    "exponential": lambda x, one: dist.Exponential(x.exp() * one),
    "log-normal": lambda x, one: dist.LogNormal(x * one, 1.0),
    "Gumbel": lambda x, one: dist.Gumbel(x * one, one),
    "gamma": lambda x, one: dist.Gamma(2 * one, x.exp() * one),
    "Student's t": lambda x, one: dist.StudentT(3.0, x * one, one),
    "mixtures": lambda x, one: dist.MixtureSameFamily(
        dist.Categorical(torch.ones_like(one).unsqueeze(-1).expand(*one.shape, 2)),
        dist.Normal(torch.stack([x * one, x * one + 1], -1), 1.0),
    ),
}
# All families of costs, and all problems.
CHAINS = [("matchings", kind) for kind in BASES] + [
    (name, kind) for name in PROBLEMS for kind in ("uniform", "exponential") if name != "matchings"
]
# Pyro's NUTS, which these take, moves parameters to the device that is set if models have plates.
OF_NUTS = [("matchings", "mixtures"), ("rankings", "exponential")]


def optima(problem, base):
    """A model of optima whose costs depend on a number, on the device of what is observed."""
    rank = len(problem.cost_shape)

    def model(y):
        x = pyro.sample("x", dist.Normal(torch.zeros((), device=y.device), 1.0))
        costs = base(x, torch.ones(problem.cost_shape, device=y.device))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", sdist.RandOM(costs.to_event(rank), problem), obs=y)

    return model


def shared_costs(y):
    costs = pyro.sample("costs", dist.Normal(torch.zeros(3, device=y.device), 1.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", sdist.Argmin(costs, TopK(3, 1)), obs=y)


def subsets(y):
    level = pyro.sample("level", dist.Normal(torch.zeros((), device=y.device), 1.0))
    with pyro.plate("rows", len(y)):
        s = pyro.sample("s", sdist.KSubset(torch.zeros(4, device=y.device), 2))
        pyro.sample("y", dist.Normal(level.unsqueeze(-1) * s, 1.0).to_event(1), obs=y)


def choices(y):
    quality = pyro.param("quality", lambda: torch.zeros(3, device=y.device))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", sdist.RandOM(dist.Normal(quality, 1.0).to_event(1), TopK(3, 1)), obs=y)


def pictures(y):
    penalty, grid = pyro.param("penalty", lambda: torch.tensor(0.1, device=y.device)), Grid(2, 3)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", sdist.GridCRF(y - 0.4, penalty.expand(grid.num_edges), grid), obs=y)


def run_learners(device):
    optimiser = pyro.optim.SGD({"lr": 0.1})
    of_choices = [(kind, choices, torch.eye(3)) for kind in (HardEM, MCEM, MaxMargin, PerturbAndMAP)]
    of_fields = [
        (kind, pictures, torch.ones(2, 2, 3))
        for kind in (ContrastiveDivergence, ExpectedLoss, MeanFieldLoss, PseudoLikelihood)
    ]
    for kind, model, y in of_choices + of_fields:
        pyro.clear_param_store()
        kind(model, lambda y: None, optimiser).step(y.to(device))
        for name, value in pyro.get_param_store().items():
            assert value.device == device, f"{name}: expected a tensor on {device}, got one on {value.device}"


def run_estimators(device):
    costs, y = dist.Normal(torch.rand(3, 3, device=device), 1.0).to_event(2), torch.tensor([1, 2, 0], device=device)
    for estimator in (ShellSMC(400), Splitting(400)):
        value, error = sdist.RandOM(costs, Matching(3), estimator=estimator).estimate_log_prob(y)
        assert value.device == error.device == device, f"{estimator}: expected numbers on {device}"


def run_statistics(device):
    """Tables that are made as soon as they are needed."""
    weights = torch.rand(3, 3, device=device).log()
    d = sdist.ExchangeableBlock(torch.zeros(10, device=device), CategoryCounts(3, 3))
    assert d.reweight(weights).marginals.device == device
    assert Transitions(4).value(torch.ones(4, dtype=torch.long, device=device)).device == device


def run_rankings(device):
    """Rankings and choices of all costs, also of costs after a transform by numbers."""
    one, y = torch.ones(3, device=device), torch.tensor([1, 2, 0], device=device)
    by_numbers = [dist.transforms.AffineTransform(1.0, -2.0)]
    parts = [base(0 * one[0], one) for base in BASES.values()]
    parts += [
        dist.TransformedDistribution(base, by_numbers)
        for base in (dist.Normal(0 * one, one), dist.Gumbel(0 * one, one))
    ]
    for problem, value in ((Ranking(3), y), (TopK(3, 1), (y == 0).float())):
        for part in parts:
            d = sdist.RandOM(part.to_event(1), problem)
            found = [d.sample()]
            with contextlib.suppress(NotImplementedError):
                found.append(d.log_prob(value))
            assert all(tensor.device == device for tensor in found), f"{part}: expected tensors on {device}"


def run_functions(device):
    """Functions that learn from arrays and tensors where a device is set."""
    rows = torch.tensor([[0, 0, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0]] * 20, device=device)
    assert models.merge_partition(rows).labels.device == device
    assert models.learn_nested_subsets(rows).subsets
    assert models.welch_partition(rows.double().mean(0), torch.tensor(80.0, device=device)).labels.device == device
    pictures = np.random.default_rng(0).random((2, 3, 4, 3))
    assert models.edge_features(pictures, Grid(3, 4)).shape[:2] == (2, 17)
    assert len(models.pixel_features(pictures)) == 2


def run_chain(kernel, y):
    mcmc = MCMC(kernel, num_samples=1, warmup_steps=1, disable_progbar=True)
    mcmc.run(y)
    for name, draws in mcmc.get_samples().items():
        assert draws.device == y.device, f"{name}: expected draws on {y.device}, got {draws.device}"


def run_distribution(factory, device):
    d = factory((2,), torch.double, device=device)
    drawn = d.sample()
    found = [drawn]
    with contextlib.suppress(NotImplementedError):
        found.append(d.log_prob(drawn))
    for tensor in found:
        assert tensor.device == device, f"expected a tensor on {device}, got one on {tensor.device}"


def runs(device):
    """Names, contexts and what to do in them."""
    for factory in (factory for factories in FACTORIES.values() for factory in factories):
        for context in (contextlib.nullcontext(), device):
            yield factory.__name__, context, partial(run_distribution, factory, device)
        yield f"{factory.__name__} on the processor", device, partial(run_distribution, factory, PROCESSOR)
    for name, kind in CHAINS:
        problem = PROBLEMS[name]
        y = torch.stack([problem.solve(1 + torch.rand(problem.cost_shape)) for _ in range(3)]).to(device)
        kernel = ConstrainedSlice(optima(problem, BASES[kind]))
        yield f"{name}, {kind}", contextlib.nullcontext(), partial(run_chain, kernel, y)
        if (name, kind) not in OF_NUTS:
            yield f"{name}, {kind}, on the processor", device, partial(run_chain, kernel, y.to(PROCESSOR))
    for context in (contextlib.nullcontext(), device):
        yield "learners", context, partial(run_learners, device)
        yield "estimators", context, partial(run_estimators, device)
        yield "statistics", context, partial(run_statistics, device)
        yield "functions", context, partial(run_functions, device)
        yield "rankings", context, partial(run_rankings, device)
    for run in (run_learners, run_estimators, run_statistics, run_functions, run_rankings):
        yield f"{run.__name__} on the processor", device, partial(run, PROCESSOR)
    for name, kernel, y in (
        ("costs that optima share", ConstrainedSlice(shared_costs), torch.eye(3)[[1, 1]]),
        ("subsets", StructuredGibbs(subsets), torch.ones(3, 4)),
    ):
        yield name, contextlib.nullcontext(), partial(run_chain, kernel, y.to(device))
    with device:
        kernel, y = ConstrainedSlice(optima(Matching(3), BASES["normal"])), torch.tensor([[0, 1, 2], [2, 1, 0]])
    yield "matchings where a device is set", device, partial(run_chain, kernel, y)


def main(device):
    for name, context, run in runs(device):
        pyro.set_rng_seed(0)
        try:
            with context:
                run()
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            place = next((each for each in reversed(frames) if "foreign_device" not in each.filename), frames[-1])
            print(f"{name}: {str(error)[:200]} in {place.filename}, line {place.lineno}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(torch.device(sys.argv[1], 0))
    else:
        with foreign_device() as device:
            main(device)
