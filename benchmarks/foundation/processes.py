"""Time of a step of learning in one process and in two, each on one thread, for models of many rows.

Claim: two processes on two idle cores take a step over 1e5 rows at least 1.7 times as fast as one.
"""

import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta

from benchmarks.measurement import Report, arguments, duration, ratio
from pyro_structured.distributions import GridCRF, RandOM, RecursiveCardinality
from pyro_structured.inference import MCEM, ContrastiveDivergence, DistributedOptim, PseudoLikelihood, shard_rows
from pyro_structured.structures import Grid, TopK

TEXT = """
Every process has one thread, all rows are seen in every step, and the processes exchange gradients before it
(`DistributedOptim`, gloo). Here, times are those of the clock, of a step, the slower process'; medians of runs in turn.
The cores have to be idle: with other work on them, times of the clock are of that work; processor seconds are of the
processes themselves.

Models: *counts*: `SVI` of a `RecursiveCardinality` over 16 variables with features of rows; *field*: `PseudoLikelihood`
of a `GridCRF` on 6 x 6 pixels with features of pixels; *chains*: `ContrastiveDivergence` of the same with persistent
chains; *costs*: `MCEM` of the best two of five items, with costs that depend on features of rows.
"""
GRID = Grid(6, 6)
MOST_SECONDS = 600


def no_guide(*args):
    pass


def counts(rows, number, features):
    weights = pyro.param("weights", torch.zeros(16))
    table = pyro.param("table", torch.zeros(17))
    values = (features[:, :16] > 0).float()
    with pyro.plate("rows", number, subsample=rows):
        pyro.sample("y", RecursiveCardinality(weights * features[:, 16:32], table), obs=values)


def field(rows, number, features):
    scale, penalty = pyro.param("scale", torch.tensor(0.0)), pyro.param("penalty", torch.tensor(0.1))
    pictures = features.reshape(-1, 6, 6)
    with pyro.plate("rows", number, subsample=rows):
        law = GridCRF(scale * pictures, penalty.expand(GRID.num_edges), GRID)
        pyro.sample("y", law, obs=(pictures > 0.3).float())


def costs(rows, number, features):
    weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    parts = features[:, :15].reshape(-1, 5, 3)
    with pyro.plate("rows", number, subsample=rows):
        base = dist.Normal(parts @ weights, 1.0).to_event(1)
        pyro.sample("y", RandOM(base, TopK(5, 2)), obs=TopK(5, 2).solve(parts.sum(-1)))


LEARNERS = {
    "counts": lambda optim: SVI(counts, no_guide, optim, Trace_ELBO()),
    "field": lambda optim: PseudoLikelihood(field, no_guide, optim),
    "chains": lambda optim: ContrastiveDivergence(field, no_guide, optim, persistent=True),
    "costs": lambda optim: MCEM(costs, AutoDelta(costs), optim),
}


def learn(name, number, steps, rank, size, folder):
    """Keeps the seconds of a step of one of the processes, of the clock and of its processor, in a file."""
    torch.set_num_threads(1)
    if size > 1:
        torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=size)
    pyro.set_rng_seed(0)
    rows = shard_rows(number)
    features = torch.randn(number, 36, generator=torch.Generator().manual_seed(1))[rows]
    learner = LEARNERS[name](DistributedOptim(pyro.optim.Adam({"lr": 0.01}), rows))
    data = (rows, number, features)
    learner.step(*data)
    learner.step(*data)
    clocks = (time.perf_counter, time.process_time)
    starts = [clock() for clock in clocks]
    for _ in range(steps):
        learner.step(*data)
    seconds = [(clock() - start) / steps for clock, start in zip(clocks, starts, strict=True)]
    (Path(folder) / f"seconds{rank}").write_text(json.dumps(seconds))


def step_seconds(name, number, steps, size):
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        runs = [context.Process(target=learn, args=(name, number, steps, rank, size, folder)) for rank in range(size)]
        for run in runs:
            run.start()
        for run in runs:
            run.join(MOST_SECONDS)
            run.kill()
        seconds = [json.loads((Path(folder) / f"seconds{rank}").read_text()) for rank in range(size)]
        return [max(each) for each in zip(*seconds, strict=True)]


def main():
    options = arguments(__doc__, steps=(5, "steps of a measurement"))
    numbers = [400] if options.quick else [10_000, 100_000]
    names = ["field"] if options.quick else list(LEARNERS)
    if options.quick:
        options.steps = 1
    report = Report("Several processes", TEXT, options)
    table, gains = [], []
    for name in names:
        for number in numbers:
            times = {size: [] for size in (1, 2)}
            for _ in range(min(options.repeats, 3)):
                for size, seconds in times.items():
                    seconds.append(step_seconds(name, number, options.steps, size))
            medians = [map(statistics.median, zip(*seconds, strict=True)) for seconds in times.values()]
            (one, one_busy), (two, two_busy) = medians
            report.progress(f"{name}, {number} rows: {duration(one)}, {duration(two)}")
            shown = [duration(one), duration(two), ratio(one / two), ratio(one_busy / two_busy)]
            table.append([name, number, *shown])
            if number == numbers[-1]:
                gains.append(one / two)
    wanted = f"two processes over one, {numbers[-1]} rows, the least of all learners"
    report.claim(wanted, "at least 1.7x", ratio(min(gains)), min(gains) >= 1.7)
    header = ["learner", "rows", "one process", "two", "times as fast", "the same by processor seconds of a process"]
    report.table("Seconds of a step", header, table)
    report.finish()


if __name__ == "__main__":
    main()
