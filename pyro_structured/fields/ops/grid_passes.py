"""Passes over a grid of pixels with K labels, one pixel after the other, for all rows at once; rows are the last axis.

Pixels that are passed depend on those to come only through a profile: the labels of the last pixels that are passed, as
many as the shorter side of the grid is long, written as the digits below K of a number. Its first digit is the last
pixel.
"""

__all__ = ["GridPass", "forward", "log_add", "profile_marginals", "trace_back"]

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_space import logsumexp, safe_log

Add = Callable[[Tensor, Tensor], Tensor]


class _Cell(NamedTuple):
    """A pixel, and its edges to the pixel in the line before and to the one before it in its own line, or ``None``."""

    pixel: int
    before: int | None
    beside: int | None


class GridPass(NamedTuple):
    """Results of a pass that sums, or maximises, over the pixels one after the other.

    :ivar list messages: Log-weights of the profiles, less their largest, before the first pixel and after each, shape
        ``(K ** shorter side, rows)``; the last one only, where the others are not asked for.
    :ivar list peaks: The largest log-weights, subtracted after each pixel, each of shape ``(rows,)``.
    :ivar Tensor log_partition: Log Z, or the largest log-weight, shape ``(rows,)``.
    :ivar int num_labels: K.
    """

    messages: list[Tensor]
    peaks: list[Tensor]
    log_partition: Tensor
    num_labels: int


def log_add(one: Tensor, other: Tensor) -> Tensor:
    """Logarithm of the sum of two exponentials, whose derivatives are finite where both are -inf."""
    if not torch.is_grad_enabled():
        return torch.logaddexp(one, other)
    peak = _finite(torch.maximum(one, other).detach())
    return safe_log((one - peak).exp() + (other - peak).exp()) + peak


def forward(states: Tensor, penalties: Tensor, shape: tuple[int, int], keep: bool, add: Add = log_add) -> GridPass:
    """Sums pixels out, one after the other, or maximises over them.

    :param Tensor states: Log-weights of label 0 of all pixels, then those of 1, and so on, shape ``(K H W, rows)``;
        -inf excludes.
    :param Tensor penalties: Penalties of all pairs of neighbours, in the order of ``structures.Grid``, shape ``(E,
        rows)`` or ``(E, 1)``; +inf is allowed.
    :param shape: Height and width.
    :param bool keep: Whether to keep all messages, H·W·K^shorter side numbers a row.
    :param add: Function that joins the log-weights of two labels: ``log_add`` for sums, ``torch.maximum`` for maxima.
    """
    short, rows, number = min(shape), states.shape[-1], len(states) // (shape[0] * shape[1])
    message = states.new_full((number**short, rows), -torch.inf)
    message[0] = 0.0
    result = GridPass([message], [], states.new_zeros(rows), number)
    for cell in _scan(shape):
        gate = _gate(cell, states.unflatten(0, (number, -1)), penalties)
        message = _absorb(message, gate, _penalty(cell.before, penalties), short, add)
        peak = _finite(message.detach().amax(0))
        message = message - peak
        result.messages.append(message)
        result.peaks.append(peak)
        if not keep:
            del result.messages[0]
    total = message.amax(0) if add is torch.maximum else logsumexp(message, 0)
    return result._replace(log_partition=total + torch.stack(result.peaks).sum(0))


def profile_marginals(
    found: GridPass, states: Tensor, penalties: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Probabilities of the states of single pixels and that neighbours differ, from the last pixel to the first.

    :param GridPass found: Sums, all messages kept.
    :return: Shapes ``(K H W, rows)`` and ``(E, rows)``; zeros in rows where nothing is possible.
    """
    short, rows, number = min(shape), states.shape[-1], found.num_labels
    behind = torch.zeros_like(found.messages[-1])
    single = [behind] * (shape[0] * shape[1])
    differ = [behind.new_zeros(rows)] * len(penalties)
    steps = zip(_scan(shape), found.messages[:-1], found.messages[1:], found.peaks, strict=True)
    for cell, earlier, later, peak in reversed(list(steps)):
        joint = later + behind
        level = _finite(joint.detach().amax(0))
        table = _profile(joint - level, short, number).exp().sum(2)
        total = table.sum((0, 1))
        possible = total > 0
        table = table / total.masked_fill(~possible, 1.0)
        single[cell.pixel] = table.sum(1)
        if cell.beside is not None:
            pairs = permutations(range(number), 2)
            differ[cell.beside] = reduce(torch.add, [table[first, second] for first, second in pairs])
        ahead = (_profile(behind, short, number) + _gate(cell, states.unflatten(0, (number, -1)), penalties)).unbind()
        others, penalty = _all_but_one(ahead, log_add), _penalty(cell.before, penalties)
        if cell.before is not None and penalty is not None:
            past = _previous(earlier, short, number)
            constant = level + peak + total.masked_fill(~possible, 1.0).log() + penalty
            changed = torch.stack([past[:, :, label] + others[label] for label in range(number)]) - _finite(constant)
            # Neighbours with an infinite penalty never differ.
            changed = changed.masked_fill(~(possible & (constant < torch.inf)), -torch.inf)
            differ[cell.before] = changed.exp().sum((0, 1, 2))
        behind = torch.stack(_join(ahead, others, penalty, log_add), 2).reshape(later.shape)
        behind = behind - _finite(behind.detach().amax(0))
    pixels = torch.stack(single, 1).flatten(0, 1)
    return pixels, torch.stack(differ) if differ else pixels.new_zeros(0, rows)


def trace_back(
    found: GridPass, penalties: Tensor, shape: tuple[int, int], rows: Tensor, choose: Callable[[Tensor], Tensor]
) -> Tensor:
    """Labels of all pixels, chosen from the last pixel to the first.

    :param GridPass found: A pass with all messages kept: of sums to draw labels, of maxima to find best ones.
    :param Tensor rows: Row of the pass for each labelling, integers of shape ``(N,)``.
    :param choose: Function of log-weights of shape ``(choices, N)`` that returns a choice for each of the N.
    :return: Integers of shape ``(N, H W)``.
    """
    short, cells, number = min(shape), _scan(shape), found.num_labels
    width, unit = penalties.shape[-1], number ** (min(shape) - 1)
    profile = choose(found.messages[-1][:, rows])
    values = profile.new_zeros(len(rows), shape[0] * shape[1])
    for place in range(short):
        values[:, cells[-1 - place].pixel] = profile // number ** (short - 1 - place) % number
    for place in range(len(cells) - 1, short - 1, -1):
        cell, last = cells[place], profile // unit
        assert cell.before is not None
        shifted = number * (profile % unit)
        penalty = penalties[cell.before][rows if width > 1 else torch.zeros_like(rows)]
        message = found.messages[place]
        weights = [message[shifted + label, rows] - penalty.where(last != label, 0.0) for label in range(number)]
        profile = shifted + choose(torch.stack(weights))
        values[:, cells[place - short].pixel] = profile % number
    return values


@lru_cache(maxsize=64)
def _scan(shape: tuple[int, int]) -> tuple[_Cell, ...]:
    """All pixels, line by line, where lines run along a shorter side."""
    height, width = shape
    first_beside = (height - 1) * width
    cells = []
    for y in range(height):
        for x in range(width):
            above = (y - 1) * width + x if y else None
            left = first_beside + y * (width - 1) + x - 1 if x else None
            cells.append(_Cell(y * width + x, above, left))
    if width <= height:
        return tuple(cells)
    by_columns = sorted(cells, key=lambda cell: cell.pixel % width)
    return tuple(_Cell(cell.pixel, cell.beside, cell.before) for cell in by_columns)


def _finite(tensor: Tensor) -> Tensor:
    return tensor.masked_fill(tensor.isinf(), 0.0)


def _profile(message: Tensor, short: int, number: int) -> Tensor:
    """Message with axes for the last pixel, the one beside it, and all others."""
    beside = number if short > 1 else 1
    return message.reshape(number, beside, len(message) // (number * beside), message.shape[-1])


def _previous(message: Tensor, short: int, number: int) -> Tensor:
    """Message with axes for the pixel beside the next one, all others, and the one before the next one."""
    beside = number if short > 1 else 1
    return message.reshape(beside, len(message) // (number * beside), number, message.shape[-1])


def _penalty(edge: int | None, penalties: Tensor) -> Tensor | None:
    return None if edge is None else penalties[edge]


def _gate(cell: _Cell, states: Tensor, penalties: Tensor) -> Tensor:
    """Log-weights of a pixel, by its label and that of the one beside it, shape ``(K, 1 or K, 1, rows)``.

    :param Tensor states: Shape ``(K, H W, rows)``.
    """
    weights = states[:, cell.pixel]
    if cell.beside is None:
        return weights[:, None, None]
    penalty = penalties[cell.beside]
    rows = []
    for label, alike in enumerate(weights):
        unlike = alike - penalty
        rows.append(
            torch.stack([alike if label == neighbour_label else unlike for neighbour_label in range(len(weights))])
        )
    return torch.stack(rows).unsqueeze(2)


def _absorb(message: Tensor, gate: Tensor, penalty: Tensor | None, short: int, add: Add) -> Tensor:
    """Message with a pixel added to the profile, summed, or maximised, over the pixel that leaves it."""
    old = _previous(message, short, len(gate)).unbind(2)
    joined = _join(old, _all_but_one(old, add), penalty, add)
    return (torch.stack(joined) + gate).reshape(message.shape)


def _all_but_one(parts: Sequence[Tensor], add: Add) -> list[Tensor]:
    """Joined log-weights of all other labels, for each label."""
    below, above = [parts[0]], [parts[-1]]
    for label in range(1, len(parts) - 1):
        below.append(add(below[-1], parts[label]))
        above.append(add(above[-1], parts[-1 - label]))
    inner = [add(below[label - 1], above[-1 - label]) for label in range(1, len(parts) - 1)]
    return [above[-1], *inner, below[-1]]


def _join(parts: Sequence[Tensor], others: Sequence[Tensor], penalty: Tensor | None, add: Add) -> list[Tensor]:
    """Joined log-weights of a pixel's labels, for each label of a neighbour.

    :param parts: Log-weights of the pixel's labels.
    :param others: Joined log-weights of all other labels, for each label.
    """
    if penalty is None:
        return [add(parts[0], others[0])] * len(parts)
    return [add(part, rest - penalty) for part, rest in zip(parts, others, strict=True)]
