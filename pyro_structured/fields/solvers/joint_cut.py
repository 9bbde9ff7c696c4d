"""Best labelings of fields under patterns at temperature zero, by cuts in which hidden units are nodes."""

__all__ = ["ascend", "maximize_jointly", "rounding"]

import math

import numpy as np
import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.solvers.field_cut import Ascent, FieldCut, MapResult

# Cuts are those of capacities that are rounded to this share of their sum, or less.
RESOLUTION = 2.0**-50


def maximize_jointly(field: Field) -> MapResult:
    r"""Maximises over labels and hidden units together, which is exact at temperature 0.

    With the composition ``"sum"``, one cut does that, if the signs of all penalties and weights are balanced: each
    pattern has weights of one sign, for example. With ``"min"``, it is one cut for each pattern, of weights of any
    sign.
    A temperature T adds at most :math:`T J \log 2`, or :math:`T \log J`, so that the labels are as near to the best.

    :param Field field: A field of zeros and ones, on the processor; no table.
    :raises Unbalanced: if a cycle of penalties and weights has an odd number of negative ones; hidden units are the
        nodes after the pixels.
    """
    number = field.num_patterns
    least = field._replace(temperature=0.0)
    labels = _of_one_pattern(least) if field.composition == "min" else _with_hidden_units(least)
    smoothing = math.log(max(number, 1)) if field.composition == "min" else number * math.log(2)
    bound = least.log_weight(labels) + field.temperature * smoothing + rounding(field)
    cuts = number if field.composition == "min" else 1
    return MapResult(labels, bound, torch.full((len(labels),), cuts))


def rounding(field: Field) -> Tensor:
    """Rounding error of cuts: a bound of the best value less the value that was found, shape ``(rows,)``."""
    odds, penalties = (
        numbers.masked_fill(numbers.isinf(), 0.0).abs().sum(-1) for numbers in (field.odds, field.penalties)
    )
    return RESOLUTION * (1 + odds + penalties + field.weights.abs().sum((-2, -1)))


def _of_one_pattern(field: Field) -> Tensor:
    """Best labels over all patterns, one at a time, shape ``(rows, D)``."""
    network = FieldCut(field.edges.numpy(), field.num_pixels)
    penalties = field.penalties.numpy()
    candidates, values = [], []
    for weights, bias in zip(field.weights.unbind(1), field.biases.unbind(1), strict=True):
        labels = torch.from_numpy(network.maximize((field.odds + weights).numpy(), penalties)).double()
        candidates.append(labels)
        values.append(field.plain_log_weight(labels) + (weights * labels).sum(-1) + bias)
    best = torch.stack(values).argmax(0)
    return torch.stack(candidates)[best, torch.arange(len(best))]


def _with_hidden_units(field: Field) -> Tensor:
    number, pixels = field.weights.shape[-2:]
    hidden = np.stack(np.meshgrid(np.arange(pixels, pixels + number), np.arange(pixels), indexing="ij"), -1)
    edges = np.concatenate([field.edges.numpy(), hidden.reshape(-1, 2)])
    rows = field.num_rows
    # w h y = w / 2 (h + y - [h != y])
    halves = (field.weights / 2).expand(rows, -1, -1)
    odds = torch.cat([field.odds + halves.sum(1), (field.biases + halves.sum(2)).expand(rows, -1)], -1)
    penalties = torch.cat([field.penalties.expand(rows, -1), halves.flatten(1)], -1)
    labels = FieldCut(edges, pixels + number).maximize(odds.numpy(), penalties.numpy())
    return torch.from_numpy(labels[:, :pixels]).double()


def ascend(
    field: Field,
    labels: Tensor,
    max_cuts: int,
    network: FieldCut | None = None,
    optima: Tensor | None = None,
) -> Ascent:
    """Improves labels until they do not change.

    The potential of the patterns is convex in their activations, at every temperature and with every table, so that its
    tangent at the labels bounds it from below: the E-step finds the tangent, the M-step maximises the objective with
    the tangent in place of the potential, by a cut. Labels never get worse.

    :param Field field: A field of zeros and ones, on the processor.
    :param Tensor labels: Labels to begin with, zeros and ones of shape ``(rows, D)``.
    :param int max_cuts: The largest number of cuts for each row.
    :param FieldCut network: Network of the edges, if there is one already.
    :param Tensor optima: Labels that are known to be local optima, at which the ascent of a row stops, shape ``(rows,
        D)``.

    **References**

    Li (2013), Section 4.2, Equations (4.11) and (4.12).
    """
    network = FieldCut(field.edges.numpy(), labels.shape[-1]) if network is None else network
    best, worth = labels.clone(), field.log_weight(labels)
    num_cuts = torch.zeros(len(labels), dtype=torch.long)
    active = torch.arange(len(labels))
    while True:
        if optima is not None:
            active = active[(best[active] != optima[active]).any(-1)]
        if not len(active) or int(num_cuts.max()) >= max_cuts:
            return Ascent(best, worth, num_cuts)
        active_rows = field.rows(active)
        shares = active_rows.slopes(active_rows.activations(active_rows.indicators(best[active])))
        owners: Tensor | slice = slice(None)
        if field.num_patterns and field.is_repeated:
            # Tangents where hidden units have the same means are the same.
            shares, owners = shares.unique(dim=0, return_inverse=True)
            active_rows = field.rows(torch.zeros(len(shares), dtype=torch.long))
        odds = active_rows.odds + active_rows.tilt(shares)
        labels = torch.from_numpy(network.maximize(odds.numpy(), active_rows.penalties.numpy())).to(best)
        values = active_rows.log_weight(labels)[owners]
        labels = labels[owners]
        num_cuts[active] += 1
        better = values > worth[active]
        active = active[better]
        best[active], worth[active] = labels[better], values[better]
