"""Thin junction trees against compact Bayesian networks, learned from samples of ALARM, sensors and binary data.

Claim: exact inference in a junction tree of treewidth 3 predicts hidden variables as well as belief propagation in the
compact network.
"""

from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.junction_trees.evidence_queries import (
    LOOPY,
    RESIDUAL,
    accuracy,
    ask,
    bootstrap_interval,
    mean_absolute_error,
    random_evidence,
    timed,
)
from benchmarks.junction_trees.model_selection import learn_compact, learn_thin, log_likelihood
from benchmarks.junction_trees.synthetic_network import draw, moral_width, random_network
from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import (
    load_alarm_samples,
    load_density,
    load_lab_readings,
    load_traffic_speeds,
    network_file,
)
from pyro_structured.distributions import JunctionTree
from pyro_structured.models import read_bif
from pyro_structured.structures import CliqueTree

TEXT = """
*ALARM*: 37 variables; 10,000 rows to learn from, 2,000 to choose by, 10,000 for tests, all drawn from the network.
*Temperature*: 50 sensors of a laboratory, every half hour: 108 rows to learn from, 36 to choose by, 96 for tests, in
the order of time. *Traffic*: 32 of the 207 detectors in Los Angeles, drawn with the seed, every five minutes of a week:
of the first two thirds, the last quarter is to choose by; the last third is for tests. Readings are in four bins, whose
edges are the quartiles of the rows to learn from. *nltcs*, *plants* and *baudio*: binary, with the published splits.

*Thin*: `ThinJunctionTree`, of treewidth at most k, by chordal selection and polishing for 10 s, or by the paper's graph
cuts alone, on at most 50 variables. *Compact*: a Bayesian network of at most three parents by a search over orders
(`benchmarks/junction_trees/ordering_search.py`). Structures and pseudo-observations are chosen by validation.

Queries: for 300 test rows, evenly spaced (96 for temperature), 20 % or 50 % of the variables are evidence. *Accuracy*:
the share of hidden variables whose most probable state is that of the row; *error*: mean absolute error of the
conditionals, where the truth is known. Exact inference in the compact model is left out where its tables have more than
a million entries; where it is there, it is the strongest control. Intervals, of 95 %, are bootstraps over 20 blocks of
consecutive rows, as neighbours in time are alike.
"""
RATES = (0.2, 0.5)
MAX_PARENTS = 3
DENSITY = ("nltcs", "plants", "baudio")
DETECTORS, BINS, BLOCKS, QUERIES = 32, 4, 20, 300
MOST_ENTRIES = 1_000_000
# Variables; graph cuts of more, for all settings, take minutes.
MOST_CUT = 50
# Seconds.
POLISHING = 10.0
THIN, EXACT, TRUTH = "thin, k = 3", "compact, exact", "truth"
METHODS = {
    "thin, k = 2": ("chordal", 2, POLISHING),
    THIN: ("chordal", 3, POLISHING),
    "thin, k = 4": ("chordal", 4, POLISHING),
    "thin by graph cuts, k = 3": ("graph_cut", 3, 0.0),
}
METRICS = ["log-likelihood", *(f"{metric}, {rate:.0%}" for metric in ("accuracy", "error") for rate in RATES)]


@dataclass
class DataSet:
    """Rows to learn from, to choose by, and for tests."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    cardinalities: tuple
    truth: JunctionTree | None = None


def in_bins(train, validation, test):
    """Numbers of quartiles."""
    edges = np.quantile(train, np.linspace(0, 1, BINS + 1)[1:-1], axis=0)
    parts = ((part[None] >= edges[:, None]).sum(0) for part in (train, validation, test))
    return DataSet(*parts, (BINS,) * train.shape[1])


def binary(train, validation, test):
    return DataSet(*(part.astype(np.int64) for part in (train, validation, test)), (2,) * train.shape[1])


def data_sets(options):
    rng = np.random.default_rng(options.seed)
    if options.quick:
        network = random_network(6, "tables", 2, (0, 6), rng)
        rows = (draw(network, size, rng) for size in (100, 50, 40))
        return {"random": DataSet(*rows, network.cardinalities, network.to_junction_tree())}
    alarm = load_alarm_samples()
    network = read_bif(network_file("alarm"))
    rows = (part.astype(np.int64) for part in (alarm.train, alarm.validation, alarm.test))
    readings, last = load_lab_readings("temperature")
    speeds, _ = load_traffic_speeds()
    speeds = speeds[:, np.sort(rng.permutation(speeds.shape[1])[:DETECTORS])]
    half, third = len(speeds) // 2, 2 * len(speeds) // 3
    return {
        "ALARM": DataSet(*rows, network.cardinalities, network.to_junction_tree()),
        "temperature": in_bins(readings[:108], readings[108:], last),
        "traffic": in_bins(speeds[:half], speeds[half:third], speeds[third:]),
        **{name: binary(*load_density(name)) for name in DENSITY},
    }


def learn(data, options):
    """Models for exact inference by name, the compact one, log-likelihoods of test rows, and seconds of learning."""
    parts, models, learning = (data.train, data.validation, data.cardinalities), {}, {}
    for name, (method, treewidth, polish) in METHODS.items():
        if method == "graph_cut" and len(data.cardinalities) > MOST_CUT:
            continue
        settings = treewidth, polish / (300 if options.quick else 1), options.seed
        models[name], learning[name] = timed(lambda m=method, s=settings: learn_thin(m, *parts, *s))
    compact, learning[EXACT] = timed(lambda: learn_compact(*parts, MAX_PARENTS, options.seed))
    if data.truth is not None:
        models[TRUTH] = data.truth
    rows = torch.from_numpy(data.test)
    likelihoods = {name: model.log_prob(rows).numpy() for name, model in models.items()}
    likelihoods |= dict.fromkeys((EXACT, LOOPY, RESIDUAL), log_likelihood(compact, data.test))
    families = [(*above, d) for d, above in enumerate(compact.parents)]
    if CliqueTree.from_cliques(families, data.cardinalities).table_size <= MOST_ENTRIES:
        models[EXACT] = compact.to_junction_tree()
    return models, compact, likelihoods, learning


class Findings:
    """Figures of one data set by contestant and metric, as means of blocks of rows, and what it took."""

    def __init__(self, data, options):
        self.seed, rng = options.seed, np.random.default_rng(options.seed)
        models, compact, likelihoods, self.learning = learn(data, options)
        self.width = moral_width(compact.parents)
        self.figures = {
            name: {METRICS[0]: [part.mean() for part in np.array_split(each, BLOCKS)]}
            for name, each in likelihoods.items()
        }
        self.answering, self.converged = {}, {}
        values = data.test[np.linspace(0, len(data.test) - 1, min(QUERIES, len(data.test))).astype(int)]
        for rate in RATES:
            observed = random_evidence(*values.shape, rate, rng)
            answers, self.converged[rate] = ask(models, compact, values, observed)
            for name, (found, spent) in answers.items():
                self.answering[name] = spent / len(values)
                self.figures[name][f"accuracy, {rate:.0%}"] = by_blocks(accuracy, found, values, observed)
                if data.truth is not None:
                    errors = by_blocks(mean_absolute_error, found, answers[TRUTH][0], observed)
                    self.figures[name][f"error, {rate:.0%}"] = errors

    def find(self, one, other, metric):
        """A paired difference and its interval."""
        pairs = np.subtract(self.figures[one][metric], self.figures[other][metric])
        return bootstrap_interval(pairs, np.random.default_rng(self.seed))

    def show(self, one, other, metric):
        if not all(metric in self.figures.get(name, ()) for name in (one, other)):
            return "–"
        return "{:+.4f} [{:+.4f}, {:+.4f}]".format(*self.find(one, other, metric))

    def row(self, name):
        cells = [name, *(f"{np.mean(self.figures[name][m]):.4f}" if m in self.figures[name] else "–" for m in METRICS)]
        shares = [shares[name] for shares in self.converged.values() if name in shares]
        cells.append(f"{np.mean(shares):.1%}" if shares else "exact")
        return [*cells, *(duration(each.get(name)) for each in (self.learning, self.answering))]


def by_blocks(metric, *arguments):
    """Means of a metric over blocks of consecutive rows."""
    return [metric(*parts) for parts in zip(*(np.array_split(each, BLOCKS) for each in arguments), strict=True)]


def main():
    options = arguments(__doc__)
    report = Report("Thin or compact models of real data", TEXT, options)
    for name, data in tqdm(data_sets(options).items()):
        findings = Findings(data, options)
        for metric in METRICS[1:3]:
            for other in [each for each in (RESIDUAL, EXACT) if metric in findings.figures[each]]:
                met = findings.find(THIN, other, metric)[2] >= 0
                text = f"{name}: {metric}, {THIN} minus {other}"
                report.claim(text, "at least 0, or 0 inside", findings.show(THIN, other, metric), met)
        header = ["", *METRICS, "converged", "learning", "query of one row"]
        report.table(
            f"{name}: width of the compact model {findings.width}", header, map(findings.row, findings.figures)
        )
        pairs = [*((thin, RESIDUAL) for thin in METHODS), (THIN, EXACT), (RESIDUAL, EXACT)]
        rows = [[*pair, *(findings.show(*pair, metric) for metric in METRICS)] for pair in pairs]
        report.table(f"{name}: paired differences", ["", "minus", *METRICS], rows)
    report.finish()


if __name__ == "__main__":
    main()
