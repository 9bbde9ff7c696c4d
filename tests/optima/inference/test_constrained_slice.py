"""Posteriors of costs and parameters given observed optima."""

import contextlib
import json

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.infer.mcmc import StreamingMCMC
from scipy.stats import ks_2samp, kstest, ttest_ind

from pyro_structured.distributions import Argmin, RandOM, TruncatedNormal
from pyro_structured.foundation.inference.latent_state import LatentState
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.inference import ConstrainedSlice, Gibbs, Interweave, StepKernel
from pyro_structured.structures import ConnectedComponents, LinearProblem, Matching, Ranking, ShortestPath, TopK
from pyro_structured.testing.standard_errors import FAILURE_RATE, most_standard_errors

pytestmark = pytest.mark.statistical

ROADS = torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]])


def run(model, *args, num_samples=300, warmup_steps=100, seed=0, **options):
    pyro.set_rng_seed(seed)
    mcmc = MCMC(
        ConstrainedSlice(model), num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=True, **options
    )
    mcmc.run(*args)
    return mcmc


def check_chains(model, draws, parameters, *args, num_copies=1_000):
    """Chains that start at exact draws, as rows of a plate, are where other exact draws are after some steps.

    What adapts has no invariant distribution; joint moves do so in warm-up only.
    """
    nuts = NUTS(model, step_size=0.05, adapt_step_size=False, max_tree_depth=4)
    costs = [name for name in draws if name not in parameters]
    blocks = [
        (ConstrainedSlice(model), costs),
        *([(Interweave(model), None), (nuts, parameters)] if parameters else []),
    ]
    start = {name: value[:num_copies] for name, value in draws.items()}
    mcmc = MCMC(Gibbs(blocks), num_samples=5, warmup_steps=0, initial_params=start, disable_progbar=True)
    mcmc.run(*args)
    for name, found in mcmc.get_samples().items():
        assert (found[-1] != start[name]).double().mean() > 0.9
        found, expected = (values.reshape(len(values), -1).T for values in (found[-1], draws[name][num_copies:]))
        for one, other in zip(found, expected, strict=True):
            assert ks_2samp(one, other).pvalue > FAILURE_RATE, name
        # How entries hang together shows in the spread of their sums.
        spreads = [(values.sum(0) - expected.sum(0).mean()).square() for values in (found, expected)]
        assert ttest_ind(*spreads, equal_var=False).pvalue > FAILURE_RATE, name
    return mcmc


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_program_of_matchings(dtype):
    """Features of pairs, a plate of matchings, and predictions given the posterior."""
    pyro.set_rng_seed(1)
    problem, features = Matching(3), torch.randn(4, 3, 3, 2, dtype=dtype)

    def model(features, y=None):
        psi = pyro.sample("psi", dist.Normal(torch.zeros(2, dtype=dtype), 1.0).to_event(1))
        with pyro.plate("pairs", len(features)):
            return pyro.sample("y", RandOM(dist.Normal(features @ psi, 0.5).to_event(2), problem), obs=y)

    y = model(features)
    mcmc = run(model, features, y, num_samples=20, warmup_steps=5)
    samples = mcmc.get_samples()
    assert samples["psi"].shape == (20, 2) and samples["y_costs"].shape == (20, 4, 3, 3)
    assert samples["psi"].dtype == samples["y_costs"].dtype == dtype
    assert problem.contains(samples["y_costs"], y).all()
    assert Predictive(model, samples)(features)["y"].shape == (20, 4, 3)
    diagnostics = mcmc.diagnostics()
    assert diagnostics["divergences"] == {"chain 0": []}
    assert diagnostics["ConstrainedSlice restrictions per step"]["chain 0"] > 0
    assert diagnostics["ConstrainedSlice stuck updates"]["chain 0"] == 0
    json.dumps(mcmc.kernel.logging())


def test_costs_without_parameters():
    """Two matched pairs: the difference of the two totals is a truncated normal variable."""
    loc = torch.tensor([[0.3, 0.0], [0.2, 0.1]])

    def model(y):
        with pyro.plate("rows", 200):
            pyro.sample("y", RandOM(dist.Normal(loc, 0.5).to_event(2), Matching(2)), obs=y)

    costs = run(model, torch.tensor([0, 1]).expand(200, 2), num_samples=40).get_samples()["y_costs"]
    gain = (costs[..., 0, 1] + costs[..., 1, 0] - costs[..., 0, 0] - costs[..., 1, 1])[::10].flatten()
    expected = TruncatedNormal(-0.2, 1.0, 0.0).sample((4_000,))
    assert ks_2samp(gain, expected).pvalue > FAILURE_RATE


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["negated", "shifted", "mixture"])
def test_costs_of_any_distribution(kind):
    """Against costs drawn until the optimum is right."""
    negated, shifted = ([torch.distributions.AffineTransform(*ends)] for ends in ((0.0, -1.0), (1.0, 1.0)))
    parts = dist.Normal(torch.tensor([[-2.0, 0.0, 0.0], [1.0, 0.0, 1.0]]), 0.5).to_event(1)
    base = {
        "negated": dist.TransformedDistribution(dist.Exponential(torch.tensor([1.0, 2.0, 1.0])), negated).to_event(1),
        "shifted": dist.TransformedDistribution(dist.Exponential(torch.tensor([1.0, 2.0, 1.0])), shifted).to_event(1),
        "mixture": dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.3, 0.7])), parts),
    }[kind]

    def model(y):
        with pyro.plate("rows", 300):
            pyro.sample("y", RandOM(base, TopK(3, 1)), obs=y)

    found = run(model, torch.eye(3)[0].expand(300, 3), num_samples=40).get_samples()["y_costs"][9::10].flatten(0, 1)
    expected = base.sample((20_000,))
    expected = expected[expected.argmin(-1) == 0]
    assert found.argmin(-1).eq(0).all()
    for entry in range(3):
        assert ks_2samp(found[:, entry], expected[:, entry]).pvalue > FAILURE_RATE, entry
        assert ks_2samp(found[:, entry] - found[:, 0], expected[:, entry] - expected[:, 0]).pvalue > FAILURE_RATE, entry


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["top k", "solver"])
def test_posterior_given_other_observations(kind):
    """Named costs on which another site depends too."""
    problem = {
        "top k": TopK(3, 1),
        "solver": LinearProblem(lambda costs: torch.nn.functional.one_hot(costs.argmin(-1), 3).double(), (3,)),
    }[kind]
    size = problem.cost_shape[0]
    loc = torch.linspace(0.2, 0.8, size, dtype=torch.double)
    y = problem.solve(torch.linspace(1.0, 0.2, size, dtype=torch.double))

    def model(total, y):
        with pyro.plate("copies", len(y)):
            shift = pyro.sample("shift", dist.Normal(torch.zeros(()).double(), 0.3))
            w = pyro.sample("w", TruncatedNormal(loc + shift.unsqueeze(-1), 0.4, 0.0, 2.0).to_event(1))
            pyro.sample("total", dist.Normal(w.sum(-1), 0.1), obs=total)
            pyro.sample("y", Argmin(w, problem), obs=y)

    total = torch.tensor(2.0).double()
    pyro.set_rng_seed(0)
    shift = 0.3 * torch.randn(200_000).double()
    w = TruncatedNormal(loc + shift.unsqueeze(-1), 0.4, 0.0, 2.0).sample()
    likely = torch.rand(len(w)) < (-((w.sum(-1) - total) ** 2) / (2 * 0.1**2)).exp()
    kept = likely & problem.contains(w, y)
    args = total.expand(1_000), y.expand(1_000, size)
    mcmc = check_chains(model, {"shift": shift[kept], "w": w[kept]}, ["shift"], *args)
    assert problem.contains(mcmc.get_samples()["w"], y).all()
    calls = mcmc.diagnostics()["ConstrainedSlice solver calls per step"]["chain 0"]
    assert (calls > 0) == (kind == "solver")


def test_unobserved_optima_follow_their_costs():
    def model(x):
        with pyro.plate("rows", 2):
            pyro.sample("y", RandOM(dist.Normal(torch.zeros(3), 1.0).to_event(1), TopK(3, 1)))
            pyro.sample("x", RandOM(dist.Normal(torch.ones(3), 1.0).to_event(1), TopK(3, 1, maximize=True)), obs=x)

    x = torch.eye(3)[:2]
    samples = run(model, x, num_samples=30, warmup_steps=10).get_samples()
    assert set(samples) == {"y_costs", "x_costs"}
    assert TopK(3, 1, maximize=True).contains(samples["x_costs"], x).all()


def test_binary_sites_beside_costs():
    """The probability of a zero or one given its own row's optimum is Bayes' rule for two."""

    def base(z):
        return dist.Normal(2 * z[..., None, None] * torch.eye(2), 1.0).to_event(2)

    def model(y):
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.4))
            pyro.sample("y", RandOM(base(z), Matching(2)), obs=y)

    y = torch.tensor([[0, 1], [1, 0]]).repeat(100, 1)
    given = [RandOM(base(torch.tensor(z)), Matching(2)).log_prob(y[:2]) for z in (1.0, 0.0)]
    expected = torch.sigmoid(torch.tensor(0.4).logit() + given[0] - given[1])
    z = run(model, y, num_samples=150, warmup_steps=10).get_samples()["z"].reshape(150, 100, 2)
    # Chains of 100 rows are independent.
    means = z.mean(0)
    assert ((means.mean(0) - expected).abs() < most_standard_errors(100) * means.std(0) / 10).all()
    assert (expected[0] - expected[1]).abs() > 0.2


def test_several_sites_and_streaming():
    def model(y, path):
        mean = pyro.sample("mean", dist.Gamma(2.0, 2.0))
        pyro.sample("y", RandOM(dist.Normal(mean * torch.eye(2), 1.0).to_event(2), Matching(2)), obs=y)
        costs = dist.Exponential(1 / mean).expand([5]).to_event(1)
        pyro.sample("path", RandOM(costs, ShortestPath(ROADS, 4, 0, 3)), obs=path)

    pyro.set_rng_seed(0)
    mcmc = StreamingMCMC(ConstrainedSlice(model), num_samples=20, warmup_steps=10, disable_progbar=True)
    mcmc.run(torch.tensor([0, 1]), torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]))
    assert mcmc.get_statistics(group_by_chain=False).keys() == {"mean", "y_costs", "path_costs"}


TRIPS = ShortestPath(ROADS, 4, torch.tensor([0, 0, 1]), torch.tensor([3, 2, 3]))
SIZES = TopK(3, torch.tensor([1, 2]))


def trips_of_a_plate(y, num_copies):
    with pyro.plate("copies", num_copies, dim=-2):
        w = pyro.sample("w", dist.LogNormal(torch.zeros(5), 1.0).to_event(1))
        with pyro.plate("trips", 3, dim=-1):
            pyro.sample("y", Argmin(w, TRIPS), obs=y.expand(num_copies, 3, 5))


def trips_of_sites(y, num_copies):
    with pyro.plate("copies", num_copies, dim=-2):
        w = pyro.sample("w", dist.LogNormal(torch.zeros(5), 1.0).to_event(1))
        with pyro.plate("trips", 2, dim=-1):
            pyro.sample("y", Argmin(w, TRIPS[:2]), obs=y[:2].expand(num_copies, 2, 5))
        pyro.sample("last", Argmin(w, TRIPS[2]), obs=y[2].expand(num_copies, 1, 5))


@pytest.mark.slow
@pytest.mark.parametrize("model", [trips_of_a_plate, trips_of_sites])
def test_optima_that_share_costs(model):
    """One network, many paths: the costs are in the intersection of all inverse sets."""
    pyro.set_rng_seed(0)
    y = TRIPS.solve(torch.tensor([1.0, 2.0, 0.3, 3.0, 1.5]))
    w = dist.LogNormal(torch.zeros(5), 1.0).sample((20_000, 1))
    kept = w[TRIPS.contains(w, y).all(-1)]
    mcmc = check_chains(model, {"w": kept}, [], y, 300, num_copies=300)
    assert TRIPS.contains(mcmc.get_samples()["w"], y).all()


@pytest.mark.slow
def test_rows_that_share_costs_beside_parameters():
    """Two rows of costs, each with two optima, and a parameter that moves with the costs."""
    direction = torch.tensor([1.0, 0.0, -1.0])
    y = torch.tensor([[[1.0, 0, 0], [1, 1, 0]], [[1.0, 0, 0], [1, 0, 1]]])

    def model(y):
        with pyro.plate("copies", len(y), dim=-3):
            psi = pyro.sample("psi", dist.Normal(0.0, 1.0))
            with pyro.plate("rows", 2, dim=-2):
                w = pyro.sample("w", dist.Normal(psi.unsqueeze(-1) * direction, 1.0).to_event(1))
                with pyro.plate("sizes", 2, dim=-1):
                    pyro.sample("y", Argmin(w, SIZES), obs=y)

    pyro.set_rng_seed(1)
    psi = torch.randn(100_000, 1, 1)
    w = psi.unsqueeze(-1) * direction + torch.randn(100_000, 2, 1, 3)
    kept = SIZES.contains(w, y).flatten(1).all(1)
    mcmc = check_chains(model, {"psi": psi[kept], "w": w[kept]}, ["psi"], y.expand(300, 2, 2, 3), num_copies=300)
    assert SIZES.contains(mcmc.get_samples()["w"], y).all()
    assert mcmc.diagnostics()["Interweave collapsed moves"]["chain 0"] > 0


def test_shared_costs_are_refused():
    edges = torch.tensor([[0, 1], [1, 2]])

    def clusters(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("thresholds", 2):
            pyro.sample("y", Argmin(w, ConnectedComponents(edges, 3, torch.tensor([0.0, 1.0]))), obs=y)

    def shapes(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        pyro.sample("matching", Argmin(w, Matching(2)), obs=torch.tensor([0, 1]))
        pyro.sample("y", Argmin(w, TopK(2, 1)), obs=y)

    def excluded(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("sizes", 2):
            pyro.sample("y", Argmin(w, SIZES), obs=y)

    for model, y, message in (
        (clusters, torch.zeros(2, 3), "y: expected an optimum of a linear objective with costs 'w' .* got ConnectedC"),
        (shapes, torch.eye(2), r"y: expected an optimum .* with costs 'w' of shape \(2, 2\).* got TopK .* \(2,\)"),
        (excluded, torch.tensor([[1.0, 0, 0], [0, 1, 1]]), "y: expected values that some costs in the support of 'w'"),
    ):
        with pytest.raises(ValueError, match=message):
            run(model, y, num_samples=1, warmup_steps=0)


def test_observed_costs_beside_latent_ones():
    """Observed costs have to agree with their optimum, and say something about the parameter."""
    y = torch.eye(3)[0]

    def model(y):
        psi = pyro.sample("psi", dist.Normal(0.0, 1.0))
        for name in ("w", "v"):
            costs = pyro.sample(name, dist.Normal(psi, 0.1).expand([3]).to_event(1))
            pyro.sample(f"{name}_optimum", Argmin(costs, TopK(3, 1)), obs=y)

    samples = run(pyro.condition(model, {"w": 2 - y}), y, num_samples=50, warmup_steps=20).get_samples()
    assert set(samples) == {"psi", "v"} and TopK(3, 1).contains(samples["v"], y).all()
    assert (samples["psi"] - 5 / 3).abs().max() < 0.4
    with pytest.raises(ValueError, match="w_optimum: expected the optimum of the observed costs 'w', got another"):
        run(pyro.condition(model, {"w": y}), y, num_samples=1, warmup_steps=0)


def test_dependents_without_derivatives():
    """A count of positive costs; two must be positive if the observed count is to be likely."""

    def model(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", Argmin(w, TopK(2, 1)), obs=y)
        pyro.sample("z", dist.Normal((w > 0).float().sum(), 0.3), obs=torch.tensor(2.0))

    samples = run(model, torch.tensor([1.0, 0.0]), num_samples=200, warmup_steps=20).get_samples()
    assert (samples["w"] > 0).all(-1).double().mean() > 0.9


def test_problems_that_depend_on_latent_variables():
    """Both edges are open if a normal threshold is the smallest of three."""
    edges = torch.tensor([[0, 1], [1, 2]])

    def model(y):
        with pyro.plate("copies", len(y)):
            threshold = pyro.sample("threshold", dist.Normal(torch.zeros(()).double(), 1.0))
            w = pyro.sample("w", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1))
            pyro.sample("y", Argmin(w, ConnectedComponents(edges, 3, threshold)), obs=y)

    threshold, w = torch.randn(5_000).double(), torch.randn(5_000, 2).double()
    kept = (w > threshold.unsqueeze(-1)).all(-1)
    draws = {"threshold": threshold[kept], "w": w[kept]}
    samples = check_chains(model, draws, ["threshold"], torch.zeros(1_000, 3).long()).get_samples()
    assert (samples["w"] > samples["threshold"].unsqueeze(-1)).all()


def test_start_where_the_observed_value_is_feasible():
    """It is in half of the draws of the initialisation."""

    def model(y):
        psi = pyro.sample("psi", dist.Normal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("y", Argmin(w, TopK(3, 2 if psi > 0 else 1)), obs=y)

    for seed in range(30):
        pyro.set_rng_seed(seed)
        state = LatentState(model, (torch.eye(3)[2],), {})
        assert state.values["psi"] <= 0 and state.values["w"].argmin() == 2
    for y, start in ((torch.ones(3), {}), (torch.eye(3)[2], {"psi": torch.tensor(1.0)})):
        with pytest.raises(ValueError, match="y: expected values that are feasible for TopK, got"):
            LatentState(model, (y,), {}, start)


def test_start_where_bounds_leave_room():
    """Other values of parameters are drawn as long as no costs in the support have the observed optimum."""
    tries = []

    def model(y):
        shift = pyro.sample("shift", dist.Normal(0.0, 10.0))
        tries.append(float(shift))
        low = shift * torch.tensor([1.0, 0.0])
        pyro.sample("y", RandOM(dist.Uniform(low, low + 0.5).to_event(1), TopK(2, 1)), obs=y)

    shifts = run(model, torch.tensor([1.0, 0.0]), num_samples=30).get_samples()["shift"]
    assert max(tries[:100]) > 0.5 > shifts.max()

    def stuck(y):
        tries.append(0.0)
        low = torch.tensor([3.0, 0.0])
        pyro.sample("y", RandOM(dist.Uniform(low, low + 0.5).to_event(1), TopK(2, 1)), obs=y)

    tries.clear()
    with pytest.raises(ValueError, match="y: expected values that some costs in the support of 'y_costs' make optimal"):
        run(stuck, torch.tensor([1.0, 0.0]))
    assert len(tries) < 10


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("width", [3.0, 6.0])
def test_start_where_costs_have_a_density(width, seed):
    """Far in the lower tail of Gumbel variables, densities underflow: NUTS would not say more than that a probability
    is not between 0 and 1.
    """
    pyro.set_rng_seed(seed)
    problem, features = Ranking(5, maximize=True), width * torch.randn(30, 5, dtype=torch.double)
    y = problem.solve(dist.Gumbel(0.0, (0.5 * features).exp()).sample())

    def model():
        s = pyro.sample("s", dist.Normal(torch.zeros((), dtype=torch.double), 1.0))
        with pyro.plate("rows", 30):
            pyro.sample("y", RandOM(dist.Gumbel(0.0, (s * features).exp()).to_event(1), problem), obs=y)

    for _ in range(5):
        state = LatentState(NamedLatents(model), (), {})
        costs, s = state.values["y_costs"], state.values["s"]
        assert dist.Gumbel(0.0, (s * features).exp()).log_prob(costs).isfinite().all()
        assert problem.contains(costs, y).all()
    run(model, num_samples=1, warmup_steps=1, seed=seed)


@pytest.mark.parametrize("given", [{}, {"y_costs": torch.tensor([-1.0, -2.0, -3.0])}])
@pytest.mark.parametrize(
    "base", [dist.Gumbel(torch.zeros(3), 1e-3), dist.Normal(torch.tensor([3.0, 2.0, 1.0]), 1e-24)], ids=["far", "small"]
)
def test_starts_need_no_density_where_no_kernel_asks_for_it(base, given):
    """Updates lead on from given costs, and squares of scales underflow in float32 where costs do not."""
    problem = Ranking(3, maximize=True)

    def model(y):
        pyro.sample("y", RandOM(base.to_event(1), problem), obs=y)

    costs = run(model, torch.arange(3), num_samples=5, initial_params=given).get_samples()["y_costs"]
    assert problem.contains(costs, torch.arange(3)).all()


@pytest.mark.slow
def test_costs_that_are_their_locations():
    """Scales have underflown beside locations."""

    def model(y):
        s = pyro.sample("s", dist.HalfNormal(torch.ones((), dtype=torch.double)))
        pyro.sample("y", RandOM(dist.Normal(torch.tensor([1.0, 2.0, 3.0]).double(), s).to_event(1), Ranking(3)), obs=y)

    start = {"s": torch.tensor(-50.0).double()}
    assert run(model, torch.arange(3), num_samples=300, initial_params=start).get_samples()["s"][-1] > 1e-3


@pytest.mark.slow
def test_moves_to_densities_that_overflow_are_refused():
    """In float32, squares of scales overflow where costs do not: NUTS could not start there."""
    pyro.set_rng_seed(0)
    problem, features = Matching(3), torch.randn(8, 3, 3)
    y = problem.solve(0.5 * features + torch.randn(8, 3, 3))

    def model():
        s = pyro.sample("s", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("rows", 8):
            pyro.sample("y", RandOM(dist.Normal(0.0, (20 * s * features).exp()).to_event(2), problem), obs=y)

    draws = run(model, num_samples=6, warmup_steps=4).get_samples()
    s = draws["s"].reshape(-1, 1, 1, 1)
    assert dist.Normal(0.0, (20 * s * features).exp()).log_prob(draws["y_costs"].float()).isfinite().all()


@pytest.mark.parametrize("weight", ["scale", "mask"])
@pytest.mark.parametrize("site", ["w", "y", "RandOM"])
def test_weights_are_refused(weight, site):
    """An optimum holds or does not hold, and its costs are those of all rows."""
    weights = {
        "scale": pyro.poutine.scale(scale=0.5),
        "mask": pyro.poutine.mask(mask=torch.tensor([True, False])),
    }
    base = dist.Normal(torch.zeros(3), 1.0).to_event(1)

    def model(y):
        with pyro.plate("rows", 2):
            with weights[weight] if site == "w" else contextlib.nullcontext():
                w = pyro.sample("w", base)
            with weights[weight] if site != "w" else contextlib.nullcontext():
                optimum = Argmin(w, TopK(3, 1)) if site != "RandOM" else RandOM(base, TopK(3, 1))
                pyro.sample("y", optimum, obs=y)

    name = "w" if site == "w" else "y"
    alternative = "" if weight == "scale" else "got a mask; leave rows that are not observed out of the plate"
    with pytest.raises(ValueError, match=f"^{name}: expected .* (scale|mask).*{alternative}"):
        run(model, torch.eye(3)[:2], num_samples=1, warmup_steps=0)


@pytest.mark.parametrize("name", ["RandOM", "Argmin", "obs_mask"])
def test_masked_optima_are_refused(name):
    """By the distribution, or by Pyro's argument."""
    base, mask = dist.Normal(torch.zeros(3), 1.0).to_event(1), torch.tensor([True, False])

    def model(y):
        with pyro.plate("rows", 2):
            optimum = Argmin(pyro.sample("w", base), TopK(3, 1)) if name == "Argmin" else RandOM(base, TopK(3, 1))
            masked = {"obs_mask": mask} if name == "obs_mask" else {}
            pyro.sample("y", optimum if masked else optimum.mask(mask), obs=y, **masked)

    message = "^y.*: expected .* neither masked .* got .*; leave rows that are not observed out of the plate"
    with pytest.raises(ValueError, match=message):
        run(model, torch.eye(3)[:2], num_samples=1, warmup_steps=0)


def test_masked_sites_that_depend_on_costs():
    """Costs of a row know nothing of what is masked there."""

    def model(y):
        with pyro.plate("rows", 2):
            w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            pyro.sample("y", Argmin(w, TopK(3, 1)), obs=y)
            with pyro.poutine.mask(mask=torch.tensor([True, False])):
                pyro.sample("total", dist.Normal(w.sum(-1), 0.1), obs=torch.full((2,), 6.0))

    totals = run(model, torch.eye(3)[:2], num_samples=60, warmup_steps=20).get_samples()["w"].sum(-1).mean(0)
    assert (totals[0] - 6.0).abs() < 1.0 and totals[1].abs() < 2.0


def matching_model(y):
    pyro.sample("y", RandOM(dist.Normal(torch.zeros(2, 2), 1.0).to_event(2), Matching(2)), obs=y)


def test_initial_params():
    """Feasible costs are kept, others are refused."""
    swap = torch.tensor([1, 0])
    feasible = torch.tensor([[[5.0, 1.0], [1.0, 5.0]]])
    kernel = ConstrainedSlice(matching_model)
    kernel.initial_params = {"y_costs": feasible[0]}
    kernel.setup(0, swap)
    assert torch.equal(kernel.initial_params["y_costs"], feasible[0])
    run(matching_model, swap, num_samples=2, warmup_steps=0, initial_params={"y_costs": feasible[0]})
    with pytest.raises(ValueError, match="initial_params: expected costs 'y_costs' for which the observed 'y'"):
        run(matching_model, swap, initial_params={"y_costs": -feasible[0]})
    with pytest.raises(ValueError, match="initial_params: expected latent sites"):
        run(matching_model, swap, initial_params={"z": feasible[0]})
    with pytest.raises(ValueError, match="initial_params: expected shape"):
        run(matching_model, swap, initial_params={"y_costs": feasible[0, :1]})


def test_refusals():
    def nothing_observed():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    def derived_costs(y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        pyro.sample("y", Argmin(2 * w, Matching(2)), obs=y)

    def deterministic_costs(y):
        w = pyro.deterministic("w", 2 * pyro.sample("x", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2)))
        pyro.sample("y", Argmin(w, Matching(2)), obs=y)

    def masked(y):
        with pyro.poutine.mask(mask=torch.tensor(True)):
            matching_model(y)

    def detour(y):
        base = dist.Uniform(torch.tensor([0.6, 0.6, 0.1]), 1.0).to_event(1)
        pyro.sample("y", RandOM(base, ShortestPath(torch.tensor([[0, 1], [1, 2], [0, 2]]), 3, 0, 2)), obs=y)

    def subsampled(y):
        with pyro.plate("rows", 10, subsample_size=2):
            matching_model(y)

    def outside(y):
        with pyro.plate("rows", 2):
            w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            pyro.sample("y", Argmin(w, TopK(3, 1)), obs=torch.eye(3)[:2])
        pyro.sample("total", dist.Normal(w.sum(), 1.0), obs=torch.tensor(0.0))

    def categories(y):
        matching_model(y)
        pyro.sample("z", dist.Categorical(torch.ones(3)))

    def moving_support(y):
        matching_model(y)
        pyro.sample("x", dist.Uniform(0.0, pyro.sample("width", dist.Gamma(2.0, 1.0))))

    def shared_costs(y):
        costs = pyro.sample(
            "costs", dist.Normal(pyro.sample("x", dist.Normal(0.0, 1.0)), 1.0).expand([2, 2]).to_event(2)
        )
        with pyro.plate("rows", len(y)):
            pyro.sample("y", Argmin(costs, Matching(2)), obs=y)

    def unknown_rows(y, feature=torch.nan):
        loc = pyro.sample("x", dist.Normal(0.0, 1.0)) * torch.tensor([1.0, feature])[:, None, None]
        with pyro.plate("rows", 2):
            pyro.sample(
                "y",
                RandOM(dist.Normal(loc.expand(2, 3, 3), 1.0, validate_args=False).to_event(2), Matching(3)),
                obs=torch.arange(3).expand(2, 3),
            )

    identity = torch.tensor([0, 1])
    for model, args, message in (
        (nothing_observed, (), "model: expected an observed RandOM or Argmin site, got none"),
        (derived_costs, (identity,), "y: expected costs that are the value of a sample site itself"),
        (deterministic_costs, (identity,), "y: expected costs that are the value of a sample site itself"),
        (masked, (identity,), "y: expected an optimum that is neither masked"),
        (matching_model, (torch.tensor([0, 0]),), "y: expected values that are feasible for Matching"),
        (matching_model, (torch.tensor([0, 1, 2]),), r"y: expected observed values of shape \(2,\), got \(3,\)"),
        (matching_model, (identity.expand(3, 2),), r"y: expected observed values of shape \(2,\), got \(3, 2\)"),
        (matching_model, (identity[:1],), r"y: expected observed values of shape \(2,\), got \(1,\)"),
        (matching_model, ([0, 1],), "y: expected a tensor of observed values, got list"),
        (matching_model, (identity.numpy(),), "y: expected a tensor of observed values, got ndarray"),
        (shared_costs, (identity[:1].expand(3, 1),), r"y: expected observed values of shape \(3, 2\), got \(3, 1\)"),
        (unknown_rows, (identity,), "y_costs: expected .* draws are numbers, got .*first of which is number 1"),
        (
            unknown_rows,
            (identity, torch.inf),
            "y_costs: expected .* draws are finite, got .*first of which is number 1",
        ),
        (
            categories,
            (identity,),
            r"z: expected a binary site for BinaryGibbs, .* got Categorical.* KSubset\(logits, 1\)",
        ),
        (moving_support, (identity,), "x: expected a support that is the same for all latent values"),
        (detour, (torch.tensor([1.0, 1.0, 0.0]),), "y: expected values that some costs in the support of 'y_costs'"),
        (subsampled, (identity,), "rows: expected a plate without subsampling"),
        (outside, (identity,), "total: expected a site in the plates"),
    ):
        with pytest.raises(ValueError, match=message):
            run(model, *args, num_samples=1, warmup_steps=0)
    with pytest.raises(ValueError, match="num_lines: expected an integer of at least 1"):
        ConstrainedSlice(matching_model, num_lines=0)
    with pytest.raises(ValueError, match="model: expected a Pyro model"):
        ConstrainedSlice(None)


@pytest.mark.parametrize(
    "problem", [Matching(3), TopK(3, 1), ShortestPath(torch.tensor([[0, 1], [0, 1], [1, 0]]), 2, 0, 1)]
)
def test_steps_with_prior(problem):
    """Draws beside a sweep follow the prior, whatever the sweep's costs are, and share the unrestricted costs."""
    pyro.set_rng_seed(0)
    rank, number = len(problem.cost_shape), 4000
    base = dist.LogNormal(torch.linspace(0.0, 1.0, problem.cost_shape.numel()).double().view(problem.cost_shape), 0.5)
    start = base.sample((number,))
    y = problem.solve(start)

    def model():
        with pyro.plate("rows", number):
            pyro.sample("y", RandOM(base.expand((number, *problem.cost_shape)).to_event(rank), problem), obs=y)

    kernel = ConstrainedSlice(model)
    kernel.prepare(NamedLatents(model), ["y_costs"], 0, (), {})
    (costs,), (prior,) = kernel.steps_with_prior({"y_costs": start}, 1)
    assert problem.contains(costs["y_costs"], y).all()
    assert kstest(base.cdf(prior["y_costs"]).flatten().numpy(), "uniform").pvalue > FAILURE_RATE
    if isinstance(problem, ShortestPath):
        torch.testing.assert_close(costs["y_costs"][:, 2], prior["y_costs"][:, 2])
    assert not torch.allclose(costs["y_costs"], prior["y_costs"])


def test_steps_in_a_row_are_those_one_after_the_other():
    runs = []

    def one_site(y):
        runs.append(1)
        pyro.sample("y", RandOM(dist.Normal(torch.zeros(2, 2), 1.0).to_event(2), Matching(2)), obs=y)

    def costs_of_costs(y):
        mean = pyro.sample("mean", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        pyro.sample("first", Argmin(mean, Matching(2)), obs=y)
        pyro.sample("y", RandOM(dist.Normal(mean, 0.1).to_event(2), Matching(2)), obs=y)

    costs = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.double)
    for model, names in ((one_site, ["y_costs"]), (costs_of_costs, ["mean", "y_costs"])):
        kernel, values = ConstrainedSlice(model), dict.fromkeys(names, costs)
        with torch.no_grad():
            kernel.prepare(NamedLatents(model), names, 0, (torch.tensor([0, 1]),), {})
            pyro.set_rng_seed(0)
            expected = StepKernel.steps(kernel, values, 3)
            pyro.set_rng_seed(0)
            runs.clear()
            found = kernel.steps(values, 3)
        for one, other in zip(found, expected, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in names)
        assert not torch.equal(found[1][names[-1]], found[2][names[-1]])
        assert len(runs) == (model is one_site)
