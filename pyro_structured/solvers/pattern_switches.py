"""Better labelings of fields under patterns, by searches that begin where single patterns are switched."""

__all__ = ["ascend_by_switches"]

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from pyro_structured.solvers.label_objective import LabelObjective
from pyro_structured.solvers.pattern_objective import PatternObjective

# Numbers of weights that the searches of a round look at together.
NUMBERS_AT_ONCE = 2**24

Objective = TypeVar("Objective", PatternObjective, LabelObjective)
# Improves labels from where they would be if the hidden units were on in some shares, shape ``(rows, J)``; returns what
# they are then, and how many cuts it took.
Ascent = Callable[[Objective, Tensor, Tensor], tuple[Tensor, Tensor]]


def ascend_by_switches(
    objective: Objective, labels: Tensor, max_cuts: int, num_switches: int, ascend: Ascent[Objective]
) -> tuple[Tensor, Tensor]:
    """Improves local optima of expectation maximisation.

    Such an optimum agrees with its own hidden units, and others agree with other ones. In each round, single hidden
    units are switched, those that are nearest to it, and a search begins with the labels that are best then; the best
    that is found is where the next round begins, until none is better. Nothing is drawn at random.

    :param objective: The fields.
    :param Tensor labels: Local optima, shape ``(rows, D)``.
    :param int max_cuts: The number of cuts for each row after which no round begins.
    :param int num_switches: How many hidden units are switched in a round, one at a time.
    :param ascend: The search.
    :return: Labels of the same shape, and how many cuts it took for each row.
    """
    number = min(num_switches, objective.weights.shape[-2])
    if not number:
        return labels, torch.zeros(objective.num_rows, dtype=torch.long)
    size = number * objective.weights.shape[-2] * objective.weights.shape[-1]
    parts = torch.arange(objective.num_rows).split(max(1, NUMBERS_AT_ONCE // size))
    found = [_ascend_some(objective.rows(part), labels[part], max_cuts, number, ascend) for part in parts]
    best, num_cuts = (torch.cat(each) for each in zip(*found, strict=True))
    return best, num_cuts


def _ascend_some(
    objective: Objective, labels: Tensor, max_cuts: int, number: int, ascend: Ascent[Objective]
) -> tuple[Tensor, Tensor]:
    best, worth = labels.clone(), objective.value(labels)
    num_cuts = torch.zeros(objective.num_rows, dtype=torch.long)
    active = torch.arange(objective.num_rows)
    while len(active):
        shares = _switched(objective.rows(active), best[active], number)
        repeated = active.repeat_interleave(number)
        found, cuts = ascend(objective.rows(repeated), best[repeated], shares.flatten(0, 1))
        num_cuts[active] += cuts.unflatten(0, (-1, number)).sum(1)
        values, chosen = objective.rows(repeated).value(found).unflatten(0, (-1, number)).max(1)
        better = values > worth[active]
        chosen = (chosen + number * torch.arange(len(active)))[better]
        active = active[better]
        best[active], worth[active] = found[chosen], values[better]
        active = active[num_cuts[active] < max_cuts]
    return best, num_cuts


def _switched(objective: PatternObjective | LabelObjective, labels: Tensor, number: int) -> Tensor:
    """Shares of the hidden units given labels, with one of them switched, shape ``(rows, number, J)``."""
    activations = objective.activations(labels)
    shares = objective.slopes(activations, objective.composition, objective.temperature)
    one_of_them = torch.nn.functional.one_hot(_nearest(activations, shares > 0.5)[:, :number], shares.shape[-1])
    if objective.composition == "min":
        return one_of_them.to(shares)
    shares = shares.unsqueeze(1)
    return torch.where(one_of_them > 0, (shares <= 0.5).to(shares), shares)


def _nearest(activations: Tensor, on: Tensor) -> Tensor:
    """Hidden units in the order of what divides them from the others, those that are on from those that are off."""
    least, most = activations.masked_fill(~on, torch.inf).amin(-1), activations.masked_fill(on, -torch.inf).amax(-1)
    middle = torch.where(least.isinf(), most, torch.where(most.isinf(), least, (least + most) / 2))
    return (activations - middle.unsqueeze(-1)).abs().argsort(-1)
