"""Probabilities that learners of random costs give to observed matchings: Figure 3 of the paper on such models.

Claim: Monte Carlo EM gives training matchings at least the floored log-probability of Perturb-and-MAP, up to two
standard errors, and maximum margin leaves matchings without any.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDelta
from pyro.optim import ClippedAdam
from tqdm import tqdm

from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import matching_task
from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.inference import MCEM, HardEM, MaxMargin, PerturbAndMAP, PlainMonteCarlo, ShellSMC
from pyro_structured.structures import Matching

TEXT = """
Ten pairs of point sets with their matchings are learned from, ten others are held out (`datasets.matching_task`). The
cost of matching two points is truncated normal on [0, 1], with the mean σ(ψ·φ) before truncation (Equation 2), where φ
has the squared distances of positions, of sizes and of colors. Figures are means over the seeds of data; every seed has
the same pairs for all learners. All start from ψ = (3, 3, 3).

*Without zeros* and *zeros*: the columns of the paper's Figure 3: the mean log-probability of training matchings
estimated by 10,000 draws, of those that were drawn at all; and how many were not, of ten. Dropping zeros rewards them,
so *floored* has a probability of 1e-5 in their place, with its standard error over seeds. *log P*: by `ShellSMC`, with
its own standard error. *Held out*: that of matchings that were not learned from, floored too. *Time*: that of learning
from one set.

Learners: *PM*: Perturb-and-MAP with so many draws in a step; *Hard EM* with the paper's margins C, which are 2 s² times
those of `HardEM` for costs of scale s; *MCEM* with so many draws in each E-step, and M-steps to convergence;
*max-margin*: `MaxMargin`. [Other learners, and time](learners_by_time.md) have a page of their own.

What differs from the paper, and why:

- It states neither the ranges and noise of the data nor ν. Ours are those of `matching_task`; the scale of the costs is
  0.1 for all learners, since Perturb-and-MAP has no gradient for it. Absolute figures are therefore not comparable with
  the paper's, which are given beside.
- Each figure of the paper is of one set of ten pairs; ours are means over sets, since sets differ more than learners.
- The paper believes that its zeros of hard EM come from cutting planes that stop early, with costs outside of the
  inverse set. Ours go on to the optimum. Without a margin, iterations then lead to costs which are all equal: every
  matching is optimal for them, and has a probability of about 1/120, the logarithm of which is -4.79.
- MCEM's objective is the mean of logarithms, in place of Equation 12, which is no EM with more than one draw.
- Max-margin predicts by ψ·φ, without noise, as in Section 4.2, so that probabilities are 0 or 1. The paper does not
  state its regulariser: ours is a normal prior of scale 10.
- The paper's PM(1) and PM(10) are left out: its figures for them are those of PM(50), up to 0.01.
- Starts and numbers of steps are ours: 300 of ClippedAdam, whose steps shrink to a fiftieth; 100 iterations of MCEM
  with M-steps to convergence; 16 of hard EM. On the sets of seed 0, three times as many of MCEM changed log P by at
  most 0.02; twice as many of hard EM with the margin 1 lowered it by 0.06 and 0.22. Logistic means saturate, so the
  likelihood of the multimodal set is flat far away from its optimum, and from other starts learners end lower after as
  many steps.
"""
SCALE, START, FLOOR = 0.1, 3.0, 1e-5
SETS, FEATURES = ("unimodal", "multimodal"), 3
PARTS = ("floored", "held_out")
# The paper's Figure 3: mean log-probability without zeros, and number of zeros.
PAPER = {
    "PM(50)": ("-0.50, 0", "-1.06, 0"),
    "Hard EM(0)": ("-0.74, 2", "-1.08, 2"),
    "Hard EM(1)": ("-1.09, 0", "-1.09, 1"),
    "Hard EM(1e5)": ("-1.59, 0", "-1.38, 0"),
    "MCEM(1)": ("-0.44, 0", "-1.07, 0"),
    "MCEM(100)": ("-0.44, 0", "-0.97, 0"),
    "max-margin": ("0, 2", "0, 4"),
}


def costs(features):
    """Equation 2, with the parameters of Pyro's store."""
    weights = pyro.param("weights", torch.full((FEATURES,), START).double())
    return TruncatedNormal(torch.sigmoid(features @ weights), SCALE, 0.0, 1.0).to_event(2)


def model(features, matchings):
    with pyro.plate("pairs", len(features)):
        pyro.sample("matching", RandOM(costs(features), Matching(features.shape[1])), obs=matchings)


def linear_model(features, matchings):
    """Of which the support vector machine sees the means and the prior."""
    weights = pyro.sample("weights", dist.Normal(torch.zeros(FEATURES).double(), 10.0).to_event(1))
    with pyro.plate("pairs", len(features)):
        base = dist.Normal(features @ weights, 1.0).to_event(2)
        pyro.sample("matching", RandOM(base, Matching(features.shape[1])), obs=matchings)


def no_guide(features, matchings):
    pass


def optimiser(num_steps):
    return ClippedAdam({"lr": 0.5, "lrd": 0.02 ** (1 / num_steps)})


def learners(shorter):
    """For each name a function that makes a learner, and a number of steps."""
    gradient, classical, hard = (max(2, num // shorter) for num in (300, 100, 16))
    guide = AutoDelta(linear_model, init_loc_fn=lambda site: torch.full((FEATURES,), START).double())
    made = {"PM(50)": (lambda: PerturbAndMAP(model, no_guide, optimiser(gradient), 50), gradient)}
    for name, margin in (("0", 0.0), ("1", 1.0), ("1e5", 1e5)):
        scaled = margin / (2 * SCALE**2)
        made[f"Hard EM({name})"] = (lambda scaled=scaled: HardEM(model, no_guide, None, scaled), hard)
    for num in (1, 100):
        made[f"MCEM({num})"] = (lambda num=num: MCEM(model, no_guide, None, num_samples=num), classical)
    made["max-margin"] = (lambda: MaxMargin(linear_model, guide, optimiser(gradient)), gradient)
    return made


@dataclass
class Result:
    """Of one learner on one set of data."""

    plain: torch.Tensor
    log_prob: torch.Tensor
    error: torch.Tensor
    held_out: float
    seconds: float
    floored: float = field(init=False)

    def __post_init__(self):
        self.floored = floored(self.plain)


def floored(log_prob):
    return float(log_prob.clamp(min=math.log(FLOOR)).mean())


@torch.no_grad()
def estimates(name, features, matchings, estimator):
    """Log-probabilities and their standard errors, with the parameters of Pyro's store."""
    problem = Matching(features.shape[1])
    if name == "max-margin":
        right = (problem.solve(features @ pyro.param("AutoDelta.weights")) == matchings).all(-1)
        return right.double().log(), torch.zeros(len(features)).double()
    return RandOM(costs(features), problem, estimator).estimate_log_prob(matchings)


def measure(name, make, num_steps, data, held_out, options):
    pyro.clear_param_store()
    pyro.set_rng_seed(options.seed)
    start = time.process_time()
    learner = make()
    for _ in range(num_steps):
        learner.step(*data)
    seconds = time.process_time() - start
    plain, _ = estimates(name, *data, PlainMonteCarlo(100 if options.quick else 10_000))
    smc = ShellSMC(20 if options.quick else 500)
    return Result(plain, *estimates(name, *data, smc), floored(estimates(name, *held_out, smc)[0]), seconds)


def compare(name, options):
    """Results of all learners on one of the paper's data sets, one for each seed."""
    shape = (3, 3) if options.quick else (10, 5)
    found = {learner: [] for learner in learners(1)}
    with tqdm(total=options.seeds * len(found), desc=name) as bar:
        for number in range(options.seeds):
            pairs = [matching_task(name, *shape, seed=options.seed + number + shift) for shift in (0, 10_000)]
            data, held_out = ([torch.from_numpy(part) for part in pair] for pair in pairs)
            for learner, (make, num_steps) in learners(40 if options.quick else 1).items():
                found[learner].append(measure(learner, make, num_steps, data, held_out, options))
                bar.update()
    return found


def mean_and_error(values):
    values = np.asarray(values)
    return values.mean(), values.std(ddof=1) / math.sqrt(len(values))


def with_error(values):
    mean, error = mean_and_error(values)
    return f"{mean:.3f} ± {error:.3f}"


def differences(results, one, other, name):
    return [getattr(a, name) - getattr(b, name) for a, b in zip(results[one], results[other], strict=True)]


def smc_error(results):
    """The standard error of the mean log-probability over all pairs and seeds."""
    errors = torch.stack([each.error for each in results])
    return float((errors**2).sum().sqrt()) / errors.numel()


def table_row(name, results, paper):
    plain = torch.stack([each.plain for each in results])
    drawn = plain.isfinite()
    log_prob = torch.stack([each.log_prob for each in results]).mean()
    return [
        name,
        paper,
        f"{plain[drawn].mean():.3f}" if drawn.any() else "–",
        f"{float((~drawn).double().sum(-1).mean()):.1f}",
        with_error([each.floored for each in results]),
        f"{log_prob:.3f} ± {smc_error(results):.3f}" if log_prob.isfinite() else "-∞",
        with_error([each.held_out for each in results]),
        duration(np.median([each.seconds for each in results])),
    ]


def difference_rows(found):
    return [
        [name, *(with_error(differences(found[each], "MCEM(100)", name, part)) for each in SETS for part in PARTS)]
        for name in found[SETS[0]]
        if name != "MCEM(100)"
    ]


def draw_picture(path, found):
    """Figure 2: one bar for each training pair of the first seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(2, len(found[SETS[0]]), sharex=True, sharey=True)
    for line, name in zip(axes, SETS, strict=True):
        for ax, (learner, results) in zip(line, found[name].items(), strict=True):
            shares = results[0].plain.exp()
            ax.bar(range(len(shares)), shares, color="tab:blue")
            missed = np.flatnonzero(shares == 0)
            (crosses,) = ax.plot(missed, np.zeros(len(missed)), "x", color="tab:red", clip_on=False)
            crosses.set_in_layout(False)
            ax.set(xticks=[], ylim=(0, 1))
            if ax.get_subplotspec().is_first_row():
                ax.set_title(learner, fontsize=9)
        line[0].set_ylabel(f"{name}\nprobability")
    figure.supxlabel("training pairs of the first seed; crosses: never drawn", fontsize=9)
    figure.savefig(path, dpi=150)


def main():
    options = arguments(__doc__, seeds=(10, "sets of training pairs"))
    if options.quick:
        options.seeds = 2
    report = Report("Learners of random costs", TEXT, options)
    found = {name: compare(name, options) for name in SETS}
    for name in SETS:
        mean, error = mean_and_error(differences(found[name], "MCEM(100)", "PM(50)", "floored"))
        text = f"floored log-probability of MCEM(100) minus that of PM(50), {name}"
        report.claim(text, ">= -2 s.e.", f"{mean:.3f} ± {error:.3f}", mean >= -2 * error)
    for name in SETS:
        zeros = sum(int((~each.plain.isfinite()).sum()) for each in found[name]["max-margin"])
        report.claim(f"matchings without probability by max-margin, {name}", "> 0", str(zeros), zeros > 0)
    largest = max(smc_error(results) for each in found.values() for results in each.values())
    report.claim("largest standard error of log P in a table", "<= 0.02", f"{largest:.3f}", largest <= 0.02)
    path = report.picture("matching_learners", "Probabilities of training matchings by learner")
    if options.write:
        draw_picture(path, found)
    header = ["", "paper", "without zeros", "zeros", "floored", "log P", "held out", "time"]
    for column, name in enumerate(SETS):
        rows = [table_row(each, results, PAPER.get(each, ("–", "–"))[column]) for each, results in found[name].items()]
        report.table(f"Data set {name!r}", header, rows)
    header = ["", *(f"{name}, {part.replace('_', ' ')}" for name in SETS for part in PARTS)]
    report.table("MCEM(100) minus others, paired by seed", header, difference_rows(found))
    report.finish()


if __name__ == "__main__":
    main()
