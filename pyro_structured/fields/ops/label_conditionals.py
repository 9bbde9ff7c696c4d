"""Conditional distributions of single labels of fields given all others, hidden units summed out."""

__all__ = ["conditional_log_probs", "conditional_odds"]

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


def conditional_odds(field: Field, labels: Tensor) -> Tensor:
    """Log-odds of each pixel of a binary field given all others, shape ``(..., rows, D)``; cost O(D J).

    NaN where a pixel, its neighbours and the hidden units leave neither label.

    :param Tensor labels: Zeros and ones in double precision, shape ``(..., rows, D)``.
    """
    batch = broadcast_shapes(labels.shape[:-1], (field.num_rows,))
    odds = field.odds.expand(*batch, -1)
    if field.is_paired:
        ends = 2 * labels[..., field.edges] - 1
        pulls = (field.penalties.unsqueeze(-1) * ends.flip(-1)).expand(*batch, -1, -1)
        odds = odds.index_add(-1, field.edges.flatten(), pulls.flatten(-2))
    if field.num_patterns:
        single = field.weights.mT
        on = field.activations(labels).unsqueeze(-2) + (1 - labels).unsqueeze(-1) * single
        odds = odds + field.potential(on, 1) - field.potential(on - single, 1)
    return odds


def conditional_log_probs(field: Field, labels: Tensor) -> Tensor:
    """Log-probabilities of the labels of each pixel given all others, shape ``(..., rows, D, K)``; cost O(J·D·K).

    NaN where a pixel, its neighbours and the hidden units leave no label.

    :param Field field: One whose patterns weigh all labels.
    :param Tensor labels: Integers in double precision, shape ``(..., rows, D)``.
    """
    batch = broadcast_shapes(labels.shape[:-1], (field.num_rows,))
    states = field.states.chunk(field.num_labels, -1)
    weights = torch.stack([s + pull for s, pull in zip(states, _pulls(field, labels, batch), strict=True)], -1)
    if field.num_patterns:
        weights = weights + _potentials(field, labels)
    total = logsumexp(weights).unsqueeze(-1)
    never = total == -torch.inf
    return (weights - total.masked_fill(never, 0.0)).masked_fill(never, torch.nan)


def _pulls(field: Field, labels: Tensor, batch: torch.Size) -> list[Tensor]:
    """Log-weights that neighbours lend to each label, each of shape ``batch + (D,)``."""
    zero = labels.new_zeros(batch + labels.shape[-1:])
    if not field.is_paired:
        return [zero] * field.num_labels
    others, penalties = labels[..., field.edges].flip(-1), field.penalties.unsqueeze(-1)
    return [
        zero.index_add(
            -1,
            field.edges.flatten(),
            -penalties.where(others != label, 0.0).expand(batch + others.shape[-2:]).flatten(-2),
        )
        for label in range(field.num_labels)
    ]


def _potentials(field: Field, labels: Tensor) -> Tensor:
    """Log-weights of the patterns if one pixel has another label, shape ``(..., rows, D, K)``."""
    by_label = field.weights.unflatten(-1, (field.num_labels, field.num_pixels)).movedim(1, -1).unbind(1)
    present = by_label[0]
    for label, weights in enumerate(by_label[1:], 1):
        present = torch.where((labels == label).unsqueeze(-1), weights, present)
    rest = field.activations(field.indicators(labels)).unsqueeze(-2) - present
    return torch.stack([field.potential(rest + weights, 1) for weights in by_label], -1)
