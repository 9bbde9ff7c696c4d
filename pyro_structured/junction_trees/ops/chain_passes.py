"""Passes through chains by products of neighbouring tables: as many steps as the logarithm of the length."""

__all__ = ["Chain", "chain_of", "infer_chain", "multiply_chain", "sample_chain"]

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import logsumexp

# With more states of a variable, products of tables cost too much.
MOST_STATES = 8


class Chain(NamedTuple):
    """Where the numbers of a chain stand, for variables with up to K states, in the order of the chain.

    :ivar Tensor order: Variables, shape ``(n,)``.
    :ivar Tensor entries: Indices in the packed tables of the states of neighbours, shape ``(n - 1, K, K)``; the size of
        the tables for states that a variable does not have.
    :ivar Tensor states: Indices of the single states, shape ``(n, K)``; their number for others.
    :ivar int table_size: Size of the tables.
    :ivar int num_states: Number of single states.
    """

    order: Tensor
    entries: Tensor
    states: Tensor
    table_size: int
    num_states: int

    def to(self, device: torch.device) -> "Chain":
        """The chain with its tensors on a device."""
        return self._replace(**{name: getattr(self, name).to(device) for name in ("order", "entries", "states")})


def chain_of(cliques: Sequence[tuple[int, ...]], cardinalities: Sequence[int]) -> Chain | None:
    """The chain of which the cliques are the pairs of neighbours, or ``None``; variables have at most eight states.

    :param cliques: Variables of the cliques, in increasing order.
    :param cardinalities: Numbers of states of the variables, of which there are at least two.

    Example::

        >>> pairs = [(d, d + 1) for d in range(9)]
        >>> chain_of(pairs, [2] * 10).order.tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        >>> chain_of([*pairs[:8], (0, 9)], [2] * 10).order.tolist()
        [8, 7, 6, 5, 4, 3, 2, 1, 0, 9]
    """
    number, most = len(cardinalities), max(cardinalities)
    if most > MOST_STATES or len(cliques) != number - 1 or any(len(pair) != 2 for pair in cliques):
        return None
    neighbours: list[list[tuple[int, int]]] = [[] for _ in cardinalities]
    for index, (a, b) in enumerate(cliques):
        neighbours[a].append((b, index))
        neighbours[b].append((a, index))
    if max(map(len, neighbours)) > 2:
        return None
    starts = [0]
    for a, b in cliques:
        starts.append(starts[-1] + cardinalities[a] * cardinalities[b])
    # As many pairs as a tree has join all variables.
    variable = min(d for d, met in enumerate(neighbours) if len(met) == 1)
    order, entries, before = [variable], [], -1
    while len(order) < number:
        onward = ((d, index) for d, index in neighbours[variable] if d != before)
        before, (variable, index) = variable, next(onward)
        entries.append(_places(before, variable, cardinalities, starts[index], starts[-1], most))
        order.append(variable)
    *first, total = itertools.accumulate(cardinalities, initial=0)
    states = [[first[d] + state if state < cardinalities[d] else total for state in range(most)] for d in order]
    return Chain(torch.tensor(order), torch.tensor(entries), torch.tensor(states), starts[-1], total)


def _places(left: int, right: int, cardinalities: Sequence[int], start: int, filler: int, most: int) -> list[list[int]]:
    """Indices of the joint states of two neighbours, the left one's along the rows."""
    wide = cardinalities[max(left, right)]
    return [
        [
            start + (a * wide + b if left < right else b * wide + a)
            if a < cardinalities[left] and b < cardinalities[right]
            else filler
            for b in range(most)
        ]
        for a in range(most)
    ]


def _matrices(chain: Chain, clique_logits: Tensor, evidence: Tensor) -> Tensor:
    """Log-weights of neighbours with the evidence about the right one, about both in the first, shape ``(rows, n - 1,
    K, K)``; arguments as for :func:`infer_chain`.
    """
    filled = torch.nn.functional.pad(clique_logits, (0, 1), value=-math.inf)
    matrices = filled[:, chain.entries]
    if not evidence.shape[-1]:
        return matrices
    weights = torch.nn.functional.pad(evidence, (0, 1), value=0.0)[:, chain.states]
    matrices = matrices + weights[:, 1:, None, :]
    return torch.cat([matrices[:, :1] + weights[:, :1, :, None], matrices[:, 1:]], 1)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Logarithms of matrix products from logarithms of entries."""
    terms = left.unsqueeze(-1) + right.unsqueeze(-3)
    if terms.shape[-2] == 2 and not torch.is_grad_enabled():
        # In a third of the time, but without derivatives where both terms are -inf.
        return torch.logaddexp(*terms.unbind(-2))
    return logsumexp(terms, -2)


def multiply_chain(clique_logits: Tensor, evidence: Tensor, chain: Chain) -> list[tuple[Tensor, Tensor]]:
    """Left and right factors of the products of neighbours, from single matrices to the halves of the chain, each of
    shape ``(rows, products, K, K)``, and at last the product of all, twice; arguments as for :func:`infer_chain`.

    Where their number is odd, the last is multiplied by the unit matrix.
    """
    matrices = _matrices(chain, clique_logits, evidence)
    size = matrices.shape[-1]
    unit = torch.full((size, size), -math.inf, dtype=matrices.dtype, device=matrices.device).fill_diagonal_(0.0)
    levels = []
    while matrices.shape[1] > 1:
        if matrices.shape[1] % 2:
            matrices = torch.cat([matrices, unit.expand(len(matrices), 1, size, size)], 1)
        left, right = matrices[:, 0::2], matrices[:, 1::2]
        levels.append((left, right))
        matrices = _product(left, right)
    return [*levels, (matrices, matrices)]


def infer_chain(
    clique_logits: Tensor, evidence: Tensor, chain: Chain, marginals: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Log partition function and all marginals of a chain, in O(log n) steps of O(n K^3).

    :param Tensor clique_logits: Log-weights of the entries of all tables, shape ``(rows, table_size)``, or ``(1,
        table_size)``; -inf is allowed.
    :param Tensor evidence: Log-weights of the states of all variables, shape ``(rows, num_states)`` or ``(1,
        num_states)``, or without columns.
    :param Chain chain: The chain, on the same device.
    :param bool marginals: Whether marginals are wanted.
    :return: Log Z, shape ``(rows,)``, marginals of single states, shape ``(rows, num_states)``, and of the tables'
        entries, shape ``(rows, table_size)``; the last two without columns if they are not wanted.
    """
    levels = multiply_chain(clique_logits, evidence, chain)
    whole = levels[-1][0][:, 0]
    log_z = logsumexp(whole.flatten(1))
    if not marginals:
        empty = log_z.new_zeros(len(log_z), 0)
        return log_z, empty, empty
    # Log-weights of everything outside of each product, given the states at both of its ends.
    outside = torch.zeros_like(levels[-1][0])
    for left, right in reversed(levels[:-1]):
        outside = outside[:, : left.shape[1]]
        both = _product(outside, right.transpose(-1, -2)), _product(left.transpose(-1, -2), outside)
        outside = torch.stack(both, 2).flatten(1, 2)
    number = len(chain.entries)
    inside = torch.stack(levels[0], 2).flatten(1, 2)[:, :number]
    possible = (log_z > -math.inf)[:, None, None, None]
    pairs = (outside[:, :number] + inside - log_z.masked_fill(log_z == -math.inf, 0.0)[:, None, None, None]).exp()
    pairs = pairs * possible
    singles = torch.cat([pairs.sum(-1), pairs[:, -1:].sum(-2)], 1)
    packed = pairs.new_zeros(len(pairs), chain.table_size + 1).index_add(1, chain.entries.flatten(), pairs.flatten(1))
    states = pairs.new_zeros(len(pairs), chain.num_states + 1).index_add(1, chain.states.flatten(), singles.flatten(1))
    return log_z, states[:, :-1], packed[:, :-1]


def sample_chain(levels: Sequence[tuple[Tensor, Tensor]], chain: Chain, num_samples: int) -> Tensor:
    """Exact samples of a chain: both ends, then the variable in the middle, then those in the middles of both halves.

    :param levels: Products of :func:`multiply_chain`.
    :param Chain chain: The chain, on the same device.
    :param int num_samples: Number of samples of each row.
    :return: Integers of shape ``(num_samples, rows, n)``.
    """
    whole = levels[-1][0][:, 0]
    size = whole.shape[-1]
    ends = draw_log(whole.flatten(1).expand(num_samples, -1, -1))
    drawn = torch.stack([ends // size, ends % size], -1)
    for left, right in reversed(levels[:-1]):
        drawn = drawn[..., : left.shape[1] + 1]
        weights = _chosen(left, drawn[..., :-1]) + _chosen(right.transpose(-1, -2), drawn[..., 1:])
        middles = draw_log(weights)
        halves = torch.stack([drawn[..., :-1], middles], -1).flatten(-2)
        drawn = torch.cat([halves, drawn[..., -1:]], -1)
    drawn = drawn[..., : len(chain.order)]
    return torch.empty_like(drawn).index_copy_(-1, chain.order, drawn)


def _chosen(matrices: Tensor, rows: Tensor) -> Tensor:
    """Rows of matrices, shape ``(samples, rows, products, K)``.

    :param Tensor matrices: Shape ``(rows, products, K, K)``.
    :param Tensor rows: Numbers of the rows, shape ``(samples, rows, products)``.
    """
    size = matrices.shape[-1]
    index = rows[..., None, None].expand(*rows.shape, 1, size)
    return matrices.expand(len(rows), *matrices.shape).gather(-2, index).squeeze(-2)
