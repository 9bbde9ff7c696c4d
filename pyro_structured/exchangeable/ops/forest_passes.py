"""Inference in forests of binary variables, one forest or a batch of different ones."""

__all__ = ["forest_downward", "forest_sample", "forest_score", "forest_upward"]

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


def forest_score(log_conditionals: Tensor, parents: Tensor, value: Tensor) -> Tensor:
    """Log-probabilities of the variables given their parents.

    :param Tensor log_conditionals: Log-probabilities of a variable's value (last axis) given its parent's, shape
        ``(..., n, 2, 2)``; a root's are those given 0.
    :param Tensor parents: Parents of the variables, integers of shape ``(..., n)``; roots are their own parents.
    :param Tensor value: Values of the variables, booleans of shape ``(..., n)``; shapes broadcast.
    :return: Shape ``(..., n)``.
    """
    value, parents = torch.broadcast_tensors(value, parents)
    places = torch.arange(parents.shape[-1], device=parents.device)
    above = value.gather(-1, parents) & (parents != places)
    off, on = (torch.where(value, table[..., 1], table[..., 0]) for table in log_conditionals.unbind(-2))
    return torch.where(above, on, off)


def forest_upward(
    log_conditionals: Tensor, parents: Tensor, levels: Tensor, num_levels: int, log_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums variables out, from the last level to the roots; arguments as for :func:`forest_score`.

    :param Tensor levels: Levels of the variables in the forest, shape ``(..., n)``.
    :param int num_levels: Number of levels.
    :param Tensor log_weights: Log-weights that the evidence gives to the values of the variables, -inf where it
        excludes them, shape ``(..., n, 2)``.
    :return: ``(beliefs, messages)`` of shape ``(..., n, 2)``: log-weights of a variable's values with its subtree;
        log-weights of a variable with its subtree given the parent's value.
    """
    shape = broadcast_shapes(log_conditionals.shape[:-1], parents.shape + (2,), log_weights.shape)
    beliefs = log_weights.expand(shape)
    above = parents.unsqueeze(-1).expand(shape)
    for level in range(num_levels - 1, 0, -1):
        sent = _messages(log_conditionals, beliefs).masked_fill((levels != level).unsqueeze(-1), 0.0)
        beliefs = beliefs.scatter_add(-2, above, sent)
    return beliefs, _messages(log_conditionals, beliefs)


def forest_downward(
    log_conditionals: Tensor, parents: Tensor, levels: Tensor, num_levels: int, beliefs: Tensor, messages: Tensor
) -> Tensor:
    """Log-probabilities of the values of all variables, from the results of :func:`forest_upward`.

    :return: Shape ``(..., n, 2)``.
    """
    log_probs = log_conditionals[..., 0, :] + beliefs - messages[..., :1]
    above = parents.unsqueeze(-1).expand(log_probs.shape)
    for level in range(1, num_levels):
        upper = (log_probs.gather(-2, above) - messages).unsqueeze(-1)
        updated = logsumexp(upper + log_conditionals, -2) + beliefs
        log_probs = torch.where((levels == level).unsqueeze(-1), updated, log_probs)
    return log_probs


def forest_sample(
    log_conditionals: Tensor, parents: Tensor, levels: Tensor, num_levels: int, beliefs: Tensor
) -> Tensor:
    """Draws all variables, from the roots to the last level: booleans of shape ``(..., n)``."""
    odds = log_conditionals[..., 1] - log_conditionals[..., 0] + (beliefs[..., 1] - beliefs[..., 0]).unsqueeze(-1)
    uniform = torch.rand(odds.shape[:-1], dtype=odds.dtype, device=odds.device)
    off, on = (uniform < torch.sigmoid(side) for side in odds.unbind(-1))
    value = off
    for level in range(1, num_levels):
        drawn = torch.where(value.gather(-1, parents.expand(value.shape)), on, off)
        value = torch.where(levels == level, drawn, value)
    return value


def _messages(log_conditionals: Tensor, beliefs: Tensor) -> Tensor:
    return logsumexp(log_conditionals + beliefs.unsqueeze(-2))
