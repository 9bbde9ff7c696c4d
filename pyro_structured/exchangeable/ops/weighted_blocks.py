"""Numbers of ones in blocks of binary variables with weights of their own, one partition or a batch of different ones.

Cells stand for the numbers of ones of the blocks, as in :class:`~pyro_structured.structures.Partition`.
"""

__all__ = ["BlockCells", "block_log_marginals", "block_log_mass", "block_log_peaks", "block_modes", "sample_in_blocks"]

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.level_sets import normalize
from pyro_structured.exchangeable.ops.segments import segment_logsumexp
from pyro_structured.foundation.ops.evidence import log_odds
from pyro_structured.foundation.ops.log_space import logsumexp


class BlockCells(NamedTuple):
    """Blocks and their cells.

    :ivar labels: Blocks of the variables, named by their smallest ones, shape ``(..., n)``.
    :ivar sizes: Sizes of the blocks, at their smallest variables, 0 elsewhere, shape ``(..., n)``.
    :ivar names: Blocks of the cells, shape ``(..., 2 n)``.
    :ivar counts: Numbers of ones that the cells stand for, shape ``(..., 2 n)``.
    :ivar largest: Size of the largest block.
    """

    labels: Tensor
    sizes: Tensor
    names: Tensor
    counts: Tensor
    largest: int


def block_log_mass(cells: BlockCells, log_weights: Tensor) -> Tensor:
    r"""Logarithms of the summed weights of all vectors with each number of ones in a block.

    :param BlockCells cells: The blocks.
    :param Tensor log_weights: Log-weights of zeros and of ones, float64, shape ``(..., n, 2)``, less than +inf.
    :return: Shape ``(..., 2 n)``; -inf in unused cells. Cost :math:`O(n m)` for blocks of up to m variables, in m
        steps.

    Example::

        >>> labels = torch.tensor([0, 1, 0])
        >>> names, counts = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> cells = BlockCells(labels, torch.tensor([2, 1, 0]), names, counts, largest=2)
        >>> block_log_mass(cells, torch.tensor([[1.0, 2.0], [4.0, 1.0], [1.0, 3.0]]).double().log()).exp().round()
        tensor([1., 5., 6., 4., 1., 0.], dtype=torch.float64)
    """
    return _Passes(cells, log_weights).last(logsumexp)


def block_log_peaks(cells: BlockCells, log_weights: Tensor) -> Tensor:
    """Largest log-weights of vectors with each number of ones in a block; arguments and shape as for
    :func:`block_log_mass`.
    """
    return _Passes(cells, log_weights).last(_largest)


def block_log_marginals(cells: BlockCells, cell_weights: Tensor, log_weights: Tensor) -> Tensor:
    """Log-probabilities of zeros and of ones if the blocks' numbers of ones have weights, too.

    :param Tensor cell_weights: Log-weights of the cells, float64, shape ``(..., 2 n)``, -inf in unused cells.
    :return: Shape ``(..., n, 2)``.
    """
    passes = _Passes(cells, log_weights)
    batch = torch.broadcast_shapes(passes.batch, cell_weights.shape[:-1])
    number = cells.labels.shape[-1]
    after = cell_weights.expand(batch + cell_weights.shape[-1:])
    joint = after.new_zeros(batch + (number + 1, 2))
    for step, state in reversed(list(enumerate(passes.states(logsumexp)))[:-1]):
        off, on = passes.weights_at(step)
        with_one = torch.nn.functional.pad(after[..., 1:], (0, 1), value=-math.inf)
        with_one = with_one.masked_fill(passes.is_last_cell, -math.inf)
        sides = [segment_logsumexp(state + term, cells.names, number) for term in (off + after, on + with_one)]
        joint = joint.scatter(
            -2, passes.places_at(step).unsqueeze(-1).expand(batch + (number, 2)), torch.stack(sides, -1)
        )
        after = torch.where(passes.is_open(step), logsumexp(torch.stack([off + after, on + with_one], -1)), after)
    joint = normalize(joint[..., :-1, :])
    return joint.gather(-2, passes.ranks.unsqueeze(-1).expand(joint.shape))


def sample_in_blocks(cells: BlockCells, chosen: Tensor, log_weights: Tensor) -> Tensor:
    """Draws vectors with given numbers of ones in the blocks, in proportion to their weights.

    :param Tensor chosen: Cells of the blocks, at their smallest variables, arbitrary elsewhere, integers of shape
        ``(..., n)``; where they are impossible, the result is arbitrary.
    :return: Integers of shape ``(..., n)``.
    """
    return _Passes(cells, log_weights).trace(
        chosen, logsumexp, lambda odds: torch.rand_like(odds) < torch.sigmoid(odds)
    )


def block_modes(cells: BlockCells, chosen: Tensor, log_weights: Tensor) -> Tensor:
    """Vectors of largest weight with given numbers of ones in the blocks; arguments and shape as for
    :func:`sample_in_blocks`.
    """
    return _Passes(cells, log_weights).trace(chosen, _largest, lambda odds: odds > 0)


class _Passes:
    """All blocks read their next variable at once; a state is the number of ones so far."""

    def __init__(self, cells: BlockCells, log_weights: Tensor) -> None:
        self.cells = cells
        number = cells.labels.shape[-1]
        self.batch = torch.broadcast_shapes(cells.labels.shape[:-1], log_weights.shape[:-2])
        order = cells.labels.argsort(dim=-1, stable=True)
        # Places of the variables if blocks stand one after the other.
        self.ranks = order.argsort(-1).expand(self.batch + (number,))
        order = order.unsqueeze(-1).expand(self.batch + (number, 2))
        self._ordered = log_weights.expand(self.batch + (number, 2)).gather(-2, order)
        self._firsts = cells.sizes.cumsum(-1) - cells.sizes
        self._cell_firsts = self._firsts.gather(-1, cells.names)
        self._cell_sizes = cells.sizes.gather(-1, cells.names)
        self.is_last_cell = cells.counts >= self._cell_sizes

    def is_open(self, step: int) -> Tensor:
        """Whether the cells' blocks have so many variables, shape ``(..., 2 n)``."""
        return step < self._cell_sizes

    def places_at(self, step: int) -> Tensor:
        """Places of the variables of a step, at their blocks' names, n where there are none, shape ``(..., n)``."""
        number = self.cells.labels.shape[-1]
        return (self._firsts + step).masked_fill(step >= self.cells.sizes, number)

    def weights_at(self, step: int) -> tuple[Tensor, ...]:
        """Log-weights of zeros and of ones of the variables of a step, at the cells, shapes ``(..., 2 n)``."""
        places = (self._cell_firsts + step).clamp(max=self.cells.labels.shape[-1] - 1)
        places = places.expand(self.batch + places.shape[-1:])
        return tuple(side.gather(-1, places) for side in self._ordered.unbind(-1))

    def states(self, reduce: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """Log-sums, or largest log-weights, of the variables before each step, and of all, shapes ``(..., 2 n)``."""
        counts = self.cells.counts
        state = self._ordered.new_zeros(self.batch + counts.shape[-1:]).masked_fill(counts != 0, -math.inf)
        yield state
        for step in range(self.cells.largest):
            off, on = self.weights_at(step)
            ways = torch.stack([state + off, self._before(state) + on], -1)
            state = torch.where(self.is_open(step), reduce(ways), state)
            yield state

    def last(self, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """The last of the states, without keeping the others."""
        return deque(self.states(reduce), maxlen=1).pop()

    def _before(self, state: Tensor) -> Tensor:
        """States with one 1 less."""
        shifted = torch.nn.functional.pad(state[..., :-1], (1, 0), value=-math.inf)
        return shifted.masked_fill(self.cells.counts == 0, -math.inf)

    def trace(self, chosen: Tensor, reduce: Callable[[Tensor], Tensor], choose: Callable[[Tensor], Tensor]) -> Tensor:
        """Vectors, traced back from the blocks' numbers of ones; ``choose`` tells from log-odds which are 1."""
        number = self.cells.labels.shape[-1]
        batch = torch.broadcast_shapes(self.batch, chosen.shape[:-1])
        chosen = chosen.expand(batch + (number,))
        value = torch.zeros(batch + (number + 1,), dtype=torch.long, device=chosen.device)
        for step, state in reversed(list(enumerate(self.states(reduce)))[:-1]):
            off, on = self.weights_at(step)
            ways = (side.expand(batch + side.shape[-1:]) for side in (state + off, self._before(state) + on))
            one = choose(log_odds(*(side.gather(-1, chosen) for side in ways)))
            one = one & (step < self.cells.sizes)
            chosen = chosen - one.long()
            value = value.scatter(-1, self.places_at(step).expand(one.shape), one.long())
        return value[..., :-1].gather(-1, self.ranks.expand(batch + (number,)))


def _largest(log_weights: Tensor) -> Tensor:
    return log_weights.amax(-1)
