"""Fields of a batch together with their hidden units, for what draws one given the other."""

__all__ = ["independent_labels", "joint_field"]

from typing import Any, overload

import torch
from torch import Tensor

from pyro_structured.fields.distributions.label_weights import LabelWeights
from pyro_structured.fields.distributions.pattern_weights import PatternWeights
from pyro_structured.fields.ops.field_with_units import DeepJointField, JointField
from pyro_structured.fields.ops.joint_labels import JointLabels
from pyro_structured.foundation.ops.any_true import any_true
from pyro_structured.foundation.ops.evidence import log_odds


@overload
def joint_field(field: PatternWeights) -> JointField: ...


@overload
def joint_field(field: LabelWeights) -> JointField | JointLabels: ...


@torch.no_grad()
def joint_field(field: LabelWeights) -> JointField | JointLabels:
    """All fields of a batch, as many rows as there are elements, or one if all are the same.

    :raises NotImplementedError: if the temperature is no positive integer, so that there is no joint distribution, or a
        penalty is infinite, so that no label can change alone.
    """
    number = field._num_patterns
    replicas = int(field.temperature) if number else 1
    if number and not 1 <= replicas == field.temperature:
        remedy = "; BinaryGibbs samples labels at any temperature" if isinstance(field, PatternWeights) else ""
        raise NotImplementedError(
            f"temperature: expected an integer of at least 1 to sample hidden units, got {field.temperature}{remedy}"
        )
    penalties = field._penalties
    if any_true(penalties == torch.inf):
        raise NotImplementedError(
            "pairwise: expected finite penalties, as labels that have to be alike cannot change one by one, got +inf"
        )
    states = field._supported_states
    weights, biases = field._patterns
    matrices = field._rows(weights) if number else weights.new_zeros(1, 0)
    common: dict[str, Any] = {
        "penalties": field._rows(penalties).unsqueeze(1),
        "weights": matrices.unflatten(-1, (number, field._num_indicators)),
        "biases": field._rows(biases).unsqueeze(1),
        "composition": field._rows(field._table).unsqueeze(1) if field._scheme is None else field._scheme,
        "replicas": replicas,
        "shape": field._shape,
    }
    if isinstance(field, PatternWeights):
        odds = field._rows(log_odds(*states.chunk(2, -1))).unsqueeze(1)
        if field._upper_layer is None:
            return JointField(odds=odds, **common)
        upper_weights, upper_logits = field._upper_layer
        flat = field._rows(upper_weights.flatten(-2)).unsqueeze(1)
        return DeepJointField(
            odds=odds,
            upper_weights=flat.unflatten(-1, upper_weights.shape[-2:]),
            upper_logits=field._rows(upper_logits).unsqueeze(1),
            **common,
        )
    by_label = field._rows(states).unflatten(-1, (field._num_labels, field._num_variables))
    return JointLabels(states=by_label.unsqueeze(1), **common)


@torch.no_grad()
def independent_labels(field: LabelWeights) -> Tensor:
    """Labels drawn from their own log-weights and the evidence alone, without penalties and patterns: a place to start.

    :return: Shape ``batch_shape + event_shape``.
    """
    states = field._known_states.unflatten(-1, (field._num_labels, field._num_variables))
    noise = torch.empty(field.batch_shape + states.shape[-2:], dtype=states.dtype, device=states.device)
    drawn = (states - noise.exponential_().clamp_(min=1e-300).log_()).argmax(-2)
    return field._as_values(drawn.reshape(field.batch_shape + field.event_shape))
