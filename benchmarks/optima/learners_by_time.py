"""Held-out log-probability and accuracy of learners of random costs against the time that they have learned.

Claim: the held-out log-probability of gradient ascent with one draw in a step is within two standard errors of that of
classical Monte Carlo EM, or better, in less time.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from tqdm import tqdm

from benchmarks.measurement import Report, arguments, duration
from benchmarks.optima.matching_learners import (
    FEATURES,
    SCALE,
    SETS,
    START,
    costs,
    estimates,
    floored,
    linear_model,
    mean_and_error,
    model,
    no_guide,
    optimiser,
    with_error,
)
from pyro_structured.datasets import matching_task
from pyro_structured.distributions import RandOM
from pyro_structured.inference import MCEM, HardEM, MaxMargin, PerturbAndMAP, ShellSMC
from pyro_structured.structures import Matching

TEXT = """
The data and the model are those of [the learners' probabilities](matching_learners.md): ten pairs of point sets to
learn from, costs with the fixed scale 0.1, a start at ψ = (3, 3, 3). Here, 30 other pairs are looked at while learning
goes on. Time is processor time of the steps, without these looks, and without what is compiled at the first step.
Figures are means over the seeds of data, with their standard errors.

*Log P*: of a held-out matching, by `ShellSMC`, and never less than that of a probability of 1e-5, which is what
max-margin gets where it is wrong. *Accuracy*: the share of held-out points that are assigned rightly by the best
matching for the costs' modes σ(ψ·φ), for max-margin ψ·φ.

Learners: *gradient(1)*: `MCEM` with one draw and one step of an optimiser at a time, its default, stochastic gradient
ascent by Fisher's identity; *MCEM(20)*: 20 draws in each E-step, M-steps to convergence; *PM(10)*: `PerturbAndMAP` with
10 draws; *Hard EM(1)*: `HardEM` with the margin 1 of the paper's Figure 3; *max-margin*: `MaxMargin`; *SVI*: Pyro's own
`SVI` on `RandOM(..., estimator=ShellSMC(50))`, whose gradients are Fisher's identity too, over weighted particles
instead of a Markov chain. Those with an optimiser take 300 steps of ClippedAdam, whose steps shrink to a fiftieth.
"""
HELD_OUT = 30
# Seconds of the table.
TIMES = (0, 0.1, 0.5, 2.0)
# Shares of a learner's steps after which it is looked at.
MARKS = (0, 1 / 60, 1 / 25, 1 / 10, 1 / 4, 1 / 2, 1)


def estimated_model(features, matchings):
    with pyro.plate("pairs", len(features)):
        matching = RandOM(costs(features), Matching(features.shape[1]), estimator=ShellSMC(50))
        pyro.sample("matching", matching, obs=matchings)


def max_margin(num_steps):
    guide = AutoDelta(linear_model, init_loc_fn=lambda site: torch.full((FEATURES,), START).double())
    return MaxMargin(linear_model, guide, optimiser(num_steps))


def learners(quick):
    """For each name a function that makes a learner, and a number of steps."""
    steps, iterations, hard = (4, 2, 2) if quick else (300, 60, 16)
    return {
        "gradient(1)": (lambda: MCEM(model, no_guide, optimiser(steps)), steps),
        "MCEM(20)": (lambda: MCEM(model, no_guide, None, num_samples=20), iterations),
        "PM(10)": (lambda: PerturbAndMAP(model, no_guide, optimiser(steps), 10), steps),
        "Hard EM(1)": (lambda: HardEM(model, no_guide, None, 1 / (2 * SCALE**2)), hard),
        "max-margin": (lambda: max_margin(steps), steps),
        "SVI": (lambda: SVI(estimated_model, no_guide, optimiser(steps), Trace_ELBO()), steps),
    }


@dataclass
class Curve:
    """Of one learner on one set of data: one number for each mark."""

    seconds: list
    log_prob: list
    accuracy: list


@torch.no_grad()
def accuracy(name, features, matchings):
    (weights,) = pyro.get_param_store().values()
    means = features @ weights
    found = Matching(features.shape[1]).solve(means if name == "max-margin" else torch.sigmoid(means))
    return float((found == matchings).double().mean())


def measure(name, make, num_steps, data, held_out, options):
    make().step(*data)  # compiles functions, once
    pyro.clear_param_store()
    pyro.set_rng_seed(options.seed)
    learner, curve, done, seconds = make(), Curve([], [], []), 0, 0.0
    learner.guide(*data)
    smc = ShellSMC(20 if options.quick else 100)
    for mark in MARKS:
        start = time.process_time()
        for _ in range(math.ceil(mark * num_steps) - done):
            learner.step(*data)
        seconds, done = seconds + time.process_time() - start, math.ceil(mark * num_steps)
        with torch.random.fork_rng():
            curve.log_prob.append(floored(estimates(name, *held_out, smc)[0]))
        curve.accuracy.append(accuracy(name, *held_out))
        curve.seconds.append(seconds)
    return curve


def compare(name, options):
    """Curves of all learners on one of the paper's data sets, one for each seed."""
    shape, held_out_pairs = ((3, 3), 3) if options.quick else ((10, 5), HELD_OUT)
    made = learners(options.quick)
    found = {learner: [] for learner in made}
    with tqdm(total=options.seeds * len(found), desc=name) as bar:
        for seed in range(options.seed, options.seed + options.seeds):
            pairs = (
                matching_task(name, *shape, seed=seed),
                matching_task(name, held_out_pairs, shape[1], seed=seed + 10_000),
            )
            data, held_out = ([torch.from_numpy(part) for part in pair] for pair in pairs)
            for learner, (make, num_steps) in made.items():
                found[learner].append(measure(learner, make, num_steps, data, held_out, options))
                bar.update()
    return found


def at(curves, seconds):
    """Mean log-probability at a time, by linear interpolation between the marks."""
    if all(curve.seconds[-1] < seconds for curve in curves):
        return "–"
    return f"{np.mean([np.interp(seconds, curve.seconds, curve.log_prob) for curve in curves]):.3f}"


def table_row(name, num_steps, curves):
    return [
        name,
        num_steps,
        *(at(curves, seconds) for seconds in TIMES),
        with_error([curve.log_prob[-1] for curve in curves]),
        with_error([curve.accuracy[-1] for curve in curves]),
        duration(np.median([curve.seconds[-1] for curve in curves])),
    ]


def draw_picture(path, found):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, len(SETS), sharex=True)
    for column, name in zip(axes.T, SETS, strict=True):
        for learner, curves in found[name].items():
            seconds = np.mean([curve.seconds for curve in curves], 0)[1:]
            for ax, part in zip(column, ("log_prob", "accuracy"), strict=True):
                mean = np.mean([getattr(curve, part) for curve in curves], 0)[1:]
                ax.plot(seconds, mean, "o-", markersize=4, label=learner)
        column[0].set(title=name, xscale="log")
        column[1].set_xlabel("processor seconds of learning")
    axes[0, 0].set_ylabel("held-out log P, floored")
    axes[1, 0].set_ylabel("held-out accuracy")
    for ax in axes.flat:
        ax.grid(alpha=0.3)
    axes[0, 0].legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main():
    options = arguments(__doc__, seeds=(4, "sets of training pairs"))
    if options.quick:
        options.seeds = 2
    report = Report("Learners of random costs by time", TEXT, options)
    found = {name: compare(name, options) for name in SETS}
    for name, curves in found.items():
        pairs = list(zip(curves["gradient(1)"], curves["MCEM(20)"], strict=True))
        mean, error = mean_and_error([one.log_prob[-1] - other.log_prob[-1] for one, other in pairs])
        text = f"held-out log-probability at the end, gradient(1) minus MCEM(20), {name}"
        report.claim(text, ">= -2 s.e.", f"{mean:.3f} ± {error:.3f}", mean >= -2 * error)
        ratio = np.median([one.seconds[-1] / other.seconds[-1] for one, other in pairs])
        report.claim(f"time of gradient(1) by that of MCEM(20), {name}", "< 1", f"{ratio:.2f}", ratio < 1)
        ours, rival = (np.mean([each.accuracy[-1] for each in curves[key]]) for key in ("gradient(1)", "max-margin"))
        measured = f"{ours:.3f} - {rival:.3f} = {ours - rival:+.3f}"
        report.claim(f"accuracy at the end, gradient(1) minus max-margin, {name}", "> 0", measured, ours > rival)
    path = report.picture("learners_by_time", "Held-out log-probability and accuracy by time")
    if options.write:
        draw_picture(path, found)
    header = ["", "steps", *(f"log P at {seconds:g} s" for seconds in TIMES), "at the end", "accuracy", "time"]
    steps = {name: num_steps for name, (_, num_steps) in learners(options.quick).items()}
    for name, curves in found.items():
        report.table(f"Data set {name!r}", header, [table_row(each, steps[each], curves[each]) for each in curves])
    report.finish()


if __name__ == "__main__":
    main()
