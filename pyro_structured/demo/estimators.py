"""Estimators of the package, fitted to the same images."""

__all__ = ["EstimatedDensity", "fit_estimators"]

import warnings
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from pyro_structured.demo.settings import Settings
from pyro_structured.models import ExchangeableSPN, JunctionTreeMixture, ThinJunctionTree


class EstimatedDensity:
    """A density of images by an estimator with scikit-learn's interface.

    :param estimator: Estimator with ``fit`` and ``score_samples``.
    :param Tensor images: Training images, zeros and ones of shape ``(number, pixels)``.
    """

    def __init__(self, estimator: Any, images: Tensor) -> None:
        with warnings.catch_warnings():
            # So few iterations are enough for a comparison.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.estimator = estimator.fit(images.numpy())

    def log_prob(self, images: Tensor) -> Tensor:
        """Log-probability of every image."""
        return torch.from_numpy(self.estimator.score_samples(images.numpy()))


def fit_estimators(images: Tensor, settings: Settings) -> dict[str, EstimatedDensity]:
    """The estimators by their names, those with fewer parameters first.

    :param Tensor images: Training images, zeros and ones of shape ``(number, pixels)``.
    :param Settings settings: Settings with the number of iterations.
    """
    number, steps = settings.num_components, settings.estimator_steps
    estimators = {
        "ThinJunctionTree, treewidth 2": ThinJunctionTree(treewidth=2, random_state=0),
        "ThinJunctionTree, treewidth 3": ThinJunctionTree(treewidth=3, random_state=0),
        f"JunctionTreeMixture of {number}": JunctionTreeMixture(n_components=number, max_iter=steps, random_state=0),
        # One region of all pixels makes a network a mixture of its 20 states.
        "ExchangeableSPN, 4 networks": ExchangeableSPN(
            n_networks=4, n_states=20, max_region_size=images.shape[-1], max_iter=steps, random_state=0
        ),
    }
    return {name: EstimatedDensity(estimator, images) for name, estimator in estimators.items()}
