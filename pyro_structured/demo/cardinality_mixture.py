"""Mixtures of RecursiveCardinality distributions."""

__all__ = ["CardinalityMixture"]

import torch
from pyro.distributions import Categorical
from torch import Tensor

from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets


class CardinalityMixture:
    """A learned mixture of RecursiveCardinality distributions with the same regions; a single one has one component.

    :param Tensor weights: Probabilities of the components, shape ``(components,)``.
    :param Tensor logits: Log-odds, shape ``(components, pixels)``.
    :param Tensor count_logits: Potentials, shape ``(components, regions.table_size)``.
    :param NestedSubsets regions: Subsets of the pixels.
    """

    def __init__(self, weights: Tensor, logits: Tensor, count_logits: Tensor, regions: NestedSubsets) -> None:
        self.weights = weights
        self.components = RecursiveCardinality(logits, count_logits, regions)

    def log_prob(self, images: Tensor) -> Tensor:
        """Log-probability of every image."""
        return (self.weights.log() + self.components.log_prob(images.unsqueeze(-2))).logsumexp(-1)

    def marginal_log_prob(self, images: Tensor, observed: Tensor) -> Tensor:
        """Log-probability of the observed pixels of every image."""
        return self._joint_log_prob(images, observed).logsumexp(-1)

    def sample(self, number: int) -> Tensor:
        """Draws images."""
        component = Categorical(self.weights).sample(torch.Size([number]))
        return _pick(self.components.sample(torch.Size([number])), component)

    def complete(self, images: Tensor, observed: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Fills in the pixels that are not observed, exactly.

        :return: Probabilities of all pixels, shape ``(images, pixels)``, and ``(number, images, pixels)`` samples.
        """
        posterior = self._joint_log_prob(images, observed).softmax(-1)
        given = self.components.condition(images.unsqueeze(-2), observed)
        marginals = (posterior.unsqueeze(-1) * given.marginals).sum(-2)
        component = Categorical(posterior).sample(torch.Size([number]))
        return marginals, _pick(given.sample(torch.Size([number])), component)

    def _joint_log_prob(self, images: Tensor, observed: Tensor) -> Tensor:
        return self.weights.log() + self.components.marginal_log_prob(images.unsqueeze(-2), observed)


def _pick(samples: Tensor, component: Tensor) -> Tensor:
    """Keeps one component's sample, from shape ``(..., components, pixels)``."""
    return samples.take_along_dim(component[..., None, None], -2).squeeze(-2)
