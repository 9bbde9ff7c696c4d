"""Better labelings of fields under patterns, by searches that begin where single patterns are switched."""

__all__ = ["ascend_by_switches"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.solvers.field_cut import Ascent

# Number of weights in one batch of searches of a round.
NUMBERS_AT_ONCE = 2**24
# Number of other labels that a round begins with when switches from the best labels do not help.
NUM_RUNNERS_UP = 4
# Relative difference below which the values of two labelings count as equal.
EQUAL = 1e-12

# Function of a field, labels and means of the hidden units, shape (rows, J), from which a search begins.
Search = Callable[[Field, Tensor, Tensor], Ascent]


def ascend_by_switches(
    field: Field, labels: Tensor, max_cuts: int, num_switches: int, ascend: Search
) -> tuple[Tensor, Tensor]:
    """Improves local optima of expectation maximisation.

    Such an optimum agrees with its own hidden units, and other optima agree with other hidden units. In each round,
    single hidden units are switched, those that are nearest to being switched, and a search begins with the labels that
    are best then; the next round begins with the best labels of all searches. Where none are better, the round is
    repeated once from the four next best labelings, and the search ends unless that helps. Nothing is drawn at random.

    :param Field field: A field on the processor.
    :param Tensor labels: Local optima, shape ``(rows, D)``.
    :param int max_cuts: The number of cuts for each row after which no round begins.
    :param int num_switches: Number of hidden units that are switched in a round, one at a time.
    :param ascend: The search.
    :return: Labels of the same shape, and the number of cuts of each row.
    """
    number = min(num_switches, field.num_patterns)
    if not number:
        return labels, torch.zeros(len(labels), dtype=torch.long)
    size = NUM_RUNNERS_UP * number * math.prod(field.weights.shape[-2:])
    parts = torch.arange(len(labels)).split(max(1, NUMBERS_AT_ONCE // size))
    results = [_ascend_some(field.rows(block), labels[block], max_cuts, number, ascend) for block in parts]
    best, num_cuts = (torch.cat(column) for column in zip(*results, strict=True))
    return best, num_cuts


def _ascend_some(field: Field, labels: Tensor, max_cuts: int, number: int, ascend: Search) -> tuple[Tensor, Tensor]:
    best, worth = labels.clone(), field.log_weight(labels)
    num_cuts = torch.zeros(len(labels), dtype=torch.long)
    active = torch.arange(len(labels))
    while len(active):
        active_rows = field.rows(active)
        candidates, values, cuts = _round(
            active_rows, best[active].unsqueeze(1), torch.ones(len(active), 1).bool(), number, ascend
        )
        num_cuts[active] += cuts
        labels, value = _best(candidates, values)
        stuck = ((value <= worth[active]) & (num_cuts[active] < max_cuts)).nonzero().squeeze(1)
        starts, known = _runners_up(candidates[stuck], values[stuck], worth[active[stuck]])
        if bool(known.any()):
            candidates, values, cuts = _round(field.rows(active[stuck]), starts, known, number, ascend)
            num_cuts[active[stuck]] += cuts
            labels[stuck], value[stuck] = _best(candidates, values)
        better = value > worth[active]
        active = active[better]
        best[active], worth[active] = labels[better], value[better]
        active = active[num_cuts[active] < max_cuts]
    return best, num_cuts


def _round(field: Field, starts: Tensor, known: Tensor, number: int, ascend: Search) -> tuple[Tensor, Tensor, Tensor]:
    """Results of searches that begin where single hidden units are switched.

    :param Tensor starts: Labels, shape ``(rows, S, D)``.
    :param Tensor known: Whether a row has each of these starts, shape ``(rows, S)``.
    :return: Labels, shape ``(rows, S * number, D)``; their log-weights, shape ``(rows, S * number)``, -inf where there
        was no start; and the number of cuts for each row.
    """
    owners = known.nonzero()[:, 0]
    shares = _switched(field.rows(owners), starts[known], number).flatten(0, 1)
    repeated = field.rows(owners.repeat_interleave(number))
    labels, found, cuts = ascend(repeated, starts[known].repeat_interleave(number, 0), shares)
    results = starts.unsqueeze(2).repeat(1, 1, number, 1)
    results[known] = labels.unflatten(0, (-1, number))
    values = torch.full(results.shape[:-1], -torch.inf, dtype=torch.double)
    values[known] = found.unflatten(0, (-1, number))
    num_cuts = torch.zeros(len(starts), dtype=torch.long).index_add_(0, owners, cuts.unflatten(0, (-1, number)).sum(1))
    return results.flatten(1, 2), values.flatten(1), num_cuts


def _best(candidates: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Best labels of each row, shape ``(rows, D)``, and their log-weights, shape ``(rows,)``."""
    value, chosen = values.max(1)
    return candidates[torch.arange(len(candidates)), chosen], value


def _runners_up(candidates: Tensor, values: Tensor, worth: Tensor) -> tuple[Tensor, Tensor]:
    """Starts of a further round: the next best labels below the best of all, no two of the same log-weight."""
    values, order = values.sort(1, descending=True)
    above = torch.cat([worth.unsqueeze(1), values[:, :-1]], 1)
    new = values.isfinite() & (values < above - EQUAL * above.abs())
    places = new.int().argsort(dim=1, descending=True, stable=True)[:, :NUM_RUNNERS_UP]
    chosen = order.gather(1, places)
    return candidates[torch.arange(len(candidates)).unsqueeze(1), chosen], new.gather(1, places)


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
    """Indices of the hidden units, those first whose activation is nearest to the middle between units that are on and
    units that are off.
    """
    least, most = activations.masked_fill(~on, torch.inf).amin(-1), activations.masked_fill(on, -torch.inf).amax(-1)
    middle = torch.where(least.isinf(), most, torch.where(most.isinf(), least, (least + most) / 2))
    return (activations - middle.unsqueeze(-1)).abs().argsort(-1)
