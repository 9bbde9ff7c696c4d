"""Interleaved timing, and tables that name the machine, the versions and the command that made them."""

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

# The peers (numpy's transforms, functions compiled by numba) use one thread in any case.
torch.set_num_threads(1)

DOCS = Path(__file__).parents[1] / "docs"
PACKAGES = (
    "torch",
    "pyro-ppl",
    "numpy",
    "scipy",
    "scikit-learn",
    "python-flint",
    "fast-poibin",
    "numba",
    "pyagrum",
    "pgmpy",
    "pomegranate",
    "pymaxflow",
    "spflow",
)
# Seconds: longer runs need neither a warm-up nor many repeats.
LONG_RUN, VERY_LONG_RUN = 1.0, 10.0
SHORTEST_MEASUREMENT = 0.02


def arguments(description, **extra):
    """Reads the options that every benchmark has, and integer options of its own with their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smoke run at small sizes; its numbers mean nothing")
    parser.add_argument("--write", action="store_true", help="store the tables under docs/benchmarks")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each contestant, in turn")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs")
    for name, (default, text) in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=text)
    options = parser.parse_args()
    if options.quick:
        options.repeats = 1
    torch.manual_seed(options.seed)
    return options


def seconds(run, loops=1):
    """Processor seconds of one call: on one thread those of the clock, without what other processes took."""
    start = time.process_time()
    for _ in range(loops):
        run()
    return (time.process_time() - start) / loops


def interleaved(contestants, repeats):
    """Median processor seconds of functions that are called in turn, each time after a call that warms up.

    A call that takes longer than a second is its own warm-up, and is made at most three times in all; once, if it takes
    longer than ten seconds.
    """
    first = {}
    for name, run in contestants.items():
        first[name] = seconds(run)
        print(f"{name}: {duration(first[name])}", file=sys.stderr, flush=True)
    loops = {name: max(1, round(SHORTEST_MEASUREMENT / max(t, 1e-6))) for name, t in first.items()}
    wanted = {n: repeats if t <= LONG_RUN else min(repeats, 3) if t <= VERY_LONG_RUN else 1 for n, t in first.items()}
    times = {name: [t] if t > LONG_RUN else [] for name, t in first.items()}
    for _ in range(repeats):
        for name, run in contestants.items():
            if len(times[name]) >= wanted[name]:
                continue
            if first[name] < LONG_RUN / 4:
                run()
            times[name].append(seconds(run, loops[name]))
    return {name: statistics.median(t) for name, t in times.items()}


def duration(value):
    """A readable time; a dash for what was not measured."""
    if value is None:
        return "–"
    if value >= 0.995:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms"


def ratio(value):
    """A readable factor."""
    return "–" if value is None else f"{value:.3g}x"


def size(number):
    """A number of variables, as a power of two where it is one and large."""
    exponent = number.bit_length() - 1
    return f"2^{exponent}" if number == 2**exponent and exponent > 12 else str(number)


def small(value):
    """An error or a bound in two digits."""
    return "–" if value is None else "0" if value == 0 else f"{value:.1e}"


def environment(seed):
    """One paragraph: machine, threads, versions and seed."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    threads = torch.get_num_threads()
    return (
        f"{model} ({platform.machine()}, {platform.system()}), float64, {threads} thread; seed {seed}; "
        f"{', '.join(versions)}. Times are medians of processor seconds, contestants called in turn in one process."
    )


class MachineLimits:
    """Bytes and operations a second of this machine, on one thread."""

    def __init__(self, seed):
        memory = np.ones(2**24)
        self.bytes = memory.nbytes / self._seconds(memory.sum)
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(1024, 1024, dtype=torch.double, generator=generator)
        self.double = 2 * 1024**3 / self._seconds(lambda: matrix @ matrix)
        single = matrix.float()
        self.single = 2 * 1024**3 / self._seconds(lambda: single @ single)

    @staticmethod
    def _seconds(run):
        run()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)


class Report:
    """Collects sections of one benchmark; prints them, and writes them where the documentation shows them."""

    def __init__(self, title, text, options):
        self.options = options
        script = Path(sys.argv[0])
        self.name = script.stem
        command = shlex.join(["python", "-m", f"benchmarks.{script.parent.name}.{self.name}", *sys.argv[1:]])
        self.parts = [f"# {title}", text.strip(), f"Command: `{command}`", environment(options.seed)]
        self.claims = []
        self._position = len(self.parts)

    @staticmethod
    def progress(text):
        print(text, file=sys.stderr, flush=True)

    def paragraph(self, text):
        self.parts.append(text)

    def table(self, title, header, rows):
        self.parts += [f"## {title}", _markdown(header, rows)]

    def claim(self, text, wanted, measured, met):
        """Adds a row to the table of claims, which comes first."""
        self.claims.append([text, wanted, measured, "yes" if met else "**no**"])

    def claim_gain(self, text, gain, error):
        """A claim that a mean difference, with its standard error, is above 0."""
        gained = gain > 2 * error
        self.claim(text, "> 0, beyond 2 s.e.", f"{gain:+.3f} ± {error:.3f}" + ", no gain" * (not gained), gained)

    def lacks(self, file):
        """Whether the folder of real data is not there; then the tables say so, and the documentation keeps its own."""
        if os.environ.get("PYRO_STRUCTURED_DATA"):
            return False
        self.claim("all", "data", f"skipped: set PYRO_STRUCTURED_DATA to a folder with {file}", False)
        self.options.write = False
        return True

    def picture(self, name, description):
        """Where to save a picture; the page shows it."""
        path = DOCS / "images" / f"benchmark_{name}.png"
        self.parts.append(f"![{description}](../images/{path.name})")
        return path

    def finish(self):
        parts = list(self.parts)
        if self.claims:
            parts[self._position : self._position] = [
                "## Claims",
                _markdown(["claim", "wanted", "measured", "met"], self.claims),
            ]
        text = "\n\n".join(parts) + "\n"
        print(text)
        if self.options.write:
            path = DOCS / "benchmarks" / f"{self.name}.md"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)


def _markdown(header, rows):
    cells = [[str(c) for c in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
