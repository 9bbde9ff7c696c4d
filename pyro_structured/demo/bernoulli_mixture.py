"""Mixtures of independent Bernoullis, fitted by expectation maximisation."""

__all__ = ["BernoulliMixture"]

import torch
from torch import Tensor


class BernoulliMixture:
    """A mixture of independent pixels; with one component, simply independent pixels.

    :param Tensor weights: Shape ``(components,)``.
    :param Tensor probs: Shape ``(components, pixels)``, strictly between 0 and 1.
    """

    def __init__(self, weights: Tensor, probs: Tensor) -> None:
        self.weights = weights
        self.probs = probs

    @classmethod
    def fit(
        cls, images: Tensor, num_components: int, pseudocount: float, restarts: int, steps: int = 200
    ) -> list["BernoulliMixture"]:
        """Fits from random starts at the same time.

        :param Tensor images: Zeros and ones, shape ``(number, pixels)``.
        :param int num_components: Number of components.
        :param float pseudocount: Images, half of them on in every pixel, added to every component.
        :param int restarts: Number of starts. Every component starts at an image of its own.
        :param int steps: Number of steps of expectation maximisation.
        :return: The different mixtures that were reached, the likeliest first.
        """
        starts = torch.stack([images[torch.randperm(len(images))[:num_components]] for _ in range(restarts)])
        mixture = cls(torch.full(starts.shape[:2], 1 / num_components, dtype=images.dtype), 0.5 * starts + 0.25)
        for _ in range(steps):
            assigned = mixture.posterior(images)
            sizes = assigned.sum(-2)
            on = assigned.mT @ images
            probs = (on + pseudocount / 2) / (sizes.unsqueeze(-1) + pseudocount)
            mixture = cls((sizes + 1) / (len(images) + num_components), probs)
        score = mixture.log_prob(images).mean(-1)
        order = score.argsort(descending=True).tolist()
        # Starts that end at the same optimum are one mixture, up to the order of its components.
        distinct = [i for n, i in enumerate(order) if n == 0 or score[order[n - 1]] - score[i] > 1e-4]
        return [cls(mixture.weights[i], mixture.probs[i]) for i in distinct]

    def joint_log_prob(self, images: Tensor) -> Tensor:
        """Log-probability of every image together with every component, shape ``(..., number, components)``."""
        on, off = self.probs.log(), torch.log1p(-self.probs)
        return images @ (on - off).mT + (off.sum(-1) + self.weights.log()).unsqueeze(-2)

    def log_prob(self, images: Tensor) -> Tensor:
        """Log-probability of every image."""
        return self.joint_log_prob(images).logsumexp(-1)

    def posterior(self, images: Tensor) -> Tensor:
        """Probabilities of the components for every image."""
        return self.joint_log_prob(images).softmax(-1)
