"""Fields that are learned from figures of ellipses in noise, at several sizes."""

import contextlib
import io
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.fields.known_classifier import KnownClassifier
from pyro_structured.datasets import ellipse_figures, noisy_observations
from pyro_structured.distributions import PatternCRF
from pyro_structured.models import SegmentationCRF

# Figures to learn from, to choose by, and to test on.
SIZES = (500, 200, 100)


class EllipseData(NamedTuple):
    """Masks and noisy images, each in the three sets."""

    masks: list[np.ndarray]
    images: list[np.ndarray]


def ellipse_data(level, seed, pool=1, sizes=SIZES):
    """Masks of 32 x 32 pixels, or smaller ones, of squares of which half or more is foreground."""
    masks = ellipse_figures(level, sum(sizes), seed=seed)
    shape = (len(masks), 32 // pool, pool, 32 // pool, pool)
    masks = (masks.reshape(shape).mean((2, 4)) >= 0.5).astype(np.uint8)
    parts = np.split(masks, np.cumsum(sizes)[:-1])
    discs = max(1, 10 // pool**2)
    images = [noisy_observations(part, num_discs=discs, seed=100 * seed + p) for p, part in enumerate(parts)]
    KnownClassifier.known.clear()
    return EllipseData(parts, images)


def learned_fields(data, seed, number, quick=False, **settings):
    """Fields of the test images in double precision, and what the model scores on them."""
    steps = 2 if quick else 500
    model = SegmentationCRF(
        n_patterns=number, classifier=KnownClassifier(), random_state=seed, max_iter=steps, **settings
    )
    with contextlib.redirect_stderr(io.StringIO()):
        model.fit(data.images[0], data.masks[0], X_val=data.images[1], y_val=data.masks[1])
    d = model.to_pyro(data.images[2])
    parts = (d.unary_logits, d.pairwise, d.weights, d.pattern_logits)
    doubled = [part.detach().double() for part in parts]
    return PatternCRF(*doubled, d.grid, model.composition), model.score(data.images[2], data.masks[2])


def single(d, row, composition="sum"):
    """Field of a single row."""
    size = torch.Size((len(d.unary_logits),))
    picked = [part[row] if part.shape[:1] == size and part.dim() > least else part for part, least in _parts(d)]
    return PatternCRF(*picked, d.grid, composition)


def _parts(d):
    """Parameters, and how many axes they have without a batch."""
    return zip((d.unary_logits, d.pairwise, d.weights, d.pattern_logits), (2, 1, 3, 1), strict=True)
