"""Runtime of log Z and all marginals against the number of variables, as in Figure 3 of Tarlow et al. (2012).

Claim: one potential over 2^19 variables takes at most 4 seconds and 2 GB, and at most 70 times as long as 2^14.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.counts.log_chain import growing_chain, log_partition_and_marginals
from benchmarks.measurement import Report, arguments, duration, interleaved, seconds, size
from pyro_structured.counts.ops import count_tree
from pyro_structured.counts.ops.certified_counts import certify, infer_counts
from pyro_structured.counts.ops.count_forest import CountForest, balanced_merges
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets

TEXT = """
Figure 3 of the paper: log Z and all marginals for logits and one potential ~ N(0,1). *Chain*: `logaddexp` over the
variables with autograd; *Tree*: a balanced tree of direct convolutions in log space (`ops.count_tree`, its plan made
beforehand); *FFT tree*: ours, as one pass (`ops.cardinality.infer_counts`) and through `RecursiveCardinality`, whose
construction is included. Ours include tilts, windows and certificate. *Every node*: potentials ~ N(0,1) at all nodes
of `NestedSubsets.balanced(D)`, one pass; *subsets*: the time to make these subsets, once; *fallback*: the share of
the nodes that the certificate sent to direct convolution. A dash: not run, because it would take too long or, for the
chain, too much memory.
"""
# Bytes that autograd keeps for each of the D^2 / 2 entries of the chain's messages.
CHAIN_BYTES = 32
CONTESTANTS = ("Chain", "Tree", "FFT tree, one pass", "FFT tree, distribution", "every node")


def tree_contestant(logits, count_logits):
    num_variables = logits.shape[-1]
    merges = balanced_merges(num_variables)
    root = num_variables + len(merges) - 1
    tree = CountForest(num_variables, merges, ((root, num_variables),)).tree(count_logits)

    def run():
        messages, potentials, log_scale = count_tree.upward(tree, logits, count_logits)
        outside = count_tree.downward(tree, messages, potentials)
        return count_tree.root_log_partition(tree, messages, log_scale), count_tree.posterior(tree, messages, outside)

    return run


def distribution_contestant(logits, count_logits):
    def run():
        made = RecursiveCardinality(logits, count_logits)
        return made.log_partition_function, made.marginals

    return run


def inputs(num_variables):
    logits = torch.randn(1, num_variables, dtype=torch.float64)
    return logits, torch.randn(1, num_variables + 1, dtype=torch.float64)


def measure(num_variables, wanted, repeats):
    """Median seconds of the wanted contestants, seconds to make the subsets, and the share of fallback nodes."""
    logits, count_logits = inputs(num_variables)
    runs, subsets_time, fallback = {}, None, None
    if "Chain" in wanted:
        runs["Chain"] = lambda: log_partition_and_marginals(growing_chain, logits, count_logits)
    if "Tree" in wanted:
        runs["Tree"] = tree_contestant(logits, count_logits)
    runs["FFT tree, one pass"] = lambda: infer_counts(logits, count_logits, CountForest(num_variables))
    runs["FFT tree, distribution"] = distribution_contestant(logits, count_logits)
    if "every node" in wanted:
        made = []
        subsets_time = seconds(lambda: made.append(NestedSubsets.balanced(num_variables)))
        forest = made[0].forest
        tables = torch.randn(1, forest.table_size, dtype=torch.float64)
        runs["every node"] = lambda: infer_counts(logits, tables, forest)
        fallback = int(certify(logits, tables, forest).num_fallback_nodes) / len(forest.merges)
    return interleaved(runs, repeats), subsets_time, fallback


def feasible(name, num_variables, last, options):
    """Whether the next size will take less than the patience, as each doubling costs up to four times as much."""
    if name.startswith("FFT"):
        return True
    if name == "Chain" and CHAIN_BYTES * num_variables**2 / 2 > options.chain_memory * 2**30:
        return False
    return last is None or 4 * last < options.patience


def resident_peak():
    """Largest resident memory of this process so far, in MB (Linux)."""
    # Not getrusage: its figure starts with that of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def peak_memory(num_variables):
    """Peak memory that a fresh process prints; see :func:`print_peak_memory`."""
    root, module = Path(__file__).parents[2], "benchmarks.counts.runtime_by_size"
    command = [sys.executable, "-m", module, "--peak-memory-of", str(num_variables)]
    return json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


def print_peak_memory(num_variables):
    """Prints the peak memory before inference, after one pass, and after the distribution's queries."""
    infer_counts(*inputs(64), CountForest(64))  # loads what torch loads at the first use
    before = resident_peak()
    logits, count_logits = inputs(num_variables)
    infer_counts(logits, count_logits, CountForest(num_variables))
    after_pass = resident_peak()
    distribution_contestant(logits, count_logits)()
    print(json.dumps([before, after_pass, resident_peak()]))


def draw(path, sizes, times):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), constrained_layout=True)
    styles = {
        "Chain": ("Chain (log space, autograd)", "s--", "#888888"),
        "Tree": ("Tree (log space, direct)", "^--", "#c46a1b"),
        "FFT tree, distribution": ("FFT tree (RecursiveCardinality)", "o-", "#1f5fa8"),
        "every node": ("Potentials at every node", "D-", "#3a8f5c"),
    }
    for name, (label, marker, colour) in styles.items():
        known = [(d, times[d][name]) for d in sizes if name in times[d]]
        if known:
            axes.loglog(*zip(*known, strict=True), marker, base=2, color=colour, label=label, markersize=4)
    axes.set_yscale("log", base=10)
    axes.set_xlabel("number of variables D")
    axes.set_ylabel("seconds for log Z and all marginals")
    axes.set_title("Runtime against problem size, one thread", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def main():
    options = arguments(
        __doc__,
        largest=(19, "binary logarithm of the largest number of variables"),
        patience=(20, "seconds that one run of a slow contestant may take"),
        chain_memory=(6, "GB that the chain may take"),
        peak_memory_of=(0, "only print the peak memory (MB) at this size, and that before"),
    )
    if options.peak_memory_of:
        return print_peak_memory(options.peak_memory_of)
    largest = 8 if options.quick else options.largest
    report = Report("Runtime against the number of variables", TEXT, options)
    sizes = [2**e for e in range(6, largest + 1)]
    times, rows, last = {}, [], dict.fromkeys(CONTESTANTS)
    for num_variables in sizes:
        wanted = [n for n in CONTESTANTS if feasible(n, num_variables, last[n], options)]
        times[num_variables], subsets_time, fallback = measure(num_variables, wanted, options.repeats)
        # Once out, always out: infinite time is beyond every patience.
        last = {n: times[num_variables].get(n, float("inf")) for n in CONTESTANTS}
        share = "–" if fallback is None else f"{100 * fallback:.3g} %"
        shown = [duration(times[num_variables].get(n)) for n in CONTESTANTS]
        rows.append([size(num_variables), *shown, duration(subsets_time), share])

    end, start = sizes[-1], sizes[0] if options.quick else 2**14
    before, *peaks = peak_memory(end)
    for name, peak in zip(("FFT tree, one pass", "FFT tree, distribution"), peaks, strict=True):
        time = times[end][name]
        report.claim(f"time at D={size(end)}: {name}", "<= 4 s, aim 1.5 s", duration(time), time <= 4)
        if start in times:
            factor = time / times[start][name]
            report.claim(f"t({size(end)}) / t({size(start)}): {name}", "<= 70", f"{factor:.3g}", factor <= 70)
        text = f"{peak:.0f} MB, {peak - before:.0f} MB more than before"
        report.claim(f"peak memory at D={size(end)}: {name}", "<= 2 GB", text, peak <= 2000)
    report.paragraph(f"Memory of the process (Python, torch, package) before inference: {before:.0f} MB.")
    report.table("Times", ["D", *CONTESTANTS, "subsets", "fallback"], rows)
    path = report.picture("runtime", "Runtime against the number of variables for four algorithms")
    if options.write:
        path.parent.mkdir(exist_ok=True)
        draw(path, sizes, times)
    report.finish()


if __name__ == "__main__":
    main()
