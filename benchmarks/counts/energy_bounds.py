"""Bounds of log Z of models with pairwise potentials that neither counts nor a tree can express.

Claims: the bounds contain log Z; of groups with similar weights, they are less than a third as wide with counts as with
single variables alone. On a grid, bounds that are made for grids are narrower.
"""

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

from benchmarks.measurement import Report, arguments, duration, seconds
from pyro_structured.distributions import EnergyBounds, GridCRF, RecursiveCardinality
from pyro_structured.distributions.cardinality_potentials import exactly
from pyro_structured.structures import Grid, NestedSubsets

TEXT = """
`EnergyBounds` (appendix of the paper, "Representational power") of random models of 16 variables, whose log Z is a sum
over all vectors: mean distances of the lower and of the upper bound from log Z, in nats. Log-odds are N(0,1), moved
such that about half of the variables are on; *weights* are those of a pair where both are 1.

- *similar*: all pairs, weights N(0.3, 0.05²); *blocks*: two groups of 8, N(0.4, 0.05²) inside, N(-0.2, 0.05²) between.
- *5 of 16*: exactly five are on, weights N(-0.5, 0.1²).
- *mixed*: all pairs, weights N(0, 0.3²); *sparse*: a fifth of the pairs, N(0, 1).

*Naive*: single variables only, no step of optimisation; *variables*: these, optimised; *count*: the count of all;
*nested*: the balanced binary partition (its halves are the blocks); *tree*: the spanning tree of the largest absolute
weights; *tree and count*: both. *Variational*, below only: the Gibbs-Bogoliubov bound E_q[energy] + H(q) for q in the
nested family, all its log-odds and tables optimised by 300 steps of Adam on the enumeration. It bounds log Z and no
energy: the difference from *nested* is what it costs to be below at every single vector. A dash: not run.

So: counts are worth much where the weights of a group are similar; where they have both signs, or a graph is a grid,
bounds of single vectors are loose, and other bounds are better. The upper bound is near its global optimum; the lower
one is a local optimum, which is why a larger family can have a worse one.
"""
SIZE = 16
PAIRS = torch.triu_indices(SIZE, SIZE, 1).T
FAMILIES = ("naive", "variables", "count", "nested", "tree", "tree and count")


def weights(kind, rows):
    """Weights of all pairs, shape (rows, pairs)."""
    noise = torch.randn(rows, len(PAIRS), dtype=torch.double)
    inside = (PAIRS[:, 0] < SIZE // 2) == (PAIRS[:, 1] < SIZE // 2)
    chosen = torch.rand(len(PAIRS)) < 0.2
    return {
        "similar": 0.3 + 0.05 * noise,
        "blocks": torch.where(inside, 0.4, -0.2) + 0.05 * noise,
        "5 of 16": -0.5 + 0.1 * noise,
        "mixed": 0.3 * noise,
        "sparse": noise * chosen,
    }[kind]


def family(name, strengths):
    edges = ()
    if name.startswith("tree"):
        # Absent pairs have a weight, too: the tree spans all variables.
        costs = (1e6 - strengths.abs().mean(0)).numpy()
        tree = minimum_spanning_tree(coo_array((costs, PAIRS.T.numpy()), shape=(SIZE, SIZE)))
        edges = np.stack(tree.nonzero(), -1).tolist()
    if name == "nested":
        return NestedSubsets.balanced(SIZE)
    return NestedSubsets([range(SIZE)] if name.endswith("count") else [], SIZE, edges=edges)


def member(subsets, logits, count):
    """A distribution over a family: log-odds, and a table of the count of all, where the family has one."""
    tables = [torch.zeros(size + 1).double() for size in subsets.sizes]
    if count is not None:
        whole = subsets.sizes.index(SIZE)
        tables[whole] = exactly(SIZE, count).double()
    edges = torch.zeros(len(subsets.edges), 2, 2).double() if subsets.edges else None
    return RecursiveCardinality(logits, subsets.pack(tables).double(), subsets, edges)


def variational(logits, energies, vectors, num_steps):
    """Gibbs-Bogoliubov bound over the nested family, by enumeration; shape (rows,)."""
    subsets = NestedSubsets.balanced(SIZE)
    cells = torch.tensor(subsets.sizes) + 1
    cells = subsets.counts(vectors) + cells.cumsum(0) - cells
    odds = logits.clone().requires_grad_()
    tables = torch.zeros(len(logits), subsets.table_size, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.Adam([odds, tables], 0.05)
    best = torch.full((len(logits),), -torch.inf).double()
    for _ in range(num_steps):
        scores = vectors @ odds.T + tables.T[cells].sum(1)
        bound = scores.logsumexp(0) + (scores.softmax(0) * (energies - scores)).sum(0)
        best = torch.maximum(best, bound.detach())
        optimizer.zero_grad()
        (-bound.sum()).backward()
        optimizer.step()
    return best


def timed(distribution, pairs, tables, num_steps):
    """Bounds of log Z, and processor seconds."""
    kept = []
    time = seconds(lambda: kept.append(EnergyBounds(distribution, pairs, tables, num_steps).log_partition_bounds()))
    return kept[0], time


def compare(kind, rows, options):
    """Distances of all bounds from log Z, shape (rows,) each, and the time of the nested ones."""
    strengths = weights(kind, rows)
    tables = torch.nn.functional.pad(strengths[..., None, None], (1, 0, 1, 0))
    dense = torch.zeros(rows, SIZE, SIZE).double()
    dense[:, PAIRS[:, 0], PAIRS[:, 1]] = strengths
    logits = torch.randn(rows, SIZE).double() - (dense + dense.mT).sum(-1) / 2
    count = 5 if kind == "5 of 16" else None
    vectors = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * SIZE)
    vectors = vectors if count is None else vectors[vectors.sum(-1) == count]
    energies = vectors @ logits.T + torch.einsum("va,rab,vb->vr", vectors, dense, vectors)
    log_z, found, took = energies.logsumexp(0), {}, {}
    for name in FAMILIES:
        if count is not None and name not in ("count", "nested", "tree and count"):
            continue
        base = member(family(name, strengths), logits, count)
        (low, high), took[name] = timed(base, PAIRS, tables, 0 if name == "naive" else 20)
        found[name] = log_z - low, high - log_z
    steps = 5 if options.quick else 300
    found["variational"] = log_z - variational(logits, energies, vectors, steps), None
    return found, took


def compare_grid(strength, side):
    """Distances on one grid: ours, of single variables, and of a comb and the count; the grid's own."""
    grid, size = Grid(side, side), side * side
    logits = torch.randn(side, side).double()
    penalties = strength * torch.rand(grid.num_edges).double()
    pairs = torch.as_tensor(np.asarray(grid.edges)).reshape(-1, 2)
    tables = -penalties[:, None, None] * (1 - torch.eye(2).double())
    field = GridCRF(logits, penalties, grid)
    log_z = field.log_partition_function
    comb = [(a, b) for a, b in pairs.tolist() if b == a + 1 or a % side == 0]
    cells = {"grid's own": (field.log_partition_bounds(), seconds(field.log_partition_bounds))}
    for name, subsets in {
        "variables": NestedSubsets([], size),
        "comb": NestedSubsets([], size, edges=comb),
        "comb and count": NestedSubsets([range(size)], size, edges=comb),
    }.items():
        edges = torch.zeros(len(subsets.edges), 2, 2).double() if subsets.edges else None
        base = RecursiveCardinality(logits.flatten(), torch.zeros(subsets.table_size).double(), subsets, edges)
        cells[name] = timed(base, pairs, tables, 20)
    return {name: (float(log_z - low), float(high - log_z), time) for name, ((low, high), time) in cells.items()}


def main():
    options = arguments(__doc__, rows=(20, "random models of each kind"))
    report = Report("Energy bounds", TEXT, options)
    kinds = ("similar", "blocks", "5 of 16", "mixed", "sparse")
    lines, times, contained, widths = [], [], 0, {}
    rows = 1 if options.quick else options.rows
    for kind in kinds:
        found, took = compare(kind, rows, options)
        columns = (*FAMILIES, "variational")
        for side, label in ((0, "below"), (1, "above")):
            cells = [found[name][side] if name in found else None for name in columns]
            lines.append([kind, label, *("–" if cell is None else f"{cell.mean():.3f}" for cell in cells)])
        contained += sum(
            int(((low > -1e-9) & (high > -1e-9)).all()) for low, high in (found[n] for n in FAMILIES if n in found)
        )
        widths[kind] = {name: float(sum(found[name]).mean()) for name in FAMILIES if name in found}
        times.append([kind, *(duration(took[name] / rows) if name in took else "–" for name in FAMILIES)])
        report.progress(str(lines[-2:]))
    total = sum(len(of_kind) for of_kind in widths.values())
    report.claim("kinds and families where all bounds contain log Z", f"{total}", f"{contained}", contained == total)
    for kind, name in (("similar", "count"), ("blocks", "nested")):
        share = widths[kind][name] / widths[kind]["variables"]
        claim = f"{kind}: width with {name}, as a share of single variables'"
        report.claim(claim, "<= .33", f"{share:.2f}", share <= 0.33)
    report.table("Distances from log Z", ["weights", "bound", *FAMILIES, "variational"], lines)
    report.table("Processor time for both bounds of one model", ["weights", *FAMILIES], times)
    side = 9 if options.quick else 10
    lines = []
    for strength in (1.0,) if options.quick else (0.2, 1.0, 2.0):
        cells = compare_grid(strength, side)
        for name, (low, high, time) in cells.items():
            lines.append([f"{strength}", name, f"{low:.3f}", f"{high:.3f}", duration(time)])
        if strength == 1.0:
            times_wider = sum(cells["comb and count"][:2]) / sum(cells["grid's own"][:2])
            claim = "grid, penalties up to 1: width, over that of the grid's own"
            report.claim(claim, ">= 1", f"{times_wider:.1f}", times_wider >= 1)
        report.progress(str(lines[-4:]))
    report.paragraph(
        f"One grid of {side} x {side} pixels, log-odds N(0,1), penalties of neighbours that differ uniform from 0 to "
        "the largest one. *Grid's own*: `GridCRF.log_partition_bounds`, structured mean field below and reweighted "
        "strips above. *Comb*: the rows, and the first column, are edges."
    )
    report.table("On a grid", ["largest penalty", "bounds", "below", "above", "time"], lines)
    report.finish()


if __name__ == "__main__":
    main()
