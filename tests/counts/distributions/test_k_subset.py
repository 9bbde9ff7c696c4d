"""Exactly k of D: closed forms, k as a latent variable, and what is refused."""

import copy
import math
from fractions import Fraction

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta
from pyro.optim import Adam

from pyro_structured.distributions import KSubset, RecursiveCardinality
from pyro_structured.testing import brute_force


@pytest.mark.parametrize("k", range(6))
def test_every_k(k):
    x = torch.randn(3, 5, dtype=torch.float64)
    table = torch.full((6,), -math.inf, dtype=torch.float64).index_fill(0, torch.tensor(k), 0.0)
    d = KSubset(x, k)
    torch.testing.assert_close(d.log_partition_function, brute_force.log_partition(x, table))
    torch.testing.assert_close(d.marginals, brute_force.marginals(x, table))
    torch.testing.assert_close(d.entropy(), brute_force.entropy(x, table))
    torch.testing.assert_close(d.mode, brute_force.mode(x, table))
    assert (d.sample((50,)).sum(-1) == k).all()
    assert d.marginals.sum(-1).sub(k).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_item_is_a_categorical_variable(dtype):
    """In rows of any size, for certain and impossible items, and with derivatives."""
    torch.manual_seed(0)
    x = torch.tensor(
        [[0.3, -1.0, 2.0, 0.0], [-math.inf, 700.0, 698.0, 5.0], [-900.0, -900.0, -math.inf, -901.0]], dtype=dtype
    )
    d, number = KSubset(x.requires_grad_(), 1), 40_000
    general = RecursiveCardinality(x, torch.tensor([-math.inf, 0.0, -math.inf, -math.inf, -math.inf], dtype=dtype))
    torch.testing.assert_close(d.marginals, general.marginals)
    (gradient,), (expected,) = (torch.autograd.grad(each.marginals[..., 1].sum(), x) for each in (d, general))
    torch.testing.assert_close(gradient, expected)
    drawn = d.sample((number,))
    assert drawn.dtype == dtype and drawn.shape == (number, 3, 4) and (drawn.sum(-1) == 1).all()
    shares, chances = drawn.double().mean(0), d.marginals.detach().double()
    assert ((shares - chances).abs() <= 6 * (chances * (1 - chances) / number).sqrt() + 1e-12).all()
    assert drawn.double().mean((0, 1)).shape == (4,) and d.sample().shape == (3, 4)
    certain = KSubset(torch.tensor([0.0, math.inf, 3.0], dtype=dtype), 1)
    for found in (certain.marginals, certain.sample()):
        torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 0.0], dtype=dtype))
    wider = d.expand((2, 3))
    assert wider.marginals.shape == (2, 3, 4) and wider.sample((5,)).shape == (5, 2, 3, 4)
    assert copy.deepcopy(certain).marginals[1] == 1
    shared = KSubset(torch.zeros(5, dtype=dtype), torch.ones(2, 3, dtype=torch.long))
    torch.testing.assert_close(shared.marginals, torch.full((2, 3, 5), 0.2, dtype=dtype))
    assert shared.sample((7,)).shape == (7, 2, 3, 5) and KSubset(torch.zeros(0, 5, dtype=dtype), 1).sample().shape == (
        0,
        5,
    )


def test_many_variables():
    """Equal logits: every subset is equally likely."""
    size, k = 3000, 2700
    d = KSubset(torch.full((size,), -8.0, dtype=torch.float64), k)
    expected = math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1) - 8 * k
    assert abs(d.log_partition_function.item() - expected) < 1e-10 * abs(expected)
    torch.testing.assert_close(d.marginals, torch.full((size,), k / size, dtype=torch.float64))
    assert (d.sample((10,)).sum(-1) == k).all()


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor, lambda k: torch.tensor(k, dtype=torch.int32)])
def test_kinds_of_integers(kind):
    assert KSubset(torch.zeros(4), kind(2)).log_partition_function.exp().round() == 6


def test_k_broadcasts_with_logits():
    x = torch.randn(3, 4, dtype=torch.float64)
    for k, batch in [
        (torch.tensor([0, 2, 4]), (3,)),
        (torch.tensor([[1], [2]]), (2, 3)),
        (torch.tensor(3), (3,)),
        (torch.zeros(5, 1, 1, dtype=torch.long), (5, 1, 3)),
    ]:
        d = KSubset(x, k)
        assert d.batch_shape == batch and d.k.shape == batch
        samples = d.sample((7,))
        assert torch.equal(samples.sum(-1).long(), d.k.expand(7, *batch))
        assert d.expand((2, *batch)).k.shape == (2, *batch)
    single = KSubset(x[0], torch.tensor([1, 3]))
    torch.testing.assert_close(single.marginals[1], KSubset(x[0], 3).marginals)


def test_enumerated_k():
    """The number of ones is a latent variable that is summed out, in a plate."""
    data = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    logits = torch.tensor([0.5, -1.0, 2.0])
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4])

    @config_enumerate
    def model():
        with pyro.plate("bags", 3):
            k = pyro.sample("k", dist.Categorical(probs))
            pyro.sample("y", KSubset(logits, k), obs=data)

    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(model, lambda: None)
    counts = data.sum(-1).long()
    expected = probs[counts].log() + torch.stack(
        [KSubset(logits, int(k)).log_prob(y) for k, y in zip(counts, data, strict=True)]
    )
    assert loss == pytest.approx(-expected.sum().item(), rel=1e-5)


def test_learning_logits_with_an_enumerated_k():
    true_logits = torch.tensor([2.0, 0.0, -2.0])
    data = torch.cat([KSubset(true_logits, k).sample((200,)) for k in (1, 2)])

    def model():
        logits = pyro.sample("logits", dist.Normal(torch.zeros(3), 3.0).to_event(1))
        with pyro.plate("data", len(data)):
            k = pyro.sample("k", dist.Categorical(torch.ones(4)), infer={"enumerate": "parallel"})
            pyro.sample("y", KSubset(logits, k), obs=data)

    guide = AutoDelta(pyro.poutine.block(model, expose=["logits"]))
    svi = SVI(model, guide, Adam({"lr": 0.2}), TraceEnum_ELBO(max_plate_nesting=1))
    for _ in range(60):
        svi.step()
    found = guide.median()["logits"].detach()
    assert (found[:2] - found[1:] - 2.0).abs().max() < 0.6


def test_nuts_with_an_enumerated_k():
    def model():
        logits = pyro.sample("logits", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        k = pyro.sample("k", dist.Categorical(torch.ones(5)))
        y = pyro.sample("y", KSubset(logits, k))
        pyro.sample("noisy", dist.Normal(y, 0.5).to_event(1), obs=torch.tensor([1.1, -0.2, 0.9, 0.0]))

    chain = MCMC(NUTS(model, max_tree_depth=3), num_samples=5, warmup_steps=5, disable_progbar=True)
    chain.run()
    assert set(chain.get_samples()) == {"logits"} and chain.get_samples()["logits"].isfinite().all()


def test_conditioning_returns_the_family():
    d = KSubset(torch.randn(5), 3)
    given = d.condition(torch.ones(5), torch.tensor([True, True, False, False, False]))
    assert isinstance(given, RecursiveCardinality)
    assert given.marginals.sum() == pytest.approx(3.0, abs=1e-5)
    impossible = torch.ones(5), torch.ones(5, dtype=torch.bool)
    assert d.marginal_log_prob(*impossible) == -math.inf


@pytest.mark.parametrize(
    "k, message",
    [
        (4, r"k: expected .* between 0 and 3.* got 4"),
        (-1, r"k: expected .* between 0 and 3.* got -1"),
        (1.0, r"k: expected an integer or an integer tensor, got torch.float32"),
        (True, r"k: expected an integer or an integer tensor, got torch.bool"),
        (torch.tensor([1.0, 2.0]), r"k: expected an integer or an integer tensor, got torch.float32"),
        (torch.tensor([1, 9]), r"k: expected .* between 0 and 3.* got"),
        (torch.tensor([1, 2, 3]), r"k: expected a shape that broadcasts .* \(2,\), got \(3,\)"),
        ("2", "k: expected an integer"),
        (None, "k: expected an integer or an integer tensor, got None"),
        (Fraction(2), r"k: expected an integer or an integer tensor, got Fraction\(2, 1\)"),
        (10**30, "k: expected an integer or an integer tensor, got 1000"),
    ],
)
@pytest.mark.parametrize("validate_args", [None, False])
def test_bad_k(k, message, validate_args):
    with pytest.raises(ValueError, match=message):
        KSubset(torch.zeros(2, 3), k, validate_args=validate_args)


@pytest.mark.parametrize("k", [0, 1, 4, torch.tensor([2, 1])])
def test_clamps_that_contradict_k(k):
    """Two ones and one zero leave 2 or 3 of 4."""
    logits = torch.tensor([math.inf, math.inf, -math.inf, 0.0])
    with pytest.raises(ValueError, match=r"k: expected a number of ones that infinite logits \(clamps\) allow, got"):
        KSubset(logits, k)
    assert (KSubset(logits, k, validate_args=False).unchecked_log_partition == -math.inf).any()
    assert KSubset(logits, torch.tensor([2, 3])).mode.sum(-1).tolist() == [2.0, 3.0]
