"""Blocks of exchangeable columns as leaves of latent trees: do they gain anything over single columns?

Claim: with the blocks that validation chooses, a latent tree gives the test rows a mean log-probability that is larger,
by at least .02 nats, than that of the tree of single columns.
"""

import time
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln
from sklearn.cluster import MiniBatchKMeans

from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import load_density
from pyro_structured.models import LatentTreeDensity

TEXT = """
A block of exchangeable columns is a single variable of a latent tree: the number of its ones, all arrangements of which
are alike, so that the probability of a row is that of its numbers, divided by the numbers of arrangements.

Blocks are found in 32 clusters of the training rows: at first each column is a block, then the two blocks are merged
whose number of ones, in all clusters, explains the rows best, compared with two separate numbers, as long as this gains
a given number of nats per row, and a block has at most six columns. The smaller this *least gain*, the more blocks are
merged. `LatentTreeDensity()` is then fitted to the columns, or to the numbers, with `X_val`; the setting that gives the
validation rows the largest probability is chosen (printed bold), and the test rows judge. Seeds change figures by about
.02 nats.

Why blocks lose: the latent variables explain already what columns of a block have in common, and what tells them apart
is lost. On nltcs no two columns are alike enough to be merged. In sum-product networks blocks and trees of columns were
compared [in the same way](exchangeable_spn.md): there, too, trees alone are as good.
"""
NAMES = ("nltcs", "plants", "baudio", "jester")
LEAST_GAINS = (0.01, 0.002, 0.0)
NUM_CLUSTERS, MOST_COLUMNS = 32, 6
# Rows in which blocks are looked for; pseudo-observations of each number of ones in a cluster.
NUM_ROWS, SMOOTHING = 6000, 0.1
LEAST_CLAIMED = 0.02


def log_arrangements(ones, size):
    return gammaln(size + 1) - gammaln(ones + 1) - gammaln(size - ones + 1)


class Block(NamedTuple):
    """Columns, the numbers of ones that rows have in them, and the rows' log-likelihood."""

    columns: list
    ones: np.ndarray
    log_likelihood: float


def block(columns, ones, clusters):
    size = len(columns)
    counts = np.bincount(clusters * (size + 1) + ones, minlength=NUM_CLUSTERS * (size + 1)).reshape(-1, size + 1)
    shares = (counts + SMOOTHING) / (counts.sum(1, keepdims=True) + SMOOTHING * (size + 1))
    return Block(columns, ones, float((counts * (np.log(shares) - log_arrangements(np.arange(size + 1), size))).sum()))


def merged(blocks, clusters, least_gain):
    """Blocks after all mergers that gain more than ``least_gain`` nats per row, the best one first."""
    blocks, gains = dict(enumerate(blocks)), {}  # gain and block of each pair of names

    def look_at(first, second):
        one, two = blocks[first], blocks[second]
        if len(one.columns) + len(two.columns) <= MOST_COLUMNS:
            both = block(one.columns + two.columns, one.ones + two.ones, clusters)
            gains[first, second] = both.log_likelihood - one.log_likelihood - two.log_likelihood, both

    for second in blocks:
        for first in range(second):
            look_at(first, second)
    while gains:
        pair, (gain, both) = max(gains.items(), key=lambda item: item[1][0])
        if gain <= least_gain * len(clusters):
            break
        for name in pair:
            del blocks[name]
        gains = {other: found for other, found in gains.items() if not set(other) & set(pair)}
        others, name = list(blocks), max(*pair, *blocks) + 1
        blocks[name] = both
        for other in others:
            look_at(other, name)
    return [each.columns for each in blocks.values()]


def blocks_of(rows, least_gain, seed):
    chosen = np.random.default_rng(seed).permutation(len(rows))[:NUM_ROWS]
    rows = rows[chosen].astype(np.int64)
    clusters = MiniBatchKMeans(NUM_CLUSTERS, n_init=3, random_state=seed).fit_predict(rows.astype(np.float32))
    singles = [block([d], column, clusters) for d, column in enumerate(rows.T)]
    return merged(singles, clusters, least_gain)


class Fit:
    """A latent tree of blocks, as figures."""

    def __init__(self, data, least_gain, seed, max_iter):
        start = time.process_time()
        columns = [[d] for d in range(data.train.shape[1])]
        self.blocks = columns if least_gain is None else blocks_of(data.train, least_gain, seed)
        self.name = "columns" if least_gain is None else f"blocks, least gain {least_gain}"
        categories = [list(range(len(each) + 1)) for each in self.blocks]
        model = LatentTreeDensity(max_iter=max_iter, categories=categories, random_state=seed, verbose=False)
        model.fit(self._ones(data.train), X_val=self._ones(data.validation))
        self.seconds = time.process_time() - start
        self.validation, self.test = (self._score(model, rows) for rows in (data.validation, data.test))

    def _ones(self, rows):
        return np.stack([rows[:, each].sum(1, dtype=np.int64) for each in self.blocks], 1)

    def _score(self, model, rows):
        ones, sizes = self._ones(rows), np.array([len(each) for each in self.blocks])
        return float(model.score(ones) - log_arrangements(ones, sizes).sum(1).mean())


def main():
    options = arguments(__doc__)
    report = Report("Exchangeable leaves of latent trees", TEXT, options)
    if report.lacks("debd/*.npz"):
        report.finish()
        return
    rows = []
    for name in NAMES[: 1 if options.quick else None]:
        data = load_density(name)
        fits = [Fit(data, gain, options.seed, 2 if options.quick else 500) for gain in (None, *LEAST_GAINS)]
        chosen = max(fits[1:], key=lambda fit: fit.validation)
        for fit in fits:
            largest = max(len(each) for each in fit.blocks)
            test = f"**{fit.test:.3f}**" if fit in (fits[0], chosen) else f"{fit.test:.3f}"
            cells = [f"{len(fit.blocks)} of {data.train.shape[1]}", largest, f"{fit.validation:.3f}", test]
            rows.append([name, fit.name, *cells, duration(fit.seconds)])
            report.progress(str(rows[-1]))
        gain = chosen.test - fits[0].test
        text = f"{gain:+.3f}" + ", no gain" * (gain < LEAST_CLAIMED)
        report.claim(f"{name}: over columns", f">= {LEAST_CLAIMED}", text, gain >= LEAST_CLAIMED)
    report.table("Fits", ["data", "leaves", "blocks", "largest", "validation", "test", "processor"], rows)
    report.finish()


if __name__ == "__main__":
    main()
