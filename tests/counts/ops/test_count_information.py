"""Information of counts against the likelihood of fitted models."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.counts.ops.count_information import count_information
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.structures import NestedSubsets


def margins(joint):
    """Distributions of two counts and of their sum."""
    n, m = joint.shape[-2:]
    total = joint.new_zeros(joint.shape[:-2] + (n + m - 1,))
    for i in range(n):
        total[..., i : i + m] += joint[..., i, :]
    return joint.sum(-1), joint.sum(-2), total


def draw_joint(seed, n, m, batch=()):
    generator = torch.Generator().manual_seed(seed)
    joint = torch.rand((*batch, n, m), generator=generator, dtype=torch.float64) ** 4
    joint = joint * (torch.rand((*batch, n, m), generator=generator) < 0.8)
    joint[..., 0, 0] += 0.1
    return joint / joint.sum((-2, -1), keepdim=True)


def entropy(p):
    return -torch.special.xlogy(p, p).sum()


@pytest.mark.slow
@given(st.integers(0, 2**16), st.integers(2, 6), st.integers(2, 6))
def test_between_bounds(seed, n, m):
    joint = draw_joint(seed, n, m)
    left, right, total = margins(joint)
    found = [count_information(left, right, total, rounds) for rounds in (1, 2, 5, 50, 500)]
    assert all(later >= earlier - 1e-12 for earlier, later in zip([torch.zeros(()), *found], found, strict=False))
    # The observed joint distribution has these margins too, but is not the one that tells least.
    assert found[-1] <= entropy(left) + entropy(right) - entropy(joint.flatten()) + 1e-9


@pytest.mark.slow
@given(st.integers(0, 2**16), st.integers(2, 6), st.integers(2, 6))
def test_symmetry(seed, n, m):
    """Where no cell is empty, so that rounds converge; the limit does not depend on which margin comes first."""
    left, right, total = margins((draw_joint(seed, n, m) + 1 / (n * m)) / 2)
    torch.testing.assert_close(count_information(left, right, total, 500), count_information(right, left, total, 500))


def test_two_variables():
    """The sum of two bits says all about their joint distribution."""
    joint = draw_joint(1, 2, 2)
    left, right, total = margins(joint)
    mutual = entropy(left) + entropy(right) - entropy(joint.flatten())
    torch.testing.assert_close(count_information(left, right, total), mutual)


def test_independent_counts_and_batches():
    joint = draw_joint(2, 3, 1) * draw_joint(3, 1, 5)
    assert count_information(*margins(joint)).abs() < 1e-12
    batch = draw_joint(4, 3, 4, batch=(2, 3))
    found = count_information(*margins(batch))
    assert found.shape == (2, 3)
    torch.testing.assert_close(found[1, 2], count_information(*margins(batch[1, 2])))
    certain = torch.zeros(4, dtype=torch.float64)
    certain[2] = 1.0
    assert count_information(certain[:3], certain[1:3], certain.roll(1)) == 0.0


@pytest.mark.parametrize("tiny", [1e-160, 1e-200, 1e-300])
def test_tiny_probabilities(tiny):
    """Products of two margins may underflow."""
    pair = torch.tensor([1 - tiny, tiny], dtype=torch.float64)
    assert count_information(pair, pair, torch.tensor([1 - tiny, 0.0, tiny], dtype=torch.float64)).abs() < 1e-12
    three = torch.tensor([0.5, 0.5, tiny], dtype=torch.float64)
    same = torch.tensor([0.5, 0.0, 0.5, 0.0, tiny], dtype=torch.float64)
    torch.testing.assert_close(count_information(three, three, same), torch.tensor(math.log(2.0)).double())


def test_likelihood_of_a_tree_is_a_sum_over_its_branchings():
    """The theorem that makes trees easy to compare: fit all potentials and see."""
    generator = torch.Generator().manual_seed(0)
    factor = torch.rand((400, 2), generator=generator)[:, [0, 0, 1, 1, 1, 0]]
    data = (torch.rand((400, 6), generator=generator) < 0.1 + 0.8 * factor**2).double()
    branchings = [([0], [1]), ([2], [3]), ([4], [2, 3]), ([0, 1], [2, 3, 4]), ([5], [0, 1, 2, 3, 4])]
    subsets = NestedSubsets([a + b for a, b in branchings], 6)
    x = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    f = torch.zeros(subsets.table_size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([x, f], max_iter=2000, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -RecursiveCardinality(x, f, subsets).log_prob(data).mean()
        value.backward()
        return value

    optimizer.step(loss)
    share = data.mean(0)
    independent = (torch.special.xlogy(share, share) + torch.special.xlogy(1 - share, 1 - share)).sum()
    gain = 0.0
    for a, b in branchings:
        left, right = data[:, a].sum(-1).long(), data[:, b].sum(-1).long()
        joint = data.new_zeros(len(a) + 1, len(b) + 1).index_put((left, right), data.new_ones(()), accumulate=True)
        gain += count_information(*margins(joint / len(data)), rounds=2000)
    assert gain > 0.1
    assert math.isclose(-float(loss().detach()), float(independent + gain), abs_tol=1e-6)
