"""Tables of a junction tree from data and from probabilities of its cliques."""

__all__ = ["count_cliques", "log_conditionals"]

import torch
from torch import Tensor

from pyro_structured.ops.clique_plan import CliquePlan


def count_cliques(plan: CliquePlan, values: Tensor, weights: Tensor) -> Tensor:
    """How often joint states of all cliques occur.

    :param CliquePlan plan: The tree.
    :param Tensor values: States, integers of shape ``(N, n)``.
    :param Tensor weights: Of the rows, shape ``(..., N)``.
    :return: Shape ``(..., table_size)``, in double precision.
    """
    entries = plan.table_index(values)
    flat = weights.double().reshape(-1, len(values))
    counts = flat.new_zeros(len(flat), plan.table_size)
    # One clique after the other: rows times cliques would be many numbers.
    for place in entries.unbind(-1):
        counts.scatter_add_(-1, place.expand_as(flat), flat)
    return counts.reshape(weights.shape[:-1] + counts.shape[-1:])


def log_conditionals(plan: CliquePlan, joint: Tensor) -> Tensor:
    """Log-probabilities of the cliques' states given those of their separators, whose sum is a joint distribution's.

    :param CliquePlan plan: The tree.
    :param Tensor joint: Probabilities, or numbers in proportion to them, of all cliques' states, which agree on
        separators, shape ``(..., table_size)``.
    :return: The same shape; -inf where a probability is zero.
    """
    found = []
    for level in plan.levels(joint.device):
        for group in level:
            table = joint[..., group.entries].unflatten(-1, group.shape)
            total = table.sum(-1, keepdim=True)
            found.append((table / total.masked_fill(total == 0, 1.0)).log().flatten(-3))
    return torch.cat(found, -1)[..., plan.order(joint.device)]
