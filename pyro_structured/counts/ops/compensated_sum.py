"""Sums of floating point numbers, the largest of which may cancel."""

__all__ = ["compensated_sum", "two_sum"]

import torch
from torch import Tensor


def two_sum(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """A rounded sum and its rounding error, exact together; the error is a constant of differentiation.

    :param Tensor left: Any numbers; shapes broadcast.
    :param Tensor right: Further numbers, which are added.
    :return: The rounded sum, and the rest, 0 where the sum is not finite.

    **References**

    Knuth (1969): *The art of computer programming*, volume 2, Section 4.2.2.

    Example::

        >>> two_sum(torch.tensor(2.0**30), torch.tensor(1.0))
        (tensor(1.0737e+09), tensor(1.))
    """
    total = left + right
    with torch.no_grad():
        added = total - left
        rest = (left - (total - added)) + (right - added)
        rest = rest.masked_fill(~total.isfinite(), 0.0)
    return total, rest


def compensated_sum(terms: Tensor) -> Tensor:
    r"""Sums the last axis as if in twice the precision: terms that cancel leave no rounding behind.

    :param Tensor terms: Shape ``(..., n)``.
    :return: Shape ``(...)``. Cost O(n), :math:`\lceil\log_2 n\rceil` steps.

    Example::

        >>> compensated_sum(torch.tensor([1e30, 1.0, -1e30]))
        tensor(1.)
    """
    rest = torch.zeros_like(terms.detach())
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms, rest = (torch.nn.functional.pad(tensor, (0, 1)) for tensor in (terms, rest))
        (left, right), (left_rest, right_rest) = (tensor.chunk(2, -1) for tensor in (terms, rest))
        terms, lost = two_sum(left, right)
        rest = left_rest + right_rest + lost
    return (terms + rest).sum(-1)
