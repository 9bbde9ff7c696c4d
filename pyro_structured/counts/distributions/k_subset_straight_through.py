"""Subsets of a fixed size with biased gradients of samples."""

__all__ = ["KSubsetStraightThrough"]

from typing import Any

from torch import Tensor

from pyro_structured.counts.distributions.k_subset import KSubset
from pyro_structured.counts.distributions.recursive_cardinality_straight_through import straight_through


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
