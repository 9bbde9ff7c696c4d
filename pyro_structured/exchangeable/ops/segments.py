"""Reductions over segments of the last axis, whose members are marked by equal indices."""

__all__ = ["segment_argmax", "segment_logsumexp", "segment_max", "segment_ranks"]

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import safe_log


def segment_logsumexp(terms: Tensor, segments: Tensor, num_segments: int) -> Tensor:
    """Logarithms of the sums of exponentials in every segment; derivatives are finite where all terms are -inf.

    :param Tensor terms: Shape ``(..., size)``, less than +inf.
    :param Tensor segments: Integers below ``num_segments``, of a shape that broadcasts with it.
    :return: Shape ``(..., num_segments)``; -inf for segments without members.

    Example::

        >>> segment_logsumexp(torch.zeros(3), torch.tensor([0, 0, 2]), 3)
        tensor([0.6931,   -inf, 0.0000])
    """
    terms, segments = torch.broadcast_tensors(terms, segments)
    peak = segment_max(terms.detach(), segments, num_segments)
    finite = peak.masked_fill(peak == -torch.inf, 0.0)
    sums = torch.zeros_like(peak).scatter_add(-1, segments, (terms - finite.gather(-1, segments)).exp())
    return safe_log(sums) + finite


def segment_argmax(terms: Tensor, segments: Tensor, num_segments: int) -> Tensor:
    """Places of the largest terms of every segment, the first of equal ones.

    :param Tensor terms: Shape ``(..., size)``.
    :param Tensor segments: Integers below ``num_segments``, of a shape that broadcasts with it.
    :return: Integers of shape ``(..., num_segments)``; ``size`` for segments without members.

    Example::

        >>> segment_argmax(torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0, 0, 2]), 3)
        tensor([1, 3, 2])
    """
    terms, segments = torch.broadcast_tensors(terms, segments)
    size = terms.shape[-1]
    is_best = terms == segment_max(terms, segments, num_segments).gather(-1, segments)
    places = torch.arange(size, device=terms.device).masked_fill(~is_best, size)
    none = segments.new_full(segments.shape[:-1] + (num_segments,), size)
    return none.scatter_reduce(-1, segments, places, "amin")


def segment_ranks(keys: Tensor, segments: Tensor) -> Tensor:
    """Ranks of keys inside their segments.

    :param Tensor keys: Numbers in the interval from 0 to 1, shape ``(..., size)``.
    :param Tensor segments: Integers of a shape that broadcasts with it.
    :return: Integers of shape ``(..., size)``.

    Example::

        >>> segment_ranks(torch.tensor([0.5, 0.1, 0.9]), torch.tensor([1, 1, 0]))
        tensor([1, 0, 0])
    """
    keys, segments = torch.broadcast_tensors(keys, segments)
    order = (keys.double() + 2 * segments).argsort(-1)
    ordered = segments.gather(-1, order)
    places = torch.arange(keys.shape[-1], device=keys.device)
    repeated = torch.nn.functional.pad(ordered[..., 1:] == ordered[..., :-1], (1, 0))
    ranks = places - places.masked_fill(repeated, 0).cummax(-1).values
    return torch.empty_like(order).scatter(-1, order, ranks)


def segment_max(terms: Tensor, segments: Tensor, num_segments: int) -> Tensor:
    """Largest terms of every segment; arguments and shape as for :func:`segment_logsumexp`."""
    terms, segments = torch.broadcast_tensors(terms, segments)
    lowest = terms.new_full(terms.shape[:-1] + (num_segments,), -torch.inf)
    return lowest.scatter_reduce(-1, segments, terms, "amax")
