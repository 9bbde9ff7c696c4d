"""Fields of a batch together with their hidden units, for what draws one given the other."""

__all__ = ["independent_labels", "joint_field"]

import torch
from torch import Tensor

from pyro_structured.distributions.pattern_weights import PatternWeights
from pyro_structured.ops.anywhere import anywhere
from pyro_structured.ops.cardinality import require_support
from pyro_structured.ops.deep_joint_field import DeepJointField
from pyro_structured.ops.evidence import log_odds
from pyro_structured.ops.joint_field import JointField
from pyro_structured.ops.pattern_potential import pattern_potential


@torch.no_grad()
def joint_field(field: PatternWeights) -> JointField:
    """All fields of a batch, as many rows as there are elements, or one if all are the same.

    :raises NotImplementedError: if the temperature is no positive integer, so that there is no joint distribution, or a
        penalty is infinite, so that no label can change alone.
    """
    number, pixels = field._num_patterns, field._num_variables
    replicas = int(field.temperature) if number else 1
    if number and not 1 <= replicas == field.temperature:
        raise NotImplementedError(
            f"temperature: expected an integer of at least 1 to sample hidden units, got {field.temperature}; "
            "BinaryGibbs samples labels at any temperature"
        )
    penalties = field._penalties
    if anywhere(penalties == torch.inf):
        raise NotImplementedError(
            "pairwise: expected finite penalties, as labels that have to be alike cannot change one by one, got +inf"
        )
    off, on = field._known_states.chunk(2, -1)
    require_support(torch.maximum(off, on).amin(-1), field._empty)
    weights, biases = field._patterns
    if number:
        composition = field._table if field._scheme is None else field._scheme
        require_support(pattern_potential(biases, composition, field.temperature), field._empty)
    matrices = field._rows(weights) if number else weights.new_zeros(1, 0)
    joint = JointField(
        odds=field._rows(log_odds(off, on)).unsqueeze(1),
        penalties=field._rows(penalties).unsqueeze(1),
        weights=matrices.unflatten(-1, (number, pixels)),
        biases=field._rows(biases).unsqueeze(1),
        composition=field._rows(field._table).unsqueeze(1) if field._scheme is None else field._scheme,
        replicas=replicas,
        shape=field._shape,
    )
    if field._upper_layer is None:
        return joint
    upper_weights, upper_logits = field._upper_layer
    flat = field._rows(upper_weights.flatten(-2)).unsqueeze(1)
    return DeepJointField(
        **vars(joint),
        upper_weights=flat.unflatten(-1, upper_weights.shape[-2:]),
        upper_logits=field._rows(upper_logits).unsqueeze(1),
    )


@torch.no_grad()
def independent_labels(field: PatternWeights) -> Tensor:
    """Labels drawn from their own log-odds and the evidence alone, without penalties and patterns: a place to start.

    :return: Shape ``batch_shape + event_shape``.
    """
    odds = log_odds(*field._known_states.chunk(2, -1))
    shape = field.batch_shape + odds.shape[-1:]
    noise = torch.rand(shape, dtype=odds.dtype, device=odds.device)
    return field._cast((noise < odds.sigmoid()).reshape(field.batch_shape + field.event_shape))
