"""Integrals as means of ratios of densities, against closed forms; and draws against the density they come with."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_1samp

from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.piecewise_exponential import PiecewiseExponential, piecewise_exponential

pytestmark = pytest.mark.statistical

NUM = 4000
CASES = {
    "normal": (lambda x: -(x**2) / 2, -30.0, 30.0, math.log(2 * math.pi) / 2, 0.0),
    "narrow": (lambda x: -(((x - 7.3) / 1e-6) ** 2) / 2, -1e3, 1e3, math.log(2 * math.pi) / 2 - 6 * math.log(10), 7.3),
    "end of a normal": (lambda x: -(x**2) / 2, 5.0, 40.0, math.log(math.sqrt(2 * math.pi) * 2.866515719e-7), 5.1865),
    "exponential": (lambda x: -3 * x, 0.0, 100.0, -math.log(3), 1 / 3),
    "rising": (lambda x: 3 * x, -100.0, 0.0, -math.log(3), -1 / 3),
    "constant": (lambda x: torch.zeros_like(x) - 700, -2.0, 3.0, math.log(5) - 700, 0.5),
    "gumbel": (lambda x: -x - (-x).exp(), -20.0, 60.0, 0.0, 0.5772157),
    # Zero at an end.
    "gamma": (lambda x: 3 * x.clamp(min=1e-300).log() - x, 0.0, 100.0, math.log(6), 4.0),
    "box in a wide bracket": (
        lambda x: torch.zeros_like(x).masked_fill((x < -1) | (x > 2), IMPOSSIBLE), -4.0, 4.0, math.log(3), 0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_integrals_and_means(name):
    log_density, low, high, log_total, mean = CASES[name]
    torch.manual_seed(0)
    ends = (torch.full((NUM,), end, dtype=torch.double) for end in (low, high))
    density = piecewise_exponential(log_density, *ends)
    x, log_q = density.draw(*density.ends)
    assert ((x >= low) & (x <= high)).all()
    ratio = (log_density(x) - log_q - log_total).exp()
    assert ratio.std() < (2 if "box" in name else 0.5)
    for found, expected in ((ratio, 1.0), (ratio * x, mean)):
        assert abs(found.mean().item() - expected) < 6 * found.std().item() / math.sqrt(NUM) + 1e-9


def test_exponential_densities_are_met_exactly():
    torch.manual_seed(0)
    low = torch.zeros(NUM, dtype=torch.double)
    density = piecewise_exponential(lambda x: -x, low, low + 2.0)
    x, log_q = density.draw(*density.ends)
    torch.testing.assert_close(log_q, -x - math.log(-math.expm1(-2.0)))
    assert ks_1samp(x.numpy(), lambda x: np.expm1(-x) / math.expm1(-2.0)).pvalue > 2e-9


def test_rows_are_independent():
    """Each row has its own density, bounds and draw."""
    torch.manual_seed(0)
    loc = torch.tensor([[-5.0, 0.0, 50.0]], dtype=torch.double).expand(NUM, 3)
    density = piecewise_exponential(lambda x: -((x - loc) ** 2) / 2, loc - 20, loc + 30)
    x, log_q = density.draw(*density.ends)
    ratio = (-((x - loc) ** 2) / 2 - log_q).exp()
    torch.testing.assert_close(ratio.mean(0), torch.full((3,), math.sqrt(2 * math.pi)).double(), rtol=0.02, atol=0)
    assert x.T.corrcoef().fill_diagonal_(0).abs().max() < 6 / math.sqrt(NUM)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_reflections(name, is_compiled, hide_numba):
    """They exchange the masses on both sides, lead back, and come with logarithms of the density."""
    if not is_compiled:
        hide_numba()
    log_density, low, high, _, _ = CASES[name]
    torch.manual_seed(0)
    density = piecewise_exponential(log_density, *(torch.full((NUM,), end, dtype=torch.double) for end in (low, high)))
    first, last = density.ends
    shares = 0.3 * torch.rand(2, NUM, dtype=torch.double)
    low, high = first + shares[0] * (last - first), last - shares[1] * (last - first)
    for ends in ((first, last), (low, high)):
        # The bounds lead to each other, but for what has no mass.
        total = density.log_mass(*(end.unsqueeze(-1) for end in ends))
        for one, other in (ends, ends[::-1]):
            edge, _ = density.reflect(one, *ends)
            assert ((edge >= ends[0]) & (edge <= ends[1])).all()
            between = torch.stack([edge, other], -1).sort(-1).values
            assert ((density.log_mass(between[:, :1], between[:, 1:]) - total).exp() < 1e-12).all()
        x, log_q = density.draw(*ends)
        there, log_there = density.reflect(x, *ends)
        assert ((there >= ends[0]) & (there <= ends[1])).all()
        below, above, total = (
            density.log_mass(*(end.unsqueeze(-1) for end in interval)).squeeze(-1)
            for interval in ((ends[0], there), (x, ends[1]), ends)
        )
        torch.testing.assert_close((below - total).exp(), (above - total).exp(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(log_there, density.log_density(there, *ends), rtol=1e-9, atol=1e-9)
        back, log_back = density.reflect(there, *ends)
        is_inside = torch.minimum(log_q, log_there) > log_q.max() - 15
        torch.testing.assert_close(log_back[is_inside], log_q[is_inside], rtol=1e-5, atol=1e-5)
        counts = (back - x).abs() < 1e-6 * (ends[1] - ends[0])
        assert counts[is_inside].all()


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([(), (1,), (3,), (2, 2)]),
    st.integers(2, 40),
    st.sampled_from([0.0, 1.0, 1e3]),
    st.integers(0, 2**31),
)
def test_compiled_loops_give_the_same(batch, count, steepness, seed):
    """Coinciding places, densities that are zero or next to it, ends without bound and empty intervals included."""
    pytest.importorskip("numba")
    generator = torch.Generator().manual_seed(seed)
    places = torch.randn(*batch, count, generator=generator, dtype=torch.double).sort(-1).values.mul(4).round() / 4
    heights = steepness * torch.randn(*batch, count, generator=generator, dtype=torch.double)
    heights[..., 1:][torch.rand(*batch, count - 1, generator=generator) < 0.1] = -torch.inf
    low, width = 3 * torch.randn(2, *batch, 7, generator=generator, dtype=torch.double)
    low[..., 0] = -torch.inf
    high = low + width.abs()
    high[..., 1] = torch.inf
    high[..., 2] = low[..., 2]
    slow, fast = PiecewiseExponential(places, heights), PiecewiseExponential.of(places, heights)
    assert type(fast) is not PiecewiseExponential
    assert torch.equal(torch.stack(slow.ends), torch.stack(fast.ends))
    tops = heights.amax(-1, keepdim=True)
    for expected, found in (
        (slow.log_mass(low, high), fast.log_mass(low, high)),
        (slow.log_height(high), fast.log_height(high)),
    ):
        # Relative to the largest density, below which hardly anything counts.
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-9 * max(1.0, steepness))
        assert (found <= tops + 10).all()
    ends = low[..., 1], high[..., 1]
    drawn = []
    x = torch.maximum(low[..., 3], ends[0]).minimum(ends[1])
    for density in (slow, fast):
        torch.manual_seed(seed)
        place, _ = density.reflect(x, *ends)
        # Places on both sides of a gap without mass are the same reflection.
        mass = slow.log_mass(ends[0].unsqueeze(-1), place.unsqueeze(-1)).squeeze(-1) - tops.squeeze(-1)
        drawn.append((*density.draw(*ends), mass.exp()))
    for expected, found in zip(*drawn, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * max(1.0, steepness), equal_nan=True)


def test_compiled_loops_are_for_plain_tensors(hide_numba):
    places = torch.linspace(0, 1, 5)
    assert type(PiecewiseExponential.of(places, places)) is PiecewiseExponential
    places = places.double()
    assert type(PiecewiseExponential.of(places, places.clone().requires_grad_())) is PiecewiseExponential
    hide_numba()
    assert type(PiecewiseExponential.of(places, places)) is PiecewiseExponential
