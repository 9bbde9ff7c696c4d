"""Estimators on rows that do not fit comfortably into memory, and on many columns: time, peak memory, equal results."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import load_density
from pyro_structured.models import MEVMDensity, ThinJunctionTree

ROOT = Path(__file__).parents[2]
# Rows that are drawn and written at once, new rows, and nats that these may lose where pieces are learned from.
PIECE, NEW_ROWS, BEHIND = 50_000, 20_000, 0.01
# Rows of a piece to learn from.
PIECES = {"file in ten pieces": 100_000, "file in five pieces": 200_000}
TEXT = """
Each fit is made in a process of its own, whose largest resident memory is shown: that of Python, torch and the pages of
the file is in it. *File*: zeros and ones in a byte each, memory-mapped, of which practically all rows differ, drawn
from a random tree of 100 columns. *Wide*: the same for 1,556 columns. *Topics*: 20,000 x 900 drawn words, 4 % ones, in
eight topics. *c20ng*: 18,821 texts, 910 words, 5 % ones. Equal: the largest difference of the tables, where structures
and settings are the same, between the fit from the file and that from the same rows as 64-bit integers.

*File in pieces*: `partial_fit` of one piece of 100,000 or 200,000 rows after the other, each of which is read once; the
first one gives cliques, or blocks. *Behind*: how many nats a row the mean log-probability of 20,000 new rows is smaller
than after `fit` to all rows.
"""


def write_tree(path, rows, columns, seed):
    """File of rows drawn from a tree of binary columns, each a noisy copy of one of the five before it."""
    rng = np.random.default_rng(seed)
    file = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, columns))
    parents = [int(rng.integers(max(0, d - 5), d)) if d else 0 for d in range(columns)]
    noise = rng.uniform(0.1, 0.4, columns)
    for start in range(0, rows, PIECE):
        number = min(PIECE, rows - start)
        drawn = np.empty((columns, number), np.uint8)
        drawn[0] = rng.random(number) < 0.5
        for d in range(1, columns):
            drawn[d] = drawn[parents[d]] ^ (rng.random(number) < noise[d])
        file[start : start + number] = drawn.T
    return file


def topics(rows, columns, seed):
    rng = np.random.default_rng(seed)
    shares = rng.gamma(0.3, size=(8, columns))
    shares = (0.04 * shares / shares.mean()).clip(0.002, 0.6)
    return (rng.random((rows, columns)) < shares[rng.integers(8, size=rows)]).astype(np.uint8)


def tree(seed):
    return ThinJunctionTree(random_state=seed, verbose=False)


def classes(seed):
    return MEVMDensity(n_components=20, n_init=1, random_state=seed, verbose=False)


def ten_starts(seed):
    return MEVMDensity(random_state=seed, verbose=False)


def texts():
    return np.concatenate(load_density("c20ng"))


# Name, estimator, data, rows, columns, and the largest seconds and GB that are wanted.
CASES = (
    ("ThinJunctionTree", tree, "file", 1_000_000, 100, 120, 2.0),
    ("ThinJunctionTree", tree, "wide", 5_000, 1556, 60, None),
    ("MEVMDensity, 20 classes, one start", classes, "file", 1_000_000, 100, 120, 2.0),
    ("MEVMDensity", ten_starts, "topics", 20_000, 900, 120, None),
    ("MEVMDensity", ten_starts, "topics, sparse", 20_000, 900, 120, None),
    ("MEVMDensity", ten_starts, "c20ng", 18_821, 910, 120, None),
    ("ThinJunctionTree", tree, "file in ten pieces", 1_000_000, 100, 120, 2.0),
    ("MEVMDensity, 20 classes, one start", classes, "file in ten pieces", 1_000_000, 100, 120, 2.0),
    ("MEVMDensity, 20 classes, one start", classes, "file in five pieces", 1_000_000, 100, 120, 2.0),
    ("ThinJunctionTree", tree, "file and integers", 100_000, 100, None, None),
    ("MEVMDensity, 20 classes, one start", classes, "file and integers", 100_000, 100, None, None),
)
# Cases of a smoke run.
QUICK = (4, len(CASES) - 1)


def difference(one, other):
    """Largest difference of the tables; infinite if structures or settings are others."""
    if isinstance(one, ThinJunctionTree):
        if (one.tree_, one.smoothing_) != (other.tree_, other.smoothing_):
            return np.inf
    elif one.n_iter_ != other.n_iter_ or not bool((one.partition_.labels == other.partition_.labels).all()):
        return np.inf
    logits = [getattr(each.to_pyro(), "clique_logits", None) for each in (one, other)]
    if logits[0] is None:
        logits = [each.to_pyro().mixture_logits for each in (one, other)]
    return float((logits[0] - logits[1]).abs().max())


def measure(case, folder, options):
    """Figures of a fit, made in this process."""
    _, make, kind, rows, columns, *_ = CASES[case]
    if options.quick:
        rows, columns = 300, 8
    if kind == "c20ng":
        values = texts()
    elif kind.startswith("topics"):
        values = topics(rows, columns, options.seed)
        values = csr_matrix(values) if "sparse" in kind else values
    else:
        number = rows + NEW_ROWS * (kind in PIECES)
        write_tree(folder / "rows.npy", number, columns, options.seed).flush()
        values = np.load(folder / "rows.npy", mmap_mode="r")
        values, new = values[:rows], values[rows:]
    start = time.perf_counter(), time.process_time()
    model = make(options.seed)
    if kind in PIECES:
        for first in range(0, rows, PIECES[kind]):
            model.partial_fit(values[first : first + PIECES[kind]])
    else:
        model.fit(values)
    figures = {"clock": time.perf_counter() - start[0], "seconds": time.process_time() - start[1]}
    figures["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    if kind in PIECES:
        figures["behind"] = make(options.seed).fit(values).score(new) - model.score(new)
    if kind == "file and integers":
        figures["difference"] = difference(model, make(options.seed).fit(np.array(values, dtype=np.int64)))
    return figures


def measured(case, options):
    """Figures of a fit, made in a new process."""
    command = [sys.executable, "-m", "benchmarks.densities.large_data", f"--case={case}", f"--seed={options.seed}"]
    command += ["--quick"] if options.quick else []
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    printed = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(printed.stdout.splitlines()[-1])


def main():
    options = arguments(__doc__, case=(-1, "number of a single fit, whose figures are printed"))
    if options.case >= 0:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(options.case, Path(folder), options)))
        return
    report = Report("Large data", TEXT, options)
    table = []
    for case, (name, _, kind, rows, columns, most_seconds, most_memory) in enumerate(CASES):
        if options.quick and case not in QUICK:
            continue
        figures = measured(case, options)
        what = f"{name}: {kind}, {rows:,} x {columns:,}"
        report.progress(f"{what}: {figures}")
        memory = f"{figures['memory']:.2f} GB"
        table.append(
            [name, kind, f"{rows:,}", f"{columns:,}", duration(figures["seconds"]), duration(figures["clock"]), memory]
        )
        if most_seconds:
            report.claim(what, f"<= {most_seconds} s", duration(figures["clock"]), figures["clock"] <= most_seconds)
        if most_memory:
            report.claim(what, f"<= {most_memory} GB", memory, figures["memory"] <= most_memory)
        if "behind" in figures:
            behind = figures["behind"]
            report.claim(f"{what}: behind", f"<= {BEHIND} nats", f"{behind:.4f}", behind <= BEHIND)
        if "difference" in figures:
            gap = figures["difference"]
            report.claim(f"{what}: equal", "<= 1e-9", f"{gap:.1e}", gap <= 1e-9)
    header = ["estimator", "data", "rows", "columns", "processor", "clock", "peak memory"]
    report.table("Time and memory of a fit", header, table)
    report.finish()


if __name__ == "__main__":
    main()
