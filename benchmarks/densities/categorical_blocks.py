"""Blocks of exchangeable categorical variables, and trees of them, against columns and trees of columns."""

import time

import numpy as np
import torch

from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import load_alarm_samples, load_density, load_traffic_speeds
from pyro_structured.distributions import ExchangeableTree
from pyro_structured.models import ExchangeableTreeMixture, JunctionTreeMixture, MEVMDensity
from pyro_structured.structures import BlockTree

DETECTORS, BINS, SIZES = 32, 4, (3000, 1000, 3000)
COMPONENTS, LEVELS = (1, 5, 15), (10, 64)
COLUMNS, TREES, BLOCKS, BLOCK_TREES, MEVM = (
    "mixture of independent columns",
    "mixture of trees of columns",
    "mixture of independent blocks",
    "mixture of trees of blocks",
    "MEVMDensity",
)
TEXT = """
Mean log-likelihood of test rows, in nats. *traffic*: speeds at 32 detectors, in quartiles of the rows to learn from
(the first half of a week; validation: the next sixth; test: the last third). *ALARM*: rows of the network, in 37
columns of two to four states. *nltcs*: binary, with the published split. *drawn*: rows drawn from a chain of eight
blocks, each of four exchangeable columns of three states, so that the truth is known.

All models with blocks are `ExchangeableTreeMixture`, with `treewidth` 0 (independent blocks) or 1 (trees of blocks);
the others are their ablations. Columns: `max_levels=1` and `treewidth=0`, without blocks and without edges. Trees of
columns: `JunctionTreeMixture` of treewidth 1, without blocks; with one component, a Chow-Liu tree whose edges have to
be worth their parameters. The number of components (1, 5, 15) and the largest number of levels of a block (10, 64) are
those that give the validation rows the largest probability; everything else is the default. *One component* is the
best of those with one. `MEVMDensity` is for binary columns alone; indicators of categories would make another model, in
which a row may have two categories of a column, or none. Intervals: differences of rows, paired, 95 %; rows of the
traffic follow each other in time, so that theirs are too narrow. *blocks*: mean number of a component.

Where columns would be independent otherwise, blocks gain much: 1.8 to 3.8 nats with one component, and 1.0 on ALARM
with 15; on traffic and nltcs, mixtures of columns are as good, or better. Over trees of columns, blocks gain nothing on
the three real sets. On ALARM the learner refuses all of them, so that the models are the same; on traffic, validation
chooses a mixture without blocks, too, of fewer components, .15 behind; on nltcs some blocks are taken, and .02 nats
lost. Where the truth has blocks that depend on each other, as in the drawn rows, trees of blocks gain 4.9 nats over
trees of columns, and 2.3 over independent blocks: one component, in which the eight blocks and their chain are found.
"""


def bins(train, validation, test):
    """Numbers of quartiles."""
    edges = np.quantile(train, np.linspace(0, 1, BINS + 1)[1:-1], axis=0)
    return tuple((part[None] >= edges[:, None]).sum(0) for part in (train, validation, test))


def chain_of_blocks(seed, row_counts):
    """Rows, numbers of states, and the mean log-likelihood of test rows under the truth."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(32).reshape(8, 4)
    tree = BlockTree.from_counts(places.tolist(), 3, [[b, b + 1] for b in range(7)])
    truth = ExchangeableTree(torch.from_numpy(1.5 * rng.normal(size=tree.table_size)), tree)
    parts = truth.sample((sum(row_counts),)).split(row_counts)
    return tuple(part.numpy() for part in parts), (3,) * 32, float(truth.log_prob(parts[2]).mean())


def load(name, options):
    """Training, validation and test rows, numbers of states, and the log-likelihood under the truth, if it is known."""
    if name == "drawn":
        return chain_of_blocks(options.seed, (300, 100, 200) if options.quick else SIZES)
    if name == "ALARM":
        samples = load_alarm_samples()
        parts = (samples.train, samples.validation, samples.test)
        return tuple(part.astype(int) for part in parts), samples.cardinalities, samples.log_likelihood
    if name == "traffic":
        speeds, _ = load_traffic_speeds()
        speeds = speeds[:, np.sort(np.random.default_rng(0).permutation(speeds.shape[1])[:DETECTORS])]
        half, third = len(speeds) // 2, 2 * len(speeds) // 3
        return bins(speeds[:half], speeds[half:third], speeds[third:]), (BINS,) * DETECTORS, None
    parts = tuple(part.astype(int) for part in load_density(name))
    return parts, (2,) * parts[0].shape[1], None


class Fit:
    """A model, as figures."""

    def __init__(self, data, model, setting):
        (train, validation, test), _, _ = data
        began = time.process_time()
        model.fit(train, X_val=validation)
        self.seconds, self.setting = time.process_time() - began, setting
        self.validation, self.scores = model.score(validation), model.score_samples(test)
        groups = [tree.groups for tree in model.trees_] if isinstance(model, ExchangeableTreeMixture) else []
        self.blocks = f"{np.mean(list(map(len, groups))):.1f}" if groups else ""

    def row(self):
        figures = [f"{self.validation:.3f}", f"{self.scores.mean():.3f}", self.blocks, duration(self.seconds)]
        return [*self.setting, *figures]


def models(kind, sizes, options):
    """Estimators of a kind, with their settings: numbers of components and of levels."""
    shared = {"random_state": options.seed, "max_iter": 3} if options.quick else {"random_state": options.seed}
    categories = [list(range(size)) for size in sizes]
    for number in COMPONENTS[:2] if options.quick else COMPONENTS:
        if kind == MEVM:
            yield MEVMDensity(n_components=number, n_init=3, **shared), (number, "")
        elif kind == TREES:
            model = JunctionTreeMixture(n_components=number, treewidth=1, categories=categories, **shared)
            yield model, (number, "")
        else:
            width = int(kind == BLOCK_TREES)
            for levels in (1,) if kind == COLUMNS else LEVELS:
                model = ExchangeableTreeMixture(
                    n_components=number, treewidth=width, max_levels=levels, categories=categories, **shared
                )
                yield model, (number, levels)


def difference(first, second):
    """Mean difference of rows, and its standard error."""
    # Equal models differ by rounding.
    rows = (first.scores - second.scores).round(9) + 0.0
    return rows.mean(), rows.std(ddof=1) / np.sqrt(len(rows))


def main():
    options = arguments(__doc__)
    report = Report("Categorical blocks", TEXT, options)
    table, gains = [], []
    for name in ["drawn"] if options.quick else ["traffic", "ALARM", "nltcs", "drawn"]:
        data = load(name, options)
        kinds = [COLUMNS, TREES, BLOCKS, BLOCK_TREES] + ([MEVM] if max(data[1]) == 2 else [])
        best, single = {}, {}
        for kind in kinds:
            fits = [Fit(data, *each) for each in models(kind, data[1], options)]
            best[kind] = max(fits, key=lambda fit: fit.validation)
            single[kind] = max((fit for fit in fits if fit.setting[0] == 1), key=lambda fit: fit.validation)
            report.progress(f"{name}: {kind}: {best[kind].setting} {best[kind].scores.mean():.3f}")
            table += [[name, kind, *best[kind].row()], [name, f"{kind}, one component", *single[kind].row()]]
        if data[2] is not None:
            table.append([name, "the truth", "", "", "", f"{data[2]:.3f}", "", ""])
        compared = [
            ("one component: blocks over columns", single[BLOCKS], single[COLUMNS]),
            ("one component: tree of blocks over tree of columns", single[BLOCK_TREES], single[TREES]),
            ("mixtures: blocks over columns", best[BLOCKS], best[COLUMNS]),
            ("mixtures: trees of blocks over trees of columns", best[BLOCK_TREES], best[TREES]),
            ("mixtures: trees of blocks over blocks", best[BLOCK_TREES], best[BLOCKS]),
        ]
        if MEVM in best:
            compared.append(("mixtures: trees of blocks over MEVMDensity", best[BLOCK_TREES], best[MEVM]))
        for what, first, second in compared:
            gain, error = difference(first, second)
            gains.append([name, what, f"{gain:+.3f} ± {1.96 * error:.3f}"])
        title = f"{name}: trees of blocks over trees of columns"
        report.claim_gain(title, *difference(best[BLOCK_TREES], best[TREES]))
    header = ["set", "model", "components", "levels", "validation", "test", "blocks", "seconds"]
    report.table("Log-likelihood, nats per row", header, table)
    report.table("Differences on test rows, nats per row", ["set", "difference", "gain"], gains)
    report.finish()


if __name__ == "__main__":
    main()
