"""Best labelings of fields under patterns, with a proof: branch and bound over activations, a cut for each bound."""

__all__ = ["branch_and_bound"]

import torch
from torch import Tensor

from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.joint_cut import rounding
from pyro_structured.fields.solvers.minimum_branching import MinimumSearch
from pyro_structured.fields.solvers.pattern_objective import MapResult, PatternObjective
from pyro_structured.fields.solvers.sum_branching import SumSearch


def branch_and_bound(objective: PatternObjective, labels: Tensor, max_cuts: int) -> MapResult:
    """Maximises exactly, or as far as a number of cuts goes.

    :param PatternObjective objective: The fields; no table.
    :param Tensor labels: Good ones to begin with, shape ``(rows, D)``.
    :param int max_cuts: The largest number of cuts for each row; one more may be taken.
    :return: The best labels that are found, and a bound, which is their value, up to rounding, if they are the best.
    """
    network = FieldCut(objective.edges, labels.shape[-1])
    kind = SumSearch if objective.composition == "sum" else MinimumSearch
    best, bounds = labels.clone(), torch.empty(len(labels), dtype=torch.double)
    cuts = torch.zeros(len(labels), dtype=torch.long)
    for index in range(len(labels)):
        search = kind(objective.row(index), network, labels[index].numpy())
        bounds[index] = search.run(max_cuts)
        best[index], cuts[index] = torch.from_numpy(search.best), search.num_cuts
    return MapResult(best, bounds + rounding(objective), cuts)
