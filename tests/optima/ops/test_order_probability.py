"""Against closed forms, and integrals with many digits."""

import itertools
import math

import mpmath
import pytest
import torch

from pyro_structured.optima.ops.line_probability import LineVariables
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.order_probability import log_chain, log_plackett_luce, log_separation
from pyro_structured.optima.ops.truncated_normal import log_normal_tails

PLACES = torch.tensor([-9.0, -5.0, -2.5, -1.0, 0.0, 1.0, 2.5, 5.0, 9.0], dtype=torch.double)


def normal_terms(x, loc, scale):
    z = (x - loc) / scale
    return -(z**2) / 2 - scale.log() - math.log(2 * math.pi) / 2, *log_normal_tails(z)


def normal(loc, scale, order=None):
    """Normal variables, in some order."""
    loc, scale = (torch.as_tensor(t, dtype=torch.double) for t in (loc, scale))
    scale = scale.expand(len(loc))
    parameters = tuple(t.unsqueeze(0) if order is None else t[list(order)].unsqueeze(0) for t in (loc, scale))
    places = PLACES.reshape(-1, 1, 1)
    return LineVariables(normal_terms, lambda loc, scale: loc + scale * places, lambda loc, scale: (), parameters)


def chain(variables):
    return log_chain(variables).squeeze(0)


def separation(variables, low):
    return log_separation(variables, low.unsqueeze(0), ~low.unsqueeze(0)).squeeze(0)


def mask(items, number):
    return torch.tensor([item in items for item in range(number)])


@pytest.mark.parametrize("gap", [-1e5, -300.0, -30.0, -1.0, 0.0, 2.0, 40.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_two_normal_variables_are_one(gap, scale):
    variables = normal([0.0, gap * scale], [scale, 0.75 * scale])
    expected = log_normal_tails(torch.tensor(gap / 1.25, dtype=torch.double))[0]
    torch.testing.assert_close(separation(variables, mask([0], 2)), expected, rtol=1e-13, atol=1e-10)
    torch.testing.assert_close(chain(variables), expected, rtol=1e-13, atol=1e-10)


def precise_separation(loc, scale, low, log_unit):
    """The same integral with 30 digits, in a unit in which it is not tiny: errors are absolute."""
    with mpmath.workdps(30):
        params = [(mpmath.mpf(m), mpmath.mpf(s)) for m, s in zip(loc, scale, strict=True)]

        def density(x):
            total = mpmath.mpf(0)
            for i in low:
                product = mpmath.npdf(x, *params[i])
                for j, (m, s) in enumerate(params):
                    if j != i:
                        z = (x - m) / s
                        product *= mpmath.erfc((-z if j in low else z) / mpmath.sqrt(2)) / 2
                total += product
            return total

        ends = [m + s * k for m, s in params for k in (-14, -6, -3, 0, 3, 6, 14)]
        return mpmath.quad(lambda x: density(x) * mpmath.exp(-log_unit), sorted(set(ends)))


@pytest.mark.parametrize(
    "loc, scale, low",
    [
        ([0.0, 1.0, -0.5, 3.0], [1.0, 0.3, 2.0, 1.0], [0, 3]),
        ([12.0, 0.0, 1.0], [1.0, 0.6, 0.8], [0]),
        ([0.0, 25.0, 24.0], [1.0, 1.0, 2.0], [1, 2]),
        ([0.0, 0.5, 1.0], [1e-2, 3.0, 1.0], [0, 1]),
    ],
)
def test_relative_accuracy_of_improbable_sets(loc, scale, low):
    found = separation(normal(loc, scale), mask(low, len(loc))).item()
    assert float(precise_separation(loc, scale, low, found)) == pytest.approx(1.0, rel=1e-10)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    "loc, scale",
    [
        ([0.0, 0.0, 0.0, 0.0], 1.0),
        ([0.0, 0.3, 0.1, 2.0], [1e-3, 1e3, 1.0, 0.1]),
        ([0.0, 1.0, 2.0, 30.0], [1.0, 1.0, 3.0, 1.0]),
        ([0.0, 1e3, -1e3, 5.0], [500.0, 1.0, 1e3, 2.0]),
        ([0.0, 100.0, -50.0, 1.0], [1.0, 1e-3, 3.0, 5.0]),  # where one always is, others have long tails
    ],
)
def test_adds_up_to_one(loc, scale):
    """Sets, also improbable ones, are those orders of which they are the first."""
    orders = list(itertools.permutations(range(4)))
    scale = torch.tensor(scale).expand(4)
    chains = torch.stack([chain(normal(loc, scale, order)) for order in orders])
    assert chains.logsumexp(0).item() == pytest.approx(0.0, abs=1e-9)
    for items in itertools.combinations(range(4), 2):
        chosen = mask(items, 4)
        agree = [set(order[:2]) == set(items) for order in orders]
        found = separation(normal(loc, scale), chosen)
        assert found.item() == pytest.approx(chains[agree].logsumexp(0).item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_sets_far_apart_add_up_to_one(scale):
    sets = [mask(items, 4) for items in itertools.combinations(range(4), 2)]
    found = [separation(normal([0.0, 1e3, -1e3, 5.0], [scale, 1.0, 2.0, 1.0]), low) for low in sets]
    assert torch.stack(found).logsumexp(0).item() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("far", [40, 1000])
def test_improbable_chain(far):
    """Three equal scales, the wrong way round: the middle one is between the others."""
    found = chain(normal([far, 0.0, -far], 1.0)).item()
    with mpmath.workdps(30):
        root, unit = mpmath.sqrt(2), mpmath.exp(-found)
        ratio = mpmath.quad(
            lambda x: unit * mpmath.npdf(x) * mpmath.erfc((far - x) / root) / 2 * mpmath.erfc((x + far) / root) / 2,
            [-12, -6, -3, 0, 3, 6, 12],
        )
    assert float(ratio) == pytest.approx(1.0, rel=2e-10)


def test_chains_of_several_great_inversions():
    """In the middle of a thousand standard deviations; the other direction takes the integrals from the other end."""
    loc = torch.tensor([1000.0, 0.0, 1000.0, 0.0, 1000.0, 0.0])
    found, mirrored = chain(normal(loc, 1.0)), chain(normal(-loc.flip(0), 1.0))
    torch.testing.assert_close(found, mirrored, rtol=1e-14, atol=1e-8)
    assert found.item() == pytest.approx(-6 * 500**2 / 2, rel=1e-4)


def test_certain_and_impossible():
    variables, everything = normal([0.0, 1.0], 1.0), mask([0, 1], 2)
    assert separation(variables, everything).item() == 0.0

    def terms(x, start):
        """Uniform on [start, start + 1]."""
        shifted = x - start
        inside = (shifted > 0) & (shifted < 1)
        below, above = (t.clamp(1e-300, 1).log() for t in (shifted, 1 - shifted))
        below, above = below.masked_fill(shifted <= 0, IMPOSSIBLE), above.masked_fill(shifted >= 1, IMPOSSIBLE)
        return torch.zeros_like(shifted).masked_fill(~inside, IMPOSSIBLE), below, above

    starts = torch.tensor([[0.0, 2.0]], dtype=torch.double)
    apart = LineVariables(terms, lambda s: torch.stack([s, s + 1]), lambda s: (s, s + 1), (starts,))
    low = mask([0], 2)
    assert separation(apart, low).item() == pytest.approx(0.0, abs=1e-12)
    assert separation(apart, ~low).item() == -math.inf
    assert chain(apart).item() == pytest.approx(0.0, abs=1e-12)


def test_gradients():
    loc = torch.tensor([0.3, -1.0, 0.5], dtype=torch.double, requires_grad=True)
    scale = torch.tensor([1.0, 0.2, 2.0], dtype=torch.double, requires_grad=True)
    low = mask([0, 2], 3)
    for function in (lambda *t: chain(normal(*t)), lambda *t: separation(normal(*t), low)):
        assert torch.autograd.gradcheck(function, (loc, scale))
        assert torch.autograd.gradgradcheck(function, (loc, scale))


def test_plackett_luce_adds_up_to_one():
    logits = torch.randn(4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    orders = torch.tensor(list(itertools.permutations(range(4))))
    assert log_plackett_luce(logits[orders]).exp().sum().item() == pytest.approx(1.0)
    first = log_plackett_luce(logits[orders]).exp()[orders[:, 0] == 2].sum()
    assert first.item() == pytest.approx(logits.softmax(-1)[2].item())


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("first", [1.0, 30.0, 40.0, 700.0])
def test_forward_derivatives_behind_a_certain_item(first):
    logits = torch.tensor([first, 0.5, 0.0], dtype=torch.double)
    forward, reverse = (derivative(log_plackett_luce)(logits) for derivative in (torch.func.jacfwd, torch.func.jacrev))
    torch.testing.assert_close(forward, reverse, rtol=1e-9, atol=1e-14)
    last = torch.sigmoid(torch.tensor(-0.5, dtype=torch.double))
    torch.testing.assert_close(reverse[2], -last - logits.softmax(0)[2])
    hessian = torch.func.hessian(log_plackett_luce)(logits)
    torch.testing.assert_close(hessian[2, 2], -last * (1 - last) - logits.softmax(0)[2] * (1 - logits.softmax(0)[2]))
