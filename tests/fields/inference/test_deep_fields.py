"""Fields with two layers of hidden units in models: kernels and learners."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, SVI, Trace_ELBO
from pyro.infer.mcmc.rwkernel import RandomWalkKernel
from pyro.optim import SGD, Adam
from scipy.stats import binomtest

from pyro_structured.distributions import DeepPatternCRF
from pyro_structured.inference import (
    ContrastiveDivergence,
    ExpectedLoss,
    FieldGibbs,
    Gibbs,
    MeanFieldLoss,
    PseudoLikelihood,
)
from pyro_structured.structures import Grid
from pyro_structured.testing import check_kernel
from pyro_structured.testing.standard_errors import FAILURE_RATE

pytestmark = pytest.mark.statistical

GRID = Grid(2, 3)
IMAGE = torch.tensor([[0.5, 1.0, -0.5], [0.0, 1.5, 0.3]])


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


def no_guide(*args):
    pass


def parameters(number=3, upper=2, grid=GRID, scale=1.0):
    shape = (grid.height, grid.width)
    sizes = {"unary": shape, "pairs": (grid.num_edges,), "weights": (number, *shape), "biases": (number,)}
    sizes |= {"above": (upper, number), "logits": (upper,)}
    return {name: scale * torch.randn(size, dtype=torch.double) for name, size in sizes.items()}


def field(parts, grid=GRID):
    return DeepPatternCRF(*parts.values(), grid)


def prior():
    generator = torch.Generator().manual_seed(0)
    weights, above = 2 * torch.randn(2, 2, 2, generator=generator), torch.tensor([[3.0, -2.0], [1.0, 2.0], [0.5, -1.0]])
    unary, logits = torch.zeros(2, 2), torch.tensor([-1.0, 0.5, 0.0])
    d = DeepPatternCRF(unary, torch.ones(4) / 2, weights, -weights.sum((1, 2)) / 2, above, logits, Grid(2, 2))
    return d.condition(torch.ones(2, 2), torch.tensor([[True, False], [False, False]]))


def noise():
    return pyro.param("scale", torch.tensor(3.0))


def noisy_labels(x):
    y = pyro.sample("y", prior())
    level = pyro.sample("level", dist.Normal(3.0, 0.5))
    pyro.sample("x", dist.Normal(level * y, noise()).to_event(2), obs=x)


def draw_noisy_labels():
    y, level = prior().sample(), dist.Normal(3.0, 0.5).sample()
    return {"y": y, "level": level}, (dist.Normal(level * y, noise().detach()).sample(),)


def kernel(model):
    return Gibbs([(FieldGibbs(model, num_sweeps=2), ["y"]), (RandomWalkKernel(model), ["level"])])


@pytest.mark.slow
def test_kernel():
    check_kernel(
        kernel,
        noisy_labels,
        draw_noisy_labels,
        {"y": torch.zeros(2, 2)},
        {"scale": torch.tensor(3.0)},
        num_replicates=50,
        contexts=["fork"],
    )


@pytest.mark.parametrize(("number", "upper"), [(3, 2), (2, 4)])
def test_posterior(number, upper):
    """Chains that start at exact draws, as rows of a plate, stay exact."""
    d, num_copies = field(parameters(number, upper)), 4_000

    def model():
        with pyro.plate("copies", num_copies):
            y = pyro.sample("y", d)
            pyro.sample("x", dist.Normal(y, 1.0).to_event(2), obs=IMAGE)

    values = d.enumerate_support()
    weights = (d.log_prob(values) + dist.Normal(values, 1.0).to_event(2).log_prob(IMAGE)).softmax(0)
    start = values[weights.multinomial(num_copies, replacement=True)]
    mcmc = MCMC(FieldGibbs(model, 2), 3, 0, {"y": start}, disable_progbar=True)
    mcmc.run()
    counts = mcmc.get_samples()["y"][-1].sum(0).flatten().tolist()
    for count, share in zip(counts, (weights @ values.flatten(1)).tolist(), strict=True):
        assert binomtest(int(count), num_copies, share).pvalue > FAILURE_RATE


def model_of(start, grid=GRID):
    def model(y):
        parts = {name: pyro.param(name, value.clone()) for name, value in start.items()}
        with pyro.plate("rows", len(y)):
            pyro.sample("y", field(parts, grid), obs=y)

    return model


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("persistent", [False, True])
def test_many_sweeps_give_the_gradient_of_the_likelihood(persistent):
    y, start = field(parameters()).sample((20,)), parameters(scale=0.5)
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    gradients = torch.autograd.grad(-field(leaves).log_prob(y).sum(), list(leaves.values()))
    learner = ContrastiveDivergence(model_of(start), no_guide, SGD({"lr": 1e-3}), persistent, 200, num_chains=500)
    learner.step(y)
    for (name, before), gradient in zip(start.items(), gradients, strict=True):
        moved = (before - pyro.param(name).detach()) / 1e-3
        # A mean over 10,000 chains, times 20 rows; each entry's derivative is between -1 and 1.
        assert (moved - gradient).abs().max() < 6 * 20 * 0.5 / 10_000**0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda model: SVI(model, no_guide, Adam({"lr": 0.05}), Trace_ELBO()),
        lambda model: PseudoLikelihood(model, no_guide, Adam({"lr": 0.05})),
        lambda model: ContrastiveDivergence(model, no_guide, Adam({"lr": 0.05}), persistent=True),
    ],
    ids=["likelihood", "pseudo-likelihood", "PCD"],
)
def test_distributions_are_found_again(make):
    """Hidden units may be exchanged, so that probabilities are compared, with those that a free table would have."""
    right = field(parameters(2, 2, scale=1.5))
    y = right.sample((4000,))
    values = right.enumerate_support()
    start = parameters(2, 2, scale=0.5)
    learner = make(model_of(start))
    for _ in range(250):
        learner.step(y)
    probs = right.log_prob(values).exp()

    def divergence(parts):
        return (probs * (right.log_prob(values) - field(parts).log_prob(values))).sum()

    # Of a table with 63 free entries, it would be about 63 / 2 / 4000.
    assert divergence(start) > 0.5
    limit = 0.05 if isinstance(learner, ContrastiveDivergence) else 0.01
    assert divergence({name: pyro.param(name).detach() for name in start}) < limit


@pytest.mark.parametrize(
    ("make", "number", "upper"),
    [
        (lambda model: ExpectedLoss(model, no_guide, Adam({"lr": 0.05}), "hamming", num_chains=4), 4, 2),
        (lambda model: MeanFieldLoss(model, no_guide, Adam({"lr": 0.05})), 4, 2),
        (lambda model: MeanFieldLoss(model, no_guide, Adam({"lr": 0.02}), "logistic"), 40, 30),
    ],
    ids=["expected", "mean field", "mean field of many units"],
)
def test_losses_fall(make, number, upper):
    grid = Grid(6, 6)
    truth = torch.zeros(20, 6, 6)
    truth[:10, :3], truth[10:, :, 3:] = 1.0, 1.0
    learner = make(model_of(parameters(number, upper, grid, 0.2), grid))
    losses = learner.run(60, truth)
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_sums_out_of_reach():
    """Learners that need sums out of reach raise errors that say so."""
    y, start = torch.ones(3, 2, 3), parameters(20, 20, scale=0.1)
    start["above"], start["logits"] = torch.zeros(17, 17), torch.zeros(17)
    start["weights"], start["biases"] = start["weights"][:17], start["biases"][:17]
    for learner in (
        PseudoLikelihood(model_of(start), no_guide, Adam({})),
        ContrastiveDivergence(model_of(start), no_guide, Adam({})),
    ):
        with pytest.raises(NotImplementedError, match="limited to 65536 states of the smaller layer"):
            learner.step(y)
    with pytest.raises(ValueError, match="y: expected labels inside the support, zeros and ones, got others"):
        MeanFieldLoss(model_of(start), no_guide, Adam({})).step(2 * y)
