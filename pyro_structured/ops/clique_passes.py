"""Passes through a junction tree, all levels and all rows at once; rows are the last axis of all tensors."""

__all__ = ["joint_marginals", "most_probable_states", "sample_states", "single_marginals", "upward"]

import torch
from torch import Tensor

from pyro_structured.ops.clique_plan import CliqueGroup, CliquePlan
from pyro_structured.ops.convolution import safe_log


def upward(plan: CliquePlan, tables: Tensor, evidence: Tensor | None) -> tuple[Tensor, list[list[Tensor]]]:
    """Sums variables out, from the leaves to the roots.

    :param CliquePlan plan: The tree.
    :param Tensor tables: Log-weights, shape ``(table_size, rows)`` or ``(table_size, 1)``.
    :param Tensor evidence: Log-weights of single states, shape ``(num_states, rows)`` or ``(num_states, 1)``.
    :return: Log partition functions, shape ``(rows,)``; and for all groups the probabilities of the states of a
        clique's other variables given its separator's, shape ``(G, S, R, rows)``, zeros where that is impossible.
    """
    conditionals: list[list[Tensor]] = []
    messages = None
    for level in reversed(plan.levels(tables.device)):
        found = []
        for group in level:
            weights = _weights(group, tables, evidence, messages)
            peak = weights.detach().amax(2, keepdim=True)
            peak = peak.masked_fill(peak == -torch.inf, 0.0)
            shares = (weights - peak).exp()
            total = shares.sum(2, keepdim=True)
            message = (safe_log(total) + peak).flatten(0, 2)
            found.append((shares / total.masked_fill(total == 0, 1.0), message))
        conditionals.append([shares for shares, _ in found])
        messages = torch.cat([message for _, message in found])
    assert messages is not None
    return messages.sum(0), conditionals[::-1]


def _weights(group: CliqueGroup, tables: Tensor, evidence: Tensor | None, messages: Tensor | None) -> Tensor:
    """Log-weights of the entries of a group's tables with all that is below, shape ``(G, S, R, rows)``."""
    number, _, rest = group.shape
    weights = tables.index_select(0, group.entries)
    for places in group.messages:
        assert messages is not None
        weights = weights + messages.index_select(0, places)
    weights = weights.reshape(*group.shape, weights.shape[-1])
    if evidence is None:
        return weights
    for places in group.states:
        weights = weights + evidence.index_select(0, places).reshape(number, 1, rest, evidence.shape[-1])
    # Cliques that add no variable have no evidence of their own.
    return weights.expand(torch.broadcast_shapes(weights.shape, evidence.shape[-1:]))


def joint_marginals(plan: CliquePlan, conditionals: list[list[Tensor]]) -> list[list[Tensor]]:
    """Probabilities of the joint states of all cliques, shape ``(G, S, R, rows)``, from the roots to the leaves."""
    marginals: list[list[Tensor]] = []
    above = None
    for level, shares in zip(plan.levels(conditionals[0][0].device), conditionals, strict=True):
        found = []
        for group, share in zip(level, shares, strict=True):
            if above is not None:
                number, separators, _ = group.shape
                source = above.index_select(0, group.sources).unflatten(0, (number, separators, -1))
                share = share * source.sum(2).unsqueeze(2)
            found.append(share)
        marginals.append(found)
        above = torch.cat([each.flatten(0, 2) for each in found])
    return marginals


def single_marginals(plan: CliquePlan, marginals: list[list[Tensor]]) -> Tensor:
    """Probabilities of the states of all variables, shape ``(num_states, rows)``, from those of the cliques."""
    first = marginals[0][0]
    total = first.new_zeros(plan.num_states, first.shape[-1])
    for level, tables in zip(plan.levels(first.device), marginals, strict=True):
        for group, table in zip(level, tables, strict=True):
            rest = table.sum(1).flatten(0, 1)
            for places in group.states:
                total = total.index_add(0, places, rest)
    return total


def sample_states(plan: CliquePlan, conditionals: list[list[Tensor]], num_samples: int) -> Tensor:
    """Draws all variables, from the roots to the leaves.

    :return: Integers of shape ``(n, num_samples, rows)``.
    """
    first = conditionals[0][0]
    values = first.new_zeros(plan.num_variables, num_samples, first.shape[-1], dtype=torch.long)
    for level, tables in zip(plan.levels(first.device), conditionals, strict=True):
        for group, table in zip(level, tables, strict=True):
            place = _separator_states(group, values).unsqueeze(2)
            chosen = table.gather(1, place.expand(-1, -1, group.shape[2], -1))
            cumulative = chosen.cumsum(2)
            threshold = torch.rand_like(cumulative[:, :, :1]) * (cumulative[:, :, -1:] * (1 - 2.0**-52))
            _write(group, values, (cumulative <= threshold).sum(2))
    return values


def most_probable_states(plan: CliquePlan, tables: Tensor, evidence: Tensor | None) -> Tensor:
    """Most probable states of all variables together, shape ``(n, rows)``; arguments as for :func:`upward`."""
    levels = plan.levels(tables.device)
    best: list[list[Tensor]] = []
    messages = None
    for level in reversed(levels):
        found = [_weights(group, tables, evidence, messages).max(2) for group in level]
        best.append([places for _, places in found])
        messages = torch.cat([peaks.flatten(0, 1) for peaks, _ in found])
    assert messages is not None
    values = messages.new_zeros(plan.num_variables, 1, messages.shape[-1], dtype=torch.long)
    for level, choices in zip(levels, best[::-1], strict=True):
        for group, choice in zip(level, choices, strict=True):
            _write(group, values, choice.gather(1, _separator_states(group, values)))
    return values.squeeze(1)


def _separator_states(group: CliqueGroup, values: Tensor) -> Tensor:
    """Joint states of the separators, shape ``(G, samples, rows)``."""
    found = values.new_zeros(group.shape[0], *values.shape[1:])
    for variables, strides in zip(group.separators.unbind(1), group.separator_strides.unbind(1), strict=True):
        found = found + values[variables] * strides[:, None, None]
    return found


def _write(group: CliqueGroup, values: Tensor, states: Tensor) -> None:
    """Sets the variables that are not in separators, in place."""
    parts = zip(group.variables.unbind(1), group.strides.unbind(1), group.cardinalities.unbind(1), strict=True)
    for variables, strides, sizes in parts:
        values[variables] = states // strides[:, None, None] % sizes[:, None, None]
