"""Joint moves and updates of costs, over all problems, families and senses of the objective."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC

from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.inference import ConstrainedSlice
from pyro_structured.optima.inference.interweave import Interweave
from pyro_structured.optima.inference.parameter_line import ParameterPoint
from pyro_structured.structures import (
    BipartiteAssignment,
    LinearProblem,
    Matching,
    MinimumCut,
    Ranking,
    ShortestPath,
    SpanningTree,
    TopK,
)

ROWS, STEPS = 20, 6
# Each family meets this many of the problems that all of them have.
PROBLEMS_EACH = 6
EDGES = torch.tensor([[0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [3, 4], [1, 4], [2, 4]])
SOME_PAIRS = torch.ones(4, 4).bool()
SOME_PAIRS[[0, 1, 2], [1, 3, 0]] = False


def chosen(value):
    return value.sum(-1) == 2


PROBLEMS = {
    f"{name} {'maximal' if maximize else 'minimal'}": make(maximize)
    for name, make in {
        "matching": lambda most: Matching(4, maximize=most),
        "wide matching": lambda most: Matching(3, 5, maximize=most),
        "some pairs": lambda most: Matching(4, allowed=SOME_PAIRS, maximize=most),
        "subset": lambda most: TopK(6, 2, maximize=most),
        "choice": lambda most: TopK(3, 1, maximize=most),
        "ranking": lambda most: Ranking(5, maximize=most),
        "tree": lambda most: SpanningTree(EDGES, 5, maximize=most),
        "assignment": lambda most: BipartiteAssignment(
            torch.tensor([1, 2, 1]), torch.tensor([1, 2, 1, 1]), maximize=most
        ),
        "lines": lambda most: LinearProblem(TopK(5, 2, maximize=most).solve, [5], maximize=most, is_feasible_fn=chosen),
    }.items()
    for maximize in (False, True)
}
OF_POSITIVE_COSTS = {
    "path": ShortestPath(EDGES, 5, 0, 4),
    "cut": MinimumCut(torch.tensor([[0, 1], [1, 2], [0, 2], [2, 3]]), 4),
}
# Distributions of costs from a feature of each, times the parameter.
REAL = {
    "normal": lambda t: dist.Normal(t, 1.0),
    "normal scales": lambda t: dist.Normal(0.3, t.exp()),
    "normal both": lambda t: dist.Normal(t, (t / 2).exp()),
    "gumbel": lambda t: dist.Gumbel(t, 0.7),
    "gumbel scales": lambda t: dist.Gumbel(0.0, t.exp()),
    "laplace": lambda t: dist.Laplace(t, 1.0),
    "laplace scales": lambda t: dist.Laplace(0.1, t.exp()),
    "logistic": lambda t: dist.Logistic(t, torch.ones_like(t)),
    "logistic both": lambda t: dist.Logistic(t, (t / 3).exp()),
    "cauchy": lambda t: dist.Cauchy(t, 1.0),
    "cauchy scales": lambda t: dist.Cauchy(0.0, t.exp()),
    "student": lambda t: dist.StudentT(3.0, t, 1.0),
    "student scales": lambda t: dist.StudentT(2.0, 0.0, t.exp()),
    "uniform": lambda t: dist.Uniform(t, t + 2),
    "truncated above": lambda t: TruncatedNormal(t, 0.5, -torch.inf, 1.0),
    "truncated, both move": lambda t: TruncatedNormal(t, 1.0, t - 1, t + 2),
    "truncated, bounds move": lambda t: TruncatedNormal(t, 1.0, 2 * t - 1, 2 * t + 3),
}
POSITIVE = {
    "exponential": lambda t: dist.Exponential(t.exp()),
    "gamma": lambda t: dist.Gamma(3.0, t.exp()),
    "gamma, pole": lambda t: dist.Gamma(0.3, t.exp()),
    "inverse gamma": lambda t: dist.InverseGamma(2.0, t.exp()),
    "inverse gamma, heavy": lambda t: dist.InverseGamma(0.3, t.exp()),
    "weibull": lambda t: dist.Weibull(t.exp(), 2.0),
    "weibull, pole": lambda t: dist.Weibull(t.exp(), 0.4),
    "log-normal": lambda t: dist.LogNormal(t, 1.0),
    "log-normal, wide": lambda t: dist.LogNormal(t, 8.0),
    "half-normal": lambda t: dist.HalfNormal(t.exp()),
    "half-cauchy": lambda t: dist.HalfCauchy(t.exp()),
    "uniform scales": lambda t: dist.Uniform(torch.zeros_like(t), t.exp()),
    "uniform both": lambda t: dist.Uniform(t.exp(), 3 * t.exp()),
    "truncated": lambda t: TruncatedNormal(t, 1.0, 0.0, 1.0),
    "truncated scales": lambda t: TruncatedNormal(0.4, t.exp(), 0.0, 1.0),
    "truncated below": lambda t: TruncatedNormal(t, 0.5, 0.0, torch.inf),
    "truncated both": lambda t: TruncatedNormal(t, t.exp(), 0.0, torch.inf),
}


def cases():
    for number, (family, make) in enumerate((REAL | POSITIVE).items()):
        problems = PROBLEMS | (OF_POSITIVE_COSTS if family in POSITIVE else {})
        for place, (name, problem) in enumerate(problems.items()):
            if (number + place) % (len(PROBLEMS) // PROBLEMS_EACH) == 0 or name in OF_POSITIVE_COSTS:
                # Both widths for each family, and for each problem.
                width = 4.0 if (number + place) % 2 == 0 else 1.0
                yield pytest.param(make, problem, width, number + place, id=f"{family}-{name}-{width}")


@pytest.mark.slow(keep=16)
@pytest.mark.parametrize(("family", "problem", "width", "seed"), cases())
def test_costs_stay_in_their_inverse_sets(family, problem, width, seed, monkeypatch):
    """Chains of one parameter whose features are ordinary, or range over many orders: after each move, costs are
    finite, in their support and optimal; and no joint move had to be refused because it led out.
    """
    pyro.set_rng_seed(seed)
    features = width * torch.randn(ROWS, *problem.cost_shape, dtype=torch.double)
    axes, found = len(problem.cost_shape), []

    def base(s):
        return family(s * features).expand(features.shape).to_event(axes)

    value = problem.solve(base(torch.tensor(0.3, dtype=torch.double)).sample())

    def model():
        s = pyro.sample("s", dist.Normal(torch.zeros((), dtype=torch.double), 1.0))
        with pyro.plate("rows", ROWS):
            pyro.sample("y", RandOM(base(s), problem), obs=value)

    feasible, collapsed = ParameterPoint.feasible, Interweave._collapsed

    def watched(self, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(ParameterPoint, "feasible", lambda point: found.append(feasible(point)) or found[-1])
            return collapsed(self, *args, **kwargs)

    monkeypatch.setattr(Interweave, "_collapsed", watched)
    mcmc = MCMC(ConstrainedSlice(model), num_samples=STEPS, warmup_steps=STEPS, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples()
    assert all(found)
    assert draws["y_costs"].isfinite().all()
    assert problem.contains(draws["y_costs"], value.expand(STEPS, *value.shape)).all()
    for s, costs in zip(draws["s"], draws["y_costs"], strict=True):
        assert base(s).support.check(costs).all()
