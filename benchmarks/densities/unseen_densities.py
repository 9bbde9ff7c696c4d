"""Defaults on other binary sets than those of default densities, with their given splits: the stack beside its members.

Claims: on every set, `StackedDensity()` with its defaults is at most .05 nats per test row below its best member, at
least as good as one latent tree, and takes at most 5 processor minutes, 15 for more than 200 columns.
"""

import os
from pathlib import Path

import numpy as np

from benchmarks.densities.default_densities import (
    BEHIND,
    MOST_SECONDS,
    MOST_WIDE_SECONDS,
    POMEGRANATE,
    STACK,
    TREE,
    WIDE,
    best_member,
    latent_tree,
    member_rows,
    nats,
    pomegranate,
    stack,
)
from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets.density_data import DensityData

TEXT = """
The sets are of the Density Estimation Benchmark Datasets (https://github.com/arranger1044/DEBD), without those of
[default densities](default_densities.md); `PYRO_STRUCTURED_DEBD` names the folder that has `NAME/NAME.train.data`,
`valid` and `test`. Every model has its defaults, learns from the training rows, and has the validation rows as `X_val`;
the test rows judge. Figures of mushrooms, dna and accidents, those of test rows
too, were seen while the members' numbers of starts and of states were chosen, so that they are no proof; pumsb_star,
nips and bbc were first read for this page.

*Best member*: the one of the stack's members that gives the test rows the largest probability. *One latent tree*:
`LatentTreeDensity()`. *pomegranate*: as on that page, a mixture of products of independent columns.
"""
FOLDER = "PYRO_STRUCTURED_DEBD"
SETS = ("mushrooms", "dna", "accidents", "pumsb_star", "nips", "bbc")
QUICK, FEW_ROWS, FEW_COLUMNS = SETS[:1], 300, 6


def read(name):
    stem = Path(os.environ[FOLDER]) / name / name
    parts = (np.loadtxt(f"{stem}.{part}.data", np.uint8, delimiter=",") for part in ("train", "valid", "test"))
    return DensityData(*parts)


def main():
    options = arguments(__doc__)
    report = Report("Unseen densities", TEXT, options)
    if not os.environ.get(FOLDER):
        report.claim("all", "data", f"skipped: set {FOLDER} to the folder of the sets", False)
        options.write = False
        report.finish()
        return
    tests, times, members = [], [], []
    for name in QUICK if options.quick else SETS:
        data = read(name)
        if options.quick:
            data = data._make(each[:FEW_ROWS, :FEW_COLUMNS] for each in data)
        figures = {"shape": data.train.shape}
        for contestant, run in {STACK: stack, TREE: latent_tree, POMEGRANATE: pomegranate}.items():
            try:
                figures[contestant] = run(data, options.seed)
            except ModuleNotFoundError:
                report.progress(f"{contestant} is not installed")
        report.progress(f"{name}: {figures}")
        ours, best, tree = figures[STACK]["test"], best_member(figures), figures[TREE]["test"]
        gain = ours - best["test"]
        report.claim(f"{name}: over best member", f">= {-BEHIND}", f"{gain:+.3f}", gain >= -BEHIND)
        report.claim(f"{name}: over one latent tree", ">= 0", f"{ours - tree:+.3f}", ours >= tree)
        most = MOST_SECONDS if data.train.shape[1] <= WIDE else MOST_WIDE_SECONDS
        seconds = figures[STACK]["seconds"]
        report.claim(f"{name}: processor seconds", f"<= {most:.0f}", f"{seconds:.0f}", seconds <= most)
        size = f"{data.train.shape[0]:,} x {data.train.shape[1]}"
        peer = nats(figures.get(POMEGRANATE, {}).get("test"))
        tests.append([name, size, f"**{nats(ours)}**", f"{best['name']} {nats(best['test'])}", nats(tree), peer])
        times.append([name, *(duration(figures.get(c, {}).get("seconds")) for c in (STACK, TREE, POMEGRANATE))])
        members += member_rows(name, figures)
    report.table("Nats per test row", ["data", "training rows", STACK, "best member", TREE, POMEGRANATE], tests)
    report.table("Time of a fit, processor", ["data", STACK, TREE, POMEGRANATE], times)
    report.table("Members", ["data", "member", "validation", "test", "weight", "clock", "note"], members)
    report.finish()


if __name__ == "__main__":
    main()
