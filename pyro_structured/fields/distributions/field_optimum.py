"""Most probable labelings of fields under patterns, and what is known of them."""

__all__ = ["FieldOptimum", "checked_efforts", "maximize_field"]

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.joint_cut import maximize_jointly
from pyro_structured.fields.solvers.pattern_ascent import ascend
from pyro_structured.fields.solvers.pattern_branching import branch_and_bound
from pyro_structured.fields.solvers.pattern_dual import decompose
from pyro_structured.fields.solvers.pattern_objective import MapResult, PatternObjective
from pyro_structured.fields.solvers.pattern_switches import ascend_by_switches
from pyro_structured.fields.solvers.signed_graph import Unbalanced
from pyro_structured.foundation.structures.argument_checks import check_choice, check_size

METHODS = ("em", "cut", "dual", "branch_and_bound")
# Patterns that are switched in a round unless another number is given.
NUM_SWITCHES = 8
# Share of a value by which a bound may be above it, and the labels are still called the best.
TOLERANCE = 1e-9


class FieldOptimum(NamedTuple):
    """What is known of labels that were found, all of the batch's shape.

    :ivar Tensor value: Their unnormalised log-probability.
    :ivar Tensor upper_bound: No labels have a larger one; +inf if there is no bound.
    :ivar Tensor optimal: Whether the bound proves that none are better, up to rounding.
    :ivar Tensor num_cuts: How many minimum cuts it took.
    """

    value: Tensor
    upper_bound: Tensor
    optimal: Tensor
    num_cuts: Tensor


def maximize_field(
    objective: PatternObjective, method: str, starts: Tensor | None, max_cuts: int, num_switches: int | None
) -> tuple[Tensor, FieldOptimum]:
    """Labels of shape ``(rows, D)``, and what is known of them.

    :param str method: One of ``METHODS``.
    :param Tensor starts: Labels to begin with, shape ``(number, rows, D)``.
    :param int max_cuts: The largest number of cuts for each row and start.
    :param int num_switches: How many single hidden units are switched in a round, as :func:`ascend_by_switches` says;
        ``None``: 8, or, from given starts, none.
    """
    check_choice("method", method, METHODS)
    max_cuts, num_switches = checked_efforts(max_cuts, num_switches, starts)
    kinds = {"em": (str, Tensor), "cut": (str,), "dual": (str,), "branch_and_bound": (str,)}[method]
    if not isinstance(objective.composition, kinds) or (method == "dual" and objective.composition == "min"):
        expected = "composition='sum'" if method == "dual" else "composition='sum' or 'min'"
        raise NotImplementedError(f"method: {method!r} needs {expected}; 'em' takes every composition")
    try:
        if method == "cut":
            found = maximize_jointly(objective)
        else:
            found = _from_starts(objective, method, starts, max_cuts, num_switches)
    except Unbalanced as error:
        raise NotImplementedError(
            f"method: {method!r} needs signs of penalties{' and weights' if method == 'cut' else ''} of which an even "
            f"number is negative in every cycle, but these variables, patterns after pixels, are on another one: "
            f"{error.cycle}" + ("; 'em' and 'branch_and_bound' take weights of any sign" if method == "cut" else "")
        ) from None
    value = objective.value(found.labels)
    optimal = found.upper_bound <= value + TOLERANCE * (1 + value.abs())
    return found.labels, FieldOptimum(value, found.upper_bound.maximum(value), optimal, found.num_cuts)


def checked_efforts(max_cuts: int, num_switches: int | None, starts: Tensor | None) -> tuple[int, int]:
    """The same, with a number in place of ``None``, or a ValueError."""
    if isinstance(max_cuts, bool) or not isinstance(max_cuts, int) or max_cuts < 1:
        raise ValueError(f"max_cuts: expected a positive integer, got {max_cuts!r}")
    if num_switches is None:
        return max_cuts, NUM_SWITCHES if starts is None else 0
    check_size("num_switches", num_switches, 0)
    return max_cuts, num_switches


def _from_starts(
    objective: PatternObjective, method: str, starts: Tensor | None, max_cuts: int, num_switches: int
) -> MapResult:
    rows, pixels = objective.odds.shape
    network = FieldCut(objective.edges, pixels)
    starts = _default_starts(objective, network) if starts is None else starts
    repeated = objective.rows(torch.arange(rows).repeat(len(starts)))
    found = ascend(repeated, starts.flatten(0, 1), max_cuts, network)
    values = repeated.value(found.labels).reshape(len(starts), rows)
    labels = found.labels.reshape(len(starts), rows, pixels)[values.argmax(0), torch.arange(rows)]
    restart = partial(_ascend_from, network, max_cuts)
    labels, cuts = ascend_by_switches(objective, labels, max_cuts, num_switches, restart)
    cuts = cuts + found.num_cuts.reshape(len(starts), rows).sum(0)
    if method == "em":
        return MapResult(labels, torch.full((rows,), torch.inf, dtype=torch.double), cuts)
    if method == "dual":
        result = decompose(objective, labels, max_cuts)
    elif objective.composition == "sum":
        result = branch_and_bound(objective, labels, max_cuts)
    else:
        # A cut for each pattern is nearly as good as all that follows.
        joint = maximize_jointly(objective)
        if objective.temperature == 0:
            return joint
        better = objective.value(joint.labels) > objective.value(labels)
        result = branch_and_bound(objective, torch.where(better.unsqueeze(-1), joint.labels, labels), max_cuts)
        bound = torch.minimum(result.upper_bound, joint.upper_bound)
        result = result._replace(upper_bound=bound, num_cuts=result.num_cuts + joint.num_cuts)
    return result._replace(num_cuts=result.num_cuts + cuts)


def _ascend_from(
    network: FieldCut, max_cuts: int, objective: PatternObjective, labels: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """Labels that are improved from the best ones with some shares of the patterns, present ones being known, and the
    number of cuts.
    """
    cut = network.maximize(objective.tilted(shares).numpy(), objective.penalties.numpy())
    found = ascend(objective, torch.from_numpy(cut).to(labels), max_cuts, network, labels)
    return found.labels, found.num_cuts + 1


def _default_starts(objective: PatternObjective, network: FieldCut) -> Tensor:
    """The best labels without patterns, and with all patterns half on, or each in a share."""
    share = 1 / max(1, objective.weights.shape[-2]) if objective.composition == "min" else 0.5
    fields = (objective.odds, objective.odds + share * objective.weights.sum(-2))
    starts = [network.maximize(odds.numpy(), objective.penalties.numpy()) for odds in fields]
    return torch.stack([torch.from_numpy(labels) for labels in starts]).double()
