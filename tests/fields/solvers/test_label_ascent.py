"""Labelings with several labels by expansion moves, against enumeration."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.label_ascent import ascend_labels, expand_label, likely_labels
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.structures import Grid

TEMPERATURES = [0.0, 0.5, 1.0, 2.0, 3.0]


def make(shape, labels, number, composition, temperature, seed, rows=1, scale=2.0, impossible=0.05, hard=0.05):
    """Fields of normal numbers, with exponential penalties, some impossible labels, and pairs that have to be alike."""
    torch.manual_seed(seed)
    grid = Grid(*shape)
    states = scale * torch.randn(rows, labels, grid.num_pixels).double()
    states = states.masked_fill(torch.rand_like(states) < impossible, -torch.inf)
    # Some label is always possible everywhere, so that alike pixels have one in common.
    states[:, 0] = states[:, 0].masked_fill(states[:, 0] == -torch.inf, -1.0)
    penalties = torch.distributions.Exponential(1.0).sample((rows, grid.num_edges)).double()
    penalties = penalties.masked_fill(torch.rand_like(penalties) < hard, torch.inf)
    weights = scale * torch.randn(rows, number, labels * grid.num_pixels).double()
    biases = scale * torch.randn(rows, number).double()
    if composition == "table":
        composition = torch.randn(rows, number + 1).double()
        composition[:, number // 2] = -torch.inf
    base = torch.randn(rows).double()
    return Field(states.flatten(1), base, penalties, shape, weights, biases, composition, temperature)


def values_of(field, labels):
    """Log-weights of many labelings of a single field, by the definition."""
    (states, base, penalties), pixels = (
        (field.label_states[0], field.base, field.penalties[0]),
        range(field.num_pixels),
    )
    worth = states[labels, torch.arange(len(pixels))].sum(-1) + base
    for (one, other), penalty in zip(field.edges.tolist(), penalties, strict=True):
        worth = worth - penalty.where(labels[:, one] != labels[:, other], 0.0)
    if field.weights.shape[1] or not isinstance(field.composition, str):
        each = field.weights[0].unflatten(-1, states.shape)
        activations = each[:, labels, torch.arange(len(pixels))].sum(-1).T + field.biases
        worth = worth + pattern_potential(activations, field.composition, field.temperature)
    return worth


def expansions(labels, label):
    """All labelings in which some pixels have changed to a label."""
    choices = [sorted({int(present), label}) for present in labels]
    return torch.tensor(list(itertools.product(*choices)))


@settings(max_examples=300)
@given(
    st.sampled_from([(1, 4), (2, 2), (2, 3), (3, 3)]),
    st.integers(2, 4),
    st.sampled_from([0.3, 2.0, 30.0]),
    st.integers(0, 2**31),
)
def test_moves_are_the_best_of_their_kind(shape, labels, scale, seed):
    field = make(shape, labels, 0, "sum", 1.0, seed, scale=scale)
    network = FieldCut(field.edges.numpy(), shape[0] * shape[1])
    start = likely_labels(field)
    assert field.log_weight(start) > -torch.inf
    states, penalties = field.label_states.numpy(), field.penalties.numpy()
    for label in range(labels):
        found = torch.from_numpy(expand_label(network, field.edges.numpy(), states, penalties, start.numpy(), label))
        assert ((found == start) | (found == label)).all()
        best = values_of(field, expansions(start[0], label)).amax()
        torch.testing.assert_close(field.log_weight(found)[0], best, rtol=1e-9, atol=1e-9)
        start = found


@settings(max_examples=200)
@given(
    st.sampled_from([(1, 4), (2, 3), (3, 3)]),
    st.integers(2, 3),
    st.sampled_from([0.3, 1.0, 5.0]),
    st.integers(0, 2**31),
)
def test_alpha_expansion(shape, labels, scale, seed):
    """Without patterns, no move is better in the end, and the guarantee of a factor of two holds."""
    field = make(shape, labels, 0, "sum", 1.0, seed, scale=scale, hard=0.0)
    found, _, cuts = ascend_labels(field, likely_labels(field), 1000)
    value = values_of(field, found)
    torch.testing.assert_close(field.log_weight(found), value, rtol=1e-12, atol=1e-12)
    everything = all_labelings(shape[0] * shape[1], torch.zeros(()), labels).long()
    scores = values_of(field, everything)
    best = everything[scores.argmax()]
    ends = best[field.edges]
    paid = field.penalties[0][ends[:, 0] != ends[:, 1]].sum()
    assert scores.amax() - paid - 1e-9 <= value <= scores.amax() + 1e-9
    for label in range(labels):
        assert values_of(field, expansions(found[0], label)).amax() <= value + 1e-9
    assert cuts < 1000


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.sampled_from([(2, 2), (2, 3), (3, 3)]),
    st.integers(2, 4),
    st.sampled_from(["sum", "min", "table"]),
    st.sampled_from(TEMPERATURES),
    st.integers(0, 2**31),
)
def test_ascent_under_patterns(shape, labels, composition, temperature, seed):
    """In the end, no move is better for the tangent; several rows at a time are as good as one."""
    field = make(shape, labels, 3, composition, temperature, seed, rows=3)
    start = likely_labels(field)
    found, _, cuts = ascend_labels(field, start, 1000)
    assert (field.log_weight(found) >= field.log_weight(start) - 1e-10).all()
    assert (cuts >= labels).all() and (cuts < 1000).all()
    for row in range(3):
        one = field.rows(torch.tensor([row]))
        alone = ascend_labels(one, start[row : row + 1], 1000)
        torch.testing.assert_close(one.log_weight(alone.labels), field.log_weight(found)[row : row + 1])
        torch.testing.assert_close(one.log_weight(found[row : row + 1]), values_of(one, found[row : row + 1]))
        touching = one.tangent(found[row : row + 1])
        here = values_of(touching, found[row : row + 1])
        for label in range(labels):
            assert values_of(touching, expansions(found[row], label)).amax() <= here + 1e-8
    stopped = ascend_labels(field, start, 2)
    assert (stopped.num_cuts <= 2).all()


def test_moves_never_make_labels_worse():
    """5,000 moves of the tangent that change something, of all temperatures and compositions, one by one."""
    steps, seed = 0, 0
    while steps < 5000:
        for composition, temperature in itertools.product(("sum", "min", "table"), TEMPERATURES):
            seed += 1
            field = make((5, 5), 3 + seed % 2, 6, composition, temperature, seed, rows=30, scale=0.7, hard=0.0)
            labels = torch.randint(field.num_labels, (30, 25))
            possible = field.label_states.gather(1, labels.unsqueeze(1)).squeeze(1) > -torch.inf
            labels = labels.where(possible, 0)
            network = FieldCut(field.edges.numpy(), 25)
            worth, vain, label = field.log_weight(labels), 0, 0
            while vain < field.num_labels:
                states, penalties = field.tangent(labels).label_states.numpy(), field.penalties.numpy()
                new = torch.from_numpy(
                    expand_label(network, field.edges.numpy(), states, penalties, labels.numpy(), label)
                )
                value = field.log_weight(new)
                assert (value >= worth - 1e-10 * (1 + worth.abs())).all()
                moved = value > worth + 1e-10 * (1 + worth.abs())
                labels, worth = torch.where(moved.unsqueeze(-1), new, labels), torch.maximum(worth, value)
                steps, vain = steps + int(moved.sum()), 0 if moved.any() else vain + 1
                label = (label + 1) % field.num_labels


@pytest.mark.parametrize("labels", [2, 3, 5])
def test_large_grids_stop(labels):
    """Smooth figures: expansions reach what constant labels do not, and every row stops by itself."""
    field = make((24, 24), labels, 4, "sum", 1.0, labels, rows=3, scale=0.5, impossible=0.0, hard=0.02)
    start = likely_labels(field)
    found, _, cuts = ascend_labels(field, start, 10_000)
    assert (field.log_weight(found) > field.log_weight(start)).all() and (cuts < 500).all()
