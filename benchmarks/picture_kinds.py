"""Segmentation of the same pictures in colour and grey, and the probabilities of its labels."""

import contextlib
import io
import itertools

import numpy as np
import skimage.data
from horse_splits import horse_split, overlaps
from horses import quick_data
from measurement import Report, arguments

from pyro_structured.datasets import ellipse_figures, load_horses
from pyro_structured.models import SegmentationCRF, pixel_features

TEXT = """
`SegmentationCRF` (16 patterns, 150 steps) on the same pictures of 32 x 32 pixels, stored in different ways; 200 to
learn from, 64 to validate with, 64 to test on, parted for each seed.

- *Horses*: those of `horses.py`.
- *Figures*: ellipses (`ellipse_figures`, level 1) cut out of one picture of scikit-image's and laid on another, at
  random places: of `chelsea` and `astronaut`, on `coffee` and `rocket`.

In both, colours say something by themselves, which the classifier alone loses, too. Grey pictures lack no feature.

- *Colour*: as they are, uint8. With a fourth number, 255, or times 257 as uint16, results are the same.
- *Grey*: the mean of the three colours, rounded, uint8, of shape `(N, H, W)`. As floats from 0 to 1, or as three equal
  colours, results are the same.
- *Grey, one number*: the same as other integers, which the model takes for numbers that mean anything: one feature for
  each pixel, and the same penalty everywhere. This is the control: what grey pictures had before they had all features.

*Score*: intersection over union of the foreground, mean over test pictures; ± is the standard deviation over seeds.
*Loss*: mean logistic loss of the test pixels. *Error*: expected calibration error, with 15 bins of the same width.
*Classifier*: log-odds of pixels by themselves, with the same features. *Field*: mean-field log-odds, as they are.
*Calibrated*: `predict_proba`, these divided by the temperature that validation pictures say.
"""
SETTINGS = {"patterns": 16, "max_steps": 150}
KINDS = {
    "colour": lambda images: images,
    "grey": lambda images: images.mean(-1).round().astype(np.uint8),
    "grey, one number": lambda images: images.mean(-1).round().astype(int),
}
OF = ("classifier", "field", "calibrated")
LARGEST_GAP, LARGEST_LOSS = 0.03, 0.005


def figures(seed, number=328, size=32):
    """Colour pictures and their masks."""
    random, masks = np.random.default_rng(seed), ellipse_figures(1, number, seed=seed)
    on, off = (
        [getattr(skimage.data, name)() for name in names] for names in (("chelsea", "astronaut"), ("coffee", "rocket"))
    )

    def crop(sources):
        source = sources[random.integers(len(sources))]
        row, column = (random.integers(length - size + 1) for length in source.shape[:2])
        return source[row : row + size, column : column + size]

    images = [np.where(mask[..., None] > 0, crop(on), crop(off)) for mask in masks]
    return np.stack(images), masks


def log_loss(odds, masks):
    return np.logaddexp(0, np.where(masks > 0, -odds, odds)).mean()


def calibration_error(odds, masks, bins=15):
    probs = (1 / (1 + np.exp(-odds))).ravel()
    place = np.minimum((bins * probs).astype(int), bins - 1)
    return np.abs(np.bincount(place, probs - masks.ravel(), bins)).sum() / len(probs)


def trial(images, masks, seed, settings):
    """Score, losses, errors and temperature of one kind of pictures."""
    split = horse_split(seed, len(images), *((10, 10) if len(images) < 100 else ()))
    model = SegmentationCRF(**settings, random_state=seed)
    with contextlib.redirect_stderr(io.StringIO()):
        model.fit(*(part[rows] for rows in split[:2] for part in (images, masks)))
    tests, truth = images[split.test], masks[split.test]
    plain = images.dtype == int
    features = tests[..., None] if plain else pixel_features(tests)
    logits = model.to_pyro(tests).mean_field_logits().double().numpy()
    each = [model.classifier_.decision_function(features).astype(float), logits, logits / model.temperature_]
    found = [log_loss(odds, truth) for odds in each] + [calibration_error(odds, truth) for odds in each]
    return [overlaps(model.predict(tests), truth).mean(), *found, model.temperature_]


def main():
    options = arguments(__doc__, seeds=(2, "random partitions of the pictures"))
    report = Report("Kinds of pictures", TEXT, options)
    if options.quick:
        sets = {"horses": quick_data(options.seed), "figures": figures(options.seed, 30)}
    else:
        sets = {"horses": load_horses(), "figures": figures(options.seed)}
    settings = {"patterns": 2, "max_steps": 2} if options.quick else SETTINGS
    seeds = range(options.seed, options.seed + (1 if options.quick else options.seeds))
    found = {}
    for (data, (images, masks)), (name, kind) in itertools.product(sets.items(), KINDS.items()):
        found[data, name] = np.array([trial(kind(images), masks, seed, settings) for seed in seeds])
        report.progress(f"{data}, {name}: {found[data, name].mean(0).round(4).tolist()}")
    for data in sets:
        colour, grey, control = (found[data, name][:, 0].mean() for name in KINDS)
        below, above = colour - grey, grey - control
        name = f"{data}: score of grey pictures below that of colour"
        report.claim(name, f"<= {LARGEST_GAP}", f"{below:.3f}", below <= LARGEST_GAP)
        report.claim(f"{data}: score of grey pictures above one number", "> 0", f"{above:+.3f}", above > 0)
    worst = max(float((numbers[:, 3] - numbers[:, 1]).max()) for numbers in found.values())
    name = "loss of probabilities above the classifier's, worst of all"
    report.claim(name, f"<= {LARGEST_LOSS}", f"{worst:+.4f}", worst <= LARGEST_LOSS)
    measures = [f"{what}, {of}" for what in ("loss", "error") for of in OF]
    rows = []
    for name, numbers in found.items():
        score, *rest = numbers.mean(0)
        deviation = numbers[:, 0].std(ddof=min(1, len(numbers) - 1))
        rows.append([*name, f"{score:.3f} ± {deviation:.3f}", *(f"{x:.4f}" for x in rest[:-1]), f"{rest[-1]:.2f}"])
    report.table("Scores and probabilities", ["pictures", "kind", "score", *measures, "temperature"], rows)
    report.finish()


if __name__ == "__main__":
    main()
