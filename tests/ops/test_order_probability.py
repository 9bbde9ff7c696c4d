"""Against closed forms, and integrals with many digits."""

import itertools
import math

import mpmath
import pytest
import torch

from pyro_structured.ops.line_quadrature import IMPOSSIBLE, integrate_line
from pyro_structured.ops.order_probability import log_chain, log_plackett_luce, log_separation
from pyro_structured.ops.truncated_normal import log_normal_tails

PLACES = torch.tensor([-9.0, -5.0, -2.5, -1.0, 0.0, 1.0, 2.5, 5.0, 9.0], dtype=torch.double)


def normal(loc, scale, order=None):
    """Terms and points of normal variables, in some order."""
    loc, scale = (torch.as_tensor(t, dtype=torch.double) for t in (loc, scale))
    scale = scale.expand(len(loc))
    loc, scale = (t if order is None else t[list(order)] for t in (loc, scale))

    def terms(x):
        z = (x.unsqueeze(-1) - loc) / scale
        return -(z**2) / 2 - scale.log() - math.log(2 * math.pi) / 2, *log_normal_tails(z)

    return terms, (loc + scale * PLACES.unsqueeze(-1)).detach().flatten()


def mask(items, number):
    return torch.tensor([item in items for item in range(number)])


@pytest.mark.parametrize("gap", [-1e5, -300.0, -30.0, -1.0, 0.0, 2.0, 40.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_two_normal_variables_are_one(gap, scale):
    terms, points = normal([0.0, gap * scale], [scale, 0.75 * scale])
    expected = log_normal_tails(torch.tensor(gap / 1.25, dtype=torch.double))[0]
    low = mask([0], 2)
    torch.testing.assert_close(log_separation(terms, points, low, ~low), expected, rtol=1e-13, atol=1e-10)
    torch.testing.assert_close(log_chain(terms, points), expected, rtol=1e-13, atol=1e-10)


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
    terms, points = normal(loc, scale)
    chosen = mask(low, len(loc))
    found = log_separation(terms, points, chosen, ~chosen).item()
    assert float(precise_separation(loc, scale, low, found)) == pytest.approx(1.0, rel=1e-10)


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
    chains = torch.stack([log_chain(*normal(loc, scale, order)) for order in orders])
    assert chains.logsumexp(0).item() == pytest.approx(0.0, abs=1e-9)
    for items in itertools.combinations(range(4), 2):
        chosen = mask(items, 4)
        agree = [set(order[:2]) == set(items) for order in orders]
        found = log_separation(*normal(loc, scale), chosen, ~chosen)
        assert found.item() == pytest.approx(chains[agree].logsumexp(0).item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_sets_far_apart_add_up_to_one(scale):
    sets = [mask(items, 4) for items in itertools.combinations(range(4), 2)]
    found = [log_separation(*normal([0.0, 1e3, -1e3, 5.0], [scale, 1.0, 2.0, 1.0]), low, ~low) for low in sets]
    assert torch.stack(found).logsumexp(0).item() == pytest.approx(0.0, abs=1e-9)


def test_improbable_chain():
    """Three equal scales, the wrong way round: the middle one is between the others."""
    found = log_chain(*normal([40.0, 0.0, -40.0], 1.0)).item()
    with mpmath.workdps(30):
        root, unit = mpmath.sqrt(2), mpmath.exp(-found)
        ratio = mpmath.quad(
            lambda x: unit * mpmath.npdf(x) * mpmath.erfc((40 - x) / root) / 2 * mpmath.erfc((x + 40) / root) / 2,
            [-12, -6, -3, 0, 3, 6, 12],
        )
    assert float(ratio) == pytest.approx(1.0, rel=2e-10)


def test_certain_and_impossible():
    terms, points = normal([0.0, 1.0], 1.0)
    everything = mask([0, 1], 2)
    assert log_separation(terms, points, everything, ~everything).item() == 0.0

    def apart(x):
        """Uniform on [0, 1] and on [2, 3]."""
        shifted = x.unsqueeze(-1) - torch.tensor([0.0, 2.0], dtype=torch.double)
        inside = (shifted > 0) & (shifted < 1)
        below, above = (t.clamp(1e-300, 1).log() for t in (shifted, 1 - shifted))
        below, above = below.masked_fill(shifted <= 0, IMPOSSIBLE), above.masked_fill(shifted >= 1, IMPOSSIBLE)
        return torch.zeros_like(shifted).masked_fill(~inside, IMPOSSIBLE), below, above

    ends = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.double)
    low = mask([0], 2)
    assert log_separation(apart, ends, low, ~low).item() == pytest.approx(0.0, abs=1e-12)
    assert log_separation(apart, ends, ~low, low).item() == -math.inf
    assert log_chain(apart, ends).item() == pytest.approx(0.0, abs=1e-12)


def test_gradients():
    loc = torch.tensor([0.3, -1.0, 0.5], dtype=torch.double, requires_grad=True)
    scale = torch.tensor([1.0, 0.2, 2.0], dtype=torch.double, requires_grad=True)
    low = mask([0, 2], 3)
    for function in (lambda *t: log_chain(*normal(*t)), lambda *t: log_separation(*normal(*t), low, ~low)):
        assert torch.autograd.gradcheck(function, (loc, scale))
        assert torch.autograd.gradgradcheck(function, (loc, scale))


def test_rough_integrands_are_refused():
    """It may not be a wrong number."""
    points = torch.tensor([0.0, 1.0], dtype=torch.double)
    with pytest.raises(RuntimeError, match=r"log_prob: the quadrature did not converge to a relative error of 1e-10"):
        integrate_line(
            lambda x: torch.zeros_like(x).unsqueeze(-1),
            lambda panels: panels.log_total((1 + (1e9 * panels.x).sin()).log()),
            points,
        )


def test_plackett_luce_adds_up_to_one():
    logits = torch.randn(4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    orders = torch.tensor(list(itertools.permutations(range(4))))
    assert log_plackett_luce(logits[orders]).exp().sum().item() == pytest.approx(1.0)
    first = log_plackett_luce(logits[orders]).exp()[orders[:, 0] == 2].sum()
    assert first.item() == pytest.approx(logits.softmax(-1)[2].item())
