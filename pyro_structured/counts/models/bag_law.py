"""Laws of the labels of bags: how a label depends on the number of positive instances."""

__all__ = ["LAWS", "BagLaw"]

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_structured.counts.distributions.cardinality_potentials import (
    at_least,
    between,
    exactly,
    for_sizes,
    noisy_or,
    normal_fraction,
)
from pyro_structured.foundation.structures.argument_checks import checked_tensor

# Fractions of positive instances at which learned tables have numbers of their own.
NUM_KNOTS = 9


class BagLaw:
    """Tables of log-potentials of counts, one for each label, for bags of any size.

    :param make: Makes the tables of bags of n instances, given numbers that are learned: shape ``(T, n + 1)``.
    :param Tensor start: The learned numbers at first, in double precision; empty if nothing is learned.
    """

    def __init__(self, make: Callable[[int, Tensor], Tensor], start: Tensor | None = None) -> None:
        self.make = make
        self.start = torch.zeros(0, dtype=torch.double) if start is None else start

    def tables(self, sizes: Sequence[int] | np.ndarray, learned: Tensor) -> Tensor:
        """Tables of bags, shape ``(B, T, largest size + 1)``, in double precision.

        :raises ValueError: if they are of another shape, have NaN or +inf, or make all labels of a bag impossible.
        """
        tables = for_sizes(lambda n: self.make(n, learned), torch.as_tensor(sizes)).double()
        if tables.dim() != 3:
            raise ValueError(f"law: expected tables of shape (T, n + 1), got {tuple(tables.shape[1:])}")
        if not bool((tables < math.inf).all()):
            raise ValueError("law: expected log-potentials less than +inf, got others")
        impossible = (tables == -math.inf).flatten(1).all(-1)
        if bool(impossible.any()):
            number = int(torch.as_tensor(sizes)[impossible][0])
            raise ValueError(f"law: expected a possible count of some label, got none for a bag of {number} instances")
        return tables

    @classmethod
    def from_table(cls, table: Any) -> "BagLaw":
        """The same tables for all bags, which are cut at their sizes."""
        tensor = checked_tensor("law", f"one of {tuple(LAWS)}, a callable or tables of numbers", table)
        if tensor.dim() != 2 or not tensor.is_floating_point():
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise ValueError(f"law: expected floating point tables of shape (T, D + 1), got {got}")
        return cls(partial(_cut, tensor.detach().clone()))

    @classmethod
    def from_function(cls, function: Callable[[int], Tensor]) -> "BagLaw":
        """A function that makes the tables."""
        return cls(partial(_called, function))


def _cut(table: Tensor, n: int, learned: Tensor) -> Tensor:
    if n >= table.shape[1]:
        raise ValueError(f"law: expected tables of at least {n + 1} counts, got {table.shape[1]}")
    return table[:, : n + 1]


def _called(function: Callable[[int], Tensor], n: int, learned: Tensor) -> Tensor:
    tables = function(n)
    # Parameters of the user's are not learned here.
    return tables.detach() if isinstance(tables, Tensor) else tables


def _noisy_or(leak: Tensor, strength: Tensor, n: int, learned: Tensor) -> Tensor:
    return torch.stack([noisy_or(n, outcome, leak, strength) for outcome in (False, True)])


def _normal(means: Tensor, scale: Tensor, n: int, learned: Tensor) -> Tensor:
    return normal_fraction(n, means, scale)


def _at_least(fraction: float, n: int, learned: Tensor) -> Tensor:
    # Products such as .1 * 30 are above the integer that is meant.
    least = max(1, math.ceil(fraction * n - 1e-9))
    return torch.stack([between(n, 0, least - 1), at_least(n, least)])


def _exactly(count: int, n: int, learned: Tensor) -> Tensor:
    if n < count:
        raise ValueError(f"count: expected at most the size of each bag, got {count} for a bag of {n}")
    chosen = exactly(n, count)
    return torch.stack([torch.where(chosen == 0, -math.inf, 0.0), chosen])


def _learned(n: int, learned: Tensor) -> Tensor:
    place = torch.arange(n + 1, dtype=torch.double) * (NUM_KNOTS - 1) / n
    left = place.floor().clamp(max=NUM_KNOTS - 2).long()
    return torch.lerp(learned[:, left], learned[:, left + 1], place - left)


def _double(value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.double)


def _normal_law(given: Any) -> BagLaw:
    means = torch.stack([_double(0.0), _double(given.fraction)])
    return BagLaw(partial(_normal, means, _double(given.scale)))


def _learned_law(given: Any) -> BagLaw:
    return BagLaw(_learned, _normal_law(given).tables([NUM_KNOTS - 1], torch.zeros(0))[0])


# By name, the law that the hyperparameters of an estimator describe.
LAWS: dict[str, Callable[[Any], BagLaw]] = {
    "noisy_or": lambda given: BagLaw(partial(_noisy_or, _double(given.leak), _double(given.strength))),
    "normal": _normal_law,
    "at_least": lambda given: BagLaw(partial(_at_least, float(given.fraction))),
    "exactly": lambda given: BagLaw(partial(_exactly, given.count)),
    "learned": _learned_law,
}
