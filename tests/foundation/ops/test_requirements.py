"""Decisions under function transforms."""

import torch

from pyro_structured.foundation.ops.requirements import any_true


def test_sees_all_rows_of_vmap():
    seen = []

    def function(x):
        seen.append(any_true(x > 1))
        return x.sum()

    torch.vmap(torch.func.grad(function))(torch.tensor([[0.0], [2.0]]))
    torch.vmap(function)(torch.tensor([[0.0], [0.5]]))
    assert seen == [True, False]
