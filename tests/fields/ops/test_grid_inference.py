"""Passes over grids, against enumeration."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from pyro_structured.fields.ops import grid_inference
from pyro_structured.fields.ops.grid_inference import GridDraws, infer_grid, log_partition_of_grid, maximize_grid
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.structures import Grid
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical

SHAPES = [(height, width) for height in range(1, 13) for width in range(1, 13) if height * width <= 12]


def field(shape, rows, impossible, scale, seed):
    """Log-weights of the states, and penalties, which may be negative or infinite."""
    torch.manual_seed(seed)
    grid = Grid(*shape)
    states = scale * torch.randn(rows, 2 * grid.num_pixels, dtype=torch.double)
    penalties = scale * torch.randn(rows, grid.num_edges, dtype=torch.double)
    return (
        states.masked_fill(torch.rand_like(states) < impossible, -torch.inf),
        penalties.masked_fill(torch.rand_like(penalties) < impossible, torch.inf),
    )


def scores(shape, states, penalties):
    """All labelings, where their neighbours differ, and log-weights, shape ``(labelings, rows)``."""
    edges = Grid(*shape).edges
    values = all_labelings(shape[0] * shape[1], states)
    differ = values[:, edges[:, 0]] != values[:, edges[:, 1]]
    off, on = states.chunk(2, -1)
    single = torch.where(values.unsqueeze(1) == 1, on, off).sum(-1)
    return values, differ.double(), single - penalties.where(differ.unsqueeze(1), 0.0).sum(-1)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.sampled_from(SHAPES),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.sampled_from([0.3, 3.0, 50.0, 1e6]),
)
def test_queries(shape, seed, impossible, scale):
    states, penalties = field(shape, 3, impossible, scale, seed)
    values, differ, joint = scores(shape, states, penalties)
    expected = joint.logsumexp(0)
    log_z, single, cut = infer_grid(states, penalties, shape)
    torch.testing.assert_close(log_z, expected, rtol=1e-13, atol=1e-10)
    torch.testing.assert_close(log_partition_of_grid(states, penalties, shape), expected, rtol=1e-13, atol=1e-10)
    probs = (joint - expected.masked_fill(expected == -torch.inf, 0.0)).exp().T
    tolerance = 1e-10 + 1e-14 * scale * len(values)
    torch.testing.assert_close(single, probs @ torch.cat([1 - values, values], -1), rtol=0, atol=tolerance)
    torch.testing.assert_close(cut, probs @ differ, rtol=0, atol=tolerance)
    peak, best = maximize_grid(states, penalties, shape)
    torch.testing.assert_close(peak, joint.amax(0), rtol=1e-13, atol=1e-10)
    place = (best * 2 ** torch.arange(values.shape[1] - 1, -1, -1)).sum(-1)
    possible = peak > -torch.inf
    found = joint[place, torch.arange(3)]
    torch.testing.assert_close(found[possible], peak[possible], rtol=1e-13, atol=1e-10)


def several_scores(shape, labels, states, penalties):
    """All labelings, indicators of the labels and of differences, and log-weights, shape ``(labelings, rows)``."""
    edges = Grid(*shape).edges
    values = all_labelings(shape[0] * shape[1], states, labels)
    indicators = torch.cat([values == label for label in range(labels)], -1)
    differ = values[:, edges[:, 0]] != values[:, edges[:, 1]]
    joint = states.where(indicators.unsqueeze(1), 0.0).sum(-1) - penalties.where(differ.unsqueeze(1), 0.0).sum(-1)
    return values, indicators.double(), differ.double(), joint


@settings(max_examples=150)
@given(
    st.sampled_from([((1, 1), 5), ((1, 5), 3), ((5, 1), 4), ((2, 3), 3), ((3, 2), 4), ((2, 2), 5), ((2, 4), 3)]),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.sampled_from([0.3, 3.0, 50.0, 1e6]),
)
def test_several_labels(size, seed, impossible, scale):
    (shape, labels), number = size, size[0][0] * size[0][1]
    _, penalties = field(shape, 3, impossible, scale, seed)
    states = scale * torch.randn(3, labels * number, dtype=torch.double)
    states = states.masked_fill(torch.rand_like(states) < impossible, -torch.inf)
    values, indicators, differ, joint = several_scores(shape, labels, states, penalties)
    expected = joint.logsumexp(0)
    log_z, single, cut = infer_grid(states, penalties, shape)
    torch.testing.assert_close(log_z, expected, rtol=1e-13, atol=1e-10)
    torch.testing.assert_close(log_partition_of_grid(states, penalties, shape), expected, rtol=1e-13, atol=1e-10)
    probs = (joint - expected.masked_fill(expected == -torch.inf, 0.0)).exp().T
    tolerance = 1e-10 + 1e-14 * scale * len(values)
    torch.testing.assert_close(single, probs @ indicators, rtol=0, atol=tolerance)
    torch.testing.assert_close(cut, probs @ differ, rtol=0, atol=tolerance)
    peak, best = maximize_grid(states, penalties, shape)
    torch.testing.assert_close(peak, joint.amax(0), rtol=1e-13, atol=1e-10)
    place = (best * labels ** torch.arange(number - 1, -1, -1)).sum(-1)
    possible = peak > -torch.inf
    torch.testing.assert_close(joint[place, torch.arange(3)][possible], peak[possible], rtol=1e-13, atol=1e-10)


@pytest.mark.slow
def test_derivatives_of_several_labels():
    torch.manual_seed(6)
    states, penalties = torch.randn(2, 12, dtype=torch.double), torch.randn(1, 4, dtype=torch.double)
    inputs = (states.requires_grad_(), penalties.requires_grad_())
    assert gradcheck(lambda *tensors: infer_grid(*tensors, (2, 2)), inputs)
    assert gradgradcheck(lambda *tensors: infer_grid(*tensors, (2, 2)), inputs)


def test_samples_of_several_labels():
    for shape in ((2, 2), (1, 4), (4, 1)):
        _, penalties = field(shape, 2, 0.1, 1.0, 4)
        states = torch.randn(2, 12, dtype=torch.double)
        values, _, _, joint = several_scores(shape, 3, states, penalties)
        drawn = GridDraws(states, penalties, shape)(torch.arange(2).repeat_interleave(50_000))
        place = (drawn * 3 ** torch.arange(3, -1, -1)).sum(-1).reshape(2, -1)
        for row, probs in enumerate(joint.softmax(0).T):
            assert discrete_goodness_of_fit(probs, place[row].bincount(minlength=len(values))) > 2e-9


def test_shared_penalties_and_groups_of_rows(monkeypatch):
    """One row of penalties serves all, and rows are looked at in groups without a difference."""
    states, penalties = field((3, 4), 7, 0.1, 2.0, 0)
    whole = infer_grid(states, penalties[:1], (3, 4))
    monkeypatch.setattr(grid_inference, "NUMBERS_AT_ONCE", 16)
    for one, other in zip(whole, infer_grid(states, penalties[:1].expand(7, -1), (3, 4)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_derivatives():
    """Along states and penalties, of log Z and of the marginals, and also where one row serves all."""
    for rows in (1, 2):
        states, penalties = field((2, 3), 2, 0.0, 1.0, 1)
        inputs = (states.requires_grad_(), penalties[:rows].clone().requires_grad_())
        assert gradcheck(lambda *tensors: infer_grid(*tensors, (2, 3)), inputs)
        assert gradgradcheck(lambda *tensors: infer_grid(*tensors, (2, 3)), inputs)


def test_derivatives_with_impossible_states():
    """Derivatives are finite, and marginals, where states and differences are excluded, and in impossible rows."""
    states, penalties = field((3, 3), 40, 0.25, 2.0, 2)
    states.requires_grad_()
    penalties.requires_grad_()
    log_z, single, cut = infer_grid(states, penalties, (3, 3))
    possible = log_z > -torch.inf
    assert possible.any() and not possible.all()
    grads = torch.autograd.grad(log_z.masked_fill(~possible, 0.0).sum(), (states, penalties), create_graph=True)
    torch.testing.assert_close(grads[0], single)
    torch.testing.assert_close(grads[1], -cut)
    second = torch.autograd.grad(sum((grad**2).sum() for grad in grads), (states, penalties))
    assert all(grad.isfinite().all() for grad in second)


def test_long_fields():
    """A thousand columns, against the junction tree of a chain."""
    states, penalties = field((1, 1000), 1, 0.0, 1.0, 3)
    message = states.new_zeros(2)
    for place in range(1000):
        if place:
            p = penalties[0, place - 1]
            message = torch.stack(
                [torch.logaddexp(message[0], message[1] - p), torch.logaddexp(message[0] - p, message[1])]
            )
        message = message + states[0, [place, 1000 + place]]
    for shape in ((1, 1000), (1000, 1)):
        torch.testing.assert_close(log_partition_of_grid(states, penalties, shape)[0], message.logsumexp(0))


def test_samples():
    for shape in ((2, 4), (4, 2), (1, 3)):
        states, penalties = field(shape, 2, 0.1, 1.0, 4)
        _, _, joint = scores(shape, states, penalties)
        probs = joint.softmax(0)
        rows = torch.arange(2).repeat(50_000)
        drawn = GridDraws(states, penalties, shape)(rows)
        place = (drawn * 2 ** torch.arange(drawn.shape[1] - 1, -1, -1)).sum(-1)
        for row in range(2):
            counts = place[rows == row].bincount(minlength=len(probs))
            assert discrete_goodness_of_fit(probs[:, row], counts) > 2e-9
