"""Parameters of fields of patterns on a grid."""

__all__ = ["GridParameters", "checked_temperature", "composition_table"]

from numbers import Real

import torch
from torch import Tensor

from pyro_structured.fields.distributions.label_weights import LabelWeights
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.vmap_rows import narrow_repeated

SCHEMES = ("sum", "min")


def checked_temperature(temperature: float) -> float:
    """A finite number of at least 0, or a ValueError."""
    if not isinstance(temperature, Real) or not 0 <= temperature < torch.inf:
        raise ValueError(f"temperature: expected a finite number of at least 0, got {temperature!r}")
    return float(temperature)


def composition_table(composition: Tensor | str, pattern_logits: Tensor) -> Tensor:
    """Log-weights of the numbers of patterns that are used."""
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


class GridParameters(LabelWeights):
    """Log-weights of pixels, penalties of neighbours that differ, weights and biases of patterns.

    :ivar Grid grid: Height and width.
    :ivar Tensor unary_logits: Shape ``(..., H, W)``, or ``(..., H, W, K)``.
    :ivar Tensor pairwise: Shape ``(..., E)``.
    :ivar Tensor weights: Shape ``(..., J, H, W)``, or ``(..., J, H, W, K)``.
    :ivar Tensor pattern_logits: Shape ``(..., J)``.
    """

    grid: Grid
    unary_logits: Tensor
    pairwise: Tensor
    weights: Tensor
    pattern_logits: Tensor

    def __init__(self, batch: torch.Size, validate_args: bool | None) -> None:
        event_shape, edges = torch.Size([self.grid.height, self.grid.width]), self.grid.edges
        super().__init__(batch, event_shape, edges.to(self.unary_logits.device), self._paired, validate_args)

    def _take(
        self, unary_logits: Tensor, pairwise: Tensor | None, weights: Tensor, pattern_logits: Tensor, grid: Grid
    ) -> torch.Size:
        """Checks and keeps parameters, and returns their batch shape; zeros stand for penalties that there are not."""
        if not isinstance(grid, Grid):
            raise ValueError(f"grid: expected a Grid, got {type(grid).__name__}")
        self.grid, self._paired = grid, pairwise is not None
        pixels = [grid.height, grid.width, *self._label_axis(unary_logits)]
        batch = joined_batch("unary_logits", unary_logits, pixels, torch.Size())
        pairwise = unary_logits.new_zeros(grid.num_edges) if pairwise is None else pairwise
        batch = joined_batch("pairwise", pairwise, [grid.num_edges], batch)
        number = pattern_logits.shape[-1] if isinstance(pattern_logits, Tensor) and pattern_logits.dim() else 0
        batch = joined_batch("pattern_logits", pattern_logits, [number], batch)
        batch = joined_batch("weights", weights, [number, *pixels], batch)
        require(~weights.isfinite(), "weights: expected finite numbers, got others")
        self.unary_logits, self.pairwise = unary_logits, pairwise
        self.weights, self.pattern_logits = weights, pattern_logits
        return batch

    def _label_axis(self, unary_logits: Tensor) -> list[int]:
        """Sizes of the axes after those of the grid."""
        return []

    @property
    def _unary(self) -> Tensor:
        return narrow_repeated(self._parameter("unary_logits").flatten(-2)).double()

    @property
    def _penalties(self) -> Tensor:
        pairs = self._parameter("pairwise")[..., : None if self._paired else 0]
        return narrow_repeated(pairs).double()

    @property
    def _patterns(self) -> tuple[Tensor, Tensor]:
        weights, biases = self._parameter("weights").flatten(-3), self._parameter("pattern_logits")
        return narrow_repeated(weights).double(), narrow_repeated(biases).double()
