"""Inference in trees of discrete states, one tree or a batch of different ones."""

__all__ = ["log_product", "region_inward", "region_outward"]

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import logsumexp, safe_log
from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# Largest absolute value of negative log-weights that are exponentiated without underflow.
LARGEST_SPREAD = 600.0


def region_inward(log_transitions: Tensor, log_leaves: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """Sums states out, from the leaves of the trees to their roots.

    :param Tensor log_transitions: Log-weights of a region's state (last axis) given its parent's, shape
        ``(..., M, G, K, K)``; the log-weights of the root's state are those given state 0.
    :param Tensor log_leaves: Log-weights of the states of all regions, shape ``(..., M, G, K)``.
    :param Tensor parents: Parents of the regions, with smaller numbers than their children, shape ``(M, G)``.
    :return: ``(beliefs, messages)``, both of shape ``(..., M, G, K)``: log-weights of each region's states with those
        of all regions below; their log-sums over the region's states given each state of the parent.
        ``messages[..., 0, 0]`` is the logarithm of the total.
    """
    exponentials = _exponentials(log_transitions)
    shape = broadcast_shapes(log_transitions.shape[:-1], log_leaves.shape)
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
    log_probs: list[Tensor] = []
    for region in range(parents.shape[-1]):
        if region:
            above = parents[:, region, None, None].expand(first.unsqueeze(-2).shape)
            upper = torch.stack(log_probs, -2).gather(-2, above).squeeze(-2)
        else:
            upper = first
        none = (upper == -torch.inf) | (messages[..., region, :] == -torch.inf)
        rest = upper.masked_fill(none, 0.0) - messages[..., region, :].masked_fill(none, 0.0)
        step = exponentials if exponentials is None else exponentials[..., region, :, :].mT
        rest = log_product(log_transitions[..., region, :, :].mT, rest.masked_fill(none, -torch.inf), step)
        log_probs.append(beliefs[..., region, :] + rest)
    return torch.stack(log_probs, -2)


def log_product(log_weights: Tensor, scores: Tensor, weights: Tensor | None) -> Tensor:
    """Logarithm of the product of a matrix and a vector that are given by their logarithms.

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
    """Exponentials of log-weights, or ``None`` if the smallest one could underflow in products with numbers up to 1."""
    try:
        require(~(log_weights > -LARGEST_SPREAD), "underflow")
    except ValueError:
        return None
    return log_weights.exp()
