"""Integrals of rows that differ in what they need; derivatives where densities jump."""

import pytest
import torch

from pyro_structured.optima.ops import line_probability
from pyro_structured.optima.ops.line_probability import LineRule, LineVariables, log_line_probability
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.order_probability import log_chain, log_separation

LOC = torch.tensor([[0.0, 1.0, 0.3], [900.0, 0.0, 300.0], [0.0, 0.1, 1e5]], dtype=torch.double)
SCALE = torch.tensor([[1.0, 2.0, 0.1], [1.0, 1.0, 3.0], [1e-3, 1.0, 1e3]], dtype=torch.double)
PLACES = torch.linspace(-40, 40, 41, dtype=torch.double).reshape(-1, 1, 1)
LOW = torch.tensor([True, False, False]).expand(3, 3)


def logistic(loc, scale):
    def terms(x, loc, scale):
        z = (x - loc) / scale
        below, above = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
        return below + above - scale.log(), below, above

    return LineVariables(terms, lambda loc, scale: loc + scale * PLACES, lambda loc, scale: (), (loc, scale))


def uniform(low, width):
    def terms(x, low, width):
        share = (x - low) / width
        below, above = share <= 0, share >= 1
        share = share.masked_fill(below | above, 0.5)
        return (
            (-width.log()).expand_as(share).masked_fill(below | above, IMPOSSIBLE),
            share.log().masked_fill(below, IMPOSSIBLE).masked_fill(above, 0.0),
            (-share).log1p().masked_fill(above, IMPOSSIBLE).masked_fill(below, 0.0),
        )

    ends = lambda low, width: (low, low + width)  # noqa: E731
    return LineVariables(terms, lambda *t: torch.stack(ends(*t)), ends, (low, width))


FUNCTIONS = {
    "chain": lambda loc, scale: log_chain(logistic(loc, scale)),
    "separation": lambda loc, scale: log_separation(logistic(loc, scale), LOW[: len(loc)], ~LOW[: len(loc)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_do_not_depend_on_each_other(name, monkeypatch):
    """All at once, one after the other, under vmap, and with tensors of a few numbers."""
    function, leaves = FUNCTIONS[name], [t.clone().requires_grad_() for t in (LOC, SCALE)]
    found = function(*leaves)
    slopes = torch.autograd.grad(found.sum(), leaves)
    alone = torch.cat([function(*(t[i : i + 1] for t in leaves)) for i in range(3)])
    torch.testing.assert_close(alone, found, rtol=1e-13, atol=1e-10)
    mapped = torch.vmap(lambda *t: function(*(each.unsqueeze(0) for each in t)))(*leaves).squeeze(-1)
    torch.testing.assert_close(mapped, found, rtol=1e-13, atol=1e-10)
    monkeypatch.setattr(line_probability, "MEMORY", 100)
    torch.testing.assert_close(function(*leaves), found, rtol=1e-13, atol=1e-10)
    for each, slope in zip(torch.autograd.grad(function(*leaves).sum(), leaves), slopes, strict=True):
        torch.testing.assert_close(each, slope, rtol=1e-9, atol=1e-9)


def test_derivatives_where_uniform_densities_jump():
    """Of three equal ones, each is the least with probability 1/3, whose derivative is known."""
    low = torch.zeros(1, 3, dtype=torch.double, requires_grad=True)
    width = torch.full((1, 3), 2.0, dtype=torch.double)
    found = log_separation(uniform(low, width), LOW[:1], ~LOW[:1])
    (slope,) = torch.autograd.grad(found.sum(), low, create_graph=True)
    # P changes by the integral of each other's density, times its own, times the tail of the third: 1/4, and three
    # times that in the logarithm.
    expected = torch.tensor([[-1.5, 0.75, 0.75]], dtype=torch.double)
    torch.testing.assert_close(slope.detach(), expected)
    with pytest.raises(RuntimeError, match=r"log_prob: second derivatives .* coincide, and do not exist in general"):
        torch.autograd.grad(slope[0, 0], low)


def test_second_derivatives_where_densities_jump():
    """Ends that coincide, but do not move, do not matter."""
    low = torch.tensor([[0.0, 0.31, 0.7]], dtype=torch.double, requires_grad=True)
    fixed = torch.zeros(1, 3, dtype=torch.double)
    width = torch.tensor([[1.1, 2.0, 1.5]], dtype=torch.double, requires_grad=True)
    for function in (log_chain, lambda v: log_separation(v, LOW[:1], ~LOW[:1])):
        assert torch.autograd.gradgradcheck(lambda *t, f=function: f(uniform(*t)), (low, width))
        assert torch.autograd.gradgradcheck(lambda w, f=function: f(uniform(fixed, w)), (width,))


def test_rough_integrands_are_refused():
    """It may not be a wrong number."""
    rule = LineRule(
        lambda terms: torch.zeros_like(terms[0]),
        lambda panels, terms: panels.log_total(terms[0].squeeze(-1)).unsqueeze(-1),
        lambda panels, terms: terms[:2],
    )
    ends = torch.tensor([0.0, 1.0], dtype=torch.double).reshape(-1, 1, 1)
    variables = LineVariables(
        lambda x, loc: ((1 + (1e9 * (x - loc)).sin()).log(),) * 3,
        lambda loc: loc + ends,
        lambda loc: (),
        (torch.zeros(1, 1, dtype=torch.double),),
    )
    with pytest.raises(RuntimeError, match=r"log_prob: the quadrature did not converge to a relative error of 1e-10"):
        log_line_probability(rule, variables)
