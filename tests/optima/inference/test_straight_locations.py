"""The part of a line through the parameters on which locations of costs are straight."""

from types import SimpleNamespace

import pyro.distributions as dist
import pytest
import torch

from pyro_structured.optima.inference.parameter_line import StraightLocations

SLOPE = torch.tensor([1.0, -3.0, 0.0], dtype=torch.double)


def straight_locations(dtype):
    """From 2 to 6 on a line on which locations are ``SLOPE`` times the distance, seen by a model with some type."""

    def at(distance):
        return SimpleNamespace(base=lambda name: dist.Normal(distance * SLOPE, 1.0).to_event(1))

    line = SimpleNamespace(origin={"costs": torch.zeros(3)}, at=at)
    return StraightLocations(SimpleNamespace(dtypes={"costs": dtype}), line, 2.0, 6.0)


@pytest.mark.parametrize("dtype, rounding", [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_bends_that_rounding_explains(dtype, rounding):
    """Relative to the largest change for one unit of distance, in the precision of the model."""
    inside = straight_locations(dtype)
    torch.testing.assert_close(inside.changes["costs"], SLOPE, rtol=0, atol=1e-15)
    for bend, is_straight in [(0.0, True), (0.9 * 3 * rounding, True), (1.1 * 3 * rounding, False)]:
        bent = dist.Normal(5 * SLOPE + torch.tensor([0.0, 0.0, bend]), 1.0).to_event(1)
        assert inside.contains(5.0, lambda name, bent=bent: bent) == is_straight


@pytest.mark.parametrize("dtype, rounding", [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_scales_stay(dtype, rounding):
    inside = straight_locations(dtype)
    for factor, is_same in [(1 + 0.9 * rounding, True), (1 + 1.1 * rounding, False)]:
        scaled = dist.Normal(5 * SLOPE, torch.tensor(factor, dtype=torch.double)).to_event(1)
        assert inside.contains(5.0, lambda name, scaled=scaled: scaled) == is_same
