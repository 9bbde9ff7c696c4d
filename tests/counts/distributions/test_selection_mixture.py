"""A selector that is summed out exactly, against the sum over all its vectors."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.optim import Adam
from torch.distributions import biject_to, constraints

from pyro_structured.distributions import KSubset, NanMasked, RecursiveCardinality, SelectionMixture
from pyro_structured.structures import NestedSubsets

ONE_OF_FOUR = KSubset(torch.zeros(4), 1)
NESTED = NestedSubsets([[0, 1], [0, 1, 2, 3]], num_variables=4)


def selector(*batch):
    x = torch.randn(*batch, 4, dtype=torch.float64)
    return RecursiveCardinality(x, torch.randn(*batch, NESTED.table_size, dtype=torch.float64), NESTED)


def normals(*batch):
    low = dist.Normal(torch.full((*batch, 4), -1.0, dtype=torch.float64), 1.0)
    return low, dist.Normal(torch.linspace(0.0, 2.0, 4, dtype=torch.float64), 0.5)


def reference(d, value, observed=True):
    """Sums over the selector's vectors; entries that are not observed drop out."""
    table = d.selector.enumerate_support()
    table = table.reshape(table.shape[:1] + (1,) * (value.dim() - table.dim() + 1) + table.shape[1:])
    parts = torch.where(table == 1, d.component1.log_prob(value), d.component0.log_prob(value))
    joint = d.selector.log_prob(table) + (parts * observed).sum(-1)
    return torch.logsumexp(joint, 0)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_log_prob(batch):
    d = SelectionMixture(selector(*batch), *normals(*batch))
    value = d.sample()
    torch.testing.assert_close(d.log_prob(value), reference(d, value))
    observed = torch.tensor([True, False, False, True])
    missing = value.masked_fill(~observed, math.nan)
    expected = reference(d, value, observed)
    torch.testing.assert_close(d.marginal_log_prob(missing, observed), expected)
    torch.testing.assert_close(NanMasked(d).log_prob(missing), expected)
    torch.testing.assert_close(NanMasked(d).log_prob(torch.full_like(value, math.nan)), torch.zeros(batch).double())


def test_posterior():
    d = SelectionMixture(selector(2), *normals(2))
    value = d.sample((3,))
    posterior = d.posterior(value)
    assert posterior.batch_shape == (3, 2)
    table = d.selector.enumerate_support().unsqueeze(1)
    parts = torch.where(table == 1, d.component1.log_prob(value), d.component0.log_prob(value)).sum(-1)
    expected = torch.log_softmax(d.selector.log_prob(table) + parts, 0)
    torch.testing.assert_close(posterior.log_prob(table), expected)
    torch.testing.assert_close(posterior.marginals, (expected.exp().unsqueeze(-1) * table).sum(0))
    weight = posterior.log_partition_function - d.selector.log_partition_function
    torch.testing.assert_close(weight, d.log_prob(value))


def test_shapes_broadcast():
    d = SelectionMixture(KSubset(torch.zeros(4), 2), dist.Normal(0.0, 1.0), dist.Normal(torch.zeros(5, 1), 1.0))
    assert d.batch_shape == (5,) and d.event_shape == (4,)
    d = SelectionMixture(KSubset(torch.zeros(2, 4), 2), dist.Laplace(torch.zeros(4), 1.0), dist.Normal(0.0, 1.0))
    assert d.batch_shape == (2,) and d.sample((3,)).shape == (3, 2, 4)


@pytest.mark.parametrize(
    "components",
    [
        (dist.Poisson(torch.tensor([1.0, 2.0, 3.0, 4.0])), dist.Poisson(10.0)),
        (dist.Bernoulli(0.1), dist.Bernoulli(torch.tensor([0.9, 0.5, 0.9, 1.0]))),
        (dist.Gamma(1.0, 1.0), dist.LogNormal(0.0, 1.0)),
        (dist.Categorical(torch.tensor([0.5, 0.2, 0.3])), dist.Categorical(torch.tensor([0.2, 0.4, 0.4]))),
        (dist.Exponential(1.0), dist.Exponential(torch.tensor([5.0, 1.0, 2.0, 3.0]))),
        (dist.Uniform(0.0, 1.0), dist.Beta(2.0, 2.0)),
    ],
    ids=lambda components: type(components[0]).__name__,
)
def test_other_components(components):
    """Supports other than the real line, also where entries are missing."""
    d = SelectionMixture(selector(), *components)
    value = d.sample((5,))
    torch.testing.assert_close(d.log_prob(value).double(), reference(d, value).double(), rtol=1e-4, atol=1e-5)
    observed = torch.tensor([True, False, True, False])
    found = d.marginal_log_prob(value.double().masked_fill(~observed, math.nan), observed)
    torch.testing.assert_close(found.double(), reference(d, value, observed).double(), rtol=1e-4, atol=1e-5)


def test_impossible_components():
    """Where one component cannot make a value, its entry is known; where neither can, the density is zero."""
    low, high = (dist.Uniform(0.0, width, validate_args=False) for width in (1.0, 2.0))
    sure = SelectionMixture(KSubset(torch.zeros(3), 1), low, high, validate_args=False)
    value = torch.tensor([0.5, 1.5, 0.5])
    torch.testing.assert_close(sure.log_prob(value).exp(), torch.tensor(1 / 6))
    assert sure.posterior(value).marginals.tolist() == [0.0, 1.0, 0.0]
    assert sure.log_prob(torch.tensor([1.5, 1.5, 0.5])) == -math.inf


@pytest.mark.parametrize(
    "components, expected",
    [
        ((dist.HalfNormal(1.0), dist.Normal(0.0, 1.0)), constraints.real),
        ((dist.Normal(0.0, 1.0), dist.Uniform(0.0, 1.0)), constraints.real),
        ((dist.LogNormal(0.0, 1.0), dist.Gamma(1.0, 1.0)), constraints.nonnegative),
        ((dist.LogNormal(0.0, 1.0), dist.LogNormal(2.0, 1.0)), constraints.positive),
        ((dist.Beta(2.0, 2.0), dist.Exponential(1.0)), constraints.nonnegative),
        ((dist.Bernoulli(0.1), dist.Bernoulli(0.9)), constraints.boolean),
    ],
)
def test_support_of_which_one_contains_the_other(components, expected):
    d = SelectionMixture(KSubset(torch.zeros(3), 1), *components)
    assert d.support.base_constraint is expected
    assert d.log_prob(d.sample((100,))).isfinite().all()
    if not expected.is_discrete:
        assert d.support.check(biject_to(d.support)(torch.randn(10, 3))).all()


@pytest.mark.parametrize(
    "components, inside, outside",
    [
        ((dist.Uniform(0.0, 1.0), dist.Uniform(2.0, 3.0)), [0.5, 2.5, 1.0], 1.5),
        ((dist.Uniform(torch.tensor([0.0, 0.0, 1.0]), 2.0), dist.Uniform(0.5, 1.5)), [0.1, 1.9, 0.7], 2.1),
        ((dist.Bernoulli(0.5), dist.Poisson(3.0)), [0.0, 1.0, 7.0], 0.5),
    ],
)
def test_union_of_supports(components, inside, outside):
    d = SelectionMixture(KSubset(torch.zeros(3), 1), *components)
    assert d.log_prob(d.sample((100,))).isfinite().all()
    assert d.support.check(torch.tensor(inside)) and d.support.event_dim == 1
    assert d.support.is_discrete == components[0].support.is_discrete
    with pytest.raises(ValueError, match=r"within the support .* or "):
        d.log_prob(torch.tensor([outside, *inside[1:]]))


@pytest.mark.parametrize("wrong", [math.nan, -1.0])
def test_observed_entries_outside_of_the_support(wrong):
    components = dist.Uniform(0.0, 1.0), dist.Exponential(1.0)
    d = SelectionMixture(KSubset(torch.zeros(3), 1), *components)
    value, observed = torch.tensor([0.5, wrong, 0.5]), torch.tensor([True, False, True])
    assert d.marginal_log_prob(value, observed).isfinite() and d.posterior(value, observed).marginals.isfinite().all()
    for query in (d.posterior, d.marginal_log_prob):
        with pytest.raises(ValueError, match="value: expected numbers in the support of a component where observed"):
            query(value, torch.tensor(True))
    unchecked = SelectionMixture(d.selector, *components, validate_args=False)
    assert unchecked.marginal_log_prob(value, torch.tensor(True)) == -math.inf


def test_gradients_of_parameters_and_values():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    f = torch.randn(5, dtype=torch.float64, requires_grad=True)
    loc = torch.randn(4, dtype=torch.float64, requires_grad=True)
    value = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

    def log_prob(x, f, loc, value):
        low, high = dist.Normal(0.0, 1.0), dist.Normal(loc, 1.0)
        return SelectionMixture(RecursiveCardinality(x, f), low, high).log_prob(value)

    assert torch.autograd.gradcheck(log_prob, (x, f, loc, value))
    assert torch.autograd.gradgradcheck(log_prob, (x, f, loc, value), fast_mode=True)


def test_learning_in_plates():
    """SVI finds the location of the selected entries; NUTS and Predictive run on the same model."""
    torch.manual_seed(0)
    truth = SelectionMixture(KSubset(torch.zeros(6), 2), dist.Normal(0.0, 1.0), dist.Normal(4.0, 1.0))
    data = truth.sample((50,))
    data[0, :3] = math.nan

    def model(data=None):
        loc = pyro.sample("loc", dist.Normal(1.0, 5.0))
        # The components' last axis is that of the entries.
        mixture = SelectionMixture(
            KSubset(torch.zeros(6), 2), dist.Normal(0.0, 1.0), dist.Normal(loc.unsqueeze(-1), 1.0)
        )
        with pyro.plate("data", 50):
            return pyro.sample("y", NanMasked(mixture), obs=data)

    guide = AutoDelta(model)
    svi = SVI(model, guide, Adam({"lr": 0.3}), Trace_ELBO())
    for _ in range(50):
        svi.step(data)
    assert guide.median()["loc"].item() == pytest.approx(4.0, abs=0.4)
    chain = MCMC(
        NUTS(model, max_tree_depth=3),
        num_samples=5,
        warmup_steps=5,
        initial_params={"loc": torch.tensor(4.0)},
        disable_progbar=True,
    )
    chain.run(data)
    assert chain.get_samples()["loc"].isfinite().all()
    drawn = Predictive(model, {"loc": torch.tensor([3.0, 4.0])}, parallel=True)()["y"]
    assert drawn.reshape(2, 50, 6).isfinite().all()


def test_mean_and_variance():
    d = SelectionMixture(selector(3), *normals(3))
    table = d.selector.enumerate_support()
    probs = d.selector.log_prob(table).exp().unsqueeze(-1)
    means = torch.where(table == 1, d.component1.mean, d.component0.mean)
    squares = torch.where(table == 1, d.component1.variance, d.component0.variance) + means**2
    torch.testing.assert_close(d.mean, (probs * means).sum(0))
    torch.testing.assert_close(d.variance, (probs * squares).sum(0) - d.mean**2)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((dist.Bernoulli(torch.zeros(4)).to_event(1), *normals()), "selector: expected a RecursiveCardinality, got In"),
        ((ONE_OF_FOUR, dist.Normal(torch.zeros(4), 1.0).to_event(1), normals()[1]), r"component0: .* \(4,\)"),
        ((ONE_OF_FOUR, dist.Normal(torch.zeros(3), 1.0), normals()[1]), r"component0: .* got \(3,\)"),
        ((ONE_OF_FOUR, normals()[0], dist.Normal(torch.zeros(2, 3), 1.0)), r"component1: .* got \(2, 3\)"),
        ((KSubset(torch.zeros(1), 1), dist.Normal(torch.zeros(3), 1.0), normals()[1]), r"component0: .* \(3,\)"),
        ((ONE_OF_FOUR, None, normals()[1]), "component0: expected a distribution, got None"),
        ((ONE_OF_FOUR, normals()[0], 1.0), "component1: expected a distribution, got 1.0"),
        ((ONE_OF_FOUR, normals()[0], dist.Poisson(1.0)), "component1: expected a continuous .*, got Poisson"),
        ((ONE_OF_FOUR, dist.Poisson(1.0), normals()[0]), "component1: expected a discrete .*, got Normal"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SelectionMixture(*arguments)


def test_component():
    """Sums over the selector, weighted by its probabilities, are the mixture."""
    d = SelectionMixture(selector(2), *normals(2))
    value, z = d.sample(), d.selector.enumerate_support()
    component = d.component(z)
    assert component.batch_shape == (16, 2) and component.event_shape == (4,)
    joint = component.log_prob(value) + d.selector.log_prob(z)
    torch.testing.assert_close(torch.logsumexp(joint, 0), d.log_prob(value))
    assert d.component(torch.ones(4)).sample((3,)).shape == (3, 2, 4)
    wrong = [(torch.full((4,), 0.5), "z: expected zeros and ones"), (torch.ones(3), "z: expected a shape")]
    for value, message in wrong:
        with pytest.raises(ValueError, match=message):
            d.component(value)
