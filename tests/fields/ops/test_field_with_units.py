"""Draws of labels and hidden units given each other, on fields that can be enumerated."""

import math
from dataclasses import replace

import pytest
import torch

from pyro_structured.foundation.ops.enumeration import all_labelings

pytestmark = pytest.mark.statistical


@pytest.mark.parametrize("shape, paired", [((2, 3), True), ((6, 1), False), ((1, 6), True)])
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("composition", ["sum", "min", "table"])
def test_exact_draws_stay_invariant(joint_fields, composition, replicas, shape, paired):
    field = joint_fields.make(composition, replicas, shape, paired=paired)
    probs = joint_fields.probabilities(field)
    labels = all_labelings(6, probs)[torch.multinomial(probs, 4000, replacement=True)]
    assert min(joint_fields.p_values(probs, field.sweep(labels, 3))) > 2e-9


@pytest.mark.parametrize("composition", ["sum", "min", "table"])
def test_forgets_its_start(joint_fields, composition):
    field = joint_fields.make(composition, 2)
    labels = torch.ones(2, 4000, 6).double()
    assert min(joint_fields.p_values(joint_fields.probabilities(field), field.sweep(labels, 60))) > 2e-9


def test_without_patterns(joint_fields):
    field = joint_fields.make(rows=1, units=0)
    assert (
        min(joint_fields.p_values(joint_fields.probabilities(field), field.sweep(torch.zeros(1, 4000, 6).double(), 60)))
        > 2e-9
    )


def test_log_odds_of_chains(joint_fields):
    """Chains of one row may have log-odds of their own."""
    field = joint_fields.make(rows=1)
    field = replace(field, odds=torch.tensor([math.inf, -math.inf]).double().reshape(1, 2, 1).expand(1, 2, 6))
    assert field.sweep(torch.zeros(1, 2, 6).double(), 1).tolist() == [[[1.0] * 6, [0.0] * 6]]


def test_flips(joint_fields):
    """What is drawn with the numbers u in a field is drawn with 1 - u in the field that is turned over."""
    field = joint_fields.make(replicas=2)
    pixels, units = (torch.rand(2, 1, size) < 0.5 for size in (6, 3))
    turned = field.flipped(pixels.double(), units.double())
    labels = (torch.rand(2, 50, 6) < 0.5).double()
    for_units, for_pixels = torch.rand(2, 50, 2, 3).double(), torch.rand(2, 50, 6).double()
    shares = field.shares_from_noise(labels, for_units)
    other = turned.shares_from_noise(
        (labels - pixels.double()).abs(), torch.where(units.unsqueeze(1), 1 - for_units, for_units)
    )
    torch.testing.assert_close(other, (shares - units.double()).abs())
    drawn = turned.draw_labels((labels - pixels.double()).abs(), other, torch.where(pixels, 1 - for_pixels, for_pixels))
    torch.testing.assert_close(drawn, (field.draw_labels(labels, shares, for_pixels) - pixels.double()).abs())
