"""Losses and gradients that are infinite or not numbers: refused by name, or skipped; nothing is changed."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.optim import SGD, Adam

from pyro_structured.distributions import GridCRF, PatternCRF, RandOM
from pyro_structured.inference import (
    MCEM,
    ContrastiveDivergence,
    ExpectedLoss,
    HardEM,
    MaxMargin,
    MeanFieldLoss,
    PerturbAndMAP,
    PseudoLikelihood,
)
from pyro_structured.structures import Grid, TopK

GRID = Grid(3, 3)
NONE = torch.zeros(GRID.num_edges)
LABELS = (torch.rand(8, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.5).float()
CHOICES = torch.eye(3)[[0, 0, 1, 2]]


@pytest.fixture(autouse=True)
def fresh():
    """An empty store of parameters, and no validation by Pyro, as in long jobs."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    with pyro.validation_enabled(False):
        yield


def no_guide(*args):
    pass


def spoilt(value, factor):
    """A number; or one that is not finite, or whose derivative is not, which is that of a root at zero."""
    return value * factor if factor != 0 else value + (value - value.detach()).square().sqrt()


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(9)

    def forward(self, y, factor):
        return self.norm(y.flatten(1) * (1.0 if factor == 0 else factor)).reshape(y.shape)


NET = Normed()


def fields(factor):
    scale = spoilt(pyro.param("scale", torch.tensor(0.5)), factor)
    pyro.module("net", NET)
    with pyro.plate("rows", 8):
        unary = NET(LABELS, factor) + 0.1 * LABELS
        pyro.sample("y", GridCRF(scale * unary, NONE, GRID), obs=LABELS)


def choices(factor):
    scale = spoilt(pyro.param("scale", torch.tensor(0.5)), factor)
    with pyro.plate("rows", 4):
        prior = dist.Normal(pyro.param("loc", torch.zeros(3)), 1.0).expand([4, 3]).to_event(1)
        pyro.sample("y", RandOM(prior, TopK(3, 1)), obs=CHOICES)
    pyro.sample("z", dist.Normal(scale, 1.0), obs=torch.tensor(1.0))


LEARNERS = {
    "MCEM": lambda **options: MCEM(choices, no_guide, Adam({"lr": 0.1}), **options),
    "MCEM, several steps": lambda **options: MCEM(
        choices, no_guide, Adam({"lr": 0.1}), num_gradient_steps=3, **options
    ),
    "MCEM, L-BFGS": lambda **options: MCEM(choices, no_guide, None, **options),
    "HardEM": lambda **options: HardEM(choices, no_guide, Adam({"lr": 0.1}), **options),
    "PerturbAndMAP": lambda **options: PerturbAndMAP(choices, no_guide, Adam({"lr": 0.1}), 3, **options),
    "MaxMargin": lambda **options: MaxMargin(choices, no_guide, Adam({"lr": 0.1}), **options),
    "PCD": lambda **options: ContrastiveDivergence(fields, no_guide, Adam({"lr": 0.1}), True, **options),
    "PseudoLikelihood": lambda **options: PseudoLikelihood(fields, no_guide, Adam({"lr": 0.1}), **options),
    "PseudoLikelihood, L-BFGS": lambda **options: PseudoLikelihood(fields, no_guide, None, **options),
    "ExpectedLoss": lambda **options: ExpectedLoss(fields, no_guide, Adam({"lr": 0.1}), "hamming", **options),
    "MeanFieldLoss": lambda **options: MeanFieldLoss(fields, no_guide, Adam({"lr": 0.1}), "logistic", **options),
}


def kept(learner):
    """All but what may go on."""
    state = learner.state_dict()
    return {key: part for key, part in state.items() if key not in ("random", "num_skipped")}


def assert_same(first, second):
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, (list, tuple)):
        for pair in zip(first, second, strict=True):
            assert_same(*pair)
    else:
        assert torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("factor", [math.nan, 0.0], ids=["loss", "gradient"])
def test_nothing_is_changed(name, factor):
    learner = LEARNERS[name]()
    learner.step(1.0)
    before = kept(learner)
    is_field = not name.startswith(("MCEM", "Hard", "Perturb", "MaxMargin"))
    with pytest.raises(ValueError, match=MESSAGES[factor == 0.0]):
        learner.step(factor)
    assert_same(kept(learner), before)
    assert all(param.grad is None for _, param in pyro.get_param_store().named_parameters())
    assert not is_field or NET.norm.running_mean.isfinite().all()
    learner = LEARNERS[name](on_nonfinite="skip")
    learner.load_state_dict({**learner.state_dict(), **before})
    loss = learner.step(factor)
    assert learner.num_skipped == 1 and math.isnan(loss) == (factor != 0.0)
    assert_same(kept(learner), before)
    assert learner.state_dict()["num_skipped"] == 1
    assert math.isfinite(learner.step(1.0)) and learner.num_skipped == 1


MESSAGES = {
    False: "(model: expected a finite loss|y: expected a field whose parameters are numbers), got nan; nothing was cha",
    True: "scale: expected a finite gradient, got -?(inf|nan) in 1 of 1 entries, at a loss of .*; nothing was changed",
}


def test_later_gradient_steps():
    """An error in a later gradient step of an M-step restores parameters and optimiser as before the first one."""
    calls = []

    def model():
        calls.append(None)
        loc = pyro.param("loc", torch.zeros(3))
        with pyro.plate("rows", 4):
            pyro.sample("y", RandOM(dist.Normal(loc, 1.0).to_event(1), TopK(3, 1)), obs=CHOICES)
        pyro.factor("spoilt", loc.sum() * (math.nan if len(calls) in bad else 1.0))

    bad = ()
    learner = MCEM(model, no_guide, Adam({"lr": 0.1}), num_gradient_steps=3, on_nonfinite="skip")
    learner.step()
    number = len(calls)
    learner.step()
    per_step, before = len(calls) - number, kept(learner)
    # The last run of a step is that of its last gradient.
    bad = (len(calls) + per_step,)
    learner.step()
    assert learner.num_skipped == 1
    assert_same(kept(learner), before)


def test_searches_that_go_astray():
    """L-BFGS comes to where the loss has no value."""

    def model():
        x = pyro.param("x", torch.tensor([1.0, 2.0]))
        # Falls until it has no value.
        pyro.factor("loss", (x**3 + 0 * (2.5 - x).sqrt()).sum())
        with pyro.plate("rows", 8):
            pyro.sample("y", GridCRF(x[0] * LABELS, NONE, GRID), obs=LABELS)

    learner = PseudoLikelihood(model, no_guide, None)
    with pytest.raises(ValueError, match="x: expected finite numbers in the search, got (inf|nan); nothing"):
        learner.step()
    assert torch.equal(pyro.param("x"), torch.tensor([1.0, 2.0]))


def test_losses_of_your_own():
    learner = ExpectedLoss(
        fields, no_guide, SGD({"lr": 0.1}), lambda labels, truth: torch.full((2, 8), torch.nan), on_nonfinite="skip"
    )
    assert math.isnan(learner.step(1.0)) and learner.num_skipped == 1


@pytest.mark.parametrize("composition", ["sum", "min"])
def test_fields_that_are_not_numbers(composition):
    def model(factor):
        unary = pyro.param("unary", torch.zeros(3, 3)) * factor
        with pyro.plate("rows", 8):
            field = PatternCRF(unary, NONE, torch.ones(2, 3, 3), torch.zeros(2), GRID, composition)
            pyro.sample("y", field, obs=LABELS)

    learner = PseudoLikelihood(model, no_guide, Adam({"lr": 0.1}), on_nonfinite="skip")
    assert math.isnan(learner.step(math.nan)) and math.isfinite(learner.step(1.0)) and learner.num_skipped == 1


@pytest.mark.parametrize("learner", [MCEM, HardEM, PerturbAndMAP, MaxMargin])
def test_costs_that_are_not_numbers(learner):
    """Costs that are not numbers raise an error before anything is drawn or solved."""

    def model(factor):
        loc = pyro.param("loc", torch.zeros(3)) * factor
        with pyro.plate("rows", 4):
            pyro.sample("y", RandOM(dist.Normal(loc, 1.0).to_event(1), TopK(3, 1)), obs=CHOICES)

    with pytest.raises(ValueError, match="y_costs: expected costs that are numbers, got nan; nothing was changed"):
        learner(model, no_guide, Adam({"lr": 0.1})).step(math.nan)
    skipping = learner(model, no_guide, Adam({"lr": 0.1}), on_nonfinite="skip")
    assert math.isnan(skipping.step(math.nan)) and math.isfinite(skipping.step(1.0)) and skipping.num_skipped == 1


def test_sparse_gradients():
    table = torch.nn.Embedding(5, 9, sparse=True)

    def model(factor):
        pyro.module("table", table)
        with pyro.plate("rows", 8):
            unary = spoilt(table(torch.arange(8) % 4), factor).reshape(8, 3, 3)
            pyro.sample("y", GridCRF(unary, NONE, GRID), obs=LABELS)

    learner = PseudoLikelihood(model, no_guide, SGD({"lr": 0.1}))
    learner.step(1.0)
    with pytest.raises(ValueError, match=r"table\$\$\$weight: expected a finite gradient, got nan in 36 of 36"):
        learner.step(0.0)


def test_arguments():
    with pytest.raises(ValueError, match=r"on_nonfinite: expected one of \('raise', 'skip'\), got 'ignore'"):
        MCEM(choices, no_guide, None, on_nonfinite="ignore")
