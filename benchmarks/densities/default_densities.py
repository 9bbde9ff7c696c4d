"""Defaults on twelve public sets with their given splits: the stack, its members, two peers, the paper's figures.

Claims: on every set, `StackedDensity()` with its defaults gives the test rows at least a given mean log-probability, is
at most .05 nats below its best member, and takes at most 5 processor minutes, 15 for more than 200 columns.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import load_density
from pyro_structured.models import LatentTreeDensity, StackedDensity

ROOT = Path(__file__).parents[2]
TEXT = """
Every model has its defaults. It learns from the training rows, with `X_val`: the validation rows end learning and
choose settings and weights; the test rows judge, and nothing was chosen by them. Each set is measured in a process of
its own.

*Stack*: `StackedDensity()`. *Best member*: the one of its members that gives the test rows the largest probability.
*One latent tree*: `LatentTreeDensity()`, the strongest control, one tree of 32 states; the stack has four, of 64
states (32 for more than 200 columns).

Peers, installed by `pip install pomegranate spflow`: *pomegranate*, a mixture of 32 products of independent columns,
the simplest control, by expectation maximisation with .1 pseudo-observations, starts within 40 % of the columns' means;
*SPFlow*, an Einet of 16 sums, 16 leaves, 5 repetitions and depth 2, or 3 for more than 32 columns, Adam with step .05
and batches of 250 rows. Both stop after three passes (five iterations, for pomegranate) without gain on the validation
rows, or after the pass in which 60 processor seconds are over, and keep the best pass. SPFlow's hidden Chow-Liu trees
have a single state per node above the leaves, in version 1.1.0, and can learn independent columns only.

*Paper*: test figures that Niepert and Domingos (2014), Table 5, give for their mixture of exchangeable variable models
and for latent trees.

*Members*: those of weight 0 are not kept, so that they have no test figure; their seconds are those of the clock.
"""


class Case(NamedTuple):
    """What is wanted of the stack; the paper's figures of its mixture and of latent trees."""

    wanted: float
    mixture: float
    latent_tree: float


CASES = {
    "nltcs": Case(-6.00, -6.04, -6.46),
    "msnbc": Case(-6.05, -6.23, -6.52),
    "kdd": Case(-2.12, -2.13, -2.18),
    "plants": Case(-12.25, -14.86, -16.39),
    "baudio": Case(-39.25, -40.63, -41.89),
    "jester": Case(-52.10, -53.22, -55.17),
    "bnetflix": Case(-56.30, -57.84, -58.53),
    "msweb": Case(-9.60, -9.96, -10.21),
    "book": Case(-33.65, -34.63, -34.23),
    "cwebkb": Case(-149.6, -157.21, -156.84),
    "cr52": Case(-82.7, -86.98, -91.25),
    "c20ng": Case(-150.4, -152.69, -156.77),
}
# Names of sets in a smoke run, and rows and columns that are kept there.
QUICK, FEW_ROWS, FEW_COLUMNS = ("nltcs",), 300, 6
# Columns beyond which the stack may take longer; processor seconds that it may take.
WIDE, MOST_SECONDS, MOST_WIDE_SECONDS = 200, 300.0, 900.0
BEHIND = 0.05
# Limits of the peers: processor seconds, and passes without gain.
PEER_SECONDS, PATIENCE = 60.0, 3
STACK, TREE, POMEGRANATE, SPFLOW = "stack", "one latent tree", "pomegranate", "SPFlow"


def scored(model, data):
    return {"validation": model.score(data.validation), "test": model.score(data.test)}


def codes_of(model, rows):
    """Codes from which members learn; those of values that training rows lack come last."""
    pairs = zip(rows.T, model.categories_, strict=True)
    codes = [np.where(np.isin(column, known), np.searchsorted(known, column), len(known)) for column, known in pairs]
    return np.stack(codes, 1)


def stack(data, seed):
    start = time.process_time(), time.perf_counter()
    model = StackedDensity(random_state=seed, verbose=False).fit(data.train, X_val=data.validation)
    figures = {"seconds": time.process_time() - start[0], "clock": time.perf_counter() - start[1]}
    codes = codes_of(model, data.test)
    tests = {name: estimator.score(codes) for name, estimator in model.estimators_.items()}
    members = [{**member._asdict(), "test": tests.get(member.name)} for member in model.members_]
    return {**figures, **scored(model, data), "members": members}


def latent_tree(data, seed):
    start = time.process_time()
    model = LatentTreeDensity(random_state=seed, verbose=False).fit(data.train, X_val=data.validation)
    return {"seconds": time.process_time() - start, **scored(model, data)}


def stopped_early(passes, score):
    """Figures of the best of a peer's passes: ``score`` gives its validation and test figures, the latter if asked."""
    start, best, test, waited = time.process_time(), -np.inf, np.nan, 0
    for _ in passes:
        validation = score("validation")
        waited += 1
        if validation > best:
            best, test, waited = validation, score("test"), 0
        if waited == PATIENCE or time.process_time() - start > PEER_SECONDS:
            break
    return {"seconds": time.process_time() - start, "validation": best, "test": test}


def pomegranate(data, seed):
    from pomegranate.distributions import Categorical
    from pomegranate.gmm import GeneralMixtureModel

    values = {name: torch.from_numpy(getattr(data, name)).long() for name in data._fields}
    generator = torch.Generator().manual_seed(seed)
    means = values["train"].double().mean(0).float()
    ones = [(means * (0.6 + 0.8 * torch.rand(len(means), generator=generator))).clamp(0.01, 0.99) for _ in range(32)]
    parts = [Categorical(torch.stack([1 - each, each], 1), pseudocount=0.1) for each in ones]
    model = GeneralMixtureModel(parts, max_iter=5, tol=0.0)

    def passes():
        while True:
            yield model.fit(values["train"])

    return stopped_early(passes(), lambda name: float(model.log_probability(values[name]).mean()))


def spflow(data, seed):
    from spflow.meta import Scope
    from spflow.modules.leaves import Bernoulli
    from spflow.zoo.einet import Einet

    torch.manual_seed(seed)
    values = {name: torch.from_numpy(getattr(data, name)).float() for name in data._fields}
    number = values["train"].shape[1]
    leaves = Bernoulli(scope=Scope(list(range(number))), out_channels=16, num_repetitions=5)
    depth = 1 if number < 16 else 2 if number <= 32 else 3
    model = Einet([leaves], num_sums=16, num_leaves=16, depth=depth, num_repetitions=5, layer_type="einsum")
    optim = torch.optim.Adam(model.parameters(), lr=0.05)

    def passes():
        start = time.process_time()
        while True:
            for batch in torch.randperm(len(values["train"])).split(250):
                loss = -model.log_likelihood(values["train"][batch]).mean()
                optim.zero_grad()
                loss.backward()
                optim.step()
                if time.process_time() - start > PEER_SECONDS:
                    break
            yield

    def score(name):
        with torch.no_grad():
            parts = [model.log_likelihood(part).reshape(-1) for part in values[name].split(2000)]
        return float(torch.cat(parts).mean())

    return stopped_early(passes(), score)


def measure(name, options):
    """Figures of all contestants on a set, in this process; none of peers that are not installed."""
    data = load_density(name)
    if options.quick:
        data = data._make(each[:FEW_ROWS, :FEW_COLUMNS] for each in data)
    figures = {}
    for contestant, run in {STACK: stack, TREE: latent_tree, POMEGRANATE: pomegranate, SPFLOW: spflow}.items():
        try:
            figures[contestant] = run(data, options.seed)
        except ModuleNotFoundError:
            warnings.warn(f"{contestant} is not installed", stacklevel=1)
    return {"shape": data.train.shape, **figures}


def measured(name, options):
    """Figures of all contestants, in a new process."""
    command = [sys.executable, "-m", "benchmarks.densities.default_densities", f"--seed={options.seed}"]
    command += [f"--number={list(CASES).index(name)}"] + ["--quick"] * options.quick
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    printed = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(printed.stdout.splitlines()[-1])


def nats(value):
    return "–" if value is None else f"{value:.3f}"


def claims(report, name, figures):
    ours, best = figures[STACK]["test"], best_member(figures)["test"]
    report.claim(f"{name}: nats per test row", f">= {CASES[name].wanted}", nats(ours), ours >= CASES[name].wanted)
    report.claim(f"{name}: over best member", f">= {-BEHIND}", f"{ours - best:+.3f}", ours - best >= -BEHIND)
    most = MOST_SECONDS if figures["shape"][1] <= WIDE else MOST_WIDE_SECONDS
    seconds = figures[STACK]["seconds"]
    report.claim(f"{name}: processor seconds", f"<= {most:.0f}", f"{seconds:.0f}", seconds <= most)


def best_member(figures):
    known = [member for member in figures[STACK]["members"] if member["test"] is not None]
    return max(known, key=lambda member: member["test"])


def test_row(name, figures):
    best, case = best_member(figures), CASES[name]
    cells = [f"**{nats(figures[STACK]['test'])}**", f"{best['name']} {nats(best['test'])}"]
    cells += [nats(figures.get(contestant, {}).get("test")) for contestant in (TREE, POMEGRANATE, SPFLOW)]
    return [name, f"{figures['shape'][0]:,} x {figures['shape'][1]}", *cells, case.mixture, case.latent_tree]


def time_row(name, figures):
    clock = duration(figures[STACK]["clock"])
    contestants = (STACK, TREE, POMEGRANATE, SPFLOW)
    return [name, clock, *(duration(figures.get(contestant, {}).get("seconds")) for contestant in contestants)]


def member_rows(name, figures):
    for member in figures[STACK]["members"]:
        weight, seconds = f"{member['weight']:.2f}", duration(member["seconds"])
        yield [name, member["name"], nats(member["score"]), nats(member["test"]), weight, seconds, member["note"]]


def main():
    options = arguments(__doc__, number=(-1, "number of a single set, whose figures are printed"))
    if options.number >= 0:
        print(json.dumps(measure(list(CASES)[options.number], options)))
        return
    report = Report("Default densities", TEXT, options)
    if report.lacks("debd/*.npz"):
        report.finish()
        return
    tests, times, members = [], [], []
    for name in QUICK if options.quick else CASES:
        figures = measured(name, options)
        report.progress(f"{name}: {figures}")
        claims(report, name, figures)
        tests.append(test_row(name, figures))
        times.append(time_row(name, figures))
        members += member_rows(name, figures)
    header = ["data", "training rows", STACK, "best member", TREE, POMEGRANATE, SPFLOW]
    report.table("Nats per test row", [*header, "paper's mixture", "paper's latent tree"], tests)
    report.table("Time of a fit", ["data", "stack, clock", "stack", TREE, POMEGRANATE, SPFLOW], times)
    report.table("Members", ["data", "member", "validation", "test", "weight", "clock", "note"], members)
    report.finish()


if __name__ == "__main__":
    main()
