"""Merging of blocks: gains are differences of what partitions are worth; blocks that were planted are found."""

import itertools
import math

import numpy as np
import pytest
import torch

from pyro_structured.densities.models.block_merging import merge_blocks
from pyro_structured.distributions import ExchangeableTree
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.structures import BlockTree


def planted(seed, number=3000):
    """Columns 0, 3, 5 of three states, and 1, 2 of two states, are exchangeable; 4 and 6 are alone."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(3, size=(number, 1)), rng.integers(2, size=(number, 1))
    rows = rng.integers([3, 2, 2, 3, 3, 3, 2], size=(number, 7))
    kept = rng.random((number, 7)) < 0.6
    rows[:, [0, 3, 5]] = np.where(kept[:, [0, 3, 5]], first, rows[:, [0, 3, 5]])
    rows[:, [1, 2]] = np.where(kept[:, [1, 2]], second, rows[:, [1, 2]])
    rows[:, 4] = np.where(kept[:, 4], 2, rows[:, 4])
    return CategoricalRows(rows, [3, 2, 2, 3, 3, 3, 2], rng.random(number) + 0.5)


def worth(rows, groups, price, joined=()):
    """Penalised log-likelihood of a tree of blocks, with the edges between neighbours in a list of pairs."""
    edges = [*joined, *([b] for b in range(len(groups)) if not any(b in pair for pair in joined))]
    tree = BlockTree.from_counts(groups, [rows.cardinalities[group[0]] for group in groups], edges)
    values, weights = torch.from_numpy(rows.values.T), torch.from_numpy(rows.weights)
    fit = ExchangeableTree.from_data(values, tree, weights=weights).log_prob(values)
    return float(weights @ fit) - price * sum(size - 1 for size in tree.levels.table_sizes)


@pytest.mark.parametrize("joined", [False, True])
def test_planted_blocks_are_found(joined):
    rows = planted(0)
    price = 0.5 * math.log(rows.total)
    assert merge_blocks(rows, price, 64, joined) == [[0, 3, 5], [1, 2], [4], [6]]
    assert merge_blocks(rows, price, 5, joined) == [[0], [1, 2], [3], [4], [5], [6]]
    assert merge_blocks(rows, price, 1, joined) == [[d] for d in range(7)]


@pytest.mark.parametrize("joined", [False, True])
def test_the_best_pair_is_merged(joined):
    """Among blocks that may have six levels, one merger of two ternary columns; any of two binary ones is free."""
    rows = planted(1, 300)
    price, single = 1.0, [[d] for d in range(7)]
    gains = {}
    for pair in itertools.combinations((0, 3, 4, 5), 2):
        others = [[d] for d in range(7) if d not in pair]
        apart = worth(rows, single, price)
        if joined:
            apart = max(apart, worth(rows, single, price, [pair]))
        gains[pair] = worth(rows, [list(pair), *others], price) - apart
    best = max(gains, key=gains.get)
    blocks = merge_blocks(rows, price, 6, joined)
    assert gains[best] > 0 and list(best) in blocks
    rest = tuple(d for d in (0, 3, 4, 5) if d not in best)
    assert (list(rest) in blocks) == (gains[rest] > 0)


def test_columns_with_an_edge_instead():
    """A column that is another one plus one is not exchangeable with it: an edge fits, a block does not."""
    first = np.random.default_rng(0).integers(3, size=500)
    rows = CategoricalRows(np.stack([first, (first + 1) % 3], 1), [3, 3])
    assert merge_blocks(rows, 3.0, 64, joined=False) == [[0, 1]]
    assert merge_blocks(rows, 3.0, 64, joined=True) == [[0], [1]]
