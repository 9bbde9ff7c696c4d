"""Joint moves of parameters and costs."""

import contextlib
import itertools
import math
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.special
import scipy.stats
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc import RandomWalkKernel
from scipy.stats import ks_2samp, kstest

from pyro_structured.distributions import Argmin, RandOM, TruncatedNormal
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.inference import Checkpoint, ConstrainedSlice, Gibbs, Interweave
from pyro_structured.optima.inference import cost_track as tracks
from pyro_structured.optima.inference import interweave
from pyro_structured.optima.inference.bounded_track import BoundedTrack
from pyro_structured.optima.inference.cost_track import cost_track
from pyro_structured.optima.inference.interweave import ParameterSpread
from pyro_structured.optima.inference.noncentered_costs import location_and_scale, noise_transform
from pyro_structured.structures import Matching, Ranking, ShortestPath, TopK
from pyro_structured.testing.standard_errors import most_standard_errors

pytestmark = pytest.mark.statistical

SIZE = 12


def effective_number(diagnostics, number):
    """Of samples for their mean and deviation: no more than there are, where means of samples that take turns on both
    sides would be surer, and estimates may even be negative.
    """
    found = float(diagnostics["n_eff"])
    return min(found, number) if found > 0 else number


def features():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, 2, 2, generator=generator, dtype=torch.double)


def exact_moments(log_likelihood, number=2_001):
    """Mean and standard deviation of a parameter with a standard normal prior, by quadrature."""
    grid = torch.linspace(-5, 7, number, dtype=torch.double)
    weights = (log_likelihood(grid) - grid**2 / 2).softmax(0)
    mean = weights @ grid
    return mean, (weights @ (grid - mean) ** 2).sqrt()


@pytest.mark.slow
def test_posterior_of_a_weight_agrees_with_quadrature():
    """And the chain mixes: its autocorrelation time is below five."""
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
    mcmc = MCMC(Gibbs(blocks), num_samples=250, warmup_steps=60, disable_progbar=True)
    mcmc.run(y)
    samples, found = mcmc.get_samples()["psi"], mcmc.diagnostics()
    effective = effective_number(found["psi"], len(samples))
    assert found["Interweave collapsed moves"]["chain 0"] > 450
    assert found["Interweave refused moves"]["chain 0"] < 60
    assert len(samples) / effective < 5
    assert abs(samples.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(samples.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


def test_discrete_sites_stay():
    """Noise is that of the present kind, which moves of parameters neither see nor draw anew."""
    pyro.set_rng_seed(0)
    problem, scale = TopK(3, 1), torch.tensor([1.0, 2.0, 1.0]).double()

    def loc(shift, kind):
        return shift + torch.tensor([0.0, 1.0, 5.0]).double() * kind

    def model(y):
        shift = pyro.sample("shift", dist.Normal(torch.zeros(()).double(), 1.0))
        kind = pyro.sample("kind", dist.Bernoulli(0.5))
        pyro.sample("y", RandOM(dist.Cauchy(loc(shift, kind), scale).to_event(1), problem), obs=y)

    y = torch.tensor([0.0, 0.0, 1.0])
    kernel, named = Interweave(model), NamedLatents(model)
    kernel.prepare(named, ["shift", "kind", "y_costs"], 0, (y,), {})
    # Tracks would sum a coordinate of the noise out.
    kernel._collapses = lambda moving: False
    start = torch.zeros(()).double()
    values = {"shift": start, "kind": torch.ones(()), "y_costs": torch.tensor([2.0, 3.0, 1.0]).double()}
    noise = (values["y_costs"] - loc(start, 1)) / scale
    for _ in range(50):
        values = kernel.step(values)
        assert values["kind"] == 1 and problem.contains(values["y_costs"], y)
        torch.testing.assert_close((values["y_costs"] - loc(values["shift"], 1)) / scale, noise)
    assert values["shift"] != 0


class Counted:
    """Choices between two costs, of which one is left when a parameter is given, and the number of runs."""

    def __init__(self, prior, base):
        self.prior, self.base, self.runs = prior, base, 0

    def __call__(self, y):
        self.runs += 1
        parameter = pyro.sample("parameter", self.prior)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", RandOM(self.base(parameter).to_event(1), TopK(2, 1)), obs=y)


def three_blocks(model):
    return Gibbs([(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), (NUTS(model), ["parameter"])])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, make",
    [
        ("scale", three_blocks),
        ("scale", ConstrainedSlice),
        ("ends", ConstrainedSlice),
        ("between bounds", ConstrainedSlice),
        ("concentration", ConstrainedSlice),
        ("degrees of freedom", ConstrainedSlice),
    ],
)
def test_posterior_of_a_choice_agrees_with_quadrature(kind, make):
    """And the chain mixes: the size of the noise is summed out, or a shift of it. A step of the kernel that is made for
    one parameter runs the model four times, and five times as long as it learns. Shapes of noise move with all noise
    held fixed.
    """
    pyro.set_rng_seed(0)
    zero, loc = torch.zeros(()).double(), torch.tensor([0.0, 1.0]).double()
    prior, base = {
        "scale": (dist.LogNormal(zero, 1.0), lambda scale: dist.Normal(loc, scale)),
        "ends": (dist.Normal(zero, 1.0), lambda shift: dist.Uniform(shift * loc, shift * loc + 2)),
        "between bounds": (dist.Normal(zero, 1.0), lambda shift: TruncatedNormal(shift * loc, 0.5, -0.5, 1.0)),
        "concentration": (dist.LogNormal(zero, 1.0), lambda shape: dist.Gamma(shape + loc, 2.0)),
        "degrees of freedom": (dist.LogNormal(zero, 1.0), lambda freedom: dist.StudentT(freedom, 2 * loc, 1.0)),
    }[kind]
    y = torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]] * 3)

    def log_likelihood(free):
        if kind == "scale":
            first = torch.special.ndtr((-free).exp() / math.sqrt(2))
        elif kind == "concentration":
            shape = free.exp().numpy()
            first = torch.from_numpy(scipy.special.betainc(shape, shape + 1, 0.5))
        elif kind == "degrees of freedom":
            # By sums over the probabilities of the second cost.
            share, law = (np.arange(1000) + 0.5)[:, None] / 1000, scipy.stats.t(free.exp().numpy())
            first = torch.from_numpy(law.cdf(law.ppf(share) + 2).mean(0))
        elif kind == "between bounds":
            # By sums over the first cost of what the second one has above.
            x = torch.linspace(-0.5, 1.0, 1501).double().unsqueeze(-1)
            share = torch.exp(torch.stack([-2 * (x - mean).square().expand(-1, len(free)) for mean in (zero, free)]))
            share = share / share.sum(1, keepdim=True)
            first = (share[0] * (share[1].flip(0).cumsum(0).flip(0) - share[1] / 2)).sum(0)
        else:
            share = (free / 2).clamp(-1, 1)
            first = torch.where(share < 0, (1 + share) ** 2 / 2, 1 - (1 - share) ** 2 / 2)
        return 9 * first.log() + 3 * (1 - first).log()

    mean, deviation = exact_moments(log_likelihood, 401)
    model = Counted(prior, base)
    mcmc = MCMC(make(model), num_samples=250, warmup_steps=60, disable_progbar=True)
    mcmc.run(y)
    samples, found = mcmc.get_samples()["parameter"], mcmc.diagnostics()
    samples, effective = (
        samples if isinstance(prior, dist.Normal) else samples.log(),
        effective_number(found["parameter"], len(samples)),
    )
    has_shape = kind in ("concentration", "degrees of freedom")
    assert (found["Interweave collapsed moves"]["chain 0"] > 450) != has_shape
    assert found["Interweave stuck moves"]["chain 0"] == 0
    assert len(samples) / effective < (20 if has_shape else 5)
    assert abs(samples.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(samples.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)
    # And some at the start.
    assert (model.runs < 2.6 * 310 + 100) == (make is ConstrainedSlice and not has_shape)


ZERO = torch.zeros((), dtype=torch.double)
KERNELS = {
    "one parameter": ["Interweave"],
    "one parameter and a switch": ["BinaryGibbs", "Interweave"],
    "two parameters": ["ConstrainedSlice", "Interweave", "NUTS"],
    "a vector": ["ConstrainedSlice", "Interweave", "NUTS"],
    "other data": ["ConstrainedSlice", "Interweave", "NUTS"],
    "a measurement of costs": ["ConstrainedSlice", "Interweave", "NUTS"],
    "a kink": ["ConstrainedSlice", "Interweave", "NUTS"],
    "a factor": ["ConstrainedSlice", "Interweave", "NUTS"],
    "no tracks": ["ConstrainedSlice", "Interweave", "NUTS"],
    "no noise": ["ConstrainedSlice", "NUTS"],
}


@pytest.mark.parametrize("kind", KERNELS)
def test_one_parameter_takes_one_kernel(kind):
    """Where optima are all that is known of it, and costs have tracks."""
    pyro.set_rng_seed(0)
    problem, y = ShortestPath(ROADS, 3, 0, 2), torch.tensor([[0.0, 1.0, 0.0]] * 3)

    def model():
        first = pyro.sample("first", dist.Normal(torch.zeros(2).double() if kind == "a vector" else ZERO, 1.0))
        loc = pyro.deterministic("loc", first.relu() if kind == "a kink" else first.sum())
        if kind == "two parameters":
            loc = loc + pyro.sample("second", dist.Normal(ZERO, 1.0))
        if kind == "one parameter and a switch":
            loc = loc * (1 + pyro.sample("switch", dist.Bernoulli(0.5)))
        if kind == "other data":
            pyro.sample("seen", dist.Normal(first, 1.0), obs=ZERO)
        if kind == "a factor":
            pyro.factor("weight", -first)
        base = {"no tracks": dist.LogNormal(loc, loc.exp()), "no noise": dist.Beta(2.0, loc.exp())}
        with pyro.plate("rows", 3):
            each = base.get(kind, dist.HalfNormal(loc.exp())).expand([3])
            costs = pyro.sample("costs", each.to_event(1))
            pyro.sample("y", Argmin(costs, problem), obs=y)
            if kind == "a measurement of costs":
                pyro.sample("seen", dist.Normal(costs.sum(-1), 1.0), obs=ZERO)

    assert [type(kernel).__name__ for kernel, _ in ConstrainedSlice(model).composition((), {})] == KERNELS[kind]


def test_runs_of_the_model_at_known_values_are_saved():
    """And made where a site has another value, or in the next chain."""
    pyro.set_rng_seed(0)
    runs = []

    def model(y):
        runs.append(1)
        first = pyro.sample("first", dist.Normal(ZERO, 1.0))
        switch = pyro.sample("switch", dist.Bernoulli(0.5))
        pyro.sample("y", RandOM(dist.Normal(first * SLOPES[0] + switch, 1.0).to_event(1), Ranking(3)), obs=y)

    def runs_of_a_step():
        runs.clear()
        values.update(kernel.step(values))
        return len(runs)

    kernel, y = Interweave(model, num_moves=1), torch.tensor([0, 1, 2])
    values = {"first": ZERO, "switch": torch.ones(()), "y_costs": torch.arange(3).double()}
    for _ in range(2):
        kernel.prepare(NamedLatents(model), list(values), 100, (y,), {})
        kernel._collapses = lambda moving: True
        assert runs_of_a_step() == 3
        assert [runs_of_a_step() for _ in range(3)] == [2] * 3
        values["switch"] = 1 - values["switch"]
        assert runs_of_a_step() == 3
        values["y_costs"] = values["y_costs"] * 2
        assert runs_of_a_step() == 2
    # Alone, lines have a point outside in common, once the warm-up is over.
    kernel.owns_sites = True
    kernel.prepare(NamedLatents(model), list(values), 12, (y,), {})
    assert [runs_of_a_step() for _ in range(15)] == [3] + [2] * 12 + [1] * 2
    values["switch"] = 1 - values["switch"]
    assert [runs_of_a_step() for _ in range(2)] == [3, 1]


def test_chains_with_one_kernel_are_resumed(tmp_path):
    """Bit for bit, although points at which the last process ended are not kept."""
    prior, y = dist.Normal(ZERO, 1.0), torch.tensor([[1.0, 0.0]] * 9 + [[0.0, 1.0]] * 3)
    model = Counted(prior, lambda shift: dist.Uniform(shift * SLOPES[0, :2], shift * SLOPES[0, :2] + 2))
    kernels = [Checkpoint(ConstrainedSlice(model), tmp_path / f"{number}.pt", every=1) for number in range(2)]

    def interrupt(kernel, params, stage, index):
        if stage == "Sample" and index == 5:
            raise KeyboardInterrupt

    draws = []
    for kernel, hook in zip(kernels, (None, interrupt), strict=True):
        pyro.set_rng_seed(0)
        mcmc = MCMC(kernel, num_samples=12, warmup_steps=4, disable_progbar=True, hook_fn=hook)
        with contextlib.suppress(KeyboardInterrupt):
            mcmc.run(y)
            draws.append(mcmc.get_samples())
    mcmc = MCMC(Checkpoint.resume(kernels[1].path, model), num_samples=12, warmup_steps=4, disable_progbar=True)
    mcmc.run(y)
    for name, expected in draws[0].items():
        assert torch.equal(mcmc.get_samples()[name], expected), name


@pytest.mark.slow
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
    effective = effective_number(found["psi"], len(samples))
    assert (found["Interweave collapsed moves"]["chain 0"] > 0) == (kind == "kink")
    assert found["Interweave stuck moves"]["chain 0"] == 0
    assert abs(samples.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(samples.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


SLOPES = torch.tensor([[1.0, -0.5, 0.0], [0.0, 2.0, 1.0]], dtype=torch.double)
COVARIANCE = torch.tensor([[1.0, 0.5, 0.0], [0.5, 2.0, 0.3], [0.0, 0.3, 1.0]], dtype=torch.double)
FACTOR = torch.linalg.cholesky(COVARIANCE).expand(2, 3, 3)
# Bounds on either side of locations, and on one.
LOWER = torch.tensor([[0.5, -1.5, -torch.inf], [-1.0, 2.2, 0.0]], dtype=torch.double)
UPPER = torch.tensor([[torch.inf, 0.5, -0.2], [3.0, 4.0, 1.5]], dtype=torch.double)


def followed(loc):
    """Bounds of one half of the costs, which stay, and of the others, which follow their locations."""
    stays = torch.tensor([[True, False, False], [False, True, True]])
    return torch.where(stays, -0.5, loc - 0.4), torch.where(stays, 1.0, loc + 1.0)


# Costs as functions of a parameter, and whether it changes their scales.
ON_TRACKS = {
    "locations of normal costs": (lambda psi: dist.Normal(psi * SLOPES, 0.7).to_event(1), False),
    "scales of normal costs": (lambda psi: dist.Normal(SLOPES, psi.exp()).to_event(1), True),
    "locations of jointly normal costs": (lambda psi: dist.MultivariateNormal(psi * SLOPES, scale_tril=FACTOR), False),
    "scales of jointly normal costs": (
        lambda psi: dist.MultivariateNormal(SLOPES, scale_tril=FACTOR * psi.exp()),
        True,
    ),
    "locations of Gumbel costs": (lambda psi: dist.Gumbel(psi * SLOPES, 0.7).to_event(1), False),
    "scales of Laplace costs": (lambda psi: dist.Laplace(SLOPES, psi.exp()).to_event(1), True),
    "locations of logistic costs": (lambda psi: dist.Logistic(psi * SLOPES, 0.5).to_event(1), False),
    "rates": (lambda psi: dist.Exponential(psi.exp() * (1 + SLOPES**2)).to_event(1), True),
    "moving ends": (lambda psi: dist.Uniform(psi * SLOPES, psi * SLOPES + 4).to_event(1), False),
    "upper ends": (lambda psi: dist.Uniform(0 * SLOPES, (1 + SLOPES**2) * psi.exp()).to_event(1), True),
    "locations between bounds": (lambda psi: TruncatedNormal(psi * SLOPES, 0.7, -0.5, 1.0).to_event(1), False),
    "scales between bounds": (lambda psi: TruncatedNormal(SLOPES, psi.exp(), LOWER, UPPER).to_event(1), True),
    "bounds that follow": (lambda psi: TruncatedNormal(psi * SLOPES, 0.7, *followed(psi * SLOPES)).to_event(1), False),
    "a bound that follows": (
        lambda psi: TruncatedNormal(psi * SLOPES, 0.7, psi * SLOPES - 0.4, 3.0).to_event(1),
        False,
    ),
    "tails between bounds": (lambda psi: TruncatedNormal(psi * SLOPES - 9, 0.7, -0.5, 1.0).to_event(1), False),
    "tails above bounds": (lambda psi: TruncatedNormal(psi * SLOPES - 20, 0.7, -0.5).to_event(1), False),
    "locations of Student costs": (lambda psi: dist.StudentT(4.0, psi * SLOPES, 0.7).to_event(1), False),
    "rates of gamma costs": (lambda psi: dist.Gamma(1 + SLOPES**2, psi.exp() + 0 * SLOPES).to_event(1), True),
    "scales of entries between bounds": (
        lambda psi: TruncatedNormal(SLOPES, (psi * SLOPES).exp(), LOWER, UPPER).to_event(1),
        True,
    ),
    "locations and scales": (lambda psi: dist.Normal(psi * SLOPES, (psi / 2).exp()).to_event(1), True),
    "locations and scales of jointly normal costs": (
        lambda psi: dist.MultivariateNormal(psi * SLOPES, scale_tril=FACTOR * (psi / 2).exp()),
        True,
    ),
    "locations and scales between bounds": (
        lambda psi: TruncatedNormal(psi * SLOPES, (psi * SLOPES).exp(), -1.5, 2.5).to_event(1),
        True,
    ),
    "both ends": (lambda psi: dist.Uniform(psi * SLOPES, psi * SLOPES + (psi * SLOPES).exp()).to_event(1), True),
    "rates of gamma entries": (lambda psi: dist.Gamma(1.5, (psi * SLOPES).exp()).to_event(1), True),
    "rates of inverse gamma entries": (lambda psi: dist.InverseGamma(2.5, (psi * SLOPES).exp()).to_event(1), True),
    "scales of half-Cauchy entries": (lambda psi: dist.HalfCauchy((psi * SLOPES).exp()).to_event(1), True),
    "locations and scales of Student costs": (
        lambda psi: dist.StudentT(5.0, psi * SLOPES, (psi / 2).exp()).to_event(1),
        True,
    ),
    "rates of entries": (lambda psi: dist.Exponential((psi * SLOPES).exp()).to_event(1), True),
    "locations of log-normal costs": (lambda psi: dist.LogNormal(psi * SLOPES, 0.5).to_event(1), True),
    "scales of Weibull costs": (lambda psi: dist.Weibull((psi * SLOPES).exp(), 1.7).to_event(1), True),
    "scales of bounded entries": (lambda psi: TruncatedNormal(0.0, (psi * SLOPES).exp(), 0.0).to_event(1), True),
    "scales of entries": (lambda psi: dist.Normal(SLOPES, (psi * SLOPES).exp()).to_event(1), True),
    "lengths of entries": (lambda psi: dist.Uniform(0 * SLOPES, (psi * SLOPES).exp()).to_event(1), True),
    "moving windows": (lambda psi: TruncatedNormal(0.3, 0.7, psi * SLOPES - 1, psi * SLOPES + 1).to_event(1), False),
    "ends of truncated costs": (
        lambda psi: TruncatedNormal(0.3, 0.7, 0.02 * psi * SLOPES - 1, 0.03 * psi + 2).to_event(1),
        False,
    ),
    "lower ends": (lambda psi: TruncatedNormal(SLOPES, 1.0, 0.5 * psi - 1).to_event(1), False),
    "upper ends without lower ones": (
        lambda psi: TruncatedNormal(SLOPES, 1.0, -torch.inf, psi * SLOPES + 1).to_event(1),
        False,
    ),
    "lower ends and scales": (
        lambda psi: TruncatedNormal(0 * SLOPES, (psi / 2).exp(), 0.5 * psi - 1).to_event(1),
        True,
    ),
    "lower ends, locations and scales": (
        lambda psi: TruncatedNormal(psi * SLOPES, (psi / 2).exp(), psi * SLOPES - 0.5, torch.inf).to_event(1),
        True,
    ),
    "ends, locations and scales": (
        lambda psi: TruncatedNormal(
            0.1 * psi * SLOPES, (psi / 2).exp(), 0.02 * psi - 2, followed(0.1 * psi * SLOPES + 3)[1]
        ).to_event(1),
        True,
    ),
}
ROADS = torch.tensor([[0, 1], [0, 2], [1, 2]])
# These move along the incidence of optima, so problems have coefficients of 0 and 1.
CURVED = list(ON_TRACKS)[-22:]


STAY = [list(ON_TRACKS)[place] for place in (0, 3, 4, 7, 9, 10, 11, 12, 14, 15)]
STAY += [
    name for name in CURVED if name not in ("locations and scales of jointly normal costs", "scales of Weibull costs")
]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", STAY)
def test_exact_draws_stay_exact_draws(name, monkeypatch):
    """A move from a draw of the prior, given the optima of its costs, leads to another: parameters and noise keep their
    distributions, and stay independent.
    """
    monkeypatch.setattr(Interweave, "_collapses", lambda *_: True)
    monkeypatch.setattr(interweave, "NUM_DRAWS", 1)
    monkeypatch.setattr(tracks, "FEW_COSTS", 2)
    pyro.set_rng_seed(0)
    (base, _), number = ON_TRACKS[name], 150
    problem = Ranking(3) if name not in CURVED else ShortestPath(ROADS, 3, 0, 2) if "log" in name else TopK(3, 2)

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", 2):
            pyro.sample("y", RandOM(base(psi), problem), obs=y)

    kernel, found, moved = Interweave(model, num_moves=2), [], 0
    for psi in torch.randn(number, dtype=torch.double):
        costs = base(psi).sample().double()
        y = problem.solve(costs)
        kernel.prepare(NamedLatents(model), ["psi", "y_costs"], 0, (y,), {})
        values = kernel.step({"psi": psi, "y_costs": costs})
        assert problem.contains(values["y_costs"], y).all()
        moved += kernel.report()["collapsed moves"] > 0 and bool(values["psi"] != psi)
        found.append((values["psi"], noise_transform(base(values["psi"])).inv(values["y_costs"])))
    assert moved > 0.8 * number
    psi, noise = (torch.stack(parts) for parts in zip(*found, strict=True))
    start = torch.zeros(()).double()
    expected = noise_transform(base(start)).inv(base(start).sample((4000,)).double())
    others = torch.randn(len(expected), 1, 1, dtype=torch.double)
    pvalues = [kstest(psi.numpy(), "norm").pvalue]
    for left, right in ((noise, expected), (psi[:, None, None] * noise, others * expected)):
        pairs = zip(left.flatten(1).T.numpy(), right.flatten(1).T.numpy(), strict=True)
        pvalues += [ks_2samp(*pair).pvalue for pair in pairs]
    assert min(pvalues) > 1e-5


class Between:
    """A problem whose inverse sets leave an interval of each line, and have no end along curves."""

    cost_shape, is_binary, maximize = torch.Size([3]), True, False

    def __init__(self, low, high):
        self.ends = low, high

    def incidence(self, value):
        return value

    def solve(self, costs):
        return torch.zeros_like(costs)

    def flatten(self, batch_shape):
        return self

    def __getitem__(self, index):
        return self

    def chord(self, costs, value, direction):
        return self.ends


@pytest.mark.parametrize("name", [name for name in ON_TRACKS if name not in CURVED])
def test_tables_of_tracks_are_integrals(name):
    """Over the coordinate of the noise that moves, by sums over a grid, up to one constant; and densities of draws are
    those that are said.
    """
    pyro.set_rng_seed(0)
    costs_of, grows = ON_TRACKS[name]

    def base(psi):
        return costs_of(torch.tensor(psi, dtype=torch.double))

    def log_prob(at, costs):
        low, high = support_bounds(at)
        inside = ((costs >= low) & (costs <= high)).all(-1)
        return at.log_prob(costs.maximum(low).minimum(high)).masked_fill(~inside, -math.inf)

    here = base(0.2)
    costs = here.sample().double()
    ends = torch.tensor([[-0.5, -0.3], [0.6, 0.2]]).double()
    track = cost_track(here, base(0.5), 0.3, costs, Between(*ends), torch.zeros(2, 3), torch.double)
    low, high = ends
    growth = torch.zeros(2, 3).double()
    if grows:
        scales = [location_and_scale(at)[1] for at in (here, base(0.5))]
        # Cholesky factors grow as their first entries.
        growth = (scales[1] / scales[0]).log().reshape(2, -1)[:, :3].expand(2, 3) / 0.3
        growth = growth[:, :1].expand(2, 3) if "jointly" in name else growth
    if grows:
        # A ray, whose ends are those of a line.
        low, high = (ends.log1p() / growth[:, 0]).sort(0).values
    places = low + (high - low) * (torch.arange(4000).unsqueeze(-1) + 0.5) / 4000
    expected, tables = [], track.log_mass(torch.tensor([0.0, -0.1, 0.25]).double())
    for distance in (0.0, -0.1, 0.25):
        at = base(0.2 + distance)
        assert track.fits(at, distance) and not track.fits(at, distance + 1e-3)
        # With the Jacobian of the curve.
        weights = log_prob(at, track.costs_at(places - distance, distance)) + growth.sum(-1) * places
        expected.append(weights.logsumexp(0).sum())
    torch.testing.assert_close(tables - tables[0], torch.stack(expected) - expected[0], rtol=0.0, atol=0.02)
    at, start = base(0.1), track.log_weight(here, torch.zeros(2).double(), 0.0)
    for _ in range(20):
        x, log_density = track.draw(-0.1)
        assert ((x - 0.1 >= low) & (x - 0.1 <= high)).all()
        # In the ratio of densities of exact tables, all but the masses cancels.
        ratio = track.log_weight(at, x, -0.1) - start - log_density + track.log_density_here()
        torch.testing.assert_close(ratio, tables[1] - tables[0], rtol=0.0, atol=0.1)


@pytest.mark.parametrize("deviations", [-1e6, -700.0, -20.0, 9.0, 300.0, 1e5])
@pytest.mark.parametrize("name", ["normal", "jointly normal", "Laplace", "Gumbel", "logistic"])
def test_tables_of_tails_are_integrals(name, deviations):
    """Of intervals far from where noise is likely, with costs at the likelier end."""
    pyro.set_rng_seed(0)
    change = torch.tensor([[1.0, 0.5, 0.7], [0.8, 2.0, 1.0]]).double()
    families = {
        "normal": lambda loc: dist.Normal(loc, 0.7).to_event(1),
        "jointly normal": lambda loc: dist.MultivariateNormal(loc, scale_tril=FACTOR),
        "Laplace": lambda loc: dist.Laplace(loc, 0.7).to_event(1),
        "Gumbel": lambda loc: dist.Gumbel(loc, 0.7).to_event(1),
        "logistic": lambda loc: dist.Logistic(loc, 0.7).to_event(1),
    }

    def base(psi):
        return families[name](psi * change)

    if name == "Gumbel" and deviations < 0:
        deviations = -math.log(-deviations) - 3
    here = base(0.0)
    costs = here.sample() + deviations * change
    ends = torch.tensor([[-0.3, -0.2], [0.0, 0.0]]).double()
    ends = ends if deviations < 0 else -ends.flip(0)
    track = cost_track(here, base(0.5), 0.5, costs, Between(*ends), torch.zeros(2, 3), torch.double)
    # Close to both ends, where densities of tails are.
    share = torch.linspace(-30, 30, 20001).double().sigmoid().unsqueeze(-1)
    places = ends[0] + (ends[1] - ends[0]) * share
    widths = (ends[1] - ends[0]) * share.diff(dim=0)
    distances, expected = torch.tensor([0.0, -0.2, 0.3]).double(), []
    tables = track.log_mass(distances)
    for distance in distances:
        weights = base(distance).log_prob(track.costs_at(places - distance, float(distance)))
        pieces = torch.logaddexp(weights[1:], weights[:-1]) + (widths / 2).log()
        expected.append(pieces.logsumexp(0).sum())
    torch.testing.assert_close(tables.diff(), torch.stack(expected).diff(), rtol=1e-9, atol=0.03)
    start = track.log_weight(here, torch.zeros(2).double(), 0.0) - track.log_density_here()
    for distance, total in zip(distances, expected, strict=True):
        for _ in range(20):
            x, log_density = track.draw(float(distance))
            ratio = track.log_weight(base(distance), x, float(distance)) - log_density - start
            torch.testing.assert_close(ratio, total - expected[0], rtol=1e-9, atol=0.2)


def test_tails_next_to_other_modes_have_no_mass():
    """Of Student noise, which falls and rises again: nothing is known of an interval that begins where it rises."""
    pyro.set_rng_seed(0)

    def base(psi):
        return dist.StudentT(10.0, torch.full((1, 3), psi).double(), 1.0).to_event(1)

    # Two costs are the likeliest here, and one is 500 scales away.
    costs, masses = torch.tensor([[0.0, 0.1, -500.0]]).double(), []
    for low in (-1.0, 450.0):
        ends = torch.tensor([low]).double(), torch.tensor([torch.inf]).double()
        track = cost_track(base(0.0), base(0.5), 0.5, costs, Between(*ends), torch.zeros(1), torch.double)
        masses.append(track.log_mass(torch.zeros(1).double()))
    assert masses[0].isfinite() and masses[1] < masses[0] - 33


@pytest.mark.parametrize("size", [1e-8, 1e8, 1e12])
def test_tables_of_many_multiples(size):
    """Of costs far from likely ones: the ratio of the densities of costs and of draws is that of their masses."""
    pyro.set_rng_seed(0)

    def base(psi):
        return dist.Exponential(torch.full((2, 1000), math.exp(psi)).double()).to_event(1)

    costs, everywhere = size * base(0.0).sample(), torch.full((2,), torch.inf).double()
    track = cost_track(base(0.0), base(0.5), 0.5, costs, Between(-everywhere, everywhere), torch.zeros(2), torch.double)
    ratios = []
    for _ in range(20):
        x, log_density = track.draw(0.0)
        ratios.append(track.log_weight(base(0.0), x, 0.0) - log_density)
    assert torch.stack(ratios).std() < 0.1


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", ["moving ends", "upper ends", *CURVED])
def test_tables_along_the_incidence_of_optima(name, maximize, monkeypatch):
    """Against sums over a grid of the costs for which the optima stay."""
    monkeypatch.setattr(tracks, "FEW_COSTS", 2)
    pyro.set_rng_seed(0)
    (costs_of, grows), problem = ON_TRACKS[name], TopK(3, 2, maximize=maximize)

    def base(psi):
        return costs_of(torch.tensor(psi, dtype=torch.double))

    here = base(0.2)
    costs = here.sample().double()
    value = problem.solve(costs)
    track = cost_track(here, base(0.5), 0.3, costs, problem, value, torch.double)
    scales = [location_and_scale(at)[1] for at in (base(0.5), here)]
    # Cholesky factors grow as their first entries.
    growth = ((scales[0] / scales[1]).log().reshape(2, -1)[:, :3] / 0.3 * grows).expand(2, 3)
    growth = growth[:, :1].expand(2, 3) if "jointly" in name else growth
    is_bounded = isinstance(track, BoundedTrack)
    first, last = (track._least.clamp(min=-10), track._most.clamp(max=10)) if is_bounded else track._table.ends
    places = first + (last - first) * (torch.arange(40000).unsqueeze(-1) + 0.5) / 40000
    distances, expected = (0.0, -0.3, 0.1, 0.4), []
    for distance in distances:
        at = base(0.2 + distance)
        moved = track.costs_at(places, distance)
        low, high = support_bounds(at)
        inside = ((moved >= low) & (moved <= high)).all(-1) & problem.expand((40000, 2)).contains(moved, value)
        # With the Jacobian, of two costs of each row that are multiplied, and of those that the parameter moves.
        within = moved.maximum(low).minimum(high)
        if is_bounded:
            # The density and the Jacobian of costs that hold their quantile cancel.
            held, unit = value == 0, track.costs_at(torch.ones(2), distance) - track.costs_at(torch.zeros(2), distance)
            quantiles = [at.base_dist.cdf(within)[..., held], here.base_dist.cdf(costs)[held].expand(40000, -1)]
            torch.testing.assert_close(*quantiles, rtol=1e-9, atol=1e-12)
            weights = (at.base_dist.log_prob(within) + unit.log()).where(~held, torch.zeros(())).sum(-1)
        else:
            weights = at.log_prob(within) + distance * growth.sum(-1) + 2 * places * track._multiplies
        expected.append(weights.masked_fill(~inside, -math.inf).logsumexp(0).sum())
    tables = track.log_mass(torch.tensor(distances).double())
    assert torch.stack(expected).isfinite().sum() >= 2
    torch.testing.assert_close(tables - tables[0], torch.stack(expected) - expected[0], rtol=0.0, atol=0.04)
    for distance, mass in zip(distances, tables, strict=True):
        if mass == -math.inf:
            continue
        at, start = base(0.2 + distance), track.log_weight(here, torch.zeros(2).double(), 0.0)
        x, log_density = track.draw(distance)
        assert problem.contains(track.costs_at(x, distance), value).all()
        ratio = track.log_weight(at, x, distance) - start - log_density + track.log_density_here()
        torch.testing.assert_close(ratio, mass - tables[0], rtol=0.0, atol=0.1)


@pytest.mark.parametrize("name", ON_TRACKS)
def test_tracks_lead_back(name, monkeypatch):
    """From all points of the surface of parameters and noise, it is the same, with the same measure."""
    monkeypatch.setattr(tracks, "FEW_COSTS", 2)
    pyro.set_rng_seed(0)
    (costs_of, _), problem = ON_TRACKS[name], TopK(3, 2)
    here, there, other = (costs_of(torch.tensor(psi, dtype=torch.double)) for psi in (0.2, 0.4, 0.5))
    costs, x = here.sample().double(), torch.tensor([0.05, -0.1]).double()
    value = problem.solve(costs)
    moved = cost_track(here, other, 0.3, costs, problem, value, torch.double).costs_at(x, 0.2)
    assert not torch.isclose(moved, costs).all(-1).any()
    back = cost_track(there, other, 0.1, moved, problem, value, torch.double).costs_at(-x, -0.2)
    torch.testing.assert_close(back, costs)


@pytest.mark.parametrize("place", [0.0, 0.5])
def test_costs_that_shrink_keep_their_digits(place):
    """By 28 orders of magnitude: they are no differences of those before."""
    pyro.set_rng_seed(0)
    problem, features = Matching(3), 16 * torch.randn(20, 3, 3, dtype=torch.double)

    def base(s):
        return dist.Normal(0.0, (s * features).exp()).to_event(2)

    here = base(0.0)
    costs = here.sample()
    value = problem.solve(costs)
    track = cost_track(here, base(1.0), 1.0, costs, problem, value, torch.double)
    for distance in (0.0, 2.0, -2.0):
        moved = track.costs_at(torch.full((20,), place, dtype=torch.double), distance)
        incurred = problem.incidence(value) * (distance * features).exp()
        expected = costs * (distance * features).exp() + place * incurred
        torch.testing.assert_close(moved, expected, rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("name", ON_TRACKS)
def test_tables_are_those_of_compiled_loops(name, hide_numba):
    """The same numbers where numba is not installed."""
    (costs_of, _), problem, found = ON_TRACKS[name], TopK(3, 2), []
    here, other = (costs_of(torch.tensor(psi, dtype=torch.double)) for psi in (0.2, 0.5))
    pyro.set_rng_seed(0)
    costs = here.sample((20,)).double()
    here, other = here.expand([20, 2]), other.expand([20, 2])
    for hide in (lambda: None, hide_numba):
        hide()
        pyro.set_rng_seed(1)
        track = cost_track(here, other, 0.3, costs, problem, problem.solve(costs), torch.double)
        # Up to a constant.
        found.append(track.log_mass(torch.tensor([0.0, 0.01, -0.01]).double()).diff())
    assert found[0].isfinite().any()
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


MULTIPLIED = {
    "rates": lambda psi, slopes: dist.Exponential((psi * slopes).exp()),
    "rates of gamma costs": lambda psi, slopes: dist.Gamma(torch.tensor(2.0).double(), (psi * slopes).exp()),
    "scales of half-Cauchy costs": lambda psi, slopes: dist.HalfCauchy((psi * slopes).exp()),
    "upper ends": lambda psi, slopes: dist.Uniform(0.3 * slopes, 0.3 * slopes + (psi * slopes).exp()),
    "locations of log-normal costs": lambda psi, slopes: dist.LogNormal(psi * slopes, 0.7),
}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("make", [partial(Matching, 5), partial(TopK, 25, 5)], ids=["matching", "best"])
@pytest.mark.parametrize("name", MULTIPLIED)
def test_ends_of_multiples_keep_their_digits(name, make, maximize):
    """Optima stay optimal up to there, and no farther, however far tables reach: one row of outliers moves all ends."""
    pyro.set_rng_seed(0)
    problem = make(maximize=maximize)
    slopes = torch.randn(100, *problem.cost_shape).double()
    here, other = (MULTIPLIED[name](psi, slopes).to_event(len(problem.cost_shape)) for psi in (1.0, 1.5))
    costs = here.sample()
    value = problem.solve(costs)
    track = cost_track(here, other, 0.5, costs, problem, value, torch.double)
    assert track._multiplies
    for distance in (0.0, 0.01):
        end = track._ends_at(torch.tensor([distance]).double())[0 if maximize else 1].squeeze(-1)
        # Those that the table holds; the optimum may be nowhere one at other distances.
        inside = (end > track._table.ends[0]) & (end < track._table.ends[1])
        assert inside.sum() > 20
        for step, is_optimal in ((-1e-6, not maximize), (1e-6, maximize)):
            found = problem.contains(track.costs_at(end + step, distance), value)
            assert (found == is_optimal)[inside].all()


@pytest.mark.parametrize("too_far", [0.0, 0.2])
def test_maximal_costs_stay_in_their_inverse_sets(too_far, monkeypatch):
    """Joint moves of rates, whatever the noise of all rows; and wherever chords end: moves beyond are refused."""
    ends_at = tracks.CostTrack._ends_at

    def longer(track, distance):
        low, high = ends_at(track, distance)
        return low - too_far, high

    monkeypatch.setattr(tracks.CostTrack, "_ends_at", longer)
    pyro.set_rng_seed(0)
    problem, slopes = Matching(5, maximize=True), torch.randn(40, 5, 5).double()
    value = problem.solve(dist.Exponential(slopes.exp()).sample())

    def model():
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", 40):
            pyro.sample("y", RandOM(dist.Exponential((psi * slopes).exp()).to_event(2), problem), obs=value)

    mcmc = MCMC(ConstrainedSlice(model), num_samples=20, warmup_steps=5, disable_progbar=True)
    mcmc.run()
    samples = mcmc.get_samples()
    assert too_far or samples["psi"].unique().numel() > 15
    assert problem.contains(samples["y_costs"], value.expand(20, 40, 5)).all()


@pytest.mark.parametrize("maximize", [False, True])
def test_bounded_tracks_far_in_a_tail(maximize):
    """Where all costs between bounds are more than a hundred deviations from the location: against a sum."""
    problem, sign, high = TopK(2, 1, maximize=maximize), -1.0 if maximize else 1.0, math.inf if maximize else 1.0

    def base(psi):
        loc, scale = torch.tensor([[sign * 32 * psi, 0.5]]).double(), torch.tensor([[0.3, 1.0]]).double()
        return TruncatedNormal(loc, scale * (1 + psi / 10), 0.0, high).to_event(1)

    costs = torch.tensor([[3.0, 1.0] if maximize else [0.2, 0.6]]).double()
    value = problem.solve(costs)
    track = cost_track(base(0.0), base(1.0), 1.0, costs, problem, value, torch.double)
    assert isinstance(track, BoundedTrack)
    ends = track._least.clamp(min=-10.0).item(), track._most.clamp(max=10.0).item()
    x = torch.linspace(*ends, 400_001, dtype=torch.double)[1:-1]
    expected = []
    for distance in (0.0, 1.0):
        moved = track.costs_at(x.unsqueeze(-1), distance)
        weights = base(distance).base_dist.log_prob(moved)[..., 0, 0]
        weights = weights.masked_fill(~problem.contains(moved, value).squeeze(-1), -math.inf)
        unit = (track.costs_at(torch.ones(1).double(), distance) - track.costs_at(torch.zeros(1).double(), distance))[
            0, 0
        ]
        expected.append(weights.logsumexp(0) + unit.log())
        draws = torch.stack([track.costs_at(track.draw(distance)[0], distance) for _ in range(100)])
        assert problem.contains(draws, value).all()
    found = track.log_mass(torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(found.diff()[0], expected[1] - expected[0], rtol=0.0, atol=0.01)


def test_bounded_tracks_hold_what_numbers_hold():
    """Quantiles that overflow are out of reach, and those beyond all numbers have no track."""
    problem, value = TopK(2, 1), torch.tensor([[1, 0]])

    def base(psi, scale=1.0):
        loc = torch.tensor([[0.0, -1e4 * psi]]).double()
        return TruncatedNormal(loc, torch.tensor([[1.0, scale]]).double() * math.exp(psi), 0.0, math.inf).to_event(1)

    costs = torch.tensor([[0.5, 30.0]]).double()
    track = cost_track(base(0.0), base(0.1), 0.1, costs, problem, value, torch.double)
    masses = track.log_mass(torch.tensor([0.0, 0.1]).double())
    assert masses[0].isfinite() and not masses.isnan().any()
    assert cost_track(base(0.0, 0.5), base(0.1, 0.5), 0.1, costs, problem, value, torch.double) is None


def test_heavy_tails():
    """Of enough costs of a row together: against sums over a grid between the ends of chords."""
    pyro.set_rng_seed(0)
    slopes, problem = torch.randn(2, 6).double(), TopK(6, 2)
    here, there, other = (dist.Cauchy(psi * slopes, 0.7).to_event(1) for psi in (0.2, 0.4, 0.5))
    costs = here.sample()
    value = problem.solve(costs)
    track = cost_track(here, other, 0.3, costs, problem, value, torch.double)
    low, high = (end.clamp(-1e3, 1e3) for end in problem.chord(costs, value, slopes))
    shares = (torch.arange(100_000).unsqueeze(-1).double() + 0.5) / 1e5
    places, expected = low + (high - low) * shares, []
    for at, distance in ((here, 0.0), (there, 0.2)):
        weights = at.log_prob(track.costs_at(places - distance, distance))
        expected.append(weights.logsumexp(0).sum())
    masses = track.log_mass(torch.tensor([0.0, 0.2]).double())
    torch.testing.assert_close(masses.diff()[0], expected[1] - expected[0], rtol=0.0, atol=0.02)


def test_bounds_that_leave_a_track():
    """Bounds that stayed, or followed, and do the other as parameters go on."""
    costs, zeros = torch.ones(2, 3).double(), torch.zeros(2, 3).double()
    low, high = -torch.ones(2).double(), torch.ones(2).double()

    def base(psi, low, high):
        return TruncatedNormal(psi * SLOPES, 1.0, psi * SLOPES * low - 2, psi * SLOPES * high + 3).to_event(1)

    for low_follows, high_follows in itertools.product([0, 1], repeat=2):
        pair = base(0.0, 0, 0), base(0.5, low_follows, high_follows)
        track = cost_track(*pair, 0.5, costs, Between(low, high), zeros, torch.double)
        for others in itertools.product([0, 1], repeat=2):
            assert track.fits(base(0.3, *others), 0.3) == (others == (low_follows, high_follows))


def test_a_move_that_fails_ends_no_line(monkeypatch):
    """Else lines would be shorter at some places than at others, which changes how often a chain is there."""
    called = []
    monkeypatch.setattr(Interweave, "_collapses", lambda *_: True)
    monkeypatch.setattr(Interweave, "_collapsed", lambda *_, **__: called.append(1))

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        pyro.sample("y", RandOM(dist.Normal(psi * SLOPES[0], 1.0).to_event(1), Ranking(3)), obs=y)

    kernel, costs = Interweave(model, num_moves=5), torch.arange(3.0).double()
    kernel.prepare(NamedLatents(model), ["psi", "y_costs"], 0, (torch.arange(3),), {})
    values = kernel.step({"psi": torch.zeros(()).double(), "y_costs": costs})
    assert len(called) == 5 and values["psi"] == 0 and not torch.equal(values["y_costs"], costs)


def test_what_has_no_track():
    """Noise that changes, bounds that move by themselves, and heavy tails of few costs; costs that move in both ways,
    and scales that grow by different factors, where coefficients are other than zeros and ones, some optimum incurs
    nothing, or factors of jointly normal costs change.
    """
    costs, zeros = torch.ones(2, 3).double(), torch.zeros(2, 3).double()
    problem, value = Between(-torch.ones(2).double(), torch.ones(2).double()), zeros
    cases = [
        (dist.Cauchy(zeros, 1.0), dist.Cauchy(SLOPES, 1.0)),
        (dist.Gamma(zeros + 1, 1.0), dist.Gamma(zeros + 2, 2.0)),
        (dist.StudentT(zeros + 1, 1.0), dist.StudentT(zeros + 2, 2.0)),
        (dist.LogNormal(zeros, 1.0), dist.LogNormal(SLOPES, 2.0)),
        (dist.Weibull(zeros + 1, 1.0), dist.Weibull(zeros + 1, 2.0)),
        (dist.Normal(zeros, 1.0), dist.Laplace(SLOPES, 1.0)),
        (TruncatedNormal(zeros, 1.0, -1.0, 2.0), TruncatedNormal(SLOPES, 1.0, -1.0, 2.5)),
        (TruncatedNormal(zeros, 1.0, -1.0), TruncatedNormal(zeros, 1.0, -0.5)),
    ]
    for base, other in cases:
        assert cost_track(base.to_event(1), other.to_event(1), 0.5, costs, problem, value, torch.double) is None
    joint = [dist.MultivariateNormal(zeros, scale_tril=FACTOR * factor) for factor in (1.0, 1 + torch.eye(3))]
    assert cost_track(*joint, 0.5, costs, problem, costs, torch.double) is None
    normal, some, in_one_row = dist.Normal(zeros, 1.0).to_event(1), costs, torch.tensor([[1.0, 0.0, 0.0], [0.0] * 3])
    for other in (dist.Normal(SLOPES, 2.0).to_event(1), dist.Normal(zeros, 1.0 + SLOPES**2).to_event(1)):
        for is_binary, incidence in itertools.product([True, False], [some, in_one_row]):
            problem.is_binary = is_binary
            track = cost_track(normal, other, 0.5, costs, problem, incidence, torch.double)
            assert (track is not None) == (is_binary and incidence is some)


@pytest.mark.parametrize("dtype, rounding", [(torch.float32, 1e-4), (torch.float64, 1e-9)])
def test_bends_that_rounding_explains(dtype, rounding):
    """Of each location, relative to its change for one unit of distance and its scale, and of scales."""
    slope = torch.tensor([1.0, -3.0, 0.0], dtype=torch.double)
    problem, value = Between(-torch.ones(()).double(), torch.ones(()).double()), torch.zeros(3)
    base, other = dist.Normal(0 * slope, 0.5).to_event(1), dist.Normal(2 * slope, 0.5).to_event(1)
    track = cost_track(base, other, 2.0, 0.1 * slope, problem, value, dtype)
    for share, is_straight in ((0.0, True), (0.9, True), (1.1, False)):
        for bend in (torch.tensor([0.0, 3.5, 0.0]), torch.tensor([0.0, 0.0, 0.5])):
            bent = dist.Normal(slope + share * rounding * bend, 0.5).to_event(1)
            assert track.fits(bent, 1.0) == is_straight
        assert track.fits(dist.Normal(slope, 0.5 * (1 + share * rounding)).to_event(1), 1.0) == is_straight


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


def log_probability_of_order(locations, order):
    """Of normal costs of standard deviation 1 in increasing order, by integrals of one after the other."""
    grid = torch.linspace(-15, 15, 3001).double()
    below = torch.ones(3001).double()
    for item in order:
        density = dist.Normal(locations[item], 1.0).log_prob(grid).exp() * below
        below = torch.nn.functional.pad(((density[1:] + density[:-1]) / 2).cumsum(0) * (grid[1] - grid[0]), (1, 0))
    return below[-1].log()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-2, 1e-5])
def test_chains_come_from_far(scale):
    """From costs that are farther from their locations than tables of their noise reach."""
    pyro.set_rng_seed(0)
    problem, features = Ranking(4), torch.randn(15, 4, dtype=torch.double)
    costs = features + torch.randn_like(features)

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", 15):
            pyro.sample("y", RandOM(dist.Normal(psi * features, scale).to_event(1), problem), obs=y)

    start = {"psi": torch.tensor(-2.0).double()}
    mcmc = MCMC(ConstrainedSlice(model), num_samples=150, warmup_steps=60, disable_progbar=True, initial_params=start)
    mcmc.run(problem.solve(costs))
    found = mcmc.get_samples()["psi"] / scale
    report = mcmc.diagnostics()
    assert report["Interweave collapsed moves"]["chain 0"] > 200
    assert report["Interweave refused moves"]["chain 0"] < 30
    grid = torch.linspace(-1, 4, 26).double()
    orders = costs.argsort(-1)
    log_density = [
        sum(log_probability_of_order(each, order) for each, order in zip(psi * features, orders, strict=True))
        for psi in grid
    ]
    weights = torch.stack(log_density).softmax(0)
    mean = weights @ grid
    deviation = (weights @ (grid - mean) ** 2).sqrt()
    effective = effective_number(report["psi"], len(found))
    assert abs(found.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(found.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


@pytest.mark.slow
def test_chains_that_do_not_move_say_so():
    """Noise that is lost to rounding next to the costs of the start."""
    pyro.set_rng_seed(0)
    problem, features = Ranking(4), torch.randn(15, 4, dtype=torch.double)

    def model(y):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", 15):
            pyro.sample("y", RandOM(dist.Normal(psi * features, 1e-20).to_event(1), problem), obs=y)

    y = problem.solve(features + torch.randn_like(features))
    for psi in (2.0, 0.0):
        start = {"psi": torch.tensor(psi).double()}
        mcmc = MCMC(
            ConstrainedSlice(model), num_samples=50, warmup_steps=20, disable_progbar=True, initial_params=start
        )
        with pytest.warns(UserWarning, match="psi: hardly moved") if psi else contextlib.nullcontext():
            mcmc.run(y)
    assert ((mcmc.get_samples()["psi"] / 1e-20).abs() < 5).all()


@pytest.mark.slow
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
    found = mcmc.get_samples()["psi"]
    effective = effective_number(mcmc.diagnostics()["psi"], len(found))
    assert abs(found.mean() - mean) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(found.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


@pytest.mark.slow
def test_costs_whose_entries_are_in_plates():
    """One problem, whose rows or entries are those of a plate: the whole is one row."""
    pyro.set_rng_seed(0)
    problem, value, eye = Matching(2), torch.tensor([0, 1]), torch.eye(2, dtype=torch.double)

    def model():
        mu = pyro.sample("mu", dist.Normal(torch.zeros(()).double(), 1.0))
        with pyro.plate("rows", 2):
            costs = pyro.sample("costs", dist.Normal(mu * eye, 1.0).to_event(1))
        pyro.sample("y", Argmin(costs, problem), obs=value)
        with pyro.plate("items", 3):
            others = pyro.sample("others", dist.Normal(mu * SLOPES[0], 1.0))
        pyro.sample("order", Argmin(others, Ranking(3)), obs=torch.tensor([0, 1, 2]))

    mcmc = MCMC(ConstrainedSlice(model), num_samples=250, warmup_steps=50, disable_progbar=True)
    mcmc.run()
    samples, found = mcmc.get_samples()["mu"], mcmc.diagnostics()
    assert found["Interweave collapsed moves"]["chain 0"] > 300
    mu = torch.randn(400_000, dtype=torch.double)
    costs, others = mu[:, None, None] * eye, mu[:, None] * SLOPES[0]
    kept = problem.contains(costs + torch.randn_like(costs), value)
    kept &= Ranking(3).contains(others + torch.randn_like(others), torch.tensor([0, 1, 2]))
    effective = effective_number(found["mu"], len(samples))
    deviation = mu[kept].std()
    assert abs(samples.mean() - mu[kept].mean()) < most_standard_errors(effective) * deviation / math.sqrt(effective)
    assert abs(samples.std() - deviation) < most_standard_errors(effective) * deviation / math.sqrt(2 * effective)


def test_parameters_stay_away_from_poles():
    """Exponentials of unconstrained values underflow to zero, where the density of this prior is infinite."""
    pyro.set_rng_seed(0)

    def model(y):
        shape = pyro.sample("shape", dist.Gamma(0.1, 1.0))
        with pyro.plate("rows", 3):
            base = dist.Normal(shape * torch.arange(3.0), 1.0).to_event(1)
            pyro.sample("y", RandOM(base, Ranking(3)), obs=y)

    kernel = Interweave(model, num_directions=200, num_moves=1)
    y = torch.tensor([[2, 1, 0]] * 3)
    kernel.prepare(NamedLatents(model), ["shape", "y_costs"], 0, (y,), {})
    costs = torch.tensor([3.0, 2.0, 1.0]).double().expand(3, 3)
    assert kernel.step({"shape": torch.tensor(1e-36), "y_costs": costs})["shape"] > 0


def test_costs_without_noise_are_refused():
    def model(y):
        rate = pyro.sample("rate", dist.Gamma(2.0, 2.0))
        pyro.sample("y", RandOM(dist.Beta(2.0, rate.expand(3)).to_event(1), TopK(3, 1)), obs=y)

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
        spread.add({"x": value, "y": value})
    deviation = values[:200].std(0)
    free = {"x": values[0], "y": values[0]}
    drawn = torch.stack([spread.direction(free, ("x",))["x"] for _ in range(3_000)]) / deviation
    torch.testing.assert_close(drawn.norm(dim=-1), torch.ones(len(drawn)), rtol=0.01, atol=0.0)
    torch.testing.assert_close(drawn.square().mean(0), torch.full((3,), 1 / 3), rtol=0.1, atol=0.0)
    assert not spread.direction(free, ("x",))["y"].any()


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
