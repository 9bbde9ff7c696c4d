"""Time of learning structures against the number of variables and against the treewidth.

Claim: 100 variables and treewidth 3 take less than a minute.
"""

import signal
import statistics
import warnings
from contextlib import contextmanager

import numpy as np
import pandas
import torch
from tqdm import tqdm

from benchmarks.junction_trees.chow_liu import chow_liu_tree
from benchmarks.junction_trees.greedy_k_tree import grow_k_tree
from benchmarks.junction_trees.model_selection import log_likelihood
from benchmarks.junction_trees.ordering_search import fit_network, search_orders
from benchmarks.junction_trees.principled_junction_tree import MOST_VARIABLES, learn_principled_tree
from benchmarks.junction_trees.synthetic_network import draw, random_network
from benchmarks.junction_trees.triangulated_search import climb_triangulated_graphs
from benchmarks.measurement import Report, arguments, duration, seconds
from pyro_structured.distributions import JunctionTree
from pyro_structured.junction_trees.models.chordal_search import ChordalScore
from pyro_structured.junction_trees.models.thin_tree_search import TreeSearch, TreeSetting
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.models import ThinJunctionTree
from pyro_structured.structures import CliqueTree

# As errors, the warnings of its compiled part are a crash.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pyagrum

TEXT = """
2,000 rows of random networks of binary variables: each has one to four parents, drawn from the variables before it, and
probabilities from Beta(1/2, 1/2). Times are processor seconds of learning a structure, with all counting of rows:
medians over networks, of which there is one where the first takes longer than a tenth of the limit. A contestant that
reaches the limit is stopped, and not asked for anything larger; a dash: not run.

Junction trees of treewidth at most k, ours: *chordal selection*; *graph cut*: one tree, by mutual information with the
discount 1/2; *graph cuts, whole fit*: `ThinJunctionTree`, which chooses among all its settings and treewidths. Others:
*local search* over triangulated graphs, one edge at a time (Bach and Jordan); *greedy k-tree* (after Karger and
Srebro); *principled* (Chechetka and Guestrin), which keeps the entropies of all sets of 2k + 2 variables and takes at
most 20; *Chow-Liu*, always of treewidth 1. Bayesian networks of at most k parents, whose treewidth is not bounded:
*ordering search* (Teyssier and Koller), 150 starts; *pyAgrum*: greedy hill climbing over directed graphs, compiled. The
scores are the Bayesian information criterion; k-trees and the principled learner have none. Log-likelihoods are of
2,000 other rows of the first network, with four pseudo-observations.

The strongest control of the same treewidth is the greedy k-tree: it fits held-out rows better than chordal selection in
12 of 14 cells for k = 2 and 3, in one to five times its time. Where the treewidth need not be bounded, Bayesian
networks fit better still.
"""
ROWS = 2000
SMOOTHING = 4.0
# Of variables, and the two treewidths at which they are compared; of the other sweep, the number of variables.
SIZES, TREEWIDTHS = (10, 15, 20, 30, 50, 70, 100), (1, 2, 3, 4)
FIXED_TREEWIDTHS, FIXED_SIZE = (2, 3), 20


def climb(rows, treewidth):
    neighbors = [set() for _ in rows.cardinalities]
    climb_triangulated_graphs(ChordalScore(rows), neighbors, treewidth)
    return neighbors


def cut(rows, treewidth):
    return TreeSearch(rows).tree(TreeSetting(treewidth, 1.0, "mutual", 0.5 if treewidth > 1 else None)).edges


def fit_cuts(rows, treewidth):
    values = np.repeat(rows.values.T, rows.weights.astype(int), axis=0)
    return ThinJunctionTree(treewidth=treewidth, method="graph_cut", random_state=0).fit(values).tree_.edges


def search(rows, max_parents):
    return search_orders(ChordalScore(rows), max_parents, np.random.default_rng(0))


def climb_directed_graphs(rows, max_parents):
    values = np.repeat(rows.values, rows.weights.astype(int), axis=1)
    learner = pyagrum.BNLearner(pandas.DataFrame({f"x{d}": column for d, column in enumerate(values)}))
    learner.setNumberOfThreads(1)
    learner.useScoreBIC()
    learner.setMaxIndegree(max_parents)
    learner.useGreedyHillClimbing()
    found = learner.learnDAG()
    return [sorted(found.parents(d)) for d in range(len(values))]


OURS = "chordal selection", "graph cut", "graph cuts, whole fit"
TREES = {
    OURS[0]: lambda rows, treewidth: TreeSearch(rows).tree(TreeSetting(treewidth, 1.0)).edges,
    OURS[1]: cut,
    OURS[2]: fit_cuts,
    "local search": climb,
    "greedy k-tree": lambda rows, treewidth: grow_k_tree(ChordalScore(rows, 0.0), treewidth),
    "principled": learn_principled_tree,
    "Chow-Liu": lambda rows, treewidth: chow_liu_tree(rows),
}
NETWORKS = {"ordering search": search, "pyAgrum": climb_directed_graphs}


@contextmanager
def limit(most):
    """Interrupts what takes more processor seconds; code in C ends first."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def is_possible(name, number, treewidth):
    if name == "Chow-Liu":
        return treewidth in (1, *FIXED_TREEWIDTHS)
    return name != "principled" or number <= MOST_VARIABLES


class Measurements:
    """Times and log-likelihoods by contestant, number of variables and treewidth; an infinite time: the limit."""

    def __init__(self, options):
        self.options, self.times, self.likelihoods, self.widths, self.data = options, {}, {}, {}, {}

    def rows(self, number, seed):
        if (number, seed) not in self.data:
            rng = np.random.default_rng([seed, number])
            network = random_network(number, "tables", 4, (0, number), rng)
            self.data[number, seed] = draw(network, ROWS, rng), draw(network, ROWS, rng)
        return self.data[number, seed]

    def measure(self, name, number, treewidth):
        key = name, number, treewidth
        is_late = any(
            self.times[other] == np.inf
            for other in self.times
            if other[0] == name and other[1] <= number and other[2] <= treewidth
        )
        if key in self.times or is_late or not is_possible(*key):
            return
        times = []
        for seed in range(self.options.seed, self.options.seed + self.options.networks):
            train, test = self.rows(number, seed)
            try:
                with limit(self.options.limit):
                    found = {}
                    times.append(seconds(lambda: found.update(graph=self.learn(name, train, treewidth))))  # noqa: B023
            except TimeoutError:
                self.times[key] = np.inf
                return
            fit, width = self.fit(name, found["graph"], train, test)
            self.likelihoods.setdefault(key, fit)
            self.widths[key] = max(width, self.widths.get(key, 0))
            if times[0] > self.options.limit / 10:
                break
        self.times[key] = statistics.median(times)

    def learn(self, name, train, treewidth):
        return (TREES | NETWORKS)[name](CategoricalRows(train, [2] * train.shape[1]), treewidth)

    def fit(self, name, graph, train, test):
        """Mean log-likelihood of other rows, and the treewidth or the number of parents."""
        sizes = [2] * train.shape[1]
        if name in NETWORKS:
            network = fit_network(train, sizes, graph, SMOOTHING)
            return log_likelihood(network, test).mean(), max(map(len, graph))
        edges = graph if name in OURS else [(one, other) for one, near in enumerate(graph) for other in near]
        tree = CliqueTree.from_edges(edges, sizes)
        model = JunctionTree.from_data(torch.from_numpy(train), tree, SMOOTHING)
        return float(model.log_prob(torch.from_numpy(test)).mean()), tree.treewidth

    def show(self, key):
        if key not in self.times:
            return "–"
        return f"> {self.options.limit} s" if self.times[key] == np.inf else duration(self.times[key])

    def show_likelihood(self, key):
        return f"{self.likelihoods[key]:.3f}" if key in self.likelihoods else "–"


def add_tables(report, found, sweeps):
    for title, label, cases in sweeps:
        header = ["", *(f"{label} = {case[0 if label == 'n' else 1]}" for case in cases)]
        rows = [[name, *(found.show((name, *case)) for case in cases)] for name in TREES | NETWORKS]
        report.table(f"Time, {title}", header, rows)
        rows = [[name, *(found.show_likelihood((name, *case)) for case in cases)] for name in TREES | NETWORKS]
        report.table(f"Held-out log-likelihood, {title}", header, rows)


def draw_picture(path, found, sweeps):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    for ax, (title, label, cases) in zip(figure.subplots(1, len(sweeps), sharey=True), sweeps, strict=True):
        for index, name in enumerate(TREES | NETWORKS):
            known = [(case[0 if label == "n" else 1], found.times.get((name, *case))) for case in cases]
            points = [(x, time) for x, time in known if time is not None and time < np.inf]
            late = [(x, found.options.limit) for x, time in known if time == np.inf]
            if points:
                ax.plot(*zip(*points, strict=True), "o-", color=f"C{index}", markersize=4, label=name)
            if late:
                ax.plot(*zip(*(points[-1:] + late), strict=True), ":", color=f"C{index}")
                ax.plot(*zip(*late, strict=True), "x", color=f"C{index}")
        ax.axhline(found.options.limit, color="gray", linewidth=1)
        ax.set(title=title, xlabel="variables" if label == "n" else "k", xscale="log" if label == "n" else "linear")
        ax.set(yscale="log")
        ax.grid(alpha=0.3)
    figure.axes[0].set_ylabel("processor seconds; x: stopped at the limit")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=150)


def add_claims(report, found):
    for name in () if found.options.quick else OURS:
        key = name, max(SIZES), 3
        is_fast = found.times.get(key, np.inf) < 60
        report.claim(f"100 variables, k = 3: {name}", "< 60 s", found.show(key), is_fast)
    excess = max(width - treewidth for (_, _, treewidth), width in found.widths.items())
    report.claim("largest treewidth, or number of parents, above its bound", "<= 0", excess, excess <= 0)


def main():
    options = arguments(__doc__, networks=(3, "networks of each size"), limit=(60, "processor seconds for each run"))
    sizes, treewidths = ((6, 7), (1, 2)) if options.quick else (SIZES, TREEWIDTHS)
    fixed, size = ((2,), 6) if options.quick else (FIXED_TREEWIDTHS, FIXED_SIZE)
    if options.quick:
        options.networks = 1
    sweeps = [(f"k = {treewidth}", "n", [(number, treewidth) for number in sizes]) for treewidth in fixed]
    sweeps.append((f"n = {size}", "k", [(size, treewidth) for treewidth in treewidths]))
    report, found = Report("Time of learning structures", TEXT, options), Measurements(options)
    cases = [(name, *case) for _, _, cases in sweeps for case in cases for name in TREES | NETWORKS]
    for case in tqdm(cases):
        found.measure(*case)
    add_claims(report, found)
    path = report.picture("structure_time", "Time of learning against the number of variables and the treewidth")
    if options.write:
        draw_picture(path, found, sweeps)
    add_tables(report, found, sweeps)
    report.finish()


if __name__ == "__main__":
    main()
