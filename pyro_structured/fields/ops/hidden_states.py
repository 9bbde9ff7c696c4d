"""States of hidden units at integer temperatures n, in terms of n replicas that share the patterns' weights."""

__all__ = [
    "HiddenStates",
    "cost_of_kinds",
    "free_hidden_states",
    "hidden_states",
    "log_worth",
    "number_of_hidden_states",
    "unit_powers",
]

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import logsumexp


def unit_powers(number: int, power: int, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""The terms of :math:`\prod_j (1 + e^{a_j / n})^n = \sum_s \exp(a^\top s) \prod_j \binom{n}{n s_j}`.

    :param int number: Number of units, m.
    :param int power: Number n of replicas, at least 1.
    :param Tensor like: A tensor with the dtype and the device of the results.
    :return: Shares s, multiples of 1/n, shape ``((n + 1) ** m, m)``, and logarithms of the binomial coefficients, shape
        ``((n + 1) ** m,)``.

    Example::

        >>> shares, log_numbers = unit_powers(1, 2, torch.zeros(()))
        >>> shares.tolist(), log_numbers.exp().tolist()
        ([[0.0], [0.5], [1.0]], [1.0, 2.0, 1.0])
    """
    counts = torch.arange(power + 1, device=like.device)
    exact = counts.double()
    whole = torch.tensor(float(power), dtype=torch.double, device=like.device)
    logs = (whole + 1).lgamma() - (exact + 1).lgamma() - (whole - exact + 1).lgamma()
    place = torch.arange((power + 1) ** number, device=like.device)
    shares = torch.empty(len(place), number, dtype=like.dtype, device=like.device)
    total = torch.zeros(len(place), dtype=torch.double, device=like.device)
    # One unit after the other, because there may be millions of states.
    for unit in range(number - 1, -1, -1):
        digits, place = place % (power + 1), place // (power + 1)
        shares[:, unit] = digits.to(like.dtype) / power
        total += logs[digits]
    return shares, total.to(like.dtype)


def log_worth(biases: Tensor, shares: Tensor) -> Tensor:
    r"""Log-weights :math:`b^\top s` of the states of hidden units, shape ``(rows, K)``; -inf where a unit of bias -inf
    is on.

    :param Tensor biases: Biases b, less than +inf, shape ``(rows, m)``, or with more axes before the last.
    :param Tensor shares: States s, shape ``(K, m)``.
    """
    never = biases == -torch.inf
    worth = biases.masked_fill(never, 0.0) @ shares.T
    return worth.masked_fill((never.unsqueeze(-2) & (shares > 0)).any(-1), -torch.inf)


# Cost of one number of ways, in numbers that a pass computes.
NUMBERS_IN_PLACE_OF_WAYS = 16

# Numbers of units that are on in 0, 1, ..., n replicas; and numbers of replicas in which 0, 1, ... units are on.
Kind = tuple[int, ...]
Counts = tuple[int, ...]


class HiddenStates(NamedTuple):
    r"""Terms of the sum :math:`f_T(a) = T \log \sum_h \exp\frac{1}{T}(a^\top h + g(\sum_j h_j))` for T = n.

    The n-th power of the sum is one over n replicas of h, in which only the shares s of the replicas in which a unit is
    on meet the activations:

    .. math::
        \exp f_n(a) = \sum_{s \in \{0, 1/n, \dots, 1\}^J} \exp(a^\top s) \sum_{k} N(s, k) \exp\frac{1}{n}\sum_r g(k_r),

    with the number N of sets of replicas that have so many units on and these shares.

    :ivar Tensor shares: The states s, shape ``(K, J)``.
    :ivar Tensor kinds: Number of the kind of each state, shape ``(K,)``; states that are permutations of each other are
        of one kind, and have the same weights.
    :ivar Tensor log_numbers: Logarithms of N, replicas in any order, shape ``(kinds, counts)``.
    :ivar Tensor counts: The numbers of units that are on in each replica, in increasing order, shape ``(counts, n)``.
    """

    shares: Tensor
    kinds: Tensor
    log_numbers: Tensor
    counts: Tensor

    def log_weights(self, table: Tensor) -> Tensor:
        """Log-weights of the states apart from the activations, shape ``(..., K)``.

        :param Tensor table: g, shape ``(..., J + 1)``.
        """
        replicas = self.counts.shape[1]
        total = table[..., self.counts.to(table.device)].sum(-1) / replicas
        kinds = logsumexp(total.unsqueeze(-2) + self.log_numbers.to(table))
        return kinds[..., self.kinds.to(table.device)]


def number_of_hidden_states(number: int, replicas: int, allowed: Sequence[int]) -> int:
    """Number of states that :func:`hidden_states` finds at most, for the same arguments.

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


def cost_of_kinds(number: int, replicas: int, allowed: Sequence[int]) -> int:
    """Cost of the weights in :func:`hidden_states`, for the same arguments, in numbers that a pass computes."""
    kinds = min(math.comb(number + replicas, replicas), number_of_hidden_states(number, replicas, allowed))
    return NUMBERS_IN_PLACE_OF_WAYS * kinds * math.comb(max(allowed) + replicas, replicas)


def free_hidden_states(number: int, replicas: int, like: Tensor) -> HiddenStates:
    """All states of some hidden units under a table of zeros.

    :param int number: Number of units, J.
    :param int replicas: The temperature n, at least 1.
    :param Tensor like: A tensor with the dtype and the device of the results.
    """
    shares, log_numbers = unit_powers(number, replicas, like)
    kinds = torch.arange(len(shares), device=like.device)
    return HiddenStates(shares, kinds, log_numbers.unsqueeze(-1), kinds.new_zeros(1, replicas))


@lru_cache(maxsize=16)
def hidden_states(number: int, replicas: int, allowed: tuple[int, ...]) -> HiddenStates:
    """All states of some hidden units, under any table.

    :param int number: Number of units, J.
    :param int replicas: The temperature n, at least 1.
    :param allowed: Numbers of units that may be on in a replica.
    """
    sums = _sums(replicas, allowed)
    states, kinds = np.zeros((1, 0), dtype=np.uint8), np.zeros(1, dtype=np.int64)
    ways: dict[Kind, dict[Counts, int]] = {(0,) * (replicas + 1): {(replicas,) + (0,) * max(allowed): 1}}
    for left in range(number - 1, -1, -1):
        ways, following = _with_another_unit(ways, sums, replicas * left)
        owner, level = (following[kinds] >= 0).nonzero()
        states, kinds = np.column_stack([states[owner], level.astype(np.uint8)]), following[kinds[owner], level]
    columns = [column for column in _all_counts(ways) if all(k in allowed for k, size in enumerate(column) if size)]
    logs = np.array([[_log(numbers.get(column, 0)) for column in columns] for numbers in ways.values()])
    possible = np.isfinite(logs).any(1)[kinds]
    return HiddenStates(
        torch.from_numpy(states[possible].astype(float) / replicas),
        torch.from_numpy(kinds[possible]),
        torch.from_numpy(logs),
        torch.tensor([np.repeat(np.arange(len(column)), column).tolist() for column in columns]),
    )


def _sums(replicas: int, allowed: Sequence[int]) -> set[int]:
    """Numbers of units that may be on in all replicas together."""
    sums = {0}
    for _ in range(replicas):
        sums = {total + count for total in sums for count in allowed}
    return sums


def _with_another_unit(
    ways: dict[Kind, dict[Counts, int]], sums: set[int], left: int
) -> tuple[dict[Kind, dict[Counts, int]], np.ndarray]:
    """Numbers of ways with one more unit, and the kind that follows on each kind if that unit is on in 0, 1, ..., n
    replicas, or -1, shape ``(kinds, n + 1)``.

    :param sums: Numbers of units that may be on in all replicas together in the end.
    :param int left: Largest number of units, in all replicas together, that may be switched on after this one.
    """
    levels = len(next(iter(ways)))
    new_ways: dict[Kind, dict[Counts, int]] = {}
    places: dict[Kind, int] = {}
    following = np.full((len(ways), levels), -1)
    for place, (kind, columns) in enumerate(ways.items()):
        total = sum(level * size for level, size in enumerate(kind))
        for level in range(levels):
            if any(total + level <= wanted <= total + level + left for wanted in sums):
                new = (*kind[:level], kind[level] + 1, *kind[level + 1 :])
                if new not in new_ways:
                    new_ways[new], places[new] = _switched_on(columns, level), len(places)
                following[place, level] = places[new]
    return new_ways, following


def _switched_on(columns: dict[Counts, int], level: int) -> dict[Counts, int]:
    """Numbers of ways in which one more unit is on in ``level`` replicas."""
    new_columns: dict[Counts, int] = {}
    for column, number in columns.items():
        for chosen in product(*(range(min(size, level) + 1) for size in column[:-1])):
            if sum(chosen) == level:
                new = tuple(
                    size - out + into for size, out, into in zip(column, (*chosen, 0), (0, *chosen), strict=True)
                )
                times = math.prod(math.comb(size, out) for size, out in zip(column, chosen, strict=False))
                new_columns[new] = new_columns.get(new, 0) + number * times
    return new_columns


def _all_counts(ways: dict[Kind, dict[Counts, int]]) -> list[Counts]:
    return sorted({column for columns in ways.values() for column in columns})


def _log(number: int) -> float:
    return math.log(number) if number else -math.inf
