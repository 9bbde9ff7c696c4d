"""Conditional random fields of small treewidth: joint log-likelihood of digits, and error rates of synthetic labels."""

import itertools
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from tqdm import tqdm

from benchmarks.junction_trees.pseudo_likelihood import PseudoLikelihoodField
from benchmarks.measurement import Report, arguments, duration
from pyro_structured.junction_trees.models.crf_potentials import ConditionalField, FieldWeights
from pyro_structured.models import JunctionTreeCRF
from pyro_structured.structures import CliqueTree

TEXT = """
**Digits.** scikit-learn's 1,797 images of 8 x 8 pixels: the lower 32 pixels, ones where the intensity is at least 8 of
16, without those that are constant in the training rows, given the intensities of the upper 32, divided by 16. Random
splits into 900 rows for training, 400 for validation and 497 for testing. *Independent* is scikit-learn's
`LogisticRegression` for each pixel (`C` is chosen for all of them together); the others are `JunctionTreeCRF` with
potentials of edges that are constants or linear in the features: *chain* joins the pixels in their order, *Chow-Liu* is
the treewidth 1, *pairwise* and *graph cuts* (the paper's) look at pairs of labels alone, and *chordal* is the default.
The strength of L2, whether edges have features, and the treewidth (2 to 4) are chosen by the joint log-likelihood of
the same validation rows. Intervals are those of the mean difference over test rows, 1.96 standard errors. Seconds:
processor time of the chosen fit, its graph included. Error: pixels that the marginal probabilities tell wrongly. The
default penalty was set with the validation rows of the first split in view. The strongest control of *chordal* is
*pairwise*, which is not worse on the first split, and better on the second.

**Synthetic fields.** Random graphs of 8 to 20 binary labels with three neighbours on average, whatever their treewidth;
four standard normal features; weights of nodes are standard normal; log odds ratios of edges are of either sign and of
size 1 to 3, plus features with normal weights of standard deviation 1/2. Labels are exact samples: 500 rows for
training, 500 for validation, 2,000 for testing. *Group L1* is in the style of Schmidt et al. (2008): all pairs have
weights, those of a pair are a group, pseudo-likelihood with group L1 along a path of strengths, then pseudo-likelihood
with L2 on the pairs that are left; both strengths are chosen by the validation pseudo-likelihood; its marginals are
exact where the tables have at most 2^13 entries, and those of damped loopy belief propagation elsewhere. *Chordal* and
*Chow-Liu* choose by the validation likelihood. Error: labels that the marginal probabilities tell wrongly; *truth* are
those of the true field. Edges that only make the graph chordal count as false.
"""
TRAIN, VALIDATION = 900, 400
L2 = (0.3, 1.0, 3.0)
SYNTHETIC_L2 = (0.5, 2.0, 8.0)
GROUP_L1, GROUP_L2 = (0.1, 0.07, 0.05, 0.035, 0.025, 0.017), (0.004, 0.001)
SIZES, ROWS, DEGREE, FEATURES = (8, 12, 16, 20), 500, 3.0, 4
RESAMPLES = 10_000


class Chosen:
    """The best of several fits on validation rows."""

    def __init__(self):
        self.score, self.model, self.text, self.seconds = -np.inf, None, "", 0.0

    def offer(self, score, model, text, seconds):
        if score > self.score:
            self.score, self.model, self.text, self.seconds = score, model, text, seconds


def digits(seed):
    pixels = load_digits().data
    X, ones = pixels[:, :32] / 16, (pixels[:, 32:] >= 8).astype(int)
    parts = np.split(np.random.default_rng(seed).permutation(len(X)), [TRAIN, TRAIN + VALIDATION])
    varying = ones[parts[0]].min(0) < ones[parts[0]].max(0)
    return [(X[rows], ones[rows][:, varying]) for rows in parts]


def fitted(train, **options):
    start = time.process_time()
    crf = JunctionTreeCRF(tol=1e-3, **options).fit(*train)
    return crf, time.process_time() - start


def tuned(train, validation, graphs, strengths, edge_features):
    """The best field over graphs, each with its name and the seconds that it took, and the other choices."""
    best = Chosen()
    for (name, edges, spent), l2, features in itertools.product(graphs, strengths, edge_features):
        crf, elapsed = fitted(train, edges=edges, l2=l2, edge_features=features)
        text = f"{name}l2 {l2:g}, {'linear' if features else 'constant'} edges"
        best.offer(crf.log_prob(*validation).mean(), crf, text, spent + elapsed)
    return best


def graphs_of(train, treewidths, method="chordal"):
    found = []
    for treewidth in treewidths:
        crf, elapsed = fitted(train, treewidth=treewidth, method=method)
        found.append((f"treewidth {treewidth}, ", crf.edges_, elapsed))
    return found


class Independent:
    """Logistic regressions, one for each label."""

    def __init__(self, train, c):
        X, y = train
        self.models = [LogisticRegression(C=c, max_iter=1000).fit(X, column) for column in y.T]
        self.edges_ = ()

    def predict_proba(self, X):
        return [model.predict_proba(X) for model in self.models]

    def log_prob(self, X, y):
        rows = np.arange(len(y))
        logs = [model.predict_log_proba(X) for model in self.models]
        return sum(each[rows, column] for each, column in zip(logs, y.T, strict=True))


def independent(train, validation):
    best = Chosen()
    for l2 in L2:
        start = time.process_time()
        model = Independent(train, 1 / l2)
        best.offer(model.log_prob(*validation).mean(), model, f"C {1 / l2:.3g}", time.process_time() - start)
    return best


def contestants(train, validation, quick):
    chain = [("", [(d, d + 1) for d in range(train[1].shape[1] - 1)], 0.0)]
    widths, strengths = ((2,), (1.0,)) if quick else ((2, 3, 4), L2)
    kinds = (True,) if quick else (False, True)
    graphs = {
        "chain": chain,
        "Chow-Liu": graphs_of(train, [1]),
        "pairwise": graphs_of(train, widths, "pairwise"),
        "graph cuts": graphs_of(train, widths, "graph_cut"),
        "chordal": graphs_of(train, widths),
    }
    found = {"independent": independent(train, validation)}
    for name, each in graphs.items():
        found[name] = tuned(train, validation, each, strengths, kinds)
        Report.progress(f"{name}: {found[name].score:.3f}, {found[name].text}")
    return found


def error_rate(model, X, y):
    ones = np.stack([each[:, -1] for each in model.predict_proba(X)], 1)
    return ((ones > 0.5) != y).mean()


def compare_digits(report, options):
    splits = 1 if options.quick else options.splits
    differences = {}
    rows = []
    for split in range(splits):
        train, validation, test = digits(options.seed + split)
        if options.quick:
            train, validation, test = ((X, y[:, :6]) for X, y in (train, validation, test))
        found = contestants(train, validation, options.quick)
        log_probs = {name: each.model.log_prob(*test) for name, each in found.items()}
        for name, each in found.items():
            rows.append(
                [
                    split,
                    name,
                    each.text,
                    len(each.model.edges_),
                    f"{each.score:.3f}",
                    f"{log_probs[name].mean():.3f}",
                    f"{error_rate(each.model, *test):.4f}",
                    duration(each.seconds),
                ]
            )
            gain = log_probs["chordal"] - log_probs[name]
            error = gain.std(ddof=1) / len(gain) ** 0.5
            differences.setdefault(name, []).append(
                (gain.mean() - 1.96 * error, gain.mean(), gain.mean() + 1.96 * error)
            )
    for name in ("independent", "chain", "Chow-Liu", "pairwise", "graph cuts"):
        low, mean, high = min(differences[name])
        text = f"digits, test log-likelihood of chordal minus {name}, the least of {splits} splits"
        report.claim(text, "interval > 0", f"{mean:.3f} [{low:.3f}, {high:.3f}]", low > 0)
    header = ["split", "model", "chosen", "edges", "validation", "test log-likelihood", "error", "time"]
    report.table("Digits: joint log-likelihood in nats", header, rows)


def synthetic(num_labels, seed):
    """A random field: features and labels, pairs, and the true distribution of the test rows."""
    rng = np.random.default_rng([num_labels, seed])
    torch.manual_seed(seed)
    pairs = [pair for pair in itertools.combinations(range(num_labels), 2) if rng.random() < DEGREE / (num_labels - 1)]
    field = ConditionalField(CliqueTree.from_edges(pairs, [2] * num_labels), pairs)
    nodes = rng.normal(size=(FEATURES + 1, num_labels))
    signs, sizes = rng.choice([-1.0, 1.0], len(pairs)), rng.uniform(1, 3, len(pairs))
    edges = np.vstack([signs * sizes, rng.normal(scale=0.5, size=(FEATURES, len(pairs)))])
    X = rng.normal(size=(6 * ROWS, FEATURES))
    truth = field.distribution(torch.from_numpy(X), FieldWeights(torch.from_numpy(nodes), torch.from_numpy(edges)))
    y = truth.sample().numpy()
    parts = [(X[rows], y[rows]) for rows in np.split(np.arange(len(X)), [ROWS, 2 * ROWS])]
    return parts, set(pairs), field.tree.treewidth, truth.marginals[2 * ROWS :, :, 1].numpy()


def group_l1(train, validation, quick):
    """The best field along the path, and its edges."""
    best = Chosen()
    size = train[1].shape[1], FEATURES
    path = PseudoLikelihoodField(*size)
    for strength in GROUP_L1[:2] if quick else GROUP_L1:
        path.fit(*train, strength, 1e-3)
        for l2 in GROUP_L2:
            field = PseudoLikelihoodField(*size)
            field.nodes, field.edges = path.nodes, path.edges
            field.fit(*train, 0.0, l2, path.selected)
            best.offer(field.log_likelihood(*validation), field, "", 0.0)
    return best.model


def synthetic_errors(parts, quick):
    """For each learner its error rate and its edges."""
    train, validation, (X, y) = parts
    graphs = {"Chow-Liu": [1], "chordal": [1, 2] if quick else [1, 2, 3]}
    strengths = SYNTHETIC_L2[:1] if quick else SYNTHETIC_L2
    found = {"independent": independent(train, validation).model}
    for name, widths in graphs.items():
        found[name] = tuned(train, validation, graphs_of(train, widths), strengths, (True,)).model
    errors = {name: (error_rate(model, X, y), set(model.edges_)) for name, model in found.items()}
    field = group_l1(train, validation, quick)
    edges = {tuple(pair) for pair in field.pairs[field.selected.numpy()].tolist()}
    errors["group L1"] = ((field.marginals(X) > 0.5) != y).mean(), edges
    return errors


def compare_synthetic(report, options):
    sizes, draws = ((8,), 2) if options.quick else (SIZES, options.draws)
    rows, errors, shown = [], {}, []
    for size, draw in tqdm(list(itertools.product(sizes, range(draws))), desc="fields"):
        parts, pairs, treewidth, marginals = synthetic(size, options.seed + draw)
        found = synthetic_errors(parts, options.quick)
        found["truth"] = ((marginals > 0.5) != parts[2][1]).mean(), pairs
        for name, (error, edges) in found.items():
            counts = len(edges & pairs), len(edges - pairs), len(pairs - edges)
            errors.setdefault(name, []).append((size, treewidth, error, *counts))
        if draw == 0:
            shown.append((size, pairs, found))
    for size, name in itertools.product(sizes, errors):
        each = np.array([row[1:] for row in errors[name] if row[0] == size]).mean(0)
        rows.append([size, f"{each[0]:.1f}", name, f"{each[1]:.4f}", *(f"{count:.1f}" for count in each[2:])])
    means = {name: np.array([row[2] for row in each]) for name, each in errors.items()}
    best = min(("independent", "Chow-Liu", "group L1"), key=lambda name: means[name].mean())
    gain = means["chordal"] - means[best]
    rng = np.random.default_rng(options.seed)
    low, high = np.quantile(rng.choice(gain, (RESAMPLES, len(gain))).mean(1), [0.025, 0.975])
    text = f"synthetic fields, error of chordal minus that of the best baseline, {best}, {len(gain)} fields"
    report.claim(text, "interval not > 0", f"{gain.mean():.4f} [{low:.4f}, {high:.4f}]", low <= 0)
    header = ["labels", "true treewidth", "model", "error", "true edges", "false edges", "missing edges"]
    report.table(f"Synthetic fields: means over {draws} for each number of labels", header, rows)
    path = report.picture("conditional_fields", "True, false and missing edges")
    if options.write:
        draw_picture(path, shown)


def draw_picture(path, shown):
    from matplotlib.figure import Figure

    names = ("chordal", "group L1")
    figure = Figure(figsize=(3 * len(shown), 6.4), layout="constrained")
    axes = figure.subplots(len(names), len(shown), squeeze=False)
    for column, (size, pairs, found) in zip(axes.T, shown, strict=True):
        angles = 2 * np.pi * np.arange(size) / size
        places = np.stack([np.cos(angles), np.sin(angles)], 1)
        for ax, name in zip(column, names, strict=True):
            edges = found[name][1]
            kinds = {"true": (edges & pairs, "black", "-"), "false": (edges - pairs, "tab:blue", "-")}
            kinds["missing"] = pairs - edges, "tab:red", ":"
            for label, (group, color, style) in kinds.items():
                ax.plot([], [], style, color=color, label=label)
                for pair in group:
                    ax.plot(*places[list(pair)].T, style, color=color)
            ax.plot(*places.T, "o", color="white", markeredgecolor="black", markersize=8, zorder=3)
            ax.set(title=f"{name}, {size} labels", aspect="equal")
            ax.axis("off")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)


def main():
    options = arguments(__doc__, splits=(2, "splits of the digits"), draws=(4, "fields for each number of labels"))
    report = Report("Conditional random fields", TEXT, options)
    compare_digits(report, options)
    compare_synthetic(report, options)
    report.finish()


if __name__ == "__main__":
    main()
