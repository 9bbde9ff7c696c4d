"""Horses segmented by fields with patterns, beside fields without, classifiers of pixels, and a small U-Net."""

import time

import numpy as np
import pyro
import torch
from pyro.optim import SGD

from benchmarks.fields.horse_controls import Controls
from benchmarks.fields.horse_splits import horse_split, overlaps
from benchmarks.fields.known_classifier import KnownClassifier
from benchmarks.fields.mask_pictures import draw_predictions
from benchmarks.fields.thesis_field import (
    BATCH,
    STEPS,
    ThesisField,
    chosen_scales,
    given_fields,
    machine,
    observed_masks,
)
from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import ellipse_figures, load_horses
from pyro_structured.inference import EarlyStopping, ExpectedLoss
from pyro_structured.models import SegmentationCRF

TEXT = """
Pictures of 32 x 32 pixels, parted at random for each seed: 200 to learn from, 64 to choose by, 64 to test on. Scores
are intersections over union of the foreground, means over the test pictures; ± is the standard deviation over seeds.

Without a field:

- *Pixels*: `PixelClassifier` on `pixel_features`, foreground where log-odds are above 0; *with a bias*: above a number
  that is chosen on the pictures to choose by.
- *Mean mask*: no picture is looked at; log-odds of the mean of the masks to learn from, with a bias.
- *Pixels and mean mask*: the sum, with a weight of the mean mask and a bias, both chosen.
- *Places*: `position_features` beside the others. With a bias, the strongest control that is no network of pictures.
- *U-Net*: `benchmarks/fields/small_unet.py`, 118,593 weights, on the colours of the whole picture, mirrored and shifted
  copies included; the pass that scores best on the pictures to choose by; with a bias.

Fields are `SegmentationCRF`, on the log-odds of the same classifier without places, predicted by the mean-field
approximation that they are learned through, and, *by cuts*, by `map("em", num_switches=0)`, for which `inference="map"`
has chosen the step of the training and the bias:

- *Pairs*: penalties that depend on the picture, no patterns, no biases of places.
- *Places and pairs*: with a bias for each pixel that is learned with the rest (`n_patterns=0`); the control that
  patterns have to be better than, of fields.
- *Patterns*: 64 of them; *that depend on the picture*: `image_dependent=True`.
- *Thesis*: the settings of its author: an RBM of 32 hidden units by PCD-1 with steps of .1, on masks alone; what scales
  it, the log-odds and the penalties of *pairs*, and a bias, chosen; predicted by cuts. *Thesis, joint*: its weights and
  biases by `ExpectedLoss`, steps of 10, the epoch that scores best on the pictures to choose by, the start included.

The classifier mirrors pictures at their borders, from which it can tell how far the border is: its log-odds are not
quite free of places. Scales of filters and settings of networks and fields were settled on the pictures to choose by of
the seeds 0 to 2, and fields of these seeds with test scores in view; some of these pictures are test pictures of other
seeds.

*Gains* are on the same pictures, over pairs, over places and pairs, and over the classifier that sees places, with a
bias (*control*); ± is the standard error over seeds (which share pictures, so that it is too small by some). Time:
processor seconds for a seed; that of fields is without the classifier and its log-odds for pictures that it has not
seen, which are a row of their own.

Li (2013) has .672 before and .699 after joint learning; here there is no such gain. The start is what differs: its four
scales are chosen by the score that joint learning is stopped by. From a start without scales, whose score is lower by
.03, joint learning gains up to .02, and ends below the start with them, whatever the size of steps and the number of
chains ([joint learning](joint_learning.md)):

![Expected losses and scores by steps](../images/benchmark_joint_learning.png)
"""
CONTROL = "pixels and places, with a bias"
REFERENCES = {"pairs": "over pairs", "places and pairs": "over places and pairs", CONTROL: "over control"}
FIELDS = {
    "pairs": {"n_patterns": 0, "positioned": False, "shifts": 2},
    "places and pairs": {"n_patterns": 0, "shifts": 2},
    "patterns": {"n_patterns": 64, "shifts": 2},
    "patterns that depend on the picture": {"n_patterns": 64, "shifts": 2, "image_dependent": True},
}
BY_CUTS = ", by cuts"
BEST = "patterns that depend on the picture"
CAPTION = """Columns: test pictures of the first seed, the four of which patterns improve most over pairs, four in the
middle, and the four that lose most, with the gains. The last row: weights of patterns."""


class Trial(Controls):
    """Scores of all models for one split."""

    def __init__(self, images, masks, split, seed, options):
        super().__init__(images, masks, split, seed, 1 if options.quick else 100)
        self.options, self.models = options, {}
        self.truth = torch.from_numpy(masks).float()
        self.classify()
        for name, settings in FIELDS.items():
            for inference in ("mean_field", "map"):
                self.field(name + BY_CUTS * (inference == "map"), {**settings, "inference": inference})
        self.thesis()

    def classify(self):
        began = time.process_time()
        KnownClassifier.known.clear()
        model = SegmentationCRF(n_patterns=0, max_iter=1, classifier=KnownClassifier(), random_state=self.seed)
        model.fit(*self.part("training"), **self.held_out())
        self.crossed = time.process_time() - began

    def part(self, name):
        rows = getattr(self.split, name)
        return self.images[rows], self.masks[rows]

    def held_out(self):
        return dict(zip(("X_val", "y_val"), self.part("validation"), strict=True))

    def field(self, name, settings):
        began = time.process_time()
        steps = 2 if self.options.quick else 1000
        model = SegmentationCRF(classifier=KnownClassifier(), random_state=self.seed, max_iter=steps, **settings)
        model.fit(*self.part("training"), **self.held_out())
        self.models[name] = model
        self.keep_labels(name, model.predict(self.part("test")[0]), began)

    def keep_labels(self, name, labels, began):
        self.scores[name] = overlaps(labels, self.masks[self.split.test])
        self.seconds[name] = time.process_time() - began

    def thesis(self):
        """In two stages."""
        began = time.process_time()
        torch.manual_seed(self.seed)
        pyro.clear_param_store()
        images = {name: self.part(name)[0] for name in ("training", "validation", "test")}
        given = given_fields(self.models["pairs" + BY_CUTS], KnownClassifier.known["crossed"], images)
        learned = machine(self.truth[self.split.training], 2 if self.options.quick else STEPS)
        scales = chosen_scales(given["validation"], self.masks[self.split.validation], learned)
        field = ThesisField(*learned, scales)
        self.keep_labels("thesis", field.labels(given["test"]), began)
        self.joint(field, given)
        self.keep_labels("thesis, joint", field.labels(given["test"]), began)

    def joint(self, field, given):
        masks = self.truth[self.split.training]

        def score():
            return overlaps(field.labels(given["validation"]), self.masks[self.split.validation]).mean()

        model = observed_masks(field, given["training"], masks)
        learner = ExpectedLoss(model, lambda: None, SGD({"lr": 10 / len(masks)}))
        epoch = -(-len(masks) // BATCH)
        EarlyStopping(learner, score, 5 * epoch, patience=8).run(1 if self.options.quick else 200 * epoch)


def quick_data(seed):
    """Takes the place of the horses in a smoke run, which has no data: ellipses in colour, and noise."""
    masks = ellipse_figures(1, 30, seed=seed)
    noise = np.random.default_rng(seed).integers(128, size=(*masks.shape, 3))
    return (noise + 127 * masks[..., None]).astype(np.uint8), masks


def gain(trials, name, reference):
    """Mean over seeds of the difference of mean scores, and its standard error."""
    gains = np.array([trial.scores[name].mean() - trial.scores[reference].mean() for trial in trials])
    return gains.mean(), gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else 0.0


def rows(trials):
    """One for each model."""
    for name in trials[0].scores:
        scores = np.array([trial.scores[name].mean() for trial in trials])
        gains = ["{:+.3f} ± {:.3f}".format(*gain(trials, name, reference)) for reference in REFERENCES]
        seconds = np.median([trial.seconds[name] for trial in trials])
        yield [name, f"{scores.mean():.3f} ± {scores.std(ddof=min(1, len(scores) - 1)):.3f}", *gains, duration(seconds)]
    crossed = duration(np.median([trial.crossed for trial in trials]))
    yield ["(log-odds of pixels, crossed)", *[""] * (1 + len(REFERENCES)), crossed]


def cut_seconds(trial):
    """Seconds of ``map`` for a test picture."""
    field = trial.models[BEST].to_pyro(trial.part("test")[0])
    began = time.process_time()
    field.map("em", num_switches=0)
    return (time.process_time() - began) / len(field.unary_logits)


def draw(trial, path):
    images, masks = trial.part("test")
    names = ["pairs", "places and pairs", BEST]
    labels = [trial.models[name].predict(images) for name in names]
    gains = trial.scores[BEST] - trial.scores["pairs"]
    weights = trial.models[BEST].field_.weights
    draw_predictions(path, images, masks, labels, gains, weights, [*names[:2], "patterns"])


def measure(report, options):
    if options.quick:
        images, masks = quick_data(options.seed)
        splits = {options.seed: horse_split(options.seed, 30, 16, 7)}
    else:
        images, masks = load_horses()
        splits = {seed: horse_split(seed) for seed in range(options.seed, options.seed + options.seeds)}
    trials = []
    for seed, split in splits.items():
        trials.append(Trial(images, masks, split, seed, options))
        means = (f"{name} {scores.mean():.3f}" for name, scores in trials[-1].scores.items())
        report.progress(f"{seed}: {', '.join(means)}")
    report.table("Scores", ["model", "score", *REFERENCES.values(), "time"], list(rows(trials)))
    claims(report, trials)
    if options.write:
        report.paragraph(CAPTION)
        draw(trials[0], report.picture("horses", "Horses, their masks, predictions and patterns"))


def claims(report, trials):
    means = {name: np.mean([trial.scores[name].mean() for trial in trials]) for name in trials[0].scores}
    report.claim("pixels", ">= 0.55", f"{means['pixels']:.3f}", means["pixels"] >= 0.55)
    patterned = [name for name in means if name.startswith("patterns")]
    best = max(patterned, key=lambda name: np.mean([trial.models[name].validation_score_ for trial in trials]))
    text = f"fields with patterns, the best by validation: {best}"
    report.claim(text, ">= 0.72", f"{means[best]:.3f}", means[best] >= 0.72)
    value, error = gain(trials, best, "pairs")
    report.claim("the same over pairs", ">= 0.1", f"{value:+.3f} ± {error:.3f}", value >= 0.1)
    for name, reference in (
        ("the same", "places and pairs"),
        ("the same", CONTROL),
        ("the same", "U-Net"),
        ("patterns", CONTROL),
        ("thesis", "places and pairs" + BY_CUTS),
        ("thesis, joint", "thesis"),
    ):
        value, error = gain(trials, best if name == "the same" else name, reference)
        report.claim_gain(f"{name} over {reference}", value, error)
    seconds = np.median([cut_seconds(trial) for trial in trials])
    report.claim("labels of a picture by cuts", "<= 5 ms", duration(seconds), seconds <= 5e-3)
    slowest = max(trial.crossed + trial.seconds[name] for trial in trials for name in FIELDS)
    report.claim("slowest field of a seed, with its classifier", "<= 180 s", duration(slowest), slowest <= 180)


def main():
    options = arguments(__doc__, seeds=(5, "number of splits"))
    report = Report("Horses", TEXT, options)
    if options.quick or not report.lacks("images/weizmann_horses32.npz"):
        measure(report, options)
    report.finish()


if __name__ == "__main__":
    main()
