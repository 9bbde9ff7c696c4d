"""All values of a distribution with their log-probabilities."""

__all__ = ["SupportTable", "event_rank", "flat_events"]

from typing import Any, NamedTuple

import torch
from torch import Tensor


def event_rank(distribution: Any) -> int:
    """Number of axes of a single value.

    Example::

        >>> import pyro.distributions as dist
        >>> event_rank(dist.Normal(torch.zeros(3), 1.0).to_event(1))
        1
    """
    return len(distribution.event_shape)


def flat_events(distribution: Any, value: Tensor) -> Tensor:
    """Gives every value exactly one axis, as float64; univariate values get one of length 1.

    Example::

        >>> import pyro.distributions as dist
        >>> flat_events(dist.Normal(0.0, 1.0), torch.zeros(3)).shape
        torch.Size([3, 1])
    """
    batch = value.shape[: value.dim() - event_rank(distribution)]
    return value.reshape(batch + (-1,)).double()


class SupportTable(NamedTuple):
    """``values``, shape ``(n,) + (1,) * batch rank + event_shape``, and their ``log_probs``, ``(n,) + batch_shape``.

    Example::

        >>> import pyro.distributions as dist
        >>> SupportTable.of(dist.Bernoulli(torch.tensor([0.5, 0.25]))).log_probs.exp().tolist()
        [[0.5, 0.75], [0.5, 0.25]]
    """

    values: Tensor
    log_probs: Tensor

    @staticmethod
    def of(distribution: Any) -> "SupportTable":
        """Table of a distribution with ``enumerate_support``."""
        values = distribution.enumerate_support(expand=False)
        return SupportTable(values, distribution.log_prob(values))

    @property
    def probs(self) -> Tensor:
        """Probabilities in float64, shape ``(n,) + batch_shape``."""
        return self.log_probs.double().exp()

    def expectation(self, function: Tensor) -> Tensor:
        """Averages a function of the value.

        :param Tensor function: Values of the function, one for each value of the support, shape ``(n,)`` and then the
            batch shape, or ones, and any axes.
        :return: Shape ``batch_shape`` and the further axes.
        """
        rank = function.dim() - self.log_probs.dim()
        return (self.probs.reshape(self.probs.shape + (1,) * rank) * function.double()).sum(0)

    def find(self, value: Tensor) -> Tensor:
        """Row numbers of the values in an array of shape ``sample_shape + batch_shape + event_shape``; -1 if absent."""
        rank = self.log_probs.dim() - 1
        events = self.values.reshape(self.values.shape[0], -1)
        batch = value.shape[: value.dim() - (self.values.dim() - 1 - rank)]
        equal = value.reshape(batch + (1, -1)) == events
        hit = equal.all(-1)
        return torch.where(hit.any(-1), hit.to(torch.uint8).argmax(-1), -1)
