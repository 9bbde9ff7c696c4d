"""Time of exact inference in Bayesian networks with random evidence: junction trees against pyAgrum and pgmpy."""

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from benchmarks.measurement import Report, arguments, duration, interleaved, ratio, small
from pyro_structured.datasets import network_file
from pyro_structured.distributions import JunctionTree
from pyro_structured.models import BayesianNetwork, read_bif

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # both warn of what others deprecate
    import pgmpy
    import pyagrum
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.inference import VariableElimination
    from pgmpy.models import DiscreteBayesianNetwork

TEXT = """
Marginals of all variables, and the log-probability of the evidence, of published networks. Every row has evidence of
its own: a sample of the network, of which 20 % or 50 % of the entries are observed. pyAgrum's `LazyPropagation` takes
one row after the other, with one engine and one thread; it is timed on the first rows. pgmpy is timed on the first row:
its `VariableElimination` is asked for one variable after the other, because one query for all of ALARM's would need
231 GiB, and calibrating its `BeliefPropagation` takes a minute. The networks are prepared beforehand for everyone; here
that is finding the junction tree. The gradient is that of the evidence's log-weight with respect to the tables of all
cliques, of as many rows as the budget of 2^25 probabilities allows.

Compiled loops take one row after the other, too, and touch only the entries of the tables that agree with its evidence;
trees of at most 64 entries are passed through level by level, all rows at once, which is what is left without numba.
`LazyPropagation` keeps potentials as lists of factors, and multiplies only what a query needs. *Entries* are those of
all cliques of one row, without evidence. The last four networks come with pgmpy, which is not asked about them.

Samples of barley, whose tables have 25 million entries, are the first of a new process: with loading compiled loops
from their cache, and the upward pass. Memory is the peak less what the process had before.
"""
NETWORKS = ("alarm", "asia", "cancer", "earthquake", "sachs", "survey")
# Rows of networks that pgmpy brings along, with larger and larger cliques.
OTHERS = {"win95pts": 400, "hailfinder": 400, "insurance": 400, "andes": 400}
# A network that is only sampled from, and the number of samples.
LARGE, SAMPLES = "barley", 10
SHARES = (0.2, 0.5)
BATCHES = (4000, 16)
PEER_ROWS = 100
# Marginals against pyAgrum, by the share of observed entries: at 4,000 rows, and of other networks at 20 %.
WANTED = {0.2: 100, 0.5: 60}
WANTED_OF_OTHERS = {"hailfinder": 60, "insurance": 15, "andes": 2}
# Probabilities of all cliques' states that are held at once.
BUDGET = 2**25


class Evidence:
    """Observed entries of samples."""

    def __init__(self, tree, share, rows):
        self.tree, self.value = tree, tree.sample((rows,))
        self.observed = torch.rand(self.value.shape) < share

    def marginals(self, clique_logits=None):
        tree = self.tree if clique_logits is None else JunctionTree(clique_logits, self.tree.tree)
        return tree.condition(self.value, self.observed).marginals

    def log_likelihood(self):
        # A new distribution, because the log-partition function without evidence is remembered.
        return JunctionTree(self.tree.clique_logits, self.tree.tree).marginal_log_prob(self.value, self.observed)

    def gradient(self):
        """Gradient of the weight of the evidence with respect to the tables of all cliques."""
        logits = self.tree.clique_logits.detach().requires_grad_()
        value, observed = (tensor[: self.gradient_rows] for tensor in (self.value, self.observed))
        weight = JunctionTree(logits, self.tree.tree).condition(value, observed).log_partition_function
        return torch.autograd.grad(weight.sum(), logits)

    @property
    def gradient_rows(self):
        return min(len(self.value), BUDGET // self.tree.tree.table_size)

    def states(self, names, number):
        """For the first rows, what was observed, by name."""
        pairs = zip(self.value[:number].tolist(), self.observed[:number].tolist(), strict=True)
        return [{n: v for n, v, known in zip(names, value, seen, strict=True) if known} for value, seen in pairs]


class Agrum:
    """The network in pyAgrum, with all digits."""

    def __init__(self, network):
        self.names, peer = network.names, pyagrum.BayesNet()
        for name, states in zip(network.names, network.states, strict=True):
            peer.add(pyagrum.LabelizedVariable(name, name, list(states)))
        for name, parents, table in zip(network.names, network.parents, network.tables, strict=True):
            for parent in parents:
                peer.addArc(network.names[parent], name)
            for index in np.ndindex(*np.shape(table)[:-1]):
                given = {network.names[d]: int(state) for d, state in zip(parents, index, strict=True)}
                peer.cpt(name)[given] = (table[index] / np.sum(table[index])).tolist()
        self.network, self.engine = peer, pyagrum.LazyPropagation(peer)
        self.engine.setNumberOfThreads(1)

    def marginals(self, rows):
        found = []
        for given in rows:
            self.engine.setEvidence(given)
            self.engine.makeInference()
            found.append([self.engine.posterior(name).toarray() for name in self.names])
        return found

    def log_likelihood(self, rows):
        found = []
        for given in rows:
            self.engine.setEvidence(given)
            found.append(self.engine.evidenceProbability())
        return np.log(found)


class Pgmpy:
    """The network in pgmpy."""

    def __init__(self, network):
        self.names, peer = network.names, DiscreteBayesianNetwork()
        peer.add_nodes_from(network.names)
        for name, states, parents, table in zip(
            network.names, network.states, network.parents, network.tables, strict=True
        ):
            above, sizes = [network.names[d] for d in parents], [network.cardinalities[d] for d in parents]
            columns = np.moveaxis(table / table.sum(-1, keepdims=True), -1, 0).reshape(len(states), -1)
            peer.add_edges_from((parent, name) for parent in above)
            peer.add_cpds(TabularCPD(name, len(states), columns, above, sizes))
        self.engine = VariableElimination(peer)

    def marginals(self, rows):
        for given in rows:
            for name in self.names:
                if name not in given:
                    self.engine.query([name], given, show_progress=False)


def error(found, expected):
    """Largest difference of marginals."""
    return max(
        float(np.abs(row[d, : len(probs)].numpy() - probs).max())
        for row, all_probs in zip(found, expected, strict=False)
        for d, probs in enumerate(all_probs)
    )


def measure(network, share, rows, repeats, slow_peer):
    """Seconds a row, and the largest difference of marginals."""
    evidence = Evidence(network.to_junction_tree(), share, rows)
    peer, peer_rows = Agrum(network), min(PEER_ROWS, rows)
    given = evidence.states(network.names, peer_rows)
    single = evidence.tree.clique_logits.float()
    runs = {
        "marginals": evidence.marginals,
        "pyAgrum marginals": lambda: peer.marginals(given),
        "log-likelihood": evidence.log_likelihood,
        "pyAgrum log-likelihood": lambda: peer.log_likelihood(given),
        "gradient": evidence.gradient,
        "marginals, float32 tables": lambda: evidence.marginals(single),
    }
    numbers = {name: peer_rows if name.startswith("pyAgrum") else rows for name in runs}
    numbers["gradient"] = evidence.gradient_rows
    if slow_peer:
        other = Pgmpy(network)
        runs["pgmpy marginals"], numbers["pgmpy marginals"] = lambda: other.marginals(given[:1]), 1
    times = interleaved(runs, repeats)
    times = {name: seconds / numbers[name] for name, seconds in times.items()}
    differences = evidence.log_likelihood()[:peer_rows].numpy() - peer.log_likelihood(given)
    return times, max(error(evidence.marginals(), peer.marginals(given)), np.abs(differences).max())


def quick_network():
    fair, noisy = np.array([0.5, 0.5]), np.array([[0.9, 0.1], [0.2, 0.8]])
    return BayesianNetwork(["a", "b", "c"], [["no", "yes"]] * 3, [[], [0], [1]], [fair, noisy, noisy])


def network_of(name):
    if name == "quick":
        return quick_network()
    if name in OTHERS or name == LARGE:
        return read_bif(Path(pgmpy.__file__).parent / "utils" / "example_models" / f"{name}.bif.gz")
    return read_bif(network_file(name))


def batches_of(name):
    if name == "quick":
        return (20, 4)
    return BATCHES if name == "alarm" else (OTHERS.get(name, BATCHES[0]),)


def add_claims(report, name, share, batch, times):
    factor = times["pyAgrum marginals"] / times["marginals"]
    if name != "alarm":
        what = f"marginals, {name}, {share:.0%} evidence, {batch} rows, against pyAgrum"
        wanted = WANTED_OF_OTHERS.get(name, 1) if share == min(SHARES) else 1
        report.claim(what, f"{wanted}x" if wanted > 1 else "> 1x", ratio(factor), factor > 1 and factor >= wanted)
        return
    what = f"ALARM, {share:.0%} evidence, {batch} rows"
    if batch < max(BATCHES):
        report.claim(f"marginals, {what}, against pyAgrum", "4x", ratio(factor), factor >= 4)
        return
    wanted = WANTED[share]
    report.claim(f"marginals, {what}, against pyAgrum", f"{wanted}x (aim 250x)", ratio(factor), factor >= wanted)
    cost = times["gradient"] / times["marginals"]
    report.claim(f"gradient of all tables, {what}, against marginals", "at most 1.5x", ratio(cost), cost <= 1.5)


def sample_large():
    """Seconds and megabytes that the first samples of a new process take."""
    command = [sys.executable, "-m", "benchmarks.junction_trees.tree_inference", "--print-samples", str(SAMPLES)]
    root = Path(__file__).parents[2]
    return json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


def print_samples(number):
    tree = network_of(LARGE).to_junction_tree()
    before, start = memory("VmRSS"), time.process_time()
    tree.sample((number,))
    seconds = time.process_time() - start
    print(json.dumps([seconds, memory("VmHWM") - before]))


def memory(name):
    """Memory of this process in MB, as Linux lists it: now, or at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def add_samples(report):
    sample_large()  # fills the cache of compiled loops
    seconds, megabytes = sample_large()
    what = f"{SAMPLES} samples of {LARGE}"
    report.claim(f"{what}, processor time", "at most 1.5 s", duration(seconds), seconds <= 1.5)
    report.claim(f"{what}, memory", "at most 500 MB", f"{megabytes:.0f} MB", megabytes <= 500)


def main():
    options = arguments(__doc__, print_samples=(0, f"only print what so many samples of {LARGE} take"))
    if options.print_samples:
        return print_samples(options.print_samples)
    report = Report("Exact inference in Bayesian networks", TEXT, options)
    pyagrum.setNumberOfThreads(1)
    header = ["network", "entries", "evidence", "rows", "marginals", "log-likelihood", "gradient"]
    header += ["marginals, float32 tables", "pyAgrum, marginals", "pyAgrum, log-likelihood", "pgmpy, marginals"]
    header += ["ratio, marginals", "ratio, log-likelihood", "largest difference"]
    lines = []
    for name in ("quick",) if options.quick else (*NETWORKS, *OTHERS):
        network, batches = network_of(name), batches_of(name)
        entries = network.to_junction_tree().tree.table_size
        for batch in batches:
            for share in SHARES:
                slow_peer = batch == batches[0] and name not in OTHERS
                times, difference = measure(network, share, batch, options.repeats, slow_peer)
                add_claims(report, name, share, batch, times)
                own = [times[each] for each in ("marginals", "log-likelihood", "gradient", "marginals, float32 tables")]
                others = [times[f"pyAgrum {each}"] for each in ("marginals", "log-likelihood")]
                peers = [*others, times.get("pgmpy marginals")]
                ratios = [other / mine for other, mine in zip(others, own, strict=False)]
                cells = [*map(microseconds, [*own, *peers]), *map(ratio, ratios), small(difference)]
                lines.append([name, entries, f"{share:.0%}", batch, *cells])
                what = f"difference from pyAgrum, {name}, {share:.0%} evidence, {batch} rows"
                report.claim(what, "at most 1e-10", small(difference), difference <= 1e-10)
    if not options.quick:
        add_samples(report)
    report.table("Times of a row", header, lines)
    report.finish()


def microseconds(value):
    return duration(value) if value is None or value >= 1e-3 else f"{value * 1e6:.3g} us"


if __name__ == "__main__":
    main()
