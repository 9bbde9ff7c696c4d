"""Learned trees against all trees, and against what was planted."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from pyro_structured.counts.ops.count_information import count_information
from pyro_structured.models import learn_nested_subsets


def all_trees(block):
    """Branchings of every binary tree over a tuple of variables."""
    if len(block) == 1:
        yield []
        return
    first, rest = block[0], block[1:]
    for mask in range(2 ** len(rest) - 1):
        left = (first, *(d for i, d in enumerate(rest) if mask >> i & 1))
        right = tuple(d for d in block if d not in left)
        for a in all_trees(left):
            for b in all_trees(right):
                yield [(left, right), *a, *b]


def margin(data, weights, block):
    counts = data[:, list(block)].sum(-1).long()
    found = torch.nn.functional.one_hot(counts, len(block) + 1).double().mT @ weights
    return (found / weights.sum(0)).mT


def scorer(data, weights, penalty=1.0):
    """The gain of branchings, those of trees that have them in common computed once."""

    @cache
    def gain(left, right):
        gains = count_information(*(margin(data, weights, block) for block in (left, right, left + right)))
        return float(gains @ weights.mean(0)) - penalty / len(data) * (len(left + right) - 1)

    return lambda branchings: sum(gain(*each) for each in branchings)


def blocks_of(branchings):
    return {frozenset(left + right) for left, right in branchings}


def planted(seed, number=600):
    """Two groups of three, and inside each a pair."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.rand((number, 2), generator=generator)[:, [0, 0, 0, 1, 1, 1]]
    pair = torch.rand((number, 2), generator=generator)[:, [0, 0, 0, 1, 1, 1]]
    inner = torch.tensor([True, True, False, True, True, False])
    share = torch.where(inner, 0.5 * (group + pair), group)
    return (torch.rand((number, 6), generator=generator) < 1 / (1 + (-16 * (share - 0.5)).exp())).double()


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("penalty", [1.0, 0.0, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_best_of_all_trees(seed, penalty):
    data = planted(seed)[:, [0, 3, 1, 4, 2]]
    weights = torch.ones(len(data), 1, dtype=torch.float64)
    best = max(all_trees(tuple(range(5))), key=scorer(data, weights, penalty))
    found = {frozenset(subset.tolist()) for subset in learn_nested_subsets(data, penalty=penalty).subsets}
    assert found == blocks_of(best)


def test_best_of_all_trees_inside_the_components():
    """Dependencies between components alone do not put variables into one subset."""
    generator = torch.Generator().manual_seed(0)
    data = planted(5)[:, [0, 1, 3, 4]]
    component = torch.rand(len(data), 1, generator=generator) < 0.5
    replaced = torch.rand(len(data), 2, generator=generator) < 0.5
    data[:, [0, 2]] = torch.where(replaced, component.double(), data[:, [0, 2]])
    weights = torch.cat([component, ~component], -1).double()
    best = max(all_trees(tuple(range(4))), key=scorer(data, weights))
    found = {frozenset(subset.tolist()) for subset in learn_nested_subsets(data, weights).subsets}
    assert found == blocks_of(best) == {frozenset(s) for s in ([0, 1], [2, 3], [0, 1, 2, 3])}
    assert {frozenset(subset.tolist()) for subset in learn_nested_subsets(data).subsets} != found


@pytest.mark.parametrize("share", [0.0, 1e-300])
def test_empty_component(share):
    data = planted(1)
    weights = torch.tensor([1.0 - share, share], dtype=torch.float64).expand(len(data), 2)
    assert learn_nested_subsets(data, weights) == learn_nested_subsets(data)


@pytest.mark.parametrize("penalty", [1e9, 1e20, 1e300])
def test_huge_penalty(penalty):
    """The smallest tables win, and rounding does not make the search endless."""
    data = (torch.rand(3, 12, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    assert sum(learn_nested_subsets(data, penalty=penalty).sizes) == 44


def test_planted_groups():
    subsets = learn_nested_subsets(planted(0))
    found = [set(subset.tolist()) for subset in subsets.subsets]
    assert {0, 1, 2} in found and {3, 4, 5} in found
    assert len(found) == 5 and sorted(map(len, found)) == [len(s) for s in found]
    assert subsets == learn_nested_subsets(planted(0))
    assert subsets == learn_nested_subsets(planted(0).bool(), penalty=np.int64(1))


def test_many_variables_without_structure():
    data = (torch.rand(50, 20, generator=torch.Generator().manual_seed(0)) < 0.3).double()
    data[:, 4], data[:, 7], data[:, 9] = 1.0, 0.0, data[:, 8]
    subsets = learn_nested_subsets(data)
    assert len(subsets.subsets) == 19
    assert [8, 9] in [subset.tolist() for subset in subsets.subsets]


def test_two_variables():
    assert learn_nested_subsets(torch.tensor([[0.0, 1.0]])).sizes == (2,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [torch.zeros(3)],
            r"values: expected a tensor of shape \(N, n\) with N of at least 1 and n of at least 2, got \(3,\)",
        ),
        ([[[0, 2]]], r"values: expected zeros and ones"),
        ([[["a", "b"]]], r"values: expected numbers, got others: could not convert string"),
        ([[[0.0, math.nan]]], r"Input values contains NaN"),
        ([torch.zeros(3, 1)], r"values: .* got \(3, 1\)"),
        ([torch.full((3, 2), 0.5)], r"values: expected zeros and ones"),
        ([torch.eye(3).to_sparse()], r"values: expected a dense tensor of real numbers, got torch.float32, torch.spa"),
        ([torch.zeros(3, 2), torch.ones(2, 1)], r"memberships: expected a tensor of shape \(3, K\), got \(2, 1\)"),
        ([torch.zeros(3, 2), torch.ones(3, 2)], r"memberships: expected probabilities that add up to 1"),
        ([torch.zeros(3, 2), torch.full((3, 1), torch.nan)], r"memberships: expected probabilities"),
        ([torch.zeros(3, 2), None, -1.0], r"penalty: expected a number of at least 0, got -1.0"),
        ([torch.zeros(3, 2), None, "1"], r"penalty: expected a number of at least 0, got '1'"),
        ([torch.zeros(3, 2), None, math.nan], r"penalty: expected a number of at least 0, got nan"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        learn_nested_subsets(*arguments)
