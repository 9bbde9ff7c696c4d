"""Patterns that go together, against all states of both layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.fields.ops.deep_pattern_potential import deep_pattern_slopes, deep_states
from pyro_structured.fields.ops.field import Field, UpperUnits
from pyro_structured.fields.ops.field_sweeps import chain_activations, draw_shares
from pyro_structured.foundation.ops.enumeration import all_labelings
from pyro_structured.ops import deep_pattern_potential
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit

pytestmark = pytest.mark.statistical


def normal(*shape):
    return torch.randn(*shape, dtype=torch.double)


def enumerated(activations, weights, logits):
    """Log-weights of all pairs of states, shape ``(..., 2 ** J, 2 ** K)``; never a product of zero and infinity."""
    h, g = all_labelings(activations.shape[-1], weights), all_labelings(logits.shape[-1], weights)
    below = activations.unsqueeze(-2).where(h > 0, 0.0).sum(-1)
    above = logits.unsqueeze(-2).where(g > 0, 0.0).sum(-1)
    return below.unsqueeze(-1) + above.unsqueeze(-2) + h @ weights.mT @ g.T


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 5), st.integers(0, 5), st.sampled_from([0.5, 3.0, 40.0]), st.integers(0, 2**31))
def test_all_states(number, upper, scale, seed):
    torch.manual_seed(seed)
    activations, weights, logits = scale * normal(3, 1, number), scale * normal(upper, number), scale * normal(2, upper)
    activations[torch.rand(activations.shape) < 0.1] = -torch.inf
    logits[torch.rand(logits.shape) < 0.1] = -torch.inf
    found = deep_pattern_potential(activations, weights, logits)
    expected = enumerated(activations, weights, logits).flatten(-2).logsumexp(-1)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    probs = enumerated(activations, weights, logits).flatten(-2).softmax(-1).unflatten(-1, (2**number, -1)).sum(-1)
    slopes = deep_pattern_slopes(activations.expand(3, 2, number), weights, logits)
    torch.testing.assert_close(slopes, probs @ all_labelings(number, weights), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("number", "upper"), [(2, 4), (4, 2), (3, 3), (0, 2), (2, 0)])
def test_derivatives(number, upper, monkeypatch):
    torch.manual_seed(0)
    arguments = [part.requires_grad_() for part in (normal(5, number), normal(upper, number), normal(upper))]
    assert torch.autograd.gradcheck(deep_pattern_potential, arguments)
    assert torch.autograd.gradgradcheck(deep_pattern_potential, arguments)
    clamped = [arguments[0].detach().clone(), arguments[1], arguments[2].detach().clone()]
    clamped[0][..., :1], clamped[2][:1] = -torch.inf, -torch.inf
    total = deep_pattern_potential(clamped[0].requires_grad_(), clamped[1], clamped[2].requires_grad_()).sum()
    assert all(part.isfinite().all() for part in torch.autograd.grad(total, clamped))
    value = deep_pattern_potential(*arguments)
    mapped = torch.vmap(lambda a: deep_pattern_potential(a, *arguments[1:]))(arguments[0])
    torch.testing.assert_close(mapped, value)
    monkeypatch.setitem(deep_states.__globals__, "NUMBERS_AT_ONCE", 1)
    torch.testing.assert_close(deep_pattern_potential(*arguments), value)


@pytest.mark.parametrize(("number", "upper"), [(2, 3), (3, 2), (2, 0), (2, 2)])
def test_draws(number, upper):
    """Draws of the patterns given labels follow their distribution; patterns of bias -inf stay off."""
    torch.manual_seed(1)
    weights, logits, patterns = 2 * normal(2, upper, number), normal(2, upper), normal(2, number, 3)
    biases = normal(2, number)
    biases[1, 0] = -torch.inf
    field = Field(
        states=normal(2, 6),
        base=normal(2),
        penalties=normal(2, 0),
        shape=(1, 3),
        weights=patterns,
        biases=biases,
        composition="sum",
        temperature=1.0,
        upper=UpperUnits(weights, logits),
    )
    labels = torch.tensor([1.0, 0.0, 1.0]).double().expand(2, 20_000, 3)
    drawn = draw_shares(field, chain_activations(field, labels))
    activations = labels[:, :1] @ patterns.mT + biases.unsqueeze(1)
    probs = enumerated(activations.squeeze(1), weights, logits).flatten(-2).softmax(-1)
    probs = probs.unflatten(-1, (2**number, -1)).sum(-1)
    places = (drawn * 2 ** torch.arange(number - 1, -1, -1)).sum(-1).long()
    for row in range(2):
        counts = places[row].bincount(minlength=2**number)
        assert discrete_goodness_of_fit(probs[row], counts) > 2e-9
    assert (drawn[1, :, 0] == 0).all()


def test_the_smaller_layer_is_enumerated():
    states, _ = deep_states(torch.zeros(3, 30), torch.zeros(2, 30), torch.zeros(2))
    assert states.shape == (4, 2)
    states, log_weights = deep_states(torch.zeros(3, 2), torch.zeros(40, 2), torch.zeros(40))
    assert states.shape == (4, 2) and log_weights.shape == (3, 4)
