"""Learning the parameters of models that observe fields."""

__all__ = ["FieldLearner", "LabelLoss", "check_loss", "checked_losses", "expanded_value", "observed_fields"]

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.field_sites import field_of
from pyro_structured.foundation.distributions.independent_parts import unmasked
from pyro_structured.foundation.inference.learner import Learner, ObservedBatch
from pyro_structured.foundation.inference.nonfinite_error import ADVICE, NonFiniteError
from pyro_structured.foundation.inference.row_state import row_places

LabelLoss = Callable[[Tensor, Tensor], Tensor]


class FieldLearner(Learner[ObservedBatch]):
    """Base class of learners of models that observe a PatternCRF, GridCRF, RBM, DeepPatternCRF or
    CategoricalPatternCRF; parameters as for :class:`Learner`.

    Where log Z can be computed, ``SVI`` maximises the likelihood itself.
    """

    @abstractmethod
    def _field_loss(self, field: FieldDistribution, value: Tensor, samples: Tensor | None) -> Tensor:
        """Loss of every element of the batch, of the batch shape.

        :param FieldDistribution field: Field of the site.
        :param Tensor value: Observed labels, of the batch and event shape.
        :param Tensor samples: Labels drawn for the site, with an axis of chains first; ``None`` if none are drawn.
        """

    def _observe(self, args: Any, kwargs: Any) -> ObservedBatch:
        trace, rows = self._trace(args, kwargs)
        fields = observed_fields(trace)
        for name, node in trace.nodes.items():
            if node["type"] == "sample" and name not in fields and isinstance(unmasked(node["fn"]), FieldDistribution):
                raise ValueError(
                    f"{name}: expected a field whose mask is that of the site, got one inside of an event; mask after "
                    "to_event, or use poutine.mask"
                )
        if not fields:
            raise ValueError(
                "model: expected an observed PatternCRF, GridCRF, RBM, DeepPatternCRF or CategoricalPatternCRF site, "
                "got none"
            )
        for name, field in fields.items():
            _check_value(name, field, trace.nodes[name], rows)
        return ObservedBatch(args, kwargs, trace, rows)

    def _infer(self, batch: ObservedBatch) -> dict[str, Tensor]:
        return {}

    def _loss(self, batch: ObservedBatch, inferred: dict[str, Tensor]) -> Tensor:
        trace = self._run(batch, {})
        fields = observed_fields(trace)
        total = -self._log_density(trace, set(fields))
        for name, field in fields.items():
            node = trace.nodes[name]
            loss = self._field_loss(field, expanded_value(field, node), inferred.get(name))
            # Sums over axes of the field's batch that belong to the event of the site.
            loss = loss.reshape(node["fn"].batch_shape + (-1,)).sum(-1)
            total = total + scale_and_mask(loss, node["scale"], node["mask"]).sum()
        return total


def observed_fields(trace: Any) -> dict[str, FieldDistribution]:
    """All observed fields, by names of their sites."""
    nodes = ((name, node) for name, node in trace.nodes.items() if node["type"] == "sample" and node["is_observed"])
    fields = ((name, field_of(node["fn"])) for name, node in nodes)
    return {name: field for name, field in fields if field is not None}


def expanded_value(field: FieldDistribution, node: Any) -> Tensor:
    """Observed labels, of the field's batch and event shape, in the dtype of its values."""
    value: Tensor = node["value"]
    # Sums and differences of small integers overflow.
    return value.to(field.value_dtype).expand(field.batch_shape + field.event_shape)


def check_loss(loss: object, known: tuple[str, ...]) -> None:
    """Raises a ValueError unless ``loss`` is one of the known names, or a function."""
    if not callable(loss) and not (isinstance(loss, str) and loss in known):
        raise ValueError(f"loss: expected one of {known} or a function, got {loss!r}")


def checked_losses(loss: LabelLoss, labels: Tensor, truth: Tensor, shape: torch.Size) -> Tensor:
    """Losses that a function returns, of the given shape and finite, or a ValueError."""
    losses = loss(labels, truth)
    if not isinstance(losses, Tensor) or losses.shape != shape:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(f"loss: expected a function with results of shape {tuple(shape)}, got {got}")
    if not bool(losses.isfinite().all()):
        raise NonFiniteError(f"loss: expected a function with finite results, got others; {ADVICE}", math.nan)
    return losses if losses.is_floating_point() else losses.to(torch.get_default_dtype())


@torch.no_grad()
def _check_value(name: str, field: FieldDistribution, node: Any, rows: dict[str, Tensor]) -> None:
    """Raises a ValueError unless all observed labels are possible."""
    value, shape = node["value"], field.batch_shape + field.event_shape
    try:
        expanded = value.expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"{name}: expected labels of shape {tuple(shape)}, got shape {tuple(value.shape)}: {error}"
        ) from None
    if not expanded.numel():
        return
    support: Any = field.support
    inside = support.check(expanded).reshape(node["fn"].batch_shape + (-1,)).all(-1)
    if not bool(inside.all()):
        known = "zeros and ones" if field.value_dtype.is_floating_point else f"below {field.description.num_labels}"
        raise ValueError(
            f"{name}: expected labels inside the support, {known}, got others{_places_of(~inside, node, rows)}"
        )
    possible = field.is_possible(expanded)
    possible = possible.reshape(node["fn"].batch_shape + (-1,)).all(-1)
    parameters = [
        parameter
        for parameter in (getattr(field, parameter_name) for parameter_name in field.arg_constraints)
        if isinstance(parameter, Tensor)
    ]
    if not bool(possible.all()) and any(bool(parameter.isnan().any()) for parameter in parameters):
        raise NonFiniteError(f"{name}: expected a field whose parameters are numbers, got nan; {ADVICE}", math.nan)
    if not bool(possible.all()):
        raise ValueError(
            f"{name}: expected labels of positive probability, got others{_places_of(~possible, node, rows)}"
        )


def _places_of(wrong: Tensor, node: Any, rows: dict[str, Tensor]) -> str:
    """Number of wrong rows, and which is the first."""
    places, _ = row_places(node, rows)
    first = wrong.nonzero()[0].tolist()
    indices = [int(place.flatten()[number]) for place, number in zip(places, first, strict=True)]
    counts = f" in {int(wrong.sum())} of {wrong.numel()} rows"
    return counts + (f", the first of which is number {str(indices)[1:-1]}" if indices else "")
