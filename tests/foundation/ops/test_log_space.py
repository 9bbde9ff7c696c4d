import math

import torch

from pyro_structured.foundation.ops import log_space
from pyro_structured.foundation.ops.log_space import centre_tables


def test_every_table_loses_its_own_largest_entry():
    table = torch.tensor([[1.0, 3.0, -math.inf, 5.0, -2.0], [0.0, -math.inf, -math.inf, -math.inf, -math.inf]])
    found, levels = centre_tables(table, [0, 1, 1])
    assert found.tolist() == [[0.0, 0.0, -math.inf, 0.0, -7.0], [0.0] + 4 * [-math.inf]]
    assert levels.tolist() == [[1.0, 3.0, 5.0], [0.0, 0.0, 0.0]]
    assert centre_tables(table[:, :0], [])[1].tolist() == [[], []]


def test_it_is_a_constant_of_differentiation():
    table = torch.randn(5, requires_grad=True)
    (gradient,) = torch.autograd.grad(centre_tables(table, [4])[0][2], table)
    assert gradient.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_large_tables_are_treated_one_after_the_other(monkeypatch):
    table = torch.randn(2, 3, 9, dtype=torch.double, requires_grad=True)
    with torch.no_grad():
        table[0, 1, 2:5] = -math.inf
    expected = centre_tables(table, [1, 2, 3])
    monkeypatch.setattr(log_space, "LARGE_TABLE", 1)
    found = centre_tables(table, [1, 2, 3])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    (gradient,) = torch.autograd.grad(found[0][0, 0].sum(), table)
    assert torch.equal(gradient[0, 0], torch.ones(9).double()) and not gradient[1:].any()
