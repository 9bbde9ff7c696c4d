"""Exact probabilities of random optima: against draws, sums over all values, other packages, and each other."""

import itertools

import pyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats
import torch

from pyro_structured.distributions import RandOM, TruncatedNormal
from pyro_structured.structures import BipartiteAssignment, ConnectedComponents, Matching, Ranking, ShortestPath, TopK

pytestmark = pytest.mark.statistical

NUM_DRAWS = 10**6
LOC, SCALE = torch.tensor([0.0, 1.0, 0.3, -0.7]).double(), torch.tensor([1.0, 0.5, 2.0, 0.3]).double()
NEGATED = dist.TransformedDistribution(
    dist.Gumbel(LOC, torch.full_like(LOC, 0.8)), [dist.transforms.AffineTransform(0.5, -2.0)]
)
BASES = {
    "normal": dist.Normal(LOC, SCALE),
    "truncated": TruncatedNormal(LOC, SCALE, torch.tensor([-0.1, 0.0, 0.0, -0.2]).double(), 1.0),
    "half-normal": dist.HalfNormal(SCALE),
    "uniform": dist.Uniform(LOC, LOC + 2.1 * SCALE + 1),
    "exponential": dist.Exponential(SCALE),
    "gumbel": dist.Gumbel(LOC, SCALE),
    "gumbel of one scale": dist.Gumbel(LOC, torch.ones_like(LOC)),
    "negated gumbel": NEGATED,
    "laplace": dist.Laplace(LOC, SCALE),
    "logistic": dist.Logistic(LOC, SCALE),
    "lognormal": dist.LogNormal(LOC, SCALE),
    "weibull": dist.Weibull(SCALE.exp(), SCALE - 0.1),
    "weibull of one shape": dist.Weibull(SCALE.exp(), torch.full_like(SCALE, 0.4)),
    "pareto": dist.Pareto(SCALE, 1 + SCALE),
    "kumaraswamy": dist.Kumaraswamy(SCALE, SCALE + 0.5),
    "shifted exponential": dist.TransformedDistribution(
        dist.Exponential(SCALE), [dist.transforms.AffineTransform(LOC, 1.0)]
    ),
}
GRAPH = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [0, 2]])


def compare_with_draws(distribution, costs=None):
    """All values have the right frequencies, and their probabilities add up to 1."""
    if costs is None:
        torch.manual_seed(0)
        costs = distribution.base.sample((NUM_DRAWS,))
    values = distribution.enumerate_support()
    probs = distribution.log_prob(values).exp()
    assert probs.sum().item() == pytest.approx(1.0, abs=1e-9)
    draws = distribution.problem.solve(costs).reshape(NUM_DRAWS, -1)
    powers = 10 ** torch.arange(draws.shape[1])
    codes, numbers = ((x.reshape(len(x), -1).long() * powers).sum(-1) for x in (draws, values))
    found, counts = codes.unique(return_counts=True)
    frequencies = torch.zeros_like(probs)
    for code, count in zip(found, counts, strict=True):
        frequencies[numbers == code] = count / NUM_DRAWS
    assert frequencies.sum().item() == pytest.approx(1.0)
    error = 6 * (probs * (1 - probs) / NUM_DRAWS).sqrt()
    # Of some hundred probabilities in this file, one may be a little farther away.
    assert ((frequencies - probs).abs() > error + 3 / NUM_DRAWS).sum() <= 1


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("name", BASES)
def test_independent_costs(name):
    torch.manual_seed(0)
    base = BASES[name].to_event(1)
    costs = base.sample((NUM_DRAWS,))
    for problem in (TopK(4, 2), TopK(4, 1, maximize=True), Ranking(4)):
        compare_with_draws(RandOM(base, problem), costs)


@pytest.mark.slow
@pytest.mark.parametrize("maximize", [False, True])
def test_matchings(maximize):
    allowed = torch.tensor([[True, False, True, True]])
    row = dist.Normal(LOC.unsqueeze(0), SCALE.unsqueeze(0)).to_event(2)
    compare_with_draws(RandOM(row, Matching(1, 4, allowed, maximize)))
    generator = torch.Generator().manual_seed(0)
    loc, root = (torch.randn(4, n, dtype=torch.double, generator=generator) for n in (1, 4))
    joint = dist.MultivariateNormal(loc.squeeze(-1), scale_tril=root.tril(-1) + torch.eye(4))
    matrix = dist.TransformedDistribution(joint, [torch.distributions.ReshapeTransform((4,), (2, 2))])
    rows = dist.MultivariateNormal(loc.reshape(2, 2), torch.tensor([[1.0, 0.7], [0.7, 2.0]]).double()).to_event(1)
    compare_with_draws(RandOM(rows if maximize else matrix, Matching(2, maximize=maximize)))


def test_two_by_two_against_scipy():
    loc, scale = LOC.reshape(2, 2), SCALE.reshape(2, 2)
    found = RandOM(dist.Normal(40 * loc, scale).to_event(2), Matching(2)).log_prob(torch.tensor([[0, 1], [1, 0]]))
    z = (40 * (loc[0, 0] + loc[1, 1] - loc[0, 1] - loc[1, 0]) / scale.square().sum().sqrt()).item()
    assert found.tolist() == pytest.approx([scipy.stats.norm.logcdf(-z), scipy.stats.norm.logcdf(z)], rel=1e-12)
    only = torch.tensor([[True, False], [True, True]])
    certain = RandOM(dist.Normal(loc, scale).to_event(2), Matching(2, allowed=only))
    assert certain.log_prob(torch.tensor([[0, 1], [1, 0]])).tolist() == [0.0, -torch.inf]


def test_top_k_against_scipy():
    """Of Laplace costs, which have a kink."""
    frozen = [scipy.stats.laplace(m, s) for m, s in zip(LOC.tolist(), SCALE.tolist(), strict=True)]

    def density(x):
        return frozen[2].pdf(x) * frozen[0].sf(x) * frozen[1].sf(x) * frozen[3].sf(x)

    ends = [-60, *sorted(LOC.tolist()), 60]
    pieces = (scipy.integrate.quad(density, *pair, epsabs=0, epsrel=1e-12)[0] for pair in itertools.pairwise(ends))
    expected = sum(pieces)
    value = torch.tensor([0.0, 0.0, 1.0, 0.0])
    found = RandOM(BASES["laplace"].to_event(1), TopK(4, 1)).log_prob(value).exp().item()
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("base", ["exponential", "gumbel of one scale", "negated gumbel", "weibull of one shape"])
def test_closed_forms_equal_quadrature(base, monkeypatch):
    problems = [pair for maximize in (False, True) for pair in (TopK(4, 1, maximize), Ranking(4, maximize))]
    models = [RandOM(BASES[base].to_event(1), problem) for problem in problems]
    closed = [model.log_prob(model.enumerate_support()) for model in models]
    monkeypatch.setattr(
        "pyro_structured.optima.distributions.exact_optimum_probability.plackett_luce", lambda costs, rank: None
    )
    for model, expected in zip(models, closed, strict=True):
        found = model.log_prob(model.enumerate_support())
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    largest = RandOM(BASES["gumbel of one scale"].to_event(1), TopK(4, 1, maximize=True))
    torch.testing.assert_close(largest.log_prob(torch.eye(4)), LOC.log_softmax(-1))


def test_gumbel_costs_are_no_softmax():
    """The smallest of Gumbel variables is something else than the largest."""
    found = RandOM(BASES["gumbel of one scale"].to_event(1), TopK(4, 1)).log_prob(torch.eye(4))
    assert (found - (-LOC).log_softmax(-1)).abs().max() > 0.05


def test_components():
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(6, dtype=torch.double, generator=generator)
    compare_with_draws(RandOM(dist.LogNormal(loc, 1.0).to_event(1), ConnectedComponents(GRAPH, 4, 0.8)))


@pytest.mark.parametrize("transform", [dist.transforms.SigmoidTransform(), dist.transforms.TanhTransform()])
def test_components_by_thresholds_beyond_all_costs(transform):
    """All edges are open, or none."""
    base = dist.TransformedDistribution(dist.Normal(torch.zeros(6), 1.0), [transform]).to_event(1)
    values = torch.tensor([[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 2, 3]])
    thresholds = torch.tensor([[-1.5], [1.5]])
    found = RandOM(base, ConnectedComponents(GRAPH, 4, thresholds)).log_prob(values)
    assert found.tolist() == [[0.0, -torch.inf, -torch.inf], [-torch.inf, 0.0, -torch.inf]]


def test_batches_broadcast():
    """Parameters, data of the problem and values have axes of their own."""
    base = dist.Normal(torch.stack([LOC, -LOC, LOC / 2]).unsqueeze(1), SCALE).to_event(1)
    problem = TopK(4, torch.tensor([0, 2, 4, 1, 3]))
    model = RandOM(base, problem)
    assert model.batch_shape == (3, 5)
    value = model.sample((7,))
    found = model.log_prob(value)
    assert found.shape == (7, 3, 5) and (found[..., [0, 2]] == 0).all()
    for i, j in itertools.product(range(3), range(5)):
        alone = RandOM(dist.Normal(base.base_dist.loc[i, 0], SCALE).to_event(1), problem[j])
        torch.testing.assert_close(found[:, i, j], alone.log_prob(value[:, i, j]))
    assert model.log_prob(torch.ones(4)).eq(-torch.inf).sum() == 12


@pytest.mark.parametrize("name", ["normal", "truncated", "uniform", "gumbel", "laplace", "weibull"])
@pytest.mark.parametrize("problem", [TopK(4, 2), Ranking(4)], ids=["sets", "orders"])
def test_gradients(name, problem):
    parameters = {
        "truncated": (LOC, SCALE, torch.tensor([-0.1, 0.0, 0.05, -0.2]).double(), 1 + SCALE / 5),
        "weibull": (SCALE + 1, SCALE.exp()),
        "uniform": (LOC, LOC + 2.1 * SCALE + 1),
    }.get(name, (LOC, SCALE))
    value = problem.solve(LOC)
    leaves = [p.clone().requires_grad_() for p in parameters]

    def log_prob(*tensors):
        return RandOM(type(BASES[name])(*tensors, validate_args=False).to_event(1), problem).log_prob(value)

    assert torch.autograd.gradcheck(log_prob, leaves)


def test_gumbel_scales_have_their_own_derivatives():
    value = torch.tensor([0.0, 1.0, 0.0, 0.0])
    scale = torch.ones(4, dtype=torch.double, requires_grad=True)
    problem = TopK(4, 1, maximize=True)
    assert torch.autograd.gradcheck(lambda s: RandOM(dist.Gumbel(LOC, s).to_event(1), problem).log_prob(value), scale)


def test_single_precision_and_infeasible_values():
    model = RandOM(dist.Normal(LOC.float(), SCALE.float()).to_event(1), Ranking(4), validate_args=False)
    values = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 2], [4, 1, 2, 3]])
    found = model.log_prob(values)
    assert found.dtype == torch.float32 and found[1:].eq(-torch.inf).all()
    exact = RandOM(dist.Normal(LOC.float().double(), SCALE.float().double()).to_event(1), Ranking(4))
    assert found[0].item() == pytest.approx(exact.log_prob(values[0]).item(), rel=1e-6)
    with pytest.raises(ValueError, match="Expected value argument"):
        exact.log_prob(values)


@pytest.mark.parametrize(
    "base, problem, names",
    [
        (dist.Normal(torch.zeros(3, 3), 1.0).to_event(2), Matching(3), "Matching .* costs come from Normal"),
        (dist.Gumbel(torch.zeros(2, 2), 1.0).to_event(2), Matching(2), "Matching .* costs come from Gumbel"),
        (dist.MultivariateNormal(torch.zeros(3), torch.eye(3)), Ranking(3), "Ranking .* from MultivariateNormal"),
        (
            dist.Normal(torch.zeros(2, 2), 1.0).to_event(2),
            BipartiteAssignment(1, 1, num_rows=2, num_columns=2),
            "BipartiteAssignment",
        ),
    ],
)
def test_refusals(base, problem, names):
    model = RandOM(base, problem)
    with pytest.raises(NotImplementedError, match=rf"log_prob: .*{names}.*; infer the costs instead: MCMC"):
        model.log_prob(model.sample())
    assert not model.has_enumerate_support
    with pytest.raises(NotImplementedError, match=r"enumerate_support: expected at most 4096 values .*; use sample"):
        model.enumerate_support()


def test_too_many_values_are_not_listed():
    for problem in (TopK(40, 20), Ranking(8), ConnectedComponents(GRAPH.repeat(3, 1), 4, 0.0)):
        model = RandOM(dist.Normal(torch.zeros(problem.cost_shape), 1.0).to_event(1), problem)
        assert not model.has_enumerate_support
        assert model.log_prob(model.sample()).isfinite()


def test_supports_that_solvers_need():
    """Bounds of transformed costs count, not the codomains of their transforms."""
    problem = ShortestPath(torch.tensor([[0, 1], [1, 2], [0, 2]]), 3, 0, 2)
    for base in (dist.LogNormal(torch.zeros(3), 1.0), dist.Exponential(torch.ones(3))):
        shifted, negated = (
            dist.TransformedDistribution(base, [dist.transforms.AffineTransform(1.0, scale)]).to_event(1)
            for scale in (1.0, -1.0)
        )
        assert RandOM(shifted, problem).sample((5,)).shape == (5, 3)
        with pytest.raises(ValueError, match=r"base: expected costs of at least 0.0, .*, got TransformedDistribution"):
            RandOM(negated, problem)


@pytest.mark.parametrize("scale", [0, 0.0, -0.0])
@pytest.mark.parametrize("base", [dist.Normal(torch.zeros(3), 1.0), dist.LogNormal(torch.zeros(3), 1.0)])
def test_costs_that_a_transform_makes_equal(base, scale):
    for _ in range(2):
        base = dist.TransformedDistribution(base, [dist.transforms.AffineTransform(1.0, scale)])
        with pytest.raises(ValueError, match="base: expected costs that vary, got an AffineTransform of scale 0"):
            RandOM(base.to_event(1), TopK(3, 1))
        base, scale = dist.TransformedDistribution(base, [dist.transforms.ExpTransform()]), 1.0


@pytest.mark.parametrize("problem, value", [(TopK(3, 1), [1.0, 0.0, 0.0]), (Ranking(3), [0, 1, 2])])
@pytest.mark.parametrize("scale", [0.0, [1.0, 0.0, 2.0], [0.0, 0.0, 1.0]])
@pytest.mark.parametrize("family", [dist.Normal, dist.Gumbel, dist.Laplace])
def test_scales_of_zero_are_never_silent(family, scale, problem, value):
    """Tensors may be parameters: an error of ``log_prob``, or NaN."""
    transform = dist.transforms.AffineTransform(1.0, torch.tensor(scale))
    model = RandOM(dist.TransformedDistribution(family(torch.arange(3.0), 1.0), [transform]).to_event(1), problem)
    try:
        assert model.log_prob(torch.tensor(value)).isnan()
    except RuntimeError as error:
        assert "the quadrature did not converge" in str(error)
