"""Ties, torch's own function, and arguments of top-k sets."""

import pytest
import torch

from pyro_structured.structures import TopK


def test_solutions_are_those_of_torch():
    costs = torch.randn(50, 30)
    for maximize in (False, True):
        expected = torch.zeros(50, 30).scatter(-1, costs.topk(7, largest=maximize).indices, 1.0)
        value = TopK(30, 7, maximize).solve(costs)
        assert value.dtype == torch.float32 and torch.equal(value, expected)


def test_first_items_are_chosen_of_those_that_cost_the_same():
    costs = torch.tensor([1.0, 0.0, 1.0, 1.0])
    assert TopK(4, 3).solve(costs).tolist() == TopK(4, 3, maximize=True).solve(-costs).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("k", [-1, 4, 1.0, True, "2", torch.tensor([1, 4]), torch.tensor([1.0])])
def test_errors(k):
    with pytest.raises(ValueError, match="k: expected integers from 0 to the number of items, 3, got"):
        TopK(3, k)
    with pytest.raises(ValueError, match="num_items: expected an integer of at least 1, got 0"):
        TopK(0, 0)
