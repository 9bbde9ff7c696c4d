"""Sizes of the parameters' posterior, learned from the chain."""

__all__ = ["ParameterSpread"]

import torch
from torch import Tensor

# Fewer values say nothing yet.
ENOUGH = 10


class ParameterSpread:
    """Standard deviations of unconstrained parameters, learned while the chain warms up and kept afterwards.

    :param int warmup_steps: Values to learn from.
    """

    def __init__(self, warmup_steps: int) -> None:
        self._left, self._number = warmup_steps, 0
        self._mean: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}

    def add(self, free: dict[str, Tensor]) -> None:
        """Welford's recurrence, until the warm-up ends."""
        if not self._left:
            return
        self._left -= 1
        self._number += 1
        for name, value in free.items():
            mean = self._mean.get(name, torch.zeros_like(value))
            self._mean[name] = mean + (value - mean) / self._number
            more = (value - mean) * (value - self._mean[name])
            self._squares[name] = self._squares.get(name, torch.zeros_like(value)) + more

    def direction(self, free: dict[str, Tensor]) -> dict[str, Tensor]:
        """A normal direction with these standard deviations; 1 as long as nothing is known."""
        found = {}
        for name, value in free.items():
            scale = torch.ones_like(value)
            if self._number > ENOUGH:
                deviation = (self._squares[name] / self._number).sqrt()
                scale = torch.where(deviation > 0, deviation, scale)
            found[name] = torch.randn_like(value) * scale
        return found
