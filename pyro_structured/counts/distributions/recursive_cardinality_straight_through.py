"""Nested cardinality potentials with biased gradients of samples."""

__all__ = ["KSubsetStraightThrough", "RecursiveCardinalityStraightThrough"]

from typing import Any

import torch
from torch import Tensor

from pyro_structured.counts.distributions.k_subset import KSubset
from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality


class RecursiveCardinalityStraightThrough(RecursiveCardinality):
    r"""A :class:`RecursiveCardinality` whose samples carry the gradient of the marginals.

    ``rsample`` returns exact samples whose derivative is that of :attr:`marginals`, as torch's
    :class:`~torch.distributions.OneHotCategoricalStraightThrough` does. The gradient estimate is **biased**, and
    cheap and of low variance; without bias, use :class:`RecursiveCardinality` (score function). Parameters, cost and
    references are the same; the idea is that of Bengio, Leonard, Courville (2013), *Estimating or propagating
    gradients through stochastic neurons for conditional computation*.

    In a guide, use ``TraceMeanField_ELBO`` and a prior of the same family or ``Bernoulli(...).to_event(1)``: their
    divergence is exact. With ``Trace_ELBO`` the entropy of the guide would be lost, and it would collapse, because
    ``log_prob`` has no derivative with respect to the value; nor has ``subsets.counts(value)``. Do not enumerate such a
    site: Pyro takes it for a reparameterised one.

    Example::

        >>> logits = torch.zeros(3, requires_grad=True)
        >>> RecursiveCardinalityStraightThrough(logits, torch.zeros(4)).rsample().sum().backward()
        >>> logits.grad
        tensor([0.2500, 0.2500, 0.2500])
    """

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples with biased derivatives, shape ``sample_shape + batch_shape + (D,)``."""
        return straight_through(self, sample_shape)


def straight_through(distribution: RecursiveCardinality, sample_shape: Any) -> Tensor:
    """Samples of a distribution that carry the gradient of its marginals."""
    marginals = distribution.marginals
    return distribution.sample(torch.Size(sample_shape)) + (marginals - marginals.detach())


class KSubsetStraightThrough(KSubset):
    r"""A :class:`KSubset` whose samples carry the gradient of the marginals: **biased**, cheap, of low variance.

    Parameters as for :class:`KSubset`; see :class:`RecursiveCardinalityStraightThrough`. With exact marginals, this
    is the estimator of Ahmed, Zeng, Niepert, Van den Broeck (2023): *SIMPLE: a gradient estimator for k-subset
    sampling*. ICLR.

    Example::

        >>> import torch
        >>> logits = torch.zeros(2, requires_grad=True)
        >>> KSubsetStraightThrough(logits, k=1).rsample()[0].backward()
        >>> logits.grad
        tensor([ 0.2500, -0.2500])
    """

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples with biased derivatives, shape ``sample_shape + batch_shape + (D,)``."""
        return straight_through(self, sample_shape)
