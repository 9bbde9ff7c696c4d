"""Slice sampling of many numbers at once."""

import pyro
import torch

from pyro_structured.optima.ops.slice_sampling import slice_sample


def test_numbers_without_a_density_stay():
    """Any other number would be as good; they are counted, and others move."""
    pyro.set_rng_seed(0)
    value = torch.tensor([-1.0, 1.0, torch.nan]).double()
    ends = (sign * torch.full((3,), torch.inf, dtype=torch.double) for sign in (-1, 1))
    new, stuck = slice_sample(lambda x: torch.where(x > 0, -x, -torch.inf), value, *ends, torch.ones(3).double())
    assert stuck.tolist() == [True, False, True]
    assert new[0] == -1 and new[1] != 1 and new[1] > 0
