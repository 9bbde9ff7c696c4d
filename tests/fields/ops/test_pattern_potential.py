"""Patterns with their hidden units summed out: Table 3.1 of the thesis, temperatures, tables, templates."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from pyro_structured.fields.ops.hidden_states import (
    cost_of_kinds,
    free_hidden_states,
    hidden_states,
    number_of_hidden_states,
)
from pyro_structured.fields.ops.pattern_potential import (
    pattern_from_template,
    pattern_potential,
    pattern_slopes,
    template_of_pattern,
)
from pyro_structured.foundation.ops.enumeration import all_labelings


def table_of(scheme, number):
    if scheme == "sum":
        return torch.zeros(number + 1, dtype=torch.double)
    if scheme == "min":
        return torch.full((number + 1,), -torch.inf, dtype=torch.double).index_fill(0, torch.tensor([1]), 0.0)
    table = torch.randn(number + 1, dtype=torch.double)
    return table.masked_fill(torch.arange(number + 1) == number // 2, -torch.inf) if scheme == "holes" else table


def brute_force(activations, table, temperature):
    units = all_labelings(activations.shape[-1], activations)
    chosen = activations.unsqueeze(-2).where(units > 0, 0.0).sum(-1) + table[units.sum(-1).long()]
    return chosen.amax(-1) if temperature == 0 else temperature * (chosen / temperature).logsumexp(-1)


@settings(max_examples=300)
@given(
    st.integers(0, 5),
    st.sampled_from([0, 0.5, 1, 2, 3]),
    st.sampled_from(["sum", "min", "table", "holes"]),
    st.sampled_from([1.0, 50.0]),
    st.integers(0, 2**31),
)
def test_potentials(number, temperature, scheme, scale, seed):
    assume(number or scheme in ("sum", "table"))
    torch.manual_seed(seed)
    a = scale * torch.randn(4, number, dtype=torch.double)
    a = a.masked_fill(torch.rand_like(a) < 0.1, -torch.inf)
    table = table_of(scheme, number)
    expected = brute_force(a, table, temperature)
    for composition in (table, scheme) if scheme in ("sum", "min") else (table,):
        torch.testing.assert_close(pattern_potential(a, composition, temperature), expected, rtol=1e-12, atol=1e-10)
    if isinstance(temperature, int) and temperature:
        allowed = tuple(k for k in range(number + 1) if table[k] > -torch.inf)
        kinds = [hidden_states(number, temperature, allowed)]
        kinds += [free_hidden_states(number, temperature, table)] if scheme == "sum" else []
        for states in kinds:
            assert len(states.shares) <= number_of_hidden_states(number, temperature, allowed)
            chosen = a.unsqueeze(-2).where(states.shares > 0, 0.0) * states.shares
            found = (chosen.sum(-1) + states.log_weights(table)).logsumexp(-1)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-10)


def test_states_of_many_replicas():
    """States do not depend on the order of replicas: 4^16 ordered counts, or 12^11 numbers, would not be found."""
    for number, temperature, allowed in ((3, 16, (0, 1, 2, 3)), (11, 11, (1,))):
        activations = torch.randn(number, dtype=torch.double)
        table = table_of("min", number) if len(allowed) == 1 else torch.randn(number + 1, dtype=torch.double)
        states = hidden_states(number, temperature, allowed)
        found = (states.shares @ activations + states.log_weights(table)).logsumexp(-1)
        torch.testing.assert_close(found, brute_force(activations, table, temperature), rtol=1e-12, atol=1e-10)
    assert cost_of_kinds(8, 16, range(9)) > 2**30 > cost_of_kinds(64, 3, [1])


def test_smoothing_gaps():
    """Between a maximum and a sum over hidden units there is at most J log 2, or log J where one of them is on."""
    a = 10 * torch.randn(10_000, 5, dtype=torch.double)
    for scheme, most in (("sum", 5 * math.log(2)), ("min", math.log(5))):
        gap = pattern_potential(a, scheme, 1.0) - pattern_potential(a, scheme, 0.0)
        assert (gap >= 0).all() and (gap <= most).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scheme", ["sum", "min"])
def test_derivatives(scheme, temperature):
    a = torch.randn(3, 4, dtype=torch.double)
    a[0, 0], a[1, 2] = 40.0, -40.0
    a.requires_grad_()
    assert gradcheck(lambda x: pattern_potential(x, scheme, temperature), a)
    assert gradgradcheck(lambda x: pattern_potential(x, scheme, temperature), a)
    never = torch.full((2,), -torch.inf, dtype=torch.double, requires_grad=True)
    (slope,) = torch.autograd.grad(pattern_potential(never, "sum", temperature), never, create_graph=True)
    assert torch.equal(slope, torch.zeros(2, dtype=torch.double))


def test_one_of_two_units_is_the_other():
    """Equations (3.22) to (3.25), with the sign of b' and the h that are missing in print: the last of J units that
    exactly one of is on can be left out, with b' = b + w_J, c' = c - c_J and w' = w - w_J.
    """
    b, c, w = (torch.randn(*shape, dtype=torch.double) for shape in ((6,), (4,), (4, 6)))
    y = all_labelings(6, b)
    one = y @ b + pattern_potential(y @ w.T + c, "min", 1.0)
    left = torch.nn.functional.pad(y @ (w[:3] - w[3]).T + c[:3] - c[3], (0, 1))
    other = y @ (b + w[3]) + pattern_potential(left, "min", 1.0) + c[3]
    torch.testing.assert_close(one, other)
    wrong = y @ (b - w[3]) + pattern_potential(left, "min", 1.0) + c[3]
    assert (one - wrong).abs().max() > 0.1


def test_templates():
    """Equation (3.1), less its largest value, is minus a pattern's potential at temperature zero."""
    template = (torch.rand(20, 5, dtype=torch.double) < 0.5).double()
    costs, base, most = torch.rand(20, 5, dtype=torch.double), torch.rand(20).double(), 1 + torch.rand(20).double()
    weights, bias = pattern_from_template(template, costs, base, most)
    for y in all_labelings(5, weights):
        deviation = (costs * (y != template)).sum(-1)
        expected = torch.minimum(deviation + base, most) - most
        found = -pattern_potential((weights @ y + bias).unsqueeze(-1), "sum", 0.0)
        torch.testing.assert_close(found, expected)
    again = template_of_pattern(weights, bias)
    torch.testing.assert_close(again.template, template)
    torch.testing.assert_close(again.weights, costs)
    torch.testing.assert_close(again.discount, most - base)


def test_all_labelings():
    expected = [list(map(float, labels)) for labels in itertools.product([0, 1], repeat=4)]
    assert all_labelings(4, torch.zeros(())).tolist() == expected


def test_slopes_in_inference_mode():
    """Slopes can be computed in inference mode, as in predictions."""
    activations, table = torch.randn(4, 3), torch.randn(4)
    for composition in ("sum", "min", table):
        expected = pattern_slopes(activations, composition, 1.0)
        with torch.inference_mode():
            found = pattern_slopes(activations + 0, composition if isinstance(composition, str) else table + 0, 1.0)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("composition", ["sum", "min", "table"])
def test_slopes(composition, temperature):
    """Slopes are the means of units by a sum over all their states, where some are never on as well; differentiable."""
    generator = torch.Generator().manual_seed(0)
    activations = torch.randn(50, 4, generator=generator, dtype=torch.double)
    activations[:10, 1] = activations[5:10, 3] = -torch.inf
    table = torch.randn(5, generator=generator, dtype=torch.double)
    states = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)), dtype=torch.double)
    numbers = states.sum(-1)
    weights = {"sum": 0 * numbers, "min": torch.where(numbers == 1, 0.0, -torch.inf), "table": table[numbers.long()]}
    scores = torch.where(states == 1, activations.unsqueeze(1), 0.0).sum(-1) + weights[composition]
    if temperature:
        probs = (scores / temperature).softmax(-1)
    else:
        probs = torch.nn.functional.one_hot(scores.argmax(-1), len(states)).double()
    chosen = table if composition == "table" else composition
    found = pattern_slopes(activations, chosen, temperature)
    torch.testing.assert_close(found, probs @ states)
    if temperature:
        points = activations[10:14].clone().requires_grad_()
        gradcheck(lambda point: pattern_slopes(point, chosen, temperature), (points,))
        assert not pattern_slopes(activations, chosen, temperature).requires_grad
        if composition == "table":
            gradcheck(lambda point: pattern_slopes(activations[:12], point, temperature), (table.requires_grad_(),))


@pytest.mark.parametrize("composition", ["sum", "min"])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_slopes_are_derivatives(composition, temperature):
    """Slopes are derivatives also where units are never on, far from zero, and, at T = 0, where units tie."""
    torch.manual_seed(0)
    activations = 20 * torch.randn(50, 4).double()
    activations[:10, 1], activations[10:20, 2] = -torch.inf, activations[10:20, 0]
    point = activations.clone().requires_grad_()
    (expected,) = torch.autograd.grad(pattern_potential(point, composition, temperature).sum(), point)
    torch.testing.assert_close(pattern_slopes(activations, composition, temperature), expected, rtol=1e-12, atol=1e-12)
    if temperature:
        finite = torch.randn(5, 3).double().requires_grad_()
        assert gradcheck(lambda a: pattern_slopes(a, composition, temperature), finite)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_units_that_are_certain(dtype):
    """The second ones are variances of the hidden units, of any size of the activations."""
    activations = torch.tensor(
        [-torch.inf, -1e4, -720.0, -90.0, -1.0, 0.0, 1.0, 79.0, 81.0, 599.0, 601.0, 1e4], dtype=dtype
    )
    activations.requires_grad_()
    (slopes,) = torch.autograd.grad(pattern_potential(activations, "sum", 1.0), activations, create_graph=True)
    torch.testing.assert_close(slopes, torch.sigmoid(activations))
    (curvatures,) = torch.autograd.grad(slopes.sum(), activations)
    expected = torch.sigmoid(activations) * torch.sigmoid(-activations)
    torch.testing.assert_close(curvatures, expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-30)
