"""Sizes and uniform samples of sets of vectors with given numbers of every category."""

__all__ = ["choose_places", "complete_counts", "log_binomial", "log_multinomial", "normalize"]

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


def log_binomial(total: Tensor, chosen: Tensor, largest: int) -> Tensor:
    r"""Logarithm of :math:`\binom{n}{k}` in float64, -inf where k is not among ``0, ..., n``; arguments are integers.

    :param int largest: Upper bound of all n.

    Example::

        >>> log_binomial(torch.tensor(4), torch.tensor([-1, 0, 2, 5]), 4).exp().round()
        tensor([0., 1., 6., 0.], dtype=torch.float64)
    """
    log_factorials = torch.lgamma(torch.arange(largest + 1, dtype=torch.double, device=total.device) + 1)
    total, chosen = torch.broadcast_tensors(total, chosen)
    terms = (_look_up(log_factorials, number) for number in (chosen, total - chosen))
    return (_look_up(log_factorials, total) - sum(terms)).masked_fill((chosen < 0) | (chosen > total), -torch.inf)


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.clamp(0, len(table) - 1).flatten()).view(index.shape)


def log_multinomial(total: Tensor, counts: Tensor) -> Tensor:
    r"""Logarithm of the number of ways to give ``counts[..., c]`` of ``total`` places to category c.

    :param Tensor total: Integers of shape ``(...)``, the sum of the counts.
    :param Tensor counts: Integers of shape ``(..., categories)``.
    :return: Float64, shape ``(...)``; -inf where a count is negative.
    """
    log_factorials = torch.lgamma(counts.clamp(min=0).double() + 1).sum(-1)
    result = torch.lgamma(total.double() + 1) - log_factorials
    return result.masked_fill((counts < 0).any(-1), -torch.inf)


def choose_places(free: Tensor, counts: Tensor, keys: Tensor) -> Tensor:
    """Gives the free places, in the order of their keys, to the categories: to the last one first.

    :param Tensor free: Booleans of shape ``(..., places)``.
    :param Tensor counts: Numbers of places of each category, integers of shape ``(..., categories)``; they add up to
        the number of free places, or the result is arbitrary.
    :param Tensor keys: Numbers of shape ``(..., places)``; random ones make the choice uniform.
    :return: Categories of the free places, shape ``(..., places)``; arbitrary elsewhere.
    """
    ranks = keys.masked_fill(~free, torch.inf).argsort(-1).argsort(-1)
    ends = counts.flip(-1).cumsum(-1)
    passed = (ranks.unsqueeze(-1) >= ends.unsqueeze(-2)).sum(-1)
    return (counts.shape[-1] - 1 - passed).clamp(min=0)


def complete_counts(value: Tensor, observed: Tensor, missing: Tensor, keys: Tensor) -> Tensor:
    """Fills in the unobserved places, with given numbers of every category.

    :param Tensor value: Categories where ``observed``, shape ``(..., places)``.
    :param Tensor observed: Booleans of a shape that broadcasts with it.
    :param Tensor missing: Numbers of free places that each category gets, shape ``(..., categories)``.
    :param Tensor keys: The order in which places are filled, shape ``(..., places)``; see :func:`choose_places`.
    :return: Integers of shape ``(..., places)``.
    """
    shape = broadcast_shapes(missing.shape[:-1] + value.shape[-1:], value.shape, observed.shape, keys.shape)
    counts = missing.expand(shape[:-1] + missing.shape[-1:])
    return torch.where(observed, value.long(), choose_places(~observed.expand(shape), counts, keys.expand(shape)))


def normalize(log_weights: Tensor) -> Tensor:
    """Log-probabilities from log weights along the last axis; unlike those of ``log_softmax``, derivatives are finite
    where weights are zero.
    """
    return log_weights - logsumexp(log_weights).unsqueeze(-1)
