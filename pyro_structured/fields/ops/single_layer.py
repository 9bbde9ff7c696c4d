"""Fields with upper units as fields of pixels and upper units, with one layer of hidden units."""

__all__ = ["single_layer", "upper_units_given"]

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field, binary_states
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


def single_layer(field: Field) -> Field:
    """A field of zeros and ones with one layer of hidden units, whose log partition function is the same.

    Upper units become pixels without neighbours, in further rows of the grid, or in further columns if it is wider than
    high; the labels of the other pixels come first in every row. Without upper units, it is :meth:`Field.binary`.

    :param Field field: A field with two labels.
    :raises NotImplementedError: if there are more than two labels.
    """
    if field.num_labels != 2:
        raise NotImplementedError(
            f"labels: expected two of them for Bethe approximations and perfect samples, got {field.num_labels}; "
            "log_partition_bounds and inference.FieldGibbs take any number"
        )
    if field.upper is None:
        return field.binary()
    (height, width), (lower, wider) = field.shape, _shape_with(field.shape, field.upper.logits.shape[-1])
    units, level = binary_states(field.upper.logits)
    cells = zip(field.states.chunk(2, -1), units.chunk(2, -1), (0.0, -torch.inf), strict=True)
    penalties = field.penalties
    if field.is_paired:
        number = (height - 1) * width
        vertical = penalties[:, :number].unflatten(-1, (height - 1, width))
        horizontal = penalties[:, number:].unflatten(-1, (height, width - 1))
        margins = (0, wider - width, 0, lower - height)
        padded = (torch.nn.functional.pad(pairs, margins).flatten(1) for pairs in (vertical, horizontal))
        penalties = torch.cat(list(padded), -1)
    return field._replace(
        states=torch.cat([_with_cells(pixels, unit, field.shape, fill) for pixels, unit, fill in cells], -1),
        base=field.base - field.upper_base + level,
        penalties=penalties,
        shape=(lower, wider),
        weights=_with_cells(field.weights, field.upper.weights.mT, field.shape, 0.0),
        upper=None,
    )


def upper_units_given(field: Field, activations: Tensor) -> Field:
    """Field of the hidden units of both layers given labels, whose pixels are the patterns, a row for each labelling.

    :param Field field: A field with upper units.
    :param Tensor activations: Log-odds of the patterns without the upper units, shape ``(labelings, rows, J)``.
    :return: Rows of the first labelling, then those of the next labelling, and so on.
    """
    assert field.upper is not None
    number, size = len(activations), activations.shape[-1]
    states, base = binary_states(activations.flatten(0, 1))
    weights, logits = field.upper
    return Field(
        states=states,
        base=base,
        penalties=states[:1, :0],
        shape=(size, 1),
        weights=weights if len(weights) == 1 else weights.repeat(number, 1, 1),
        biases=logits if len(logits) == 1 else logits.repeat(number, 1),
        composition="sum",
        temperature=1.0,
    )


def _shape_with(shape: tuple[int, int], number: int) -> tuple[int, int]:
    """Shape of the grid that has room for ``number`` upper units."""
    lines = -(-number // min(shape))
    return (shape[0] + lines, shape[1]) if shape[0] >= shape[1] else (shape[0], shape[1] + lines)


def _with_cells(pixels: Tensor, units: Tensor, shape: tuple[int, int], fill: float) -> Tensor:
    """Values of the pixels of a grid with further lines for the upper units, shape ``(..., D')``.

    :param Tensor pixels: Shape ``(..., D)``.
    :param Tensor units: Shape ``(..., U)``.
    :param shape: Height and width.
    :param float fill: Value of a place without a unit.
    """
    tall, side = shape[0] >= shape[1], min(shape)
    lines = -(-units.shape[-1] // side)
    cells = torch.nn.functional.pad(units, (0, lines * side - units.shape[-1]), value=fill)
    cells = cells.unflatten(-1, (lines, side) if tall else (side, lines))
    batch = broadcast_shapes(pixels.shape[:-1], cells.shape[:-2])
    grids = [values.expand(batch + values.shape[-2:]) for values in (pixels.unflatten(-1, shape), cells)]
    return torch.cat(grids, -2 if tall else -1).flatten(-2)
