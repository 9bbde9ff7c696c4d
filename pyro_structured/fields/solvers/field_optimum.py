"""Most probable labelings of fields under patterns, with certificates."""

__all__ = ["FieldOptimum", "maximize_deep", "maximize_field"]

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.single_layer import single_layer
from pyro_structured.fields.solvers.field_cut import Ascent, FieldCut, MapResult
from pyro_structured.fields.solvers.joint_cut import ascend, maximize_jointly
from pyro_structured.fields.solvers.label_ascent import ascend_labels, likely_labels
from pyro_structured.fields.solvers.minimum_branching import branch_and_bound
from pyro_structured.fields.solvers.pattern_dual import decompose
from pyro_structured.fields.solvers.pattern_switches import ascend_by_switches
from pyro_structured.fields.solvers.signed_graph import Unbalanced
from pyro_structured.foundation.ops.processor import on_processor

METHODS = ("em", "cut", "dual", "branch_and_bound")
# Default number of patterns that are switched in a round.
NUM_SWITCHES = 8
# Relative gap between a bound and a value up to which labels count as optimal.
TOLERANCE = 1e-9


class FieldOptimum(NamedTuple):
    """Certificate of labels that ``map`` has found; all tensors have the batch shape.

    :ivar Tensor value: Unnormalised log-probability of the labels.
    :ivar Tensor upper_bound: Upper bound of the unnormalised log-probability of any labels; +inf if there is no bound.
    :ivar Tensor optimal: Whether the bound proves that no labels are better, up to rounding.
    :ivar Tensor num_cuts: Number of minimum cuts.
    """

    value: Tensor
    upper_bound: Tensor
    optimal: Tensor
    num_cuts: Tensor


@torch.no_grad()
@on_processor()
def maximize_field(
    field: Field,
    method: str,
    starts: Tensor | None,
    max_cuts: int,
    num_switches: int | None,
    enumerate_states: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, FieldOptimum]:
    """Labels, integers of shape ``(rows, D)``, and their certificate.

    :param Field field: A field on the processor, with a row of states for each row.
    :param str method: ``"em"``, ``"cut"``, ``"dual"``, ``"branch_and_bound"``, or, unless the field is binary,
        ``"enumeration"``.
    :param Tensor starts: Labels to begin with, shape ``(number, rows, D)``.
    :param int max_cuts: The largest number of cuts for each row and start.
    :param int num_switches: Number of single hidden units that are switched in a round of :func:`ascend_by_switches`;
        ``None``: 8, or, from given starts, none.
    :param enumerate_states: Returns the best labels with states of the hidden units, shape ``(rows, D)``, and a bound,
        for ``"enumeration"``.
    """
    if field.is_binary:
        labels, certificate = _maximize_binary(field, method, starts, max_cuts, num_switches)
        return labels.long(), certificate
    if method == "enumeration":
        return _improve_enumerated(field, *enumerate_states(), max_cuts)
    if starts is not None:
        starts = _possible(field, starts)
    if field.num_labels == 2:
        labels, certificate = _maximize_binary(field.binary(), method, starts, max_cuts, num_switches)
        # Differences of huge log-weights lose the digits of small ones.
        value = field.log_weight(labels)
        return labels.long(), certificate._replace(value=value, upper_bound=certificate.upper_bound.maximum(value))
    _check_method(method, ("enumeration", *METHODS))
    if method != "em":
        raise NotImplementedError(f"method: {method!r} needs two labels; 'em' and 'enumeration' take any number")
    if bool((field.penalties < 0).any()):
        raise NotImplementedError("method: 'em' needs penalties of at least 0 where there are more than two labels")
    num_switches = _number_of_switches(num_switches, starts)
    starts = _default_label_starts(field) if starts is None else starts.long()
    return _ascend(field, starts, max_cuts, num_switches)


@torch.no_grad()
@on_processor()
def maximize_deep(
    field: Field, method: str, starts: Tensor | None, max_cuts: int, num_switches: int | None
) -> tuple[Tensor, FieldOptimum]:
    """Labels and their certificate as of :func:`maximize_field`, for fields with upper units.

    Expectation maximisation also begins with the best labels of pixels and upper units together, whose bound holds for
    the pixels, too.
    """
    if method == "em":
        labels, certificate = _maximize_binary(field, method, starts, max_cuts, num_switches)
        return labels.long(), certificate
    assert field.upper is not None
    whole = single_layer(field)
    together, joint = _maximize_binary(whole, method, None, max_cuts, num_switches)
    (height, width), rows = field.shape, len(together)
    pixels = together.reshape(rows, *whole.shape)[:, :height, :width].reshape(1, rows, -1)
    first, first_certificate = _maximize_binary(field, "em", pixels, max_cuts, None)
    second, second_certificate = _maximize_binary(field, "em", starts, max_cuts, num_switches)
    labels = torch.where((second_certificate.value > first_certificate.value).unsqueeze(-1), second, first)
    value = first_certificate.value.maximum(second_certificate.value)
    possible = (field.upper.logits > -torch.inf).sum(-1)
    # Upper units are maximised in the bound of both together, and summed out here.
    bound = (joint.upper_bound + possible * math.log(2)).maximum(value)
    optimal = bound <= value + TOLERANCE * (1 + value.abs())
    return labels.long(), FieldOptimum(
        value, bound, optimal, first_certificate.num_cuts + second_certificate.num_cuts + joint.num_cuts
    )


def _maximize_binary(
    field: Field, method: str, starts: Tensor | None, max_cuts: int, num_switches: int | None
) -> tuple[Tensor, FieldOptimum]:
    """Labels, zeros and ones in double precision of shape ``(rows, D)``, and their certificate."""
    _check_method(method, METHODS)
    num_switches = _number_of_switches(num_switches, starts)
    starts = None if starts is None else starts.double()
    kinds = {"em": (str, Tensor), "cut": (str,), "dual": (str,), "branch_and_bound": (str,)}[method]
    if not isinstance(field.composition, kinds) or (method == "dual" and field.composition == "min"):
        expected = "composition='sum'" if method == "dual" else "composition='sum' or 'min'"
        raise NotImplementedError(f"method: {method!r} needs {expected}; 'em' takes every composition")
    try:
        if method == "cut":
            result = maximize_jointly(field)
        else:
            result = _from_starts(field, method, starts, max_cuts, num_switches)
    except Unbalanced as error:
        raise NotImplementedError(
            f"method: {method!r} needs signs of penalties{' and weights' if method == 'cut' else ''} of which an even "
            f"number is negative in every cycle, but these variables, patterns after pixels, are on another one: "
            f"{error.cycle}" + ("; 'em' and 'branch_and_bound' take weights of any sign" if method == "cut" else "")
        ) from None
    value = field.log_weight(result.labels)
    optimal = result.upper_bound <= value + TOLERANCE * (1 + value.abs())
    return result.labels, FieldOptimum(value, result.upper_bound.maximum(value), optimal, result.num_cuts)


def _check_method(method: str, known: tuple[str, ...]) -> None:
    if method not in known:
        raise ValueError(f"method: expected one of {known}, got {method!r}")


def _number_of_switches(number: int | None, starts: Tensor | None) -> int:
    """Number of switches: ``number`` if it is given, otherwise 8 from the default starts and none from given ones."""
    if number is not None:
        return number
    return NUM_SWITCHES if starts is None else 0


def _from_starts(field: Field, method: str, starts: Tensor | None, max_cuts: int, num_switches: int) -> MapResult:
    rows, pixels = len(field.states), field.num_pixels
    network = FieldCut(field.edges.numpy(), pixels)
    starts = _default_starts(field, network) if starts is None else starts
    repeated = field.rows(torch.arange(rows).repeat(len(starts)))
    ascended = ascend(repeated, starts.flatten(0, 1), max_cuts, network)
    values = ascended.values.reshape(len(starts), rows)
    labels = ascended.labels.reshape(len(starts), rows, pixels)[values.argmax(0), torch.arange(rows)]
    restart = partial(_ascend_from, network, max_cuts)
    labels, cuts = ascend_by_switches(field, labels, max_cuts, num_switches, restart)
    cuts = cuts + ascended.num_cuts.reshape(len(starts), rows).sum(0)
    if method == "em":
        return MapResult(labels, torch.full((rows,), torch.inf, dtype=torch.double), cuts)
    if method == "dual":
        result = decompose(field, labels, max_cuts)
    elif field.composition == "sum":
        result = branch_and_bound(field, labels, max_cuts)
    else:
        # A cut for each pattern is nearly as good as all that follows.
        joint = maximize_jointly(field)
        if field.temperature == 0:
            return joint
        better = field.log_weight(joint.labels) > field.log_weight(labels)
        result = branch_and_bound(field, torch.where(better.unsqueeze(-1), joint.labels, labels), max_cuts)
        bound = torch.minimum(result.upper_bound, joint.upper_bound)
        result = result._replace(upper_bound=bound, num_cuts=result.num_cuts + joint.num_cuts)
    return result._replace(num_cuts=result.num_cuts + cuts)


def _ascend_from(network: FieldCut, max_cuts: int, field: Field, labels: Tensor, shares: Tensor) -> Ascent:
    """Ascent from the labels that are best at some means of the hidden units.

    :param Tensor labels: Present labels, at which the ascent stops, shape ``(rows, D)``.
    :param Tensor shares: Means of the hidden units, shape ``(rows, J)``.
    """
    cut = network.maximize((field.odds + field.tilt(shares)).numpy(), field.penalties.numpy())
    ascended = ascend(field, torch.from_numpy(cut).double(), max_cuts, network, labels)
    return ascended._replace(num_cuts=ascended.num_cuts + 1)


def _default_starts(field: Field, network: FieldCut) -> Tensor:
    """Best labels without patterns, and with mean 1/2 of all hidden units, or 1/J with ``"min"``."""
    share = 1 / max(1, field.num_patterns) if field.composition == "min" else 0.5
    fields = (field.odds, field.odds + share * field.weights.sum(-2))
    starts = [network.maximize(odds.numpy(), field.penalties.numpy()) for odds in fields]
    return torch.stack([torch.from_numpy(labels) for labels in starts]).double()


def _improve_enumerated(field: Field, labels: Tensor, bound: Tensor, max_cuts: int) -> tuple[Tensor, FieldOptimum]:
    """Best labels with states of the hidden units, improved by expansion moves where these may help."""
    value, cuts = field.log_weight(labels), torch.zeros(len(labels), dtype=torch.long)
    if field.temperature and field.num_patterns and not bool((field.penalties < 0).any()):
        improved = ascend_labels(field, labels, max_cuts)
        labels, cuts, value = improved.labels, improved.num_cuts, field.log_weight(improved.labels)
    bound = bound.maximum(value)
    return labels, FieldOptimum(value, bound, bound <= value + TOLERANCE * (1 + value.abs()), cuts)


def _ascend(field: Field, starts: Tensor, max_cuts: int, num_switches: int) -> tuple[Tensor, FieldOptimum]:
    rows = len(field.states)
    repeated = field.rows(torch.arange(rows).repeat(len(starts)))
    ascended = ascend_labels(repeated, starts.flatten(0, 1), max_cuts)
    values = ascended.values.reshape(len(starts), rows)
    labels = ascended.labels.unflatten(0, (len(starts), rows))[values.argmax(0), torch.arange(rows)]
    labels, more = ascend_by_switches(field, labels, max_cuts, num_switches, partial(_ascend_labels_from, max_cuts))
    value, cuts = field.log_weight(labels), ascended.num_cuts.reshape(len(starts), rows).sum(0) + more
    return labels, FieldOptimum(value, torch.full_like(value, torch.inf), torch.zeros_like(cuts).bool(), cuts)


def _ascend_labels_from(max_cuts: int, field: Field, labels: Tensor, shares: Tensor) -> Ascent:
    """Ascent from labels that are good at some means of the hidden units.

    :param Tensor labels: Present labels, at which the ascent stops, shape ``(rows, D)``.
    :param Tensor shares: Means of the hidden units, shape ``(rows, J)``.
    """
    tilted = field.with_tilt(field.tilt(shares)).without_patterns()
    first = ascend_labels(tilted, labels, min(max_cuts, field.num_labels))
    ascended = ascend_labels(field, first.labels, max_cuts, labels)
    return ascended._replace(num_cuts=first.num_cuts + ascended.num_cuts)


def _default_label_starts(field: Field) -> Tensor:
    """Good labels without patterns, and with mean 1/2 of all hidden units, or 1/J with ``"min"``."""
    share = 1 / max(1, field.num_patterns) if field.composition == "min" else 0.5
    shares = field.states.new_ones(len(field.states), field.num_patterns)
    tilted = [field.with_tilt(field.tilt(level * shares)).without_patterns() for level in (0.0, share)]
    return torch.stack(
        [
            ascend_labels(tilted_field, likely_labels(tilted_field), 10 * field.num_labels).labels
            for tilted_field in tilted
        ]
    )


def _possible(field: Field, starts: Tensor) -> Tensor:
    """Starts with likely labels in place of impossible ones."""
    worth = torch.stack([field.log_weight(start) for start in starts])
    return torch.where((worth == -torch.inf).unsqueeze(-1), likely_labels(field), starts)
