"""Horses segmented by P^n potentials over nested regions, beside log-odds alone and penalties of neighbours."""

import time
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pyro
import torch
from sklearn.cluster import ward_tree
from sklearn.feature_extraction.image import grid_to_graph
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.fields.horse_splits import horse_split, overlaps
from benchmarks.fields.horses import quick_data
from benchmarks.fields.known_classifier import KnownClassifier
from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import load_horses
from pyro_structured.distributions import GridCRF, RecursiveCardinality
from pyro_structured.distributions.cardinality_potentials import consistency
from pyro_structured.fields.models.pixel_features import lab_pictures
from pyro_structured.fields.ops.field_sweeps import sweep
from pyro_structured.inference import ContrastiveDivergence
from pyro_structured.models import SegmentationCRF, edge_features, pixel_features
from pyro_structured.structures import Grid, NestedSubsets

TEXT = """
Pictures of 32 x 32 pixels, parted at random for each seed as in [horses](horses.md): 200 to learn from, 64 to choose
by, 64 to test on. All models see the same log-odds of pixels, of `PixelClassifier` on `pixel_features`; those of
pictures to learn from are by classifiers that have not seen them. What is learned are a scale and a shift of the
log-odds, and:

- *Log-odds*: nothing else.
- *Pairs*: weights, at least 0, of the three `edge_features`, whose sum is the penalty of unequal neighbours
  (`GridCRF`), by likelihood (persistent contrastive divergence, from weights by pseudo-likelihood, which are a row of
  their own). Marginals are by Gibbs sampling, 4 chains of 200 sweeps after 100, from a mode.
- *Pairs, mean field*: the same model as `SegmentationCRF(n_patterns=0, positioned=False, shifts=2)` learns it, by the
  expected overlap of a mean-field approximation; `predict_proba`.
- *P^n*: rewards for regions whose pixels are alike. Regions are the clusters of 2 to 256 pixels of a hierarchical
  clustering of each picture (Ward's method on the colours in CIE Lab, neighbours only), which sees no log-odds and no
  mask: a family of nested subsets, hence a `RecursiveCardinality` with exact log Z, marginals and modes. A region of n
  pixels has the table `consistency(n, a, q)`; four strengths a, for regions of at least 2, 8, 32 and 128 pixels, are
  learned by exact maximum likelihood on 24 of the pictures to learn from (L-BFGS; the log-likelihood is concave).
  *Strict*: q = 1, all pixels are alike or there is no reward; *robust*: q = n / 10, at least 1. *By colours*: robust,
  and strengths are a + b exp(-v / w), for variances of colours v in the region and w in the whole picture.
- *P^n, then pairs*: marginal log-odds of *P^n by colours* take the place of the log-odds in *pairs*; two stages, no
  joint model, learned on the same 24 pictures.

*Accuracy* is the share of right pixels, *overlap* the intersection over union of the horse, a mean over pictures.
Labels are 1 where marginal log-odds are above a number that the pictures to choose by choose, for each model one for
accuracy and one for overlap; rows *mode* are the labels most probable together, by exact cuts for pairs, with no such
number. *Brier*: mean squared error of marginals; *calibration*: mean over pixels of the distance of the mean marginal
and the share of horse in ten bins of marginals. *Log-likelihood*: of the mask, in nats for each pixel, over the first 8
test pictures of each seed; exact, or an interval between the rigorous bounds of `log_prob_bounds` for pairs. ± is the
standard error over seeds of differences on the same pictures (seeds share pictures, so that it is too small by some).
Time: processor seconds of marginals, or of a mode, for a test picture, from its log-odds; clustering is included.

Levels and tolerances were settled on pictures to choose by of seed 0, some of which are test pictures of other seeds.
Pairs were learned by pseudo-likelihood first; their likelihood was added when scores of seed 0 had been seen.

P^n labels more pixels rightly than pairs, and its marginals are nearer to the truth: thin legs stay, which penalties of
neighbours shorten. In return pairs leave no specks, so that masks as wholes are more probable under them, and their
modes take a hundredth of the time. Penalties on top of the marginals of P^n count the same evidence twice.
"""
LEVELS, LARGEST = (2, 8, 32, 128), 256
TOLERANCE = 0.1
LEARNED, BOUNDED, STEPS = 24, 8, 25
THRESHOLDS = np.linspace(-3, 3, 61)
CHAINS, WARM_UP, SWEEPS, CHAIN_STEPS = 4, 100, 200, 300
PAIRS, FIRST_PAIRS, MEAN_FIELD = "pairs", "pairs, pseudo-likelihood", "pairs, mean field"
BOTH = "P^n, then pairs"
VARIANTS = {
    "P^n, strict": {"tolerance": 0.0, "by_colours": False},
    "P^n, robust": {"tolerance": TOLERANCE, "by_colours": False},
    "P^n, by colours": {"tolerance": TOLERANCE, "by_colours": True},
}
BEST = "P^n, by colours"
CAPTION = """Columns: test pictures of the first seed, the two of which P^n by colours improves the overlap most over
pairs, two in the middle, and the two that lose most, with the gains. Rows between pictures and masks: probabilities by
the log-odds, the pairs and P^n, from 0, black, to 1, white."""


class Region(NamedTuple):
    """Pixels of a region, and a number between 0 and 1 that is large where their colours are alike."""

    pixels: np.ndarray
    likeness: float


def nested_regions(image):
    """Clusters of a picture, shape ``(H, W, 3)``, that have a level."""
    colours = lab_pictures(image / 255).reshape(-1, 3)
    merges, _, number, _ = ward_tree(colours, connectivity=grid_to_graph(*image.shape[:2]))[:4]
    clusters = [np.array([pixel]) for pixel in range(number)]
    for first, second in merges:
        clusters.append(np.concatenate([clusters[first], clusters[second]]))
    spread = max(colours.var(0).sum(), 1e-9)
    wanted = (cluster for cluster in clusters if LEVELS[0] <= len(cluster) <= LARGEST)
    return [Region(cluster, np.exp(-colours[cluster].var(0).sum() / spread)) for cluster in wanted]


@cache
def unit_table(size, tolerance):
    return consistency(size, 1.0, max(1, round(tolerance * size))).double()


class RegionField:
    """Pictures side by side, as one distribution whose tables are linear in a few weights.

    :param odds: Log-odds, shape ``(N, H, W)``.
    :param regions: A list for each picture.
    :param float tolerance: Share of a region's pixels at which the reward has gone.
    :param bool by_colours: Whether rewards depend on the likeness of colours.
    """

    def __init__(self, odds, regions, tolerance, by_colours):
        self.shape, self.odds = odds.shape, torch.from_numpy(odds).double().flatten()
        pixels = odds[0].size
        flat = [(place, region) for place, each in enumerate(regions) for region in each]
        self.subsets = NestedSubsets((place * pixels + region.pixels for place, region in flat), self.odds.numel())
        self.basis = torch.zeros(self.subsets.table_size, len(LEVELS) * (1 + by_colours), dtype=torch.double)
        start = 0
        for _, region in flat:
            table = unit_table(len(region.pixels), tolerance)
            level = int(np.searchsorted(LEVELS, len(region.pixels), side="right")) - 1
            self.basis[start : start + len(table), level] = table
            if by_colours:
                self.basis[start : start + len(table), len(LEVELS) + level] = region.likeness * table
            start += len(table)

    def distribution(self, weights):
        scale, shift, strengths = weights[0], weights[1], weights[2:]
        return RecursiveCardinality(scale * self.odds + shift, self.basis @ strengths, self.subsets)

    def log_prob(self, weights, masks):
        """Of all pictures together."""
        return self.distribution(weights).log_prob(masks.flatten())

    def learned(self, masks, steps):
        """Weights of largest likelihood."""
        return minimum(lambda weights: -self.log_prob(weights, masks) / masks.numel(), self.basis.shape[1], steps)

    def marginal_logits(self, weights):
        return self.distribution(weights).marginal_logits.reshape(self.shape).numpy()

    def mode(self, weights):
        return self.distribution(weights).mode.reshape(self.shape).numpy()


def minimum(loss, number, steps, first=0.0):
    """The scale, the shift and other weights of the least loss, the others from ``first``."""
    weights = torch.tensor([1.0, 0.0, *[first] * number], dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=steps, tolerance_change=1e-7, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(weights)
        value.backward()
        return value

    optimizer.step(closure)
    return weights.detach()


def pair_field(weights, odds, edges):
    odds = torch.from_numpy(np.asarray(odds)).double()
    return GridCRF(weights[0] * odds + weights[1], edges @ weights[2:].exp(), Grid(*odds.shape[1:]))


def learned_pairs(odds, edges, masks, steps):
    def loss(weights):
        return -pair_field(weights, odds, edges).pseudo_log_prob(masks).mean() / masks[0].numel()

    return minimum(loss, edges.shape[-1], steps, first=-2.0)


def likeliest_pairs(weights, odds, edges, masks, steps):
    """Weights of about the largest likelihood, from others: the mean over the later half of the steps."""
    pyro.clear_param_store()

    def model():
        learned = pyro.param("weights", weights.clone())
        with pyro.plate("pictures", len(masks)):
            pyro.sample("masks", pair_field(learned, odds, edges), obs=masks)

    learner = ContrastiveDivergence(model, lambda: None, pyro.optim.Adam({"lr": 0.02}), persistent=True)
    kept = []
    for _ in range(steps):
        learner.step()
        kept.append(pyro.param("weights").detach().clone())
    return torch.stack(kept[steps // 2 :]).mean(0)


def sampled_logits(field, quick):
    """Marginal log-odds: means over sweeps of the probabilities of labels given their neighbours."""
    labels = field.mode.flatten(1).unsqueeze(1).expand(-1, CHAINS, -1)
    labels = sweep(field.description, labels, 1 if quick else WARM_UP)
    total, number = 0, 2 if quick else SWEEPS
    for _ in range(number):
        labels = sweep(field.description, labels, 1)
        given = field.conditional_logits(labels.transpose(0, 1).unflatten(-1, field.event_shape))
        total = total + given.sigmoid().mean(0)
    return (total / number).logit(1e-6).numpy()


def accuracies(labels, masks):
    """Share of right pixels of each picture."""
    return (np.asarray(labels).astype(bool) == masks.astype(bool)).reshape(len(masks), -1).mean(1)


def calibration_error(probs, masks):
    """Mean over pixels of the distance between probability and share in ten bins."""
    bins = np.minimum((10 * probs).astype(int), 9).ravel()
    sums = np.bincount(bins, (probs - masks).ravel(), 10)
    return np.abs(sums).sum() / bins.size


class Scores(NamedTuple):
    """Means over the test pictures; ``None`` is not known.

    :ivar log_likelihood: A lower and an upper bound, nats for each pixel.
    """

    accuracy: float
    overlap: float
    brier: float | None
    calibration: float | None
    log_likelihood: tuple[float, float] | None
    seconds: float


class Trial:
    """Scores of all models for one split."""

    def __init__(self, images, masks, regions, split, seed, quick):
        self.images, self.masks, self.split, self.seed, self.quick = images, masks, split, seed, quick
        self.steps = 2 if quick else STEPS
        self.regions, self.clustering = regions
        self.scores, self.overlaps, self.logits, self.strengths = {}, {}, {}, {}
        self.truth = torch.from_numpy(masks).double()
        self.edges = torch.from_numpy(edge_features(images, Grid(*masks.shape[1:]))).double()
        self.odds = self.classify()
        self.fit_odds()
        self.fit_pairs((FIRST_PAIRS, PAIRS), self.odds, split.training)
        for name, settings in VARIANTS.items():
            self.fit_regions(name, settings)
        self.fit_pairs((None, BOTH), self.logits[BEST], split.training[:LEARNED], self.scores[BEST].seconds)

    def classify(self):
        """Log-odds of all pictures, by classifiers that have not seen them; the mean-field model needs them, too."""
        KnownClassifier.known.clear()
        training, validation, test = self.split
        held_out = {"X_val": self.images[validation], "y_val": self.masks[validation]}
        settings = {"n_patterns": 0, "positioned": False, "shifts": 2, "max_iter": 2 if self.quick else 1000}
        model = SegmentationCRF(classifier=KnownClassifier(), random_state=self.seed, verbose=False, **settings)
        model.fit(self.images[training], self.masks[training], **held_out)
        odds = np.empty(self.masks.shape, dtype=np.float32)
        odds[training] = KnownClassifier.known["crossed"]
        for rows in (validation, test):
            odds[rows] = model.classifier_.decision_function(pixel_features(self.images[rows]))
        self.mean_field = model
        return odds

    def fit_odds(self):
        """Scale and shift alone, and the probabilities of the mean-field model."""
        training, _, test = self.split
        odds = torch.from_numpy(self.odds).double()

        def loss(weights, rows):
            return binary_cross_entropy_with_logits(weights[0] * odds[rows] + weights[1], self.truth[rows])

        weights = minimum(partial(loss, rows=training), 0, self.steps)
        log_prob = -float(loss(weights, test[:BOUNDED]))
        self.keep("log-odds", lambda rows: (weights[0] * odds[rows] + weights[1]).numpy(), (log_prob, log_prob))

        def mean_field_logits(rows):
            field = self.mean_field.field_(odds[rows].float(), self.edges[rows].float())
            return field.mean_field_logits().numpy() / self.mean_field.temperature_

        self.keep(MEAN_FIELD, mean_field_logits, None)

    def fit_pairs(self, names, odds, training, seconds=0.0):
        """Pairs on top of any log-odds; the names are of what pseudo-likelihood and likelihood find."""
        data = odds[training], self.edges[training], self.truth[training]
        first = learned_pairs(*data, self.steps)
        found = first, likeliest_pairs(first, *data, 2 if self.quick else CHAIN_STEPS)
        for name, weights in zip(names, found, strict=True):
            if name:
                self.keep_pairs(name, weights, odds, seconds)

    def keep_pairs(self, name, weights, odds, seconds):
        def field(rows):
            return pair_field(weights, odds[rows], self.edges[rows])

        bounds = None
        if name == PAIRS:
            rows = self.split.test[: 1 if self.quick else BOUNDED]
            bounds = field(rows).log_prob_bounds(self.truth[rows])
            bounds = tuple(float(bound.mean()) / self.masks[0].size for bound in bounds)
            self.keep_mode(name, lambda rows: field(rows).mode.numpy(), seconds)
        self.keep(name, lambda rows: sampled_logits(field(rows), self.quick), bounds, seconds)

    def fit_regions(self, name, settings):
        def field(rows):
            return RegionField(self.odds[rows], [self.regions[row] for row in rows], **settings)

        training, rows = self.split.training[:LEARNED], self.split.test[:BOUNDED]
        weights = field(training).learned(self.truth[training], self.steps)
        self.strengths[name] = weights.tolist()
        log_prob = float(field(rows).log_prob(weights, self.truth[rows])) / self.truth[rows].numel()
        self.keep(name, lambda rows: field(rows).marginal_logits(weights), (log_prob, log_prob), self.clustering)
        if name == BEST:
            self.keep_mode(name, lambda rows: field(rows).mode(weights), self.clustering)
            self.logits[name][training] = field(training).marginal_logits(weights)

    def keep(self, name, logits, log_likelihood, seconds=0.0):
        """Keeps the scores of marginal log-odds.

        :param logits: Function of numbers of pictures.
        :param float seconds: Time for a picture that has been spent before.
        """
        validation, test = self.split.validation, self.split.test
        held_out = logits(validation)
        began = time.process_time()
        found = logits(test)
        seconds += (time.process_time() - began) / len(test)
        self.logits[name] = np.zeros_like(self.odds)
        self.logits[name][validation], self.logits[name][test] = held_out, found
        chosen = []
        for score in (accuracies, overlaps):
            tried = [score(held_out > threshold, self.masks[validation]).mean() for threshold in THRESHOLDS]
            chosen.append(score(found > THRESHOLDS[int(np.argmax(tried))], self.masks[test]))
        probs = torch.from_numpy(found).double().sigmoid().numpy()
        brier = ((probs - self.masks[test]) ** 2).mean()
        self.overlaps[name] = chosen[1]
        calibration = calibration_error(probs, self.masks[test])
        self.scores[name] = Scores(*(each.mean() for each in chosen), brier, calibration, log_likelihood, seconds)

    def keep_mode(self, name, mode, seconds=0.0):
        test = self.split.test
        began = time.process_time()
        labels = mode(test)
        seconds += (time.process_time() - began) / len(test)
        right, overlap = (score(labels, self.masks[test]).mean() for score in (accuracies, overlaps))
        self.scores[f"{name}: mode"] = Scores(right, overlap, None, None, None, seconds)


def gain(trials, name, reference, field="overlap"):
    """Mean over seeds of the difference of scores, and its standard error."""
    gains = np.array([getattr(t.scores[name], field) - getattr(t.scores[reference], field) for t in trials])
    return gains.mean(), gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else 0.0


def rows(trials):
    """One for each model."""
    for name, first in trials[0].scores.items():
        scores = [trial.scores[name] for trial in trials]
        cells = [
            f"{np.mean([each.accuracy for each in scores]):.4f}",
            f"{np.mean([each.overlap for each in scores]):.3f}",
        ]
        cells.append("{:+.3f} ± {:.3f}".format(*gain(trials, name, PAIRS)))
        for field in ("brier", "calibration"):
            known = getattr(first, field) is not None
            cells.append(f"{np.mean([getattr(each, field) for each in scores]):.4f}" if known else "–")
        if first.log_likelihood is None:
            cells.append("–")
        else:
            low, high = np.mean([each.log_likelihood for each in scores], 0)
            cells.append(f"{low:.4f}" if low == high else f"{low:.4f} to {high:.4f}")
        yield [name, *cells, duration(np.median([each.seconds for each in scores]))]


def strength_rows(trials):
    for name in VARIANTS:
        weights = np.mean([trial.strengths[name] for trial in trials], 0)
        padded = [f"{weight:.2f}" for weight in weights] + ["–"] * (2 + 2 * len(LEVELS) - len(weights))
        yield [name, *padded]


def draw(trial, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    gains = trial.overlaps[BEST] - trial.overlaps[PAIRS]
    order = np.argsort(-gains)
    middle = len(order) // 2
    shown = [*order[:2], *order[middle - 1 : middle + 1], *order[-2:]]
    test = trial.split.test
    pictures = {"picture": trial.images[test]}
    for label, name in (("log-odds", "log-odds"), (PAIRS, PAIRS), ("P^n", BEST)):
        pictures[label] = torch.from_numpy(trial.logits[name][test]).sigmoid().numpy()
    pictures["mask"] = trial.masks[test]
    figure, axes = plt.subplots(len(pictures), len(shown), figsize=(1.15 * len(shown), 1.2 * len(pictures)))
    for row, (label, values) in zip(axes, pictures.items(), strict=True):
        for axis, number in zip(row, shown, strict=True):
            axis.imshow(values[number], cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(label, fontsize=7)
    for axis, number in zip(axes[0], shown, strict=True):
        axis.set_title(f"{gains[number]:+.2f}", fontsize=8)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=110)


def measure(report, options):
    if options.quick:
        images, masks = (pictures[:16, 8:24, 8:24] for pictures in quick_data(options.seed))
        splits = {options.seed: horse_split(options.seed, 16, 8, 4)}
    else:
        images, masks = load_horses()
        splits = {seed: horse_split(seed) for seed in range(options.seed, options.seed + options.seeds)}
    began = time.process_time()
    regions = [nested_regions(image) for image in images]
    clustering = (time.process_time() - began) / len(images)
    trials = []
    for seed, split in splits.items():
        trials.append(Trial(images, masks, (regions, clustering), split, seed, options.quick))
        scores = (f"{name} {score.accuracy:.4f} {score.overlap:.3f}" for name, score in trials[-1].scores.items())
        report.progress(f"{seed}: {', '.join(scores)}")
    header = ["model", "accuracy", "overlap", "overlap over pairs", "Brier", "calibration", "log-likelihood", "time"]
    report.table("Scores", header, list(rows(trials)))
    levels = [f"{name}, {level}" for name in "ab" for level in LEVELS]
    report.table("Weights, means over seeds", ["model", "scale", "shift", *levels], list(strength_rows(trials)))
    number = np.mean([len(each) for each in regions])
    report.paragraph(
        f"A picture has {number:.0f} regions on average; clustering takes {duration(clustering)} of the time."
    )
    claims(report, trials)
    if options.write:
        report.paragraph(CAPTION)
        draw(trials[0], report.picture("nested_regions", "Horses, probabilities by log-odds, pairs and P^n, and masks"))


def claims(report, trials):
    for field in ("accuracy", "overlap"):
        for reference in ("log-odds", PAIRS, MEAN_FIELD):
            report.claim_gain(f"{field}: {BEST} over {reference}", *gain(trials, BEST, reference, field))
        report.claim_gain(f"{field}: {BOTH} over {BEST}", *gain(trials, BOTH, BEST, field))
    value, error = gain(trials, PAIRS, BEST, "brier")
    report.claim_gain(f"Brier: {BEST} below {PAIRS}", value, error)
    gaps = np.array([t.scores[BEST].log_likelihood[0] - t.scores[PAIRS].log_likelihood[1] for t in trials])
    error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
    report.claim_gain(f"log-likelihood of a pixel: {BEST} over the upper bound of {PAIRS}", gaps.mean(), error)


def main():
    options = arguments(__doc__, seeds=(3, "number of splits"))
    report = Report("Nested regions", TEXT, options)
    if options.quick or not report.lacks("images/weizmann_horses32.npz"):
        measure(report, options)
    report.finish()


if __name__ == "__main__":
    main()
