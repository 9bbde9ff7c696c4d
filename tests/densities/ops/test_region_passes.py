"""Trees of states against sums over everything."""

import itertools

import pytest
import torch

from pyro_structured.densities.ops.region_passes import region_inward, region_outward

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
