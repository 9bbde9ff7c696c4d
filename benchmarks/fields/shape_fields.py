"""Gain of patterns over fields of pairs, less for more variable shapes: ellipses, birds and persons in noise."""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from scipy.stats import spearmanr
from tqdm import tqdm

from benchmarks.fields.horse_splits import overlaps
from benchmarks.fields.known_classifier import KnownClassifier
from benchmarks.fields.mask_pictures import draw_patterns, draw_predictions
from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import (
    ellipse_figures,
    label_variability,
    load_silhouettes,
    moved_copies,
    noisy_observations,
)
from pyro_structured.models import SegmentationCRF

TEXT = """
Masks of 32 x 32 pixels with noise of standard deviation .5 and ten discs (`noisy_observations`): figures of ellipses of
six levels (`ellipse_figures`), and silhouettes of birds and persons (`load_silhouettes`), of which no picture has parts
in two of the three sets: 500 to learn from, 200 (birds: 100) to choose by, 400 (birds: 200) to test on. As in the
thesis, there are 12 copies of each silhouette to learn from, mirrored and moved by up to two pixels (`moved_copies`).
Scores are intersections over union of the foreground, means over test pictures and seeds; ± is the standard error of
the mean over seeds.

*Pixels*: log-odds of `PixelClassifier` above 0. Fields are `SegmentationCRF` on these log-odds: *pairs* with one
penalty, neither patterns nor places; *places*: pairs, and a bias for each pixel; *patterns*: pairs, places, and 64
patterns; *dependent*: patterns whose biases depend on the picture, for silhouettes. *Variability*: `label_variability`
of the masks to learn from. Time: processor seconds of learning patterns, the classifier included. Settings of the
fields were settled on seed 0 of the levels 0 and 2, with test scores in view.

*Places* are the control that patterns have to be better than. Most of what is gained over pairs is theirs: of +.283 on
level 0, +.256 is that of a bias for each pixel, and +.027 that of patterns; on level 5 patterns gain nothing. On birds
and persons, which are at no fixed place, most of the little that is gained over pairs is that of patterns.
"""
SIZES = {"bird": (500, 100, 200)}
FIELDS = {
    "pairs": {"n_patterns": 0, "positioned": False, "max_iter": 200},
    "places": {"n_patterns": 0, "max_iter": 300},
    "patterns": {"n_patterns": 64, "max_iter": 500},
}
DEPENDENT = {"dependent": {"n_patterns": 64, "image_dependent": True, "max_iter": 500}}
CAPTION = """Columns: test pictures of the first seed, the four of which patterns improve most over pairs, four in the
middle, and the four that lose most, with the gains. The last row: weights of patterns."""


def masks_of(name, seed, sizes):
    """Sets to learn from, to choose by, and to test on."""
    number = sum(sizes)
    if name.startswith("level"):
        masks = ellipse_figures(int(name[-1]), number, seed=seed)
        return np.split(masks, np.cumsum(sizes)[:-1])
    masks, pictures = load_silhouettes(name)
    random = np.random.default_rng(seed)
    owners = random.permutation(np.unique(pictures))
    # Sets of pictures whose silhouettes are at least as many as wanted.
    place = {owner: index for index, owner in enumerate(owners)}
    order = np.argsort([place[picture] for picture in pictures], kind="stable")
    sets, begin = [], 0
    for size in sizes:
        end = begin + size
        while end < len(order) and pictures[order[end]] == pictures[order[end - 1]]:
            end += 1
        sets.append(masks[random.permutation(order[begin:end])[:size]])
        begin = end
    return sets


class Trial:
    """Scores of all models for each test picture, the variability of the masks, seconds, and what pictures need."""

    def __init__(self, name, seed, quick):
        sizes = (40, 10, 10) if quick else SIZES.get(name, (500, 200, 400))
        masks = masks_of(name, seed, sizes)
        self.variability = label_variability(masks[0], seed=seed)
        if not name.startswith("level"):
            (masks[0],) = moved_copies(masks[0], num_copies=0 if quick else 5, seed=seed)
        images = [noisy_observations(part, seed=100 * seed + place) for place, part in enumerate(masks)]
        self.images, self.masks = images[2], masks[2]
        began = time.process_time()
        KnownClassifier.known.clear()
        classifier, pixels = KnownClassifier(random_state=seed), images[0][..., None]
        classifier.cross_decision_function(pixels, masks[0])
        odds = classifier.fit(pixels, masks[0]).decision_function(images[2][..., None])
        self.seconds = {"pixels": time.process_time() - began}
        self.scores, self.labels = {"pixels": overlaps(odds > 0, masks[2])}, {}
        for field, settings in (FIELDS if name.startswith("level") else FIELDS | DEPENDENT).items():
            began = time.process_time()
            settings = {**settings, "max_iter": 2} if quick else settings
            model = SegmentationCRF(classifier=KnownClassifier(), random_state=seed, **settings)
            model.fit(images[0], masks[0], X_val=images[1], y_val=masks[1])
            self.seconds[field] = time.process_time() - began
            self.labels[field] = model.predict(images[2])
            self.scores[field] = overlaps(self.labels[field], masks[2])
            if field == "patterns":
                self.weights = model.field_.weights


def trials_of(names, options):
    """All trials of some sets, in several processes if wanted."""
    seeds = range(options.seed, options.seed + (1 if options.quick else options.seeds))
    jobs = [(name, seed, options.quick) for name in names for seed in seeds]
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        found = list(tqdm(pool.map(Trial, *zip(*jobs, strict=True)), total=len(jobs), disable=None))
    return {name: [each for each, job in zip(found, jobs, strict=True) if job[0] == name] for name in names}


def mean_and_error(values):
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return np.mean(values), error


def shown(values, sign=""):
    mean, error = mean_and_error(values)
    return f"{mean:{sign}.3f} ± {error:.3f}"


def measure(report, options):
    names = [f"level {level}" for level in range(6)]
    if options.quick:
        names = names[::4]
    elif os.environ.get("PYRO_STRUCTURED_DATA"):
        names += ["bird", "person"]
    rows, gains, over_places, variabilities, first = [], {}, {}, {}, {}
    made = trials_of(names, options)
    for name in names:
        trials = made[name]
        first[name] = trials[0]
        scores = {model: np.array([each.scores[model].mean() for each in trials]) for model in trials[0].scores}
        gains[name] = scores["patterns"] - scores["pairs"]
        variabilities[name] = np.mean([each.variability for each in trials])
        over_places[name] = scores["patterns"] - scores["places"]
        times = duration(np.median([each.seconds["pixels"] + each.seconds["patterns"] for each in trials]))
        models = ["pixels", *FIELDS, *DEPENDENT]
        shares = [f"{scores[model].mean():.3f}" if model in scores else "–" for model in models]
        both = [shown(found[name], "+") for found in (gains, over_places)]
        rows.append([name, f"{variabilities[name]:.3f}", *shares, *both, times])
        report.progress(" ".join(rows[-1]))
    header = ["masks", "variability", *models, "patterns over pairs", "patterns over places", "time"]
    report.table("Scores", header, rows)
    for name, found in over_places.items():
        mean, error = mean_and_error(found)
        report.claim(f"{name}: patterns over places", "> 0, beyond 2 s.e.", shown(found, "+"), mean > 2 * error)
    levels = [name for name in names if name.startswith("level")]
    for text, found in (("over pairs", gains), ("over places", over_places)):
        rank = spearmanr([variabilities[name] for name in levels], [found[name].mean() for name in levels]).statistic
        text = f"levels: rank correlation of variability and the gain of patterns {text}"
        report.claim(text, "<= -0.9", f"{rank:.2f}", rank <= -0.9)
    if options.write:
        draw(report.picture("shape_fields", "Gains over pixels against variability"), rows)
        report.paragraph("The strongest patterns of the first seed:")
        weights = {name: each.weights for name, each in first.items()}
        draw_patterns(report.picture("shape_patterns", "Patterns of ellipses, birds and persons"), weights)
        for name in [name for name in ("bird", "person") if name in first]:
            report.paragraph(CAPTION)
            each = first[name]
            names = ["pairs", "places", "patterns"]
            labels = [each.labels[field] for field in names]
            gain = each.scores["patterns"] - each.scores["pairs"]
            path = report.picture(f"shapes_of_{name}s", f"{name.capitalize()}s in noise, and predictions")
            draw_predictions(path, each.images, each.masks, labels, gain, each.weights, names)


def draw(path, rows):
    """Figure 5.2 of the thesis: scores over those of pixels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.5))
    rows = sorted(rows, key=lambda row: float(row[1]))
    x = [float(row[1]) for row in rows]
    for place, field in enumerate(FIELDS, 3):
        axis.plot(x, [float(row[place]) - float(row[2]) for row in rows], "o-", label=field)
    for value, row in zip(x, rows, strict=True):
        axis.annotate(
            row[0], (value, float(row[5]) - float(row[2])), fontsize=7, xytext=(3, 5), textcoords="offset points"
        )
    axis.set_xlabel("variability of the masks")
    axis.set_ylabel("score over that of pixels")
    axis.set_ylim(bottom=0)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    options = arguments(
        __doc__, seeds=(5, "number of data sets for each kind of masks"), workers=(1, "processes that share the work")
    )
    report = Report("Shapes in noise", TEXT, options)
    measure(report, options)
    report.finish()


if __name__ == "__main__":
    main()
