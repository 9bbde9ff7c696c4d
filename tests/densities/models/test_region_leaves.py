"""Leaves of one region against the distributions that they stand for, and the objective that they are to increase."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from pyro_structured.densities.models.region_network import SHARE_ROWS, TREE_SHARE, RegionLeaves
from pyro_structured.distributions import ExchangeablePartition
from pyro_structured.exchangeable.ops.forest_passes import forest_score


def random_leaves(seed, smoothing, n=4, states=2, number=120):
    """Leaves that have started, and weights of the states for every pattern."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(number, n, generator=generator, dtype=torch.double).lt(0.4).double()
    values[:, -1] = values[:, 0]
    weights = torch.rand(number, generator=generator, dtype=torch.double)
    leaves = RegionLeaves(values, weights, states, smoothing)
    memberships = torch.rand(len(leaves.patterns), states, generator=generator, dtype=torch.double) * 50
    leaves.start(memberships)
    return leaves, memberships


def tree_log_prob(leaves, values):
    """Shape ``(values, K)``."""
    odds = leaves.conditional_logits
    tables = torch.stack([logsigmoid(-odds), logsigmoid(odds)], -1)
    return forest_score(tables, leaves.parents, values.unsqueeze(1) == 1).sum(-1)


def objective(leaves, weights):
    """The weighted log-likelihood of the patterns, and the logarithms of all priors."""
    scores = torch.logaddexp(leaves.tree_scores, leaves.block_scores)
    coins = torch.tensor(list(itertools.product([0.0, 1.0], repeat=leaves.patterns.shape[1])), dtype=torch.double)
    # Rows like the data, and a row of fair coins.
    trees = leaves.smoothing * leaves.shares @ tree_log_prob(leaves, leaves.patterns) + tree_log_prob(
        leaves, coins
    ).mean(0)
    blocks = ExchangeablePartition(leaves.statistic_logits, leaves.partition)
    logs = blocks.statistic_logits[leaves.used]
    cells = leaves.smoothing * leaves.shares.unsqueeze(-1) * log_cells(leaves)
    share = SHARE_ROWS * (TREE_SHARE * leaves.leaf_logits[:, 0] + (1 - TREE_SHARE) * leaves.leaf_logits[:, 1])
    return (weights * scores).sum() + trees.sum() + cells.sum() + logs.sum() + share.sum()


def log_cells(leaves):
    """Log-probabilities of the counts of all blocks in the patterns, shape ``(U, K)``."""
    found = torch.zeros(len(leaves.patterns), leaves.num_states, dtype=torch.double)
    for state in range(leaves.num_states):
        partition = leaves.partition[state]
        for block, table in zip(partition.blocks(), partition.split(leaves.statistic_logits[state]), strict=True):
            found[:, state] += table[leaves.patterns[:, block].sum(-1).long()]
    return found


@given(st.integers(0, 2**16), st.sampled_from([0.0, 2.0]), st.integers(1, 5), st.integers(1, 3))
def test_scores_are_those_of_the_distributions(seed, smoothing, n, states):
    leaves, memberships = random_leaves(seed, smoothing, n, states)
    leaves.maximize(memberships)
    trees = tree_log_prob(leaves, leaves.patterns)
    torch.testing.assert_close(leaves.tree_scores, trees + leaves.leaf_logits[:, 0])
    blocks = ExchangeablePartition(leaves.statistic_logits, leaves.partition).log_prob(leaves.patterns.unsqueeze(1))
    torch.testing.assert_close(leaves.block_scores, blocks + leaves.leaf_logits[:, 1])
    torch.testing.assert_close(leaves.leaf_logits.exp().sum(-1), torch.ones(states, dtype=torch.double))
    expected = torch.logaddexp(leaves.leaf_logits[:, 0] + trees, leaves.leaf_logits[:, 1] + blocks)
    torch.testing.assert_close(leaves.scores, expected)


@given(st.integers(0, 2**16), st.sampled_from([0.0, 2.0]))
def test_blocks_have_the_closed_form(seed, smoothing):
    """Theorem 4.2, with rows like the data, and one more of every count."""
    leaves, memberships = random_leaves(seed, smoothing)
    used = memberships * torch.sigmoid(leaves.block_scores - leaves.tree_scores)
    weights = (used + smoothing * leaves.shares.unsqueeze(-1)).mT
    expected = ExchangeablePartition.from_data(leaves.patterns, leaves.partition, 1.0, weights)
    leaves.maximize(memberships)
    found = ExchangeablePartition(leaves.statistic_logits, leaves.partition)
    torch.testing.assert_close(found.count_marginals, expected.count_marginals)
    share = used.sum(0) + (1 - TREE_SHARE) * SHARE_ROWS
    torch.testing.assert_close(leaves.leaf_logits[:, 1].exp(), share / (memberships.sum(0) + SHARE_ROWS))


@given(st.integers(0, 2**16), st.sampled_from([0.0, 2.0]))
def test_objective_never_falls(seed, smoothing):
    leaves, memberships = random_leaves(seed, smoothing)
    found = [objective(leaves, memberships)]
    for _ in range(6):
        leaves.maximize(memberships)
        found.append(objective(leaves, memberships))
    assert torch.stack(found).diff().min() > -1e-9
    assert found[-1] > found[0]


def test_patterns_count_rows():
    values = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    leaves = RegionLeaves(values, torch.tensor([1.0, 2.0, 5.0]), 1, 0.0)
    assert leaves.patterns.tolist() == [[0, 1], [1, 1]] and leaves.places.tolist() == [0, 1, 0]
    assert leaves.shares.tolist() == [0.75, 0.25]
    assert leaves.gather(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).tolist() == [[6, 8], [3, 4]]


def test_leaves_fit_weighted_rows():
    """Without smoothing, a state's tree has the weighted margins of its pairs."""
    values = torch.rand(400, 3).lt(0.5).float()
    values[:, 2] = torch.where(torch.rand(400) < 0.2, 1 - values[:, 0], values[:, 0])
    leaves = RegionLeaves(values, torch.ones(400), 2, 0.0)
    memberships = torch.rand(len(leaves.patterns), 2) * 100
    leaves.start(memberships)
    place = leaves.patterns @ torch.tensor([4.0, 2.0, 1.0])
    assert place.tolist() == list(range(8))
    for scores in (leaves.tree_scores - leaves.leaf_logits[:, 0], leaves.block_scores - leaves.leaf_logits[:, 1]):
        torch.testing.assert_close(scores.exp().sum(0), torch.ones(2))
    share = memberships / memberships.sum(0)
    for state, parents in enumerate(leaves.parents):
        probs = (leaves.tree_scores - leaves.leaf_logits[:, 0])[:, state].exp()
        for d, above in enumerate(parents.tolist()):
            pair = leaves.patterns[:, d] * leaves.patterns[:, above]
            assert float(probs @ pair) == pytest.approx(float(share[:, state] @ pair), abs=0.01)
