"""Time and memory of fits against rows, columns and processes, beside the least that reading and arithmetic take.

Claims: ten times the rows take at most twelve times as long; two processes on two idle cores are at least 1.7 times as
fast as one, at 1e5 and at 1e6 rows.
"""

import json
import multiprocessing
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from benchmarks.densities.large_data import write_tree
from benchmarks.measurement import MachineLimits, Report, arguments, duration, ratio
from pyro_structured.inference import shard_rows
from pyro_structured.models import LatentTreeDensity, MEVMDensity, ThinJunctionTree

TEXT = """
Rows are zeros and ones in a memory-mapped file, a byte each, drawn from a random tree of columns; practically all of
them differ. *Junction tree*: `ThinJunctionTree()`. *Classes*: `MEVMDensity(n_components=20, n_init=1)`. *Latent tree*:
`LatentTreeDensity(max_iter=1)`: clusters to start from, and one pass through the rows. Each fit is made in a process of
its own on one thread, after one to a few rows, which loads what is needed; times are those of the clock, and memory is
the largest resident one during the fit, less that before it: pages of the file are in it.

*Least* is what the machine needs for reading the file once and for the products of matrices that the method is made of,
at the speed of a sum over memory and of a product of matrices of 1,024 rows, both measured in the same run: of the
N x 2n indicators of states with themselves, for the junction tree; of rows with the tables of 20 classes and back, in
every iteration, for classes; and three of 32 x 32 numbers for each row and column, for the latent tree.

*Processes*: `fit(X[rows], rows=shard_rows(n))` by one process and by two, each on one thread; times of the slower one.
Times of four and eight follow from a + b / P for P processes, where a and b are such that the measured times of one and
two fit: a is all that is not shared out, the search for cliques, what each process holds of all rows, and the exchange
of sums. Cores have to be idle.

*On paper*: 10^9 rows on 100 machines, one process each: a + b / 100, where a and b grow with the rows as they do
between the two numbers of rows that were measured; and what each process has to hold of all rows: some 40 bytes for
each row while rows are held out, and, for classes, some 60 more for each distinct one while starts are dealt. Neither
was run. Where memory does not allow for that, `X_val` does without the former, and `partial_fit` without both.
"""
TREE, CLASSES, LATENT = "junction tree", "classes", "latent tree"
NUM_CLASSES, NUM_STATES = 20, 32
ROWS, COLUMNS, FEW_COLUMNS, FEW_ROWS = (1_000, 10_000, 100_000, 1_000_000), (100, 400, 1556), 100, 5_000
SHARED_ROWS, WARM_ROWS = (100_000, 1_000_000), 100
MOST_GROWTH, LEAST_GAIN = 12.0, 1.7
PAPER_ROWS, PAPER_PROCESSES = 10**9, 100


class Cost(NamedTuple):
    """What a fit took.

    :ivar clock: Seconds.
    :ivar memory: Bytes.
    :ivar iterations: Number of passes through the rows that are made of products of matrices.
    """

    clock: float
    memory: float
    iterations: int


def estimator(name, seed):
    options = {"random_state": seed, "verbose": False}
    if name == TREE:
        return ThinJunctionTree(**options)
    if name == CLASSES:
        return MEVMDensity(n_components=NUM_CLASSES, n_init=1, **options)
    return LatentTreeDensity(n_states=NUM_STATES, max_iter=1, **options)


def resident(name):
    """Bytes of a process that Linux counts: resident ones now (``VmRSS``), or at most so far (``VmHWM``)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(name + ":")[2].split()[0]) * 1024


def fitted(name, values, seed, rows=None):
    # The largest number so far is set to that of now.
    Path("/proc/self/clear_refs").write_text("5")
    before, start = resident("VmRSS"), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = estimator(name, seed).fit(values, **({} if rows is None else {"rows": rows}))
    clock = time.perf_counter() - start
    return Cost(clock, resident("VmHWM") - before, model.n_iter_ if name == CLASSES else 1)


def share(name, number, seed, rank, size, folder):
    """Fits in one of several processes, and keeps the cost in a file."""
    torch.set_num_threads(1)
    # Products of numpy, too, take more threads than one.
    threadpool_limits(1)
    values = np.load(folder / "rows.npy", mmap_mode="r")
    rows, few = None, None
    if size > 1:
        torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=size)
        rows, few = shard_rows(number).numpy(), np.arange(rank, WARM_ROWS * size, size)
        values = values[rows]
    fitted(name, values[:WARM_ROWS], seed, few)
    if size > 1:
        torch.distributed.barrier()
    (folder / f"cost{rank}").write_text(json.dumps(fitted(name, values, seed, rows)))
    if size > 1:
        torch.distributed.destroy_process_group()
    (folder / "group").unlink(missing_ok=True)


def shared(name, number, size, folder, seed):
    """Cost of the slowest of several new processes that fit together."""
    context = multiprocessing.get_context("spawn")
    runs = [context.Process(target=share, args=(name, number, seed, rank, size, folder)) for rank in range(size)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
        assert run.exitcode == 0
    return max(Cost(*json.loads((folder / f"cost{rank}").read_text())) for rank in range(size))


class Limits(MachineLimits):
    """Least times of fits."""

    def least(self, name, rows, columns, iterations):
        """Least seconds of a fit."""
        if name == TREE:
            operations = 2 * rows * (2 * columns) ** 2 / self.double
        elif name == CLASSES:
            operations = iterations * 4 * rows * columns * NUM_CLASSES / self.double
        else:
            operations = 6 * rows * columns * NUM_STATES**2 / self.single
        return rows * columns / self.bytes + operations


def growth_rows(costs, limits, name, sizes):
    for rows, columns in sizes:
        cost = costs[name, rows, columns]
        least = limits.least(name, rows, columns, cost.iterations)
        cells = [duration(cost.clock), duration(least), ratio(cost.clock / least), f"{cost.memory / 1e6:,.0f} MB"]
        yield [name, f"{rows:,}", f"{columns:,}", *cells]


class Shares(NamedTuple):
    """Seconds a + b / P that a fit by P processes takes.

    :ivar fixed: Seconds a, which are not shared out.
    :ivar parted: Seconds b.
    """

    fixed: float
    parted: float

    @classmethod
    def of_times(cls, one, two):
        fixed = max(2 * two - one, 0.0)
        return cls(fixed, one - fixed)

    def time(self, number):
        return self.fixed + self.parted / number

    def grown(self, other, times):
        """Seconds for more rows: the increase up to ``other`` so many times."""
        return Shares(*(first + times * max(last - first, 0.0) for first, last in zip(self, other, strict=True)))


def processes(report, names, numbers, columns, options):
    """Adds the table of several processes; what is shared out for each learner and number of rows."""
    shares, table = {}, []
    for number in numbers:
        with tempfile.TemporaryDirectory() as place:
            write_tree(Path(place) / "rows.npy", number, columns, options.seed).flush()
            for name in names:
                one, two = (shared(name, number, size, Path(place), options.seed).clock for size in (1, 2))
                report.progress(f"{name}, {number}: {duration(one)}, {duration(two)}")
                shares[name, number] = found = Shares.of_times(one, two)
                predicted = [ratio(one / found.time(processes)) for processes in (4, 8)]
                table.append([name, f"{number:,}", duration(one), duration(two), ratio(one / two), *predicted])
                what = f"{name}, {number:,} rows: two processes over one"
                report.claim(what, f">= {LEAST_GAIN}x", ratio(one / two), one / two >= LEAST_GAIN)
    header = ["learner", "rows", "one", "two", "times as fast", "four (model)", "eight (model)"]
    report.table("Processes", header, table)
    return shares


def on_paper(names, shares):
    """Title, header and rows of the table of a billion rows."""
    rows, (few, many) = [], SHARED_ROWS
    for name in names:
        grown = shares[name, few].grown(shares[name, many], (PAPER_ROWS - few) / (many - few))
        held = PAPER_ROWS * (40 + (60 if name == CLASSES else 0))
        times = (grown.fixed, grown.parted / PAPER_PROCESSES, grown.time(PAPER_PROCESSES))
        rows.append([name, *map(duration, times), f"{held / 1e9:.0f} GB"])
    title = f"On paper: {PAPER_ROWS:,} rows, {PAPER_PROCESSES} machines"
    return title, ["learner", "not shared out", "shared out", "a fit", "held of all rows"], rows


def draw(report, costs, limits, by_rows, by_columns):
    fig, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for ax, sizes, place, label in ((axes[0], by_rows, 0, "rows"), (axes[1], by_columns, 1, "columns")):
        for color, name in enumerate((TREE, CLASSES, LATENT)):
            x = [size[place] for size in sizes]
            found = [costs[(name, *size)] for size in sizes]
            least = [limits.least(name, *size, cost.iterations) for size, cost in zip(sizes, found, strict=True)]
            ax.loglog(x, [cost.clock for cost in found], "o-", color=f"C{color}", label=name)
            ax.loglog(x, least, ":", color=f"C{color}")
        ax.set(xlabel=label, ylabel="seconds of a fit")
    axes[0].set_title(f"{FEW_COLUMNS} columns")
    axes[1].set_title(f"{by_columns[0][0]:,} rows")
    axes[0].legend(title="dotted: least")
    fig.savefig(report.picture("growth", "Time of fits against rows and columns, with the least time of each"), dpi=110)
    plt.close(fig)


def main():
    options = arguments(__doc__)
    report, limits = Report("Growth", TEXT, options), Limits(options.seed)
    rows, columns = ((300,), (10,)) if options.quick else (ROWS, COLUMNS)
    few_columns, few_rows, shared_rows = (10, 300, (300,)) if options.quick else (FEW_COLUMNS, FEW_ROWS, SHARED_ROWS)
    by_rows, by_columns = [(each, few_columns) for each in rows], [(few_rows, each) for each in columns]
    names = (TREE,) if options.quick else (TREE, CLASSES, LATENT)
    costs = {}
    for size in dict.fromkeys(by_rows + by_columns):
        with tempfile.TemporaryDirectory() as place:
            write_tree(Path(place) / "rows.npy", *size, options.seed).flush()
            for name in names:
                costs[(name, *size)] = shared(name, size[0], 1, Path(place), options.seed)
                report.progress(f"{name}, {size}: {costs[(name, *size)]}")
    header = ["learner", "rows", "columns", "clock", "least", "over least", "memory"]
    report.paragraph(
        f"Speed of this machine on one thread: {limits.bytes / 1e9:.1f} GB/s of a sum, {limits.double / 1e9:.0f} "
        f"Gflop/s of products in float64, {limits.single / 1e9:.0f} in float32."
    )
    for title, sizes in (("Rows", by_rows), ("Columns", by_columns)):
        report.table(title, header, [row for name in names for row in growth_rows(costs, limits, name, sizes)])
    shares = processes(report, names[:2], shared_rows, few_columns, options)
    if not options.quick:
        draw(report, costs, limits, by_rows, by_columns)
        report.table(*on_paper(names[:2], shares))
        for name in names:
            last, before = (costs[name, number, few_columns].clock for number in (rows[-1], rows[-2]))
            wanted = f"<= {MOST_GROWTH:.0f}x"
            report.claim(
                f"{name}: {rows[-1]:,} rows over {rows[-2]:,}",
                wanted,
                ratio(last / before),
                last / before <= MOST_GROWTH,
            )
    report.finish()


if __name__ == "__main__":
    main()
