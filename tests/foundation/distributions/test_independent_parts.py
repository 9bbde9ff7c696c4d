"""Events and masks are taken off."""

import pyro.distributions as dist
import torch
from torch.distributions import constraints

from pyro_structured.foundation.distributions.independent_parts import entry_constraint, entry_distribution, unmasked


def test_events_and_masks():
    base = dist.Normal(torch.zeros(2, 3), 1.0)
    event = base.to_event(1).to_event(1)
    masked = event.mask(torch.tensor(True))
    assert entry_distribution(event) is entry_distribution(base) is unmasked(event) is base
    assert entry_distribution(masked) is masked and unmasked(masked) is base
    assert entry_constraint(event.support) is entry_constraint(constraints.real) is constraints.real
