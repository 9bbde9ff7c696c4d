"""Convolutions of non-negative vectors that are given by their logarithms: no entry loses relative accuracy."""

__all__ = ["log_convolve", "log_correlate", "max_convolve"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import logsumexp

# Number of terms that are held at once: small enough for a CPU's cache, large enough to hide the cost of a call.
CHUNK_TERMS = 2**18


def log_correlate(total: Tensor, other: Tensor) -> Tensor:
    r"""Computes :math:`\log \sum_j \exp(\text{total}_{i+j} + \text{other}_j)` for every ``i``, with each term exact.

    This is the downward message of Tarlow et al. (2012), Section 5.2.2. Cost :math:`O(nm)`.

    :param Tensor total: Logarithms, shape ``(..., n + m - 1)``.
    :param Tensor other: Logarithms, shape ``(..., m)`` with the same leading axes.
    :return: Shape ``(..., n)``. Relative error of every (non-logarithmic) entry: a few units of rounding times the
        size of the logarithms, whatever the other entries are.

    Example::

        >>> log_correlate(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, -math.inf])).tolist()
        [0.0, 1.0]
    """
    return _correlate(total, other, logsumexp)


def log_convolve(left: Tensor, right: Tensor) -> Tensor:
    r"""Computes :math:`\log \sum_i \exp(\text{left}_i + \text{right}_{k-i})` for every ``k``, with each term exact.

    This is the upward message of Tarlow et al. (2012), Section 5.2.1. Cost :math:`O(nm)`.

    :param Tensor left: Logarithms, shape ``(..., n)``; -inf is allowed.
    :param Tensor right: Logarithms, shape ``(..., m)`` with the same leading axes.
    :return: Shape ``(..., n + m - 1)``.

    Example::

        >>> log_convolve(torch.zeros(2), torch.zeros(2)).exp().tolist()
        [1.0, 2.0, 1.0]
    """
    return _convolve(left, right, logsumexp)


def max_convolve(left: Tensor, right: Tensor) -> Tensor:
    r"""Computes :math:`\max_i \text{left}_i + \text{right}_{k-i}` for every ``k``; arguments as in
    :func:`log_convolve`.

    Example::

        >>> max_convolve(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 3.0])).tolist()
        [0.0, 3.0, 4.0]
    """
    return _convolve(left, right, lambda terms: terms.amax(-1))


def _convolve(left: Tensor, right: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    if left.shape[-1] > right.shape[-1]:
        left, right = right, left
    margin = left.shape[-1] - 1
    return _correlate(torch.nn.functional.pad(right, (margin, margin), value=-math.inf), left.flip(-1), reduce)


def _correlate(total: Tensor, other: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    windows = total.unfold(-1, other.shape[-1], 1)
    rows = windows[..., 0, 0].numel()
    step = max(1, CHUNK_TERMS // max(1, rows * other.shape[-1]))
    if step >= windows.shape[-2]:
        return reduce(windows + other.unsqueeze(-2))
    return torch.cat([reduce(chunk + other.unsqueeze(-2)) for chunk in windows.split(step, -2)], -1)
