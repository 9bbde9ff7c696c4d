"""Random matrices of zeros and ones with laws of their rows' and columns' counts, and their sums by enumeration."""

import itertools
import math

import numpy as np
import torch

from pyro_structured.counts.distributions.generalized_matching import GeneralizedMatching


def law(size, number, allowed):
    """Tables of so many subsets of a size, in which only some counts are possible, without a preference."""
    table = torch.full((number, size + 1), -math.inf, dtype=torch.double)
    table[:, list(allowed)] = 0.0
    return table


def matching(rows, shape, row_counts, column_counts, scale=1.0, seed=0):
    """Matrices with normal log-odds and counts that are possible, ``rows`` in a batch."""
    generator = torch.Generator().manual_seed(seed)
    height, width = shape
    logits = scale * torch.randn(rows, height, width, generator=generator, dtype=torch.double)
    return GeneralizedMatching(logits, law(width, height, row_counts), law(height, width, column_counts))


def random_matrix(seed, rows=2, most=3):
    """Log-odds and tables of all kinds: soft, with gaps, intervals, exact; some entries clamped."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, most + 1, 2)
    scale = rng.choice([0.1, 1.0, 20.0])
    logits = scale * rng.normal(size=(rows, height, width))
    logits[rng.random(logits.shape) < 0.08] = -math.inf
    logits[rng.random(logits.shape) < 0.04] = math.inf
    tables = []
    for number, size in ((height, width), (width, height)):
        table = rng.choice([0.0, 1.0, 5.0]) * rng.normal(size=(rows, number, size + 1))
        kind = rng.integers(0, 4)
        counts = np.arange(size + 1)
        if kind == 1:
            table[rng.random(table.shape) < 0.4] = -math.inf
        elif kind == 2:
            low = rng.integers(0, size + 1)
            table[..., (counts < low) | (counts > low + rng.integers(0, 3))] = -math.inf
        elif kind == 3:
            table = -np.abs(table[..., :1]) * (counts - rng.integers(0, size + 1)) ** 2.0
        tables.append(torch.from_numpy(table))
    return torch.from_numpy(logits), *tables


def enumerated(logits, row_tables, column_tables):
    """All matrices and their log-weights, shape ``(2 ** (I * J), rows)``, from the definition."""
    rows, height, width = logits.shape
    values = torch.tensor(list(itertools.product((0, 1), repeat=height * width))).reshape(-1, height, width)
    total = torch.zeros(len(values), rows, dtype=torch.double)
    for i in range(height):
        for j in range(width):
            on = values[:, i, j, None] == 1
            clamped = logits[:, i, j].isinf()
            weight = torch.where(on, logits[:, i, j].masked_fill(clamped, 0.0), 0.0)
            wrong = clamped & (on != (logits[:, i, j] > 0))
            total = total + weight.masked_fill(wrong, -math.inf)
    for i in range(height):
        total = total + row_tables.expand(rows, -1, -1)[:, i, values[:, i].sum(-1)].T
    for j in range(width):
        total = total + column_tables.expand(rows, -1, -1)[:, j, values[:, :, j].sum(-1)].T
    return values.double(), total
