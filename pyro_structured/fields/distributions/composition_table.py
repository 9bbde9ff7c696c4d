"""How many patterns are used at a time, as an argument of fields."""

__all__ = ["checked_temperature", "composition_table"]

from numbers import Real

import torch
from torch import Tensor

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
