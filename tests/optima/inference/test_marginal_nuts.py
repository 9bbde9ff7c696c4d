"""Costs that are summed out: parameters against numerical integrals, costs against their law given the parameters."""

import pickle

import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size
from pyro.optim import Adam

from pyro_structured.distributions import Argmin, KSubset, RandOM
from pyro_structured.inference import MCEM, ConstrainedSlice, Gibbs, Interweave
from pyro_structured.structures import Matching, Ranking

pytestmark = pytest.mark.statistical

NUM_ROWS = 8


def rates(slope):
    return (slope * torch.linspace(-1.0, 1.0, 4)).exp()


def preferences(value):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", NUM_ROWS):
        pyro.sample("y", RandOM(dist.Exponential(rates(slope)).to_event(1), Ranking(4)), obs=value)


@pytest.mark.slow
def test_slope_and_costs():
    pyro.set_rng_seed(0)
    problem = Ranking(4)
    value = problem.solve(dist.Exponential(rates(torch.tensor(0.7))).sample((NUM_ROWS,)))
    kernel = ConstrainedSlice(preferences)
    mcmc = MCMC(kernel, num_samples=400, warmup_steps=100, disable_progbar=True)
    mcmc.run(value)
    assert kernel.summed_sites == pickle.loads(pickle.dumps(kernel)).summed_sites == ["y"]
    samples = mcmc.get_samples()
    slopes, costs = samples["slope"].double(), samples["y_costs"].double()
    assert costs.shape == (400, NUM_ROWS, 4) and problem.contains(costs, value).all()
    grid = torch.linspace(-5.0, 5.0, 2001).double()
    log_posterior = dist.Normal(0.0, 1.0).log_prob(grid)
    for place, slope in enumerate(grid):
        log_posterior[place] += RandOM(dist.Exponential(rates(slope)).to_event(1), problem).log_prob(value).sum()
    weights = log_posterior.softmax(0)
    mean = (weights * grid).sum()
    deviation = (weights * (grid - mean) ** 2).sum().sqrt()
    number = float(effective_sample_size(slopes.unsqueeze(0)))
    assert number > 40
    assert abs(slopes.mean() - mean) < 5 * deviation / number**0.5
    assert abs(slopes.std() / deviation - 1) < 5 / number**0.5
    # Given the slope, the least cost of a row is exponential, whatever the slope was before.
    shares = -torch.expm1(-costs.amin(-1) * rates(slopes.unsqueeze(-1)).sum(-1, keepdim=True))
    assert scipy.stats.kstest(shares.flatten().numpy(), "uniform").pvalue > 1e-6


def two_kinds(order, pairs):
    """A site whose costs are summed out, beside one of matchings, whose costs are not, and a discrete variable."""
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    kind = pyro.sample("kind", dist.Bernoulli(0.5))
    base = dist.Gumbel(scale * torch.arange(3.0) * (1 + kind), 1.0)
    pyro.sample("order", RandOM(base.to_event(1), Ranking(3)), obs=order)
    pyro.sample("pairs", RandOM(dist.Normal(scale * torch.eye(3), 1.0).to_event(2), Matching(3)), obs=pairs)


@pytest.mark.slow
def test_beside_costs_that_stay():
    """The same as from the composition that keeps all costs, by the means of independent chains."""
    pyro.set_rng_seed(0)
    data = torch.tensor([0, 2, 1]), torch.tensor([1, 0, 2])
    kernel = ConstrainedSlice(two_kinds)
    mcmc = MCMC(kernel, num_samples=90, warmup_steps=30, disable_progbar=True)
    mcmc.run(*data)
    assert kernel.summed_sites == ["order"]
    samples = mcmc.get_samples()
    assert set(samples) == {"scale", "kind", "order_costs", "pairs_costs"}
    assert Ranking(3).contains(samples["order_costs"], data[0]).all()
    assert Matching(3).contains(samples["pairs_costs"], data[1]).all()
    # Importance sampling from the prior, with the probability of the order in closed form.
    scale = dist.LogNormal(0.0, 0.5).sample((200_000,))
    kind = dist.Bernoulli(0.5).sample((200_000,))
    costs = dist.Normal(scale[:, None, None] * torch.eye(3), 1.0).sample()
    hits = (Matching(3).solve(costs) == data[1]).all(-1)
    scale, kind = scale[hits], kind[hits]
    base = dist.Gumbel(scale.unsqueeze(-1) * torch.arange(3.0) * (1 + kind.unsqueeze(-1)), 1.0)
    weights = RandOM(base.to_event(1), Ranking(3)).log_prob(data[0]).softmax(0)
    for name, expected in (("scale", scale), ("kind", kind)):
        found = samples[name].double()
        mean = (weights * expected).sum()
        deviation = (weights * (expected - mean) ** 2).sum().sqrt()
        number = float(effective_sample_size(found.unsqueeze(0)))
        # Of samples that take turns on both sides of the mean, estimates may be negative.
        number = min(number, 500) if number > 0 else len(found)
        assert abs(found.mean() - mean) < 5 * deviation / number**0.5, name


def two_tastes(value):
    taste = pyro.sample("taste", dist.Bernoulli(0.5))
    with pyro.plate("rows", len(value)):
        choice = pyro.sample("choice", KSubset(torch.zeros(3), 1))
        rewards = 0.2 * taste * torch.arange(4.0) + 2 * choice @ torch.eye(3, 4)
        pyro.sample("y", RandOM(dist.Gumbel(rewards, 1.0).to_event(1), Ranking(4, maximize=True)), obs=value)


@pytest.mark.slow
def test_discrete_sites_do_not_see_the_costs():
    """Given the costs of 60 rows, the common one would hardly ever change."""
    pyro.set_rng_seed(0)
    base = dist.Gumbel(torch.tensor([0.7, 0.9, 0.9, 0.6]), 1.0).to_event(1)
    value = RandOM(base, Ranking(4, maximize=True)).sample((60,))
    kernel = ConstrainedSlice(two_tastes)
    mcmc = MCMC(kernel, num_samples=500, warmup_steps=20, disable_progbar=True)
    mcmc.run(value)
    assert kernel.summed_sites == ["y"]
    samples = mcmc.get_samples()
    assert Ranking(4, maximize=True).contains(samples["y_costs"], value).all()
    rewards = 0.2 * torch.arange(2.0)[:, None, None, None] * torch.arange(4.0) + 2 * torch.eye(3, 4)[:, None]
    rows = RandOM(dist.Gumbel(rewards, 1.0).to_event(1), Ranking(4, maximize=True)).log_prob(value)
    shares = rows.softmax(1)
    posterior = rows.logsumexp(1).sum(-1).softmax(0)
    tastes = samples["taste"].double()
    number = float(effective_sample_size(tastes.unsqueeze(0)))
    assert number > 50
    assert abs(tastes.mean() - posterior[1]) < 5 * (posterior.prod() / min(number, 500)) ** 0.5
    choices = samples["choice"].double().mean(0)
    expected = (posterior[:, None, None] * shares).sum(0).T
    assert (choices - expected).abs().max() < 0.2


@pytest.mark.slow
def test_costs_that_are_parameters_of_summed_ones():
    """They are drawn given new costs, not those that were summed out of what came before."""
    pyro.set_rng_seed(0)
    problem, first = Ranking(3), torch.tensor([0, 1, 2])
    seen = torch.tensor([[0, 1, 2]] * 6 + [[1, 2, 0], [2, 1, 0]])

    def base(w, mu):
        return dist.Exponential((3 * (w[..., :1] - mu) * torch.tensor([1.0, 0.0, 0.0])).exp()).to_event(1)

    def model(seen):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(mu * torch.tensor([1.0, 0.0, -1.0]), 1.0).to_event(1))
        pyro.sample("first", Argmin(w, problem), obs=first)
        with pyro.plate("rows", len(seen)):
            pyro.sample("y", RandOM(base(w.expand(len(seen), 3), mu), problem), obs=seen)

    kernel = ConstrainedSlice(model)
    blocks = [block for block in kernel.composition((seen,), {}) if not isinstance(block[0], Interweave)]
    assert kernel.summed_sites == ["y"]
    mcmc = MCMC(Gibbs(blocks), num_samples=900, warmup_steps=80, disable_progbar=True)
    mcmc.run(seen)
    mu = torch.randn(400_000)
    w = mu[:, None] * torch.tensor([1.0, 0.0, -1.0]) + torch.randn(len(mu), 3)
    kept = problem.contains(w, first)
    mu, w = mu[kept].double(), w[kept].double()
    weights = (
        sum(RandOM(base(w, mu[:, None]), problem).log_prob(y.expand(len(mu), 3)) for y in seen).double().softmax(0)
    )
    samples = mcmc.get_samples()
    for found, expected in ((samples["mu"], mu), (samples["w"][:, 0] - samples["mu"], w[:, 0] - mu)):
        mean = weights @ expected.double()
        deviation = (weights @ (expected - mean) ** 2).sqrt()
        number = min(float(effective_sample_size(found.double().unsqueeze(0))), 800)
        assert abs(found.mean() - mean) < 5 * deviation / number**0.5
        assert abs(found.std() / deviation - 1) < 5 / number**0.5


def test_costs_without_parameters_are_independent_draws():
    pyro.set_rng_seed(0)
    base = dist.Exponential(torch.tensor([1.0, 2.0, 3.0])).to_event(1)

    def model(value):
        pyro.sample("y", RandOM(base, Ranking(3)), obs=value)

    mcmc = MCMC(ConstrainedSlice(model), num_samples=2000, warmup_steps=0, disable_progbar=True)
    mcmc.run(torch.tensor([1, 2, 0]))
    costs = mcmc.get_samples()["y_costs"].double()
    shares = -torch.expm1(-6 * costs.amin(-1))
    assert scipy.stats.kstest(shares.numpy(), "uniform").pvalue > 1e-6
    assert abs(torch.corrcoef(torch.stack([shares[1:], shares[:-1]]))[0, 1]) < 0.12


def test_costs_that_are_exact_at_the_start_only():
    calls = []

    def model(value):
        calls.append(1)
        scale = torch.ones(3) if len(calls) < 12 else torch.tensor([1.0, 2.0, 3.0])
        pyro.sample("y", RandOM(dist.Gumbel(torch.zeros(3), scale).to_event(1), Ranking(3)), obs=value)

    mcmc = MCMC(ConstrainedSlice(model), num_samples=20, warmup_steps=0, disable_progbar=True)
    with pytest.raises(ValueError, match="y: expected costs that can be drawn exactly at all latent values"):
        mcmc.run(torch.tensor([1, 2, 0]))


def test_costs_that_are_exact_at_some_values_only():
    """They are kept."""
    pyro.set_rng_seed(0)

    def model(value):
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        scale = torch.where(s > 0, torch.ones(3), torch.tensor([1.0, 2.0, 3.0]))
        pyro.sample("y", RandOM(dist.Gumbel(torch.zeros(3), scale).to_event(1), Ranking(3)), obs=value)

    kernel = ConstrainedSlice(model)
    MCMC(kernel, num_samples=3, warmup_steps=0, disable_progbar=True).run(torch.tensor([1, 2, 0]))
    assert kernel.summed_sites == []


def test_a_kernel_that_has_run_is_used_again():
    """In a composition, or a learner, that sums nothing out."""
    pyro.set_rng_seed(0)

    def model(value, scale):
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        pyro.sample("y", RandOM(dist.Gumbel(s * torch.arange(3.0), scale).to_event(1), Ranking(3)), obs=value)

    kernel, value = ConstrainedSlice(model), torch.tensor([1, 2, 0])
    MCMC(kernel, num_samples=3, warmup_steps=0, disable_progbar=True).run(value, torch.ones(3))
    assert kernel.summed_sites == ["y"]
    both = Gibbs([(kernel, ["y_costs"]), (NUTS(model), None)])
    mcmc = MCMC(both, num_samples=3, warmup_steps=1, disable_progbar=True)
    mcmc.run(value, torch.tensor([1.0, 2.0, 1.0]))
    assert Ranking(3).contains(mcmc.get_samples()["y_costs"], value).all()

    def learned(value):
        s = pyro.param("s", torch.tensor(0.5))
        with pyro.plate("rows", len(value)):
            base = dist.Exponential((s * torch.arange(3.0)).exp()).to_event(1)
            pyro.sample("y", RandOM(base, Ranking(3)), obs=value)

    values, kernel = torch.tensor([[1, 2, 0], [0, 1, 2]]), ConstrainedSlice(learned)
    MCMC(kernel, num_samples=3, warmup_steps=0, disable_progbar=True).run(values)
    MCEM(learned, lambda value: None, Adam({"lr": 0.01}), kernel=kernel, control_variate=True).step(values)
