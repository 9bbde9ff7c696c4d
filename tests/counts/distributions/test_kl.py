"""Divergences against enumeration, with supports that differ."""

import math

import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import kl_divergence

from pyro_structured.distributions import JunctionTree, KSubset, RecursiveCardinality
from pyro_structured.structures import CliqueTree, NestedSubsets
from pyro_structured.testing import brute_force
from pyro_structured.testing.strategies import cardinality_models


def enumerated(p, q, subsets):
    first, second = (brute_force.log_probs(*parameters, subsets) for parameters in (p, q))
    possible = first > -math.inf
    return (first.exp() * (first - second).masked_fill(~possible, 0.0)).sum(-1)


@settings(max_examples=60)
@given(cardinality_models(batched=False), st.integers(0, 2**16), st.booleans())
def test_enumeration(model, seed, same_support):
    generator = torch.Generator().manual_seed(seed)
    p = [parameter.double().clamp(-30, 30).where(parameter.isfinite(), parameter.double()) for parameter in model[:2]]
    q = [parameter + torch.randn(parameter.shape, generator=generator, dtype=torch.float64) for parameter in p]
    if not same_support:
        q = [v.masked_fill(torch.rand(v.shape, generator=generator) < 0.2, -math.inf) for v in q]
    if any(brute_force.log_partition(*parameters, model.subsets) == -math.inf for parameters in (p, q)):
        return
    subsets = None if model.subsets is None else NestedSubsets(model.subsets, len(p[0]))
    found = kl_divergence(RecursiveCardinality(*p, subsets), RecursiveCardinality(*q, subsets))
    torch.testing.assert_close(found, enumerated(p, q, model.subsets), rtol=1e-9, atol=1e-9)


def test_batches_broadcast():
    p = RecursiveCardinality(torch.randn(3, 4), torch.randn(3, 5))
    q = RecursiveCardinality(torch.randn(4), torch.randn(2, 1, 5))
    assert kl_divergence(p, q).shape == (2, 3)
    assert kl_divergence(q, p).shape == (2, 3)
    assert kl_divergence(p, p.expand((2, 3))).abs().max() < 1e-5


def test_conditioned_distributions():
    """The weight of evidence cancels."""
    p = RecursiveCardinality(torch.randn(4, dtype=torch.float64), torch.randn(5, dtype=torch.float64))
    q = RecursiveCardinality(torch.randn(4, dtype=torch.float64), torch.randn(5, dtype=torch.float64))
    evidence = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([True, False, True, False])
    first, second = p.condition(*evidence), q.condition(*evidence)
    values = p.enumerate_support()
    log_p, log_q = first.log_prob(values), second.log_prob(values)
    expected = (log_p.exp() * (log_p - log_q).nan_to_num(nan=0.0)).sum()
    torch.testing.assert_close(kl_divergence(first, second), expected)
    assert kl_divergence(p, second) == math.inf


def test_within_the_family():
    p, q = KSubset(torch.randn(4), 2), RecursiveCardinality(torch.randn(4), torch.randn(5))
    values = p.enumerate_support()
    log_p = p.log_prob(values)
    expected = (log_p.exp() * (log_p - q.log_prob(values)).masked_fill(log_p == -math.inf, 0.0)).sum()
    torch.testing.assert_close(kl_divergence(p, q), expected)
    assert kl_divergence(q, p) == math.inf
    assert kl_divergence(p, KSubset(torch.zeros(4), 3)) == math.inf


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_clamps_against_tiny_probabilities(sign):
    """A variable that is almost surely as clamped is not certainly so, even if the rest underflows."""
    p = RecursiveCardinality(torch.tensor([sign * 800.0, 0.0]), torch.zeros(3))
    q = RecursiveCardinality(torch.tensor([sign * math.inf, 0.0]), torch.zeros(3))
    assert kl_divergence(p, q) == math.inf
    assert kl_divergence(q, p) == 0.0


@pytest.mark.parametrize(("dtype", "weight"), [(torch.float64, -800.0), (torch.float32, -110.0)])
def test_counts_of_tiny_probability(dtype, weight):
    """A count that almost never occurs is not impossible, even if its probability underflows."""
    logits = torch.zeros(2, dtype=dtype)
    p, q, r = (
        RecursiveCardinality(logits, torch.tensor([0.0, 0.0, last], dtype=dtype)) for last in (weight, -math.inf, 0.0)
    )
    assert kl_divergence(p, q) == math.inf
    assert kl_divergence(q, p).isfinite()
    on = torch.tensor([math.inf, 0.0], dtype=dtype)
    clamped, other = RecursiveCardinality(on, r.count_logits), RecursiveCardinality(on, r.count_logits.clone())
    other.count_logits[0] = -math.inf
    assert kl_divergence(clamped, other) == 0.0


@given(cardinality_models(batched=False), st.integers(0, 2**16))
def test_impossible_counts_of_nested_subsets(model, seed):
    """Whether the divergence is infinite does not depend on how small probabilities are."""
    generator = torch.Generator().manual_seed(seed)
    x, f = (v.double() for v in model[:2])
    forbidden = torch.rand(f.shape, generator=generator) < 0.2
    q = x, f.masked_fill(forbidden, -math.inf)
    tiny = f.masked_fill(f.isfinite() & forbidden, -5000.0)
    if any(brute_force.log_partition(*parameters, model.subsets) == -math.inf for parameters in (q, (x, tiny))):
        return
    subsets = None if model.subsets is None else NestedSubsets(model.subsets, len(x))
    lost = (brute_force.log_probs(x, tiny, model.subsets) > -math.inf) & (
        brute_force.log_probs(*q, model.subsets) == -math.inf
    )
    found = kl_divergence(RecursiveCardinality(x, tiny, subsets), RecursiveCardinality(*q, subsets))
    assert (found == math.inf) == lost.any()


def test_close_distributions():
    """Large terms that both have in common cost no digits of a small divergence."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, generator=generator)
    f = torch.randn(1001, generator=generator)
    near = x + 1e-4 * torch.randn(1000, generator=generator)
    single = kl_divergence(RecursiveCardinality(x, f), RecursiveCardinality(near, f))
    double = kl_divergence(
        RecursiveCardinality(x.double(), f.double()), RecursiveCardinality(near.double(), f.double())
    )
    step = (near - x).double()
    # The divergence is a quadratic form of the differences, up to their third powers.
    curvature = torch.autograd.functional.hvp(
        lambda v: RecursiveCardinality(v, f.double()).log_partition_function, x.double(), step
    )[1]
    expected = 0.5 * (step * curvature).sum()
    torch.testing.assert_close(double, expected, rtol=1e-3, atol=0.0)
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=0.0)
    large = torch.tensor([1e6, 1.0]), torch.tensor([1e6, 1.5])
    p, q = (RecursiveCardinality(v, torch.zeros(3)) for v in large)
    expected = kl_divergence(dist.Bernoulli(logits=torch.tensor(1.0)), dist.Bernoulli(logits=torch.tensor(1.5)))
    torch.testing.assert_close(kl_divergence(p, q), expected)


def test_gradient():
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    f = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)

    def divergence(x, f):
        return kl_divergence(RecursiveCardinality(x[0], f[0]), RecursiveCardinality(x[1], f[1]))

    assert torch.autograd.gradcheck(divergence, (x, f))


def test_wrapped_distributions():
    p, q = (RecursiveCardinality(torch.randn(3, 4), torch.randn(3, 5)) for _ in range(2))
    whole = kl_divergence(p.to_event(1), q.to_event(1))
    torch.testing.assert_close(whole, kl_divergence(p, q).sum())
    masked = kl_divergence(p.mask(torch.tensor([True, False, True])), q.mask(torch.tensor([True, True, True])))
    assert masked.shape == (3,) and masked[1] == 0


def test_other_subsets_are_refused():
    subsets = NestedSubsets([[0, 1], [0, 1, 2]], 3)
    p, q = RecursiveCardinality(torch.zeros(3), torch.zeros(7), subsets), KSubset(torch.zeros(3), 1)
    with pytest.raises(NotImplementedError, match="expected two distributions with the same subsets"):
        kl_divergence(p, q)
    for other in (dist.Bernoulli(torch.zeros(4)).to_event(1), dist.Normal(torch.zeros(3), 1.0).to_event(1)):
        with pytest.raises(NotImplementedError, match="expected Bernoulli"):
            kl_divergence(q, other)
        with pytest.raises(NotImplementedError, match="expected Bernoulli"):
            kl_divergence(other, q)


def test_parameters_that_torch_has_derived():
    """Probabilities that were asked for once do not take the place of the logits that were given."""
    logits = torch.tensor([50.0, 1.0, -2.0], dtype=torch.float64)
    independent = dist.Bernoulli(logits=logits).to_event(1)
    clamped = RecursiveCardinality(torch.tensor([math.inf, 0.0, 0.0]).double(), torch.zeros(4).double())
    model = RecursiveCardinality(torch.zeros(3).double(), torch.zeros(4).double())
    before = kl_divergence(model, independent)
    independent.sample()
    _ = independent.base_dist.probs
    assert before.isfinite() and kl_divergence(model, independent) == before
    assert kl_divergence(independent, clamped) == math.inf


def test_dtypes():
    p = RecursiveCardinality(torch.zeros(2), torch.zeros(3))
    q = RecursiveCardinality(torch.zeros(2).double(), torch.zeros(3).double())
    assert kl_divergence(p, q).dtype == kl_divergence(q, p).dtype == torch.float64


def test_independent_variables():
    subsets = NestedSubsets([[0, 1], [0, 1, 2]], 3)
    x, f = torch.randn(3, dtype=torch.float64), torch.randn(2, 7, dtype=torch.float64)
    model = RecursiveCardinality(x, f, subsets)
    values = brute_force.binary_vectors(3)
    for probs in (torch.tensor([0.2, 0.5, 0.9]), torch.tensor([0.0, 0.5, 1.0])):
        independent = dist.Bernoulli(probs=probs.double()).to_event(1)
        log_p, log_q = (
            model.log_prob(values[:, None]),
            torch.stack([dist.Bernoulli(p).log_prob(v) for p, v in zip(probs.double(), values.T, strict=True)]).sum(0),
        )
        exact = torch.where(values == 1, probs.double(), 1 - probs.double()).log().sum(-1)
        backward = (exact.exp()[:, None] * (exact[:, None] - log_p).nan_to_num(neginf=0.0)).sum(0)
        torch.testing.assert_close(kl_divergence(independent, model), backward)
        if exact.isfinite().all():
            forward = (log_p.exp() * (log_p - log_q[:, None])).sum(0)
            torch.testing.assert_close(kl_divergence(model, independent), forward)
        else:
            assert (kl_divergence(model, independent) == math.inf).all()


@pytest.mark.parametrize("same", [True, False])
def test_junction_trees(same):
    """Against enumeration, with impossible states and evidence, on one tree and on two."""
    torch.manual_seed(0)
    sizes = [2, 3, 2, 2]
    first = CliqueTree.from_edges([(0, 1), (1, 2), (2, 3)], sizes)
    other = first if same else CliqueTree.from_edges([(0, 2), (2, 3), (0, 3)], sizes)
    p_logits = torch.randn(3, first.table_size, dtype=torch.double).masked_fill(
        torch.rand(first.table_size) < 0.1, -torch.inf
    )
    q_logits = torch.randn(other.table_size, dtype=torch.double)
    p, q = JunctionTree(p_logits, first), JunctionTree(q_logits, other)
    value, observed = torch.tensor([0, 1, 0, 0]), torch.tensor([False, True, False, False])
    known = p.condition(value, observed)
    for one, two in (
        (p, q),
        (known, q),
        (known, q.condition(value, observed)),
        (p, q.condition(value, observed)),
        (p, p),
    ):
        x = one.enumerate_support()
        log_p, log_q = one.log_prob(x), two.log_prob(x)
        expected = (log_p.exp() * (log_p - log_q).masked_fill(log_p == -torch.inf, 0.0)).sum(0)
        torch.testing.assert_close(kl_divergence(one, two), expected)
    with pytest.raises(NotImplementedError, match="kl_divergence: expected variables with as many states"):
        kl_divergence(p, JunctionTree(torch.zeros(2), CliqueTree.chain(1, 2)))
