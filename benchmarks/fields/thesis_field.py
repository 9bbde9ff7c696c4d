"""The field of horses of Li (2013): a restricted Boltzmann machine of masks on top of a field of pairs."""

import numpy as np
import pyro
import torch
from pyro.optim import SGD

from benchmarks.fields.horse_splits import overlaps
from pyro_structured.distributions import RBM, PatternCRF
from pyro_structured.inference import ContrastiveDivergence
from pyro_structured.models import edge_features
from pyro_structured.structures import Grid

HIDDEN, BATCH, STEPS = 32, 50, 1000
# Scales of the machine's weights and biases, of log-odds and of penalties, and biases, that are tried.
TRIED = ((0.25, 0.5, 0.7, 1.0), (0.5, 0.75, 1.0), (0.25, 0.5, 1.0), tuple(np.linspace(-1.5, 1.5, 11)))


def given_fields(pairs, crossed, images):
    """Fields of pairs for each part of the pictures.

    :param pairs: ``SegmentationCRF`` without patterns.
    :param crossed: Log-odds of the training pictures by classifiers that have not seen them.
    :param images: Pictures by their parts.
    """
    found = {name: pairs.to_pyro(each) for name, each in images.items()}
    with torch.no_grad():
        edges = torch.from_numpy(edge_features(images["training"], pairs.field_.grid))
        found["training"] = pairs.field_(torch.from_numpy(crossed), edges)
    return found


def machine(masks, steps=STEPS):
    """Weights, visible and hidden biases of an RBM of masks, by PCD-1 with steps of .1."""
    rows, shape = masks.flatten(1), masks.shape[1:]
    mean = (rows.sum(0) + 0.5) / (len(rows) + 1)

    def model():
        with pyro.plate("masks", len(rows), subsample_size=min(BATCH, len(rows))) as chosen:
            weights = pyro.param("weights", lambda: 0.01 * torch.randn(HIDDEN, rows.shape[1]))
            visible = pyro.param("visible", mean.logit())
            pyro.sample("y", RBM(weights, visible, pyro.param("hidden", torch.zeros(HIDDEN))), obs=rows[chosen])

    learner = ContrastiveDivergence(model, lambda: None, SGD({"lr": 0.1 / len(rows)}), persistent=True)
    for _ in range(steps):
        learner.step()
    weights, visible, hidden = (pyro.param(name).detach() for name in ("weights", "visible", "hidden"))
    return weights.unflatten(-1, shape), visible.unflatten(-1, shape), hidden


def chosen_scales(given, masks, learned):
    """Scales of the best score of some pictures, chosen one after the other, twice."""
    scales, best = [0.5, 1.0, 0.5, 0.0], -1.0
    for place in 2 * list(range(len(TRIED))):
        for value in TRIED[place]:
            changed = [*scales[:place], value, *scales[place + 1 :]]
            score = overlaps(ThesisField(*learned, changed).labels(given), masks).mean()
            if score > best:
                best, scales = score, changed
    return scales


class ThesisField(torch.nn.Module):
    """An RBM on top of a field of pairs."""

    def __init__(self, weights, visible, hidden, scales):
        super().__init__()
        scale, self.odds_scale, self.penalty_scale, self.shift = scales
        self.weights = torch.nn.Parameter(scale * weights)
        self.visible = torch.nn.Parameter(scale * visible)
        self.hidden = torch.nn.Parameter(scale * hidden)

    def forward(self, odds, penalties):
        grid = Grid(*self.visible.shape)
        unary = self.odds_scale * odds + self.visible + self.shift
        return PatternCRF(unary, self.penalty_scale * penalties, self.weights, self.hidden, grid)

    @torch.no_grad()
    def labels(self, given):
        return self(given.unary_logits, given.pairwise).map("em", num_switches=0)[0].numpy()


def observed_masks(field, given, masks):
    """A model of masks given pictures, on minibatches, for a learner."""

    def model():
        learned = pyro.module("field", field)
        with pyro.plate("pictures", len(masks), subsample_size=min(BATCH, len(masks))) as rows:
            pyro.sample("y", learned(given.unary_logits[rows], given.pairwise[rows]), obs=masks[rows])

    return model
