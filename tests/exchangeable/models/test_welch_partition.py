"""Tests of equal means against scipy's, and blocks against a loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyro_structured.models import welch_partition


def p_value(a, b, size):
    spread = [np.sqrt(m * (1 - m) * size / (size - 1)) for m in (a, b)]
    if not any(spread):
        return float(a == b)
    return stats.ttest_ind_from_stats(a, spread[0], size, b, spread[1], size, equal_var=False).pvalue


def blocks_by_loop(means, size, level, linkage):
    order = sorted(range(len(means)), key=lambda d: means[d])
    blocks = [[order[0]]]
    for d in order[1:]:
        reference = blocks[-1][0] if linkage == "anchor" else blocks[-1][-1]
        if p_value(means[reference], means[d], size) < level:
            blocks.append([])
        blocks[-1].append(d)
    return {frozenset(block) for block in blocks}


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.sampled_from(["anchor", "single"]),
    st.sampled_from([0.01, 0.1, 0.5]),
    st.booleans(),
)
def test_loop(ones, linkage, level, corrected):
    means = [k / 40 for k in ones]
    found = welch_partition(
        torch.tensor(means, dtype=torch.float64),
        torch.tensor(40.0),
        level,
        linkage,
        "bonferroni" if corrected else "none",
    )
    expected = blocks_by_loop(means, 40.0, level / len(means) if corrected else level, linkage)
    assert {frozenset(block) for block in found.blocks()} == expected


def test_classes():
    means = torch.tensor([[0.1, 0.9, 0.1], [0.5, 0.5, 0.9], [0.1, 0.9, 0.5]])
    found = welch_partition(means, torch.tensor([50.0, 50.0, 1.0]))
    assert [found[k].blocks() for k in range(3)] == [[[0, 2], [1]], [[0, 1], [2]], [[0, 1, 2]]]
    assert found.batch_shape == (3,)


def test_linkages_differ():
    """Steps that are small one by one add up."""
    means = torch.linspace(0.2, 0.8, 30)
    size = torch.tensor(200.0)
    assert len(welch_partition(means, size, linkage="single").blocks()) == 1
    assert len(welch_partition(means, size).blocks()) > 3
    assert len(welch_partition(means, size, correction="bonferroni").blocks()) < len(
        welch_partition(means, size).blocks()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([[0.5], torch.tensor(3.0)], "means: expected a floating point tensor"),
        ([torch.tensor([1.5]), torch.tensor(3.0)], "means: expected numbers between 0 and 1"),
        ([torch.tensor([0.5]), torch.tensor([3.0])], r"sizes: expected \(\) numbers of at least 0"),
        ([torch.tensor([0.5]), torch.tensor(3.0), 0.0], "level: expected a number between 0 and 1, got 0.0"),
        ([torch.tensor([0.5]), torch.tensor(3.0), "a"], "level: expected a number between 0 and 1, got 'a'"),
        ([torch.tensor([0.5]), torch.tensor(3.0), 0.1, "ward"], "linkage: expected one of .*, got 'ward'"),
        ([torch.tensor([0.5]), torch.tensor(3.0), 0.1, "single", "holm"], "correction: expected one of .*, got 'holm'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        welch_partition(*arguments)


@given(st.integers(0, 2**31), st.integers(2, 8), st.sampled_from([0.01, 0.3]))
def test_pairs_occur_equally_often(seed, n, level):
    rng = np.random.default_rng(seed)
    values = rng.random((30, n)) < 0.5
    values[:, n // 2] = values[:, 0] ^ (rng.random(30) < 0.1)
    means, pairs = values.mean(0), values.T.astype(float) @ values / 30
    arguments = [torch.from_numpy(means), torch.tensor(30.0), level]
    with_pairs = welch_partition(*arguments, pair_means=torch.from_numpy(pairs))
    coarse = welch_partition(*arguments).labels.tolist()
    expected = []
    for d in sorted(range(n), key=lambda d: means[d]):
        for block in expected:
            same = coarse[block[0]] == coarse[d]
            if same and all(p_value(pairs[block[0], block[1]], pairs[m, d], 30) >= level for m in block if block[1:]):
                block.append(d)
                break
        else:
            expected.append([d])
    assert {frozenset(block) for block in with_pairs.blocks()} == {frozenset(block) for block in expected}


def test_equal_means_do_not_make_variables_exchangeable():
    pair, other = torch.rand(2, 1000, 1) < 0.5
    values = torch.cat([pair, pair, other, other], 1).double()
    means, pairs = torch.full((4,), 0.5).double(), values.T @ values / 1000
    assert welch_partition(means, torch.tensor(1000.0)).blocks() == [[0, 1, 2, 3]]
    found = welch_partition(means, torch.tensor(1000.0), pair_means=pairs)
    assert found.blocks() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "pairs, message",
    [
        (torch.zeros(3, 3), r"pair_means: expected a tensor of shape \(2, 2\), got torch.Size\(\[3, 3\]\)"),
        ([[0, 0], [0, 0]], r"pair_means: expected a tensor of shape \(2, 2\), got \[\["),
        (torch.full((2, 2), 2.0), "pair_means: expected numbers between 0 and 1, got others"),
    ],
)
def test_wrong_pairs(pairs, message):
    with pytest.raises(ValueError, match=message):
        welch_partition(torch.tensor([0.5, 0.5]), torch.tensor(10.0), pair_means=pairs)
