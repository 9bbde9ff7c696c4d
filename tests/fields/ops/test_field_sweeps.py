"""Draws of labels and hidden units given each other, on fields that can be enumerated."""

import math

import pytest
import torch

from pyro_structured.fields.ops.field import Field, edges_of
from pyro_structured.fields.ops.field_sweeps import sweep
from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical


@pytest.mark.parametrize("shape, paired", [((2, 3), True), ((6, 1), False), ((1, 6), True)])
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("composition", ["sum", "min", "table"])
def test_exact_draws_stay_invariant(joint_fields, composition, replicas, shape, paired):
    field = joint_fields.make(composition, replicas, shape, paired=paired)
    probs = joint_fields.probabilities(field)
    labels = all_labelings(6, probs)[torch.multinomial(probs, 4000, replacement=True)]
    assert min(joint_fields.p_values(probs, sweep(field, labels, 3))) > 2e-9


@pytest.mark.parametrize("composition", ["sum", "min", "table"])
def test_forgets_its_start(joint_fields, composition):
    field = joint_fields.make(composition, 2)
    labels = torch.ones(2, 4000, 6).double()
    assert min(joint_fields.p_values(joint_fields.probabilities(field), sweep(field, labels, 60))) > 2e-9


def test_without_patterns(joint_fields):
    field = joint_fields.make(rows=1, units=0)
    labels = sweep(field, torch.zeros(1, 4000, 6).double(), 60)
    assert min(joint_fields.p_values(joint_fields.probabilities(field), labels)) > 2e-9


def test_log_weights_of_chains(joint_fields):
    """Chains of one row may have log-weights of their own, which change nothing about what is known."""
    field = joint_fields.make(rows=1, units=0, paired=False)
    field = field._replace(states=torch.tensor([[-math.inf] + [0.0] * 5 + [0.0] * 6]).double())
    more = torch.zeros(2, 1, 2, 6).double()
    more[1, 0, 0], more[1, 0, 1] = 1000.0, -1000.0
    found = sweep(field, torch.ones(1, 2, 6).double(), 1, more)
    assert found.tolist() == [[[1.0] * 6, [1.0] + [0.0] * 5]]


def make_labels(composition="sum", replicas=1, shape=(2, 2), labels=3, rows=2, paired=True, units=2):
    torch.manual_seed(0)
    size, edges = shape[0] * shape[1], len(edges_of(shape, torch.device("cpu"))) if paired else 0
    states = torch.randn(rows, labels, size).double()
    states[0, 1, 0], states[-1, 0, 1] = -math.inf, -math.inf
    biases = torch.randn(rows, units).double()
    biases[:, :1] = -math.inf if units > 1 else 0.0
    table = torch.tensor([[0.5, 1.0, -math.inf]]).double()
    return Field(
        states=states.flatten(1),
        base=torch.zeros(1).double(),
        penalties=torch.randn(1, edges).double(),
        shape=shape,
        weights=2 * torch.randn(rows, units, labels * size).double(),
        biases=biases,
        composition=table if composition == "table" else composition,
        temperature=float(replicas),
    )


def label_probabilities(field):
    """Probabilities of all labelings, shape ``(rows, K ** D)``."""
    y = all_labelings(field.num_pixels, field.states, field.num_labels)
    on = torch.stack([y == label for label in range(field.num_labels)], 1)
    score = field.label_states.unsqueeze(1).where(on, 0.0).sum((-1, -2))
    ends = y[:, edges_of(field.shape, torch.device("cpu"))[: field.penalties.shape[-1]]]
    score = score - (field.penalties.unsqueeze(1) * (ends[..., 0] != ends[..., 1])).sum(-1)
    activations = on.flatten(1).double() @ field.weights.mT + field.biases.unsqueeze(1)
    if field.num_patterns:
        table = field.composition if isinstance(field.composition, str) else field.composition.unsqueeze(1)
        score = score + pattern_potential(activations, table, field.temperature)
    return y, score.softmax(-1)


def label_p_values(field, probs, labels):
    units = field.num_labels ** torch.arange(labels.shape[-1] - 1, -1, -1)
    counts = [torch.bincount(each, minlength=probs.shape[1]) for each in labels.long() @ units]
    return [discrete_goodness_of_fit(*pair) for pair in zip(probs, counts, strict=True)]


@pytest.mark.parametrize("shape, labels, paired", [((2, 2), 3, True), ((5, 1), 2, False), ((1, 4), 4, True)])
@pytest.mark.parametrize("composition, replicas", [("sum", 1), ("sum", 3), ("min", 1), ("table", 2)])
def test_exact_draws_of_labels_stay_invariant(composition, replicas, shape, labels, paired):
    field = make_labels(composition, replicas, shape, labels, paired=paired)
    y, probs = label_probabilities(field)
    drawn = y[torch.multinomial(probs, 4000, replacement=True)]
    assert min(label_p_values(field, probs, sweep(field, drawn, 3))) > 2e-9


@pytest.mark.parametrize("units", [0, 2])
def test_labels_forget_their_start(units):
    field = make_labels(units=units)
    _, probs = label_probabilities(field)
    assert min(label_p_values(field, probs, sweep(field, torch.full((2, 4000, 4), 2.0).double(), 60))) > 2e-9


def test_log_weights_in_addition():
    """Draws follow the field whose states have them; impossible labels stay so."""
    field = make_labels(rows=1)
    more = torch.randn(3, 1, 1, 4).double()
    more[2, 0, 0, 3] = -math.inf
    _, probs = label_probabilities(field._replace(states=field.states + more.flatten().unsqueeze(0)))
    drawn = sweep(field, torch.full((1, 4000, 4), 2.0).double(), 60, more)
    assert min(label_p_values(field, probs, drawn)) > 2e-9
