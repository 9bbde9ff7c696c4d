"""Data of the demonstration's picture."""

__all__ = ["Gallery"]

from dataclasses import dataclass

from torch import Tensor

from pyro_structured.demo.cardinality_mixture import CardinalityMixture


@dataclass(frozen=True)
class Gallery:
    """Images, samples, marginals and completions to draw.

    :param Tensor data: Training images, as all others of shape ``(number, 64)``; the first are drawn.
    :param Tensor single_samples: Samples of the single model.
    :param Tensor mixture_samples: Samples of the mixture.
    :param Tensor component_marginals: Probabilities that a pixel is on, for every component of the mixture.
    :param Tensor truth: Images to complete.
    :param Tensor observed: Whether pixels are observed, booleans of shape ``(64,)``.
    :param Tensor completed_marginals: Probabilities that a pixel of ``truth`` is on, given the observed ones.
    :param Tensor completed_samples: Completions of ``truth``, shape ``(samples, number, 64)``.
    :param CardinalityMixture single: The single model, whose regions are drawn.
    """

    data: Tensor
    single_samples: Tensor
    mixture_samples: Tensor
    component_marginals: Tensor
    truth: Tensor
    observed: Tensor
    completed_marginals: Tensor
    completed_samples: Tensor
    single: CardinalityMixture
