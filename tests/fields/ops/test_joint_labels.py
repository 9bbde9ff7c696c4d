"""Draws of several labels and hidden units given each other, on fields that can be enumerated."""

import math

import pytest
import torch

from pyro_structured.fields.ops.field_with_units import edges_of
from pyro_structured.fields.ops.joint_labels import JointLabels
from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical


def make(composition="sum", replicas=1, shape=(2, 2), labels=3, rows=2, paired=True, units=2):
    torch.manual_seed(0)
    size, edges = shape[0] * shape[1], len(edges_of(shape, torch.device("cpu"))) if paired else 0
    states = torch.randn(rows, 1, labels, size).double()
    states[0, 0, 1, 0], states[-1, 0, 0, 1] = -math.inf, -math.inf
    biases = torch.randn(rows, 1, units).double()
    biases[:, :, :1] = -math.inf if units > 1 else 0.0
    table = torch.tensor([0.5, 1.0, -math.inf]).double().expand(1, 1, 3)
    composition = table if composition == "table" else composition
    return JointLabels(
        states=states,
        penalties=torch.randn(1, 1, edges).double(),
        weights=2 * torch.randn(rows, units, labels * size).double(),
        biases=biases,
        composition=composition,
        replicas=replicas,
        shape=shape,
    )


def probabilities(field):
    """Of all labelings, shape ``(rows, K ** D)``."""
    y = all_labelings(field.num_pixels, field.states, field.num_labels)
    on = torch.stack([y == label for label in range(field.num_labels)], 1)
    score = field.states.squeeze(1).unsqueeze(1).where(on, 0.0).sum((-1, -2))
    ends = y[:, edges_of(field.shape, torch.device("cpu"))[: field.penalties.shape[-1]]]
    score = score - (field.penalties * (ends[..., 0] != ends[..., 1])).sum(-1)
    activations = on.flatten(1).double() @ field.weights.mT + field.biases
    if field.num_units:
        score = score + pattern_potential(activations, field.composition, field.replicas)
    return y, score.softmax(-1)


def p_values(field, probs, labels):
    units = field.num_labels ** torch.arange(labels.shape[-1] - 1, -1, -1)
    counts = [torch.bincount(each, minlength=probs.shape[1]) for each in labels.long() @ units]
    return [discrete_goodness_of_fit(*pair) for pair in zip(probs, counts, strict=True)]


@pytest.mark.parametrize("shape, labels, paired", [((2, 2), 3, True), ((5, 1), 2, False), ((1, 4), 4, True)])
@pytest.mark.parametrize("composition, replicas", [("sum", 1), ("sum", 3), ("min", 1), ("table", 2)])
def test_exact_draws_stay_invariant(composition, replicas, shape, labels, paired):
    field = make(composition, replicas, shape, labels, paired=paired)
    y, probs = probabilities(field)
    drawn = y[torch.multinomial(probs, 4000, replacement=True)]
    assert min(p_values(field, probs, field.sweep(drawn, 3))) > 2e-9


@pytest.mark.parametrize("units", [0, 2])
def test_forgets_its_start(units):
    field = make(units=units)
    _, probs = probabilities(field)
    assert min(p_values(field, probs, field.sweep(torch.full((2, 4000, 4), 2.0).double(), 60))) > 2e-9


def test_weights_in_addition():
    field = make(rows=1)
    more = torch.randn(3, 1, 1, 4).double()
    more[2, 0, 0, 3] = -math.inf
    changed = field.reweighted(more)
    torch.testing.assert_close(changed.states[0, 0, 0], field.states[0, 0, 0] + more[0, 0, 0])
    labels = torch.tensor([[[1.0, 0.0, 2.0, 2.0]]]).double()
    assert field.allows(labels).tolist() == [[[False, False, True, True]]]
    assert changed.allows(labels).tolist() == [[[False, False, True, False]]]
