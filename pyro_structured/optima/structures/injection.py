"""Vectors of different integers."""

__all__ = ["Injection"]

import itertools
import math

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.ops.enumeration import ENUMERATION_CAP
from pyro_structured.foundation.structures.representation import Represented


class Injection(Represented, constraints.Constraint):
    """Constrains vectors to different integers from 0 to ``num_values - 1``; permutations if there are as many.

    :param int size: Length of the vectors.
    :param int num_values: Number of integers.
    """

    is_discrete = True
    event_dim = 1

    def __init__(self, size: int, num_values: int) -> None:
        self.size, self.num_values = size, num_values
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Booleans of the shape of the value without its last axis."""
        if value.shape[-1:] != (self.size,):
            return torch.zeros(value.shape[:-1], dtype=torch.bool, device=value.device)
        number = value.double()
        ordered = number.sort(-1).values
        inside = (number >= 0) & (number < self.num_values) & (number == number.floor())
        return inside.all(-1) & (ordered[..., 1:] != ordered[..., :-1]).all(-1)

    def enumerate_values(self) -> Tensor | None:
        """All such vectors in lexicographic order, shape ``(count, size)``, or ``None`` if they are many."""
        if math.perm(self.num_values, self.size) > ENUMERATION_CAP:
            return None
        return torch.tensor(list(itertools.permutations(range(self.num_values), self.size)))

    def __repr__(self) -> str:
        return f"Injection(size={self.size}, num_values={self.num_values})"
