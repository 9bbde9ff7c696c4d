"""Sites of fields whose log partition functions and exact samples may be out of reach."""

__all__ = ["field_of", "log_weight", "random_value"]

from typing import Any

import torch
from pyro.infer.autoguide.initialization import init_to_sample
from torch import Tensor
from torch.distributions import Independent

from pyro_structured.fields.distributions.label_field import LabelField
from pyro_structured.fields.distributions.units_of_field import independent_labels


def field_of(fn: Any) -> LabelField | None:
    """The field that a distribution is, also where axes of its batch belong to one event; otherwise ``None``."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn if isinstance(fn, LabelField) else None


def log_weight(fn: Any, value: Tensor) -> Tensor:
    """Log-density of a value; that of a field is without the log partition function."""
    field = field_of(fn)
    if field is None:
        log_prob: Tensor = fn.log_prob(value)
        return log_prob
    weights = field.unnormalized_log_prob(value)
    # Axes of the batch that belong to the event.
    return weights if field is fn else weights.flatten(len(fn.batch_shape)).sum(-1)


def random_value(site: Any) -> Tensor:
    """A value to start a chain with: a draw, or independent labels of a field, which take no time."""
    field = field_of(site["fn"])
    if field is None or bool((field._penalties == torch.inf).any()):
        drawn: Tensor = init_to_sample(site)
        return drawn
    return independent_labels(field)
