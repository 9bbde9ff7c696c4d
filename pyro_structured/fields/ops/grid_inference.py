"""Fields of pixels with K labels whose neighbours prefer to be alike, or different: exact, differentiable, batched."""

__all__ = ["GridDraws", "cost_of_grid", "infer_grid", "log_partition_of_grid", "maximize_grid"]

from collections.abc import Iterator

import torch
from torch import Tensor

from pyro_structured.fields.ops.grid_passes import GridPass, forward, profile_marginals, trace_back
from pyro_structured.foundation.ops.marginal_inference import MarginalPlan, infer_marginals
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# Numbers of one message, which stay in the cache, and of all messages that are kept at a time.
NUMBERS_AT_ONCE, NUMBERS_KEPT = 2**17, 2**24


def cost_of_grid(shape: tuple[int, int], num_labels: int = 2) -> int:
    """Number of values that a pass computes for each row: H·W·K^shorter side, and some three times as many if K > 2."""
    height, width = shape
    return int(height * width * num_labels ** min(shape))


def log_partition_of_grid(states: Tensor, penalties: Tensor, shape: tuple[int, int]) -> Tensor:
    """Logarithm of the sum of all weights, shape ``(rows,)``; arguments as for :func:`infer_grid`."""
    return infer_marginals(_Grid(shape), states, penalties, marginals=False)[0]


def infer_grid(states: Tensor, penalties: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the log partition function and all marginals.

    :param Tensor states: Log-weights of label 0 of all pixels, row by row, then those of 1, and so on, shape
        ``(rows, K H W)``, less than +inf.
    :param Tensor penalties: Subtracted where the two pixels of a pair differ, in the order of ``structures.Grid``,
        shape ``(rows, E)`` or ``(1, E)``; +inf makes them alike.
    :param shape: Height and width.
    :return: Log Z, shape ``(rows,)``, probabilities of the states, shape ``(rows, K H W)``, and those that neighbours
        differ, shape ``(rows, E)``; zeros in rows where nothing is possible. Cost O(H·W·K^shorter side) a row.
    """
    log_z, single, alike = infer_marginals(_Grid(shape), states, penalties)
    return log_z, single, -alike


class GridDraws:
    """Exact samples, for which the passes over the grid are made once, if they fit into one batch of rows; arguments as
    for :func:`infer_grid`.
    """

    def __init__(self, states: Tensor, penalties: Tensor, shape: tuple[int, int]) -> None:
        self._arguments = states, penalties, shape
        self._passed: GridPass | None = None

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Tensor:
        """Integers of shape ``(N, H W)``.

        :param Tensor rows: Row that each sample is drawn from, integers of shape ``(N,)``.
        """
        shape = self._arguments[2]
        drawn = rows.new_zeros(len(rows), shape[0] * shape[1])
        for start, stop, states, penalties in _parts(*self._arguments, keep=True):
            mine = ((rows >= start) & (rows < stop)).nonzero().squeeze(-1)
            if len(mine):
                passed = self._passed or forward(states, penalties, shape, keep=True)
                self._passed = passed if states.shape[-1] == max(map(len, self._arguments[:2])) else None
                for batch in mine.split(max(1, NUMBERS_KEPT // len(passed.messages[-1]) // 2)):
                    drawn[batch] = trace_back(passed, penalties, shape, rows[batch] - start, _draw)
        return drawn


@torch.no_grad()
def maximize_grid(states: Tensor, penalties: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A largest log-weight of every row, shape ``(rows,)``, and where it is reached, integers of shape ``(rows, H W)``;
    arguments as for :func:`infer_grid`.
    """
    peaks, values = [], []
    for start, stop, some_states, some_penalties in _parts(states, penalties, shape, keep=True):
        passed = forward(some_states, some_penalties, shape, keep=True, add=torch.maximum)
        rows = torch.arange(stop - start, device=states.device)
        peaks.append(passed.log_partition)
        values.append(trace_back(passed, some_penalties, shape, rows, lambda weights: weights.argmax(0)))
    return torch.cat(peaks), torch.cat(values)


class _Grid(MarginalPlan):
    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape

    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        blocks = []
        for _, _, states, penalties in _parts(parameters[0], parameters[1], self.shape, keep=marginals):
            passed = forward(states, penalties, self.shape, keep=marginals)
            results = [passed.log_partition]
            if marginals:
                single, differ = profile_marginals(passed, states, penalties, self.shape)
                results += [single.T, -differ.T]
            blocks.append(results)
        return tuple(torch.cat(block) for block in zip(*blocks, strict=True))


def _parts(
    states: Tensor, penalties: Tensor, shape: tuple[int, int], keep: bool
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Groups of rows: numbers of the first row and of the one after the last, and states and penalties with the rows as
    their last axis.
    """
    (rows,) = broadcast_shapes(states.shape[:1], penalties.shape[:1])
    number = states.shape[-1] // (shape[0] * shape[1])
    step = NUMBERS_AT_ONCE // number ** min(shape)
    if keep:
        step = min(step, NUMBERS_KEPT // cost_of_grid(shape, number))
    states = states.expand(rows, -1)
    for start in range(0, max(1, rows), max(1, step)):
        stop = min(start + max(1, step), rows)
        batch_penalties = penalties if len(penalties) == 1 else penalties[start:stop]
        yield start, stop, states[start:stop].T.contiguous(), batch_penalties.T.contiguous()


def _draw(weights: Tensor) -> Tensor:
    """Index drawn for each column of log-weights, shape ``(N,)``."""
    cumulative = (weights - weights.amax(0)).exp().cumsum(0)
    threshold = torch.rand_like(cumulative[:1]) * (cumulative[-1:] * (1 - 2.0**-52))
    return (cumulative <= threshold).sum(0)
