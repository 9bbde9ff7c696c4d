"""Trees of states, and forests of variables, against sums over everything."""

import itertools

import pytest
import torch

from pyro_structured.ops.forest_passes import forest_downward, forest_sample, forest_score, forest_upward
from pyro_structured.ops.region_passes import region_inward, region_outward

PARENTS = torch.tensor([[0, 0, 0, 2], [0, 0, 1, 2]])


@pytest.mark.parametrize("scale", [1.0, 300.0])  # the second is too wide for exponentials
def test_regions(scale):
    states = 3
    transitions = (scale * torch.randn(2, 4, states, states, dtype=torch.double)).log_softmax(-1)
    leaves = scale * torch.randn(5, 2, 4, states, dtype=torch.double)
    total = torch.full((5, 2), -torch.inf, dtype=torch.double)
    each = torch.full((5, 2, 4, states), -torch.inf, dtype=torch.double)
    for z in itertools.product(range(states), repeat=4):
        weight = torch.zeros(5, 2, dtype=torch.double)
        for g in range(4):
            above = torch.tensor([z[p] for p in PARENTS[:, g]]) if g else torch.zeros(2, dtype=torch.long)
            weight = weight + leaves[:, :, g, z[g]] + transitions[torch.arange(2), g, above, z[g]]
        total = torch.logaddexp(total, weight)
        for g in range(4):
            each[:, :, g, z[g]] = torch.logaddexp(each[:, :, g, z[g]], weight)
    beliefs, messages = region_inward(transitions, leaves, PARENTS)
    torch.testing.assert_close(messages[..., 0, 0], total)
    found = region_outward(transitions, beliefs, messages, PARENTS)
    torch.testing.assert_close(found.exp(), (each - total[..., None, None]).exp(), rtol=1e-9, atol=1e-12)


def forest():
    parents = torch.tensor([[1, 3, 1, 3, 4], [0, 0, 1, 2, 3]])
    levels = torch.tensor([[2, 1, 2, 0, 0], [0, 1, 2, 3, 4]])
    odds = 3 * torch.randn(2, 5, 2, dtype=torch.double)
    tables = torch.nn.functional.logsigmoid(torch.stack([-odds, odds], -1))
    return tables, parents, levels


def test_forests():
    tables, parents, levels = forest()
    values = torch.tensor(list(itertools.product([False, True], repeat=5)))
    score = forest_score(tables, parents, values.unsqueeze(1))
    slow = torch.zeros_like(score)
    for v, f, d in itertools.product(range(32), range(2), range(5)):
        above = int(values[v, parents[f, d]]) if parents[f, d] != d else 0
        slow[v, f, d] = tables[f, d, above, int(values[v, d])]
    torch.testing.assert_close(score, slow)
    torch.testing.assert_close(score.sum(-1).logsumexp(0), torch.zeros(2, dtype=torch.double))
    possible = torch.tensor([[True, True], [True, False], [True, True], [True, True], [False, True]])
    agrees = ~values[:, 1] & values[:, 4]
    beliefs, messages = forest_upward(tables, parents, levels, 5, possible)
    total = score.sum(-1)[agrees].logsumexp(0)
    torch.testing.assert_close(messages[..., 0].masked_fill(levels > 0, 0.0).sum(-1), total)
    log_probs = forest_downward(tables, parents, levels, 5, beliefs, messages)
    probs = (score.sum(-1)[agrees] - total).exp()
    torch.testing.assert_close(log_probs[..., 1].exp(), probs.mT @ values[agrees].double())
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 5, dtype=torch.double))


def test_forest_sample():
    torch.manual_seed(0)
    tables, parents, levels = forest()
    possible = torch.ones(5, 2, dtype=torch.bool)
    beliefs, messages = forest_upward(tables, parents, levels, 5, possible)
    drawn = forest_sample(tables, parents, levels, 5, beliefs.expand(20000, -1, -1, -1)).double()
    expected = forest_downward(tables, parents, levels, 5, beliefs, messages)[..., 1].exp()
    assert (drawn.mean(0) - expected).abs().max() < 0.02
