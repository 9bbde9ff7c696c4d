"""Learners of fields: gradients against enumeration, parameters that are found again, chains, and bad input."""

import copy
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.optim import SGD, Adam

from pyro_structured.distributions import CategoricalPatternCRF, GridCRF, PatternCRF
from pyro_structured.fields.inference.expected_loss import expected_loss
from pyro_structured.fields.ops.label_losses import hamming_loss, intersection_over_union_loss
from pyro_structured.inference import (
    ContrastiveDivergence,
    EarlyStopping,
    ExpectedLoss,
    MeanFieldLoss,
    PseudoLikelihood,
)
from pyro_structured.structures import Grid
from pyro_structured.testing.standard_errors import most_standard_errors

pytestmark = pytest.mark.statistical

SMALL = Grid(3, 3)
NONE = torch.zeros(SMALL.num_edges)
LOSSES = {"intersection_over_union": intersection_over_union_loss, "hamming": hamming_loss}


def no_guide(*args):
    pass


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


def small_parameters(num_patterns=2):
    shapes = {
        "unary": (3, 3),
        "pairwise": (SMALL.num_edges,),
        "weights": (num_patterns, 3, 3),
        "biases": (num_patterns,),
    }
    found = {name: torch.randn(shape, dtype=torch.double) for name, shape in shapes.items()}
    found["pairwise"] = found["pairwise"].abs() / 2
    return {name: value.requires_grad_() for name, value in found.items()}


def small_field(parts, composition="sum", temperature=1.0):
    return PatternCRF(
        parts["unary"], parts["pairwise"], parts["weights"], parts["biases"], SMALL, composition, temperature
    )


@pytest.mark.parametrize("composition, temperature", [("sum", 1.0), ("min", 1.0), ("sum", 2.0)])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_of_the_expected_loss(loss, composition, temperature):
    """Against the enumerated one, with 1e5 samples in 100 groups."""
    parts = small_parameters()
    field = small_field(parts, composition, temperature)
    draws = field.sample((100_000,))
    truth = (torch.rand(3, 3) < 0.5).double()
    values = field.enumerate_support()
    exact = (field.log_prob(values).exp() * LOSSES[loss](values, truth)).sum()
    expected = torch.autograd.grad(exact, list(parts.values()))
    groups = []
    for samples in draws.split(1000):
        log_weights = small_field(parts, composition, temperature).unnormalized_log_prob(samples)
        mean = expected_loss(LOSSES[loss](samples, truth), log_weights)
        groups.append(torch.autograd.grad(mean, list(parts.values())))
    for found, right in zip(zip(*groups, strict=True), expected, strict=True):
        each = torch.stack(found)
        error = each.std(0) / len(each) ** 0.5
        assert ((each.mean(0) - right).abs() < most_standard_errors(len(each)) * error).all()


def likelihood_gradient(parts, y):
    field = small_field(parts)
    return torch.autograd.grad(-field.log_prob(y).sum(), list(parts.values()))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("persistent, num_sweeps", [(False, 200), (True, 200)])
def test_many_sweeps_give_the_gradient_of_the_likelihood(persistent, num_sweeps):
    truth = small_parameters()
    y = small_field(truth).sample((20,)).detach()
    start = {name: 0.5 * value.detach() for name, value in truth.items()}

    def model(y):
        parts = {name: pyro.param(name, value.clone()) for name, value in start.items()}
        with pyro.plate("rows", len(y)):
            pyro.sample("y", small_field(parts), obs=y)

    learner = ContrastiveDivergence(model, no_guide, SGD({"lr": 1e-3}), persistent, num_sweeps, num_chains=500)
    learner.step(y)
    expected = likelihood_gradient({name: value.clone().requires_grad_() for name, value in start.items()}, y)
    for (name, before), gradient in zip(start.items(), expected, strict=True):
        moved = (before - pyro.param(name).detach()) / 1e-3
        # A mean over 10,000 chains, times 20 rows; each entry's derivative is between -1 and 1.
        assert (moved - gradient).abs().max() < 6 * 20 * 0.5 / 10_000**0.5


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "make",
    [
        lambda model: SVI(model, no_guide, Adam({"lr": 0.1}), Trace_ELBO()),
        lambda model: PseudoLikelihood(model, no_guide, None),
        lambda model: ContrastiveDivergence(model, no_guide, Adam({"lr": 0.05}), persistent=True),
    ],
    ids=["likelihood", "pseudo-likelihood", "PCD"],
)
def test_parameters_are_found_again(make):
    """A 4x4 field with two patterns, in its natural order, from 4,000 observations; errors by Fisher information."""
    grid, number = Grid(4, 4), 4000
    templates = torch.zeros(2, 4, 4)
    templates[0, :2], templates[1, :, 2:] = 2.0, 2.0
    right = {
        "unary": -torch.ones(()),
        "penalty": torch.tensor(0.4),
        "weights": templates,
        "biases": torch.tensor([-4.0, -6.0]),
    }
    starts = {**right, "unary": torch.zeros(()), "penalty": torch.zeros(()), "weights": templates / 2}
    starts["biases"] = torch.zeros(2)

    def field(parts):
        pairs = parts["penalty"].expand(grid.num_edges)
        return PatternCRF(parts["unary"].expand(4, 4), pairs, parts["weights"], parts["biases"], grid)

    y = field(right).sample((number,))

    def model(y):
        parts = {name: pyro.param(name, value.clone()) for name, value in starts.items()}
        with pyro.plate("rows", len(y)):
            pyro.sample("y", field(parts), obs=y)

    learner = make(model)
    for _ in range(1 if isinstance(learner, PseudoLikelihood) else 300):
        learner.step(y)
    flat = torch.cat([value.flatten() for value in right.values()]).double().requires_grad_()
    sizes = [value.numel() for value in right.values()]

    def log_prob(flat, y):
        pieces = zip(right.items(), flat.split(sizes), strict=True)
        return field({name: piece.reshape(value.shape) for (name, value), piece in pieces}).log_prob(y)

    scores = torch.autograd.functional.jacobian(lambda flat: log_prob(flat, y[:500]), flat.detach(), vectorize=True)
    errors = torch.linalg.inv(scores.T @ scores / len(scores)).diagonal().sqrt() / number**0.5
    found = torch.cat([pyro.param(name).detach().flatten() for name in right])
    deviation = ((found - flat.detach()) / errors).detach()
    assert deviation.abs().max() < most_standard_errors(len(scores)), deviation


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "make",
    [
        lambda *model: ExpectedLoss(*model, Adam({"lr": 0.05}), "hamming", num_chains=4),
        lambda *model: MeanFieldLoss(*model, Adam({"lr": 0.05}), "logistic"),
        lambda *model: MeanFieldLoss(*model, Adam({"lr": 0.05})),
    ],
    ids=["expected", "logistic", "mean field"],
)
def test_losses_fall_with_patterns_modules_and_a_prior(make):
    """A module of the image and a latent site, in minibatches."""
    grid = Grid(6, 6)
    truth = torch.zeros(60, 6, 6)
    truth[:30, :3], truth[30:, :, 3:] = 1.0, 1.0
    pixels = truth + torch.randn(60, 6, 6)
    network = torch.nn.Linear(1, 1)
    # From a negative slope, some steps lead to where all labels are equal.
    torch.nn.init.ones_(network.weight)

    def field(x):
        weights = pyro.sample("weights", dist.Normal(torch.zeros(2, 6, 6), 1.0).to_event(3))
        unary = pyro.module("network", network)(x.unsqueeze(-1)).squeeze(-1)
        penalty = pyro.param("penalty", torch.tensor(0.1))
        return PatternCRF(unary, penalty.expand(grid.num_edges), weights, -2 * torch.ones(2), grid)

    def model(x, y):
        d = field(x)
        with pyro.plate("images", len(x), subsample_size=20) as rows:
            # The parameters of a part of the rows.
            part = PatternCRF(d.unary_logits[rows], d.pairwise, d.weights, d.pattern_logits, grid)
            pyro.sample("y", part, obs=y[rows])

    guide = AutoDelta(pyro.poutine.block(model, expose=["weights"]))
    learner = make(model, guide)
    losses = torch.tensor(learner.run(100, pixels, truth)) - 72 * math.log(2 * math.pi) / 2
    # Of 36 runs, 0.44 with a standard deviation of 0.08.
    assert losses[-10:].mean() < 0.85 * losses[:10].mean()


def rows_model(y):
    scale = pyro.param("scale", torch.ones(()))
    with pyro.plate("rows", len(y), subsample_size=4) as rows:
        unary = scale * (2 * y[rows] - 1)
        pyro.sample("y", GridCRF(unary, scale.expand(SMALL.num_edges), SMALL), obs=y[rows])


@pytest.mark.parametrize("learner_class", [ContrastiveDivergence, ExpectedLoss])
def test_chains_belong_to_rows(learner_class):
    """Rows that a step does not see stay as they are."""
    y = (torch.rand(12, 3, 3) < 0.5).float()
    options = {"persistent": True} if learner_class is ContrastiveDivergence else {}
    learner, before = learner_class(rows_model, no_guide, SGD({"lr": 0.0}), num_chains=3, **options), None
    for _ in range(20):
        learner.step(y)
        part = learner.state_dict()["chains"]["y"]
        values = torch.full((12, 3, 3, 3), -1.0)
        values[part["rows"].squeeze(-1)] = part["values"]
        if before is not None:
            assert (values != before).flatten(1).any(1).sum() <= 4
        before = values
    assert part["sizes"].tolist() == [12] and len(part["rows"]) == 12


def labels_of(learner):
    return learner.state_dict()["chains"]["y"]["values"]


def sizes_of(learner):
    return learner.state_dict()["chains"]["y"]["sizes"].tolist()


def test_other_data_start_other_chains():
    """Rows with other labels than before are not those of the chains; those with the same labels are."""
    y = (torch.rand(12, 3, 3) < 0.5).float()
    other = torch.cat([y[:6], 1 - y[6:]])

    def model(y):
        scale = pyro.param("scale", torch.tensor(50.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", GridCRF(scale * torch.ones(len(y), 3, 3), NONE, SMALL), obs=y)

    def still(y):
        """No label ever changes, wherever it is."""
        with pyro.plate("rows", len(y)):
            unary = torch.where(y == 1, torch.inf, -torch.inf) + pyro.param("shift", torch.tensor(0.0))
            pyro.sample("y", GridCRF(unary, NONE, SMALL), obs=y)

    learner = ContrastiveDivergence(still, no_guide, SGD({"lr": 0.1}), persistent=True)
    for part in (y, other, y[:5], other):
        learner.step(part)
        assert torch.equal(labels_of(learner)[: len(part), 0], part)
    learner = ContrastiveDivergence(model, no_guide, SGD({"lr": 0.0}), persistent=True)
    learner.step(y)
    starts = []
    learner._chains.start = lambda field, value: starts.append(value) or value
    learner.step(y)
    assert not starts
    learner.step(other)
    assert len(starts) == 1
    # Another number of chains, or of axes.
    again = ContrastiveDivergence(model, no_guide, SGD({"lr": 0.0}), persistent=True, num_chains=3)
    again.load_state_dict(learner.state_dict())
    again.step(y)
    assert labels_of(again).shape == (12, 3, 3, 3)


@pytest.mark.parametrize("always", [True, False])
def test_chains_of_single_rows(always):
    """A step that sees one row only goes on with that row's chain; or with any, if rows have a field in common."""
    y = (torch.rand(12, 3, 3) < 0.5).float()

    def model(y, rows, own):
        unary = pyro.param("unary", torch.zeros(3, 3))
        with pyro.plate("rows", 12, subsample=rows) as i:
            pyro.sample("y", GridCRF(unary + own * y[i], NONE, SMALL), obs=y[i])

    def common(y, rows):
        with pyro.plate("rows", 12, subsample=rows) as i:
            pyro.sample("y", GridCRF(pyro.param("unary", torch.zeros(3, 3)), NONE, SMALL), obs=y[i])

    learner = ContrastiveDivergence(model, no_guide, SGD({"lr": 0.0}), persistent=True)
    for rows in ([3], [7]) if always else ([1, 2], [3], [7]):
        learner.step(y, rows, 1.0)
    assert learner.state_dict()["chains"]["y"]["rows"].tolist() == ([[3], [7]] if always else [[1], [2], [3], [7]])
    learner = ContrastiveDivergence(common, no_guide, SGD({"lr": 0.0}), persistent=True)
    for rows in ([3], [7]) if always else ([1, 2], [3], [7]):
        learner.step(y, torch.tensor(rows))
    assert sizes_of(learner) == [12 if always else 2]


@pytest.mark.parametrize("rows", [None, [5, 3], torch.tensor([5, 3])], ids=["unknown", "list", "tensor"])
def test_plates_that_are_told_their_rows(rows):
    """Plates may be given their rows, or not even have a size."""
    y = (torch.rand(12, 3, 3) < 0.5).float()

    def model(y):
        scale = pyro.param("scale", torch.ones(()))
        with pyro.plate("rows", None if rows is None else 12, subsample=rows, dim=-1):
            part = y if rows is None else y[rows]
            pyro.sample("y", GridCRF(scale * part, NONE, SMALL), obs=part)

    learner = ExpectedLoss(model, no_guide, SGD({"lr": 0.1}))
    assert all(math.isfinite(learner.step(y)) for _ in range(3))
    found = learner.state_dict()["chains"]["y"]["rows"]
    assert found.flatten().tolist() == (list(range(12)) if rows is None else [3, 5])


def test_no_rows():
    def model(y):
        pyro.sample("y", GridCRF(pyro.param("scale", torch.ones(())) * y, NONE, SMALL).to_event(1), obs=y)

    learner = ExpectedLoss(model, no_guide, SGD({"lr": 0.1}))
    assert [learner.step(torch.zeros(0, 3, 3)) for _ in range(3)] == [0.0] * 3


def test_states_reach_modules():
    """A module goes back with its parameters, and goes on to learn."""
    network = torch.nn.Linear(1, 1)
    y = (torch.rand(12, 3, 3) < 0.5).float()

    def model(y):
        unary = pyro.module("network", network)(y.unsqueeze(-1)).squeeze(-1)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", GridCRF(unary, NONE, SMALL), obs=y)

    learner = PseudoLikelihood(model, no_guide, Adam({"lr": 0.1}))
    learner.step(y)
    state = learner.state_dict()
    expected = [learner.step(y) for _ in range(5)]
    learner.load_state_dict(state)
    assert network.weight.item() == state["params"]["params"]["network$$$weight"].item()
    assert [learner.step(y) for _ in range(5)] == expected and expected[4] < expected[0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.long])
def test_labels_of_any_type(dtype):
    y = (torch.rand(12, 3, 3) < 0.5).float()

    def model(x, y):
        unary = pyro.param("scale", torch.ones(())) * (2 * x - 1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", GridCRF(unary, NONE, SMALL), obs=y)

    def square(labels, truth):
        return (labels - truth).square().sum((-2, -1))

    for make in (
        lambda: MeanFieldLoss(model, no_guide, SGD({"lr": 0.0}), "logistic"),
        lambda: MeanFieldLoss(model, no_guide, SGD({"lr": 0.0}), square),
        lambda: ExpectedLoss(model, no_guide, SGD({"lr": 0.0}), square),
        lambda: ContrastiveDivergence(model, no_guide, SGD({"lr": 0.0})),
    ):
        losses = []
        for truth in (y, y.to(dtype)):
            pyro.set_rng_seed(0)
            losses.append(make().step(y, truth))
        assert losses[0] == losses[1]
    # Numbers of wrong pixels are integers.
    counts = ExpectedLoss(model, no_guide, SGD({"lr": 0.0}), lambda labels, truth: (labels != truth).sum((-2, -1)))
    pyro.set_rng_seed(0)
    losses = [counts.step(y, y.to(dtype))]
    pyro.set_rng_seed(0)
    losses.append(9 * ExpectedLoss(model, no_guide, SGD({"lr": 0.0}), "hamming").step(y, y))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_progress_bars_are_for_terminals(capfd):
    """Without a terminal there is no bar, and steps are counted all the same."""
    y = (torch.rand(12, 3, 3) < 0.5).float()
    learner = PseudoLikelihood(rows_model, no_guide, Adam({"lr": 0.1}))
    assert len(learner.run(3, y)) == 3
    scores = iter(range(100))
    assert len(EarlyStopping(learner, lambda: next(scores), num_steps=2).run(5, y)) == 4
    assert capfd.readouterr() == ("", "")


def test_chains_of_one_field_belong_to_no_row():
    def model(y):
        field = GridCRF(pyro.param("unary", torch.zeros(3, 3)), NONE, SMALL)
        with pyro.plate("rows", len(y), subsample_size=min(len(y), 5)) as rows:
            pyro.sample("y", field, obs=y[rows])

    learner = ContrastiveDivergence(model, no_guide, SGD({"lr": 0.0}), persistent=True)
    for number, expected in ((20, 5), (3, 5), (20, 5)):
        learner.step(torch.zeros(number, 3, 3))
        assert learner.state_dict()["chains"]["y"]["values"].shape == (expected, 1, 3, 3)
    learner = ContrastiveDivergence(model, no_guide, SGD({"lr": 0.0}), persistent=True)
    learner.step(torch.zeros(2, 3, 3))
    kept = learner.state_dict()["chains"]["y"]["values"]
    learner.step(torch.zeros(5, 3, 3))
    assert kept.shape[0] == 2 and learner.state_dict()["chains"]["y"]["values"].shape[0] == 5


def test_fields_of_an_event_scaled_and_masked():
    """A batch axis that belongs to the event, a mask, and a scale: the loss is that of the rows that count."""
    y = (torch.rand(5, 2, 3, 3) < 0.5).float()
    mask = torch.tensor([True, False, True, True, False])

    def model(y):
        unary = pyro.param("unary", torch.randn(5, 2, 3, 3))
        field = GridCRF(unary, torch.ones(SMALL.num_edges), SMALL)
        with pyro.plate("rows", 5), pyro.poutine.scale(scale=2.0), pyro.poutine.mask(mask=mask):
            pyro.sample("y", field.to_event(1), obs=y)

    loss = PseudoLikelihood(model, no_guide, SGD({"lr": 0.0})).step(y)
    field = GridCRF(pyro.param("unary"), torch.ones(SMALL.num_edges), SMALL)
    expected = -2 * field.pseudo_log_prob(y)[mask].sum().item()
    assert loss == pytest.approx(expected, rel=1e-5)
    learner = ContrastiveDivergence(model, no_guide, SGD({"lr": 0.1}), persistent=True, num_chains=2)
    before = pyro.param("unary").detach().clone()
    learner.step(y)
    changed = (pyro.param("unary").detach() != before).flatten(1).any(1)
    assert not changed[~mask].any() and changed[mask].any()
    assert sizes_of(learner) == [5, 2] and labels_of(learner).shape == (10, 2, 3, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: ContrastiveDivergence(model, no_guide, Adam({"lr": 0.05}), persistent=True),
        lambda model: ExpectedLoss(model, no_guide, Adam({"lr": 0.05})),
    ],
)
def test_interruptions_do_not_matter(make):
    y = (torch.rand(12, 3, 3) < 0.5).float()
    learner = make(rows_model)
    for _ in range(5):
        learner.step(y)
    state = copy.deepcopy(learner.state_dict())
    expected = [learner.step(y) for _ in range(5)]
    again = make(rows_model)
    again.load_state_dict(state)
    assert [again.step(y) for _ in range(5)] == expected


def test_early_stopping_keeps_the_start_when_nothing_is_better():
    y = (torch.rand(12, 3, 3) < 0.5).float()
    scale = pyro.param("scale", torch.ones(()))
    learner = PseudoLikelihood(rows_model, no_guide, Adam({"lr": 0.1}))
    stopping = EarlyStopping(learner, lambda: -((pyro.param("scale").item() - 1) ** 2), num_steps=2, patience=3)
    assert len(stopping.run(100, y)) == 4 and pyro.param("scale").item() == 1.0
    target = EarlyStopping(learner, lambda: -((pyro.param("scale").item() - 2) ** 2), num_steps=1, patience=100)
    scores = target.run(30, y)
    assert len(scores) == 31 and -((pyro.param("scale").item() - 2) ** 2) == pytest.approx(max(scores))
    assert pyro.param("scale") is scale or torch.equal(pyro.param("scale"), scale)
    assert EarlyStopping(learner, lambda: float("nan"), patience=2).run(50, y)[0] != 0


def test_bad_input():
    y = (torch.rand(12, 3, 3) < 0.5).float()
    with pytest.raises(ValueError, match="persistent: expected True or False, got 1"):
        ContrastiveDivergence(rows_model, no_guide, Adam({}), persistent=1)
    with pytest.raises(ValueError, match="num_sweeps: expected an integer of at least 1, got 0"):
        ContrastiveDivergence(rows_model, no_guide, Adam({}), num_sweeps=0)
    with pytest.raises(ValueError, match="num_chains: expected an integer of at least 2, got 1"):
        ExpectedLoss(rows_model, no_guide, Adam({}), num_chains=1)
    with pytest.raises(ValueError, match=r"loss: expected one of \('intersection_over_union', 'hamming'\) or a fun"):
        ExpectedLoss(rows_model, no_guide, Adam({}), "dice")
    with pytest.raises(ValueError, match="optim: expected an optimiser of pyro.optim, as steps are random, got None"):
        ExpectedLoss(rows_model, no_guide, None)
    with pytest.raises(ValueError, match="model: expected an observed PatternCRF, GridCRF, RBM, .* site, got none"):
        PseudoLikelihood(lambda: None, no_guide, Adam({})).step()
    wrong = ExpectedLoss(rows_model, no_guide, Adam({}), lambda labels, truth: (labels != truth).float())
    with pytest.raises(ValueError, match=r"loss: expected a function with results of shape \(2, 4\), got \(2, 4, 3, 3"):
        wrong.step(y)
    infinite = ExpectedLoss(rows_model, no_guide, Adam({}), lambda labels, truth: torch.full((2, 4), torch.inf))
    with pytest.raises(ValueError, match="loss: expected a function with finite results"):
        infinite.step(y)
    with pytest.raises(ValueError, match=r"loss: expected one of .* or a function, got \['hamming'\]"):
        ExpectedLoss(rows_model, no_guide, Adam({}), ["hamming"])
    with pytest.raises(ValueError, match="loss: expected a differentiable function"):
        MeanFieldLoss(rows_model, no_guide, Adam({}), lambda q, y: ((q > 0.5) != y).float().sum((1, 2))).step(y)
    for optim in (Adam({}), None):
        with pytest.raises(ValueError, match="model: expected parameters on which the loss depends, got none"):
            PseudoLikelihood(lambda y: pyro.sample("y", GridCRF(y, NONE, SMALL), obs=y), no_guide, optim).step(y[0])
    with pytest.raises(ValueError, match="num_steps: expected an integer of at least 0, got 1.5"):
        wrong.run(1.5, y)
    with pytest.raises(ValueError, match="learner: expected an object with a model, a guide and a method 'step'"):
        EarlyStopping(None, lambda: 0.0)
    with pytest.raises(ValueError, match="score: expected a function, got 1.0"):
        EarlyStopping(wrong, 1.0)

    def clamped(y):
        unary = torch.where(torch.arange(3) == 1, torch.inf, 0.0).expand(3, 3)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", GridCRF(unary, NONE, SMALL), obs=y)

    ones = torch.ones(5, 3, 3)
    ones[3, 0, 1] = 0.0
    with pytest.raises(ValueError, match="y: expected labels of positive .* others in 1 of 5 rows, .* is number 3"):
        PseudoLikelihood(clamped, no_guide, Adam({})).step(ones)
    with pytest.raises(ValueError, match=r"y: expected labels of shape \(5, 3, 3\), got shape \(5, 2, 2\)"):
        PseudoLikelihood(clamped, no_guide, Adam({})).step(torch.ones(5, 2, 2))
    with pytest.raises(ValueError, match="y: expected labels inside the support, zeros and ones, got others"):
        PseudoLikelihood(clamped, no_guide, Adam({})).step(2 * ones)

    def latent(y):
        weight = pyro.sample("weight", dist.Normal(0.0, 1.0))
        pyro.sample("y", GridCRF(weight.expand(3, 3) + pyro.param("shift", torch.zeros(())), NONE, SMALL), obs=y)

    with pytest.raises(ValueError, match="guide: expected a site for every latent site of the model, got .* 'weight'"):
        PseudoLikelihood(latent, no_guide, Adam({})).step(y[0])

    def warm(y):
        parts = small_parameters()
        with pyro.plate("rows", len(y)):
            pyro.sample("y", small_field(parts, temperature=0.5), obs=y)

    with pytest.raises(NotImplementedError, match="temperature: expected an integer"):
        ContrastiveDivergence(warm, no_guide, Adam({})).step(ones)


def test_equation_4_15():
    """Three samples, by hand."""
    log_weights = torch.zeros(3, requires_grad=True)
    mean = expected_loss(torch.tensor([0.0, 0.5, 1.0]), log_weights)
    assert mean.item() == 0.5
    assert torch.autograd.grad(mean, log_weights)[0].tolist() == [-0.25, 0.0, 0.25]


def test_losses_of_mean_fields():
    """Losses are those of their definitions, also where a label is known."""
    unary = torch.randn(2, 3, 3)
    unary[:, 0, 0] = torch.inf
    y = (torch.rand(2, 3, 3) < 0.5).float()
    y[:, 0, 0] = 1.0

    def model(y):
        with pyro.plate("rows", 2):
            pyro.sample("y", GridCRF(pyro.param("unary", unary), NONE, SMALL), obs=y)

    q = unary.sigmoid()
    either = (q + y - q * y).sum((1, 2))
    expected = {
        "intersection_over_union": (1 - (q * y).sum((1, 2)) / either).sum(),
        "logistic": torch.nn.functional.binary_cross_entropy(q, y, reduction="none").mean((1, 2)).sum(),
    }
    for loss, right in expected.items():
        assert MeanFieldLoss(model, no_guide, SGD({"lr": 0.0}), loss).step(y) == pytest.approx(right.item(), rel=1e-5)
    squared = MeanFieldLoss(model, no_guide, SGD({"lr": 0.0}), lambda q, y: (q - y).square().sum((1, 2)))
    assert squared.step(y) == pytest.approx((q - y).square().sum().item(), rel=1e-5)
    assert pyro.param("unary").isfinite().sum() == 16
    with pytest.raises(ValueError, match=r"loss: expected one of \('intersection_over_union', 'logistic'\) or a fun"):
        MeanFieldLoss(model, no_guide, Adam({}), "hamming")
    with pytest.raises(ValueError, match="num_rounds: expected an integer of at least 1, got 0"):
        MeanFieldLoss(model, no_guide, Adam({}), num_rounds=0)


def test_a_single_field():
    """A field without a plate, and in plates one inside the other."""
    y = (torch.rand(2, 3, 3, 3) < 0.5).float()

    def single(y):
        pyro.sample("y", GridCRF(pyro.param("unary", torch.zeros(3, 3)), NONE, SMALL), obs=y[0, 0])

    def nested(y):
        unary = pyro.param("units", torch.randn(2, 3, 3, 3))
        with pyro.plate("columns", 3, subsample_size=2, dim=-1) as j, pyro.plate("rows", 2, dim=-2):
            pyro.sample("y", GridCRF(unary[:, j], NONE, SMALL), obs=y[:, j])

    for model, sizes in ((single, []), (nested, [2, 3])):
        learner = ExpectedLoss(model, no_guide, Adam({"lr": 0.1}))
        assert all(math.isfinite(learner.step(y)) for _ in range(5))
        assert sizes_of(learner) == sizes and labels_of(learner).shape[1:] == (2, 3, 3)


def categorical_model(y):
    """Three labels, a penalty, and a pattern for one of them."""
    penalty, weight = pyro.param("penalty", torch.tensor(0.0)), pyro.param("weight", torch.tensor(0.0))
    shape = weight * torch.tensor([[1.0, 0.0, 0.0]] * 2 + [[0.0, 0.0, 0.0]]).unsqueeze(-1) * torch.eye(3)[1]
    field = CategoricalPatternCRF(
        torch.zeros(3, 3, 3), penalty.expand(SMALL.num_edges), shape.unsqueeze(0), -torch.ones(1), SMALL
    )
    with pyro.plate("rows", len(y)):
        return pyro.sample("y", field, obs=y if len(y.shape) > 1 else None)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("persistent", [True, None])
def test_several_labels(persistent):
    """Learning several labels by persistent chains, and by the pseudo-likelihood."""
    pyro.get_param_store()["penalty"] = torch.tensor(0.5)
    pyro.get_param_store()["weight"] = torch.tensor(1.5)
    y = categorical_model(torch.zeros(3000))
    assert y.dtype == torch.long and y.max() == 2
    pyro.clear_param_store()
    if persistent:
        learner = ContrastiveDivergence(categorical_model, no_guide, Adam({"lr": 0.03}), True, num_sweeps=2)
        for _ in range(150):
            learner.step(y)
    else:
        PseudoLikelihood(categorical_model, no_guide, None).step(y)
    assert pyro.param("penalty").item() == pytest.approx(0.5, abs=0.1)
    assert pyro.param("weight").item() == pytest.approx(1.5, abs=0.25)


def test_losses_of_several_labels():
    y = torch.randint(3, (10, 3, 3))
    learner = ExpectedLoss(categorical_model, no_guide, Adam({"lr": 0.01}), "hamming", num_chains=3)
    assert 0 < learner.step(y) < 10
    costs = 0.5 * (1 - torch.eye(3))
    for observed in (y, y.byte()):
        learner = ExpectedLoss(
            categorical_model, no_guide, Adam({"lr": 0.01}), lambda labels, truth: costs[labels, truth].mean((-2, -1))
        )
        assert 0 < learner.step(observed) < 5
    with pytest.raises(NotImplementedError, match="loss: expected 'hamming' or a function for the categories of"):
        ExpectedLoss(categorical_model, no_guide, Adam({"lr": 0.01})).step(y)
    with pytest.raises(NotImplementedError, match="DeepPatternCRF sites, as mean-field updates know two labels only"):
        MeanFieldLoss(categorical_model, no_guide, Adam({"lr": 0.01})).step(y)
