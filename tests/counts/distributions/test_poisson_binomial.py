"""Counts of independent trials, against enumeration, scipy and ball arithmetic."""

import copy
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.distributions import PoissonBinomial
from pyro_structured.testing import ball_arithmetic, brute_force


def counts(d):
    return d.enumerate_support(expand=False)


@settings(max_examples=50)
@given(st.integers(1, 8), st.sampled_from([(), (3,), (2, 3)]), st.sampled_from([1, 10, 300]), st.integers(0, 2**16))
def test_enumeration(size, batch, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(*batch, size, generator=generator, dtype=torch.float64)
    x[torch.rand(x.shape, generator=generator) < 0.1] = math.inf
    x[torch.rand(x.shape, generator=generator) < 0.1] = -math.inf
    d = PoissonBinomial(logits=x)
    assert d.batch_shape == batch and d.event_shape == ()
    table = brute_force.log_probs(x, torch.zeros(size + 1, dtype=torch.float64))
    sums = brute_force.binary_vectors(size).sum(-1)
    exact = torch.stack([torch.logsumexp(table[..., sums == k], -1) for k in range(size + 1)])
    torch.testing.assert_close(d.log_prob(counts(d)), exact, rtol=1e-12, atol=1e-9)
    below = torch.stack([torch.logsumexp(exact[: k + 1], 0) for k in range(size + 1)])
    torch.testing.assert_close(d.log_cdf(counts(d)), below.clamp(max=0.0), rtol=1e-12, atol=1e-9)
    above = torch.stack([torch.logsumexp(exact[k + 1 :], 0) for k in range(size)] + [torch.full(batch, -math.inf)])
    torch.testing.assert_close(d.log_survival(counts(d)), above.clamp(max=0.0), rtol=1e-12, atol=1e-9)


@pytest.mark.skipif(not hasattr(scipy.stats, "poisson_binom"), reason="scipy before 1.15")
def test_scipy():
    probs = np.random.default_rng(0).uniform(size=50)
    d, reference = PoissonBinomial(probs=torch.from_numpy(probs)), scipy.stats.poisson_binom(probs)
    k = np.arange(51)
    np.testing.assert_allclose(d.log_prob(torch.from_numpy(k)).exp(), reference.pmf(k), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(d.cdf(torch.from_numpy(k)), reference.cdf(k), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(d.bulk_mass(), reference.pmf(k), atol=1e-13)
    assert d.mean.item() == pytest.approx(reference.mean())
    assert d.variance.item() == pytest.approx(reference.var())


def test_binomial():
    d, reference = PoissonBinomial(probs=torch.full((2, 20), 0.3)), torch.distributions.Binomial(20, torch.tensor(0.3))
    torch.testing.assert_close(
        d.log_prob(counts(d))[:, 0], reference.log_prob(torch.arange(21.0)), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(d.entropy()[0], reference.entropy(), rtol=1e-5, atol=1e-5)
    assert d.mode.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_moments_of_low_precision(dtype):
    """Summed in float64: half precision cannot even count to 70,000."""
    for arguments in ({"probs": torch.full((70_000,), 0.5, dtype=dtype)}, {"logits": torch.zeros(70_000, dtype=dtype)}):
        d = PoissonBinomial(**arguments)
        assert d.mean == 35_000 and d.variance == 17_500
        assert d.mean.dtype == d.variance.dtype == torch.float32


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_far_tails(scale):
    x = scale * torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    d, exact = PoissonBinomial(logits=x), ball_arithmetic.poisson_binomial(x)
    assert exact.log_prob.min() < -500
    for found, expected in [
        (d.log_prob(counts(d)), exact.log_prob),
        (d.log_cdf(counts(d)), exact.log_cdf),
        (d.log_survival(counts(d))[:-1], exact.log_survival[:-1]),
    ]:
        assert (found - expected).abs().max() <= 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_quantiles(seed):
    torch.manual_seed(seed)
    d = PoissonBinomial(logits=torch.randn(30, dtype=torch.float64))
    cumulative = d.cdf(counts(d))
    torch.testing.assert_close(d.icdf(cumulative.clamp(max=1.0)).double()[10:20], counts(d)[10:20])
    between = 0.5 * (cumulative[9:19] + cumulative[10:20])
    assert torch.equal(d.icdf(between), counts(d)[10:20])
    assert d.icdf(torch.tensor(0.0)) == 0.0
    assert d.icdf(torch.tensor([[0.1], [0.9]])).shape == (2, 1)
    with pytest.raises(ValueError, match=r"value: expected probabilities in \[0, 1\], got"):
        d.icdf(torch.tensor(1.1))


def test_cumulative_probabilities_between_and_beyond_counts():
    d = PoissonBinomial(probs=torch.tensor([0.5, 0.5]))
    value = torch.tensor([-1.0, 0.5, 1.0, 1.9, 2.0, 7.0])
    torch.testing.assert_close(d.cdf(value), torch.tensor([0.0, 0.25, 0.75, 0.75, 1.0, 1.0]))
    torch.testing.assert_close(d.log_survival(value).exp(), torch.tensor([1.0, 0.75, 0.25, 0.25, 0.0, 0.0]))


def test_gradients():
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([[0.0], [3.0], [6.0]], dtype=torch.float64)
    for query in ("log_prob", "log_cdf"):
        value = k[:2] if query == "log_cdf" else k
        assert torch.autograd.gradcheck(lambda p, q=query, v=value: getattr(PoissonBinomial(logits=p), q)(v), x)
        assert torch.autograd.gradgradcheck(
            lambda p, q=query, v=value: getattr(PoissonBinomial(logits=p), q)(v), x, fast_mode=True
        )
    probs = torch.sigmoid(x.detach()).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: PoissonBinomial(probs=p).log_prob(k), probs)


@pytest.mark.parametrize("name", ["probs", "logits"])
def test_copies_of_a_used_instance(name):
    d = PoissonBinomial(**{name: torch.tensor([0.2, 0.7], requires_grad=True)})
    expected = d.log_prob(counts(d)), d.log_cdf(counts(d)), d.log_survival(counts(d)), d.probs, d.logits
    copied = copy.deepcopy(d)
    found = copied.log_prob(counts(d)), copied.log_cdf(counts(d)), copied.log_survival(counts(d))
    torch.testing.assert_close((*found, copied.probs, copied.logits), expected)


def test_certain_trials():
    probs = torch.tensor([0.0, 1.0, 0.3, 1.0], dtype=torch.float64, requires_grad=True)
    d = PoissonBinomial(probs=probs)
    expected = torch.tensor([0.0, 0.0, 0.7, 0.3, 0.0], dtype=torch.float64)
    torch.testing.assert_close(d.log_prob(counts(d)).exp(), expected)
    assert d.sample((100,)).min() >= 2 and d.sample((100,)).max() <= 3
    torch.testing.assert_close(d.variance, torch.tensor(0.21, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(d.log_prob(torch.tensor(3.0)).exp(), probs)
    # The probability of three successes is linear in every probability: 0.3 * 1 * 1, + p0 * 0.7 - ...
    torch.testing.assert_close(gradient, torch.tensor([0.4, 0.3, 1.0, 0.3], dtype=torch.float64))


def test_infinite_log_odds_do_not_change():
    logits = torch.tensor([math.inf, 60.0, -math.inf], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(PoissonBinomial(logits=logits).log_prob(torch.tensor(1.0)), logits)
    torch.testing.assert_close(gradient, torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "probs: expected exactly one of `probs` and `logits`, got neither"),
        ({"probs": torch.ones(2), "logits": torch.ones(2)}, "probs: expected exactly one .* got both"),
        ({"probs": torch.tensor(0.5)}, r"probs: expected at least one axis.*got shape \(\)"),
        ({"probs": torch.tensor([0.5, 1.5])}, "probs"),
        ({"probs": torch.tensor([0.5, -0.1])}, "probs"),
        ({"logits": torch.tensor([0.5, math.nan])}, "logits"),
        ({"logits": torch.tensor([1, 2])}, "logits: expected a floating point tensor"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        PoissonBinomial(**arguments)


def test_values_outside_of_the_support():
    d = PoissonBinomial(logits=torch.zeros(3), validate_args=False)
    assert d.log_prob(torch.tensor([-1.0, 4.0, 0.5, math.nan, math.inf])).eq(-math.inf).all()
    with pytest.raises(ValueError, match="within the support"):
        PoissonBinomial(logits=torch.zeros(3)).log_prob(torch.tensor(4.0))


@pytest.mark.parametrize("value", [1, 0.5, [1.0], np.ones(1), torch.ones(1, dtype=torch.cfloat)])
@pytest.mark.parametrize("query", ["log_prob", "cdf", "log_cdf", "log_survival", "icdf"])
def test_values_that_are_no_tensors_of_numbers(query, value):
    for validate in (False, True):
        d = PoissonBinomial(logits=torch.zeros(3), validate_args=validate)
        with pytest.raises(ValueError, match="[Vv]alue.*(ensor|within the support)"):
            getattr(d, query)(value)


def test_quantiles_of_what_is_no_probability():
    d = PoissonBinomial(logits=torch.zeros(3), validate_args=False)
    assert d.icdf(torch.tensor([math.nan, 1.5, -0.1])).isnan().all()
    assert d.icdf(torch.tensor([False, True])).tolist() == [0, 3]
    with pytest.raises(ValueError, match="value: expected probabilities"):
        PoissonBinomial(logits=torch.zeros(3)).icdf(torch.tensor(math.nan))


@pytest.mark.parametrize("name", ["probs", "logits"])
def test_expansion_of_a_used_instance(name):
    d = PoissonBinomial(**{name: torch.tensor([[0.2, 0.7]], requires_grad=True)})
    expected = d.log_prob(torch.tensor(1.0)), d.probs, d.logits
    wide = d.expand((3, 2))
    found = wide.log_prob(torch.tensor(1.0)), wide.probs, wide.logits
    for whole, part in zip(found, expected, strict=True):
        torch.testing.assert_close(whole, part.expand(whole.shape))
    torch.testing.assert_close(copy.deepcopy(wide).mean, wide.mean)
    with pytest.raises(ValueError, match=r"batch_shape: expected a shape to which \(1,\) expands, got \(\)"):
        d.expand(())


def test_queries_of_weights():
    """Weights are probabilities, and there is nothing to condition on."""
    d = PoissonBinomial(torch.tensor([[0.2, 0.7], [0.5, 0.5]]))
    assert d.log_partition_function.tolist() == [0.0, 0.0]
    assert torch.equal(d.unnormalized_log_prob(counts(d)), d.log_prob(counts(d)))
    for query in (d.condition, d.marginal_log_prob):
        with pytest.raises(NotImplementedError, match="condition: a count has no entries"):
            query(torch.tensor(1.0), torch.tensor(True))


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("query", ["log_prob", "log_cdf", "log_survival"])
def test_forward_derivatives_in_tails(query):
    """Those of the smaller ones of numbers that are summed are theirs, too."""
    logits = torch.tensor([40.0, 41.0, 42.0, -40.0, 39.0], dtype=torch.float64)

    def answer(logits):
        return getattr(PoissonBinomial(logits=logits, validate_args=False), query)(torch.arange(5.0))

    reverse = torch.func.jacrev(answer)(logits)
    torch.testing.assert_close(torch.func.jacfwd(answer)(logits), reverse, rtol=1e-9, atol=1e-12)
    if query == "log_cdf":
        expected = torch.tensor([-4.0, -3.0, -2.0, -1.0], dtype=torch.float64)
        torch.testing.assert_close(reverse.sum(1)[:4], expected)
