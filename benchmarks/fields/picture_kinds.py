"""Segmentation of the same pictures in colour and grey, and the probabilities of its labels."""

import contextlib
import io
import itertools

import numpy as np
import skimage.color
import skimage.data
import skimage.draw
from scipy.ndimage import gaussian_filter

from benchmarks.fields.horse_splits import horse_split, overlaps
from benchmarks.fields.horses import quick_data
from benchmarks.measurement import Report, arguments
from pyro_structured.datasets import ellipse_figures, load_horses
from pyro_structured.models import SegmentationCRF, pixel_features

TEXT = """
`SegmentationCRF` (16 patterns, 150 steps) on the same pictures of 32 x 32 pixels, stored in different ways; 200 to
learn from, 64 to validate with, 64 to test on, parted for each seed.

- *Horses*: those of `horses.py`.
- *Figures*: ellipses (`ellipse_figures`, level 1) cut out of one picture of scikit-image's and laid on another, at
  random places: of `chelsea` and `astronaut`, on `coffee` and `rocket`.
- *Flowers*: figures of three to five petals, sandy with stripes, on backgrounds and blots of any colour, in noise.

Colours say something by themselves, which the classifier alone loses, too. Of flowers, it is mostly that there is
little blue, of which a mean shows more than luminance does. Grey pictures lack no feature.

- *Colour*: as they are, uint8. With a fourth number, 255, or times 257 as uint16, results are the same.
- *Grey*: luminance (scikit-image's `rgb2gray`), uint8, of shape `(N, H, W)`. As floats from 0 to 1, or as three equal
  colours, results are the same.
- *Grey, mean*: the mean of the three colours, which is not what filters see of colour pictures.
- *Grey, one number*: the same as other integers, which the model takes for numbers that mean anything: one feature for
  each pixel, and the same penalty everywhere. This is the control: what grey pictures had before they had all features.

- *Colour, no patterns*: the control of patterns, the same model with penalties and a bias for each pixel alone. The
  scores differ by 0.003 either way, less than their standard deviations over seeds: on these sets patterns gain
  nothing that can be measured, and what the field has above the classifier, it has from the rest.

*Score*: intersection over union of the foreground, mean over test pictures; ± is the standard deviation over seeds.
*Loss*: mean logistic loss of the test pixels. *Error*: expected calibration error, with 15 bins of the same width.
*Classifier*: log-odds of pixels by themselves, with the same features. *Field*: mean-field log-odds, as they are.
*Calibrated*: `predict_proba`, these divided by the temperature that validation pictures say: the loss is below that of
the strongest control, the classifier, in all rows, but one temperature does not make every bin right, and the
calibration error is larger than the classifier's in 8 of the 12 with patterns.
"""
SETTINGS = {"n_patterns": 16, "max_iter": 150}
WITHOUT = "colour, no patterns"
KINDS = {
    "colour": lambda images: images,
    "grey": lambda images: luminance(images).astype(np.uint8),
    "grey, mean": lambda images: images.mean(-1).round().astype(np.uint8),
    "grey, one number": lambda images: luminance(images).astype(int),
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


def luminance(images):
    """Luminance of colour pictures, whole numbers from 0 to 255."""
    return (255 * skimage.color.rgb2gray(images)).round()


def flowers(seed, number=328, size=32):
    """Colour pictures in which colour says little of the figure, and their masks."""
    random, images, masks = np.random.default_rng(seed), np.zeros((number, size, size, 3)), []
    angles, columns = np.linspace(0, 2 * np.pi, 80, endpoint=False), np.arange(size)[None, :, None]
    for image in images:
        image += 0.2 + 0.6 * random.random(3) + 1.25 * gaussian_filter(random.normal(size=image.shape), (3, 3, 0))
        for row, column in random.integers(size, size=(6, 2)):
            radii, turn = random.integers(2, size // 6, 2), np.pi * random.random()
            blot = skimage.draw.ellipse(row, column, *radii, shape=(size, size), rotation=turn)
            image[blot] = 0.6 * image[blot] + 0.4 * random.random(3)
        petals = 1 + 0.35 * np.cos(random.integers(3, 6) * angles + 2 * np.pi * random.random())
        radius = size * (0.22 + 0.1 * random.random()) * petals
        row, column = size / 2 + random.normal(0, size / 14, 2)
        inside = row + radius * np.sin(angles), column + 1.25 * radius * np.cos(angles)
        mask = skimage.draw.polygon2mask((size, size), np.stack(inside, -1))
        stripes = 0.12 * np.sin(columns * (0.9 + 0.3 * random.random()) + 2 * np.pi * random.random())
        grain = 0.15 * gaussian_filter(random.normal(size=image.shape), (1, 1, 0))
        petal = np.clip([0.75, 0.55, 0.25] + random.normal(0, 0.12, 3), 0, 1) + stripes + grain
        image[mask] = 0.75 * petal[mask] + 0.25 * image[mask]
        image[:] = gaussian_filter(image, (0.6, 0.6, 0)) + 0.06 * random.normal(size=image.shape)
        masks.append(mask)
    return (255 * np.clip(images, 0, 1)).astype(np.uint8), np.stack(masks).astype(np.uint8)


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
        (X, y), (X_val, y_val) = ((images[rows], masks[rows]) for rows in split[:2])
        model.fit(X, y, X_val=X_val, y_val=y_val)
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
        sets["flowers"] = flowers(options.seed, 30)
    else:
        sets = {"horses": load_horses(), "figures": figures(options.seed), "flowers": flowers(options.seed)}
    settings = {"n_patterns": 2, "max_iter": 2} if options.quick else SETTINGS
    seeds = range(options.seed, options.seed + (1 if options.quick else options.seeds))
    found = {}
    for (data, (images, masks)), (name, kind) in itertools.product(sets.items(), KINDS.items()):
        found[data, name] = np.array([trial(kind(images), masks, seed, settings) for seed in seeds])
        report.progress(f"{data}, {name}: {found[data, name].mean(0).round(4).tolist()}")
    for data, (images, masks) in sets.items():
        plain = [trial(images, masks, seed, {**settings, "n_patterns": 0}) for seed in seeds]
        found[data, WITHOUT] = np.array(plain)
        report.progress(f"{data}, {WITHOUT}: {found[data, WITHOUT].mean(0).round(4).tolist()}")
        gain = (found[data, "colour"] - found[data, WITHOUT])[:, 0].mean()
        report.claim(f"{data}: score of patterns above none, in colour", "> 0", f"{gain:+.3f}", gain > 0)
        colour, grey, mean, control = (found[data, name][:, 0].mean() for name in KINDS)
        for name, score in {"grey pictures": grey, "means of colours": mean}.items():
            below = colour - score
            name = f"{data}: score of {name} below that of colour"
            report.claim(name, f"<= {LARGEST_GAP}", f"{below:.3f}", below <= LARGEST_GAP)
        above = grey - control
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
