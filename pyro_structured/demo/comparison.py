"""All models of the demonstration, learned from the same images."""

__all__ = ["Comparison", "DensityModel", "fit_bernoulli_mixtures", "fit_independent"]

from typing import Protocol

import torch
from torch import Tensor

from pyro_structured.demo.bernoulli_mixture import BernoulliMixture
from pyro_structured.demo.chow_liu_tree import ChowLiuTree
from pyro_structured.demo.learning import fit_mixture, fit_single
from pyro_structured.demo.settings import Settings


class DensityModel(Protocol):
    """Interface of all models."""

    def log_prob(self, images: Tensor) -> Tensor:
        """Log-probability of every image."""


class Comparison:
    """Two models with counts, and three without.

    :param Tensor images: Training images, zeros and ones of shape ``(number, pixels)``.
    :param Settings settings: Settings of the learners.
    """

    def __init__(self, images: Tensor, settings: Settings) -> None:
        mixtures = fit_bernoulli_mixtures(images, settings)
        self.independent = fit_independent(images, settings)
        self.tree = ChowLiuTree(images, settings.tree_pseudocount)
        self.bernoulli_mixture = mixtures[0]
        self.single = fit_single(images, settings)
        self.mixture = fit_mixture(images, mixtures[: settings.num_starts], settings)

    def models(self) -> dict[str, DensityModel]:
        """The models by their names."""
        number = len(self.mixture.weights)
        return {
            "independent pixels": self.independent,
            "Chow-Liu tree": self.tree,
            f"mixture of {number}, independent pixels": self.bernoulli_mixture,
            "one RecursiveCardinality": self.single,
            f"mixture of {number} RecursiveCardinality": self.mixture,
        }


def fit_independent(images: Tensor, settings: Settings) -> BernoulliMixture:
    """Learns independent pixels."""
    return BernoulliMixture.fit(images, 1, settings.pseudocount, restarts=1)[0]


def fit_bernoulli_mixtures(images: Tensor, settings: Settings) -> list[BernoulliMixture]:
    """Learns mixtures of independent pixels from many starts; the best one is the first."""
    torch.manual_seed(0)
    return BernoulliMixture.fit(images, settings.num_components, settings.pseudocount, settings.restarts)
