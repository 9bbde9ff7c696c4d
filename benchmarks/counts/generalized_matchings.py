"""Marginals and log Z of matrices whose rows and columns have laws of their counts (Figure 4 of the paper).

Claims: belief propagation errs by at most .01 in the mean, and by a tenth of what single log-odds do; exactly one a row
and column, its log Z is nearer than Pyro's in 95 of 100, and the true one at most J / 2 log 2 above; 12 x 12 one-to-one
is exact in 2 s; 100 x 150 takes at most 1 s, and 100 x 100 whose counts are all forced, 3 s.
"""

import math

import torch
from pyro.distributions import OneOneMatching

from benchmarks.measurement import Report, arguments, duration, seconds, small
from pyro_structured.datasets import load_review_scores
from pyro_structured.distributions import GeneralizedMatching
from pyro_structured.inference import LoopyBP, TreeReweighted

TEXT = """
Section 6.2. Matrices with log-odds N(0, scale²); rows allow the counts named first, columns those named second,
without a preference; *random*: tables N(0, 1) for all counts. Mean absolute errors of marginals; those of belief
propagation over the problems where it has converged. *Nodes*: the log-odds alone. *LP*: the most probable matrix, a
flow of least cost, as marginals. *LBP*: `approximate_marginals(LoopyBP())`. *TRW*: `TreeReweighted()`. *Gibbs*: 20
chains from the most probable matrix, 20 sweeps after 10 (`sweep`). The truth are exact sums, but for 10 x 20, where
it is the mean of long chains, whose own error stands beside. Times are for one problem, of a batch where there are
several.

*Bethe*: least and largest difference of Bethe's log Z from log Z; *lower bound*, *upper bound*: mean differences of
`log_partition_bounds`. Where laws have real roots (2 or 3, 1 or 2, exactly 1), Bethe's log Z is the lower bound; of
rows with none or three, and random tables, it is on either side of log Z, and the lower bound is another one.
"""
GAPS, SOFT = (0, 3), None


def law(size, number, allowed):
    """Tables of so many subsets of a size; N(0, 1) where no counts are named."""
    if allowed is None:
        return torch.randn(number, size + 1, dtype=torch.double)
    table = torch.full((number, size + 1), -math.inf, dtype=torch.double)
    table[:, list(allowed)] = 0.0
    return table


def problem(rows, shape, laws, scale):
    height, width = shape
    logits = scale * torch.randn(rows, height, width, dtype=torch.double)
    return GeneralizedMatching(logits, law(width, height, laws[0]), law(height, width, laws[1]))


def again(d):
    """The same distribution without what it has remembered."""
    return GeneralizedMatching(d.logits, d.row_count_logits, d.column_count_logits)


def timed(function):
    kept = []
    time = seconds(lambda: kept.append(function()))
    return kept[0], time


def chains(d, number, num_sweeps, burn):
    """Marginals from chains that start at the mode, and their standard errors."""
    value = d.sweep(again(d).mode.expand(number, *d.logits.shape), burn)
    total = torch.zeros_like(value)
    for _ in range(num_sweeps):
        value = d.sweep(value)
        total = total + value
    means = total / num_sweeps
    return means.mean(0), means.std(0) / math.sqrt(number)


def error(marginals, truth, rows=None):
    difference = (marginals - truth).abs().flatten(1).mean(-1)
    return float(difference.mean() if rows is None else difference[rows].mean())


def name_of(laws):
    return "random" if laws[0] is None else " / ".join(",".join(map(str, counts)) for counts in laws)


def small_problems(report, options):
    """Errors where exact sums are cheap, one line for each shape, law and scale."""
    rows = 3 if options.quick else options.problems
    lines, of_logs, worst, ratios, found_points = [], [], 0.0, [], {}
    for shape in ((3, 5), (4, 6)):
        for laws in (((2, 3), (1, 2)), (GAPS, (1, 2)), (SOFT, SOFT)):
            for scale in (1.0, 2.0):
                d = problem(rows, shape, laws, scale)
                truth, exact_time = timed(lambda d=d: again(d).marginals)
                found, time = timed(lambda d=d: again(d).approximate_marginals(LoopyBP()))
                bound = again(d).approximate_marginals(TreeReweighted())
                mode, mode_time = timed(lambda d=d: again(d).map()[0])
                sampled, chain_time = timed(lambda d=d: chains(d, 20, 20, 10)[0]) if laws[0] != GAPS else (None, None)
                done = found.converged
                errors = {
                    "nodes": error(d.logits.sigmoid(), truth),
                    "LP": error(mode, truth),
                    "LBP": error(found.marginals, truth, done),
                    "TRW": error(bound.marginals, truth),
                    "Gibbs": None if sampled is None else error(sampled, truth),
                }
                low, high = again(d).log_partition_bounds()
                difference = (found.log_partition - d.log_partition_function)[done]
                what = [f"{shape[0]} x {shape[1]}", name_of(laws), f"{scale:g}"]
                cells = ["–" if e is None else f"{e:.4f}" for e in errors.values()]
                steps = f"{found.num_iterations.double().mean():.0f}"
                times = [duration(t / rows) for t in (exact_time, time, mode_time)]
                lines.append([*what, *cells, f"{int(done.sum())}/{rows}", steps, *times])
                of_logs.append(
                    [
                        *what,
                        f"{difference.min():+.3f}",
                        f"{difference.max():+.3f}",
                        f"{(low - d.log_partition_function).mean():+.3f}",
                        f"{(high - d.log_partition_function).mean():+.3f}",
                        f"{(bound.log_partition - d.log_partition_function).mean():+.3f}",
                    ]
                )
                if laws == ((2, 3), (1, 2)) and scale == 1:
                    taken = {"LP": mode_time, "LBP": time, "Gibbs": chain_time}
                    found_points[shape] = {name: (t / rows, errors[name]) for name, t in taken.items()}
                    found_points[shape]["nodes"] = (None, errors["nodes"])
                if laws == ((2, 3), (1, 2)):
                    worst, ratios = max(worst, errors["LBP"]), [*ratios, errors["LBP"] / errors["nodes"]]
                report.progress(str(lines[-1]))
    report.claim("2,3 / 1,2: mean absolute error of LBP", "<= .01", f"{worst:.4f}", worst <= 0.01)
    report.claim("2,3 / 1,2: as a share of the nodes'", "<= .1", f"{max(ratios):.3f}", max(ratios) <= 0.1)
    header = ["shape", "counts", "scale", "nodes", "LP", "LBP", "TRW", "Gibbs", "converged", "steps"]
    report.table(f"Errors of marginals, {rows} problems each", [*header, "exact time", "LBP time", "LP time"], lines)
    names = ["Bethe, least", "Bethe, largest", "lower bound", "upper bound", "TRW"]
    report.table("Differences from log Z, in nats", ["shape", "counts", "scale", *names], of_logs)
    return found_points


def permanents(report, options):
    """Exactly one a row and column: Pyro's matching and ours."""
    rows = 2 if options.quick else 25
    nearer = total = 0
    largest, lines = -math.inf, []
    for number in (4, 5, 6, 7):
        d = problem(rows, (number, number), ((1,), (1,)), 1.0)
        truth = d.log_partition_function
        found, time = timed(lambda d=d: again(d).approximate_marginals(LoopyBP()))
        theirs, their_time = timed(
            lambda d=d: torch.stack([OneOneMatching(x, bp_iters=200).log_partition_function for x in d.logits])
        )
        ours = (truth - found.log_partition) / (number / 2 * math.log(2.0))
        nearer += int(((found.log_partition - truth).abs() < (theirs - truth).abs()).sum())
        total, largest = total + rows, max(largest, float(ours.max()))
        lines.append(
            [
                f"{number}",
                f"{(found.log_partition - truth).mean():+.3f}",
                f"{(theirs - truth).mean():+.3f}",
                f"{ours.max():.2f}",
                duration(time / rows),
                duration(their_time / rows),
            ]
        )
    share = nearer / total
    report.claim("one-to-one: nearer than Pyro's", ">= 95 of 100", f"{nearer} of {total}", share >= 0.95)
    report.claim("one-to-one: (log Z - Bethe) / (J/2 log 2), largest", "<= 1", f"{largest:.2f}", largest <= 1)
    report.paragraph(
        "*Pyro*: `OneOneMatching(logits, bp_iters=200)`. *Share*: the largest difference of log Z from ours, over "
        "J / 2 log 2, which it cannot exceed."
    )
    header = ["J", "ours - log Z", "Pyro - log Z", "share", "our time", "Pyro's time"]
    report.table(f"One-to-one, log-odds N(0, 1), {rows} problems each", header, lines)


def medium(report, options):
    """10 x 20: the truth from long chains."""
    number, sweeps = (4, 5) if options.quick else (100, 400)
    d = problem(1, (10, 20), ((2, 3), (1, 2)), 1.0)
    (truth, spread), long_time = timed(lambda: chains(d, number, sweeps, 50))
    found, time = timed(lambda: again(d).approximate_marginals(LoopyBP()))
    mode, mode_time = timed(lambda: again(d).map()[0])
    (sampled, _), short_time = timed(lambda: chains(d, 20, 20, 10))
    rows = [
        ["nodes", small(error(d.logits.sigmoid(), truth)), "–"],
        ["LP", small(error(mode, truth)), duration(mode_time)],
        ["LBP", small(error(found.marginals, truth)), duration(time)],
        ["Gibbs, 20 chains of 20 sweeps", small(error(sampled, truth)), duration(short_time)],
        ["long Gibbs (standard error)", small(float(spread.mean())), duration(long_time)],
    ]
    report.table("10 x 20, rows 2 or 3, columns 1 or 2", ["method", "error", "time"], rows)
    return {
        "nodes": (None, error(d.logits.sigmoid(), truth)),
        "LP": (mode_time, error(mode, truth)),
        "LBP": (time, error(found.marginals, truth)),
        "Gibbs": (short_time, error(sampled, truth)),
    }


def draw(report, points):
    """Errors and times of the methods, one panel for each shape."""
    import matplotlib.pyplot as plt

    colors = {"nodes": "#8a949c", "LP": "#e08214", "LBP": "#1f6fb2", "Gibbs": "#5aae61"}
    fig, axes = plt.subplots(1, len(points), figsize=(9, 3), sharey=True, layout="constrained")
    for ax, (shape, methods) in zip(axes, points.items(), strict=True):
        for name, (time, mistake) in methods.items():
            if time is None:
                ax.axhline(mistake, color=colors[name], linestyle="--", linewidth=1)
                ax.annotate("nodes", (0.98, mistake), xycoords=("axes fraction", "data"), ha="right", va="bottom")
            else:
                ax.scatter(1e3 * time, mistake, color=colors[name])
                ax.annotate(name, (1e3 * time, mistake), xytext=(4, 4), textcoords="offset points")
        ax.set(xscale="log", yscale="log", xlabel="milliseconds a problem", title=f"{shape[0]} x {shape[1]}")
        ax.margins(0.25)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean absolute error")
    if report.options.write:
        fig.savefig(report.picture("generalized_matchings", "Errors and times of four methods, three shapes"), dpi=120)
    plt.close(fig)


def large(report, options):
    """Times where no truth is known, with and without extrapolation."""
    sizes = [((100, 150), ((2, 3), (1, 2))), ((100, 100), ((2, 3), (1, 2))), ((100, 100), ((2,), (2,)))]
    if options.quick:
        sizes = [((10, 15), ((2, 3), (1, 2))), ((10, 10), ((2, 3), (1, 2)))]
    lines, times = [], {}
    for shape, laws in sizes:
        d = problem(1, shape, laws, 1.0)
        found, times[shape, laws] = timed(lambda d=d: again(d).approximate_marginals(LoopyBP()))
        plain, plain_time = timed(
            lambda d=d: again(d).approximate_marginals(LoopyBP(memory=0, max_iterations=20 if options.quick else 300))
        )
        _, mode_time = timed(lambda d=d: again(d).map()[0])
        _, sweep_time = timed(lambda d=d: d.sweep(again(d).mode))
        distance = float((plain.marginals - found.marginals).abs().max())
        lines.append(
            [
                f"{shape[0]} x {shape[1]}",
                name_of(laws),
                "yes" if bool(found.converged) else "no",
                int(found.num_iterations),
                small(float(found.error)),
                duration(times[shape, laws]),
                "yes" if bool(plain.converged) else "no",
                int(plain.num_iterations),
                small(float(plain.residual)),
                small(distance),
                duration(plain_time),
                duration(mode_time),
                duration(sweep_time),
            ]
        )
        report.progress(str(lines[-1]))
    for (shape, laws), limit in zip(sizes, (1.0, 3.0), strict=False):
        time = times[shape, laws]
        report.claim(f"{shape[0]} x {shape[1]}, {name_of(laws)}: LBP", f"<= {limit:g} s", duration(time), time <= limit)
    report.paragraph(
        "*Plain*: `LoopyBP(memory=0, max_iterations=300)`, up to 300 undamped steps and 300 damped ones after them. "
        "Square matrices force every count to two. *Distance*: largest difference of the marginals of plain steps from "
        "those of extrapolated ones."
    )
    header = ["shape", "counts", "LBP converged", "steps", "error", "time"]
    more = ["plain converged", "steps", "residual", "distance", "time", "LP time", "a sweep"]
    report.table("Larger ones", [*header, *more], lines)


def exact(report, options):
    lines = []
    for number in (4, 6) if options.quick else (8, 12, 16, 20):
        d = problem(1, (number, number), ((1,), (1,)), 1.0)
        _, first = timed(lambda d=d: again(d).log_partition_function)
        _, second = timed(lambda d=d: again(d).marginals)
        _, drawn = timed(lambda d=d: again(d).sample((100,)))
        weights, tables = d._arguments
        states = d._families.plan.diagram(weights.unflatten(-1, (-1, 2)), tables).num_states
        lines.append([f"{number} x {number}", states, duration(first), duration(second), duration(drawn)])
        if number == 12:
            report.claim("12 x 12 one-to-one, log Z", "<= 2 s", duration(first), first <= 2)
    report.paragraph(
        "*First*: log Z with the search for states, which are remembered; *marginals* and *100 samples*: of new "
        "objects afterwards."
    )
    report.table("Exact, one-to-one", ["shape", "states", "first log Z", "marginals", "100 samples"], lines)


def reviewers(report, options):
    """MIDL 2018: three reviews a paper, at most four papers a reviewer."""
    if report.lacks("matching/reviewer_midl2018.npz"):
        return
    conference = load_review_scores()
    number, sweeps = (2, 2) if options.quick else (40, 60)
    lines = []
    for strength in (1.0, 5.0, 20.0):
        scores = strength * torch.from_numpy(conference.scores.T)
        papers, people = scores.shape
        d = GeneralizedMatching(scores, law(people, papers, (3,)), law(papers, people, range(5))).expand([1])
        found, time = timed(lambda d=d: again(d).approximate_marginals(LoopyBP()))
        mode, mode_time = timed(lambda d=d: again(d).map()[0])
        (sampled, spread), chain_time = timed(lambda d=d: chains(d, number, sweeps, sweeps))
        bound, bound_time = timed(lambda d=d: again(d).log_partition_bounds())
        lines.append(
            [
                f"{strength:g}",
                f"{int(found.num_iterations)}, {'yes' if bool(found.converged) else 'no'}",
                duration(time),
                f"{float((found.marginals * mode).sum() / mode.sum()):.2f}",
                small(error(found.marginals, sampled)),
                small(error(mode, sampled)),
                small(float(spread.mean())),
                f"{float(bound[0]):.1f} to {float(bound[1]):.1f}",
                f"{float(found.log_partition):.1f}",
                duration(mode_time),
                duration(bound_time),
                duration(chain_time),
            ]
        )
        report.progress(str(lines[-1]))
    report.paragraph(
        "Reviewers of MIDL 2018, 118 papers and 177 people; log-odds are the scores times a strength. *Sure*: mean "
        "probability, by LBP, of the pairs of the most probable assignment. *LBP - Gibbs*, *LP - Gibbs*: mean absolute "
        f"difference from the marginals of {number} chains of {sweeps} sweeps after as many, whose own standard error "
        "stands beside."
    )
    header = ["strength", "steps, converged", "LBP time", "sure", "LBP - Gibbs", "LP - Gibbs", "s.e. of Gibbs"]
    report.table(
        "Reviewers and papers", [*header, "bounds of log Z", "Bethe", "LP time", "bounds' time", "Gibbs' time"], lines
    )


def main():
    options = arguments(__doc__, problems=(50, "random problems of each kind"))
    report = Report("Generalized matchings", TEXT, options)
    points = small_problems(report, options)
    permanents(report, options)
    exact(report, options)
    draw(report, {**points, (10, 20): medium(report, options)})
    for part in (large, reviewers):
        part(report, options)
    report.finish()


if __name__ == "__main__":
    main()
