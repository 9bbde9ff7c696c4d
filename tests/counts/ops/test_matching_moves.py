"""Moves of matrices leave their law invariant, and reach all of them where that is said."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pyro_structured.counts.ops import matching_moves
from pyro_structured.counts.ops.matching_moves import MatrixLaw, doubt_of_irreducibility, sweep_matrices
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit
from tests.counts.matrices import enumerated, law

pytestmark = pytest.mark.statistical


def matrix_law(logits, rows, columns, number=1):
    off = torch.zeros_like(logits).masked_fill(logits == math.inf, -math.inf)
    weights = torch.stack([off, logits.masked_fill(logits == math.inf, 0.0)], -1)
    return MatrixLaw(*(tensor.expand(number, *tensor.shape) for tensor in (weights, rows, columns)))


def transitions(laws, move, number):
    """Probabilities of all possible matrices, and shares of ``number`` chains from each that move to each."""
    values, log_weights = enumerated(*(tensor.unsqueeze(0) for tensor in laws))
    possible = log_weights[:, 0] > -math.inf
    values, probs = values[possible].long(), log_weights[possible, 0].softmax(0)
    start = values.repeat_interleave(number, 0)
    moved = move(matrix_law(*laws, len(start)), start)
    digits = 2 ** torch.arange(values[0].numel())
    place = torch.full((2 ** len(digits),), -1)
    place[values.flatten(1) @ digits] = torch.arange(len(values))
    ends = place[moved.flatten(1) @ digits]
    assert bool((ends >= 0).all())
    shares = torch.zeros(len(values), len(values), dtype=torch.double)
    shares.view(-1).index_add_(
        0, torch.arange(len(values)).repeat_interleave(number) * len(values) + ends, torch.ones(len(ends)).double()
    )
    return probs, shares / number


def column(move):
    return lambda laws, value: move(laws.transposed, value.mT).mT


def repeatedly(move, number):
    def moves(laws, value):
        for _ in range(number):
            value = move(laws, value)
        return value

    return moves


def blocks(laws, value):
    return matching_moves._exchange_blocks(laws, value, min(value.shape[1:]) // 2)


MOVES = {
    "blocks": blocks,
    "row": matching_moves._draw_row,
    "column": column(matching_moves._draw_row),
    # The length of chains is the same for all matrices.
    "shift": repeatedly(matching_moves._shift, 20),
    "sweep": lambda laws, value: sweep_matrices(laws, value, 1),
}


def laws_of(shape, rows, columns, seed=0, forbidden=()):
    """Random log-odds, and tables that are random where they are possible."""
    generator = torch.Generator().manual_seed(seed)
    height, width = shape
    logits = 0.4 * torch.randn(shape, generator=generator, dtype=torch.double)
    for place in forbidden:
        logits[place] = -math.inf
    tables = law(width, height, rows), law(height, width, columns)
    return logits, *(t + 0.4 * torch.randn(t.shape, generator=generator, dtype=torch.double) for t in tables)


# Chains that start at each matrix.
NUMBER = 1500
CASES = {
    "free": ((2, 3), range(4), range(3)),
    "one": ((3, 3), (1,), (1,)),
    "at most one": ((3, 3), (0, 1), (0, 1)),
    "interval": ((3, 3), (1, 2), (0, 1, 2)),
    "gap": ((2, 4), (0, 3), range(3)),
}


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("move", MOVES)
def test_invariance(move, case):
    torch.manual_seed(0)
    laws = laws_of(*CASES[case])
    probs, shares = transitions(laws, MOVES[move], NUMBER)
    flows = probs.unsqueeze(-1) * shares
    deviation = (probs.square().unsqueeze(-1) * shares * (1 - shares)).sum(0).div(NUMBER).sqrt()
    assert bool(((flows.sum(0) - probs).abs() <= 5 * deviation + 1e-12).all())


def components(laws, *moves):
    reached = sum((transitions(laws, MOVES[move], 2000)[1] > 0).double() for move in moves)
    return connected_components(reached.numpy(), connection="strong")[0]


def block_neighbours(height, width):
    """Pairs of matrices, by their digits, that differ in one block of two rows and two columns."""
    weights = 2 ** np.arange(height * width).reshape(height, width)
    states = np.arange(2 ** (height * width))
    ends = [[], []]
    for rows in itertools.combinations(range(height), 2):
        for columns in itertools.combinations(range(width), 2):
            digits = weights[np.ix_(rows, columns)].ravel()
            others = states & ~digits.sum()
            for chosen in itertools.product((0, 1), repeat=4):
                ends[0].append(states)
                ends[1].append(others + digits @ np.array(chosen))
    return np.concatenate(ends[0]), np.concatenate(ends[1])


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 3), (3, 4)], ids=str)
def test_blocks_connect_interval_laws(shape):
    """All laws that allow an interval of counts in the rows, and one in the columns, by enumeration."""
    height, width = shape
    first, second = block_neighbours(height, width)
    digits = np.arange(2 ** (height * width))[:, None] >> np.arange(height * width) & 1
    matrices = digits.reshape(-1, height, width)
    intervals = [[(a, b) for b in range(size + 1) for a in range(b + 1)] for size in (width, height)]
    for rows, columns in itertools.product(*intervals):
        possible = np.ones(len(matrices), dtype=bool)
        for counts, (low, high) in ((matrices.sum(2), rows), (matrices.sum(1), columns)):
            possible &= ((counts >= low) & (counts <= high)).all(1)
        used = possible[first] & possible[second]
        graph = coo_array((np.ones(used.sum()), (first[used], second[used])), shape=(len(matrices),) * 2)
        labels = connected_components(graph, directed=False)[1]
        assert len(np.unique(labels[possible])) <= 1


def test_connection():
    """Blocks do not connect matrices with a forbidden diagonal, nor rows with gaps; other moves do."""
    torch.manual_seed(1)
    diagonal = laws_of((3, 3), (1,), (1,), forbidden=[(i, i) for i in range(3)])
    assert components(diagonal, "blocks") == 2 and components(diagonal, "shift") == 1
    assert doubt_of_irreducibility(matrix_law(*diagonal)) is None
    gap = laws_of((2, 4), (0, 3), range(3))
    assert components(gap, "blocks") > 1 and components(gap, "row") == 1
    assert doubt_of_irreducibility(matrix_law(*gap)) is None
    both = laws_of((2, 4), (0, 3), (0, 1))
    doubt = doubt_of_irreducibility(matrix_law(*both))
    assert doubt == "the counts that row 0 allows (0, 3) have a gap, and a column does not allow all counts"
    turned = doubt_of_irreducibility(matrix_law(*both).transposed)
    assert turned == "the counts that column 0 allows (0, 3) have a gap, and a row does not allow all counts"


def test_shifts_alone_connect_interval_laws():
    torch.manual_seed(2)
    laws = laws_of((3, 4), (1, 2), (0, 1, 2), forbidden=[(0, 0), (1, 2)])
    reached = transitions(laws, repeatedly(matching_moves._shift, 60), 100)[1] > 0
    assert connected_components(reached.double().numpy(), connection="strong")[0] == 1


@pytest.mark.slow
def test_long_runs():
    """Chains that start at one matrix end with the law's distribution."""
    torch.manual_seed(3)
    laws = laws_of((3, 4), (1, 2), (0, 1, 2), seed=5)
    values, log_weights = enumerated(*(tensor.unsqueeze(0) for tensor in laws))
    start = values[log_weights[:, 0].argmin() * 0 + (log_weights[:, 0] > -math.inf).long().argmax()].long()
    moved = sweep_matrices(matrix_law(*laws, 20_000), start.expand(20_000, 3, 4), 20)
    digits = 2 ** torch.arange(11, -1, -1)
    counts = torch.bincount(moved.flatten(1) @ digits, minlength=len(values))
    assert discrete_goodness_of_fit(log_weights[:, 0].softmax(0), counts) > 1e-6
