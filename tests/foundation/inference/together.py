"""Processes that learn together in tests, and what they do.

``outcomes(job, size, ...)`` runs a function of this file in each of some processes, and returns what they returned, or
the text of their errors.
"""

import multiprocessing
import os
import signal
import time
import traceback
import warnings
from datetime import timedelta

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.optim import SGD, Adam, ExponentialLR, ReduceLROnPlateau

from pyro_structured.distributions import GridCRF, RandOM
from pyro_structured.inference import (
    MCEM,
    ContrastiveDivergence,
    DistributedOptim,
    EarlyStopping,
    ExpectedLoss,
    HardEM,
    MaxMargin,
    MeanFieldLoss,
    PerturbAndMAP,
    PseudoLikelihood,
    shard_rows,
)
from pyro_structured.structures import Grid, TopK

NUM_ROWS, LONGEST_SECONDS = 601, 120
GRID = Grid(2, 2)
DATA = torch.Generator().manual_seed(0)
X = torch.randn(NUM_ROWS, 3, generator=DATA, dtype=torch.double)
NOISE = torch.randn(NUM_ROWS, generator=DATA, dtype=torch.double)
Y = X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.double) + NOISE
LABELS = (torch.rand(NUM_ROWS, 2, 2, generator=DATA) < torch.tensor([[0.2, 0.4], [0.6, 0.8]])).double()
CHOICES = TopK(3, 1).solve(X + torch.tensor([1.0, 0.0, -1.0]))


def outcomes(job, size, folder, *arguments):
    """What each process returned, or its error's text; ``None`` for a process that was killed."""
    # One process imports everything, once, and has no threads when the others start as its copies.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    path = folder / f"group{len(list(folder.iterdir()))}"
    path.touch()
    processes = [context.Process(target=_member, args=(job, rank, size, path, arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + LONGEST_SECONDS
    late = []
    for rank, process in enumerate(processes):
        process.join(max(0.0, deadline - time.monotonic()))
        late += [rank] if process.is_alive() else []
        process.kill()
        process.join()
    assert not late, f"ranks {late} were not ready in {LONGEST_SECONDS} seconds"
    files = [path.with_suffix(f".{rank}") for rank in range(size)]
    return [torch.load(file) if file.exists() else None for file in files]


def _member(job, rank, size, path, arguments):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if size > 1:
        torch.distributed.init_process_group("gloo", f"file://{path}", timedelta(seconds=60), size, rank)
    try:
        outcome = job(*arguments)
    except BaseException as error:
        if os.environ.get("TOGETHER_TRACEBACKS"):
            traceback.print_exc()
        outcome = f"{type(error).__name__}: {error}"
    torch.save(outcome, path.with_suffix(f".{rank}"))


def no_guide(*args):
    pass


def regression(rows):
    """A model of rows with a prior, a positive parameter and a random start."""
    weights = pyro.sample("weights", dist.Normal(X.new_zeros(3), 1.0).to_event(1))
    scale = pyro.param("scale", lambda: torch.rand((), dtype=torch.double) + 0.5, constraint=constraints.positive)
    with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
        pyro.sample("y", dist.Normal(X[i] @ weights, scale), obs=Y[i])


def fields(rows):
    unary = pyro.param("unary", lambda: torch.randn(2, 2, dtype=torch.double))
    strength = pyro.sample("strength", dist.Gamma(X.new_tensor(2.0), 2.0))
    with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
        shift = X[i, 0, None, None]
        pyro.sample("y", GridCRF(unary + shift, strength.expand(GRID.num_edges), GRID), obs=LABELS[i])


def one_field(rows):
    with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
        unary = pyro.param("unary", torch.zeros(2, 2).double())
        pyro.sample("y", GridCRF(unary, torch.zeros(GRID.num_edges).double(), GRID), obs=LABELS[i])


def choices(rows):
    shift = pyro.sample("shift", dist.Normal(X.new_zeros(3), 1.0).to_event(1))
    with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
        pyro.sample("y", RandOM(dist.Normal(X[i] + shift, 1.0).to_event(1), TopK(3, 1)), obs=CHOICES[i])


def begin():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


def values():
    return {name: value.detach().clone() for name, value in pyro.get_param_store().items()}


def scheduled(kind=ExponentialLR, **arguments):
    return kind({"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.05}, **arguments})


def variational(kind="svi"):
    """Values after some steps of SVI without random numbers, with clipped gradients or a schedule; a random number."""
    begin()
    rows = shard_rows(NUM_ROWS)
    inner = Adam({"lr": 0.05}, {"clip_norm": 20.0}) if kind == "svi" else scheduled(gamma=0.9)
    optim = DistributedOptim(inner, rows)
    svi = SVI(regression, AutoDelta(regression), optim, Trace_ELBO())
    for _ in range(15):
        svi.step(rows)
        if kind != "svi":
            optim.step()
    return values(), torch.rand(())


def with_guide(kind, model, *arguments, **options):
    return kind(model, AutoDelta(model), *arguments, **options)


EXACT = {
    "PseudoLikelihood": lambda optim: with_guide(PseudoLikelihood, fields, optim),
    "MeanFieldLoss": lambda optim: with_guide(MeanFieldLoss, fields, optim, "logistic"),
    "HardEM": lambda optim: with_guide(HardEM, choices, optim),
    "MaxMargin": lambda optim: with_guide(MaxMargin, choices, optim),
}
RANDOM = {
    "MCEM": lambda optim: with_guide(MCEM, choices, optim, num_samples=2),
    "PerturbAndMAP": lambda optim: with_guide(PerturbAndMAP, choices, optim),
    "PCD": lambda optim: with_guide(ContrastiveDivergence, fields, optim, True),
    "PCD, one field": lambda optim: ContrastiveDivergence(one_field, no_guide, optim, True),
    "ExpectedLoss": lambda optim: with_guide(ExpectedLoss, fields, optim, "hamming"),
}


def learned(names, num_steps, num_averaged):
    """By names of learners, their last losses, the means of the last values, and how many rows have state."""
    found = {}
    for name in names:
        begin()
        rows = shard_rows(NUM_ROWS)
        learner = (EXACT | RANDOM)[name](DistributedOptim(Adam({"lr": 0.1}, {"clip_norm": 100.0}), rows))
        losses, last = [], []
        for _ in range(num_steps):
            losses.append(learner.step(rows))
            last = [*last, values()][-num_averaged:]
        means = {key: torch.stack([each[key] for each in last]).mean(0) for key in last[0]}
        seen = [part["rows"][:, 0] for part in learner.state_dict().get("chains", {}).values()]
        found[name] = (torch.tensor(losses[-num_averaged:]), means, seen, rows)
    return found
