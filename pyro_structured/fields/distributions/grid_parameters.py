"""Parameters of fields of patterns on a grid."""

__all__ = ["checked_grid", "checked_temperature", "composition_table", "grid_batch"]

from numbers import Real

import torch
from torch import Tensor

from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.ops.requirements import require

SCHEMES = ("sum", "min")


def checked_temperature(temperature: float) -> float:
    """Temperature as a float, or a ValueError unless it is finite and at least 0."""
    if not isinstance(temperature, Real) or not 0 <= temperature < torch.inf:
        raise ValueError(f"temperature: expected a finite number of at least 0, got {temperature!r}")
    return float(temperature)


def composition_table(composition: Tensor | str, pattern_logits: Tensor) -> Tensor:
    """Table g of log-weights of the number of patterns that are on, shape ``(..., J + 1)``."""
    if not isinstance(composition, str):
        return composition
    if composition not in SCHEMES:
        raise ValueError(f"composition: expected one of {SCHEMES} or a table, got {composition!r}")
    table = pattern_logits.new_zeros(pattern_logits.shape[-1] + 1)
    if composition == "min":
        if len(table) == 1:
            raise ValueError("composition: expected 'sum' or a table where there is no pattern, got 'min'")
        table.fill_(-torch.inf)[1] = 0.0
    return table


def grid_batch(
    unary_logits: Tensor,
    pairwise: Tensor,
    weights: Tensor,
    pattern_logits: Tensor,
    grid: Grid,
    num_labels: int | None = None,
) -> torch.Size:
    """Batch shape of the parameters of a field of patterns on a grid, or a ValueError.

    :param Tensor unary_logits: Shape ``(..., H, W)``, or ``(..., H, W, K)``.
    :param Tensor pairwise: Shape ``(..., E)``.
    :param Tensor weights: Finite, shape ``(..., J, H, W)``, or ``(..., J, H, W, K)``.
    :param Tensor pattern_logits: Shape ``(..., J)``.
    :param Grid grid: Height and width.
    :param int num_labels: K, if log-weights have an axis of labels.
    """
    pixels = [grid.height, grid.width] + ([] if num_labels is None else [num_labels])
    batch = joined_batch("unary_logits", unary_logits, pixels, torch.Size())
    batch = joined_batch("pairwise", pairwise, [grid.num_edges], batch)
    number = pattern_logits.shape[-1] if isinstance(pattern_logits, Tensor) and pattern_logits.dim() else 0
    batch = joined_batch("pattern_logits", pattern_logits, [number], batch)
    batch = joined_batch("weights", weights, [number, *pixels], batch)
    require(~weights.isfinite(), "weights: expected finite numbers, got others")
    return batch


def checked_grid(grid: object) -> Grid:
    """The grid, or a ValueError if it is none."""
    if not isinstance(grid, Grid):
        raise ValueError(f"grid: expected a Grid, got {type(grid).__name__}")
    return grid
