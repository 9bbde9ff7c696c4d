"""Bounds of values, for which the supports that torch declares are too wide."""

import math

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import AffineTransform, ComposeTransform, PowerTransform, ReshapeTransform, SigmoidTransform
from torch.distributions.transforms import CatTransform, ExpTransform, StickBreakingTransform

from pyro_structured.distributions import TruncatedNormal
from pyro_structured.foundation.distributions.support_bounds import support_bounds

EXPONENTIAL = dist.Exponential(torch.ones(3))
CASES = [
    (dist.Normal(torch.zeros(3), 1.0).to_event(1), -math.inf, math.inf),
    (dist.Gumbel(torch.zeros(3), 1.0), -math.inf, math.inf),
    (dist.Gamma(torch.ones(3), 1.0), 0, math.inf),
    (TruncatedNormal(torch.zeros(3), 1.0, -1.0, 2.0).to_event(1), -1, 2),
    (dist.TransformedDistribution(EXPONENTIAL, [AffineTransform(0.0, -1.0)]).to_event(1), -math.inf, 0),
    (dist.TransformedDistribution(EXPONENTIAL, [AffineTransform(1.5, 2.0)]), 1.5, math.inf),
    (dist.TransformedDistribution(EXPONENTIAL, [ExpTransform(), PowerTransform(-1.0)]), 0, 1),
    (dist.TransformedDistribution(dist.LogNormal(torch.zeros(3), 1.0), [AffineTransform(1.0, 1.0)]), 1, math.inf),
    (dist.TransformedDistribution(dist.Uniform(0.0, torch.ones(3)), [SigmoidTransform().inv]), -math.inf, math.inf),
    (dist.TransformedDistribution(dist.Uniform(0.5, torch.ones(3)), [SigmoidTransform().inv]), 0, math.inf),
    (
        dist.TransformedDistribution(EXPONENTIAL.to_event(1), [ReshapeTransform((3,), (3, 1)), ExpTransform()]),
        1,
        math.inf,
    ),
    (
        dist.TransformedDistribution(dist.Uniform(1.0, torch.full((3,), 2.0)), [ComposeTransform([ExpTransform()])]),
        math.e,
        math.e**2,
    ),
    (dist.TransformedDistribution(EXPONENTIAL, [StickBreakingTransform()]), -math.inf, math.inf),
    (
        dist.TransformedDistribution(EXPONENTIAL.to_event(1), [CatTransform([ExpTransform()], -1, [3])]),
        -math.inf,
        math.inf,
    ),
    (
        dist.MixtureSameFamily(
            dist.Categorical(torch.ones(2)),
            dist.Uniform(torch.tensor([[0.0], [2.0]]), torch.ones(2, 3) * 5).to_event(1),
        ),
        0,
        5,
    ),
]


@pytest.mark.parametrize("base, low, high", CASES)
def test_bounds(base, low, high):
    value = base.sample((200,)).double()
    for found, expected in zip(support_bounds(base), (low, high), strict=True):
        torch.testing.assert_close(found, torch.full_like(found, expected))
        assert found.expand(value.shape).dtype == torch.double
    assert ((value >= low - 1e-6) & (value <= high + 1e-6)).all()


def test_signs_may_differ():
    base = dist.TransformedDistribution(EXPONENTIAL, [AffineTransform(1.0, torch.tensor([1.0, -1.0, 2.0]))])
    low, high = support_bounds(base)
    assert low.tolist() == [1, -math.inf, 1] and high.tolist() == [math.inf, 1, math.inf]
