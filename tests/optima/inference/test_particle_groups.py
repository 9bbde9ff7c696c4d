"""Weights of particles in groups: means, standard errors, and who goes on."""

import math

import numpy as np
import pytest
import torch

from pyro_structured.optima.inference.particle_groups import ParticleGroups

pytestmark = pytest.mark.statistical

GROUPS, COUNT, ROWS = 4, 50, 3


def make():
    return ParticleGroups((GROUPS, COUNT), torch.Size([ROWS]), torch.device("cpu"))


def random_increments(scale):
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(GROUPS, COUNT, ROWS, dtype=torch.double, generator=generator)


def test_estimates_are_means_of_products_of_means():
    torch.manual_seed(0)
    groups, steps = make(), [random_increments(scale) for scale in (0.1, 3.0, 0.2)]
    chosen = [groups.reweight(step) for step in steps]
    # Weights that hardly differ renew nobody; each has its own decision.
    assert chosen[0] is None and chosen[1] is not None and chosen[2] is None
    expected = (steps[0] + steps[1]).exp().mean(1) * steps[2].exp().mean(1)
    estimate = groups.estimate(torch.zeros(GROUPS, COUNT, ROWS, 2), torch.Size([ROWS, 1]))
    torch.testing.assert_close(estimate.log_prob, expected.mean(0).log().unsqueeze(-1))
    # The jackknife, by its definition.
    without = np.stack([np.log(np.delete(expected.numpy(), group, 0).mean(0)) for group in range(GROUPS)])
    error = np.sqrt((GROUPS - 1) / GROUPS * ((without - without.mean(0)) ** 2).sum(0))
    # Two of them are the quantile of Student's distribution with 3 degrees of freedom for 97.725 %.
    error *= 3.3068 / 2
    torch.testing.assert_close(estimate.standard_error.squeeze(-1), torch.from_numpy(error), rtol=1e-4, atol=0)
    assert estimate.costs.shape == (GROUPS * COUNT, ROWS, 1, 2) and estimate.log_weights.shape == (200, ROWS, 1)


def test_particles_go_on_as_often_as_their_weights_say():
    groups, increments = make(), random_increments(2.0)
    increments[:, ::5] = -torch.inf
    weights = increments.softmax(1)
    counts = torch.zeros(GROUPS, COUNT, ROWS, dtype=torch.double)
    for seed in range(200):
        torch.manual_seed(seed)
        chosen = make().reweight(increments)
        found = torch.zeros_like(counts).scatter_add(1, chosen, torch.ones_like(counts))
        assert (found - COUNT * weights).abs().max() < 1
        counts += found / 200
    assert (counts[:, ::5] == 0).all()
    # Of 200 numbers that are rounded up or down at random.
    torch.testing.assert_close(counts, COUNT * weights, rtol=0, atol=6 * 0.5 / math.sqrt(200))
    assert groups.reweight(torch.zeros_like(increments)) is None


def test_one_dead_particle_is_enough_to_renew():
    torch.manual_seed(0)
    groups, increments = make(), torch.zeros(GROUPS, COUNT, ROWS, dtype=torch.double)
    increments[2, 7, 1] = -torch.inf
    chosen = groups.reweight(increments)
    stays = (chosen == torch.arange(COUNT).unsqueeze(-1)).all(1)
    assert not stays[2, 1] and stays.sum() == GROUPS * ROWS - 1 and not (chosen[2, :, 1] == 7).any()


def test_lost_groups():
    """They count as zeros, and whatever their particles say later does not matter."""
    torch.manual_seed(0)
    groups, increments = make(), torch.zeros(GROUPS, COUNT, ROWS, dtype=torch.double)
    increments[0, :, 0] = increments[:, :, 1] = increments[1:, :, 2] = -torch.inf
    groups.reweight(increments)
    groups.reweight(torch.full_like(increments, torch.nan).where(increments == -torch.inf, 0.0))
    estimate = groups.estimate(torch.zeros(GROUPS, COUNT, ROWS, 2), torch.Size([ROWS]))
    assert estimate.log_prob.tolist() == pytest.approx([math.log(3 / 4), -math.inf, math.log(1 / 4)])
    assert 0 < estimate.standard_error[0] < 2 and estimate.standard_error[1:].tolist() == [math.inf, math.inf]
    lost = torch.zeros(GROUPS, dtype=torch.bool).index_fill(0, torch.tensor(0), True).repeat_interleave(COUNT)
    assert torch.equal(estimate.log_weights[:, 0] == -math.inf, lost)
