"""Two classes of figures that hide each other, in noise: what shapes for each class add to pairs of several labels."""

import itertools
import time

import numpy as np
import torch
from sklearn.cluster import KMeans

from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import ellipse_figures
from pyro_structured.distributions import CategoricalPatternCRF
from pyro_structured.structures import Grid

TEXT = """
Pictures of 32 x 32 pixels with three labels: background, a standing figure of ellipses (`ellipse_figures`), and a lying
one, each on the left, in the middle or on the right (a shift of 7 pixels, around the borders), and one or the other in
front. Each label has a colour, the corners of a triangle with sides of length 1; the noise has a standard deviation of
.8, and twelve discs of 5 x 5 pixels are off by one side of the triangle, in directions of their own. 400 pictures to
learn from, 60 to choose by, 200 to test on. Scores are intersections over union of the two figures, means over figures,
pictures and seeds; ± is the standard error of the mean over seeds.

*Pixels*: the nearest colour. All others are fields with `map("em")` (`CategoricalPatternCRF`). *Pairs*: one penalty,
and logarithms of the labels' shares. *Places*: pairs, and logarithms of the labels' shares in each pixel. *Shapes of
classes*: places, and 16 patterns for each figure, with weights for its label only, and a table that has exactly two of
the 32 on: clusters of masks (k-means), by what their log-odds differ from those of all masks. *Whole scenes*: places,
and 32 patterns for all labels, of which one is on. Penalties, and by how much shares and weights are scaled, are chosen
by the score on the pictures to choose by. Time: processor seconds of `map` for a test picture. Scenes, noise and the
options to choose from were settled on seed 7, with test scores in view.
"""
GRID, COLOURS = Grid(32, 32), torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]])
NOISE, DISCS, SHIFT, LEVEL = 0.8, 12, 7, 0
PENALTIES, SCALES = (0.2, 0.4, 0.7, 1.0, 1.5), (0.1, 0.2, 0.4, 0.8)
NUM_SHAPES, NUM_SCENES, SMOOTHING = 16, 32, 0.02
WANTED = {"pairs": 0.1, "places": 0.05}


def scenes(number, seed):
    """Labels, and colours that are seen."""
    random = np.random.default_rng(seed)
    standing, lying = (ellipse_figures(LEVEL, number, seed=2 * seed + turns) for turns in (0, 1))
    standing, lying = (
        np.stack([np.roll(mask, SHIFT * random.integers(-1, 2), 1) for mask in masks])
        for masks in (standing, np.rot90(lying, 1, (1, 2)))
    )
    first = (random.random(number) < 0.5)[:, None, None]
    labels = np.where(first, np.where(standing, 1, 2 * lying), np.where(lying, 2, standing))
    pictures = COLOURS.numpy()[labels] + NOISE * random.normal(size=(*labels.shape, 2))
    for picture in pictures:
        for y, x in random.integers(0, 28, size=(DISCS, 2)):
            angle = 2 * np.pi * random.random()
            picture[y : y + 5, x : x + 5] += np.cos(angle), np.sin(angle)
    return torch.from_numpy(labels).long(), torch.from_numpy(pictures).float()


def colour_logits(pictures):
    return -(pictures.unsqueeze(-2) - COLOURS).square().sum(-1) / (2 * NOISE**2)


def score(found, labels):
    """Mean intersection over union of the figures."""
    each = []
    for label in (1, 2):
        one, other = found == label, labels == label
        each.append((one & other).sum((1, 2)) / (one | other).sum((1, 2)).clamp(min=1))
    return float(torch.stack(each).mean())


def shares(labels):
    """Shares of the labels in each pixel, never 0."""
    return (1 - SMOOTHING) * torch.nn.functional.one_hot(labels, 3).float().mean(0) + SMOOTHING / 3


def clusters(vectors, number, seed):
    """Owners of the rows."""
    found = KMeans(number, n_init=2, random_state=seed).fit(vectors.flatten(1).numpy())
    return torch.from_numpy(found.labels_)


def smoothed(masks):
    """Mean masks, never 0 or 1."""
    return (1 - SMOOTHING) * masks.mean(0) + SMOOTHING / 2


def class_shapes(labels, number, seed):
    """Weights of patterns for one label each, and their biases: what clusters differ by from all masks."""
    weights, biases = [], []
    for label in (1, 2):
        masks = (labels == label).float()
        owners, overall = clusters(masks, number, seed), smoothed(masks)
        for cluster in range(number):
            mean = smoothed(masks[owners == cluster])
            weights.append((mean.logit() - overall.logit()).unsqueeze(-1) * torch.eye(3)[label])
            odds = ((1 - mean) / (1 - overall)).log().sum()
            biases.append((owners == cluster).float().mean().log() + odds)
    return torch.stack(weights), torch.stack(biases)


def whole_scenes(labels, number, seed):
    """Weights of patterns for all labels, and their biases."""
    owners = clusters(torch.nn.functional.one_hot(labels, 3).float(), number, seed)
    weights = [shares(labels[owners == cluster]).log() - shares(labels).log() for cluster in range(number)]
    return torch.stack(weights), torch.stack([(owners == cluster).float().mean().log() for cluster in range(number)])


def fields(labels, seed, quick):
    """Functions of log-weights of colours, a penalty and a scale."""
    number = 2 if quick else NUM_SHAPES
    none = torch.zeros(0, 32, 32, 3), torch.zeros(0)
    overall, local = (shares(labels).mean((0, 1)).log(), shares(labels).log())
    shapes, scenes_of = class_shapes(labels, number, seed), whole_scenes(labels, 2 * number, seed)
    two = torch.full((2 * number + 1,), -torch.inf)
    two[2] = 0.0

    def field(unary, penalty, patterns, composition="sum"):
        return CategoricalPatternCRF(unary, torch.full((GRID.num_edges,), penalty), *patterns, GRID, composition)

    def scaled(patterns, scale):
        return tuple(scale * part for part in patterns)

    return {
        "pairs": lambda unary, penalty, scale: field(unary + scale * overall, penalty, none),
        "places": lambda unary, penalty, scale: field(unary + scale * local, penalty, none),
        "shapes of classes": lambda unary, penalty, scale: field(
            unary + scale * local, penalty, scaled(shapes, scale), two
        ),
        "whole scenes": lambda unary, penalty, scale: field(
            unary + scale * local, penalty, scaled(scenes_of, scale), "min"
        ),
    }


def trial(seed, quick):
    """Scores of all models, seconds of a picture, and a few test pictures with what was found."""
    sizes = (40, 4, 4) if quick else (400, 60, 200)
    (labels, _), (chosen_by, validation), (truth, test) = (
        scenes(size, 10 * seed + place) for place, size in enumerate(sizes)
    )
    found, seconds = {"pixels": colour_logits(test).argmax(-1)}, {}
    for name, make in fields(labels, seed, quick).items():
        options = list(itertools.product(PENALTIES[1:2] if quick else PENALTIES, SCALES[:1] if quick else SCALES))
        unary = colour_logits(validation)
        best = max(options, key=lambda option: score(make(unary, *option).map()[0], chosen_by))
        began = time.process_time()
        found[name] = make(colour_logits(test), *best).map()[0]
        seconds[name] = (time.process_time() - began) / len(test)
        Report.progress(f"seed {seed}, {name}: penalty and scale {best}, {score(found[name], truth):.3f}")
    scores = {name: score(each, truth) for name, each in found.items()}
    return scores, seconds, {"colours": test[:4], "truth": truth[:4], **{n: each[:4] for n, each in found.items()}}


def mean_and_error(values):
    values = np.asarray(values)
    return values.mean(), values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0


def shown(values, sign=""):
    mean, error = mean_and_error(values)
    return f"{mean:{sign}.3f} ± {error:.3f}"


def measure(report, options):
    trials = [trial(seed, options.quick) for seed in range(options.seed, options.seed + options.seeds)]
    scores = {name: np.array([found[0][name] for found in trials]) for name in trials[0][0]}
    rows = []
    for name, each in scores.items():
        gains = [shown(each - scores[other], "+") if name != other else "–" for other in ("pairs", "places")]
        times = [found[1][name] for found in trials if name in found[1]]
        rows.append([name, shown(each), *gains, duration(np.median(times) if times else None)])
    report.table("Scores", ["model", "score", "over pairs", "over places", "time of a picture"], rows)
    for other, wanted in WANTED.items():
        gain = scores["shapes of classes"] - scores[other]
        mean, error = mean_and_error(gain)
        met = mean >= wanted and mean > 2 * error
        report.claim(f"shapes of classes over {other}", f">= {wanted}, beyond 2 s.e.", shown(gain, "+"), met)
    if options.write:
        draw(report.picture("label_figures", "Pictures, labels, and what was found"), trials[0][2])


def draw(path, pictures):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(4, len(pictures), figsize=(1.5 * len(pictures), 6.2))
    for column, (name, each) in enumerate(pictures.items()):
        for row, picture in enumerate(each):
            if name == "colours":
                # Probabilities of the colours, as red, green and blue.
                axes[row, column].imshow(colour_logits(picture).softmax(-1))
            else:
                axes[row, column].imshow(torch.eye(3)[picture])
            axes[row, column].axis("off")
        axes[0, column].set_title(name, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main():
    options = arguments(__doc__, seeds=(5, "number of data sets"))
    options.seeds = 1 if options.quick else options.seeds
    report = Report("Figures of two classes in noise", TEXT, options)
    measure(report, options)
    report.finish()


if __name__ == "__main__":
    main()
