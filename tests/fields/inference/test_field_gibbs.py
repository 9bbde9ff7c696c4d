"""Latent fields against enumeration, in and out of plates, and likelihoods that are refused."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size
from scipy.stats import binomtest, kstest

from pyro_structured.distributions import RBM, CategoricalPatternCRF, GridCRF, PatternCRF
from pyro_structured.inference import BinaryGibbs, FieldGibbs, Gibbs
from pyro_structured.structures import Grid
from pyro_structured.testing.standard_errors import FAILURE_RATE, most_standard_errors

pytestmark = pytest.mark.statistical

GRID = Grid(2, 3)
IMAGE = torch.tensor([[0.5, 1.0, -0.5], [0.0, 1.5, 0.3]])


def field(composition="sum", temperature=1.0, batch=(), paired=True):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    pairwise = normal(GRID.num_edges) / 2 if paired else None
    table = torch.tensor([0.0, 1.0, -math.inf, 1.0]) if composition == "table" else composition
    return PatternCRF(normal(*batch, 2, 3), pairwise, normal(3, 2, 3), normal(3), GRID, table, temperature)


def few_sweeps(model):
    return FieldGibbs(model, 2)


def draws(model, number=400, kernel=few_sweeps, warmup=20):
    mcmc = MCMC(kernel(model), num_samples=number, warmup_steps=warmup, disable_progbar=True)
    mcmc.run()
    return mcmc


def check_means(found, expected):
    found, expected = found.double().flatten(1), expected.double().flatten()
    size = effective_sample_size(found.unsqueeze(0) + 1e-9 * torch.randn(found.shape, dtype=torch.double))
    error = (expected * (1 - expected) / size).clamp(min=1e-6).sqrt()
    assert ((found.mean(0) - expected).abs() < most_standard_errors(float(size.min().clamp(min=2.0))) * error).all()


def posterior(prior, log_likelihood):
    """Marginals by enumeration, for a function of all values."""
    values = prior.enumerate_support()
    joint = prior.log_prob(values) + log_likelihood(values)
    return torch.tensordot(joint.softmax(0), values, ([0], [0]))


def test_boltzmann_machine_as_prior():
    torch.manual_seed(0)
    prior = RBM(torch.randn(3, 6), torch.zeros(6), torch.randn(3))
    image = torch.randn(6)

    def model():
        y = pyro.sample("y", prior)
        pyro.sample("x", dist.Normal(y, 0.8).to_event(1), obs=image)

    mcmc = draws(model)
    expected = posterior(prior, lambda y: dist.Normal(y, 0.8).to_event(1).log_prob(image))
    check_means(mcmc.get_samples()["y"], expected)
    report = mcmc.diagnostics()
    assert 0 < report["FieldGibbs changed labels"]["chain 0"] < 1
    assert report["FieldGibbs stuck steps"]["chain 0"] < 1500


@pytest.mark.parametrize(
    "composition, temperature, paired", [("sum", 2.0, True), ("min", 1.0, False), ("table", 1.0, True)]
)
def test_field_alone(composition, temperature, paired):
    """No likelihood, and labels that are known."""
    prior = field(composition, temperature, (2,), paired).condition(
        torch.tensor([1.0, 0.0, 0.0]), torch.tensor([[True, False, False], [False, False, True]])
    )
    found = draws(lambda: pyro.sample("y", prior.to_event(1)), 300).get_samples()["y"]
    assert (found[:, :, 0, 0] == 1).all() and (found[:, :, 1, 2] == 0).all()
    check_means(found, prior.marginals)


LOGITS = torch.tensor([[0.0, 1.0, -1.0], [0.5, 0.0, 1.0]])


def noisy_pixels(y):
    pyro.sample("x", dist.Normal(y, 1.0).to_event(2), obs=IMAGE)


def in_plates(y):
    with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
        pyro.sample("x", dist.Normal(y, 1.0), obs=IMAGE)


def colours(y):
    pyro.sample("x", dist.Normal(y[..., None] * LOGITS[0], 1.0).to_event(3), obs=IMAGE[..., None].expand(2, 3, 3))


def several_images(y):
    with pyro.plate("images", 4):
        pyro.sample("x", dist.Normal(y, 2.0).to_event(2), obs=IMAGE.expand(4, 2, 3))


def some_pixels(y):
    with poutine.mask(mask=IMAGE > 0), poutine.scale(scale=0.5):
        in_plates(y)


def factor(y):
    pyro.factor("f", y * LOGITS)


def certain(y):
    """A pixel that is seen without noise, another that says nothing, and a site that has nothing to do with them."""
    in_plates(y)
    pyro.factor("f", torch.where(IMAGE == 1.5, torch.where(y == 1, 0.0, -math.inf), 0.0 * y))
    pyro.sample("z", dist.Normal(torch.zeros(7), 1.0).to_event(1), obs=torch.ones(7))


LIKELIHOODS = {
    each.__name__: each for each in (noisy_pixels, in_plates, colours, several_images, some_pixels, factor, certain)
}


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods(name):
    prior, likelihood = field(), LIKELIHOODS[name]

    def log_likelihood(values):
        return torch.stack(
            [torch.as_tensor(poutine.trace(likelihood).get_trace(value).log_prob_sum()) for value in values]
        )

    mcmc = draws(lambda: likelihood(pyro.sample("y", prior)))
    check_means(mcmc.get_samples()["y"], posterior(prior, log_likelihood))


def test_fields_in_a_plate_and_latent_noise():
    """Unary terms of their own, shared patterns; what comes after the labels is latent, too. Chains that start at exact
    draws, as rows of a plate, stay exact.
    """
    prior, images = field(batch=(3,)), torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(1)) + 0.5
    steps, number = torch.linspace(-3, 4, 2_000), 1_000

    def model():
        copies, rows = pyro.plate("copies", number, dim=-2), pyro.plate("images", 3, dim=-1)
        with copies, rows:
            y = pyro.sample("y", prior)
        with copies:
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with copies, rows:
            pyro.sample("x", dist.Normal(level[..., None, None] * y, 0.7).to_event(2), obs=images)

    # Given the level, images are independent.
    values = prior.enumerate_support()
    means = steps.reshape(-1, 1, 1, 1, 1) * values
    joint = prior.log_prob(values) + dist.Normal(means, 0.7).to_event(2).log_prob(images)
    weights = (joint.logsumexp(1).sum(-1) + dist.Normal(0.0, 1.0).log_prob(steps)).double().softmax(0)
    expected = torch.einsum("s,snb,nbhw->bhw", weights, joint.double().softmax(1), values.double())
    drawn = weights.multinomial(number, replacement=True)
    labels = dist.Categorical(logits=joint[drawn].transpose(1, 2)).sample()
    start = {"y": values[labels, torch.arange(3)], "level": steps[drawn].unsqueeze(-1)}
    # A kernel that adapts has no invariant distribution.
    nuts = NUTS(model, step_size=0.05, adapt_step_size=False, max_tree_depth=4)
    kernel = Gibbs([(FieldGibbs(model, 2), ["y"]), (nuts, ["level"])])
    mcmc = MCMC(kernel, num_samples=4, warmup_steps=0, initial_params=start, disable_progbar=True)
    mcmc.run()
    y, level = (mcmc.get_samples()[name][-1] for name in ("y", "level"))
    assert (level != start["level"]).double().mean() > 0.9
    for count, share in zip(y.sum(0).flatten().tolist(), expected.flatten().tolist(), strict=True):
        assert binomtest(int(count), number, share).pvalue > FAILURE_RATE
    assert kstest(level.flatten(), lambda x: np.interp(x, steps, weights.cumsum(0))).pvalue > FAILURE_RATE


def test_continuous_sites_are_left_to_nuts():
    def model():
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", field())
        pyro.sample("x", dist.Normal(level * y, 0.7).to_event(2), obs=IMAGE)

    kernel = FieldGibbs(model)
    (own, names), (other, _) = kernel.composition((), {})
    assert own is kernel and names == ["y"] and isinstance(other, NUTS)


@pytest.mark.parametrize("kernel", [few_sweeps, BinaryGibbs])
def test_sums_out_of_reach(kernel):
    """Neither log Z nor an exact sample is needed."""
    torch.manual_seed(1)
    grid = Grid(3, 4)
    prior = PatternCRF(
        torch.randn(3, 4), torch.randn(17), torch.randn(40, 3, 4) / 4, torch.randn(40), grid, temperature=1
    )
    expected = posterior(prior, lambda y: dist.Normal(y, 1.0).to_event(2).log_prob(torch.zeros(3, 4)))

    def model():
        y = pyro.sample("y", prior)
        pyro.sample("x", dist.Normal(y, 1.0).to_event(2), obs=torch.zeros(3, 4))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_structured.fields.ops.field_sums.MOST_NUMBERS", 1)
        del prior.__dict__["_sums"]
        found = draws(model, 400 if kernel is few_sweeps else 60, kernel).get_samples()["y"]
    check_means(found, expected)


@pytest.mark.slow
def test_two_fields():
    """A field that comes later has no influence, unless it depends on the first one."""

    def apart():
        y = pyro.sample("y", field())
        pyro.sample("z", field())
        pyro.sample("x", dist.Normal(y, 1.0).to_event(2), obs=IMAGE)

    found = draws(apart).get_samples()
    expected = posterior(field(), lambda y: dist.Normal(y, 1.0).to_event(2).log_prob(IMAGE))
    check_means(found["y"], expected)
    check_means(found["z"], field().marginals)

    def chain():
        y = pyro.sample("y", field())
        pyro.sample("z", GridCRF(y, torch.ones(GRID.num_edges), GRID))

    with pytest.raises(NotImplementedError, match="z: expected log-densities of which each entry depends"):
        draws(chain, 10)


def neighbours(y):
    pyro.sample("x", dist.Normal(y + y.roll(1, -1), 0.5).to_event(2), obs=IMAGE)


def differences(y):
    """A likelihood that is the same for all labels exchanged."""
    pyro.sample("x", dist.Normal((y - y.roll(1, -1)).abs(), 0.5).to_event(2), obs=IMAGE)


def total(y):
    pyro.sample("x", dist.Normal(y.sum((-2, -1)), 0.5), obs=torch.tensor(2.0))


@pytest.mark.parametrize(
    "likelihood, message",
    [
        (neighbours, r"x: .* depends on one label of 'y', in the shape of its values, \(2, 3\), .* on several labels"),
        (differences, "got entries that depend on several labels; BinaryGibbs updates labels under any likelihood"),
        # The fault that is found first depends on the labels.
        (total, r"got (log-densities of shape \(\)|entries that depend on several labels)"),
    ],
)
def test_likelihoods_of_several_labels(likelihood, message):
    def model():
        likelihood(pyro.sample("y", field()))

    with pytest.raises(NotImplementedError, match=message):
        draws(model, 10)
    assert draws(model, 10, BinaryGibbs).get_samples()["y"].shape == (10, 2, 3)


def masked():
    with pyro.plate("images", 2), poutine.mask(mask=torch.tensor([True, False])):
        pyro.sample("y", field(batch=(2,)))


def masked_distribution():
    pyro.sample("y", field().mask(torch.tensor(False)))


def scaled():
    with poutine.scale(scale=0.5):
        pyro.sample("y", field())


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (lambda: pyro.sample("y", field(temperature=0.5)), NotImplementedError, "temperature: expected an integer"),
        (masked, ValueError, "y: expected a field without a scale or a mask .*; BinaryGibbs takes it"),
        (scaled, ValueError, "y: expected a field without a scale or a mask"),
    ],
)
def test_refusals(model, error, message):
    with pytest.raises(error, match=message):
        draws(model, 10)


@pytest.mark.slow
def test_masked_distributions():
    """Masked fields are left to BinaryGibbs by the composition, and refused by FieldGibbs in Gibbs."""
    with pytest.raises(ValueError, match="y: expected a field without a scale or a mask .*; BinaryGibbs takes it"):
        draws(masked_distribution, 1, lambda model: Gibbs([(FieldGibbs(model), None)]))
    check_means(draws(masked_distribution, 200).get_samples()["y"], torch.full((6,), 0.5))


def test_other_sites_are_refused():
    def model():
        pyro.sample("s", dist.Bernoulli(0.5))
        pyro.sample("y", field())

    assert set(draws(model, 3).get_samples()) == {"s", "y"}
    with pytest.raises(ValueError, match="s: expected a PatternCRF, GridCRF, RBM, .* for FieldGibbs, got Bernoulli"):
        draws(model, 3, lambda model: Gibbs([(FieldGibbs(model), None)]))
    with pytest.raises(ValueError, match="num_sweeps: expected an integer of at least 1, got 0"):
        FieldGibbs(model, 0)


def test_beside_nuts():
    """A level before the field, whose log Z is then needed."""

    def model():
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", PatternCRF(level * LOGITS, None, torch.ones(1, 2, 3), torch.zeros(1), GRID))
        pyro.sample("x", dist.Normal(y, 1.0).to_event(2), obs=IMAGE)

    mcmc = draws(model, 5, lambda model: Gibbs([(FieldGibbs(model), ["y"]), (NUTS(model), ["level"])]), 5)
    assert mcmc.get_samples()["y"].shape == (5, 2, 3)


def categorical_field(composition="sum", temperature=1.0, batch=(), labels=3):
    generator = torch.Generator().manual_seed(4)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    unary = normal(*batch, 2, 3, labels)
    unary[..., 0, 0, 1] = -math.inf
    parts = normal(GRID.num_edges) / 2, normal(2, 2, 3, labels), normal(2)
    return CategoricalPatternCRF(unary, *parts, GRID, composition, temperature)


def check_labels(found, prior, log_likelihood=lambda values: 0.0):
    """Draws against all marginals, by enumeration."""
    values = prior.enumerate_support()
    joint = prior.log_prob(values) + log_likelihood(values)
    labels = prior.unary_logits.shape[-1]
    indicators = (torch.nn.functional.one_hot(each, labels).double() for each in (found, values))
    drawn, everything = indicators
    check_means(drawn, torch.tensordot(joint.double().softmax(0), everything, 1))


@pytest.mark.parametrize("composition, temperature", [("sum", 2.0), ("min", 1.0)])
def test_several_labels_alone(composition, temperature):
    prior = categorical_field(composition, temperature)
    observed = torch.tensor([[False, False, True], [False, False, False]])
    given = prior.condition(torch.full((2, 3), 2), observed)
    found = draws(lambda: pyro.sample("y", given), 400).get_samples()["y"]
    assert found.dtype == torch.long and (found[:, 0, 2] == 2).all() and (found[:, 0, 0] != 1).all()
    check_labels(found, given)


LEVELS = torch.tensor([0.0, 1.0, -1.0])


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("labels", [2, 3])
def test_several_labels_in_noise(labels):
    """Colours of pixels by their labels; one of the labels cannot be at some pixel."""
    prior = categorical_field(labels=labels)

    def model():
        y = pyro.sample("y", prior)
        with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
            pyro.sample("x", dist.Normal(LEVELS[y], 0.9), obs=IMAGE)
        pyro.factor("f", torch.where((y == 1) & (IMAGE == 1.5), -math.inf, 0.1 * y))

    def log_likelihood(y):
        excluded = torch.where((y == 1) & (IMAGE == 1.5), -math.inf, 0.1 * y)
        return (dist.Normal(LEVELS[y], 0.9).log_prob(IMAGE) + excluded).sum((-1, -2))

    check_labels(draws(model).get_samples()["y"], prior, log_likelihood)


def test_several_labels_together():
    """Likelihoods that are no sums over pixels are refused, those that only a third label tells as well."""

    def model():
        y = pyro.sample("y", categorical_field())
        pyro.sample("x", dist.Normal((y == 2).float() * (y.roll(1, -1) == 2), 0.5).to_event(2), obs=IMAGE)

    with pytest.raises(NotImplementedError, match="got entries that depend on several labels"):
        draws(model, 50)


@pytest.mark.parametrize("composition", ["sum", "min", "table"])
def test_no_rows(composition):
    """Draws of an empty batch are empty, and as many as asked for."""

    def model():
        pyro.sample("y", field(composition, batch=(0,)).to_event(1))

    assert draws(model, 3).get_samples(group_by_chain=True)["y"].shape == (1, 3, 0, 2, 3)
