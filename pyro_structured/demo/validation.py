"""The search that led to the settings of the demonstration."""

__all__ = ["print_validation"]

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_structured.demo.chow_liu_tree import ChowLiuTree
from pyro_structured.demo.comparison import DensityModel, fit_bernoulli_mixtures, fit_independent
from pyro_structured.demo.learning import fit_mixture, fit_single
from pyro_structured.demo.settings import Settings

NUM_FOLDS = 4
Change = dict[str, Any]

TREE_VARIANTS: tuple[Change, ...] = ({"tree_pseudocount": 1.0}, {"tree_pseudocount": 4.0})
PIXEL_VARIANTS: tuple[Change, ...] = ({"pseudocount": 0.2}, {"pseudocount": 1.0}, {"pseudocount": 2.0})
SINGLE_VARIANTS: tuple[Change, ...] = (
    {"region_penalty": 0.5},
    {"region_penalty": 3.0},
    {"mean_scale": 10.0},
    {"single_curvature": 4.0},
    {"single_curvature": 16.0},
    {"learning_rate": 0.05},
    {"learning_rate": 0.2},
    {"single_steps": 300},
)
MIXTURE_VARIANTS: tuple[Change, ...] = (
    {"region_penalty": 0.5},
    {"region_penalty": 3.0},
    {"mean_scale": 10.0},
    {"own_scale": 1.0},
    {"own_scale": 4.0},
    {"curvature": 1.0},
    {"curvature": 4.0},
    {"learning_rate": 0.05},
    {"learning_rate": 0.2},
    {"steps": 100},
    {"num_starts": 1},
)


def print_validation(images: Tensor, settings: Settings) -> None:
    """Prints mean log-likelihoods of folds of the training images that are left out in turn.

    :param Tensor images: Training images.
    :param Settings settings: Settings of the demonstration; every other line of the table changes one choice.
    """
    print(
        f"Nats per image, mean over {NUM_FOLDS} folds of the training images. Every line changes one choice.",
        flush=True,
    )
    folds = [images[torch.arange(len(images)) % NUM_FOLDS == fold] for fold in range(NUM_FOLDS)]
    splits = [(torch.cat(folds[:i] + folds[i + 1 :]), folds[i]) for i in range(NUM_FOLDS)]
    starts = [fit_bernoulli_mixtures(data, settings) for data, _ in splits]
    fits: dict[str, Callable[[int, Tensor, Settings], DensityModel]] = {
        "independent pixels": lambda i, data, chosen: fit_independent(data, chosen),
        "Chow-Liu tree": lambda i, data, chosen: ChowLiuTree(data, chosen.tree_pseudocount),
        "mixture, independent pixels": lambda i, data, chosen: fit_bernoulli_mixtures(data, chosen)[0],
        "one RecursiveCardinality": lambda i, data, chosen: fit_single(data, chosen),
        "mixture of RecursiveCardinality": lambda i, data, chosen: fit_mixture(
            data, starts[i][: chosen.num_starts], chosen
        ),
    }
    variants = (PIXEL_VARIANTS, TREE_VARIANTS, PIXEL_VARIANTS, SINGLE_VARIANTS, MIXTURE_VARIANTS)
    for (title, fit), changes in zip(fits.items(), variants, strict=True):
        print(title)
        for change in ({}, *changes):
            chosen = replace(settings, **change)
            scores = [float(fit(i, a, chosen).log_prob(b).mean()) for i, (a, b) in enumerate(splits)]
            label = ", ".join(f"{name}={value}" for name, value in change.items()) or "as used"
            print(f"    {label:28}{sum(scores) / NUM_FOLDS:8.3f}", flush=True)
