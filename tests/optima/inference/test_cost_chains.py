"""Costs that go on where they were, whatever part of the rows a step sees."""

import pyro
import pyro.distributions as dist
import torch
from pyro.optim import SGD

from pyro_structured.distributions import Argmin, RandOM
from pyro_structured.inference import MCEM
from pyro_structured.structures import Ranking, TopK


def test_rows_of_nested_plates():
    """Each row's costs stay inside its own inverse set; rows that a step does not see stay as they are."""
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    problem = TopK(5, torch.tensor([1, 2, 3, 4]).unsqueeze(-1))
    y = problem.solve(torch.randn(4, 6, 5))

    def model():
        loc = pyro.param("loc", torch.zeros(()))
        columns = pyro.plate("columns", 6, subsample_size=2, dim=-1)
        with pyro.plate("rows", 4, subsample_size=3, dim=-2) as i, columns as j:
            base = dist.Normal(loc, 1.0).expand([5]).to_event(1)
            pyro.sample("y", RandOM(base, problem[i]), obs=y[i][:, j])

    learner, before = MCEM(model, lambda: None, SGD({"lr": 0.0})), None
    for _ in range(40):
        learner.step()
        chains = learner.state_dict()["chains"]["y_costs"]
        assert chains["sizes"].tolist() == [4, 6]
        costs, started = torch.zeros(4, 6, 5).double(), torch.zeros(4, 6, dtype=torch.bool)
        seen = tuple(chains["rows"].unbind(-1))
        costs[seen], started[seen] = chains["values"], True
        assert problem.contains(costs, y)[started].all()
        if before is not None:
            changed = (costs != before).any(-1)
            assert changed.sum() == 6 and len(changed.nonzero()[:, 0].unique()) == 3
        before = costs
    assert started.all()


def test_plates_without_a_tensor():
    """Sites of a sequential plate are chains of their own."""
    pyro.set_rng_seed(0)
    pyro.clear_param_store()

    def model():
        for i in pyro.plate("rows", 5, subsample_size=2):
            w = pyro.sample(f"w{i}", dist.Normal(pyro.param("loc", torch.zeros(3)), 1.0).to_event(1))
            pyro.sample(f"y{i}", Argmin(w, TopK(3, 1)), obs=torch.eye(3)[i % 3])

    learner = MCEM(model, lambda: None, SGD({"lr": 0.01}))
    for _ in range(20):
        learner.step()
    chains = learner.state_dict()["chains"]
    assert set(chains) == {f"w{i}" for i in range(5)}
    assert all(part["values"].argmin() == int(name[1]) % 3 for name, part in chains.items())


def test_other_optima_start_anew():
    """Costs are in the inverse set of what is observed now, not of what the same rows were before."""
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    problem = Ranking(5)

    def model(y):
        with pyro.plate("rows", len(y)):
            base = dist.Normal(pyro.param("loc", torch.zeros(())), 1.0).expand([5]).to_event(1)
            pyro.sample("y", RandOM(base, problem), obs=y)

    learner = MCEM(model, lambda y: None, SGD({"lr": 0.0}))
    first, second = problem.solve(torch.randn(6, 5)), problem.solve(torch.randn(9, 5))
    for y in (first, second, first, first[:2]):
        learner.step(y)
        costs = learner.state_dict()["chains"]["y_costs"]["values"]
        assert problem.contains(costs[: len(y)], y).all()
