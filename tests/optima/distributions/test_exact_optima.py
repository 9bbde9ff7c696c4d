"""Which problems and costs have exact log-probabilities, as RandOM's table says; all others name the estimators."""

import pyro.distributions as dist
import pytest
import torch

from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.inference import PlainMonteCarlo, Splitting
from pyro_structured.optima.structures.joint_problem import JointProblem
from pyro_structured.structures import (
    BipartiteAssignment,
    ConnectedComponents,
    LinearProblem,
    Matching,
    MinimumCut,
    Ranking,
    ShortestPath,
    SpanningTree,
    TopK,
)

TRIANGLE = torch.tensor([[0, 1], [1, 2], [0, 2]])
CHAIN = TRIANGLE[:2]
AFFINE = dist.transforms.AffineTransform(1.0, -2.0)


def joint(loc):
    size = loc.shape[-1]
    base = dist.MultivariateNormal(loc, torch.eye(size).to(loc))
    return base.to_event(loc.dim() - 1) if loc.dim() > 1 else base


def every(make):
    return lambda loc: make(loc).to_event(loc.dim())


INDEPENDENT = {
    "normal": every(lambda loc: dist.Normal(loc, 1.0)),
    "half-normal": every(lambda loc: dist.HalfNormal(loc.exp())),
    "truncated normal": every(lambda loc: TruncatedNormal(loc, 1.0, 0.0, 2.0)),
    "uniform": every(lambda loc: dist.Uniform(loc.detach(), loc.detach() + 2)),
    "exponential": every(lambda loc: dist.Exponential(loc.exp())),
    "Gumbel": every(lambda loc: dist.Gumbel(loc, 1.0)),
    "Laplace": every(lambda loc: dist.Laplace(loc, 1.0)),
    "logistic": every(lambda loc: dist.Logistic(loc, 1.0)),
    "log-normal": every(lambda loc: dist.LogNormal(loc, 1.0)),
    "Weibull": every(lambda loc: dist.Weibull(loc.exp(), 1.5)),
    "transformed twice": every(
        lambda loc: dist.TransformedDistribution(dist.Normal(loc, 1.0), [AFFINE, dist.transforms.ExpTransform()])
    ),
}
OTHERS = {
    "jointly normal": joint,
    "gamma": every(lambda loc: dist.Gamma(loc.exp(), 1.0)),
    "Cauchy": every(lambda loc: dist.Cauchy(loc, 1.0)),
}
COSTS = {**INDEPENDENT, **OTHERS}
# Problems, and the costs with which they have exact log-probabilities.
EXACT = {
    "TopK": (TopK(3, 2), INDEPENDENT),
    "TopK of one": (TopK(3, 1, maximize=True), INDEPENDENT),
    "Ranking": (Ranking(3), INDEPENDENT),
    "Matching of one row": (Matching(1, 3), INDEPENDENT),
    "Matching of two rows": (Matching(2), ["normal", "jointly normal"]),
    "ConnectedComponents": (ConnectedComponents(TRIANGLE, 3, 0.5), INDEPENDENT),
    "Matching of three rows": (Matching(3), []),
    "Matching with a spare column": (Matching(2, 3), []),
    "BipartiteAssignment": (BipartiteAssignment(1, 1, num_rows=2, num_columns=2), []),
    "ShortestPath": (ShortestPath(torch.tensor([[0, 1], [0, 1]]), 2, 0, 1), []),
    "MinimumCut": (MinimumCut(CHAIN, 3), []),
    "MinimumCut of one node": (MinimumCut(CHAIN[:0], 1), []),
    "SpanningTree": (SpanningTree(TRIANGLE, 3), []),
    "SpanningTree of parallel edges": (SpanningTree(torch.tensor([[0, 1], [1, 0]]), 2), []),
    "LinearProblem": (LinearProblem(lambda costs: (costs < 0).double(), [3]), []),
    "JointProblem": (JointProblem([TopK(3, torch.tensor([1, 2]))]), []),
}


def model(problem, name, **options):
    """``None`` where the problem refuses the costs."""
    torch.manual_seed(0)
    loc = torch.linspace(0.0, 1.0, problem.cost_shape.numel(), dtype=torch.double).reshape(problem.cost_shape)
    try:
        return RandOM(COSTS[name](loc.requires_grad_()), problem, **options), loc
    except ValueError as error:
        assert "for which alone" in str(error)
        return None, loc


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_or_refused(name, costs):
    problem, exact = EXACT[name]
    d, _ = model(problem, costs)
    if d is None:
        return
    if costs not in exact:
        refusal = rf"log_prob: .*{type(problem).__name__} .*estimator=Splitting\(1000\)\), or ShellSMC"
        with pytest.raises(NotImplementedError, match=refusal):
            d.log_prob(d.sample())
        return
    assert d.log_prob(d.enumerate_support()).exp().sum().item() == pytest.approx(1.0, abs=1e-9)


ONE_VALUE = {
    "one item in order": Ranking(1),
    "one item": TopK(1, 1),
    "no item": TopK(3, 0),
    "all items": TopK(3, 3, maximize=True),
    "no item, or all": TopK(3, torch.tensor([0, 3])),
    "one pair": Matching(1),
    "one allowed column": Matching(1, 3, torch.tensor([[False, True, False]])),
    "two allowed pairs": Matching(2, allowed=torch.eye(2).bool()),
    "allowed pairs in a triangle": Matching(3, 4, torch.ones(3, 4).tril().bool(), maximize=True),
    "one assignment": BipartiteAssignment(1, 1, num_rows=1, num_columns=1),
    "all columns": BipartiteAssignment(3, 2, num_rows=2, num_columns=3),
    "places for one assignment": BipartiteAssignment(
        torch.tensor([1, 2]), 1, torch.tensor([[True, False, False, False], [True, True, True, False]])
    ),
    "one path": ShortestPath(torch.tensor([[0, 1], [1, 2], [2, 1]]), 3, 0, 2),
    "one path for each row": ShortestPath(CHAIN, 3, torch.tensor([0, 1]), 2),
    "the graph is a tree": SpanningTree(CHAIN, 3),
    "several": JointProblem([TopK(2, torch.tensor([2, 0]))]),
}


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("name", ONE_VALUE)
def test_one_feasible_value(name, costs):
    """It is certain, whatever the costs."""
    problem = ONE_VALUE[name]
    d, loc = model(problem, costs)
    if d is None:
        return
    log_prob = d.log_prob(d.sample())
    assert log_prob.shape == d.batch_shape and (log_prob == 0).all()
    if log_prob.requires_grad:
        assert (torch.autograd.grad(log_prob.sum(), loc)[0] == 0).all()
    impossible = torch.zeros_like(d.sample()) if name in ("one path", "the graph is a tree") else None
    if impossible is not None:
        assert d.log_prob(impossible) == -torch.inf


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ONE_VALUE)
def test_estimates_of_certain_values(name):
    for estimator in (Splitting(20, 2), PlainMonteCarlo(10)):
        d, _ = model(ONE_VALUE[name], "log-normal", estimator=estimator)
        found, error = d.estimate_log_prob(d.sample())
        assert (found == 0).all() and (error == 0).all()


def test_rows_with_and_without_a_choice():
    counts = torch.tensor([0, 1, 3])
    d = RandOM(dist.Normal(torch.arange(3.0).double(), 1.0).to_event(1), TopK(3, counts))
    value = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]).double()
    single = RandOM(d.base, TopK(3, 1)).log_prob(value[1])
    torch.testing.assert_close(d.log_prob(value), torch.stack([torch.zeros_like(single), single, 0 * single]))
    assert (d.log_prob(value.flip(0))[[0, 2]] == -torch.inf).all()
    allowed = torch.stack([torch.eye(3), torch.ones(3, 3).tril(), torch.ones(3, 3)]).bool()
    assert Matching(3, allowed=allowed).has_one_value.tolist() == [True, True, False]
    with pytest.raises(NotImplementedError, match="log_prob: .*estimator"):
        RandOM(dist.Normal(torch.zeros(3, 3), 1.0).to_event(2), Matching(3, allowed=allowed)).log_prob(torch.arange(3))


@pytest.mark.parametrize("num_rows, num_columns", [(2, 2), (2, 3), (3, 3)])
def test_allowed_pairs_with_one_matching(num_rows, num_columns):
    """All sets of pairs, by enumeration."""
    values = Matching(num_rows, num_columns).feasible_values()
    number = num_rows * num_columns
    allowed = (torch.arange(2**number).unsqueeze(-1) >> torch.arange(number) & 1).bool()
    allowed = allowed.reshape(-1, num_rows, num_columns)
    counts = allowed[:, torch.arange(num_rows), values].all(-1).sum(-1)
    some = allowed[counts > 0]
    expected = counts[counts > 0] == 1
    assert torch.equal(Matching(num_rows, num_columns, some).has_one_value, expected)
    assert torch.equal(BipartiteAssignment(1, 1, some).has_one_value, expected)


def test_no_costs():
    for shape in ((), (0,), (3, 0)):
        with pytest.raises(ValueError, match="cost_shape: expected one or more axes of at least one cost, got"):
            LinearProblem(lambda costs: costs, shape)
