"""Numbers of ones among binary variables with weights of their own, from sums over a binary tree of the variables."""

__all__ = ["count_log_marginals", "count_log_mass", "count_log_peaks", "count_mode", "sample_with_count"]

import math

import torch
from torch import Tensor

from pyro_structured.counts.ops.log_convolution import log_convolve, log_correlate
from pyro_structured.exchangeable.ops.level_sets import normalize
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.evidence import log_odds


def count_log_mass(log_weights: Tensor) -> Tensor:
    r"""Logarithms of the summed weights of all vectors with each number of ones: elementary symmetric polynomials.

    :param Tensor log_weights: Log-weights of zeros and of ones, float64, shape ``(..., n, 2)``, less than +inf.
    :return: Shape ``(..., n + 1)``. Cost :math:`O(n^2)`, in O(log n) steps that wait for each other.

    Example::

        >>> count_log_mass(torch.tensor([[1.0, 2.0], [1.0, 3.0]]).double().log()).exp().round()
        tensor([1., 5., 6.], dtype=torch.float64)
    """
    return _sums(log_weights)[-1][..., 0, : log_weights.shape[-2] + 1]


def count_log_marginals(level_weights: Tensor, log_weights: Tensor) -> Tensor:
    """Log-probabilities of zeros and of ones if numbers of ones have weights, too.

    :param Tensor level_weights: Log-weights of all numbers of ones, float64, shape ``(..., n + 1)``.
    :param Tensor log_weights: As for :func:`count_log_mass`; leading axes broadcast.
    :return: Shape ``(..., n, 2)``.
    """
    sums = _sums(log_weights)
    batch = torch.broadcast_shapes(level_weights.shape[:-1], log_weights.shape[:-2])
    missing = sums[-1].shape[-1] - level_weights.shape[-1]
    # Log-weights of everything outside of a node, given its number of ones.
    outside = torch.nn.functional.pad(level_weights, (0, missing), value=-math.inf).unsqueeze(-2)
    outside = outside.expand(batch + outside.shape[-2:])
    for below in reversed(sums[:-1]):
        left, right = (side.expand(batch + side.shape[-2:]) for side in (below[..., 0::2, :], below[..., 1::2, :]))
        sides = log_correlate(outside, right), log_correlate(outside, left)
        outside = torch.stack(sides, -2).flatten(-3, -2)
    return normalize((outside + sums[0])[..., : log_weights.shape[-2], :])


def sample_with_count(count: Tensor, log_weights: Tensor) -> Tensor:
    """Draws vectors with given numbers of ones in proportion to their weights, each half's number after the other.

    :param Tensor count: Numbers of ones, integers of shape ``(...)``; where one is impossible, the result is arbitrary.
    :param Tensor log_weights: As for :func:`count_log_mass`; leading axes broadcast.
    :return: Integers of shape ``(..., n)``.
    """
    sums = _sums(log_weights)
    batch = torch.broadcast_shapes(count.shape, log_weights.shape[:-2])
    counts = count.expand(batch).unsqueeze(-1)
    for below in reversed(sums[:-1]):
        left, right = (side.expand(batch + side.shape[-2:]) for side in (below[..., 0::2, :], below[..., 1::2, :]))
        largest = left.shape[-1] - 1
        other = counts.unsqueeze(-1) - torch.arange(largest + 1, device=counts.device)
        rest = right.gather(-1, other.clamp(0, largest)).masked_fill((other < 0) | (other > largest), -math.inf)
        first = draw_log(left + rest)
        counts = torch.stack([first, counts - first], -1).flatten(-2)
    # Impossible numbers have no halves.
    return counts[..., : log_weights.shape[-2]].clamp(0, 1)


def count_log_peaks(log_weights: Tensor) -> Tensor:
    """Largest log-weights of vectors with each number of ones, from sorted log-odds; argument and shape as for
    :func:`count_log_mass`.
    """
    order = log_odds(*log_weights.unbind(-1)).argsort(dim=-1, descending=True, stable=True)
    off, on = (side.gather(-1, order) for side in log_weights.unbind(-1))
    ones = torch.nn.functional.pad(on.cumsum(-1), (1, 0))
    zeros = torch.nn.functional.pad(off.flip(-1).cumsum(-1).flip(-1), (0, 1))
    return ones + zeros


def count_mode(count: Tensor, log_weights: Tensor) -> Tensor:
    """Vectors of largest weight with given numbers of ones: the variables of largest log-odds; arguments and shape as
    for :func:`sample_with_count`.
    """
    ranks = log_odds(*log_weights.unbind(-1)).argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return (ranks < count.unsqueeze(-1)).long()


def _sums(log_weights: Tensor) -> list[Tensor]:
    """Log-sums for all numbers of ones in single variables, in pairs, in pairs of pairs and so on, shapes
    ``(..., nodes, size + 1)``; variables that are always zero fill up to a power of two.
    """
    number = log_weights.shape[-2]
    filled = torch.nn.functional.pad(log_weights, (0, 0, 0, (1 << (number - 1).bit_length()) - number))
    is_filler = torch.arange(filled.shape[-2], device=filled.device) >= number
    sums = [filled.masked_fill(is_filler.unsqueeze(-1) & torch.tensor([False, True], device=filled.device), -math.inf)]
    while sums[-1].shape[-2] > 1:
        sums.append(log_convolve(sums[-1][..., 0::2, :], sums[-1][..., 1::2, :]))
    return sums
