"""Time of exact inference in Bayesian networks with random evidence: junction trees against pyAgrum and pgmpy."""

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
cliques.

How much is gained depends on the network. Tables of all cliques are multiplied for all rows at once, whatever is
observed; `LazyPropagation` leaves out what the evidence cuts off, and multiplies only what a query needs. So the gain
is largest where cliques are small and rows are many, as in cancer or asia, and mostly shrinks with the size of the
tables: *entries* are those of all cliques of one row. The last four networks, from pgmpy's examples, are there to show
where it ends; pgmpy is not asked about them.
"""
NETWORKS = ("alarm", "asia", "cancer", "earthquake", "sachs", "survey")
# Rows of networks that pgmpy brings along, with larger and larger cliques.
OTHERS = {"win95pts": 1000, "hailfinder": 1000, "insurance": 200, "andes": 20}
SHARES = (0.2, 0.5)
BATCHES = (4000, 16)
PEER_ROWS = 100
# Marginals at 4,000 rows against pyAgrum, by the share of observed entries.
WANTED = {0.2: 100, 0.5: 60}


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
        weight = JunctionTree(logits, self.tree.tree).condition(self.value, self.observed).log_partition_function
        return torch.autograd.grad(weight.sum(), logits)

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
    if name in OTHERS:
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
        report.claim(what, "> 1x", ratio(factor), factor > 1)
        return
    what = f"ALARM, {share:.0%} evidence, {batch} rows"
    if batch < max(BATCHES):
        report.claim(f"marginals, {what}, against pyAgrum", "4x", ratio(factor), factor >= 4)
        return
    wanted = WANTED[share]
    report.claim(f"marginals, {what}, against pyAgrum", f"{wanted}x (aim 250x)", ratio(factor), factor >= wanted)
    cost = times["gradient"] / times["marginals"]
    report.claim(f"gradient of all tables, {what}, against marginals", "at most 1.5x", ratio(cost), cost <= 1.5)


def main():
    options = arguments(__doc__)
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
    report.table("Times of a row", header, lines)
    report.finish()


def microseconds(value):
    return duration(value) if value is None or value >= 1e-3 else f"{value * 1e6:.3g} us"


if __name__ == "__main__":
    main()
