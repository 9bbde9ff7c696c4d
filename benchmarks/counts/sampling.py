"""Exact joint samples: time, and a chi-square check of their counts.

Claim: 1,000 joint samples of 2^14 variables take about 2 seconds, and the counts of all variables and of the first
half of them have their exact distributions.
"""

import torch
from scipy.stats import chi2

from benchmarks.measurement import Report, arguments, duration, interleaved, size
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets

TEXT = """
Logits and potentials ~ N(0,1): one potential over all variables, or potentials at every node of
`NestedSubsets.balanced(D)`. A new `RecursiveCardinality` is made for every call of `sample`, so that the upward pass
and the search for tilts are included (the subsets are made beforehand). The chi-square statistics compare the counts
of all variables, and of the first half of them, in the samples with the exact probabilities (the latter from a second
model with one more subset); counts with an expectation below five are joined. *Marginals*: the largest standardised
deviation of a variable's frequency from its marginal, with the value that it exceeds in 5 % of the cases.
"""


def sampler(logits, count_logits, subsets, num_samples):
    return lambda: RecursiveCardinality(logits, count_logits, subsets).sample((num_samples,))


def chi_square(counts, probs):
    """Statistic, degrees of freedom and p-value of observed counts against their exact probabilities."""
    expected = len(counts) * probs
    observed = torch.bincount(counts, minlength=len(probs)).double()
    bins, mass = [], [0.0, 0.0]
    for e, o in zip(expected.tolist(), observed.tolist(), strict=True):
        mass = [mass[0] + e, mass[1] + o]
        if mass[0] >= 5:
            bins.append(mass)
            mass = [0.0, 0.0]
    bins[-1] = [bins[-1][0] + mass[0], bins[-1][1] + mass[1]]
    statistic = sum((o - e) ** 2 / e for e, o in bins)
    return statistic, len(bins) - 1, float(chi2.sf(statistic, len(bins) - 1))


def goodness_of_fit(num_variables, num_samples):
    """Rows of the table of chi-square tests, with the p-values."""
    logits = torch.randn(num_variables, dtype=torch.float64)
    table = torch.randn(num_variables + 1, dtype=torch.float64)
    half = num_variables // 2
    subsets = NestedSubsets([range(half), range(num_variables)], num_variables)
    model = RecursiveCardinality(logits, subsets.pack([torch.zeros(half + 1).double(), table]), subsets)
    half_probs, whole_probs = subsets.split(model.count_marginals)
    samples = RecursiveCardinality(logits, table).sample((num_samples,))
    tests = {
        "all variables": chi_square(samples.sum(-1).long(), whole_probs),
        "first half": chi_square(samples[:, :half].sum(-1).long(), half_probs),
    }
    nested = model.sample((num_samples,))
    tests["all variables, two subsets"] = chi_square(nested.sum(-1).long(), whole_probs)
    tests["first half, two subsets"] = chi_square(nested[:, :half].sum(-1).long(), half_probs)
    rows = [[name, f"{s:.1f}", degrees, f"{p:.3f}"] for name, (s, degrees, p) in tests.items()]
    deviation = (samples.mean(0) - model.marginals) / (model.variance / num_samples).sqrt()
    normal = torch.distributions.Normal(0.0, 1.0)
    limit = normal.icdf(torch.tensor(0.5 + 0.5 * 0.95 ** (1 / num_variables), dtype=torch.float64)).item()
    return rows, min(p for _, _, p in tests.values()), deviation.abs().max().item(), limit


def main():
    options = arguments(
        __doc__,
        largest=(19, "binary logarithm of the largest number of variables"),
        largest_nested=(15, "the same for potentials at every node"),
        samples=(1000, "joint samples in the claim and in the checks"),
    )
    exponents, judged, num_samples = range(10, options.largest + 1), 2**14, options.samples
    if options.quick:
        exponents, judged, num_samples = range(6, 9), 2**8, 100
    report = Report("Joint samples", TEXT, options)
    rows = []
    for exponent in exponents:
        num_variables = 2**exponent
        logits = torch.randn(num_variables, dtype=torch.float64)
        table = torch.randn(num_variables + 1, dtype=torch.float64)
        runs = {"one": sampler(logits, table, NestedSubsets([range(num_variables)], num_variables), 1)}
        if num_variables <= judged:
            runs["many"] = sampler(logits, table, NestedSubsets([range(num_variables)], num_variables), num_samples)
        if exponent <= options.largest_nested:
            subsets = NestedSubsets.balanced(num_variables)
            tables = torch.randn(subsets.table_size, dtype=torch.float64)
            runs["nested"] = sampler(logits, tables, subsets, 1)
            if num_variables <= judged // 4:
                runs["nested many"] = sampler(logits, tables, subsets, num_samples)
        times = interleaved(runs, min(3, options.repeats))
        rows.append([size(num_variables), *(duration(times.get(n)) for n in ("one", "many", "nested", "nested many"))])
        if num_variables == judged:
            text = f"{num_samples} samples, D={size(judged)}"
            report.claim(text, "about 2 s", duration(times["many"]), times["many"] <= 2.5)
    many = f"{num_samples} samples"
    header = ["D", "1 sample", many, "1 sample, every node", f"{many}, every node"]
    report.table("Times", header, rows)
    rows, worst, deviation, limit = goodness_of_fit(judged, num_samples)
    report.claim("smallest p-value of the chi-square tests", ">= 0.001", f"{worst:.3f}", worst >= 0.001)
    text = f"largest deviation of {judged} frequencies, in standard errors"
    # The limit for a false alarm in 1 of 1,000 runs is about one above that for 1 of 20.
    report.claim(text, f"<= {limit + 1:.2f}", f"{deviation:.2f} (5 %: {limit:.2f})", deviation <= limit + 1)
    report.table(f"Chi-square tests, D={size(judged)}", ["count of", "statistic", "degrees of freedom", "p"], rows)
    report.finish()


if __name__ == "__main__":
    main()
