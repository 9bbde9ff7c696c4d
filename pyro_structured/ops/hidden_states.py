"""States of hidden units at integer temperatures: those of as many replicas, which share their patterns' weights."""

__all__ = ["HiddenStates", "hidden_states", "number_of_hidden_states"]

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.ops.convolution import logsumexp


class HiddenStates(NamedTuple):
    r"""What :math:`f_T(a) = T \log \sum_h \exp\frac{1}{T}(a^\top h + g(\sum_j h_j))` is a sum over, for T = n.

    The n-th power of the sum is one over n replicas of h, in which only the shares s of the replicas in which a unit is
    on meet the activations:

    .. math::
        \exp f_n(a) = \sum_{s \in \{0, 1/n, \dots, 1\}^J} \exp(a^\top s) \sum_{k} N(s, k) \exp\frac{1}{n}\sum_r g(k_r),

    with the number N of sets of replicas that have so many units on and these shares.

    :ivar Tensor shares: Shape ``(K, J)``.
    :ivar Tensor kinds: Which states have the same weights: those that are permutations of each other, shape ``(K,)``.
    :ivar Tensor log_numbers: Logarithms of N, shape ``(kinds, numbers of units that are on in each replica)``.
    :ivar Tensor counts: The numbers of units that are on in each replica, shape ``(that many, n)``.
    """

    shares: Tensor
    kinds: Tensor
    log_numbers: Tensor
    counts: Tensor

    def log_weights(self, table: Tensor) -> Tensor:
        """Weights of the states apart from the activations, shape ``(..., K)``.

        :param Tensor table: g, shape ``(..., J + 1)``.
        """
        replicas = self.counts.shape[1]
        total = table[..., self.counts.to(table.device)].sum(-1) / replicas
        kinds = logsumexp(total.unsqueeze(-2) + self.log_numbers.to(table))
        return kinds[..., self.kinds.to(table.device)]


def number_of_hidden_states(number: int, replicas: int, allowed: Sequence[int]) -> int:
    """How many states :func:`hidden_states` finds at most, for the same arguments.

    Example::

        >>> number_of_hidden_states(3, 1, range(4)), number_of_hidden_states(3, 2, [1])
        (8, 6)
    """
    sums = _sums(replicas, allowed)
    ways = [1]
    for _ in range(number):
        padded = [0] * replicas + ways + [0] * replicas
        ways = [sum(padded[i : i + replicas + 1]) for i in range(len(ways) + replicas)]
    return sum(ways[total] for total in sums)


@lru_cache(maxsize=16)
def hidden_states(number: int, replicas: int, allowed: tuple[int, ...]) -> HiddenStates:
    """All states of some hidden units.

    :param int number: How many units there are, J.
    :param int replicas: The temperature n, at least 1.
    :param allowed: How many of the units of a replica may be on.
    """
    counts = np.array(list(product(allowed, repeat=replicas)), dtype=np.int64)
    rows: list[np.ndarray] = []
    kinds: list[int] = []
    numbers: list[np.ndarray] = []
    for kind in _kinds(number, replicas, _sums(replicas, allowed)):
        ways = _ways(kind, number)[tuple(counts.T)]
        if ways.any():
            found = list(_arrangements(kind, number))
            rows += found
            kinds += [len(numbers)] * len(found)
            numbers.append(ways)
    with np.errstate(divide="ignore"):
        logs = np.log(np.array(numbers, dtype=float).reshape(-1, len(counts)))
    shares = np.array(rows, dtype=float).reshape(len(rows), number) / replicas
    return HiddenStates(
        torch.from_numpy(shares),
        torch.tensor(kinds, dtype=torch.long),
        torch.from_numpy(logs),
        torch.from_numpy(counts),
    )


def _sums(replicas: int, allowed: Sequence[int]) -> set[int]:
    """How many units may be on in all replicas together."""
    sums = {0}
    for _ in range(replicas):
        sums = {total + count for total in sums for count in allowed}
    return sums


def _kinds(number: int, replicas: int, sums: set[int]) -> Iterator[tuple[int, ...]]:
    """Numbers of units that are on in 0, 1, ..., n replicas."""

    def extend(kind: tuple[int, ...], left: int, total: int) -> Iterator[tuple[int, ...]]:
        level = replicas - len(kind)
        if level == 0:
            if total in sums:
                yield (left, *kind)
            return
        for units in range(min(left, (max(sums) - total) // level) + 1):
            yield from extend((units, *kind), left - units, total + units * level)

    yield from extend((), number, 0)


def _ways(kind: tuple[int, ...], number: int) -> np.ndarray:
    """Numbers of ways to have so many units on in each replica, an axis for each of them."""
    replicas = len(kind) - 1
    ways = np.zeros((number + 1,) * replicas)
    ways[(0,) * replicas] = 1.0
    for level, units in enumerate(kind):
        for _ in range(units if level else 0):
            ways = np.sum([_shifted(ways, chosen) for chosen in combinations(range(replicas), level)], axis=0)
    return ways


def _shifted(ways: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """With one more unit on in some replicas."""
    moved = np.zeros_like(ways)
    new = tuple(slice(1, None) if axis in axes else slice(None) for axis in range(ways.ndim))
    old = tuple(slice(None, -1) if axis in axes else slice(None) for axis in range(ways.ndim))
    moved[new] = ways[old]
    return moved


def _arrangements(kind: tuple[int, ...], number: int) -> Iterator[np.ndarray]:
    """All vectors with so many entries of each value."""

    def place(level: int, free: tuple[int, ...], row: np.ndarray) -> Iterator[np.ndarray]:
        if level == 0:
            yield row
            return
        for chosen in combinations(free, kind[level]):
            filled = row.copy()
            filled[list(chosen)] = level
            yield from place(level - 1, tuple(unit for unit in free if unit not in chosen), filled)

    yield from place(len(kind) - 1, tuple(range(number)), np.zeros(number, dtype=np.int64))
