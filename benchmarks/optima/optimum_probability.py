"""Log-probabilities of random optima: errors, times and coverage of the estimators, and what they agree with.

Claim: 8000 particles estimate the logarithm of a probability of 2e-6 of a matching of 10 rows with a standard deviation
of at most 0.13; 500 that of 4e-12 of 30 rows with at most 0.25.
"""

import itertools
import math
import time
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.measurement import Report, arguments, duration
from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.inference import PlainMonteCarlo, ShellSMC, Splitting
from pyro_structured.structures import Matching, MinimumCut, ShortestPath

TEXT = """
Costs of matchings are normal with means from U(0, 1) and scale 0.1. Matchings are optimal for costs drawn with a scale
of 0.1 to 0.2; of 40 the one is taken whose probability is closest to what is asked for. The path is one of a grid of
2 x 3 nodes with log-normal costs, the cut one of a triangle with truncated normal costs: optima of random costs.

*sd*: standard deviation of the estimated log-probability between runs, by which *bias*, the mean of these estimates
less the long-run value, is about -sd²/2. The long-run value is the logarithm of the mean of the estimates of P over the
runs of the estimator that has most of them. *coverage*: share of the runs that are at most two of their standard errors
away from it. *seconds*: processor seconds of a run. A dash stands where a run found nothing.

The strongest control is `PlainMonteCarlo`. Where the probability is large enough for it, it is better: for the matching
of 5 rows, and for the path, where it has half the deviation in half the time of `Splitting`. It finds nothing for the
larger matchings and the cut.
"""
SCALE, TRIALS, BLOCK = 0.1, 40, 10**5
MOST = {"matching of 10 rows": 0.13, "matching of 30 rows": 0.25}


@dataclass
class Case:
    """A value with an unknown probability."""

    name: str
    base: dist.TorchDistribution
    problem: object
    value: Tensor

    def runs(self, estimator, count):
        """Estimates, standard errors and seconds of independent runs."""
        model, found, start = RandOM(self.base, self.problem, estimator=estimator), [], time.process_time()
        with torch.no_grad():
            for _ in tqdm(range(count), desc=f"{self.name}, {estimator}", disable=None, leave=False):
                found.append(model.estimate_log_prob(self.value))
        seconds = (time.process_time() - start) / count
        log_prob, error = (torch.stack(each).double() for each in zip(*found, strict=True))
        return Runs(log_prob, error, seconds)


@dataclass
class Runs:
    log_prob: Tensor
    error: Tensor
    seconds: float

    @property
    def mean(self):
        """The logarithm of the mean of the estimates, which are unbiased."""
        return (self.log_prob.logsumexp(0) - math.log(len(self.log_prob))).item()

    @property
    def sd(self):
        return self.log_prob.std().item()

    def coverage(self, truth):
        return ((self.log_prob - truth).abs() <= 2 * self.error).double().mean().item()


def closest(make, wanted, estimator):
    """Of some cases, the one whose probability is closest to what is wanted, up to the error of a short run."""
    cases = [make() for _ in range(TRIALS)]
    return min(cases, key=lambda case: abs(case.runs(estimator, 1).mean - math.log(wanted)))


def matching(size, wanted, noise, generator):
    problem = Matching(size)

    def make():
        loc = torch.rand(size, size, dtype=torch.double, generator=generator)
        value = problem.solve(loc + noise * torch.randn(loc.shape, dtype=torch.double, generator=generator))
        return Case(f"matching of {size} rows", dist.Normal(loc, SCALE).to_event(2), problem, value)

    return closest(make, wanted, ShellSMC(200))


def grid_path(height, width, wanted, generator):
    nodes = torch.arange(height * width).reshape(height, width)
    edges = torch.cat(
        [
            torch.stack([a.flatten(), b.flatten()], -1)
            for a, b in ((nodes[:, :-1], nodes[:, 1:]), (nodes[:-1], nodes[1:]))
        ]
    )
    problem = ShortestPath(edges, height * width, 0, height * width - 1)

    def make():
        loc = torch.rand(len(edges), dtype=torch.double, generator=generator)
        value = problem.solve((loc + torch.randn(len(edges), dtype=torch.double, generator=generator)).exp())
        return Case(f"path in a grid of {height} x {width}", dist.LogNormal(loc, 0.3).to_event(1), problem, value)

    return closest(make, wanted, Splitting(50))


def cut(size, wanted, generator):
    problem = MinimumCut(torch.combinations(torch.arange(size)), size)

    def make():
        loc = torch.rand(problem.cost_shape, dtype=torch.double, generator=generator)
        value = problem.solve(torch.rand(problem.cost_shape, dtype=torch.double, generator=generator))
        return Case(f"cut of {size} nodes", TruncatedNormal(loc, 0.3, 0.0).to_event(1), problem, value)

    return closest(make, wanted, Splitting(50))


def plans(options, generator):
    """Cases, and the estimators with their numbers of runs; the first one tells the long-run value."""
    many, some, few = (3, 2, 2) if options.quick else (100, 20, 5)
    plain = [(PlainMonteCarlo(10**power), some) for power in (2, 3)]
    if options.quick:
        case = matching(3, 0.1, 0.1, generator)
        return [(case, [(ShellSMC(20), many), (Splitting(20), few), *plain])]
    five, ten, thirty = (
        matching(*arguments, generator) for arguments in ((5, 0.1, 0.1), (10, 2e-6, 0.2), (30, 4e-12, 0.1))
    )
    shells = [(ShellSMC(count), some) for count in (100, 300)]
    splits = [(Splitting(count), runs) for count, runs in ((100, some), (300, some), (1000, few))]
    return [
        (five, [(ShellSMC(1000), many), *shells, *splits, *plain, (PlainMonteCarlo(10**5), some)]),
        (ten, [(ShellSMC(8000), many), (ShellSMC(2000), some), *shells, *splits, (PlainMonteCarlo(10**5), few)]),
        (thirty, [(ShellSMC(500), many), (ShellSMC(100), some), (Splitting(100), few)]),
        (
            grid_path(4, 4, 1e-4, generator),
            [(Splitting(300), many), (Splitting(100), some), (PlainMonteCarlo(10**5), few)],
        ),
        (cut(4, 1e-3, generator), [(Splitting(300), many), (Splitting(100), some), (PlainMonteCarlo(10**4), few)]),
    ]


def hits(case, num_draws):
    """Number of draws that have the value, among ``num_draws``."""
    found = 0
    for _ in tqdm(range(0, num_draws, BLOCK), desc="plain draws", disable=None, leave=False):
        found += int((case.problem.solve(case.base.sample((min(BLOCK, num_draws),))) == case.value).all(-1).sum())
    return found


def agreement(report, options, generator):
    """Reports whether quantities that have to be equal are."""
    size = 3 if options.quick else 5
    values = torch.tensor(list(itertools.permutations(range(size))))
    base = dist.Normal(torch.rand(size, size, dtype=torch.double, generator=generator), 0.3).to_event(2)
    runs = Case("all permutations", base, Matching(size), values).runs(ShellSMC(100 if options.quick else 1000), 1)
    probs = runs.log_prob.exp().squeeze(0)
    total, error = probs.sum().item(), (probs * runs.error.squeeze(0)).square().sum().sqrt().item()
    text = f"sum of the probabilities of all {len(values)} matchings of {size} rows"
    report.claim(text, "1 within 3 s.e.", f"{total:.4f} ± {error:.4f}", abs(total - 1) < 3 * error)

    case = matching(3, 0.1, 0.1, generator) if options.quick else matching(8, 1e-4, 0.15, generator)
    num_draws = 10_000 if options.quick else options.draws
    share = hits(case, num_draws) / num_draws
    runs = case.runs(ShellSMC(100 if options.quick else 10_000), 1)
    compare(
        report, f"{case.name}: ShellSMC, {num_draws} draws", *one(runs), math.log(share), (share * num_draws) ** -0.5
    )

    size, particles = (4, 100) if options.quick else (30, 1000)
    case = matching(size, 0.1 if options.quick else 4e-12, 0.1, generator)
    order = torch.randperm(size, generator=generator)
    turned = Case(
        case.name, dist.Normal(case.base.base_dist.loc[order], SCALE).to_event(2), case.problem, case.value[order]
    )
    found = [one(each.runs(ShellSMC(particles), 1)) for each in (case, turned)]
    compare(report, f"{case.name}: two orders of the rows", *found[0], *found[1])


def one(runs):
    return runs.log_prob.item(), runs.error.item()


def compare(report, text, first, first_error, second, second_error):
    agrees = abs(first - second) < 3 * math.hypot(first_error, second_error)
    measured = f"{first:.3f} ± {first_error:.3f}, {second:.3f} ± {second_error:.3f}"
    report.claim(text, "equal within 3 s.e.", measured, agrees)


def draw_picture(path, results):
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axes, (case, rows) in zip(panels, results, strict=True):
        for kind, marker in ((ShellSMC, "o"), (Splitting, "s"), (PlainMonteCarlo, "^")):
            points = sorted((runs.seconds, runs.sd) for estimator, runs in rows if type(estimator) is kind)
            points = [point for point in points if math.isfinite(point[1])]
            axes.plot(*zip(*points, strict=True), marker=marker, label=kind.__name__) if points else None
        axes.set(xscale="log", yscale="log", xlabel="seconds", title=case.name)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("sd of log P")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main():
    options = arguments(__doc__, draws=(10**7, "plain draws that one estimate is compared with"))
    report = Report("Log-probabilities of random optima", TEXT, options)
    generator = torch.Generator().manual_seed(options.seed)
    results, rows = [], []
    for case, plan in plans(options, generator):
        measured = [(estimator, case.runs(estimator, count)) for estimator, count in plan]
        truth = measured[0][1].mean
        results.append((case, measured))
        for index, (estimator, runs) in enumerate(measured):
            figures = [f"{runs.sd:.3f}", f"{runs.log_prob.mean().item() - truth:.3f}", f"{runs.coverage(truth):.0%}"]
            if not runs.log_prob.isfinite().all():
                figures = ["–"] * len(figures)
            row = [case.name, f"{truth:.2f}", repr(estimator), len(runs.log_prob), *figures, duration(runs.seconds)]
            rows.append(row)
            Report.progress(str(rows[-1]))
            if not index:
                judge(report, case, estimator, runs, truth)
    agreement(report, options, generator)
    path = report.picture("optimum_probability", "Standard deviation of log P by time")
    if options.write:
        draw_picture(path, results[:3])
    header = ["value", "log P", "estimator", "runs", "sd", "bias", "coverage", "seconds"]
    report.table("Errors and times", header, rows)
    report.finish()


def judge(report, case, estimator, runs, truth):
    most = MOST.get(case.name)
    if most is not None:
        report.claim(f"{case.name}: sd of log P, {estimator!r}", f"<= {most}", f"{runs.sd:.3f}", runs.sd <= most)
    coverage = runs.coverage(truth)
    report.claim(f"{case.name}: runs within two s.e.", ">= 90%", f"{coverage:.0%}", coverage >= 0.9)


if __name__ == "__main__":
    main()
