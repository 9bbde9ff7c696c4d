"""Learning where some rows are masked, or latent sites are discrete: the right numbers, or a refusal by name."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta
from pyro.optim import SGD

from pyro_structured.distributions import Argmin, GridCRF, RandOM
from pyro_structured.inference import (
    MCEM,
    ContrastiveDivergence,
    HardEM,
    MaxMargin,
    MeanFieldLoss,
    PerturbAndMAP,
    PseudoLikelihood,
)
from pyro_structured.structures import Grid, TopK

GRID = Grid(3, 3)
NONE = torch.zeros(GRID.num_edges)
CHOICE = TopK(3, 1)
Y = torch.eye(3)[[0, 0, 2, 1, 2, 0]]
LABELS = (torch.rand(6, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.5).float()
MASK = torch.tensor([True, True, False, True, False, False])


def no_guide(*args):
    pass


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


def base(rows):
    """Costs with parameters of each row, so that each says whether it counts, and of all rows."""
    own = pyro.param("own", torch.zeros(6, 3))
    common = pyro.param("common", torch.zeros(3))
    return dist.Normal(common + own[rows], 1.0).to_event(1)


def handler(rows):
    with pyro.plate("rows", len(rows)), poutine.mask(mask=MASK[rows]):
        pyro.sample("y", RandOM(base(rows), CHOICE), obs=Y[rows])


def method(rows):
    with pyro.plate("rows", len(rows)):
        pyro.sample("y", RandOM(base(rows), CHOICE).mask(MASK[rows]), obs=Y[rows])


def twice(rows):
    """Half of the mask is that of the handler."""
    first = MASK | (torch.arange(6) == 2)
    with pyro.plate("rows", len(rows)), poutine.mask(mask=first[rows]):
        second = MASK | (torch.arange(6) != 2)
        pyro.sample("y", RandOM(base(rows), CHOICE).mask(second[rows]), obs=Y[rows])


def named(rows):
    with pyro.plate("rows", len(rows)):
        costs = pyro.sample("w", base(rows).mask(MASK[rows]))
        pyro.sample("y", Argmin(costs, CHOICE).mask(MASK[rows]), obs=Y[rows])


EVERY, COUNTED = torch.arange(6), MASK.nonzero().flatten()


@pytest.mark.parametrize("model", [handler, method, twice, named])
@pytest.mark.parametrize("learner", [MCEM, HardEM, PerturbAndMAP, MaxMargin])
def test_masked_optima(model, learner):
    """Rows that are masked have no gradient; hard EM and the machine without random numbers are those of the rest."""
    learner(model, no_guide, SGD({"lr": 0.1})).step(EVERY)
    own, common = (pyro.param(name).detach().clone() for name in ("own", "common"))
    assert (own[MASK] != 0).any(1).all() and not own[~MASK].any()
    assert torch.allclose(own.sum(0), common, atol=1e-6)
    if learner in (HardEM, MaxMargin):
        pyro.clear_param_store()
        learner(model, no_guide, SGD({"lr": 0.1})).step(COUNTED)
        assert torch.allclose(pyro.param("own"), own, atol=1e-6)


@pytest.mark.parametrize("learner", [MCEM, HardEM, PerturbAndMAP, MaxMargin, PseudoLikelihood])
def test_hidden_rows_are_refused(learner):
    """The sites that Pyro makes of them are none that a user could find."""

    def model(rows):
        with pyro.plate("rows", len(rows)):
            if learner is PseudoLikelihood:
                pyro.sample("y", GridCRF(pyro.param("unary", torch.zeros(3, 3)), NONE, GRID), obs=LABELS, obs_mask=MASK)
            else:
                pyro.sample("y", RandOM(base(rows), CHOICE), obs=Y, obs_mask=MASK)

    with pytest.raises(ValueError, match="y: expected a site without obs_mask, .* use poutine.mask"):
        learner(model, no_guide, SGD({"lr": 0.1})).step(EVERY)


def field_by_handler(rows):
    unary = pyro.param("unary", torch.zeros(3, 3))
    with pyro.plate("rows", len(rows)), poutine.mask(mask=MASK[rows]):
        pyro.sample("y", GridCRF(unary, NONE, GRID), obs=LABELS[rows])


def field_by_method(rows):
    unary = pyro.param("unary", torch.zeros(3, 3))
    with pyro.plate("rows", len(rows)):
        pyro.sample("y", GridCRF(unary, NONE, GRID).mask(MASK[rows]), obs=LABELS[rows])


@pytest.mark.parametrize("model", [field_by_handler, field_by_method])
@pytest.mark.parametrize("learner", [PseudoLikelihood, MeanFieldLoss])
def test_masked_fields(model, learner):
    losses = [learner(model, no_guide, SGD({"lr": 0.0})).step(rows) for rows in (EVERY, COUNTED)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert ContrastiveDivergence(model, no_guide, SGD({"lr": 0.1}), True).step(EVERY) == pytest.approx(0.0)


def test_refusals():
    def only_the_optimum(rows):
        with pyro.plate("rows", len(rows)):
            costs = pyro.sample("w", base(rows))
            with poutine.mask(mask=MASK):
                pyro.sample("y", Argmin(costs, CHOICE), obs=Y)

    def only_costs(rows):
        with pyro.plate("rows", len(rows)):
            costs = pyro.sample("w", base(rows).mask(MASK))
            pyro.sample("y", Argmin(costs, CHOICE), obs=Y)

    def dependents(rows):
        with pyro.plate("rows", len(rows)):
            with poutine.mask(mask=MASK):
                costs = pyro.sample("w", base(rows))
                pyro.sample("y", Argmin(costs, CHOICE), obs=Y)
            pyro.sample("z", dist.Normal(costs[..., 0], 1.0), obs=torch.zeros(6))

    def event(rows):
        unary = pyro.param("unary", torch.zeros(6, 3, 3))
        pyro.sample("y", GridCRF(unary, NONE, GRID).mask(MASK).to_event(1), obs=LABELS)

    optim = SGD({"lr": 0.1})
    for model in (only_the_optimum, only_costs):
        with pytest.raises(NotImplementedError, match="y: expected the mask that its costs 'w' have"):
            MCEM(model, no_guide, optim).step(EVERY)
    with pytest.raises(NotImplementedError, match="y: expected no mask, as other sites depend on the costs 'w'"):
        MCEM(dependents, no_guide, optim).step(EVERY)
    with pytest.raises(ValueError, match="y: expected a field whose mask is that of the site, .* mask after to_event"):
        PseudoLikelihood(event, no_guide, optim).step(EVERY)


def test_discrete_latent_sites():
    """Refused with the site's name and what to do instead, which is right."""

    @config_enumerate
    def choices(rows):
        shift = pyro.param("shift", torch.tensor([0.0, 1.0]))
        kind = pyro.sample("kind", dist.Categorical(torch.tensor([0.3, 0.7])))
        with pyro.plate("rows", len(rows)):
            loc = shift[kind].unsqueeze(-1) * torch.tensor([1.0, 0.0, -1.0])
            pyro.sample("y", RandOM(dist.Normal(loc, 1.0).to_event(1), CHOICE), obs=Y[rows])

    def fields(rows):
        kind = pyro.sample("kind", dist.Bernoulli(0.5))
        with pyro.plate("rows", len(rows)):
            pyro.sample("y", GridCRF(kind + pyro.param("unary", torch.zeros(3, 3)), NONE, GRID), obs=LABELS[rows])

    for learner, model, name in ((MCEM, choices, "Categorical"), (PseudoLikelihood, fields, "Bernoulli")):
        for guide in (no_guide, AutoDelta(poutine.block(model, hide=["kind"]))):
            with pytest.raises(
                NotImplementedError, match=f"kind: expected an observed site, .* got a latent {name}; give obs="
            ):
                learner(model, guide, SGD({"lr": 0.1})).step(EVERY)
    found = SVI(choices, no_guide, SGD({"lr": 0.0}), TraceEnum_ELBO(max_plate_nesting=1)).step(EVERY)
    signs = torch.tensor([1.0, 0.0, -1.0])
    parts = [RandOM(dist.Normal(shift * signs, 1.0).to_event(1), CHOICE).log_prob(Y).sum() for shift in (0.0, 1.0)]
    expected = -(torch.stack(parts) + torch.tensor([0.3, 0.7]).log()).logsumexp(0)
    assert found == pytest.approx(expected.item(), rel=1e-5)
