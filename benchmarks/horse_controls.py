"""Horses without a model of shape: what a pixel's surroundings, its place, and a small U-Net tell of the mask."""

import os
import time

import numpy as np
from horse_splits import best_shift, horse_split, log_odds_of_mean, overlap, overlaps
from measurement import Report, arguments, duration
from small_unet import fit_unet

from pyro_structured.datasets import ellipse_figures, load_horses
from pyro_structured.models import PixelClassifier, pixel_features, position_features

TEXT = """
Pictures of 32 x 32 pixels, parted at random for each seed: 200 to learn from, 64 to choose by, 64 to test on. Scores
are intersections over union of the foreground, means over the test pictures; ± is the standard deviation over seeds.

- *Pixels*: `PixelClassifier` on `pixel_features`, foreground where log-odds are above 0; *with a bias*: above a number
  that is chosen on the pictures to choose by.
- *Mean mask*: no picture is looked at; log-odds of the mean of the masks to learn from, with a bias.
- *Pixels and mean mask*: the sum, with a weight of the mean mask and a bias, both chosen.
- *Places*: `position_features` beside the others.
- *U-Net*: `benchmarks/small_unet.py`, 118,593 weights, on the colours of the whole picture, mirrored and shifted copies
  included; the pass that scores best on the pictures to choose by; with a bias.

Networks compute in float32. Scales of the filters and settings of both networks were settled on the pictures to choose
by of the seeds 0 to 2, some of which are test pictures of other seeds.

*Gain*: over pixels with a bias, on the same pictures; ± is the standard error over seeds (which share pictures, so that
it is too small by some). Time: processor seconds for a seed.
"""
SHIFTS, WEIGHTS = np.linspace(-3, 3, 121), np.linspace(0, 1.5, 31)
EPOCHS, LIMIT = 100, 60.0
REFERENCE = "pixels, with a bias"


def quick_data(seed):
    """Takes the place of the horses in a smoke run, which has no data: ellipses in colour, and noise."""
    masks = ellipse_figures(1, 30, seed=seed)
    noise = np.random.default_rng(seed).integers(128, size=(*masks.shape, 3))
    return (noise + 127 * masks[..., None]).astype(np.uint8), masks


class Trial:
    """Scores of all controls for one split: for each, those of the test pictures, and seconds."""

    def __init__(self, images, masks, split, seed, epochs):
        self.scores, self.seconds = {}, {}
        self.images, self.masks, self.split, self.seed = images, masks, split, seed
        odds = self.pixels("pixels", lambda: pixel_features(images))
        self.mean_mask(*odds)
        self.pixels("pixels and places", lambda: with_places(pixel_features(images)))
        self.unet(epochs)

    def keep(self, name, odds, began):
        self.scores[name] = overlaps(odds > 0, self.masks[self.split.test])
        self.seconds[name] = time.process_time() - began

    def chosen(self, validation):
        return best_shift(validation, self.masks[self.split.validation], SHIFTS)

    def pixels(self, name, describe):
        """Without and with a bias; log-odds of the pictures to choose by and to test on."""
        began = time.process_time()
        features, (training, validation, test) = describe(), self.split
        classifier = PixelClassifier(random_state=self.seed).fit(features[training], self.masks[training])
        odds = [classifier.decision_function(features[part]) for part in (validation, test)]
        self.keep(name, odds[1], began)
        self.keep(f"{name}, with a bias", odds[1] + self.chosen(odds[0])[0], began)
        return odds

    def mean_mask(self, validation, test):
        """Alone, and with the log-odds of pixels."""
        began = time.process_time()
        prior = log_odds_of_mean(self.masks[self.split.training])
        alone = np.broadcast_to(prior, test.shape)
        self.keep("mean mask", alone + self.chosen(np.broadcast_to(prior, validation.shape))[0], began)
        tried = [(*self.chosen(validation + weight * prior), weight) for weight in WEIGHTS]
        shift, _, weight = max(tried, key=lambda each: each[1])
        self.keep("pixels and mean mask", test + weight * prior + shift, began)

    def unet(self, epochs):
        began = time.process_time()
        training, validation, test = self.split
        held_out = self.images[validation], self.masks[validation]
        network = fit_unet(self.images[training], self.masks[training], held_out, overlap, epochs, self.seed)
        shift, _ = self.chosen(network(self.images[validation]))
        self.keep("U-Net", network(self.images[test]) + shift, began)


def with_places(features):
    places = position_features(*features.shape[1:3])
    return np.concatenate([features, np.broadcast_to(places, (*features.shape[:3], places.shape[-1]))], -1)


def rows(trials):
    """One for each control."""
    reference = np.array([trial.scores[REFERENCE].mean() for trial in trials])
    for name in trials[0].scores:
        scores = np.array([trial.scores[name].mean() for trial in trials])
        gains = scores - reference
        error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        gain = "–" if name == REFERENCE else f"{gains.mean():+.3f} ± {error:.3f}"
        seconds = np.median([trial.seconds[name] for trial in trials])
        yield [name, f"{scores.mean():.3f} ± {scores.std(ddof=min(1, len(scores) - 1)):.3f}", gain, duration(seconds)]


def measure(report, options):
    if options.quick:
        images, masks = quick_data(options.seed)
        splits, epochs = {options.seed: horse_split(options.seed, 30, 16, 7)}, 1
    else:
        images, masks = load_horses()
        splits = {seed: horse_split(seed) for seed in range(options.seed, options.seed + options.seeds)}
        epochs = EPOCHS
    trials = []
    for seed, split in splits.items():
        trials.append(Trial(images, masks, split, seed, epochs))
        means = (f"{name} {scores.mean():.3f}" for name, scores in trials[-1].scores.items())
        report.progress(f"{seed}: {', '.join(means)}")
    report.table("Scores", ["control", "score", "gain", "time"], list(rows(trials)))
    score = np.mean([trial.scores["pixels"].mean() for trial in trials])
    report.claim("pixels: mean score", ">= 0.55", f"{score:.3f}", score >= 0.55)
    slowest = max(trial.seconds["U-Net"] for trial in trials)
    report.claim("U-Net: time of a seed", f"<= {LIMIT:.0f} s", duration(slowest), slowest <= LIMIT)


def main():
    options = arguments(__doc__, seeds=(5, "number of splits"))
    report = Report("Horses: controls", TEXT, options)
    if options.quick or os.environ.get("PYRO_STRUCTURED_DATA"):
        measure(report, options)
    else:
        wanted = "skipped: set PYRO_STRUCTURED_DATA to a folder with images/weizmann_horses32.npz"
        report.claim("all", "data", wanted, False)
    report.finish()


if __name__ == "__main__":
    main()
