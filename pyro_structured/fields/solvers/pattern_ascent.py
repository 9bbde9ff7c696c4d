"""Good labelings of fields under patterns, by expectation maximisation with exact cuts."""

__all__ = ["ascend"]

import torch
from torch import Tensor

from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.pattern_objective import MapResult, PatternObjective


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
