"""Functions that look at values, as operators of graphs: results, derivatives of all orders, and torch.vmap."""

import pytest
import torch

from pyro_structured.foundation.ops.graph_operator import GraphOperator


def branching(text, x, y):
    """Powers of x or y, whichever has the larger sum, and products."""
    assert text == "some text"
    rows = [a**3 if bool(a.sum() > b.sum()) else b**2 for a, b in zip(x, y, strict=True)]
    return torch.stack(rows), (x * y).sum(-1)


def shapes(text, x, y):
    return x.new_empty(x.shape), x.new_empty(x.shape[0])


def pull(text, inputs, results, cotangents):
    (x, y), (grad, grad_dots) = inputs, cotangents
    # The test has no other results.
    assert grad is None
    return grad_dots.unsqueeze(-1) * y, grad_dots.unsqueeze(-1) * x


OPERATOR = GraphOperator("branching", branching, shapes)
PULLED = GraphOperator("branching_with_pull", branching, shapes, pull)
SCHEMAS = {
    "results": lambda rows: (rows, "some text", ""),
    "results of other strides": lambda rows: ([*map(transposed, rows)], "some text", ""),
    "derivatives of other strides": lambda rows: (
        [*map(transposed, (*rows, *inputs(4, 3)[:1])), *inputs(4)[:1]],
        "some text",
        "2",
    ),
    "derivatives": lambda rows: ([*rows, *inputs(4, 3)[:1], *inputs(4)[:1]], "some text", "2"),
}


def transposed(rows):
    return rows.detach().T.contiguous().T.requires_grad_()


def inputs(*shape):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=generator, dtype=torch.double, requires_grad=True) for _ in range(2))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_of_all_orders_are_those_of_the_function(order):
    def derivative(function):
        arguments = inputs(4, 3)
        x, y = (tensor.clone() for tensor in arguments)
        total = sum(result.sin().sum() for result in function("some text", x, y))
        for _ in range(order):
            first, second = torch.autograd.grad(total, arguments, create_graph=True)
            total = (first * second).sin().sum()
        return torch.stack([first, second])

    torch.testing.assert_close(derivative(OPERATOR), derivative(branching), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_torch_finds_no_fault_in_the_registrations(schema):
    torch.library.opcheck(torch.ops.pyro_structured.branching.default, SCHEMAS[schema](list(inputs(4, 3))))


def test_given_cotangents_know_which_results_are_unused():
    x, y = inputs(4, 3)
    first, second = torch.autograd.grad(PULLED("some text", x, y)[1].sum(), (x, y))
    assert torch.equal(first, y) and torch.equal(second, x)


def test_rows_of_vmap_are_rows():
    x, y = (tensor.detach() for tensor in inputs(5, 4, 3))
    found = torch.vmap(lambda x, y: OPERATOR("some text", x, y))(x, y)
    shared = torch.vmap(lambda x: OPERATOR("some text", x, y[0]))(x)
    for index in range(5):
        for result, row in zip(found, branching("some text", x[index], y[index]), strict=True):
            assert torch.equal(result[index], row)
        for result, row in zip(shared, branching("some text", x[index], y[0]), strict=True):
            assert torch.equal(result[index], row)
