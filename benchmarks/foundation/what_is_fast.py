"""Processor time against size for each family, beside a peer and beside the least that memory and arithmetic take.

Claims: counts of the largest size that the direct tree is asked for are found faster than by it; ten times the size of
chains and latent trees takes at most twelve times as long.
"""

import matplotlib.pyplot as plt
import numpy as np
import pyro.distributions as dist
import torch
from numba import njit
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra, minimum_spanning_tree

from benchmarks.counts.small_counts import direct_tree, plain_recursion
from benchmarks.fields.cuts_of_grids import maxflow, of_another_package
from benchmarks.measurement import MachineLimits, Report, arguments, duration, interleaved, ratio, size
from benchmarks.optima.cost_sweeps import Sweep, grid_edges, matching, path
from pyro_structured.counts.ops.certified_counts import infer_counts
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.distributions import GridCRF, JunctionTree, KSubset, LatentTree, PoissonBinomial
from pyro_structured.structures import CliqueTree, Grid, HiddenTree, MinimumCut, SpanningTree

TEXT = """
Processor time of one query, from few variables to many, all steps of the package included, with the extra `fast`; what
compiles is called once before. *Peer*: compiled loops for the same, or the solver that people take; the last column
says which. Peers of sweeps do much less: they solve the problem once, where a sweep draws every cost given all others
and the optimum. *Least*: reading the arguments and writing the results once, at the speed of a sum over memory, and for
latent trees the products of matrices that they are made of, at the speed of one of 1,024 rows; both speeds are measured
in the same run.

In the picture, lines that run beside the least are as fast as a factor says at every size. Where they are flat, on the
left, the time is that of Python and of checks of arguments, and a batch costs little more than a row: ask for many at
once. Where they are steeper, the method takes more than a pass over its arguments.
"""


@njit
def chain_marginals(tables):
    """Marginals of a chain by messages in linear space, normalised at each step."""
    number, states = len(tables) + 1, tables.shape[1]
    up, down = np.ones((number, states)), np.ones((number, states))
    for place in range(1, number):
        up[place] = 0.0
        for i in range(states):
            for j in range(states):
                up[place, j] += up[place - 1, i] * tables[place - 1, i, j]
        up[place] /= up[place].sum()
    for place in range(number - 2, -1, -1):
        for i in range(states):
            down[place, i] = 0.0
            for j in range(states):
                down[place, i] += tables[place, i, j] * down[place + 1, j]
        down[place] /= down[place].sum()
    marginals = up * down
    for place in range(number):
        marginals[place] /= marginals[place].sum()
    return marginals


def random(*shape):
    return torch.randn(*shape, dtype=torch.double)


def counts(number):
    """Log Z and all log-odds of a potential on the count, with certified errors."""
    logits, tables, forest = random(1, number), random(1, number + 1), CountForest(number)
    results = np.zeros(1), np.zeros((1, number))
    peer = lambda: direct_tree(logits.numpy(), tables.numpy(), *results)  # noqa: E731
    return lambda: infer_counts(logits, tables, forest), peer if number <= 2**14 else None, 32 * number, 0


def masses(number):
    """Probabilities of all counts."""
    probs, values = torch.rand(number, dtype=torch.double), torch.arange(number + 1.0)
    peer = lambda: plain_recursion(probs.numpy())  # noqa: E731
    return lambda: PoissonBinomial(probs=probs).log_prob(values), peer, 24 * number, 0


def subsets(number):
    """A sample of a quarter of the items."""
    logits = random(number)
    return lambda: KSubset(logits, number // 4).sample(), None, 16 * number, 0


def chains(number):
    """Marginals of a chain of variables with four states."""
    logits, tree = random((number - 1) * 16), CliqueTree.chain(number, 4)
    tables = logits.reshape(-1, 4, 4).exp().numpy()
    return lambda: JunctionTree(logits, tree).marginals, lambda: chain_marginals(tables), 160 * number, 0


def latent_trees(number):
    """Log-probabilities of 100 rows, 32 latent states."""
    states, rows = 32, 100
    tree = HiddenTree([max(0, place - 1) for place in range(number)], [states] * number, [2] * number)
    model = LatentTree(random(number, states, states), random(number, states, 2), tree)
    values = (torch.rand(rows, number) < 0.5).long()
    return lambda: model.log_prob(values), None, 8 * rows * number, 2 * rows * number * states**2


def matchings(number):
    """A sweep over normal costs of a matching."""
    run, costs = Sweep(*matching(number, dist.Normal), 1, False, 0), random(number, number).numpy()
    return run, lambda: linear_sum_assignment(costs), 16 * number**2, 0


def paths(side):
    """A sweep over log-normal costs of a path through a grid."""
    one = torch.ones(()).double()
    run = Sweep(*path(side, dist.LogNormal(0 * one, one)), 1, False, 0)
    edges = grid_edges(side)
    edges = torch.cat([edges, edges.flip(1)]).numpy()
    graph = csr_array((run.costs[0].numpy(), edges.T), shape=(side**2, side**2))
    return run, lambda: dijkstra(graph, indices=0), 16 * len(edges), 0


def cuts(side):
    """A sweep over exponential costs of a cut of a grid."""
    problem = MinimumCut(grid_edges(side), side * side)
    run = Sweep(problem, dist.Exponential(torch.ones(problem.cost_shape).double()).to_event(1), 1, False, 0)
    return run, lambda: problem.solve(run.costs), 16 * problem.cost_shape[0], 0


def trees(side):
    """A sweep over normal costs of a spanning tree of a grid."""
    edges = grid_edges(side)
    run = Sweep(SpanningTree(edges, side * side), dist.Normal(random(len(edges)), 1.0).to_event(1), 1, False, 0)
    graph = csr_array((np.random.default_rng(0).random(len(edges)), edges.numpy().T), shape=(side**2, side**2))
    return run, lambda: minimum_spanning_tree(graph), 16 * len(edges), 0


def grids(side):
    """Most probable labels of a grid of binary pixels."""
    grid = Grid(side, side)
    field = GridCRF(random(side, side), torch.rand(grid.num_edges).double(), grid)
    peer = None if maxflow is None else lambda: of_another_package(field)
    return lambda: field.mode, peer, 8 * (2 * side**2 + grid.num_edges), 0


MOST_GROWTH = 12.0
# Name, sizes, meaning of a size, peer.
FAMILIES = {
    counts: ("RecursiveCardinality: log Z and log-odds", [16, 128, 1024, 2**14, 2**17], "variables", "direct tree"),
    masses: ("PoissonBinomial: all probabilities", [16, 128, 1024, 2**14], "variables", "plain recursion, underflows"),
    subsets: ("KSubset: a sample", [16, 128, 1024, 2**14], "variables", ""),
    chains: ("JunctionTree: marginals of a chain", [10, 100, 1000, 10_000], "variables", "two passes"),
    latent_trees: ("LatentTree: log_prob of 100 rows", [10, 100, 1000], "variables", ""),
    grids: ("GridCRF.mode", [10, 32, 128, 512], "rows of the grid", "PyMaxflow"),
    matchings: ("Matching: a sweep over costs", [5, 30, 100, 300], "rows", "one solve by scipy"),
    paths: ("ShortestPath: a sweep over costs", [5, 10, 30, 60], "rows of the grid", "one Dijkstra search by scipy"),
    cuts: ("MinimumCut: a sweep over costs", [4, 8, 16, 32], "rows of the grid", "one cut, ours"),
    trees: ("SpanningTree: a sweep over costs", [4, 8, 16, 32], "rows of the grid", "one solve by scipy"),
}


def main():
    options = arguments(__doc__)
    report, limits = Report("What is fast, what is not", TEXT, options), MachineLimits(options.seed)
    rows, curves = [], {}
    for make, (title, sizes, unit, peer) in FAMILIES.items():
        for number in sizes[:1] if options.quick else sizes:
            ours, other, moved, operations = make(number)
            contestants = {"ours": ours, **({} if other is None else {"peer": other})}
            for run in contestants.values():
                run()
            times = interleaved(contestants, options.repeats)
            least = moved / limits.bytes + operations / limits.double
            curves.setdefault(make, []).append((number, times["ours"], times.get("peer", np.nan), least))
            factor = times["peer"] / times["ours"] if other else None
            cells = [duration(times["ours"]), duration(times.get("peer")), ratio(factor)]
            cells += [duration(least), ratio(times["ours"] / least), peer if other else ""]
            rows.append([title, f"{size(number)} {unit}", *cells])
    *_, (number, ours, other, _) = [each for each in curves[counts] if np.isfinite(each[2])]
    report.claim(f"counts, {size(number)} variables: direct tree / ours", "> 1x", ratio(other / ours), other > ours)
    for make in (chains, latent_trees):
        growth = curves[make][-1][1] / curves[make][-2 if len(curves[make]) > 1 else -1][1]
        name = f"{FAMILIES[make][0]}, the last ten times the size: times as long"
        report.claim(name, f"<= {MOST_GROWTH:g}", ratio(growth), growth <= MOST_GROWTH)
    header = ["query", "size", "ours", "peer", "peer / ours", "least", "ours / least", "peer is"]
    report.table("Times", header, rows)
    speeds = f"{limits.bytes / 1e9:.3g} GB/s, {limits.double / 1e9:.3g} Gflop/s"
    report.paragraph(f"Speeds of this machine, one thread: {speeds}.")
    figure, axes = plt.subplots(2, 5, figsize=(17, 7), layout="constrained")
    for make, panel in zip(FAMILIES, axes.flat, strict=True):
        title, _, unit, peer = FAMILIES[make]
        numbers, ours, others, least = np.array(curves[make]).T
        panel.loglog(numbers, 1e3 * ours, "o-", label="ours")
        if np.isfinite(others).any():
            panel.loglog(numbers, 1e3 * others, "s--", label=peer)
        panel.loglog(numbers, 1e3 * least, ":", color="grey", label="least")
        panel.set(title=title.replace(": ", ":\n"), xlabel=unit)
        panel.set_xticks(numbers, [size(int(number)) for number in numbers])
        panel.set_xticks([], minor=True)
        panel.legend(fontsize=8)
    for panel in axes[:, 0]:
        panel.set_ylabel("milliseconds")
    path_of_picture = report.picture("what_is_fast", "Time against size of ten queries, on logarithmic axes")
    if options.write:
        figure.savefig(path_of_picture, dpi=100)
    report.finish()


if __name__ == "__main__":
    main()
