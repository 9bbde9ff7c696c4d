"""Sums over all words that a layered automaton reads, for every level that it ends at."""

__all__ = ["Automaton"]

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from pyro_structured.exchangeable.ops.level_sets import normalize
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# Largest number of log weights of states that are kept; more are computed twice.
STATES_AT_ONCE = 2**24

# Sum or largest of log weights along the last axis.
_Reduction = Callable[[Tensor], Tensor]


class Automaton:
    """A layered automaton that reads one letter a step; the state at the end tells the level of the word.

    :param int length: Number of steps.
    :param Tensor transitions: Integers of shape ``(steps, states, letters)``: the state after reading a letter in a
        state; ``steps`` is the length, or 1 if all steps are alike. Every word is read from state 0.
    :param Tensor levels: Integers of shape ``(states,)``, the levels of the last states.
    :param int num_levels: Number of levels.
    :param order: The places of a word in the order in which they are read; ``None`` for ``range(length)``.
    """

    def __init__(
        self,
        length: int,
        transitions: Tensor,
        levels: Tensor,
        num_levels: int,
        order: Sequence[int] | None = None,
    ) -> None:
        self.length = length
        self._order = torch.arange(length) if order is None else torch.tensor(order)
        self._rank = self._order.argsort()
        self.transitions = transitions
        self.levels = levels
        self.num_levels = num_levels
        steps, self.num_states, self.num_letters = transitions.shape
        # For every state after a step the cells (state before, letter) that lead there; the cell behind the last one
        # pads and has no weight.
        self._sources = _group(transitions.reshape(steps, -1), self.num_states)
        self._ends = _group(levels.unsqueeze(0), num_levels)[0]
        self._on_device = lru_cache(maxsize=8)(self._move)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_on_device"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._on_device = lru_cache(maxsize=8)(self._move)

    def _move(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        shape = (self.length, -1, -1)
        return self._sources.to(device).expand(shape), self._ends.to(device), self.transitions.to(device).expand(shape)

    def read(self, word: Tensor) -> Tensor:
        """The levels of words of letters, shape ``(..., length)``, as integers of shape ``(...)``."""
        _, _, transitions = self._on_device(word.device)
        word = word[..., self._order.to(word.device)]
        # Indices without axes would be made Python numbers, which function transforms refuse.
        state = torch.zeros_like(word[..., :1])
        for step, letter in enumerate(word.split(1, -1)):
            state = transitions[step][state, letter]
        return self.levels.to(word.device)[state].squeeze(-1)

    def log_mass(self, log_weights: Tensor) -> Tensor:
        r"""Log of the summed weights of the words at every level.

        :param Tensor log_weights: Log weights of the letters, shape ``(..., length, letters)``, less than +inf.
        :return: Shape ``(..., num_levels)``. Cost :math:`O(\text{length} \cdot \text{states} \cdot \text{letters})`.
        """
        return self._levels_of(log_weights, logsumexp)

    def log_peaks(self, log_weights: Tensor) -> Tensor:
        """Log of the largest weight of a word at every level; argument and shape as for :meth:`log_mass`."""
        return self._levels_of(log_weights, _largest)

    def _levels_of(self, log_weights: Tensor, reduce: _Reduction) -> Tensor:
        _, ends, _ = self._on_device(log_weights.device)
        log_weights = self._as_read(log_weights)
        state = self._start(log_weights)
        for step in range(self.length):
            state = self._advance(state, step, log_weights, reduce)
        return reduce(_pad(state)[..., ends])

    def _as_read(self, log_weights: Tensor) -> Tensor:
        return log_weights.index_select(-2, self._order.to(log_weights.device))

    def _start(self, log_weights: Tensor) -> Tensor:
        start = log_weights.new_full(log_weights.shape[:-2] + (self.num_states,), -math.inf)
        start[..., 0] = 0.0
        return start

    def _advance(self, state: Tensor, step: int, log_weights: Tensor, reduce: _Reduction) -> Tensor:
        """Log sums, or largest log weights, of the words that end in every state, one step after those of ``state``,
        ``(..., states)``.
        """
        sources, _, _ = self._on_device(log_weights.device)
        cells = _pad((state.unsqueeze(-1) + log_weights[..., step, None, :]).flatten(-2))
        return reduce(cells[..., sources[step]])

    def _retreat(self, log_weights: Tensor, reduce: _Reduction) -> Iterator[Tensor]:
        """Yields log weights of the states after the last step, then of those before every step, from last to first."""
        state, kept = self._start(log_weights), []
        # If all are too many, those before some steps are kept, from which the following ones are computed again.
        stride = 1 if state.numel() * self.length <= STATES_AT_ONCE else math.isqrt(self.length)
        for step in range(self.length):
            if step % stride == 0:
                kept.append(state)
            state = self._advance(state, step, log_weights, reduce)
        yield state
        for first in reversed(range(0, self.length, stride)):
            states = [kept.pop()]
            for step in range(first, min(first + stride, self.length) - 1):
                states.append(self._advance(states[-1], step, log_weights, reduce))
            while states:
                yield states.pop()

    def log_marginals(self, level_weights: Tensor, log_weights: Tensor) -> Tensor:
        """Log-probabilities of the letters at every step if words are weighted by their level, too.

        :param Tensor level_weights: Log weights of the levels, shape ``(..., num_levels)``.
        :param Tensor log_weights: Shape ``(..., length, letters)``.
        :return: Shape ``(..., length, letters)``.
        """
        _, _, transitions = self._on_device(log_weights.device)
        log_weights = self._as_read(log_weights)
        states = self._retreat(log_weights, logsumexp)
        next(states)
        following = level_weights[..., self.levels.to(log_weights.device)]
        marginals = []
        for step, state in zip(reversed(range(self.length)), states, strict=True):
            ways = log_weights[..., step, None, :] + following[..., transitions[step]]
            marginals.append(normalize(logsumexp(state.unsqueeze(-1) + ways, -2)))
            following = logsumexp(ways)
        return torch.stack(marginals[::-1], -2).index_select(-2, self._rank.to(log_weights.device))

    def sample(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """Draws words of given levels with probabilities proportional to their weights.

        :param Tensor level: Integers of shape ``(...)``; where a level has no weight, the result is arbitrary.
        :param Tensor log_weights: Shape ``(..., length, letters)``.
        :return: Words, integers of shape ``(..., length)``.
        """
        return self._trace(level, log_weights, logsumexp, _draw)

    def find(self, level: Tensor, log_weights: Tensor) -> Tensor:
        """A word of largest weight for each of given levels; arguments as for :meth:`sample`."""
        return self._trace(level, log_weights, _largest, lambda weights: weights)

    def _trace(
        self, level: Tensor, log_weights: Tensor, reduce: _Reduction, preference: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Words, traced back from the levels to the start by the largest preference among candidates' log weights."""
        batch = broadcast_shapes(level.shape, log_weights.shape[:-2])
        sources, ends, _ = self._on_device(log_weights.device)
        log_weights = self._as_read(log_weights)
        states = self._retreat(log_weights, reduce)

        def choose(weights: Tensor, candidates: Tensor) -> Tensor:
            padded = _pad(weights).expand(batch + (weights.shape[-1] + 1,))
            best = preference(padded.gather(-1, candidates)).argmax(-1, keepdim=True)
            # A candidate that only pads is chosen where there is none: any word will do.
            return candidates.gather(-1, best).clamp(max=weights.shape[-1] - 1)

        # Indices keep an axis, as in read().
        target = choose(next(states), ends[level.expand(batch).unsqueeze(-1)].squeeze(-2))
        letters = []
        for step, state in zip(reversed(range(self.length)), states, strict=True):
            weights = (state.unsqueeze(-1) + log_weights[..., step, None, :]).flatten(-2)
            cell = choose(weights, sources[step][target].squeeze(-2))
            target = cell // self.num_letters
            letters.append(cell % self.num_letters)
        return torch.cat(letters[::-1], -1).index_select(-1, self._rank.to(log_weights.device))


def _pad(weights: Tensor) -> Tensor:
    return torch.nn.functional.pad(weights, (0, 1), value=-math.inf)


def _largest(log_weights: Tensor) -> Tensor:
    return log_weights.amax(-1)


def _draw(log_weights: Tensor) -> Tensor:
    """Gumbel variables around log weights, the argmax of which is a draw in proportion to the weights."""
    return log_weights - (-torch.rand_like(log_weights).log()).log()


def _group(targets: Tensor, num_targets: int) -> Tensor:
    """Positions that map to every target in every row, padded with the number of positions: (rows, targets, width)."""
    rows, positions = targets.shape
    order = targets.argsort(dim=-1, stable=True)
    counts = targets.new_zeros(rows, num_targets).scatter_add_(1, targets, torch.ones_like(targets))
    starts = counts.cumsum(-1) - counts
    slots = torch.arange(int(counts.max()), device=targets.device)
    index = (starts.unsqueeze(-1) + slots).clamp(max=positions - 1)
    grouped = order.gather(1, index.flatten(1)).view(rows, num_targets, -1)
    padded: Tensor = grouped.masked_fill(slots >= counts.unsqueeze(-1), positions)
    return padded
