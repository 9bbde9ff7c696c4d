"""Best labelings of fields under patterns at temperature zero, by cuts in which hidden units are nodes."""

__all__ = ["ascend", "maximize_jointly"]

import math

import numpy as np
import torch
from torch import Tensor

from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.pattern_objective import MapResult, PatternObjective

# Cuts are those of capacities that are rounded to this share of their sum, or less.
RESOLUTION = 2.0**-50


def maximize_jointly(objective: PatternObjective) -> MapResult:
    r"""Maximises over labels and hidden units together, which is exact at temperature 0.

    With the composition ``"sum"``, one cut does that, if the signs of all penalties and weights are balanced: each
    pattern has weights of one sign, for example. With ``"min"``, it is one cut for each pattern, of weights of any
    sign.
    A temperature T adds at most :math:`T J \log 2`, or :math:`T \log J`, so that the labels are as near to the best.

    :param PatternObjective objective: The fields; no table.
    :raises Unbalanced: if a cycle of penalties and weights has an odd number of negative ones; hidden units are the
        nodes after the pixels.
    """
    number = objective.weights.shape[-2]
    least = objective._replace(temperature=0.0)
    labels = _of_one_pattern(least) if objective.composition == "min" else _with_hidden_units(least)
    smoothing = math.log(max(number, 1)) if objective.composition == "min" else number * math.log(2)
    bound = least.value(labels) + objective.temperature * smoothing + rounding(objective)
    cuts = number if objective.composition == "min" else 1
    return MapResult(labels, bound, torch.full((objective.num_rows,), cuts))


def rounding(objective: PatternObjective) -> Tensor:
    """How much better than a cut that was found the best one may be, shape ``(rows,)``."""
    odds, penalties = (
        part.masked_fill(part.isinf(), 0.0).abs().sum(-1) for part in (objective.odds, objective.penalties)
    )
    return RESOLUTION * (1 + odds + penalties + objective.weights.abs().sum((-2, -1)))


def _of_one_pattern(objective: PatternObjective) -> Tensor:
    """The best labels for each pattern alone, and of these the best."""
    network = FieldCut(objective.edges, objective.odds.shape[-1])
    penalties = objective.penalties.numpy()
    found, worth = [], []
    for weights, bias in zip(objective.weights.unbind(1), objective.biases.unbind(1), strict=True):
        labels = torch.from_numpy(network.maximize((objective.odds + weights).numpy(), penalties)).double()
        found.append(labels)
        worth.append(objective.field(labels) + (weights * labels).sum(-1) + bias)
    best = torch.stack(worth).argmax(0)
    return torch.stack(found)[best, torch.arange(objective.num_rows)]


def _with_hidden_units(objective: PatternObjective) -> Tensor:
    number, pixels = objective.weights.shape[-2:]
    hidden = np.stack(np.meshgrid(np.arange(pixels, pixels + number), np.arange(pixels), indexing="ij"), -1)
    edges = np.concatenate([objective.edges.reshape(-1, 2), hidden.reshape(-1, 2)])
    rows = objective.num_rows
    # w h y = w / 2 (h + y - [h != y])
    halves = (objective.weights / 2).expand(rows, -1, -1)
    odds = torch.cat([objective.odds + halves.sum(1), (objective.biases + halves.sum(2)).expand(rows, -1)], -1)
    penalties = torch.cat([objective.penalties.expand(rows, -1), halves.flatten(1)], -1)
    labels = FieldCut(edges, pixels + number).maximize(odds.numpy(), penalties.numpy())
    return torch.from_numpy(labels[:, :pixels]).double()


def ascend(
    objective: PatternObjective,
    labels: Tensor,
    max_cuts: int,
    network: FieldCut | None = None,
    optima: Tensor | None = None,
) -> MapResult:
    """Improves labels until they do not change.

    The potential of the patterns is convex in their activations, at every temperature and with every table, so that its
    tangent at the labels bounds it from below: the E-step finds the tangent, the M-step maximises what it makes of the
    objective, by a cut. Labels never get worse.

    :param PatternObjective objective: The fields.
    :param Tensor labels: Where to begin, zeros and ones of shape ``(rows, D)``.
    :param int max_cuts: The largest number of cuts for each row.
    :param FieldCut network: Of the edges, if there is one already.
    :param Tensor optima: Labels that are known not to change, of which nothing more has to be found out, shape ``(rows,
        D)``.

    **References**

    Li (2013), Section 4.2, Equations (4.11) and (4.12).
    """
    network = FieldCut(objective.edges, labels.shape[-1]) if network is None else network
    best, worth = labels.clone(), objective.value(labels)
    num_cuts = torch.zeros(objective.num_rows, dtype=torch.long)
    active = torch.arange(objective.num_rows)
    while True:
        if optima is not None:
            active = active[(best[active] != optima[active]).any(-1)]
        if not len(active) or int(num_cuts.max()) >= max_cuts:
            return MapResult(best, torch.full_like(worth, torch.inf), num_cuts)
        some = objective.rows(active)
        odds = some.tangent(best[active])
        found = torch.from_numpy(network.maximize(odds.numpy(), some.penalties.numpy())).to(best)
        num_cuts[active] += 1
        values = some.value(found)
        better = values > worth[active]
        active = active[better]
        best[active], worth[active] = found[better], values[better]
