"""Fields some of whose labels and hidden units are exchanged."""

import torch

from pyro_structured.fields.ops.field_sweeps import chain_activations, draw_binary_labels, shares_from_noise
from pyro_structured.fields.solvers import perfect_draws as module


def drawn(field, labels, for_units, for_pixels):
    """Shares of hidden units, and then labels, from uniform numbers."""
    shares = shares_from_noise(chain_activations(field, labels) / 2, for_units)
    odds = field.odds.unsqueeze(1) + shares @ field.weights
    return shares, draw_binary_labels(labels, odds, field.penalties.unsqueeze(1), field.shape, for_pixels)


def test_flips(joint_fields):
    """Draws of a field with uniform numbers u are those of the flipped field with 1 - u, flipped."""
    field = joint_fields.make(replicas=2)
    pixels, units = (torch.rand(2, 1, size) < 0.5 for size in (6, 3))
    turned = module._flipped(field, pixels.double(), units.double())
    labels = (torch.rand(2, 50, 6) < 0.5).double()
    for_units, for_pixels = torch.rand(2, 50, 2, 3).double(), torch.rand(2, 50, 6).double()
    shares, found = drawn(field, labels, for_units, for_pixels)
    other, turned_over = drawn(
        turned,
        (labels - pixels.double()).abs(),
        torch.where(units.unsqueeze(1), 1 - for_units, for_units),
        torch.where(pixels, 1 - for_pixels, for_pixels),
    )
    torch.testing.assert_close(other, (shares - units.double()).abs())
    torch.testing.assert_close(turned_over, (found - pixels.double()).abs())
