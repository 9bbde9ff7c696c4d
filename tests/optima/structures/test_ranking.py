"""Feasible costs, ties in long rankings, and arguments of rankings."""

import pytest
import torch

from pyro_structured.structures import Ranking


@pytest.mark.parametrize("maximize", [False, True])
def test_feasible_costs_are_equally_spaced(maximize):
    value = torch.randperm(6)
    point = Ranking(6, maximize).feasible_point(value, -1.0, 4.0)
    assert point[value].tolist() == pytest.approx(list(range(4, -2, -1)) if maximize else list(range(-1, 5)))


def test_feasible_costs_keep_to_bounds_that_leave_little_room():
    value = torch.tensor([0, 1, 2])
    low, high = torch.tensor([0.5, 0.0, 0.0]), torch.tensor([2.0, 0.5, 3.0])
    assert Ranking(3).feasible_point(value, low, high).tolist() == [0.5, 0.5, 3.0]
    # The second cannot cost as much as the first.
    point = Ranking(3).feasible_point(value, low + torch.tensor([0.1, 0.0, 0.0]), high)
    assert not Ranking(3).contains(point, value)


def test_incidence_is_the_number_of_items_behind():
    assert Ranking(4).incidence(torch.tensor([[2, 0, 3, 1]])).tolist() == [[2, 0, 3, 1]]
    assert Ranking(4).incidence(torch.tensor([1, 2, 3, 0])).tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize("cost", [0.1, 1 / 3, 1e8 + 0.1])
def test_all_orders_of_equal_costs_are_optimal(cost):
    orders = torch.rand(300, 500).argsort(-1)
    assert Ranking(500).contains(torch.full((500,), cost, dtype=torch.double), orders).all()


def test_errors():
    with pytest.raises(ValueError, match="num_items: expected an integer of at least 1, got 2.5"):
        Ranking(2.5)
