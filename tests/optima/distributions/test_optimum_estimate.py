"""Estimated log-probabilities of random optima as functions of parameters: gradients, shapes, refusals."""

import itertools
import math
import pickle
import re
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import HMC, MCMC, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.infer.autoguide.initialization import init_to_value
from scipy.stats import multivariate_normal

from pyro_structured.distributions import EstimateWarning, RandOM, TruncatedNormal
from pyro_structured.inference import PlainMonteCarlo, ShellSMC, Splitting
from pyro_structured.structures import Matching, Ranking, ShortestPath, TopK
from pyro_structured.testing.standard_errors import most_standard_errors

pytestmark = pytest.mark.statistical

NUM_RUNS = 20
LOC = torch.tensor([0.0, 1.0, 0.3, -0.7]).double()
SCALE = torch.tensor([1.0, 0.5, 2.0, 0.7]).double()
# Gradients lead through places of which few particles say little.
UNCERTAIN = pytest.mark.filterwarnings("ignore::pyro_structured.distributions.EstimateWarning")
SQUARE = torch.tensor([[0.1, 0.6, 0.9], [0.5, 0.2, 0.3], [0.7, 0.4, 0.2]]).double()


def gradients(make, estimator, value, parameters):
    """Those of independent estimates, on the first axis, of all parameters in one vector."""
    found = []
    for _ in range(NUM_RUNS):
        leaves = [parameter.clone().requires_grad_() for parameter in parameters]
        base, problem = make(*leaves)
        estimate = RandOM(base, problem, estimator=estimator).estimate_log_prob(value)[0]
        found.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(estimate, leaves)]))
    return torch.stack(found)


EXACT = {
    "matching": (
        lambda loc, scale: (dist.Normal(loc.reshape(2, 2), scale.reshape(2, 2)).to_event(2), Matching(2)),
        ShellSMC(1000),
        torch.tensor([1, 0]),
    ),
    "order": (
        lambda loc, scale: (dist.Normal(loc, scale).to_event(1), Ranking(4, maximize=True)),
        ShellSMC(1000),
        torch.tensor([0, 3, 1, 2]),
    ),
    "order of truncated costs": (
        lambda loc, scale: (TruncatedNormal(loc, scale, -1.0, 1.5).to_event(1), Ranking(4)),
        Splitting(200),
        torch.tensor([0, 3, 1, 2]),
    ),
    "set": (
        lambda loc, scale: (dist.Laplace(loc, scale).to_event(1), TopK(4, 2)),
        Splitting(400),
        torch.tensor([0.0, 1.0, 0.0, 1.0]),
    ),
    "set of positive costs": (
        lambda loc, scale: (dist.Weibull(scale, 1.5 + loc).to_event(1), TopK(4, 2, maximize=True)),
        PlainMonteCarlo(10_000),
        torch.tensor([0.0, 1.0, 0.0, 1.0]),
    ),
}


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", EXACT)
def test_gradients_against_exact(name):
    torch.manual_seed(0)
    make, estimator, value = EXACT[name]
    leaves = [LOC.clone().requires_grad_(), SCALE.clone().requires_grad_()]
    exact = torch.cat(torch.autograd.grad(RandOM(*make(*leaves)).log_prob(value), leaves))
    found = gradients(make, estimator, value, (LOC, SCALE))
    error = found.std(0) / math.sqrt(NUM_RUNS)
    assert ((found.mean(0) - exact).abs() < most_standard_errors(NUM_RUNS) * error).all()
    assert error.norm() < 0.15 * exact.norm()


def log_identity(loc, scale):
    """Of three rows: five differences of normal costs are negative, one of which the others determine."""
    others = [order for order in itertools.permutations(range(3)) if order != (0, 1, 2)]
    identity = torch.eye(3).flatten()
    change = torch.stack([identity - torch.eye(3)[list(order)].flatten() for order in others]).double()
    covariance = change @ torch.diag(scale.flatten() ** 2) @ change.T
    mean = (change @ loc.flatten()).numpy()
    peer = multivariate_normal(mean, covariance.numpy(), allow_singular=True, seed=0, maxpts=10**6, abseps=1e-5)
    return math.log(peer.cdf([0.0] * 5))


def test_gradients_of_three_rows_against_differences_of_scipy():
    torch.manual_seed(0)
    scale, step, zero = 0.3 + SQUARE / 2, 0.05, torch.zeros(3, 3, dtype=torch.double)

    def make(loc, scale):
        return dist.Normal(loc, scale).to_event(2), Matching(3)

    found = gradients(make, ShellSMC(1000), torch.arange(3), (SQUARE, scale))
    dearer, wider = torch.eye(3, dtype=torch.double) - 0.5, torch.ones(3, 3, dtype=torch.double) - scale
    for direction in (torch.stack([dearer, zero]), torch.stack([zero, wider])):
        ends = [log_identity(SQUARE + t * direction[0], scale + t * direction[1]) for t in (-step, step)]
        slopes = found @ direction.flatten()
        error = slopes.std() / math.sqrt(NUM_RUNS)
        assert error < 0.1 * slopes.mean().abs()
        assert (slopes.mean() - (ends[1] - ends[0]) / (2 * step)).abs() < most_standard_errors(NUM_RUNS) * error + 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_forward_mode_is_refused():
    """Of the estimate, and of its gradient."""

    def log_prob(loc):
        model = RandOM(dist.Normal(loc, 1.0).to_event(1), TopK(4, 2), estimator=Splitting(20, 2))
        return model.estimate_log_prob(value)[0]

    loc, value = torch.zeros(4).double(), torch.tensor([1.0, 1, 0, 0])
    message = "log_prob: an estimated log-probability has no forward-mode derivatives; use torch.func.grad, vjp or jac"
    for function in (log_prob, torch.func.grad(log_prob)):
        with warnings.catch_warnings(), pytest.raises(NotImplementedError, match=message):
            warnings.simplefilter("ignore", EstimateWarning)
            torch.func.jvp(function, (loc,), (torch.ones_like(loc),))


def test_second_derivatives_are_refused():
    loc = SQUARE.clone().requires_grad_()
    model = RandOM(dist.Normal(loc, 1.0).to_event(2), Matching(3), estimator=ShellSMC(100))
    (grad,) = torch.autograd.grad(model.log_prob(torch.arange(3)), loc, create_graph=True)
    with pytest.raises(NotImplementedError, match="log_prob: the gradient of an estimated .*take gradients only once"):
        torch.autograd.grad(grad.square().sum(), loc)


@UNCERTAIN
def test_parameters_that_move_the_support_are_refused():
    """Their derivatives are not what Fisher's identity says; other parameters of the same costs have theirs."""
    torch.manual_seed(0)
    moving = SQUARE.clone().requires_grad_()
    affine = torch.distributions.AffineTransform(moving, 2.0)
    bases = {
        "Uniform": dist.Uniform(moving, 2.0),
        "TruncatedNormal": TruncatedNormal(0.0, 1.0, -1.0, moving),
        "TransformedDistribution": dist.TransformedDistribution(dist.Uniform(torch.zeros(3, 3), 1.0), [affine]),
        "Pareto": dist.Pareto(moving, 1.0),
    }
    for name, base in bases.items():
        model = RandOM(base.to_event(2), Matching(3), estimator=PlainMonteCarlo(10))
        with pytest.raises(ValueError, match=f"base: .*no derivatives, got {name}, .*requires gradients; .*detach it"):
            model.log_prob(torch.arange(3))
        with torch.no_grad():
            assert model.log_prob(torch.arange(3)) <= 0
    for base in (TruncatedNormal(moving, moving, 0.0, 1.0), dist.Gumbel(moving, moving), dist.Weibull(moving, moving)):
        model = RandOM(base.to_event(2), Matching(3), estimator=PlainMonteCarlo(1000))
        (grad,) = torch.autograd.grad(model.log_prob(torch.arange(3)), moving)
        assert grad.isfinite().all() and (grad != 0).all()


def test_batches_sample_axes_and_infeasible_values():
    torch.manual_seed(0)
    allowed = torch.ones(2, 3, 3, dtype=torch.bool)
    allowed[1, 0, 0] = False
    loc = torch.stack([SQUARE, SQUARE.T]).unsqueeze(1).float().requires_grad_()
    model = RandOM(dist.Normal(loc, 0.3).to_event(2), Matching(3, allowed=allowed), estimator=ShellSMC(2000, 40))
    values = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]]).reshape(3, 1, 1, 3)
    found, error = model.estimate_log_prob(values)
    assert found.shape == error.shape == (3, 2, 2) and found.dtype == torch.float32
    assert (found[0, :, 1] == -torch.inf).all() and (error[0, :, 1] == 0).all()
    found[found > -torch.inf].sum().backward()
    assert loc.grad.isfinite().all() and (loc.grad != 0).all()
    for i, j, k in itertools.product(range(3), range(2), range(2)):
        alone = RandOM(dist.Normal(loc[j, 0].detach(), 0.3).to_event(2), model.problem[k], estimator=model.estimator)
        value, spread = alone.estimate_log_prob(values[i, 0, 0])
        distance = (value - found[i, j, k]).abs() / (spread**2 + error[i, j, k] ** 2).sqrt()
        assert value == found[i, j, k] or distance < most_standard_errors(40)


def test_without_validation_nothing_is_feasible_that_is_not():
    model = RandOM(dist.Normal(SQUARE, 1.0).to_event(2), Matching(3), estimator=ShellSMC(100), validate_args=False)
    values = torch.tensor([[0, 1, 1], [0, 1, 3], [0, 1, 2]])
    assert (model.log_prob(values) > -torch.inf).tolist() == [False, False, True]
    with pytest.raises(ValueError, match="Expected value argument"):
        RandOM(model.base, model.problem, model.estimator, validate_args=True).estimate_log_prob(values)


def test_the_estimator_goes_along():
    model = RandOM(dist.Normal(SQUARE, 1.0).to_event(2), Matching(3), estimator=ShellSMC(100))
    for other in (model.expand((5,)), pickle.loads(pickle.dumps(model))):
        assert repr(other.estimator) == repr(model.estimator)
        assert other.log_prob(torch.arange(3)).shape == other.batch_shape
    assert not model.has_enumerate_support


def test_exact_methods_come_first():
    model = RandOM(dist.Normal(LOC, SCALE).to_event(1), TopK(4, 2), estimator=PlainMonteCarlo(10))
    value = model.enumerate_support()
    assert torch.equal(model.log_prob(value), RandOM(model.base, model.problem).log_prob(value))


def test_arguments():
    base = dist.Normal(SQUARE, 1.0).to_event(2)
    with pytest.raises(ValueError, match=r"estimator: expected an estimator, such as ShellSMC\(1000\), or None, got 3"):
        RandOM(base, Matching(3), estimator=3)
    with pytest.raises(ValueError, match="estimator: expected one, such as RandOM.*, got None"):
        RandOM(base, Matching(3)).estimate_log_prob(torch.arange(3))


@UNCERTAIN
@pytest.mark.parametrize("estimator", [ShellSMC(100), Splitting(40)], ids=repr)
def test_variational_inference(estimator):
    """Of the weight of a feature, which the data say is positive."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    features = torch.rand(10, 3, 3)
    values = Matching(3).solve(2.0 * features + 0.3 * torch.randn(10, 3, 3))

    def model(features, values):
        weight = pyro.sample("weight", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(features)):
            base = dist.Normal(weight * features, 0.3).to_event(2)
            pyro.sample("y", RandOM(base, Matching(3), estimator=estimator), obs=values)

    guide = AutoDelta(model, init_loc_fn=init_to_value(values={"weight": torch.zeros(())}))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.3}), Trace_ELBO())
    losses = [svi.step(features, values) for _ in range(8)]
    assert losses[-1] < losses[0] - 3
    assert 0.3 < guide.median()["weight"] < 4.0


@UNCERTAIN
def test_hamiltonian_monte_carlo():
    """Steps along gradients that are estimates."""
    pyro.set_rng_seed(0)
    features = torch.rand(5, 3, 3)
    values = Matching(3).solve(2.0 * features + 0.3 * torch.randn(5, 3, 3))

    def model():
        weight = pyro.sample("weight", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(features)):
            base = dist.Normal(weight * features, 0.3).to_event(2)
            pyro.sample("y", RandOM(base, Matching(3), estimator=ShellSMC(100)), obs=values)

    run = MCMC(HMC(model, step_size=0.2, num_steps=2, adapt_step_size=False), 10, 5, disable_progbar=True)
    run.run()
    draws = run.get_samples()["weight"]
    assert len(draws.unique()) > 3 and draws[-1] > 0.3


def test_values_of_any_dtype():
    torch.manual_seed(0)
    model = RandOM(dist.Gumbel(SQUARE, 0.5).to_event(2), Matching(3), estimator=Splitting(40))
    for dtype in (torch.double, torch.int32):
        value, error = model.estimate_log_prob(torch.tensor([0, 1, 2], dtype=dtype))
        assert value.isfinite() and 0 < error < 1
    sets = RandOM(dist.MultivariateNormal(LOC, SCALE.diag()), TopK(4, 2), estimator=Splitting(40))
    assert sets.log_prob(torch.tensor([True, False, False, True])).isfinite()


@UNCERTAIN
@pytest.mark.slow
def test_paths():
    """Of costs that must be positive."""
    torch.manual_seed(0)
    roads = torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]])
    loc = torch.zeros(5, requires_grad=True)
    base, problem = dist.LogNormal(loc, 0.5).to_event(1), ShortestPath(roads, 4, 0, 3)
    model = RandOM(base, problem, estimator=Splitting(800, 8))
    model.log_prob(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0])).backward()
    # Cheaper edges of the path, and dearer ones elsewhere, make it more probable.
    assert (loc.grad[[0, 3]] < 0).all() and (loc.grad[[1, 4]] > 0).all()


@pytest.mark.slow
def test_uncertain_estimates_are_told():
    """Of every estimator, also of one's own; infeasible and impossible values are certain."""
    torch.manual_seed(0)

    class Guess(PlainMonteCarlo):
        def estimate(self, base, problem, value):
            return super().estimate(base, problem, value)._replace(standard_error=torch.tensor([0.4, 0.6]))

    loc = torch.tensor([[0.0, 5.0, 9.0, 12.0], [0.0, 0.1, 0.2, 0.3]]).double()
    base, value = dist.Normal(loc, 1.0).to_event(1), torch.tensor([3, 2, 1, 0])
    for estimator in (Guess(10), Splitting(20), ShellSMC(20, 4), PlainMonteCarlo(10)):
        for method in ("log_prob", "estimate_log_prob"):
            model = RandOM(dist.MultivariateNormal(loc, torch.eye(4).double()), Ranking(4), estimator=estimator)
            with pytest.warns(
                EstimateWarning, match=rf"up to 0.5, .* of {re.escape(repr(estimator))}; .*more particles"
            ):
                getattr(model, method)(value)
    uniform = dist.Uniform(10.0 * torch.arange(3.0), 10.0 * torch.arange(3.0) + 1).to_event(1)
    for model in (RandOM(base, Ranking(4), Splitting(400)), RandOM(uniform, TopK(3, 1), Splitting(20))):
        possible = model.sample()
        model.estimate_log_prob(possible)
    assert RandOM(uniform, TopK(3, 1), Splitting(20)).estimate_log_prob(torch.tensor([0.0, 1.0, 0.0]))[1] == 0


def test_warnings_do_not_flood():
    torch.manual_seed(0)
    model = RandOM(dist.MultivariateNormal(LOC, torch.eye(4).double()), TopK(4, 2), estimator=PlainMonteCarlo(1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(20):
            model.estimate_log_prob(torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]]))
    assert len(caught) == 1 and caught[0].filename == __file__
