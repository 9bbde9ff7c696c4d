"""Draws of costs given their optimum: feasible, and distributed as costs that happen to have this optimum."""

import math

import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from torch.distributions import AffineTransform, ExpTransform, PowerTransform

from pyro_structured.optima.distributions.exact_optimum_costs import exact_costs
from pyro_structured.structures import Matching, Ranking, TopK

pytestmark = pytest.mark.statistical

NUM_DRAWS = 40_000
LOC = torch.tensor([0.3, -0.5, 0.9, 0.1], dtype=torch.double)
ONE = torch.ones((), dtype=torch.double)


def gumbel(scale=1.0):
    return dist.Gumbel(LOC, scale * ONE)


def minus(base):
    return dist.TransformedDistribution(base, [AffineTransform(0.0, -1.0)])


def exponential():
    return dist.Exponential(LOC.exp())


def joint_normal():
    scale = torch.tensor([[1.0, 0, 0, 0], [0.5, 1, 0, 0], [-0.3, 0.2, 0.7, 0], [0.4, 0.1, 0.2, 0.9]]).double()
    reshape = dist.transforms.ReshapeTransform((4,), (2, 2))
    return dist.TransformedDistribution(dist.MultivariateNormal(LOC, scale_tril=scale), [reshape])


ROW = torch.tensor([[True, True, False, True]])
CASES = {
    "ranking of gumbel costs": (gumbel(1.7).to_event(1), Ranking(4)),
    "ranking of gumbel rewards": (gumbel(0.6).to_event(1), Ranking(4, maximize=True)),
    "ranking of negated gumbel costs": (minus(gumbel()).to_event(1), Ranking(4)),
    "ranking of exponential costs": (exponential().to_event(1), Ranking(4)),
    "ranking of exponential rewards": (exponential().to_event(1), Ranking(4, maximize=True)),
    "ranking of weibull costs": (dist.Weibull(LOC.exp(), 1.5 * ONE).to_event(1), Ranking(4)),
    "ranking of inverse exponential costs": (
        dist.TransformedDistribution(exponential(), [PowerTransform(torch.tensor(-1.5).double())]).to_event(1),
        Ranking(4),
    ),
    "ranking of exponentials of gumbel costs": (
        dist.TransformedDistribution(gumbel(), [AffineTransform(1.0, -0.5), ExpTransform()]).to_event(1),
        Ranking(4),
    ),
    "choice of exponential costs": (exponential().to_event(1), TopK(4, 1)),
    "choice of gumbel rewards": (gumbel().to_event(1), TopK(4, 1, maximize=True)),
    "a row with a forbidden entry": (
        dist.Exponential(LOC.exp().unsqueeze(0)).to_event(2),
        Matching(1, 4, allowed=ROW),
    ),
    "2 x 2 normal matching": (dist.Normal(LOC.reshape(2, 2), 0.8 * ONE).to_event(2), Matching(2)),
    "2 x 2 joint normal matching": (joint_normal(), Matching(2, maximize=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_against_costs_that_have_the_optimum(name):
    base, problem = CASES[name]
    costs = base.sample((NUM_DRAWS,))
    values = problem.solve(costs)
    # An improbable value, and a probable one.
    kinds, counts = values.unique(dim=0, return_counts=True)
    for index in (counts.argmax(), torch.where(counts > 500, counts, NUM_DRAWS).argmin()):
        value = kinds[index]
        expected = costs[(values == value).all(-1)].flatten(1).double()
        drawn = exact_costs(base, problem)(value.expand(len(expected), -1))
        assert drawn.dtype == torch.double and problem.contains(drawn, value.expand(len(expected), -1)).all()
        drawn = drawn.flatten(1)
        # Entries, and sums and differences of them.
        for weights in torch.cat([torch.eye(4), torch.ones(1, 4), torch.eye(4) - torch.eye(4).roll(1, 0)]).double():
            first, second = (side @ weights for side in (expected, drawn))
            assert scipy.stats.ks_2samp(first.numpy(), second.numpy()).pvalue > 1e-6, (name, weights)


def test_batches():
    loc = torch.randn(3, 1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    for base, problem in (
        (dist.Gumbel(loc, 1.0).to_event(1), Ranking(5)),
        (dist.Exponential(loc.exp()).to_event(1), TopK(5, 1)),
    ):
        value = problem.solve(base.expand((3, 2)).sample((4,)))
        costs = exact_costs(base, problem)(value)
        assert costs.shape == (4, 3, 2, 5)
        assert problem.contains(costs, value).all()
        assert exact_costs(base, problem)(value[:0]).shape == (0, 3, 2, 5)
    base, problem = dist.Normal(torch.zeros(3, 1, 2, 2), 1.0).to_event(2), Matching(2)
    value = problem.solve(base.expand((3, 2)).sample((4,)))
    assert problem.contains(exact_costs(base, problem)(value), value).all()


def test_extreme_rates():
    """Orders of probability exp(-5000), whose times underflow."""
    logits = torch.linspace(-2500.0, 2500.0, 6, dtype=torch.double)
    base, problem = dist.Gumbel(-logits, 1.0).to_event(1), Ranking(6)
    value = torch.arange(6)
    costs = exact_costs(base, problem)(value.expand(100, -1))
    assert costs.isfinite().all() and problem.contains(costs, value.expand(100, -1)).all()


def test_other_costs_have_none():
    one, two = torch.ones(4), torch.tensor([1.0, 2.0, 1.0, 1.0])
    assert exact_costs(dist.Normal(one, 1.0).to_event(1), Ranking(4)) is None
    assert exact_costs(dist.Gumbel(one, two).to_event(1), Ranking(4)) is None
    assert exact_costs(dist.Exponential(one).to_event(1), TopK(4, 2)) is None
    # The item that is chosen waits longest.
    assert exact_costs(dist.Exponential(one).to_event(1), TopK(4, 1, maximize=True)) is None
    assert exact_costs(dist.Exponential(torch.ones(2, 2)).to_event(2), Matching(2)) is None
    certain = Matching(2, allowed=torch.tensor([[True, False], [True, True]]))
    assert exact_costs(dist.Normal(torch.zeros(2, 2), 1.0).to_event(2), certain) is None
    assert math.isfinite(exact_costs(dist.Exponential(one).to_event(1), Ranking(4))(torch.arange(4)).sum())
