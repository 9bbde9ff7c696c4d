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
