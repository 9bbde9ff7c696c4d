"""Sums over blocks of weighted variables against exact polynomials and enumeration."""

import itertools
import math
import random

import pytest
import torch

from pyro_structured.exchangeable.ops.weighted_counts import (
    block_log_marginals,
    block_log_mass,
    block_peak_tables,
    block_tables,
    split_counts,
)
from pyro_structured.structures import Partition
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical


def random_partitions(number, n):
    """Partitions into few large and many small blocks, in any order of the variables."""
    return Partition(torch.stack([torch.randint(random.Random(i).choice([1, 2, 5, n]), (n,)) for i in range(number)]))


def cells_of(partition, row):
    """Variables of each block, and its cells."""
    start = 0
    for block in partition[row].blocks():
        yield block, slice(start, start + len(block) + 1)
        start += len(block) + 1


def test_exact_polynomials():
    """Integer weights of very different sizes: polynomials have exact coefficients."""
    torch.manual_seed(0)
    n, number = 37, 6
    partition = random_partitions(number, n)
    weights = (torch.randn(number, n, 2, dtype=torch.float64) * 20).exp().ceil()
    weights[torch.rand(weights.shape) < 0.1] = 0
    log_weights = weights.log()
    found = block_log_mass(partition.tree, block_tables(partition.tree, log_weights))
    assert found.shape == (number, 2 * n)
    for row in range(number):
        used = 0
        for block, cells in cells_of(partition, row):
            polynomial = [1]
            for d in block:
                off, on = map(int, weights[row, d].tolist())
                polynomial = [a * off + b * on for a, b in zip([*polynomial, 0], [0, *polynomial], strict=True)]
            exact = torch.tensor([math.log(c) if c else -math.inf for c in polynomial], dtype=torch.float64)
            torch.testing.assert_close(found[row, cells], exact, rtol=1e-13, atol=1e-12)
            used = cells.stop
        assert (found[row, used:] == -math.inf).all()


def test_blocks_of_a_batch():
    """Largest weights, marginals and draws of each block alone."""
    torch.manual_seed(1)
    n, number = 8, 5
    partition, log_weights = random_partitions(number, n), torch.randn(number, n, 2, dtype=torch.float64)
    log_weights[torch.rand(number, n, 2) < 0.1] = -math.inf
    log_weights[..., 0] = log_weights[..., 0].clamp(min=-3.0)
    tree, cell_weights = partition.tree, torch.randn(number, 2 * n, dtype=torch.float64)
    tables, peak_tables = block_tables(tree, log_weights), block_peak_tables(tree, log_weights)
    mass, peaks = block_log_mass(tree, tables), block_log_mass(tree, peak_tables)
    marginals = block_log_marginals(tree, tables, cell_weights).exp()
    counts = torch.zeros(number, n, dtype=torch.long)
    for row in range(number):
        for block, cells in cells_of(partition, row):
            counts[row, block[0]] = mass[row, cells].argmax()
    drawn = split_counts(tree, tables, counts.expand(2000, number, n))
    best = split_counts(tree, peak_tables, counts, choose=lambda weights: weights.argmax(-1))
    for row in range(number):
        for block, cells in cells_of(partition, row):
            values = torch.tensor(list(itertools.product(range(2), repeat=len(block))))
            scores = log_weights[row, block].expand(len(values), -1, -1).gather(-1, values.unsqueeze(-1)).sum((-2, -1))
            ones = values.sum(-1)
            for count in range(len(block) + 1):
                largest = scores[ones == count].max()
                torch.testing.assert_close(peaks[row, cells][count], largest)
            probs = (scores + cell_weights[row, cells][ones]).softmax(0)
            torch.testing.assert_close(marginals[row, block, 1], probs @ values.double(), rtol=1e-10, atol=1e-12)
            given = scores.masked_fill(ones != counts[row, block[0]], -math.inf)
            index = 2 ** torch.arange(len(block) - 1, -1, -1)
            torch.testing.assert_close(given[(best[row, block] * index).sum()], given.max())
            seen = (drawn[:, row, block] * index).sum(-1).bincount(minlength=len(values))
            assert discrete_goodness_of_fit(given.softmax(0), seen) > 2e-9
