"""log Z and all marginals against a log-space chain in torch with autograd, one by one and in batches.

Claim: at least 100x faster at D=4096, and at least 40x for a batch of 256 rows at D=1024, with logits and f ~ N(0,1);
inputs that are hard for floating point stand in the same table.
"""

import torch

from benchmarks.counts.input_families import single_potentials
from benchmarks.counts.log_chain import growing_chain, log_partition_and_marginals, plain_chain
from benchmarks.measurement import Report, arguments, duration, interleaved, ratio
from pyro_structured.counts.ops.certified_counts import certify, infer_counts
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.distributions import RecursiveCardinality

TEXT = """
Log Z and all marginals of one potential over D variables. *Chain*: `logaddexp` over the variables and autograd, the
message of step d having d + 1 entries; *plain chain*: the same with D + 1 entries at every step. *One pass*:
`ops.cardinality.infer_counts`; *distribution*: `RecursiveCardinality(logits, count_logits)` and its two properties
`log_partition_function` and `marginals`, construction and validation included. Ours include the search for tilts and
windows, the certificate, and the direct convolution of rows that fail it. The ratios are those of the chain's time to
that of one pass, and of the distribution. The chain is what one would write first; a stronger control is the tree of
direct convolutions in [runtime](runtime_by_size.md), 3.4 times as fast as the chain for D = 4096.
"""


def contestants(logits, count_logits):
    """Functions by name; the plan of the passes is made anew in every call."""

    def distribution():
        made = RecursiveCardinality(logits, count_logits)
        return made.log_partition_function, made.marginals

    def chain(kind):
        return lambda: log_partition_and_marginals(kind, logits, count_logits)

    return {
        "pass": lambda: infer_counts(logits, count_logits, CountForest(logits.shape[-1])),
        "distribution": distribution,
        "chain": chain(growing_chain),
        "plain": chain(plain_chain),
    }


def check(logits, count_logits):
    """Largest difference between the marginals of the chain and ours."""
    ours = infer_counts(logits, count_logits, CountForest(logits.shape[-1]))
    theirs = log_partition_and_marginals(growing_chain, logits, count_logits)[1]
    difference = (torch.sigmoid(ours.marginal_logits) - theirs).abs().max()
    assert difference < 1e-7, difference


def main():
    options = arguments(__doc__, size=(4096, "D of the first table"), rows=(256, "rows of the batch"))
    num_variables, rows, width = options.size, options.rows, 1024
    if options.quick:
        num_variables, rows, width = 128, 4, 64
    report = Report("Speed against a log-space chain", TEXT, options)
    header = ["input", "rows x D", "chain", "plain chain", "one pass", "distribution"]
    header += ["chain / one pass", "chain / distribution", "plain chain / one pass", "fallback nodes"]
    table, ratios = [], {}

    def compare(name, logits, count_logits, with_plain):
        runs = contestants(logits, count_logits)
        if not with_plain:
            del runs["plain"]
        times = interleaved(runs, options.repeats)
        plain = times.get("plain")
        fallback = int(certify(logits, count_logits, CountForest(logits.shape[-1])).num_fallback_nodes.max())
        ratios[name] = times["chain"] / times["pass"]
        row = [name, f"{logits.shape[0]} x {logits.shape[1]}", *map(duration, (times["chain"], plain))]
        row += [duration(times["pass"]), duration(times["distribution"]), ratio(ratios[name])]
        row += [ratio(times["chain"] / times["distribution"]), ratio(plain and plain / times["pass"]), fallback]
        table.append(row)
        return times

    for name, (logits, count_logits) in single_potentials(num_variables).items():
        if not table:
            check(logits.unsqueeze(0), count_logits.unsqueeze(0))
        times = compare(name, logits.unsqueeze(0), count_logits.unsqueeze(0), not table)
        if name == "N(0,1) logits, random f":
            alone = times
    logits = torch.randn(rows, width, dtype=torch.float64)
    batch = compare("N(0,1) logits, random f", logits, torch.randn(rows, width + 1, dtype=torch.float64), True)

    for label, times, wanted in (
        (f"D={num_variables}", alone, 100),
        (f"{rows} rows, D={width}", batch, 40),
    ):
        for peer, name in (("chain", "chain"), ("plain", "plain chain")):
            for ours, description in (("pass", "one pass"), ("distribution", "distribution")):
                factor = times[peer] / times[ours]
                report.claim(f"{label}: {name} / {description}", f">= {wanted}x", ratio(factor), factor >= wanted)
    report.table("Times and ratios", header, table)
    report.finish()


if __name__ == "__main__":
    main()
