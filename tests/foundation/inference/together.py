"""Processes that learn together in tests, and what they do.

``outcomes(job, size, ...)`` runs a function of this file in each of some processes, and returns what they returned, or
the text of their errors. ``python together.py RANK SIZE FILE`` is a program that ends with an error in process 1.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from datetime import timedelta
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal, init_to_mean
from pyro.nn import PyroModule, PyroParam
from pyro.optim import SGD, Adam, ExponentialLR, PyroLRScheduler, ReduceLROnPlateau, StepLR

from pyro_structured.distributions import GridCRF, RandOM
from pyro_structured.foundation.inference import distributed_optim
from pyro_structured.foundation.inference.peer_processes import rank_and_size
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


def outcomes(job, size, folder, *arguments, by_tcp=False):
    """What each process returned, or its error's text; ``None`` for a process that was killed."""
    # One process imports everything, once, and has no threads when the others start as its copies.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.foundation.models.fitted_together"])
    path = folder / f"group{len(list(folder.iterdir()))}"
    path.touch()
    place = f"file://{path}"
    if by_tcp:
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    processes = [
        context.Process(target=_member, args=(job, rank, size, path, place, arguments)) for rank in range(size)
    ]
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


def _member(job, rank, size, path, place, arguments):
    torch.set_num_threads(1)
    # Programs in the background of a shell ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("error")
    if size > 1:
        torch.distributed.init_process_group("gloo", place, timedelta(seconds=60), size, rank)
    try:
        outcome = job(*arguments)
    except BaseException as error:
        traceback.print_exc()
        outcome = f"{type(error).__name__}: {error}"
    torch.save(outcome, path.with_suffix(f".{rank}"))


def no_guide(*args):
    pass


def regression(rows):
    """A model of rows with a prior, a positive parameter with a random start, and one of another dtype."""
    weights = pyro.sample("weights", dist.Normal(X.new_zeros(3), 1.0).to_event(1))
    scale = pyro.param("scale", lambda: torch.rand((), dtype=torch.double) + 0.5, constraint=constraints.positive)
    bias = pyro.param("bias", torch.zeros(()))
    with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
        pyro.sample("y", dist.Normal(X[i] @ weights + bias, scale), obs=Y[i])


def fields(rows, labels=LABELS):
    unary = pyro.param("unary", lambda: torch.randn(2, 2, dtype=torch.double))
    strength = pyro.sample("strength", dist.Gamma(X.new_tensor(2.0), 2.0))
    with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
        shift = X[i, 0, None, None]
        pyro.sample("y", GridCRF(unary + shift, strength.expand(GRID.num_edges), GRID), obs=labels[i])


def one_field(rows):
    with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
        unary = pyro.param("unary", torch.zeros(2, 2).double())
        pyro.sample("y", GridCRF(unary, torch.zeros(GRID.num_edges).double(), GRID), obs=LABELS[i])


def with_effects(rows):
    """A latent site in every row, whose parameters every process has for all rows and moves for its own."""
    scale = pyro.sample("scale", dist.Gamma(X.new_tensor(2.0), 2.0))
    with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
        effect = pyro.sample("effect", dist.Normal(X.new_tensor(0.0), scale))
        pyro.sample("y", dist.Normal(effect, 1.0), obs=Y[i])


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
    inner = {
        "schedule": lambda: scheduled(gamma=0.9),
        "plateau": lambda: scheduled(ReduceLROnPlateau, factor=0.5, patience=0, threshold=30.0, threshold_mode="abs"),
    }.get(kind, lambda: Adam({"lr": 0.05}, {"clip_norm": 20.0}))
    optim = DistributedOptim(inner(), rows)
    model = with_effects if kind == "effects" else regression
    plates = partial(pyro.plate, "rows", NUM_ROWS)
    guide = AutoDelta(model, init_to_mean, create_plates=lambda rows: plates(subsample=rows))
    svi = SVI(model, guide, optim, Trace_ELBO())
    for _ in range(15):
        loss = svi.step(rows)
        if kind in ("schedule", "plateau"):
            optim.step(*([loss] if kind == "plateau" else []))
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
        seen = [] if learner._chains is None else [part["rows"][:, 0] for part in learner._chains.state_dict().values()]
        found[name] = (torch.tensor(losses[-num_averaged:]), means, seen, rows)
    return found


def text_of(function, *arguments):
    """Text and seconds of the error of a call."""
    start = time.monotonic()
    try:
        function(*arguments)
    except BaseException as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "none", 0.0


def apart():
    """Errors of learners that would learn apart."""
    begin()
    rows, adam = shard_rows(NUM_ROWS), Adam({"lr": 0.1})
    learners = [EXACT["PseudoLikelihood"](adam), EXACT["HardEM"](None), RANDOM["MCEM"](adam), RANDOM["PCD"](adam)]
    svi = SVI(regression, AutoDelta(regression), adam, Trace_ELBO())
    found = [text_of(learner.step, rows) for learner in learners]
    found += [text_of(EarlyStopping(each, lambda: 0.0).run, 3, rows) for each in (learners[0], svi)]
    return found + [text_of(learners[0].state_dict), text_of(shard_rows, 1)]


def unlike_settings():
    """Errors where processes have other optimisers, or the same rows."""
    begin()
    rank, _ = rank_and_size()
    rates, rows = Adam({"lr": 0.1 * (1 + rank)}), shard_rows(NUM_ROWS)
    everything = torch.arange(NUM_ROWS)
    found = []
    for optim, own in ((rates, rows), ((Adam, SGD)[rank]({"lr": 0.1}), rows), (Adam({"lr": 0.1}), everything)):
        pyro.clear_param_store()
        svi = SVI(regression, AutoDelta(regression), DistributedOptim(optim, own), Trace_ELBO())
        found.append(text_of(svi.step, own)[0])
    return found


class Failing:
    """A model that fails in the fourth step, in process 1, and in both of two if they fail differently."""

    def __init__(self, model, kind):
        self.model, self.calls = model, 0
        self.kinds = {0: "nan", 1: "row"} if kind == "both" else {1: kind}

    def __call__(self, rows):
        # Guides and kernels run the model as well, so that the program counts the steps.
        kind = self.kinds.get(torch.distributed.get_rank()) if self.calls == 3 else None
        if kind == "error":
            raise FileNotFoundError("pictures.pt")
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "late":
            time.sleep(2.0)
        if kind == "nan":
            # Finite itself, with a derivative that is not.
            param = pyro.param("unary" if self.model is fields else "scale")
            pyro.factor("factor", (0.0 * param.sum()).sqrt())
        labels = LABELS
        if kind == "row":
            labels = LABELS.clone()
            labels[rows[5]] = 7.0
        return self.model(rows) if self.model is not fields else fields(rows, labels)


def failures(kinds, on_nonfinite="raise"):
    """For each kind of failure its text and seconds, whether it changed anything, and what is learned afterwards."""
    found = {}
    for kind in kinds:
        begin()
        rows, model = shard_rows(NUM_ROWS), Failing(fields, kind)
        optim = DistributedOptim(Adam({"lr": 0.1}), rows)
        learner = ContrastiveDivergence(model, AutoDelta(fields), optim, True, on_nonfinite=on_nonfinite)
        for model.calls in range(3):
            learner.step(rows)
        before, model.calls = values(), 3
        text = text_of(learner.step, rows)
        same = all(torch.equal(value, before[name]) for name, value in values().items())
        model.calls = 4
        for _ in range(2):
            learner.step(rows)
        found[kind] = (*text, same, values(), learner.num_skipped)
    return found


def failures_of_svi(kind):
    """Text and seconds of an error of SVI."""
    begin()
    rows, model = shard_rows(NUM_ROWS), Failing(regression, kind)
    svi = SVI(model, AutoDelta(regression), DistributedOptim(Adam({"lr": 0.1}), rows), Trace_ELBO())
    for model.calls in range(3):
        svi.step(rows)
    model.calls = 3
    found = text_of(svi.step, rows)
    if kind == "nan":
        model.calls = 4
        svi.step(rows)
    return *found, values()


def interrupted():
    """Rank 0 is interrupted while it waits for rank 1."""
    begin()
    rows, model = shard_rows(NUM_ROWS), Failing(fields, "late")
    learner = PseudoLikelihood(model, AutoDelta(fields), DistributedOptim(Adam({"lr": 0.1}), rows))
    for model.calls in range(3):
        learner.step(rows)
    model.calls = 3
    if torch.distributed.get_rank() == 0:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 1.0)
    return text_of(learner.step, rows)


def unlike_parameters():
    """Steps with parameters that are not the same in all processes."""
    rank = torch.distributed.get_rank()
    begin()
    pyro.set_rng_seed(rank)
    rows = shard_rows(NUM_ROWS)

    def model(number):
        unary = pyro.param("unary", lambda: torch.randn(2, 2, dtype=torch.double))
        if number >= 2 and (rank == 0 or number == 4):
            unary = unary + pyro.param("shift", torch.zeros(2, 2).double())
        if number == 5 and rank == 1:
            unary = unary + pyro.param("late", torch.zeros(2, 2).double())
        with pyro.plate("rows", NUM_ROWS, subsample=rows):
            pyro.sample("y", GridCRF(unary, torch.zeros(GRID.num_edges).double(), GRID), obs=LABELS[rows])

    optim = DistributedOptim(Adam({"lr": 0.1}), rows)
    learner, found = PseudoLikelihood(model, no_guide, optim), []
    for number in range(2):
        learner.step(number)
        found.append(values()["unary"])
    if rank == 1:
        pyro.param("shift", torch.ones(2, 2).double())
    for number in (2, 3, 4):
        learner.step(number)
        found += values().values()
    return found, text_of(learner.step, 5)


def part_of_a_plate():
    """A plate of the process' own rows only, which would count them less than priors."""
    begin()
    rows = shard_rows(NUM_ROWS)

    def model():
        with pyro.plate("rows", len(rows)):
            pyro.sample("y", GridCRF(pyro.param("unary", torch.zeros(2, 2)), torch.zeros(4), GRID), obs=LABELS[rows])

    return text_of(PseudoLikelihood(model, no_guide, DistributedOptim(Adam({"lr": 0.1}), rows)).step)


def interrupted_exchange():
    """Rank 1 is interrupted after an agreement, before what follows from it."""
    begin()
    rows = shard_rows(NUM_ROWS)
    learner = EXACT["PseudoLikelihood"](DistributedOptim(Adam({"lr": 0.1}), rows))
    learner.step(rows)
    if torch.distributed.get_rank() == 1:
        distributed_optim._average = lambda *_: signal.raise_signal(signal.SIGINT)
    return text_of(learner.step, rows)


def doing_other_things():
    begin()
    rows = shard_rows(NUM_ROWS)
    learner = EXACT["PseudoLikelihood"](DistributedOptim(Adam({"lr": 0.1}), rows))
    learner.step(rows)
    return text_of(*([learner.state_dict] if torch.distributed.get_rank() == 0 else [learner.step, rows]))


def stopping(kind):
    """Scores and values of early stopping, whose scores differ between processes; one process may fail in a score."""
    begin()
    rows, rank = shard_rows(NUM_ROWS), torch.distributed.get_rank()
    optim, scores = DistributedOptim(Adam({"lr": 0.05}), rows), iter([[0.0, 3, 0, 2, 0, 0], [0.0, 0, 4, 0, 0, 0]][rank])
    learner = SVI(regression, AutoDelta(regression), optim, Trace_ELBO())
    if kind == "start":
        pyro.set_rng_seed(rank)
        scores = iter([1.0, 0.0, 0.0, 0.0])
    if kind == "PCD":
        learner = RANDOM["PCD"](optim)
    seen = []

    def score():
        if kind == "fails" and rank == 1 and len(seen) == 2:
            raise ValueError("score: expected pictures, got none")
        seen.append(values())
        return next(scores)

    early = EarlyStopping(learner, score, num_steps=2, patience=3)
    text = text_of(lambda: seen.append(early.run(20, rows)))
    return text, seen, values()


def batches():
    """A model of random parts of the rows, with a network, running means, dropout and a schedule."""
    rows = shard_rows(NUM_ROWS)
    network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(3)).double()

    def model():
        pyro.module("network", network)
        batch = rows[torch.randperm(len(rows))[:40]]
        with pyro.plate("rows", NUM_ROWS, subsample=batch) as i:
            loc = network(X[i])
            pyro.sample("y", RandOM(dist.Normal(loc, 1.0).to_event(1), TopK(3, 1)), obs=CHOICES[i])

    return MCEM(model, no_guide, DistributedOptim(scheduled(StepLR, step_size=2), rows)), ()


def whole(kind, name):
    rows = shard_rows(NUM_ROWS)
    return kind[name](DistributedOptim(Adam({"lr": 0.1}), rows)), (rows,)


def stopped():
    rows = shard_rows(NUM_ROWS)
    optim = DistributedOptim(Adam({"lr": 0.1}), rows)
    svi = SVI(regression, AutoNormal(regression), optim, Trace_ELBO())
    return EarlyStopping(svi, lambda: float(torch.rand(())), num_steps=2, patience=100), (rows,)


RUNS = {
    "MCEM": batches,
    "PCD": lambda: whole(RANDOM, "PCD"),
    "PCD, one field": lambda: whole(RANDOM, "PCD, one field"),
    "PseudoLikelihood": lambda: whole(EXACT, "PseudoLikelihood"),
    "EarlyStopping": stopped,
}


def go_on(learner, arguments, until):
    if isinstance(learner, EarlyStopping):
        learner.run(until, *arguments)
        return
    for _ in range(3):
        learner.step(*arguments)
        if hasattr(learner.optim, "optim") and isinstance(learner.optim.optim, PyroLRScheduler):
            learner.optim.step()


def keep(state, path):
    if torch.distributed.get_rank() == 0:
        torch.save(state, path)


def kept_score(stopping, score, path):
    """A score, before which the state is kept once."""
    state = stopping.state_dict()
    if state["progress"]["num_steps"] == 4:
        keep(state, path)
    return score()


def killed_runs(folder):
    """Keeps states in the middle and at the end; then one process is killed in a step."""
    for name, make in RUNS.items():
        begin()
        learner, arguments = make()
        if isinstance(learner, EarlyStopping):
            learner.score = partial(kept_score, learner, learner.score, folder / f"{name}.state")
        else:
            go_on(learner, arguments, 4)
            keep(learner.state_dict(), folder / f"{name}.state")
        go_on(learner, arguments, 8)
        keep(learner.state_dict(), folder / f"{name}.full")
    return failures_of_svi("killed")[:2]


def resumed_runs(folder):
    """States of all learners, and after some further steps; numbers of the process' own rows."""
    found = {}
    for name, make in RUNS.items():
        begin()
        pyro.set_rng_seed(7)
        learner, arguments = make()
        learner.load_state_dict(torch.load(folder / f"{name}.state", weights_only=True))
        loaded = learner.state_dict()
        go_on(learner, arguments, 8)
        found[name] = loaded, learner.state_dict()
    return found, shard_rows(NUM_ROWS)


class Regression(PyroModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1, dtype=torch.double)
        self.scale = PyroParam(X.new_tensor(1.0), constraints.positive)

    def forward(self, rows):
        with pyro.plate("rows", NUM_ROWS, subsample=rows) as i:
            pyro.sample("y", dist.Normal(self.linear(X[i]).squeeze(-1), self.scale), obs=Y[i])


def data_parallel():
    """PyTorch's own wrapper of an ELBO as a module."""
    begin()
    rows, (_, size) = shard_rows(NUM_ROWS), rank_and_size()
    elbo = Trace_ELBO()(Regression(), no_guide)
    elbo(rows)  # makes all parameters
    wrapped = torch.nn.parallel.DistributedDataParallel(elbo) if size > 1 else elbo
    optim = torch.optim.Adam(elbo.parameters(), lr=0.05)
    for _ in range(15):
        optim.zero_grad()
        # The wrapper takes plain means over processes.
        (wrapped(rows) * (size * len(rows) / NUM_ROWS)).backward()
        optim.step()
    return {name: param.detach().clone() for name, param in elbo.named_parameters()}


def main(rank, size, path):
    torch.distributed.init_process_group("gloo", f"file://{path}", timedelta(seconds=60), int(size), int(rank))
    rows, model = shard_rows(NUM_ROWS), Failing(regression, "error")
    svi = SVI(model, AutoDelta(regression), DistributedOptim(Adam({"lr": 0.1}), rows), Trace_ELBO())
    for model.calls in range(5):
        svi.step(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
