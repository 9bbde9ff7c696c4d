"""Moment matching and maximum margin."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta
from pyro.optim import Adam
from sklearn.svm import LinearSVC

from pyro_structured.distributions import RandOM
from pyro_structured.inference import MaxMargin, PerturbAndMAP
from pyro_structured.structures import ConnectedComponents, TopK


def no_guide(*args):
    pass


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


@pytest.mark.parametrize("maximize", [False, True])
def test_matched_moments(maximize):
    """With a mean for every item, predicted and observed shares of the items agree."""
    y = torch.eye(3)[[0, 0, 0, 0, 0, 1, 1, 1, 2, 2]]
    problem = TopK(3, 1, maximize=maximize)

    def model(y):
        quality = pyro.param("quality", torch.zeros(3))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", RandOM(dist.Normal(quality, 1.0).to_event(1), problem), obs=y)

    learner, found = PerturbAndMAP(model, no_guide, Adam({"lr": 0.05}), num_samples=200), []
    for step in range(120):
        learner.step(y)
        found += [pyro.param("quality").detach().clone()] if step >= 60 else []
    learned = RandOM(dist.Normal(torch.stack(found).mean(0), 1.0).to_event(1), problem)
    torch.testing.assert_close(learned.log_prob(torch.eye(3)).exp(), y.mean(0), atol=0.02, rtol=0)


def test_support_vector_machine():
    """A choice of two, whose features differ, is classification with the hinge loss."""
    features = torch.randn(80, 2, 3, dtype=torch.double)
    truth = torch.tensor([1.0, -1.0, 0.5], dtype=torch.double)
    y = TopK(2, 1).solve(features @ truth + 0.5 * torch.randn(80, 2).double())

    def model(features, y):
        weights = pyro.sample("weights", dist.Normal(torch.zeros(3).double(), 0.5).to_event(1))
        with pyro.plate("rows", len(features)):
            pyro.sample("y", RandOM(dist.Normal(features @ weights, 1.0).to_event(1), TopK(2, 1)), obs=y)

    guide = AutoDelta(pyro.poutine.block(model, expose=["weights"]))
    learner, found = MaxMargin(model, guide, Adam({"lr": 0.01})), []
    for step in range(400):
        learner.step(features, y)
        found += [guide.median()["weights"].detach().clone()] if step >= 300 else []
    difference, side = features[:, 1] - features[:, 0], 2 * y[:, 0] - 1
    machine = LinearSVC(loss="hinge", C=0.25, fit_intercept=False, max_iter=100000, tol=1e-8)
    machine.fit(difference.numpy(), side.numpy())

    def objective(weights):
        return (2 * weights.square().sum() + (1 - side * (difference @ weights)).clamp(min=0).sum()).item()

    best = objective(torch.from_numpy(machine.coef_[0]))
    assert best <= objective(torch.stack(found).mean(0)) < 1.002 * best
    assert objective(truth) > 1.01 * best


@pytest.mark.parametrize("learner", [PerturbAndMAP, MaxMargin])
def test_refusals(learner):
    graph = torch.tensor([[0, 1], [1, 2]])

    def components(y):
        pyro.sample(
            "y", RandOM(dist.Normal(torch.zeros(2), 1.0).to_event(1), ConnectedComponents(graph, 3, 0.0)), obs=y
        )

    def choice(y):
        with pyro.plate("rows", len(y)):
            pyro.sample("y", RandOM(dist.Normal(torch.zeros(3), 1.0).to_event(1), TopK(3, 1)), obs=y)

    with pytest.raises(ValueError, match="optim: expected an optimiser of pyro.optim, got None"):
        learner(choice, no_guide, None)
    with pytest.raises(
        NotImplementedError, match="y: expected a problem with a linear objective .* ConnectedComponents; use MCEM"
    ):
        learner(components, no_guide, Adam({"lr": 0.1})).step(torch.tensor([0, 0, 2]))
    with pytest.raises(ValueError, match="y: expected values .* number 1"):
        learner(choice, no_guide, Adam({"lr": 0.1})).step(torch.tensor([[1.0, 0, 0], [1, 1, 0]]))
