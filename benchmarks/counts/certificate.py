"""The certificate against ball arithmetic, on random adversarial trees.

Claim: the certified bounds hold for log Z and every posterior log-odds of at least 1,000 random trees of up to 256
variables, whatever their potentials; and with N(0,1) inputs at least 90 % of the nodes need no fallback.
"""

import contextlib
import random

import torch

from benchmarks.counts.accuracy import at_sufficient_precision, difference
from benchmarks.measurement import Report, arguments, size, small
from pyro_structured.counts.ops import fourier_passes
from pyro_structured.counts.ops.certified_counts import certify, infer_counts
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets
from pyro_structured.testing import ball_arithmetic

TEXT = """
Each tree has 2 to 256 variables in random order and a random nested family: balanced, with random splits into two to
five parts of which some are left out, as a chain of growing subsets, with singletons, empty and repeated subsets, or
of one subset alone. Logits: N(0,1), U(-50,50), N(-8,1), or a mixture with zeros and clamps. Potentials: independent
N(0, s^2) or random walks, s from 1 to 10,000, with up to half of the entries -inf (one random vector stays possible).
*Violations*: results whose distance from the exact answer, rounded to float64, exceeds the bound by more than that
rounding. *Bound / error*: quantiles over the trees of the ratio for log Z, and of the smallest ratio over the
log-odds of a tree. *Bound*: quantiles over the trees of the certified bounds themselves; that of log Z is divided by
max(1, |log Z|, sum |x|), that of the log-odds is the largest of a tree. *Long*: nodes whose children have messages
long enough for transforms; the others are always convolved directly and are no fallback. As all messages of nested
subsets of 256 variables are short, each tree is judged twice: as the package computes it, and *forced* to transform
all messages of 9 entries or more.
"""
FORCED_WIDTH = 9
SCALES = (1.0, 10.0, 100.0, 1000.0, 10000.0)
WAYS = {"as it is": None, "forced": FORCED_WIDTH}
HALF_UNIT = 2.0**-53


def random_family(n, draw):
    """A nested family over ``range(n)``, and its kind."""
    order = list(range(n))
    draw.shuffle(order)
    kind = draw.choice(["balanced", "random splits", "chain", "single", "random splits"])
    if kind == "single":
        return kind, [order]
    if kind == "chain":
        ends = sorted(draw.sample(range(1, n + 1), min(n, draw.randint(1, 12))))
        return kind, [order[:end] for end in ends]
    family, pending, kept = [], [order], 1.0 if kind == "balanced" else draw.choice([0.3, 0.7, 1.0])
    while pending:
        part = pending.pop()
        if draw.random() < kept:
            family.append(part)
        if len(part) > 1 and (kind == "balanced" or draw.random() < 0.95):
            number = 1 if kind == "balanced" else min(len(part) - 1, draw.randint(1, 4))
            cuts = [len(part) // 2] if kind == "balanced" else sorted(draw.sample(range(1, len(part)), number))
            pending += [part[a:b] for a, b in zip([0, *cuts], [*cuts, len(part)], strict=True)]
    if kind == "random splits":
        family += [draw.choice(family or [order]), []]
    draw.shuffle(family)
    return kind, family


def random_logits(n, draw):
    kind = draw.choice(["normal", "uniform", "rare", "mixture"])
    if kind == "uniform":
        return 100 * torch.rand(n, dtype=torch.float64) - 50
    logits = torch.randn(n, dtype=torch.float64) - (8.0 if kind == "rare" else 0.0)
    if kind == "mixture":
        logits = torch.where(torch.rand(n) < 0.3, 50 * logits.sign(), logits)
        logits = torch.where(torch.rand(n) < 0.2, 0.0, logits)
        logits = torch.where(torch.rand(n) < 0.05, torch.inf * logits.sign(), logits).nan_to_num(
            0.0, torch.inf, -torch.inf
        )
    return logits


def random_tables(subsets, logits, scale, draw):
    """Tables with impossible counts, of which those of one vector that the clamps allow stay possible."""
    vector = torch.where(logits.isinf(), logits > 0, torch.rand(len(logits)) < 0.5)
    walk, impossible = draw.random() < 0.3, draw.choice([0.0, 0.0, 0.1, 0.5])
    tables = []
    for members, length in zip(subsets.subsets, subsets.sizes, strict=True):
        table = scale * torch.randn(length + 1, dtype=torch.float64)
        table = table.cumsum(0) if walk else table
        removed = torch.rand(length + 1) < impossible
        removed[int(vector[torch.tensor(members)].sum())] = False
        tables.append(table.masked_fill(removed, -torch.inf))
    return subsets.pack(tables)


@contextlib.contextmanager
def transform_width(width):
    """Transforms messages of this length and more."""
    before = fourier_passes.FOURIER_WIDTH
    fourier_passes.FOURIER_WIDTH = before if width is None else width
    try:
        yield
    finally:
        fourier_passes.FOURIER_WIDTH = before


def judge(logits, count_logits, subsets, exact):
    """Number of violations, smallest ratios of bound to error, bounds, and numbers of fallback and of long nodes."""
    found_beliefs = infer_counts(logits, count_logits, subsets.forest)
    certificate = certify(logits, count_logits, subsets.forest)
    scale = max(1.0, exact.log_partition.abs().item(), logits.masked_fill(logits.isinf(), 0.0).abs().sum().item())
    violations, ratios = 0, []
    for found, true, bound in (
        (found_beliefs.log_partition, exact.log_partition, certificate.log_partition_error),
        (found_beliefs.marginal_logits, exact.marginal_logits, certificate.marginal_logits_error),
    ):
        error = difference(found, true).abs()
        rounding = HALF_UNIT * true.abs().masked_fill(true.isinf(), 0.0)
        violations += int((~(error <= bound + rounding)).sum())
        seen = (error > rounding) & error.isfinite()
        ratios.append((bound / error)[seen].min().item() if bool(seen.any()) else None)
    bounds = certificate.log_partition_error.item() / scale, certificate.marginal_logits_error.max().item()
    return violations, ratios, bounds, int(certificate.num_fallback_nodes), long_nodes(subsets, count_logits)


def long_nodes(subsets, count_logits):
    tree = subsets.forest.tree(count_logits.reshape(1, -1))
    return sum(merge.nodes for merge in tree.merges if fourier_passes.is_fast(tree, merge))


def quantiles(values):
    values = sorted(v for v in values if v is not None)
    return (
        [small(values[min(len(values) - 1, int(q * len(values)))]) for q in (0.0, 0.05, 0.5, 0.95, 1.0)]
        if values
        else 5 * ["–"]
    )


def fallback_rows(sizes):
    """The share of the nodes that need no fallback where everything is N(0,1), and the smallest."""
    rows, least = [], 1.0
    for n in sizes:
        for name, subsets in (
            ("potentials at every node", NestedSubsets.balanced(n)),
            ("one potential", NestedSubsets([range(n)], n)),
        ):
            logits = torch.randn(n, dtype=torch.float64)
            tables = torch.randn(subsets.table_size, dtype=torch.float64)
            fallback = int(RecursiveCardinality(logits, tables, subsets).certificate.num_fallback_nodes)
            nodes, long = len(subsets.forest.merges), long_nodes(subsets, tables)
            share = 1 - fallback / max(1, long)
            least = min(least, share)
            rows.append(
                [size(n), name, nodes, long, fallback, f"{100 * (1 - fallback / nodes):.4g} %", f"{100 * share:.4g} %"]
            )
    return rows, least


def main():
    options = arguments(__doc__, trees=(1000, "random trees"), largest=(256, "largest number of variables"))
    num_trees, sizes = options.trees, [256, 1024, 4096, 2**14]
    if options.quick:
        num_trees, sizes, options.largest = 10, [256], 64
    report = Report("The certificate", TEXT, options)
    draw = random.Random(options.seed)
    results = {(way, scale): [] for way in WAYS for scale in SCALES}
    for index in range(num_trees):
        scale = SCALES[index % len(SCALES)]
        half = options.largest // 2
        n = draw.choice([options.largest, draw.randint(half, options.largest), draw.randint(2, options.largest)])
        kind, family = random_family(n, draw)
        subsets = NestedSubsets(family, n)
        logits = random_logits(n, draw)
        count_logits = random_tables(subsets, logits, scale, draw)
        families = [s.tolist() for s in subsets.subsets]
        exact = at_sufficient_precision(ball_arithmetic.beliefs, logits, count_logits, families)
        for way, width in WAYS.items():
            with transform_width(width):
                result = judge(logits, count_logits, subsets, exact)
            results[way, scale].append(result)
            if result[0]:
                report.progress(f"tree {index}, {way}: {result[0]} violations; {kind}, {n} variables, scale {scale:g}")
        if index % 100 == 99:
            report.progress(f"{index + 1} trees")

    for way in WAYS:
        violations = sum(r[0] for scale in SCALES for r in results[way, scale])
        text = f"violations in {num_trees} trees, log Z and every log-odds: {way}"
        report.claim(text, "0", str(violations), violations == 0)
        if way == "forced":
            transformed = sum(max(0, r[4] - r[3]) for scale in SCALES for r in results[way, scale])
            report.claim("nodes transformed in the latter", ">= 1000", str(transformed), transformed >= 1000)
    columns = ["trees", "violations", "long", "fallback", "smallest", "5 %", "median", "95 %", "largest"]
    for title, part_of_result in (("Bound / error", 1), ("Bound", 2)):
        for which, name in enumerate(("log Z", "log-odds")):
            rows = []
            for (way, scale), part in results.items():
                counts = [len(part), *(sum(r[i] for r in part) for i in (0, 4, 3))]
                rows.append([way, f"{scale:g}", *counts, *quantiles([r[part_of_result][which] for r in part])])
            report.table(f"{title}: {name}", ["", "s", *columns], rows)
    rows, least = fallback_rows(sizes)
    report.claim("N(0,1): nodes with long messages without fallback", ">= 90 %", f"{100 * least:.4g} %", least >= 0.9)
    header = ["D", "model", "nodes", "long", "fallback", "without, of all", "without, of long"]
    report.table("Fallback nodes, N(0,1) logits and potentials", header, rows)
    report.finish()


if __name__ == "__main__":
    main()
