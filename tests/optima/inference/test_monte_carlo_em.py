"""Monte Carlo EM, against exact likelihoods."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.optim import SGD, Adam

from pyro_structured.distributions import Argmin, RandOM
from pyro_structured.inference import MCEM, ConstrainedSlice, ShellSMC
from pyro_structured.structures import Matching, ShortestPath, TopK
from pyro_structured.testing.standard_errors import most_standard_errors

pytestmark = pytest.mark.statistical

NUM_ITEMS, TRUTH = 4, torch.tensor([1.0, -0.5], dtype=torch.double)
CHOICE = TopK(NUM_ITEMS, 1)


def choices(features, y=None, batch_size=None):
    weights = pyro.param("weights", torch.zeros_like(TRUTH))
    with pyro.plate("rows", len(features), subsample_size=batch_size) as rows:
        base = dist.Normal(features[rows] @ weights, 1.0).to_event(1)
        return pyro.sample("y", RandOM(base, CHOICE), obs=None if y is None else y[rows])


def no_guide(*args):
    pass


def log_likelihood(weights, features, y):
    return RandOM(dist.Normal(features @ weights, 1.0).to_event(1), CHOICE).log_prob(y).sum()


@pytest.fixture(scope="module")
def data():
    pyro.set_rng_seed(0)
    features = torch.randn(100, NUM_ITEMS, 2, dtype=torch.double)
    return features, RandOM(dist.Normal(features @ TRUTH, 1.0).to_event(1), CHOICE).sample()


@pytest.fixture(scope="module")
def optimum(data):
    """Of the exact likelihood, and the standard errors there."""
    weights = TRUTH.clone().requires_grad_()
    for _ in range(4):
        (gradient,) = torch.autograd.grad(log_likelihood(weights, *data), weights, create_graph=True)
        hessian = torch.stack([torch.autograd.grad(part, weights, retain_graph=True)[0] for part in gradient])
        weights = (weights - torch.linalg.solve(hessian, gradient)).detach().requires_grad_()
    return weights.detach(), (-hessian).inverse().diagonal().sqrt()


def averages(learner, num_steps, *args):
    """The second half of the iterates."""
    found = []
    for _ in range(num_steps):
        learner.step(*args)
        found.append(pyro.param("weights").detach().clone())
    return torch.stack(found[num_steps // 2 :]).mean(0)


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(1)


class ExactEM(MCEM):
    """With the exact mean of the costs given their optima, by Tweedie's formula."""

    def _infer(self, batch):
        node, optimum = batch.trace.nodes["y_costs"], batch.trace.nodes["y"]
        loc = node["fn"].base_dist.loc.detach().requires_grad_()
        with torch.enable_grad():
            total = RandOM(dist.Normal(loc, 1.0).to_event(1), CHOICE).log_prob(optimum["value"]).sum()
        return {"y_costs": (loc + torch.autograd.grad(total, loc)[0]).detach().unsqueeze(0)}


@pytest.mark.slow
def test_exact_expectations_increase_the_likelihood(data, optimum):
    learner, reached = ExactEM(choices, no_guide, None), []
    for _ in range(25):
        learner.step(*data)
        reached.append(log_likelihood(pyro.param("weights").detach(), *data))
    assert (torch.stack(reached).diff() > -1e-9).all()
    assert log_likelihood(optimum[0], *data) - reached[-1] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "optim, options, num_steps, batch_size",
    [
        (Adam({"lr": 0.02}), {}, 300, None),
        (Adam({"lr": 0.02}), {}, 400, 400),
        (Adam({"lr": 0.03}), {"num_samples": 10, "num_gradient_steps": 5}, 60, None),
        (None, {"num_samples": 10}, 60, None),
        (Adam({"lr": 0.03}), {"control_variate": True}, 150, None),
    ],
    ids=["gradient", "minibatches", "several steps", "to convergence", "control variate"],
)
def test_optimum_of_the_likelihood(data, optimum, optim, options, num_steps, batch_size):
    """Averages of iterates; copies of the data have the same optimum, and less Monte Carlo error: in 40 runs at most
    0.1 of the errors in the mean square.
    """
    copies = (part.repeat_interleave(16, 0) for part in data)
    found = averages(MCEM(choices, no_guide, optim, **options), num_steps, *copies, batch_size)
    best, error = optimum
    assert ((found - best).abs() < 0.7 * error).all()
    assert ((found - TRUTH).abs() < 6 * error).all()


@pytest.mark.slow(keep=1)
@pytest.mark.filterwarnings("ignore::pyro_structured.distributions.EstimateWarning")
@pytest.mark.parametrize("uses_svi, num_steps", [(False, 160), (True, 25)], ids=["MCEM", "SVI"])
def test_matchings_with_a_prior(uses_svi, num_steps):
    """MAP estimates, with standard errors that are those of estimated scores."""
    pyro.set_rng_seed(3)
    features, problem = torch.randn(60, 5, 5, 2, dtype=torch.double), Matching(5)

    def choose(weights):
        return RandOM(dist.Normal(features @ weights, 1.0).to_event(2), problem, estimator=ShellSMC(100))

    def model(y):
        weights = pyro.sample("weights", dist.Normal(torch.zeros_like(TRUTH), 10.0).to_event(1))
        with pyro.plate("rows", len(features)):
            pyro.sample("y", choose(weights), obs=y)

    guide = AutoDelta(pyro.poutine.block(model, expose=["weights"]), init_loc_fn=lambda site: torch.zeros(2).double())
    y, found = choose(TRUTH).sample(), []
    learner = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO()) if uses_svi else MCEM(model, guide, Adam({"lr": 0.03}))
    for step in range(num_steps):
        learner.step(y)
        found += [guide.median()["weights"].detach().clone()] if step >= num_steps // 2 else []
    weights = torch.stack(found).mean(0).requires_grad_()
    rows = choose(weights).log_prob(y)
    scores = torch.stack([torch.autograd.grad(row, weights, retain_graph=True)[0] for row in rows])
    error = (scores.T @ scores).inverse().diagonal().sqrt()
    assert ((weights - TRUTH).abs() < most_standard_errors(len(scores)) * error).all()
    assert (error < 0.2).all()


@pytest.mark.slow
def test_control_variate_takes_the_noise_of_other_costs_away():
    """Two edges matter to the path, and 200 do not: the gradient is that of the two, and their noise remains."""
    edges = torch.cat([torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 2]]).expand(200, 2)])
    problem, y = ShortestPath(edges, 3, 0, 1), torch.eye(202, dtype=torch.double)[[0] * 100]
    features = torch.ones(202, dtype=torch.double).index_fill(0, torch.tensor([1]), -1.0)

    def model():
        weight = pyro.param("weight", torch.zeros(()).double())
        with pyro.plate("rows", len(y)):
            base = dist.LogNormal(weight * features, 1.0).expand(y.shape).to_event(1)
            pyro.sample("y", RandOM(base, problem), obs=y)

    noise = []
    for control_variate in (False, True):
        # One step along the gradient, from zero each time.
        learner, gradients = MCEM(model, no_guide, SGD({"lr": 1.0}), control_variate=control_variate), []
        for _ in range(60):
            pyro.clear_param_store()
            learner.step()
            gradients.append(pyro.param("weight").detach() / len(y))
        found = torch.stack(gradients[10:])
        # The means of the smaller and of the larger one of two normal variables are 1 / sqrt(pi) away from theirs.
        assert (found.mean() + 2 / math.pi**0.5).abs() < most_standard_errors(len(found)) * found.std() / len(
            found
        ) ** 0.5
        noise.append(found.std())
    assert noise[1] < noise[0] / 4


@pytest.mark.slow
def test_other_sites_that_depend_on_costs():
    """Two observations of one cost: their joint likelihood is known."""
    # Copies of four rows: the same optimum, and less Monte Carlo error.
    z = torch.tensor([0.5, 2.0, -1.0, 0.3], dtype=torch.double).repeat(16)
    y = torch.eye(2)[[0, 0, 0, 1]].repeat(16, 1)

    def model():
        loc = pyro.param("loc", torch.zeros(2).double())
        with pyro.plate("rows", len(z)):
            w = pyro.sample("w", dist.Normal(loc, 1.0).to_event(1))
            pyro.sample("y", Argmin(w, TopK(2, 1)), obs=y)
            pyro.sample("z", dist.Normal(w[..., 0], 1.0), obs=z)

    def objective(loc):
        """The cost that is seen is normal given z; the other one is larger or smaller."""
        given = (loc[0] + z) / 2
        margin = (loc[1] - given) / math.sqrt(1.5)
        side = (1 - 2 * y[:, 1]).double() * margin
        return dist.Normal(loc[0], math.sqrt(2)).log_prob(z).sum() + torch.special.log_ndtr(side).sum()

    best = torch.zeros(2).double().requires_grad_()
    optimiser = torch.optim.LBFGS([best], max_iter=100)

    def closure():
        optimiser.zero_grad()
        loss = -objective(best)
        loss.backward()
        return loss

    optimiser.step(closure)
    learner, found = MCEM(model, no_guide, None, num_samples=4), []
    for step in range(40):
        learner.step()
        found += [pyro.param("loc").detach().clone()] if step >= 10 else []
    torch.testing.assert_close(torch.stack(found).mean(0), best.detach(), atol=0.25, rtol=0)
    assert best[1] > 1.0


def test_equation_12(data):
    """The same as the standard objective for one draw, larger for several, and refused with other observations."""
    losses = {}
    for objective in ("mean of logs", "log of mean"):
        for num_samples in (1, 5):
            pyro.clear_param_store()
            pyro.set_rng_seed(2)
            learner = MCEM(choices, no_guide, None, num_samples=num_samples, objective=objective)
            losses[objective, num_samples] = learner.step(*data)
    assert losses["log of mean", 1] == pytest.approx(losses["mean of logs", 1])
    assert losses["log of mean", 5] < losses["mean of logs", 5]


def test_interruptions_do_not_matter(data):
    def start():
        pyro.clear_param_store()
        return MCEM(choices, no_guide, Adam({"lr": 0.05}))

    learner = start()
    learner.run(3, *data, 20)
    state = learner.state_dict()
    expected = [learner.step(*data, 20) for _ in range(4)]
    weights = pyro.param("weights").detach().clone()
    again = start()
    again.load_state_dict(state)
    assert [again.step(*data, 20) for _ in range(4)] == expected
    assert torch.equal(pyro.param("weights").detach(), weights)


def test_infeasible_rows_are_named_and_nothing_is_lost(data):
    features, y = data
    learner = MCEM(choices, no_guide, Adam({"lr": 0.05}))
    learner.step(features, y)
    before = learner.state_dict()
    wrong = y.clone()
    wrong[[7, 9]] = 1.0
    with pytest.raises(ValueError, match=r"y: .* feasible for TopK, got .* in 2 of 100 rows, .* is number 7"):
        learner.step(features, wrong)
    after = learner.state_dict()
    assert torch.equal(after["chains"]["y_costs"]["values"], before["chains"]["y_costs"]["values"])
    assert torch.equal(after["params"]["params"]["weights"], before["params"]["params"]["weights"])
    assert math.isfinite(learner.step(features, y))


def test_refusals(data):
    def nothing_observed(features, y):
        pyro.sample("y", RandOM(dist.Normal(torch.zeros(3), 1.0).to_event(1), TopK(3, 1)))

    def bayesian(features, y):
        pyro.sample("x", dist.Normal(0.0, 1.0))
        choices(features, y)

    optim = Adam({"lr": 0.05})
    for arguments, options, message in (
        ((None, no_guide, optim), {}, "model: expected a Pyro model, got None"),
        ((choices, None, optim), {}, "guide: expected a Pyro guide, got None"),
        ((choices, no_guide, "adam"), {}, "optim: expected an optimiser of pyro.optim, or None, got 'adam'"),
        ((choices, no_guide, optim), {"num_samples": 0}, "num_samples: expected an integer of at least 1, got 0"),
        ((choices, no_guide, optim), {"num_gradient_steps": 1.5}, "num_gradient_steps: expected an integer"),
        ((choices, no_guide, None), {"control_variate": True}, "control_variate: expected an optimiser, .* got None"),
        ((choices, no_guide, optim), {"control_variate": True, "num_gradient_steps": 2}, "control_variate: .*, 2, "),
        ((choices, no_guide, optim), {"control_variate": True, "objective": "log of mean"}, "control_variate: .* 'log"),
        ((choices, no_guide, optim), {"objective": "other"}, "objective: expected one of .*, got 'other'"),
        ((choices, no_guide, optim), {"objective": torch.ones(3)}, "objective: expected one of .*, got tensor"),
        ((choices, no_guide, optim), {"kernel": ConstrainedSlice(bayesian)}, "kernel: expected one that moves costs"),
    ):
        with pytest.raises(ValueError, match=message):
            MCEM(*arguments, **options)
    with pytest.raises(ValueError, match="model: expected an observed RandOM or Argmin site, got none"):
        MCEM(nothing_observed, no_guide, optim).step(*data)

    def heavy_tails(features, y):
        pyro.sample("y", RandOM(dist.Beta(torch.ones(3), 2.0).to_event(1), TopK(3, 1)), obs=torch.eye(3)[0])

    with pytest.raises(NotImplementedError, match="y_costs: expected independent normal, .* got others"):
        MCEM(heavy_tails, no_guide, optim, control_variate=True).step(*data)
    random_guide = AutoNormal(pyro.poutine.block(bayesian, expose=["x"]))
    with pytest.raises(NotImplementedError, match="guide: expected Delta sites, as those of AutoDelta, got Normal"):
        MCEM(bayesian, random_guide, optim).step(*data)
