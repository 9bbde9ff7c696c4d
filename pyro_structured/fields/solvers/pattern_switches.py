"""Better labelings of fields under patterns, by searches that begin where single patterns are switched."""

__all__ = ["ascend_by_switches"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field

# Numbers of weights that the searches of a round look at together.
NUMBERS_AT_ONCE = 2**24
# Where a round begins that is to help when switches from the best labels do not.
NUM_RUNNERS_UP = 4
# Share of a value by which another one is less unless the labels are the same, but for rounding.
EQUAL = 1e-12

# Improves labels from where they would be if the hidden units were on in some shares, shape ``(rows, J)``; returns what
# they are then, and how many cuts it took.
Ascent = Callable[[Field, Tensor, Tensor], tuple[Tensor, Tensor]]


def ascend_by_switches(
    field: Field, labels: Tensor, max_cuts: int, num_switches: int, ascend: Ascent
) -> tuple[Tensor, Tensor]:
    """Improves local optima of expectation maximisation.

    Such an optimum agrees with its own hidden units, and others agree with other ones. In each round, single hidden
    units are switched, those that are nearest to it, and a search begins with the labels that are best then; the best
    that is found is where the next round begins. Where none is better, the round is repeated once from the four best
    of the others that it has found, and ends the search unless that helps. Nothing is drawn at random.

    :param Field field: On the processor.
    :param Tensor labels: Local optima, shape ``(rows, D)``.
    :param int max_cuts: The number of cuts for each row after which no round begins.
    :param int num_switches: How many hidden units are switched in a round, one at a time.
    :param ascend: The search.
    :return: Labels of the same shape, and how many cuts it took for each row.
    """
    number = min(num_switches, field.num_patterns)
    if not number:
        return labels, torch.zeros(len(labels), dtype=torch.long)
    size = NUM_RUNNERS_UP * number * math.prod(field.weights.shape[-2:])
    parts = torch.arange(len(labels)).split(max(1, NUMBERS_AT_ONCE // size))
    found = [_ascend_some(field.rows(part), labels[part], max_cuts, number, ascend) for part in parts]
    best, num_cuts = (torch.cat(each) for each in zip(*found, strict=True))
    return best, num_cuts


def _ascend_some(field: Field, labels: Tensor, max_cuts: int, number: int, ascend: Ascent) -> tuple[Tensor, Tensor]:
    best, worth = labels.clone(), field.log_weight(labels)
    num_cuts = torch.zeros(len(labels), dtype=torch.long)
    active = torch.arange(len(labels))
    while len(active):
        some = field.rows(active)
        found, values, cuts = _round(some, best[active].unsqueeze(1), torch.ones(len(active), 1).bool(), number, ascend)
        num_cuts[active] += cuts
        labels, value = _best(found, values)
        stuck = ((value <= worth[active]) & (num_cuts[active] < max_cuts)).nonzero().squeeze(1)
        starts, known = _runners_up(found[stuck], values[stuck], worth[active[stuck]])
        if bool(known.any()):
            found, values, cuts = _round(field.rows(active[stuck]), starts, known, number, ascend)
            num_cuts[active[stuck]] += cuts
            labels[stuck], value[stuck] = _best(found, values)
        better = value > worth[active]
        active = active[better]
        best[active], worth[active] = labels[better], value[better]
        active = active[num_cuts[active] < max_cuts]
    return best, num_cuts


def _round(field: Field, starts: Tensor, known: Tensor, number: int, ascend: Ascent) -> tuple[Tensor, Tensor, Tensor]:
    """Labels that searches find from states with one hidden unit switched.

    :param Tensor starts: Labels, shape ``(rows, S, D)``.
    :param Tensor known: Which of them there are, shape ``(rows, S)``.
    :return: Labels, shape ``(rows, S * number, D)``; what they are worth, -inf where there was no start; and the number
        of cuts for each row.
    """
    owners = known.nonzero()[:, 0]
    shares = _switched(field.rows(owners), starts[known], number).flatten(0, 1)
    repeated = field.rows(owners.repeat_interleave(number))
    labels, cuts = ascend(repeated, starts[known].repeat_interleave(number, 0), shares)
    found = starts.unsqueeze(2).repeat(1, 1, number, 1)
    found[known] = labels.unflatten(0, (-1, number))
    values = torch.full(found.shape[:-1], -torch.inf, dtype=torch.double)
    values[known] = repeated.log_weight(labels).unflatten(0, (-1, number))
    num_cuts = torch.zeros(len(starts), dtype=torch.long).index_add_(0, owners, cuts.unflatten(0, (-1, number)).sum(1))
    return found.flatten(1, 2), values.flatten(1), num_cuts


def _best(found: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The best of each row, and what it is worth."""
    value, chosen = values.max(1)
    return found[torch.arange(len(found)), chosen], value


def _runners_up(found: Tensor, values: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
    """The best labels that are worth less than the best of all, no two of them the same, as starts of a round."""
    values, order = values.sort(1, descending=True)
    above = torch.cat([worth.unsqueeze(1), values[:, :-1]], 1)
    new = values.isfinite() & (values < above - EQUAL * above.abs())
    places = new.int().argsort(dim=1, descending=True, stable=True)[:, :NUM_RUNNERS_UP]
    chosen = order.gather(1, places)
    return found[torch.arange(len(found)).unsqueeze(1), chosen], new.gather(1, places)


def _switched(field: Field, labels: Tensor, number: int) -> Tensor:
    """Shares of the hidden units given labels, with one of them switched, shape ``(rows, number, J)``."""
    activations = field.activations(field.indicators(labels))
    shares = field.slopes(activations)
    one_of_them = torch.nn.functional.one_hot(_nearest(activations, shares > 0.5)[:, :number], shares.shape[-1])
    if field.composition == "min":
        return one_of_them.to(shares)
    shares = shares.unsqueeze(1)
    return torch.where(one_of_them > 0, (shares <= 0.5).to(shares), shares)


def _nearest(activations: Tensor, on: Tensor) -> Tensor:
    """Hidden units in the order of what divides them from the others, those that are on from those that are off."""
    least, most = activations.masked_fill(~on, torch.inf).amin(-1), activations.masked_fill(on, -torch.inf).amax(-1)
    middle = torch.where(least.isinf(), most, torch.where(most.isinf(), least, (least + most) / 2))
    return (activations - middle.unsqueeze(-1)).abs().argsort(-1)
