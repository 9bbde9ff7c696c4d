"""Tables of a junction tree: from data, from probabilities of its cliques, and of other variables."""

__all__ = ["count_cliques", "log_conditionals", "spread_state_weights", "spread_table", "sum_table", "total_score"]

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.junction_trees.ops.clique_plan import CliquePlan


def count_cliques(plan: CliquePlan, values: Tensor, weights: Tensor) -> Tensor:
    """Weighted counts of the joint states of all cliques.

    :param CliquePlan plan: The tree.
    :param Tensor values: States, integers of shape ``(N, n)``.
    :param Tensor weights: Weights of the rows, shape ``(..., N)``.
    :return: Shape ``(..., table_size)``, in double precision.
    """
    entries = plan.table_index(values)
    flat = weights.double().reshape(math.prod(weights.shape[:-1]), len(values))
    counts = flat.new_zeros(len(flat), plan.table_size)
    # One clique after the other: rows times cliques would be many numbers.
    for place in entries.unbind(-1):
        counts.scatter_add_(-1, place.expand_as(flat), flat)
    return counts.reshape(weights.shape[:-1] + counts.shape[-1:])


def log_conditionals(plan: CliquePlan, joint: Tensor) -> Tensor:
    """Log-probabilities of the cliques' states given those of their separators, which sum to a joint log-probability.

    :param CliquePlan plan: The tree.
    :param Tensor joint: Probabilities, or numbers in proportion to them, of all cliques' states, which agree on
        separators, shape ``(..., table_size)``.
    :return: The same shape; -inf where a probability is zero.
    """
    rows = joint.reshape(math.prod(joint.shape[:-1]), joint.shape[-1])
    tables = []
    for level in plan.levels(joint.device):
        for table in level.split(rows[:, level.entries].T):
            total = table.sum(1, keepdim=True)
            tables.append((table / total.masked_fill(total == 0, 1.0)).log().flatten(0, 1))
    packed = torch.cat(tables).index_select(0, plan.order(joint.device))
    return packed.T.reshape(joint.shape)


def total_score(plan: CliquePlan, tables: Tensor, states: Tensor) -> Tensor:
    """Sum of the entries of all cliques' tables.

    :param CliquePlan plan: The tree.
    :param Tensor tables: Shape ``(..., table_size)``.
    :param Tensor states: Joint states, integers of shape ``(..., n)``, whose leading axes broadcast with the tables'.
    """
    index = plan.table_index(states)
    batch = broadcast_shapes(index.shape[:-1], tables.shape[:-1])
    if math.prod(tables.shape[:-1]) == 1:
        return tables.reshape(-1)[index].sum(-1).expand(batch)
    return tables.expand(batch + tables.shape[-1:]).gather(-1, index.expand(batch + index.shape[-1:])).sum(-1)


def spread_state_weights(log_weights: Tensor, places: Tensor) -> Tensor:
    """Tables of all cliques whose sum is the sum of log-weights of single states.

    :param Tensor log_weights: Log-weights of the states of each variable, shape ``(..., n, K)``.
    :param Tensor places: :attr:`~pyro_structured.structures.CliqueTree.state_places` of the tree.
    :return: Shape ``(..., table_size)``.
    """
    numbers = torch.nn.functional.pad(log_weights.flatten(-2), (0, 1))
    return numbers[..., places.to(log_weights.device)].sum(-1)


def sum_table(table: Tensor, clique: Sequence[int], wanted: Sequence[int]) -> Tensor:
    """Sums a clique's table over all but the wanted variables, and puts these in the wanted order.

    Example::

        >>> sum_table(torch.arange(6).reshape(1, 2, 3), [4, 7, 9], [9, 4]).tolist()
        [[3], [5], [7]]
    """
    first = table.dim() - len(clique)
    others = [first + place for place, d in enumerate(clique) if d not in wanted]
    kept = [d for d in clique if d in wanted]
    summed = table.sum(others) if others else table
    return summed.permute([*range(first), *(first + kept.index(d) for d in wanted)])


def spread_table(table: Tensor, scope: Sequence[int], clique: Sequence[int]) -> Tensor:
    """Table of some of a clique's variables with an axis for each of the clique's variables, in the clique's order.

    Example::

        >>> spread_table(torch.zeros(3, 2), [9, 4], [4, 7, 9]).shape
        torch.Size([2, 1, 3])
    """
    first = table.dim() - len(scope)
    ordered = table.permute([*range(first), *(first + scope.index(d) for d in clique if d in scope)])
    for place, d in enumerate(clique):
        if d not in scope:
            ordered = ordered.unsqueeze(first + place)
    return ordered
