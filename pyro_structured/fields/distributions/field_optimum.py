"""Most probable labelings of fields under patterns, and what is known of them."""

__all__ = ["checked_efforts", "maximize_field", "maximize_labels"]

from functools import partial

import torch
from torch import Tensor

from pyro_structured.fields.distributions.label_field import FieldOptimum, LabelField
from pyro_structured.fields.ops.pattern_potential import pattern_potential, pattern_slopes
from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.joint_cut import ascend, maximize_jointly
from pyro_structured.fields.solvers.label_ascent import ascend_labels, likely_labels
from pyro_structured.fields.solvers.label_objective import LabelObjective
from pyro_structured.fields.solvers.minimum_branching import branch_and_bound
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


@torch.no_grad()
def maximize_labels(
    field: LabelField, method: str, starts: Tensor | None, max_cuts: int, num_switches: int | None
) -> tuple[Tensor, FieldOptimum]:
    """Labels of shape ``(rows, D)``, and what is known of them; arguments as for :func:`maximize_field`."""
    max_cuts, num_switches = checked_efforts(max_cuts, num_switches, starts)
    objective = _objective(field)
    if method == "enumeration":
        return _enumerate_states(field, objective, max_cuts)
    if starts is not None:
        starts = _possible(objective, starts)
    if objective.num_labels == 2:
        binary = None if starts is None else starts.double()
        labels, found = maximize_field(_of_two(objective), method, binary, max_cuts, num_switches)
        # Differences of huge log-weights have swallowed the digits of the others.
        value = objective.value(labels.long())
        return labels.long(), found._replace(value=value, upper_bound=found.upper_bound.maximum(value))
    if method not in METHODS:
        raise ValueError(f"method: expected one of {('enumeration', *METHODS)}, got {method!r}")
    if method != "em":
        raise NotImplementedError(f"method: {method!r} needs two labels; 'em' and 'enumeration' take any number")
    if bool((objective.penalties < 0).any()):
        raise NotImplementedError("method: 'em' needs penalties of at least 0 where there are more than two labels")
    return _ascend(objective, _default_label_starts(objective) if starts is None else starts, max_cuts, num_switches)


def _enumerate_states(field: LabelField, objective: LabelObjective, max_cuts: int) -> tuple[Tensor, FieldOptimum]:
    """The best labels with each state of the hidden units, made better by expansion moves."""
    labels, bound = field._best_of_hidden_states()
    rows = labels.expand(field.batch_shape + labels.shape[-1:]).reshape(objective.num_rows, labels.shape[-1]).cpu()
    value, cuts = objective.value(rows), torch.zeros(objective.num_rows, dtype=torch.long)
    if field.temperature and field._num_patterns and not bool((objective.penalties < 0).any()):
        rows, cuts = ascend_labels(objective, rows, max_cuts)
        value = objective.value(rows)
    bound = bound.expand(field.batch_shape).flatten().cpu().maximum(value)
    return rows, FieldOptimum(value, bound, bound <= value + TOLERANCE * (1 + value.abs()), cuts)


def _ascend(objective: LabelObjective, starts: Tensor, max_cuts: int, num_switches: int) -> tuple[Tensor, FieldOptimum]:
    rows = objective.num_rows
    repeated = objective.rows(torch.arange(rows).repeat(len(starts)))
    found = ascend_labels(repeated, starts.flatten(0, 1), max_cuts)
    values = repeated.value(found.labels).reshape(len(starts), rows)
    labels = found.labels.unflatten(0, (len(starts), rows))[values.argmax(0), torch.arange(rows)]
    labels, more = ascend_by_switches(objective, labels, max_cuts, num_switches, partial(_ascend_labels_from, max_cuts))
    value, cuts = objective.value(labels), found.num_cuts.reshape(len(starts), rows).sum(0) + more
    return labels, FieldOptimum(value, torch.full_like(value, torch.inf), torch.zeros_like(cuts).bool(), cuts)


def _ascend_labels_from(
    max_cuts: int, objective: LabelObjective, labels: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """Labels that are improved from better ones with some shares of the patterns, present ones being known, and the
    number of cuts.
    """
    first = ascend_labels(objective.tilted(shares), labels, min(max_cuts, objective.num_labels))
    found = ascend_labels(objective, first.labels, max_cuts, labels)
    return found.labels, first.num_cuts + found.num_cuts


def _default_label_starts(objective: LabelObjective) -> Tensor:
    """Good labels without patterns, and with all patterns half on, or each in a share."""
    number = objective.weights.shape[-2]
    share = 1 / max(1, number) if objective.composition == "min" else 0.5
    shares = objective.states.new_ones(objective.num_rows, number)
    fields = (objective.tilted(0 * shares), objective.tilted(share * shares))
    return torch.stack([ascend_labels(field, likely_labels(field), 10 * field.num_labels).labels for field in fields])


def _possible(objective: LabelObjective, starts: Tensor) -> Tensor:
    """With others in place of impossible ones."""
    worth = torch.stack([objective.value(start) for start in starts])
    return torch.where((worth == -torch.inf).unsqueeze(-1), likely_labels(objective), starts)


def _objective(field: LabelField) -> LabelObjective:
    """All fields of the batch, one after the other."""
    number, labels = field.batch_shape.numel(), field._num_labels
    states = field._supported_states
    parts = {
        "states": states,
        "base": field._constant.unsqueeze(-1),
        "penalties": field._penalties if field._paired else states.new_zeros(len(field._edges)),
        "weights": field._patterns[0],
        "biases": field._patterns[1],
        "composition": field._table,
    }
    rows = {name: field._rows(part.detach()).cpu() for name, part in parts.items()}
    shape = (-1, field._num_patterns, field._num_indicators)
    none = rows["weights"].new_zeros(1, 0, field._num_indicators)
    return LabelObjective(
        states=rows["states"].expand(number, -1).unflatten(-1, (labels, field._num_variables)),
        base=rows["base"].squeeze(-1).expand(number),
        penalties=rows["penalties"],
        weights=rows["weights"].reshape(shape) if field._num_patterns else none,
        biases=rows["biases"],
        composition=field._scheme or rows["composition"],
        temperature=field.temperature,
        edges=field._edges.cpu().numpy(),
        potential=pattern_potential,
        slopes=pattern_slopes,
    )


def _of_two(objective: LabelObjective) -> PatternObjective:
    """In terms of what label 1 is worth more than label 0."""
    off, on = objective.states.unbind(1)
    weights = objective.weights.unflatten(-1, (2, off.shape[-1]))
    certain = off == -torch.inf
    odds = torch.where(certain, torch.inf, on - off.masked_fill(certain, 0.0))
    return PatternObjective(
        odds=odds,
        base=torch.where(certain, on, off).sum(-1) + objective.base,
        penalties=objective.penalties,
        weights=weights[..., 1, :] - weights[..., 0, :],
        biases=objective.biases + weights[..., 0, :].sum(-1),
        composition=objective.composition,
        temperature=objective.temperature,
        edges=objective.edges,
        potential=objective.potential,
        slopes=objective.slopes,
    )
