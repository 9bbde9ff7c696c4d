"""Joint moves of parameters and costs."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc import RandomWalkKernel
from scipy.stats import kstest

from pyro_structured.distributions import Argmin, RandOM, TruncatedNormal
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.inference import ConstrainedSlice, Gibbs, Interweave
from pyro_structured.optima.inference import interweave
from pyro_structured.optima.inference.collapsed_move import CollapsedMove
from pyro_structured.optima.inference.interweave import ParameterSpread
from pyro_structured.structures import Matching, ShortestPath, TopK
from pyro_structured.testing.standard_errors import most_standard_errors

pytestmark = pytest.mark.statistical

SIZE = 12


def features():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, 2, 2, generator=generator, dtype=torch.double)


def exact_moments(log_likelihood, number=2_001):
    """Mean and standard deviation of a parameter with a standard normal prior, by quadrature."""
    grid = torch.linspace(-5, 7, number, dtype=torch.double)
    weights = (log_likelihood(grid) - grid**2 / 2).softmax(0)
    mean = weights @ grid
    return mean, (weights @ (grid - mean) ** 2).sqrt()


def test_posterior_of_a_weight_agrees_with_quadrature():
    """And the chain mixes: its autocorrelation time is below ten."""
    pyro.set_rng_seed(0)
    x = features()

    def model(y=None):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", SIZE):
            return pyro.sample("y", RandOM(dist.Normal(x * psi, 0.5).to_event(2), Matching(2)), obs=y)

    y = RandOM(dist.Normal(x, 0.5).to_event(2), Matching(2)).sample()
    side = torch.where(y[:, 0] == 0, 1.0, -1.0)
    gain = (x[:, 0, 1] + x[:, 1, 0] - x[:, 0, 0] - x[:, 1, 1]) * side
    mean, deviation = exact_moments(lambda psi: torch.special.log_ndtr(gain.unsqueeze(-1) * psi).sum(0))
    blocks = [(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), (NUTS(model), ["psi"])]
    mcmc = MCMC(Gibbs(blocks), num_samples=400, warmup_steps=80, disable_progbar=True)
    mcmc.run(y)
    samples, found = mcmc.get_samples()["psi"], mcmc.diagnostics()
    effective = float(found["psi"]["n_eff"])
    assert found["Interweave collapsed moves"]["chain 0"] > 900
    assert len(samples) / effective < 10
    assert abs(samples.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(samples.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


def test_discrete_sites_stay():
    """Noise is that of the present kind, which moves of parameters neither see nor draw anew."""
    pyro.set_rng_seed(0)
    problem = TopK(3, 1)

    def model(y):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(()).double(), 1.0))
        kind = pyro.sample("kind", dist.Bernoulli(0.5))
        base = dist.Gumbel(
            shift + torch.tensor([0.0, 1.0, 5.0]).double() * kind, torch.tensor([1.0, 2.0, 1.0]).double()
        )
        pyro.sample("y", RandOM(base.to_event(1), problem), obs=y)

    y = torch.tensor([0.0, 0.0, 1.0])
    kernel, named = Interweave(model), NamedLatents(model)
    kernel.prepare(named, ["shift", "kind", "y_costs"], 0, (y,), {})
    values = {
        "shift": torch.zeros(()).double(),
        "kind": torch.ones(()),
        "y_costs": torch.tensor([2.0, 3.0, 1.0]).double(),
    }
    noise = (values["y_costs"] - torch.tensor([0.0, 1.0, 5.0])) / torch.tensor([1.0, 2.0, 1.0])
    for _ in range(50):
        values = kernel.step(values)
        assert values["kind"] == 1 and problem.contains(values["y_costs"], y)
        found = (values["y_costs"] - values["shift"] - torch.tensor([0.0, 1.0, 5.0])) / torch.tensor([1.0, 2.0, 1.0])
        torch.testing.assert_close(found, noise)
    assert values["shift"] != 0


def test_moves_with_all_noise_held_fixed():
    """Costs whose scale is the parameter are not linear in it."""
    pyro.set_rng_seed(0)

    def model(y=None):
        scale = pyro.sample("scale", dist.LogNormal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", SIZE):
            costs = dist.Normal(torch.tensor([0.0, 1.0]).double(), scale).to_event(1)
            return pyro.sample("y", RandOM(costs, TopK(2, 1)), obs=y)

    y = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]] * 3)
    margin = torch.where(y[:, 0] == 1, 1.0, -1.0).double() / math.sqrt(2)
    mean, deviation = exact_moments(lambda log: torch.special.log_ndtr(margin.unsqueeze(-1) * (-log).exp()).sum(0))
    kernel = Gibbs([(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), (NUTS(model), ["scale"])])
    mcmc = MCMC(kernel, num_samples=400, warmup_steps=80, disable_progbar=True)
    mcmc.run(y)
    samples, found = mcmc.get_samples()["scale"].log(), mcmc.diagnostics()
    effective = float(found["scale"]["n_eff"])
    assert found["Interweave collapsed moves"]["chain 0"] == 0 and found["Interweave stuck moves"]["chain 0"] == 0
    assert len(samples) / effective < 15
    assert abs(samples.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(samples.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


@pytest.mark.parametrize("kind", ["scale", "kink"])
def test_what_is_not_linear(kind):
    """A scale that moves along a line on which the location is straight, and a location that has a kink."""
    pyro.set_rng_seed(0)
    first = torch.eye(3)[0].double()
    loc, spread, rows = {"scale": (4.0, 1.0, [0] * 6), "kink": (0.0, 2.0, [0] * 3 + [1] * 5)}[kind]

    def base(psi):
        if kind == "scale":
            return dist.Normal(3 * first, 1 + first * (psi.abs() - 0.999)).to_event(1)
        return dist.Normal((1 - 3 * psi.relu()) * first, 1.0).to_event(1)

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.tensor(loc).double(), spread))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", RandOM(base(psi), TopK(3, 1)), obs=y)

    y = torch.eye(3).double()[rows]
    grid = torch.linspace(-7, 9, 161, dtype=torch.double)
    each = RandOM(base(grid[:, None, None]), TopK(3, 1)).log_prob(y[[0, -1]])
    counts = torch.tensor([rows.count(0), rows.count(1)]).double()
    weights = (each @ counts - ((grid - loc) / spread) ** 2 / 2).softmax(0)
    mean = weights @ grid
    deviation = (weights @ (grid - mean) ** 2).sqrt()
    walk = (RandomWalkKernel(model, init_step_size=0.5), ["psi"])
    kernel = Gibbs([(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), walk])
    # Scales are even functions of psi; chains are not asked to leave the side that has next to no probability.
    start = {"psi": torch.tensor(loc).double()}
    mcmc = MCMC(kernel, num_samples=300, warmup_steps=50, disable_progbar=True, initial_params=start)
    mcmc.run(y)
    samples, found = mcmc.get_samples()["psi"], mcmc.diagnostics()
    effective = float(found["psi"]["n_eff"])
    assert (found["Interweave collapsed moves"]["chain 0"] > 0) == (kind == "kink")
    assert found["Interweave stuck moves"]["chain 0"] == 0
    assert abs(samples.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(samples.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


@pytest.mark.parametrize("correlated", [False, True])
def test_collapsed_densities_are_integrals(correlated):
    """Over the coordinate along the change of the costs, with the noise across held fixed; draws follow them."""
    pyro.set_rng_seed(0)
    loc, costs, change = torch.randn(3, 4, 3).double()
    covariance = torch.tensor([[1.0, 0.6, 0.0], [0.6, 2.0, 0.3], [0.0, 0.3, 0.5]]).double()
    if correlated:
        base = dist.MultivariateNormal(loc, covariance.expand(4, 3, 3))
    else:
        base = dist.Normal(loc, covariance.diagonal().sqrt()).to_event(1)
    ends = torch.tensor([[-1.0, -0.2, -math.inf, -2.0], [0.5, math.inf, 0.1, 3.0]]).double()
    move = CollapsedMove(base, costs, change, lambda _: tuple(ends))
    grid = torch.linspace(-20, 20, 20_001).double()
    inside = (grid.unsqueeze(-1) > ends[0]) & (grid.unsqueeze(-1) < ends[1])

    def along(distance):
        """Densities of all places on the lines, for a location at a distance."""
        places = costs + grid[:, None, None] * change
        return base.log_prob(places - distance * change).exp()

    for distance in torch.tensor([-0.7, 0.0, 1.3]).double():
        whole = along(distance)
        expected = ((whole * inside).sum(0) / whole.sum(0)).log().sum()
        torch.testing.assert_close(move.log_density(distance), expected, rtol=2e-3, atol=2e-3)
    distance = torch.tensor(0.4).double()
    whole = (along(distance) * inside).cumsum(0)
    drawn = torch.stack([move.draw(distance) for _ in range(500)])
    place = ((drawn - costs) / change)[..., 0]
    torch.testing.assert_close(drawn, costs + place.unsqueeze(-1) * change)
    for row in range(4):
        share = (whole[:, row] / whole[-1, row]).numpy()
        uniform = share[((place[:, row] + 20) / 40 * 20_000).round().long().numpy()]
        assert kstest(uniform, "uniform").pvalue > 2e-9


def test_noise_in_far_tails():
    """At the start, costs are where distribution functions cannot be told from 0 or 1."""
    pyro.set_rng_seed(0)
    problem = ShortestPath(torch.tensor([[0, 1], [1, 2], [0, 2]]), 3, 0, 2)
    detour = torch.tensor([1.0, 1.0, 0.0]).double()

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", RandOM(dist.LogNormal(psi * detour, 0.1).to_event(1), problem), obs=y)

    start = {"psi": torch.tensor(2.0).double()}
    mcmc = MCMC(ConstrainedSlice(model), num_samples=8, disable_progbar=True, warmup_steps=0, initial_params=start)
    mcmc.run(detour.expand(5, 3))
    assert mcmc.diagnostics()["Interweave stuck moves"]["chain 0"] == 0
    assert (mcmc.get_samples()["y_costs"].log().abs() < 5).all()


def test_posterior_of_costs_between_bounds():
    """The truncated normal costs of the paper."""
    pyro.set_rng_seed(0)

    def base(psi):
        return TruncatedNormal(torch.sigmoid(psi * torch.eye(3)[0].double()), 0.1, 0.0, 1.0).to_event(1)

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", RandOM(base(psi), TopK(3, 1)), obs=y)

    y = torch.eye(3).double()[[0] * 9 + [1]]
    first = RandOM(base(torch.linspace(-5, 7, 121).double().unsqueeze(-1)), TopK(3, 1)).log_prob(y[0])
    mean, deviation = exact_moments(lambda grid: 9 * first + (-first.expm1()).log(), len(first))
    walk = (RandomWalkKernel(model, init_step_size=0.5), ["psi"])
    kernel = Gibbs([(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), walk])
    mcmc = MCMC(kernel, num_samples=120, warmup_steps=20, disable_progbar=True)
    mcmc.run(y)
    found, effective = mcmc.get_samples()["psi"], float(mcmc.diagnostics()["psi"]["n_eff"])
    assert abs(found.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(found.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


def test_costs_without_noise_are_refused():
    def model(y):
        rate = pyro.sample("rate", dist.Gamma(2.0, 2.0))
        pyro.sample("y", RandOM(dist.Gamma(2.0, rate.expand(3)).to_event(1), TopK(3, 1)), obs=y)

    kernel = Gibbs([(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), (NUTS(model), ["rate"])])
    with pytest.raises(ValueError, match="y_costs: expected costs that are a known function of noise"):
        MCMC(kernel, num_samples=1, warmup_steps=0, disable_progbar=True).run(torch.tensor([1.0, 0.0, 0.0]))
    alone = MCMC(ConstrainedSlice(model), num_samples=8, warmup_steps=2, disable_progbar=True)
    alone.run(torch.tensor([1.0, 0.0, 0.0]))
    assert not any("Interweave" in name for name in alone.diagnostics())
    message = "kernel: expected one that owns its sites, got Interweave alone, .* Gibbs .* ConstrainedSlice"
    with pytest.raises(ValueError, match=message):
        MCMC(Interweave(model), num_samples=1, warmup_steps=0, disable_progbar=True).run(torch.tensor([1.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="num_directions: expected an integer"):
        Interweave(model, num_directions=1.5)


def stepper(model, *args):
    kernel = Interweave(model)
    kernel.prepare(NamedLatents(model), ["psi", "y_costs"], 0, args, {})
    return kernel


def test_costs_that_overflow_are_refused():
    pyro.set_rng_seed(0)
    problem = ShortestPath(torch.tensor([[0, 1]]), 2, 0, 1)

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        pyro.sample("y", RandOM(dist.LogNormal(1000 * psi.expand(1), 1.0).to_event(1), problem), obs=y)

    kernel = stepper(model, torch.ones(1))
    values = {"psi": torch.zeros(()).double(), "y_costs": torch.ones(1).double()}
    for _ in range(20):
        values = kernel.step(values)
        assert values["y_costs"].isfinite().all()
    assert values["psi"] != 0 and kernel.report()["stuck moves"] == 0


def test_spread_is_learned_while_the_chain_warms_up():
    spread, values = ParameterSpread(200), torch.randn(400, 3) * torch.tensor([0.1, 1.0, 10.0])
    for value in values:
        spread.add({"x": value})
    drawn = torch.stack([spread.direction({"x": values[0]})["x"] for _ in range(3_000)])
    torch.testing.assert_close(drawn.std(0), values[:200].std(0), rtol=0.1, atol=0.0)


@pytest.mark.parametrize("limit", [0.0, 6.0])
def test_problems_that_depend_on_parameters(limit, monkeypatch):
    """Noise is not summed out if draws of the prior show it, as half of them or one in a billion do, else not across
    the limit.
    """
    monkeypatch.setattr(interweave, "NUM_DRAWS", 30 if limit == 0 else 10)
    pyro.set_rng_seed(0)

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        pyro.sample("x", dist.Normal(psi, 0.2), obs=torch.tensor(limit))
        w = pyro.sample("w", dist.Normal(psi * torch.eye(3, dtype=torch.double)[0], 1.0).to_event(1))
        pyro.sample("y", Argmin(w, TopK(3, 2 if psi > limit else 1)), obs=y)

    mcmc = MCMC(ConstrainedSlice(model), num_samples=60, warmup_steps=20, disable_progbar=True)
    mcmc.run(torch.tensor([0.0, 0.0, 1.0]))
    samples = mcmc.get_samples()
    assert (samples["psi"] <= limit).all() and (samples["w"].argmin(-1) == 2).all()
    assert (mcmc.diagnostics()["Interweave collapsed moves"]["chain 0"] > 0) == (limit > 0)
