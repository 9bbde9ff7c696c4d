"""Time of an iteration of expectation maximisation: blocks of exchangeable variables against independent variables."""

import warnings

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning

from benchmarks.measurement import Report, arguments, duration, interleaved, ratio
from pyro_structured.datasets import load_density
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.exchangeable.ops.expectation_maximization import expect, log_joint, maximize
from pyro_structured.models import MEVMDensity

TEXT = """
A mixture of 20 classes, on the distinct rows of the training sets. The peer is a vectorised mixture of independent
variables: one matrix product, a softmax over the classes, and for the M-step another product, in numpy; once with a
dense and once with a sparse matrix of data, of which the faster counts. Blocks are those that `MEVMDensity` found by
Welch's tests (the paper's settings), and by merging. Counting the ones of all blocks is part of the E-step.

Niepert and Domingos (2014) write that "to compute the probability of one example, MEVMs require as many steps as there
are blocks of exchangeable variables", and that hence EM is "significantly more efficient than EM for NB, both for a
single EM iteration and to reach the stopping criterion", up to two orders of magnitude from 100 variables on. For a
single iteration this is refuted: ones have to be counted first, which costs as much as the product of matrices that
independent variables need, and the E-step takes two to three times as long. Only the merged blocks of c20ng, most of
them of one variable, are as fast.
"""
SETS = ("plants", "msweb", "c20ng")
CLASSES = 20


class BernoulliMixture:
    """The peer."""

    def __init__(self, rows, posterior):
        self.rows = rows
        self.maximize(posterior)

    def maximize(self, posterior):
        sizes = posterior.sum(0)
        means = ((self.rows.T @ posterior).T + 0.1) / (sizes[:, None] + 0.2)
        self.odds = np.log(means) - np.log1p(-means)
        # After many iterations, nothing may be left of a class.
        self.offsets = np.log1p(-means).sum(1) + np.log(np.maximum(sizes, 1e-300) / sizes.sum())

    def expect(self):
        return normalized(self.rows @ self.odds.T + self.offsets, 1)

    def iterate(self):
        self.maximize(self.expect()[0])


def normalized(scores, axis):
    """Probabilities of the classes, and the logarithms of the sums."""
    peak = scores.max(axis, keepdims=True)
    scores -= peak
    np.exp(scores, out=scores)
    total = scores.sum(axis, keepdims=True)
    scores /= total
    return scores, np.log(total) + peak


def quick_rows(seed):
    rng = np.random.default_rng(seed)
    return (rng.random((200, 12)) < rng.random(12)).astype(np.uint8)


def contestants(rows, seed):
    data = np.unique(rows, axis=0).astype(np.float64)
    posterior = np.random.default_rng(seed).dirichlet(np.full(CLASSES, 0.1), len(data))
    steps, iterations = {}, {}
    for name, form in (("dense", np.asarray), ("sparse", csr_matrix)):
        peer = BernoulliMixture(form(data), posterior)
        steps[name], iterations[name] = peer.expect, peer.iterate
    binary = BinaryRows.from_matrix(data)
    for structure in ("welch", "merge"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a few iterations find blocks of the usual sizes
            density = MEVMDensity(
                n_components=CLASSES, structure=structure, n_init=1, max_iter=60, random_state=seed
            ).fit(rows)
        counts, parameters = density._mixture.counts, density._mixture.parameters

        def step(counts=counts, parameters=parameters):
            normalized(log_joint(counts, parameters, binary), 0)

        def iterate(counts=counts, parameters=parameters):
            maximize(counts, expect(counts, parameters, binary)[2], 0.1, parameters)

        steps[structure], iterations[structure] = step, iterate
    return steps, iterations, data.shape


def main():
    options = arguments(__doc__)
    report = Report("An iteration of expectation maximisation", TEXT, options)
    tables = {"E-step": [], "Whole iteration": []}
    for name in SETS[:1] if options.quick else SETS:
        rows = quick_rows(options.seed) if options.quick else load_density(name).train
        *runs, shape = contestants(rows, options.seed)
        for title, each in zip(tables, runs, strict=True):
            times = interleaved(each, options.repeats)
            peer = min(times["dense"], times["sparse"])
            ratios = [times[structure] / peer for structure in ("welch", "merge")]
            tables[title].append([name, shape[0], shape[1], *map(duration, times.values()), *map(ratio, ratios)])
            if title == "E-step":
                for structure, found in zip(("Welch's tests", "merging"), ratios, strict=True):
                    claim = f"E-step on {name}, {structure}, against independent variables"
                    report.claim(claim, "< 1x, as the paper says", ratio(found), found < 1)
    header = ["set", "distinct rows", "variables", "independent, dense", "independent, sparse"]
    header += ["blocks by Welch's tests", "blocks by merging", "ratio, Welch's tests", "ratio, merging"]
    for title, lines in tables.items():
        report.table(title, header, lines)
    report.finish()


if __name__ == "__main__":
    main()
