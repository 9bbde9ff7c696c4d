"""Merged blocks against a loop that evaluates the evidence from its definition."""

import importlib
import math
from collections import Counter
from itertools import combinations
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_matrix

from pyro_structured.models import merge_partition
from pyro_structured.structures import Partition

# Functions of the name of their module hide it.
merge_partition_module = importlib.import_module("pyro_structured.exchangeable.models.merge_partition")
_Blocks, telling_rows = merge_partition_module._Blocks, merge_partition_module.telling_rows


def log_evidence(rows, weights, block):
    """Sequential prediction: the next row's probability given the earlier ones, counts being uniform at first."""
    s, seen, total = len(block), Counter(), 0.0
    for row, weight in zip(rows, weights, strict=True):
        seen[sum(row[d] for d in block)] += weight
    score = math.lgamma(s + 1)
    for count, weight in seen.items():
        score += math.lgamma(weight + 1) - weight * math.log(math.comb(s, count))
        total += weight
    return score - math.lgamma(total + s + 1)


def merge_by_loop(rows, weights):
    """Blocks, and the smallest distance of a decision from its opposite."""
    blocks, margin = [[d] for d in range(len(rows[0]))], math.inf
    while len(blocks) > 1:
        gains = sorted(
            (log_evidence(rows, weights, a + b) - log_evidence(rows, weights, a) - log_evidence(rows, weights, b), i, j)
            for (i, a), (j, b) in combinations(enumerate(blocks), 2)
        )
        gain, i, j = gains[-1]
        margin = min([margin, abs(gain - math.log(len(rows[0]))), *(gain - other for other, _, _ in gains[-2:-1])])
        if gain <= math.log(len(rows[0])):
            break
        blocks[i] = blocks[i] + blocks.pop(j)
    return blocks, margin


def test_evidence_is_the_product_of_predictions():
    rows, block = [[0, 1], [1, 1], [1, 1], [0, 0]], [0, 1]
    predicted, seen = 0.0, Counter()
    for n, row in enumerate(rows):
        predicted += math.log((seen[sum(row)] + 1) / (n + 3) / math.comb(2, sum(row)))
        seen[sum(row)] += 1
    assert log_evidence(rows, [1] * 4, block) == pytest.approx(predicted)


@given(st.data())
def test_loop(data):
    n, copies = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**30)))
    rows = torch.rand(data.draw(st.integers(1, 60)), n, generator=generator) < torch.rand(n, generator=generator)
    for _ in range(copies):  # dependencies, or nothing would be merged
        source, target = (data.draw(st.integers(0, n - 1)) for _ in range(2))
        noise = torch.rand(len(rows), generator=generator) < 0.1
        rows[:, target] = rows[:, source] ^ noise
    weights = torch.rand(2, len(rows), dtype=torch.float64, generator=generator) * data.draw(st.sampled_from([1, 5]))
    found = merge_partition(rows, weights)
    assert found.batch_shape == (2,)
    for k in range(2):
        blocks, margin = merge_by_loop(rows.long().tolist(), weights[k].tolist())
        if margin > 1e-9:
            assert found[k] == Partition.from_blocks(blocks, n)


@pytest.mark.parametrize("listed", [0.0, 1.0])
@given(st.integers(0, 2**30), st.sampled_from([0.05, 0.3]))
def test_gains_are_those_of_the_definition(listed, seed, density):
    """After some mergers, too, whether positive counts are listed or marked in a matrix, and rare counts or not."""
    rng = np.random.default_rng(seed)
    values, weights = (rng.random((30, 7)) < density).astype(int), rng.random(30) + 0.1
    index = np.unique(rng.integers(5, size=7), return_inverse=True)[1]
    counts = csc_matrix(values @ np.equal.outer(index, np.arange(index.max() + 1)).astype(float))
    with mock.patch.object(merge_partition_module, "LISTED", listed):
        blocks = _Blocks(counts, np.bincount(index), weights)
    assert (blocks.indicators is None) == (listed == 1.0 or not counts.nnz)
    members = [np.flatnonzero(index == block).tolist() for block in range(index.max() + 1)]
    gains = blocks.all_gains()
    while True:
        for one, other in combinations([block for block, variables in enumerate(members) if variables], 2):
            parts = [log_evidence(values.tolist(), weights, members[block]) for block in (one, other)]
            gain = log_evidence(values.tolist(), weights, members[one] + members[other]) - sum(parts)
            assert gains[one, other] == pytest.approx(gain) == gains[other, one]
        if sum(map(bool, members)) < 2:
            break
        first, second = sorted(
            rng.choice([block for block, own in enumerate(members) if own], 2, replace=False).tolist()
        )
        blocks.merge(first, second)
        members[first], members[second] = members[first] + members[second], []
        gains = np.stack([blocks.gains(block) for block in range(len(members))])


def test_exchangeable_variables_are_one_block():
    counts = torch.randint(21, (300, 1))
    values = torch.rand(300, 20).argsort(-1) < counts
    assert merge_partition(values).blocks() == [list(range(20))]


def test_independent_variables_stay_alone():
    assert len(merge_partition(torch.rand(500, 30) < torch.rand(30)).blocks()) == 30


def test_nothing_known():
    values = torch.randint(2, (5, 4))
    assert merge_partition(values, torch.zeros(5)).blocks() == [[0], [1], [2], [3]]


def test_blocks_to_start_from():
    pairs = (torch.rand(300, 3) < 0.5).repeat_interleave(2, dim=1)
    start = Partition(torch.tensor([[0, 1, 2, 2, 4, 4], [0, 0, 2, 3, 4, 4]]))
    found = merge_partition(pairs, torch.ones(2, 300), start)
    assert [part.blocks() for part in found] == [[[0, 1], [2, 3], [4, 5]]] * 2
    wrong = Partition(torch.tensor([0, 0, 0, 0, 4, 4]))
    assert merge_partition(pairs, start=wrong).blocks() == [[0, 1, 2, 3], [4, 5]]


def test_equal_rows_weigh_together():
    """Results depend neither on the order of rows nor on one row being common."""
    values = torch.randint(2, (5000, 10))
    rows = torch.cat([torch.zeros(20000, 20, dtype=torch.long), values.repeat(1, 2)])
    expected = [[d, d + 10] for d in range(10)]
    distinct, numbers = rows.unique(dim=0, return_counts=True)
    for order in (torch.arange(len(distinct)), torch.randperm(len(distinct))):
        assert merge_partition(distinct[order], numbers[order].double()).blocks() == expected
    assert merge_partition(rows).blocks() == expected  # more rows than are looked at


def test_large_blocks_take_little_memory():
    values = torch.randint(2, (30, 3000))
    start = Partition(torch.where(torch.arange(3000) < 2000, 0, torch.arange(3000)))
    assert [0, 1] == merge_partition(values, start=start).labels[[0, 2000]].clamp(max=1).tolist()


@pytest.mark.parametrize(
    "args, message",
    [
        ([[[0, 1]]], r"values: expected a tensor of shape \(N, n\) with N of at least 1 and n of at least 1, got list"),
        ([torch.zeros(0, 3)], r"values: expected a tensor of shape .* got \(0, 3\)"),
        ([torch.full((2, 2), torch.nan)], "values: expected zeros and ones"),
        ([torch.eye(3).to_sparse()], "values: expected a dense tensor of real numbers, got torch.float32, torch.spa"),
        ([torch.eye(3, dtype=torch.cfloat)], "values: expected a dense tensor of real numbers, got torch.complex64"),
        ([torch.zeros(3, 2), torch.ones(2)], r"weights: expected a tensor with a last axis of 3 numbers, got \(2,\)"),
        ([torch.zeros(3, 2), [1, 1, 1]], r"weights: expected a tensor with a last axis of 3 numbers, got list"),
        ([torch.zeros(2, 2), torch.tensor([1.0, -1.0])], "weights: expected finite numbers of at least 0"),
        ([torch.zeros(2, 2), torch.tensor([1.0, torch.inf])], "weights: expected finite numbers of at least 0"),
        ([torch.zeros(2, 2), None, torch.arange(2)], "start: expected a Partition of 2 variables, got tensor"),
        ([torch.zeros(2, 3), None, Partition(torch.arange(2))], "start: expected a Partition of 3 variables, got"),
        ([torch.zeros(2, 2), None, Partition(torch.zeros(3, 2).long())], "batch_shape: expected a shape to which"),
    ],
)
def test_wrong_arguments(args, message):
    with pytest.raises(ValueError, match=message):
        merge_partition(*args)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16])
def test_kinds_of_numbers(dtype):
    values = torch.randint(2, (30, 2), generator=torch.Generator().manual_seed(0)).repeat_interleave(2, dim=1)
    assert merge_partition(values.to(dtype)).blocks() == [[0, 1], [2, 3]]


@given(st.integers(0, 10**6))
def test_telling_rows_are_all_but_the_lightest(seed):
    """As a sort of all rows finds them, weights of zero and subnormal ones included."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 60))
    weights = rng.random(number) * 10.0 ** rng.choice([0, -3, -9, -320], number)
    weights[rng.random(number) < rng.choice([0.0, 0.5])] = 0.0
    weights[0] = rng.choice([1.0, 1e-310])
    # All others are lighter than the lightest of these.
    rest = float(weights.min()) * rng.choice([0.0, 0.5])
    rows, kept = telling_rows(np.arange(number), weights, rest)
    order = np.argsort(weights, kind="stable")
    heavy = rest + np.cumsum(weights[order]) > merge_partition_module.NEGLIGIBLE * (rest + weights.sum())
    assert rows.tolist() == sorted(order[heavy]) and (kept == weights[rows]).all()


def test_telling_rows_of_the_smallest_numbers():
    assert telling_rows(np.arange(3), np.array([5e-324, 0.0, 5e-324]))[0].tolist() == [0, 2]
