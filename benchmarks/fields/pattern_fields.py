"""Fields under patterns: time of exact sums, and proofs of most probable labelings."""

import itertools
import math
import statistics
import time
import warnings

import torch

from benchmarks.measurement import Report, arguments, duration, interleaved, ratio, small
from pyro_structured.distributions import PatternCRF
from pyro_structured.structures import Grid

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns of what others deprecate, some of it only when it is used
    import pyagrum

    pyagrum.MarkovRandomField()

TEXT = """
*Exact sums*: log Z alone, and with the marginals of all pixels, in float64. Fields are as below, but unaries and
weights are divided by the square root of the number of pixels. Peers: pyAgrum's `ShaferShenoyMRFInference`, on the
Markov random field of pixels and hidden units, which is built beforehand; and log Z alone by a sum over all labelings,
in torch. *Together*: 64 fields with unaries of their own.

*Most probable labelings*: unaries and weights are standard normal, penalties of neighbours that differ are exponential
with mean 1/2, each bias is minus half the sum of its pattern's weights and a standard normal number; T = 1, "sum".
*Proved*: fields for which branch and bound proves the optimum within 2 seconds. *Worst gap*: the largest difference to
the best value; *bound*: the median difference of the upper bound to it. *Exact*: fields for which expectation
maximisation finds it, as `map("em")` does, which switches single patterns, and from the two starts alone
(`num_switches=0`). Dual decomposition (form 2) stops after 1,000 cuts.
"""
# Height, width, patterns, composition, and the seconds that log Z may take.
SUMS = ((8, 8, 8, "sum", 0.3), (8, 8, 10, "sum", None), (10, 10, 8, "sum", None), (16, 12, 32, "min", None)) + (
    (12, 32, 64, "min", 30.0),
)
SEARCHES = ((32, 32, 4), (8, 8, 8))
SECONDS, SHARE = 2.0, 0.95
# Patterns that expectation maximisation switches in a round.
SWITCHES = {"expectation maximisation": None, "from two starts": 0}
# Fields that are summed together.
MANY = 64


def field(height, width, number, composition="sum", scale=1.0):
    grid = Grid(height, width)
    unary, weights = (scale * torch.randn(*shape, height, width).double() for shape in ((), (number,)))
    penalties = torch.distributions.Exponential(2.0).sample((grid.num_edges,)).double()
    biases = torch.randn(number).double() - weights.sum((1, 2)) / 2
    return PatternCRF(unary, penalties, weights, biases, grid, composition)


def again(d):
    """The same distribution without cached results."""
    composition = "min" if torch.isinf(d.composition).any() else "sum"
    return PatternCRF(d.unary_logits, d.pairwise, d.weights, d.pattern_logits, d.grid, composition)


def over_labelings(d):
    """Log Z by the sum over all labelings."""
    number = d.grid.num_pixels
    y = (torch.arange(2**number).unsqueeze(-1) >> torch.arange(number) & 1).double()
    differ = (y[:, d.grid.edges[:, 0]] != y[:, d.grid.edges[:, 1]]).double()
    activations = y @ d.weights.flatten(1).T + d.pattern_logits
    scores = y @ d.unary_logits.flatten() - differ @ d.pairwise + torch.logaddexp(activations, torch.zeros(1)).sum(-1)
    return scores.logsumexp(0)


def random_field(d):
    """For pyAgrum: a factor for each pixel, pair, hidden unit, and pixel with hidden unit."""
    model = pyagrum.MarkovRandomField()
    pixels, units = d.grid.num_pixels, len(d.pattern_logits)
    names = [f"y{i}" for i in range(pixels)] + [f"h{j}" for j in range(units)]
    for name in names:
        model.add(pyagrum.LabelizedVariable(name, name, 2))
    odds = torch.cat([d.unary_logits.flatten(), d.pattern_logits])
    for name, value in zip(names, odds.exp().tolist(), strict=True):
        model.addFactor([name])[:] = [1.0, value]
    for (one, other), penalty in zip(d.grid.edges.tolist(), d.pairwise.tolist(), strict=True):
        cost = math.exp(-penalty)
        model.addFactor([names[one], names[other]])[:] = [[1.0, cost], [cost, 1.0]]
    for pixel, unit in itertools.product(range(pixels), range(units)):
        weight = math.exp(d.weights.flatten(1)[unit, pixel])
        model.addFactor([names[pixel], names[pixels + unit]])[:] = [[1.0, 1.0], [1.0, weight]]
    return model


def with_pyagrum(model):
    engine = pyagrum.ShaferShenoyMRFInference(model)
    engine.makeInference()
    return [engine.posterior(f"y{i}") for i in range(sum(name.startswith("y") for name in model.names()))]


def sums(report, options):
    rows = []
    for height, width, number, composition, limit in SUMS[:1] if options.quick else SUMS:
        d = field(height, width, number, composition, (height * width) ** -0.5)
        times = interleaved(
            {"log Z": lambda d=d: again(d).log_partition_function, "marginals": lambda d=d: again(d).marginals},
            options.repeats,
        )
        rows.append([f"{height} x {width}", number, composition, *(duration(t) for t in times.values())])
        if limit:
            name = f'log Z of {height} x {width}, {number} patterns, "{composition}"'
            report.claim(name, f"<= {limit:g} s", duration(times["log Z"]), times["log Z"] <= limit)
    report.table("Exact sums", ["grid", "patterns", "composition", "log Z", "log Z and marginals"], rows)
    peers(report, options)


def peers(report, options):
    """One field, and many at a time, for which the peer takes one after the other."""
    rows, worst, many = [], 0.0, 2 if options.quick else MANY
    for height, width, number in ((4, 4, 3),) if options.quick else ((4, 4, 3), (6, 6, 4), (8, 8, 4)):
        d = field(height, width, number, scale=1 / height)
        model, copies = random_field(d), torch.stack([d.unary_logits] * many)
        contestants = {
            "ours": lambda d=d: again(d).marginals,
            "ours, together": lambda d=d, copies=copies: (
                PatternCRF(copies, d.pairwise, d.weights, d.pattern_logits, d.grid).marginals
            ),
            "pyAgrum": lambda model=model: with_pyagrum(model),
        }
        if height * width <= 16:
            contestants["all labelings"] = lambda d=d: over_labelings(d)
        times = interleaved(contestants, options.repeats)
        times["ours, together"] /= many
        exact = [posterior.tolist()[1] for posterior in with_pyagrum(model)]
        worst = max(worst, float((d.marginals.flatten() - torch.tensor(exact, dtype=torch.double)).abs().max()))
        rows += [
            [f"{height} x {width}", number, name, duration(t), ratio(times["pyAgrum"] / t)] for name, t in times.items()
        ]
    header = ["grid", "patterns", "method", "time of a field", "faster than pyAgrum"]
    report.table("Exact sums against peers", header, rows)
    report.claim("largest difference of marginals to pyAgrum's", "<= 1e-10", small(worst), worst <= 1e-10)


def searches(report, options):
    rows = []
    for height, width, number in SEARCHES:
        proved, times, cuts, bounds = 0, [], [], []
        gaps = {name: [] for name in (*SWITCHES, "dual decomposition")}
        em = {name: [] for name in SWITCHES}
        for _ in range(2 if options.quick else options.fields):
            d = field(height, width, number)
            began = time.process_time()
            _, best = d.map("branch_and_bound", max_cuts=100_000)
            times.append(time.process_time() - began)
            proved += bool(best.optimal) and times[-1] <= SECONDS
            cuts.append(int(best.num_cuts))
            for name, number_of_switches in SWITCHES.items():
                began = time.process_time()
                found = d.map("em", num_switches=number_of_switches)[1]
                em[name].append(time.process_time() - began)
                gaps[name].append(float(best.value - found.value))
            dual = d.map("dual", max_cuts=1000)[1]
            gaps["dual decomposition"].append(float(best.value - dual.value))
            bounds.append(float(dual.upper_bound - best.value))
        fields = len(times)
        report.progress(f"{height} x {width}: {proved} of {fields}, median {statistics.median(times):.2f} s")
        name = f"{height} x {width}, {number} patterns: proved within {SECONDS:g} s"
        report.claim(name, f">= {SHARE * fields:.0f} of {fields}", f"{proved}", proved >= SHARE * fields)
        exact = {name: sum(gap <= 1e-6 for gap in found) for name, found in gaps.items()}
        name = f"{height} x {width}, {number} patterns: exact by expectation maximisation"
        count = exact["expectation maximisation"]
        report.claim(name, f">= {SHARE * fields:.0f} of {fields}", f"{count}", count >= SHARE * fields)
        size = [f"{height} x {width}", number]
        rows.append([*size, "branch and bound", f"{proved} of {fields}", f"{fields} of {fields}", "0", "0"])
        rows[-1] += [f"{statistics.median(cuts):.0f}", duration(statistics.median(times)), duration(max(times))]
        for name, found in em.items():
            row = [*size, name, "–", f"{exact[name]} of {fields}", f"{max(gaps[name]):.2f}", "–", "–"]
            rows.append([*row, duration(statistics.median(found)), duration(max(found))])
        name = "dual decomposition"
        row = [*size, name, "–", f"{exact[name]} of {fields}", f"{max(gaps[name]):.2f}"]
        rows.append([*row, f"{statistics.median(bounds):.2f}", "1000", "–", "–"])
    header = ["grid", "patterns", "method", "proved", "exact", "worst gap", "bound", "cuts", "median time", "longest"]
    report.table("Most probable labelings", header, rows)


def main():
    options = arguments(__doc__, fields=(100, "fields of each size"))
    report = Report("Fields under patterns", TEXT, options)
    sums(report, options)
    searches(report, options)
    report.finish()


if __name__ == "__main__":
    main()
