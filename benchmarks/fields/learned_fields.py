"""Most probable labelings of learned fields: what searches find and prove, and in which time."""

import statistics
import time

import numpy as np
import torch

from benchmarks.fields.ellipse_models import SIZES, ellipse_data, learned_fields, single
from benchmarks.measurement import Report, arguments, duration
from pyro_structured.fields.ops.label_losses import intersection_over_union_loss
from pyro_structured.fields.solvers.joint_cut import ascend
from pyro_structured.fields.solvers.pattern_dual import decompose

TEXT = """
Fields are `SegmentationCRF` with 2 to 128 patterns ("sum", T = 1), learned in at most 500 steps from 500 figures of
ellipses of 32 x 32 pixels (`ellipse_figures`, level 0 unless `--level` says another) in noise (`noisy_observations`),
for test images of the same kind. *Score*: intersection over union of the mean-field labels of 100 test images.

*Value*: mean difference of the labels that were found to the best ones that any method found; *bound*: mean difference
of the upper bound to these; *proved*: images of which the bound proves the labels to be the best; *loss*: 1 less the
intersection over union of the labels and the true mask. Means are over three images, unless `--images` says another
number. *From two starts* is `map("em", num_switches=0)`, *expectation maximisation* `map("em")`, which also begins
where single patterns are switched; `map("dual")` (form 2) and `map("branch_and_bound")` begin with its labels, and are
stopped after *most cuts*. Times are processor seconds of an image, expectation maximisation included. Its labels are
nearly the best ones, so that losses hardly differ. Both bounds end where all patterns are replaced by sums over pixels;
what is lower is owed to branching.

The picture is Figure A.1 of Li (2013) with branch and bound beside it: one image, the difference to the best labels
against processor time. There, expectation maximisation and dual decomposition begin with the labels without patterns.
"""
NUMBERS = (2, 8, 16, 32, 64, 128)
BUDGETS = (100, 1000, 10_000)
DRAWN, SECONDS = (2, 8, 32, 128), 5.0

NAMES = {
    "two starts": "from two starts",
    "em": "expectation maximisation",
    "dual": "dual decomposition",
    "branch_and_bound": "branch and bound",
}
# Methods without a budget and without a bound: arguments of ``map``.
UNBOUNDED = {"two starts": ("em", None, 10_000, 0), "em": ("em",)}


def searched(d, budgets):
    """Optima of all methods, their labels, and seconds."""
    runs = [(method, 10_000) for method in UNBOUNDED]
    runs += [(method, cuts) for method in ("dual", "branch_and_bound") for cuts in budgets]
    found = {}
    for method, cuts in runs:
        began = time.process_time()
        labels, optimum = d.map(*UNBOUNDED.get(method, (method, None, cuts)))
        found[method, cuts] = optimum, labels, time.process_time() - began
    return found


def table(report, data, options):
    """Results of the largest budgets, and the field of one image of each model."""
    rows, last, fields = [], {}, {}
    numbers, budgets = (NUMBERS[:2], BUDGETS[:1]) if options.quick else (NUMBERS, BUDGETS)
    for number in numbers:
        learned, score = learned_fields(data, options.seed, number, options.quick)
        fields[number] = single(learned, 0)
        each = [searched(single(learned, row), budgets) for row in range(2 if options.quick else options.images)]
        best = [max(float(optimum.value) for optimum, *_ in found.values()) for found in each]
        for method, cuts in each[0]:
            optima = [found[method, cuts][0] for found in each]
            gaps = [top - float(optimum.value) for top, optimum in zip(best, optima, strict=True)]
            bounds = [float(optimum.upper_bound) - top for top, optimum in zip(best, optima, strict=True)]
            proved = sum(bool(optimum.optimal) for optimum in optima)
            shown = ["–", "–"] if method in UNBOUNDED else [f"+{np.mean(bounds):.2f}", f"{proved} of {len(each)}"]
            times = statistics.mean(found[method, cuts][2] for found in each)
            labels = torch.stack([found[method, cuts][1] for found in each])
            losses = intersection_over_union_loss(labels, torch.from_numpy(data.masks[2][: len(each)]))
            spent = statistics.mean(int(optimum.num_cuts) for optimum in optima)
            most = "–" if method in UNBOUNDED else cuts
            rows.append([number, f"{score:.3f}", NAMES[method], most, f"{-np.mean(gaps) or 0.0:.3f}", *shown])
            rows[-1] += [f"{float(losses.mean()):.4f}", f"{spent:.0f}", duration(times)]
            last[number, method] = np.mean(gaps), np.mean(bounds), proved / len(each)
        report.progress(f"{number} patterns: {rows[-1]}")
    header = ["patterns", "score", "method", "most cuts", "value", "bound", "proved", "loss", "cuts", "time"]
    report.table("Most probable labelings", header, rows)
    return last, fields


def claims(report, last):
    """Claims about the largest budgets."""
    numbers = sorted({number for number, _ in last})
    shares = {number: last[number, "branch_and_bound"][2] for number in numbers}
    for number in numbers[:4]:
        name = f"{number} patterns: proved by branch and bound"
        report.claim(name, "all", f"{shares[number]:.0%}", shares[number] == 1)
    tighter = all(last[number, "branch_and_bound"][1] <= last[number, "dual"][1] + 1e-6 for number in numbers)
    name = "bounds of branch and bound are not above those of dual decomposition"
    report.claim(name, "all numbers", "yes" if tighter else "no", tighter)


def curves(d, seconds):
    """Times and values of all methods for one image, up to a number of seconds."""
    field = d.description
    found, began = {}, time.process_time()
    start = ascend(field, (field.odds > 0).double(), 10_000)
    found["EM"] = [(time.process_time() - began, float(field.log_weight(start.labels)))]
    steps = []
    began = time.process_time()

    def observe(step):
        steps.append((time.process_time() - began, *step))
        if steps[-1][0] > seconds:
            raise TimeoutError

    try:
        decompose(field, (field.odds > 0).double(), 10**6, observe=observe)
    except TimeoutError:
        pass
    times, totals, majorities, decoded = zip(*steps, strict=True)
    for name, values, best in (
        ("dual: bound", totals, np.minimum),
        ("dual: majority", majorities, np.maximum),
        ("dual: M-step", decoded, np.maximum),
    ):
        found[name] = list(zip(times, best.accumulate(values), strict=True))
    bounds, values, cuts = [], [], 1
    while not bounds or (bounds[-1][0] < seconds and bounds[-1][1] > values[-1][1] + 1e-6):
        began = time.process_time()
        optimum = d.map("branch_and_bound", max_cuts=cuts)[1]
        spent = time.process_time() - began
        bounds.append((spent, float(optimum.upper_bound)))
        values.append((spent, float(optimum.value)))
        cuts = 3 * cuts
    found["branch and bound: bound"], found["branch and bound: labels"] = bounds, values
    return found


STYLES = {
    "EM": ("tab:orange", "-"),
    "dual: majority": ("tab:green", "-"),
    "dual: M-step": ("tab:red", "-"),
    "dual: bound": ("tab:blue", "-"),
    "branch and bound: labels": ("black", "-"),
    "branch and bound: bound": ("black", "--"),
}


def draw(path, all_curves, seconds):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(all_curves), figsize=(3.2 * len(all_curves), 3.2), sharey=True)
    for axis, (number, found) in zip(axes, all_curves.items(), strict=True):
        best = max(curve[-1][1] for name, curve in found.items() if "bound" not in name.partition(":")[2])
        for name, (colour, line) in STYLES.items():
            times, values = zip(*found[name], strict=True)
            ends = [*times, max(seconds, times[-1])]
            axis.step(
                ends, [value - best for value in (*values, values[-1])], line, color=colour, label=name, where="post"
            )
        axis.set_xscale("log")
        axis.set_yscale("symlog", linthresh=1)
        axis.set_title(f"{number} patterns", fontsize=9)
        axis.set_xlabel("seconds")
        axis.axhline(0, color="0.8", zorder=0)
    axes[0].set_ylabel("difference to the best labels")
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=8, loc="lower center", ncols=len(names))
    figure.savefig(path, dpi=110)


def main():
    options = arguments(__doc__, images=(3, "test images of each model"), level=(0, "of the figures, 0 to 5"))
    report = Report("Learned fields", TEXT, options)
    data = ellipse_data(options.level, options.seed, sizes=(20, 5, 5) if options.quick else SIZES)
    found, fields = table(report, data, options)
    claims(report, found)
    if options.write:
        drawn = {number: curves(fields[number], SECONDS) for number in DRAWN}
        draw(report.picture("learned_fields", "Values and bounds against time"), drawn, SECONDS)
    report.finish()


if __name__ == "__main__":
    main()
