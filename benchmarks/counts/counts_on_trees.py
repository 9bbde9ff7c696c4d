"""Log Z and all marginals of a tree of binary variables with one potential on their count.

Claims: 2^16 variables take at most 30 times as long as 2^12, whatever the shape of the tree; on a path of 2^13 at least
ten times as fast as a recursion in log space with automatic differentiation.
"""

from unittest.mock import patch

import numpy as np
import torch

from benchmarks.measurement import Report, arguments, duration, interleaved, ratio, size, small
from pyro_structured.counts.ops import coupled_counts
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets

TEXT = """
Section 5.4 of the paper. Log-odds, tables of edges and the potential of the count are N(0,1). *Transforms*: through
`RecursiveCardinality`, the subsets with their plan made beforehand (*plan*: the time for it, once); tilts and the
certificate are included. *Direct*: the same without transforms. *Recursion*: along the path, a vector of counts for
either state of the last variable, `logaddexp`, marginals by autograd, which keeps every step. *Certified error*: the
largest bound on the error of a log-odds. A dash: not run.
"""
SHAPES = ("path", "star", "caterpillar", "random")


def tree_edges(shape, number, rng):
    if shape == "path":
        return [(d, d + 1) for d in range(number - 1)]
    if shape == "star":
        return [(0, d) for d in range(1, number)]
    if shape == "caterpillar":
        spine = number // 2
        return [(d, d + 1) for d in range(spine - 1)] + [(d - spine, d) for d in range(spine, number)]
    return [(int(rng.integers(d)), d) for d in range(1, number)]


def recursion(logits, edge_logits, count_logits):
    """Log Z of a path; entries that cannot be are finite, because derivatives of logaddexp(-inf, -inf) are NaN."""
    never = logits.new_full((1,), -1e300)
    off, on = logits.new_zeros(1), logits.new_zeros(0)
    off, on = torch.cat([off, never]), torch.cat([never, logits[:1]])
    for logit, table in zip(logits[1:], edge_logits, strict=True):
        to_off = torch.logaddexp(off + table[0, 0], on + table[1, 0])
        to_on = torch.logaddexp(off + table[0, 1], on + table[1, 1]) + logit
        off, on = torch.cat([to_off, never]), torch.cat([never, to_on])
    return torch.logsumexp(torch.logaddexp(off, on) + count_logits, -1)


def contestants(number, shape, rng):
    """Functions of no arguments, seconds to make the plan, and what they are to agree on."""
    edges = tree_edges(shape, number, rng)
    subsets = []
    plan = interleaved({f"plan, {shape}, {number}": lambda: subsets.append(make_subsets(number, edges))}, 1)
    logits, count_logits = (torch.from_numpy(rng.standard_normal(n)) for n in (number, number + 1))
    tables = torch.from_numpy(rng.standard_normal((number - 1, 2, 2)))

    def transforms():
        d = RecursiveCardinality(logits, count_logits, subsets[0], edge_logits=tables)
        return d.log_partition_function, d.marginals, d

    def direct():
        with patch.object(coupled_counts, "FOURIER_WIDTH", number + 2):
            return transforms()

    def recursive():
        x = logits.clone().requires_grad_()
        log_z = recursion(x, tables, count_logits)
        return log_z.detach(), torch.autograd.grad(log_z, x)[0]

    runs = {"transforms": transforms, "direct": direct}
    if shape == "path":
        runs["recursion"] = recursive
    return runs, next(iter(plan.values()))


def make_subsets(number, edges):
    subsets = NestedSubsets([range(number)], number, edges=edges)
    subsets.coupling.tree(torch.zeros(1, subsets.coupling.table_size))
    return subsets


def main():
    options = arguments(__doc__)
    small_size, middle, large = (64, 128, 256) if options.quick else (2**12, 2**13, 2**16)
    report = Report("Counts on trees", TEXT, options)
    rows, times, gains = [], {}, []
    for shape in SHAPES:
        for number in (small_size, middle, large):
            rng = np.random.default_rng(options.seed)
            runs, plan = contestants(number, shape, rng)
            answers = {}
            if number == large:
                runs = {"transforms": runs["transforms"]}
            for name, run in runs.items():
                answers[name] = run()
            for name, (log_z, marginals, *_) in answers.items():
                expected = answers["transforms"]
                assert torch.allclose(log_z, expected[0], rtol=1e-9), name
                assert torch.allclose(marginals, expected[1], atol=1e-7), name
            error = float(answers["transforms"][2].certificate.marginal_logits_error.max())
            times[shape, number] = found = interleaved(runs, options.repeats)
            cells = [duration(found.get(name)) for name in ("transforms", "direct", "recursion")]
            rows.append([shape, size(number), *cells, duration(plan), small(error)])
            report.progress(str(rows[-1]))
        growth = times[shape, large]["transforms"] / times[shape, small_size]["transforms"]
        claim = f"{shape}: {size(large)} against {size(small_size)} variables"
        report.claim(claim, "<= 30x", ratio(growth), growth <= 30)
    gains = times["path", middle]
    gain = gains["recursion"] / gains["transforms"]
    report.claim(f"path of {size(middle)}: against the recursion", ">= 10x", ratio(gain), gain >= 10)
    header = ["tree", "variables", "transforms", "direct", "recursion", "plan", "certified error"]
    report.table("Log Z and all marginals", header, rows)
    report.finish()


if __name__ == "__main__":
    main()
