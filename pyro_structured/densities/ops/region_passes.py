"""Inference in trees of discrete states, one tree or a batch of different ones."""

__all__ = ["log_product", "region_inward", "region_outward"]

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import logsumexp, safe_log
from pyro_structured.foundation.ops.requirements import require

# Logarithms of weights that differ by less than this are exponentiated without underflow.
LARGEST_SPREAD = 600.0


def region_inward(log_transitions: Tensor, log_leaves: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """Sums states out, from the leaves of the trees to their roots.

    :param Tensor log_transitions: Log-weights of a region's state (last axis) given its parent's, shape
        ``(..., M, G, K, K)``; the root's given state 0.
    :param Tensor log_leaves: Log-weights of the states of all regions, shape ``(..., M, G, K)``.
    :param Tensor parents: Parents of the regions, smaller than they are, shape ``(M, G)``.
    :return: ``(beliefs, messages)`` of shape ``(..., M, G, K)``: log-weights of the region's states with all below;
        log-weights of all of it given the parent's state. ``messages[..., 0, 0]`` is the logarithm of the total.
    """
    exponentials = _exponentials(log_transitions)
    shape = torch.broadcast_shapes(log_transitions.shape[:-1], log_leaves.shape)
    beliefs = log_leaves.expand(shape)
    messages: list[Tensor] = []
    for region in reversed(range(parents.shape[-1])):
        step = exponentials if exponentials is None else exponentials[..., region, :, :]
        message = log_product(log_transitions[..., region, :, :], beliefs[..., region, :], step)
        messages.insert(0, message)
        if region:
            above = parents[:, region, None, None].expand(message.unsqueeze(-2).shape)
            beliefs = beliefs.scatter_add(-2, above, message.unsqueeze(-2))
    return beliefs, torch.stack(messages, -2)


def region_outward(log_transitions: Tensor, beliefs: Tensor, messages: Tensor, parents: Tensor) -> Tensor:
    """Log-probabilities of the states of all regions, from the results of :func:`region_inward`.

    :return: Shape ``(..., M, G, K)``; -inf throughout where a tree has no weight.
    """
    exponentials = _exponentials(log_transitions)
    first = torch.zeros_like(messages[..., 0, :])
    first[..., 1:] = -torch.inf
    found: list[Tensor] = []
    for region in range(parents.shape[-1]):
        if region:
            above = parents[:, region, None, None].expand(first.unsqueeze(-2).shape)
            upper = torch.stack(found, -2).gather(-2, above).squeeze(-2)
        else:
            upper = first
        none = (upper == -torch.inf) | (messages[..., region, :] == -torch.inf)
        rest = upper.masked_fill(none, 0.0) - messages[..., region, :].masked_fill(none, 0.0)
        step = exponentials if exponentials is None else exponentials[..., region, :, :].mT
        rest = log_product(log_transitions[..., region, :, :].mT, rest.masked_fill(none, -torch.inf), step)
        found.append(beliefs[..., region, :] + rest)
    return torch.stack(found, -2)


def log_product(log_weights: Tensor, scores: Tensor, weights: Tensor | None) -> Tensor:
    """Product of a matrix and a vector, both given by their logarithms.

    :param Tensor log_weights: Shape ``(..., J, K)``.
    :param Tensor scores: Shape ``(..., K)``.
    :param Tensor weights: Exponentials of the weights if none of them underflows, for a product that takes less memory.
    :return: Shape ``(..., J)``.
    """
    if weights is None:
        return logsumexp(log_weights + scores.unsqueeze(-2))
    peak = scores.detach().amax(-1, keepdim=True)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    return safe_log(torch.einsum("...jk,...k->...j", weights, (scores - peak).exp())) + peak


def _exponentials(log_weights: Tensor) -> Tensor | None:
    """Exponentials, unless the product of the smallest one with a number that is 1 at most could underflow."""
    try:
        require(~(log_weights > -LARGEST_SPREAD), "underflow")
    except ValueError:
        return None
    return log_weights.exp()
