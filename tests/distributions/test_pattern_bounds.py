"""Bounds of log Z of fields under patterns, against enumeration."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import PatternCRF
from pyro_structured.distributions import pattern_bounds as module
from pyro_structured.ops.labelings import all_labelings
from pyro_structured.structures import Grid

SHAPES = [(1, 1), (1, 4), (2, 2), (3, 2), (2, 4), (3, 3)]


@st.composite
def fields(draw, temperatures=(0, 0.5, 1, 1.7, 2, 3), schemes=("sum", "min", "table"), rows=12):
    """A batch of fields, with weights of either sign, clamps and impossible patterns."""
    shape, number = draw(st.sampled_from(SHAPES)), draw(st.integers(0, 4))
    paired, infinite = draw(st.booleans()), draw(st.booleans())
    scheme = draw(st.sampled_from(schemes)) if number else "sum"
    temperature, scale = draw(st.sampled_from(temperatures)), draw(st.sampled_from([0.3, 1.0, 3.0, 20.0]))
    sign = draw(st.sampled_from([None, 1.0, -1.0]))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    grid = Grid(*shape)

    def random(*size):
        return scale * torch.randn(rows, *size, dtype=torch.double)

    def some(size, share):
        return torch.rand(rows, *size) < share

    unary = random(*shape)
    unary = unary.masked_fill(some(shape, 0.1), -torch.inf).masked_fill(some(shape, 0.05), torch.inf)
    penalties, weights = random(grid.num_edges), random(number, *shape)
    if sign is not None:
        penalties, weights = penalties.abs(), sign * weights.abs()
    if infinite:
        penalties = penalties.masked_fill(some((grid.num_edges,), 0.05), torch.inf)
    biases = random(number).masked_fill(some((number,), 0.1), -torch.inf)
    table = random(number + 1).masked_fill(some((number + 1,), 0.2), -torch.inf)
    composition = table if scheme == "table" else scheme
    return PatternCRF(unary, penalties if paired else None, weights, biases, grid, composition, temperature)


def log_partition(d):
    """By enumeration, for each element of the batch."""
    y = all_labelings(d.event_shape.numel(), torch.zeros(()).double())
    return d.unnormalized_log_prob(y.reshape(-1, *(1,) * len(d.batch_shape), *d.event_shape)).logsumexp(0)


def inside(low, exact, high):
    """Up to rounding."""
    assert (low[exact == -torch.inf] == -torch.inf).all() and not high.isnan().any()
    low, exact, high = (part[exact > -torch.inf] for part in (low, exact, high))
    slack = 1e-9 * (1 + exact.abs())
    assert (low <= exact + slack).all() and (exact <= high + slack).all()


@settings(max_examples=100)
@given(fields(), st.sampled_from([2, 3, 8]), st.sampled_from([2, 6, 30, 2**19]), st.booleans())
def test_bounds(case, width, states, observe):
    """All strips and all numbers of states of units; evidence."""
    d = case
    if observe:
        value = (torch.rand(12, *d.event_shape) < 0.5).double()
        d = d.condition(value, torch.rand(12, *d.event_shape) < 0.3)
    exact = log_partition(d)
    possible = (exact > -torch.inf).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WHOLE_SIDE", width - 1)
        patch.setattr(module, "STRIP_WIDTH", width)
        patch.setattr(module, "NUMBERS_IN_STEP", states)
        try:
            low, high = d.log_partition_bounds()
        except NotImplementedError as error:
            assert "infinite" in str(error) and (d.pairwise == torch.inf).any()
            return
        except ValueError:
            assert not possible
            return
    inside(low, exact, high)
