"""Markov chains of matrices of zeros and ones with potentials on the counts of rows and columns."""

__all__ = ["MatrixLaw", "doubt_of_irreducibility", "sweep_matrices"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_sampling import sample_counts
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.evidence import log_odds

# Number of shifts in a sweep, and the share of those of at least L ones that have more.
NUM_SHIFTS = 8
LONGER = 0.4


class MatrixLaw(NamedTuple):
    """Laws of N matrices.

    :ivar Tensor weights: Log-weights of 0 and of 1 of the entries, less than +inf, shape ``(N, I, J, 2)``.
    :ivar Tensor rows: Log-potentials of the rows' counts, shape ``(N, I, J + 1)``.
    :ivar Tensor columns: Log-potentials of the columns' counts, shape ``(N, J, I + 1)``.
    """

    weights: Tensor
    rows: Tensor
    columns: Tensor

    @property
    def transposed(self) -> "MatrixLaw":
        """Laws of the transposed matrices."""
        return MatrixLaw(self.weights.transpose(1, 2), self.columns, self.rows)

    def log_weight(self, value: Tensor) -> Tensor:
        """Log-weights of matrices, -inf where they are impossible, shape ``(N,)``.

        :param Tensor value: Integers, shape ``(N, I, J)``.
        """
        entries = self.weights.gather(-1, value.unsqueeze(-1)).sum((-3, -2, -1))
        rows = self.rows.gather(-1, value.sum(-1, keepdim=True)).sum((-2, -1))
        columns = self.columns.gather(-1, value.sum(-2).unsqueeze(-1)).sum((-2, -1))
        return entries + rows + columns


def doubt_of_irreducibility(law: MatrixLaw) -> str | None:
    """Why it is not known whether :func:`sweep_matrices` reaches all possible matrices; ``None`` if it is known to.

    It does where the possible counts of all rows and all columns are intervals, whatever entries are forbidden: any two
    matrices differ by alternating paths and cycles, along which entries can be changed one path after the other, and
    each of these is a shift. It does as well where all counts of the columns are possible, or all counts of the rows:
    then whole rows, or columns, can be exchanged one by one.
    """
    possible = (law.rows > -math.inf, law.columns > -math.inf)
    if any(bool(table.all()) for table in possible):
        return None
    for table, name in zip(possible, ("row", "column"), strict=True):
        begins = table[..., :1].sum(-1) + (table[..., 1:] & ~table[..., :-1]).sum(-1)
        gaps = (begins > 1).any(0)
        if bool(gaps.any()):
            number = int(gaps.long().argmax())
            counts = ", ".join(map(str, table[:, number].any(0).nonzero().flatten().tolist()))
            other = "column" if name == "row" else "row"
            return (
                f"the counts that {name} {number} allows ({counts}) have a gap, and a {other} does not allow all counts"
            )
    return None


def sweep_matrices(law: MatrixLaw, value: Tensor, num_sweeps: int) -> Tensor:
    """Moves that leave the laws invariant: blocks of two rows and two columns, whole rows and columns, and shifts.

    In a sweep, each entry is in about one block of two by two, of which all 16 states are weighed; a row and a column,
    drawn at random, are drawn exactly given all others; and chains of ones are shifted along alternating paths and
    cycles of random length.

    :param MatrixLaw law: N laws.
    :param Tensor value: Possible matrices, integers of shape ``(N, I, J)``.
    :param int num_sweeps: Number of sweeps.
    :return: Matrices of the same shape. Cost O(I J) operations on N numbers a sweep, and those of a row and a column.
    """
    height, width = value.shape[1:]
    blocks = min(height, width) // 2
    for _ in range(num_sweeps):
        for _ in range(-(-height * width // (4 * blocks)) if blocks else 0):
            value = _exchange_blocks(law, value, blocks)
        value = _draw_row(law, value)
        value = _draw_row(law.transposed, value.mT).mT
        for _ in range(NUM_SHIFTS):
            value = _shift(law, value)
    return value


def _exchange_blocks(law: MatrixLaw, value: Tensor, number: int) -> Tensor:
    """Draws the entries of blocks that share no row and no column, exactly given all others."""
    chains, height, width = value.shape
    rows, columns = (
        torch.rand(chains, size, device=value.device).argsort(-1)[:, : 2 * number].unflatten(-1, (number, 2))
        for size in (height, width)
    )
    chain = torch.arange(chains, device=value.device).reshape(-1, 1, 1)
    place = (chain.unsqueeze(-1), rows.unsqueeze(-1), columns.unsqueeze(-2))
    present = value[place]
    others = value.sum(-1)[chain, rows] - present.sum(-1), value.sum(-2)[chain, columns] - present.sum(-2)
    states = _STATES.to(value.device)
    score = torch.zeros((), dtype=law.weights.dtype, device=value.device)
    for table, index, count, axis in ((law.rows, rows, others[0], -1), (law.columns, columns, others[1], -2)):
        counts = torch.arange(3, device=value.device)
        near = table[chain.unsqueeze(-1), index.unsqueeze(-1), count.unsqueeze(-1) + counts]
        ones = states.sum(axis)
        score = score + near[:, :, 0, ones[:, 0]] + near[:, :, 1, ones[:, 1]]
    # Entries one after the other, shape (chains, blocks, 16).
    weights = law.weights[place].flatten(2, 3)
    for entry, on in enumerate(states.flatten(1).T):
        score = score + weights[:, :, entry, on]
    drawn = states[draw_log(score)]
    return value.index_put(place, drawn)


_STATES = torch.cartesian_prod(*[torch.arange(2)] * 4).reshape(16, 2, 2)


def _draw_row(law: MatrixLaw, value: Tensor) -> Tensor:
    """Draws a row of each matrix, chosen at random, exactly given all others."""
    chains, height, width = value.shape
    chain, row = torch.arange(chains, device=value.device), torch.randint(height, (chains,), device=value.device)
    counts = (value.sum(-2) - value[chain, row]).unsqueeze(-1)
    off, on = (law.columns.gather(-1, counts + one).squeeze(-1) + law.weights[chain, row, :, one] for one in (0, 1))
    drawn = sample_counts(log_odds(off, on), law.rows[chain, row], CountForest(width), 1)[0]
    return value.index_put((chain, row), drawn.long())


def _shift(law: MatrixLaw, value: Tensor) -> Tensor:
    """Proposes to move ones along an alternating path or cycle of each matrix, rows or columns at random."""
    if bool(torch.rand(()) < 0.5):
        return _shift_rows(law.transposed, value.mT).mT
    return _shift_rows(law, value)


def _shift_rows(law: MatrixLaw, value: Tensor) -> Tensor:
    """Of L ones in different rows and columns, chosen at random and in order, each goes to the row of the next one.

    The last goes to the row of the first (a cycle), to a row at random (a move), or away (a loss). The reverse of a
    loss takes L - 1 ones, of which the last goes to a row at random, and adds one in the row of the first, and in a
    column at random (a gain).
    """
    chains, height, width = value.shape
    device = value.device
    length = 1
    while length < min(height, width) and bool(torch.rand(()) < LONGER):
        length += 1
    kind = torch.randint(4, (chains, 1), device=device)
    moves, loses, gains = kind == 1, kind == 2, kind == 3
    new_row, new_column = (torch.randint(size, (chains, 1), device=device) for size in (height, width))
    total = value.sum((-2, -1))
    taken = length - gains.long()
    step = torch.arange(length, device=device)
    is_last, is_used = step == taken - 1, step < taken
    keys = torch.rand(chains, height * width, device=device).masked_fill(value.flatten(1) == 0, -1.0)
    places = keys.topk(length, -1).indices
    # The place behind the ones of a gain is that of the new one, as seen from its reverse.
    rows = torch.where(is_used, places // width, new_row)
    columns = torch.where(is_used, places % width, new_column)
    following = torch.where(is_last, torch.where(moves | gains, new_row, rows[:, :1]), rows.roll(-1, -1))
    change = torch.zeros(chains, height * width, dtype=torch.long, device=device)
    change = change.scatter_add(1, places, -is_used.long())
    change = change.scatter_add(1, following * width + columns, (is_used & ~(loses & is_last)).long())
    change = change.scatter_add(1, rows[:, :1] * width + new_column, gains.long())
    proposed = value + change.unflatten(1, (height, width))
    possible = ((proposed == 0) | (proposed == 1)).flatten(1).all(-1) & (taken.squeeze(-1) <= total)
    possible &= _are_distinct(rows) & _are_distinct(columns)
    # The row that a move leads to may be that of the first one only: others would stand twice in its reverse.
    possible &= ~(moves & (rows[:, 1:] == new_row)).any(-1)
    tried = torch.where(possible.reshape(-1, 1, 1), proposed, value)
    ratio = law.log_weight(tried) - law.log_weight(value)
    # A loss chooses one of the ones more than its reverse, which chooses one of all entries.
    share = (total + gains.squeeze(-1)).double().log() - math.log(height * width)
    ratio = ratio + share * (loses.long() - gains.long()).squeeze(-1)
    accepted = possible & (torch.rand(chains, dtype=torch.double, device=device).log() < ratio)
    return torch.where(accepted.reshape(-1, 1, 1), proposed, value)


def _are_distinct(numbers: Tensor) -> Tensor:
    """Whether numbers of each row differ, shape ``(rows,)``."""
    ordered = numbers.sort(-1).values
    return (ordered[:, 1:] != ordered[:, :-1]).all(-1)
