"""Learns in processes that are killed, and goes on in others: ``python resumed_runs.py FOLDER MODE...``.

The modes are full, killed and resumed. Every run is a process of its own, forked when nothing but imports has happened.
"""

import os
import signal
import sys
import traceback
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.nn import PyroModule, PyroParam
from pyro.optim import Adam, ClippedAdam, ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR

from pyro_structured.distributions import CategoricalPatternCRF, GridCRF, PatternCRF, RandOM, TruncatedNormal
from pyro_structured.inference import (
    MCEM,
    ContrastiveDivergence,
    EarlyStopping,
    ExpectedLoss,
    HardEM,
    MaxMargin,
    MeanFieldLoss,
    PerturbAndMAP,
    PseudoLikelihood,
)
from pyro_structured.structures import Grid, Matching, TopK

NUM_STEPS, KILLED_AFTER, NUM_ROWS, BATCH = 6, 3, 12, 5
GRID = Grid(3, 3)
NONE = torch.zeros(GRID.num_edges)
DATA = torch.Generator().manual_seed(0)
LABELS = (torch.rand(NUM_ROWS, 3, 3, generator=DATA) < 0.4).float()
FEATURES = torch.randn(NUM_ROWS, 3, 3, 2, generator=DATA)
MATCHINGS = Matching(3).solve(FEATURES[..., 0] - FEATURES[..., 1])
CHOICES = TopK(3, 1).solve(FEATURES[:, 0, :, 0])


def no_guide(*args):
    pass


def rows():
    return pyro.plate("rows", NUM_ROWS, subsample_size=BATCH)


def network(*sizes):
    """A network with other initial weights in every process, running means, and dropout."""
    parts = (torch.nn.Linear(*sizes), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(sizes[1]))
    return torch.nn.Sequential(*parts)


def matchings():
    weights = pyro.sample("weights", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with rows() as i:
        base = TruncatedNormal((FEATURES[i] @ weights).sigmoid(), 0.3, 0.0, 1.0).to_event(2)
        pyro.sample("y", RandOM(base, Matching(3)), obs=MATCHINGS[i])


def choices_by_a_module():
    net = network(2, 1)

    def model():
        pyro.module("net", net)
        scale = pyro.param("scale", lambda: torch.rand(()) + 0.5, constraint=constraints.positive)
        with rows() as i:
            loc = net(FEATURES[i, 0].flatten(0, 1)).reshape(BATCH, 3)
            pyro.sample("y", RandOM(dist.Normal(loc, scale).to_event(1), TopK(3, 1)), obs=CHOICES[i])

    return model


class Choices(PyroModule):
    def __init__(self):
        super().__init__()
        self.net = network(2, 1)
        self.linear = PyroModule[torch.nn.Linear](2, 1)
        self.shift = PyroParam(lambda: torch.rand(3) / 2, constraints.interval(torch.zeros(3), torch.ones(3)))

    def forward(self):
        prior = pyro.sample("prior", dist.Gamma(2.0, 2.0))
        with rows() as i:
            x = FEATURES[i, 0].flatten(0, 1)
            loc = prior * (self.net(x) + self.linear(x)).reshape(BATCH, 3) + self.shift
            pyro.sample("y", RandOM(dist.Normal(loc, 1.0).to_event(1), TopK(3, 1)), obs=CHOICES[i])


def fields_by_a_module():
    net = network(9, 9)

    def model():
        weights = pyro.param("weights", lambda: 0.1 * torch.randn(2, 3, 3))
        strength = pyro.sample("strength", dist.Gamma(2.0, 2.0))
        pyro.module("net", net, update_module_params=True)
        with rows() as i:
            unary = net(LABELS[i].flatten(1)).reshape(BATCH, 3, 3)
            field = PatternCRF(unary, strength.expand(GRID.num_edges), weights, torch.zeros(2), GRID)
            pyro.sample("y", field, obs=LABELS[i])

    return model


def moved_fields():
    """Fields that are moved by random numbers of NumPy, and of Python."""
    unary = pyro.param("unary", lambda: torch.randn(3, 3))
    table = pyro.param("table", lambda: torch.tensor([0.2, 0.8]), constraint=constraints.simplex)
    with rows() as i:
        y = LABELS[i].flip(-1) if np.random.rand() < 0.5 else LABELS[i]
        pyro.sample("y", GridCRF(table[1] * unary + 0.1 * y, table[0].expand(GRID.num_edges), GRID), obs=y)


def one_field():
    with rows() as i:
        pyro.sample("y", GridCRF(pyro.param("unary", torch.zeros(3, 3)), NONE, GRID), obs=LABELS[i])


def categories():
    unary = pyro.param("unary", lambda: torch.randn(3, 3, 3))
    penalty = pyro.param("penalty", torch.tensor(0.3), constraint=constraints.nonnegative)
    with rows() as i:
        shift = torch.nn.functional.one_hot(LABELS[i].long(), 3)
        field = CategoricalPatternCRF(
            unary + shift, penalty.expand(GRID.num_edges), torch.zeros(1, 3, 3, 3), torch.zeros(1), GRID
        )
        pyro.sample("y", field, obs=LABELS[i].long())


def sometimes(number):
    """A parameter that not every step sees, whose schedule goes on nevertheless."""
    shift = pyro.param("shift", lambda: torch.randn(3, 3)) if number % 3 == 1 else 0.0
    with rows() as i:
        unary = pyro.param("unary", lambda: torch.randn(3, 3)) + shift
        pyro.sample("y", GridCRF(unary, NONE, GRID), obs=LABELS[i])


def normal_model():
    loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    with rows() as i:
        scale = pyro.param("scale", torch.ones(()), constraint=constraints.positive)
        pyro.sample("x", dist.Normal(loc, scale), obs=FEATURES[i, 0, 0, 0])


def schedule(kind, **arguments):
    return kind({"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.05}, **arguments})


def with_guide(kind, model, *arguments, **options):
    return kind(model, AutoDelta(model), *arguments, **options)


def stopped(learner):
    """Early stopping, whose state is kept whenever a score is computed."""
    return EarlyStopping(learner, lambda: 0.0, num_steps=2, patience=100)


RUNS = {
    "MCEM": lambda: with_guide(MCEM, matchings, Adam({"lr": 0.05})),
    "MCEM, module": lambda: MCEM(
        choices_by_a_module(), no_guide, schedule(ExponentialLR, gamma=0.9), control_variate=True
    ),
    "MCEM, PyroModule": lambda: with_guide(MCEM, Choices(), Adam({"lr": 0.05}), num_samples=2, num_gradient_steps=2),
    "MCEM, L-BFGS": lambda: with_guide(MCEM, matchings, None, num_samples=2),
    "HardEM": lambda: with_guide(HardEM, matchings, Adam({"lr": 0.05}, {"clip_norm": 1.0})),
    "PerturbAndMAP": lambda: with_guide(PerturbAndMAP, Choices(), schedule(StepLR, step_size=2), 3),
    "MaxMargin": lambda: MaxMargin(choices_by_a_module(), no_guide, ClippedAdam({"lr": 0.05, "lrd": 0.9})),
    "CD": lambda: ContrastiveDivergence(moved_fields, no_guide, Adam({"lr": 0.05}), num_chains=2),
    "PCD": lambda: with_guide(ContrastiveDivergence, fields_by_a_module(), Adam({"lr": 0.05}), True),
    "PCD, one field": lambda: ContrastiveDivergence(one_field, no_guide, Adam({"lr": 0.05}), True),
    "PCD, categories": lambda: ContrastiveDivergence(categories, no_guide, Adam({"lr": 0.05}), True),
    "PseudoLikelihood": lambda: PseudoLikelihood(sometimes, no_guide, schedule(StepLR, step_size=2)),
    "PseudoLikelihood, L-BFGS": lambda: with_guide(PseudoLikelihood, fields_by_a_module(), None),
    "ExpectedLoss": lambda: with_guide(
        ExpectedLoss, fields_by_a_module(), schedule(OneCycleLR, max_lr=0.1, total_steps=20), "hamming", 3
    ),
    "MeanFieldLoss": lambda: MeanFieldLoss(moved_fields, no_guide, schedule(ReduceLROnPlateau, patience=1), "logistic"),
    "EarlyStopping": lambda: stopped(
        with_guide(ContrastiveDivergence, fields_by_a_module(), schedule(ExponentialLR, gamma=0.9), True)
    ),
    "EarlyStopping, SVI": lambda: stopped(SVI(normal_model, AutoDelta(normal_model), Adam({"lr": 0.1}), Trace_ELBO())),
}


def run(name, mode, folder):
    """All steps; those until the process is killed; or those from there on, in a process that has run nothing."""
    path = folder / f"{name}.{'state' if mode != 'full' else 'full'}"
    pyro.set_rng_seed({"full": 0, "killed": 0, "resumed": 1}[mode])
    learner = RUNS[name]()
    if mode != "resumed":
        # Whatever modules and parameters drew.
        pyro.set_rng_seed(2)
    else:
        learner.load_state_dict(torch.load(path, weights_only=True))

    def keep(number):
        """On disk, at every step; then the process ends."""
        if mode == "killed":
            torch.save(learner.state_dict(), path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)
            if number >= KILLED_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)

    if isinstance(learner, EarlyStopping):
        _stop_early(learner, keep)
    else:
        for number in range(KILLED_AFTER if mode == "resumed" else 0, NUM_STEPS):
            loss = learner.step(*([number] if name == "PseudoLikelihood" else []))
            if hasattr(learner.optim, "step"):
                learner.optim.step(*([loss] if name == "MeanFieldLoss" else []))
            keep(number + 1)
    torch.save(learner.state_dict(), folder / f"{name}.{mode}")


def _stop_early(stopping, keep):
    """Better and worse by turns, a little at random."""

    def score():
        number = stopping.state_dict()["progress"]["num_steps"]
        keep(number)
        return float(torch.rand(())) + (number == 2)

    stopping.score = score
    assert len(stopping.run(NUM_STEPS)) == 4


def main(folder, *modes):
    """One process after the other; prints what ended otherwise than it should."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # Imports more.
    torch.optim.Adam([torch.zeros((), requires_grad=True)]).step()
    for name, mode in product(RUNS, modes):
        child = os.fork()
        if not child:
            try:
                run(name, mode, Path(folder))
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=sys.stdout)
                sys.stdout.flush()
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        if status != (signal.SIGKILL if mode == "killed" else 0):
            print(f"{name}, {mode}: ended with {status}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
