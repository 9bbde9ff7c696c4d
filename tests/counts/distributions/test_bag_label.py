"""Labels of bags: closed forms, enumeration of the instances, padding, extreme numbers, errors."""

import math

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import Trace_ELBO

from pyro_structured.distributions import BagLabel, KSubset, PoissonBinomial
from pyro_structured.distributions.cardinality_potentials import (
    at_least,
    between,
    exactly,
    for_sizes,
    noisy_or,
    normal_fraction,
)

INF = math.inf


def enumerated(logits, laws):
    """Log-weights of each label with each vector, shape (T, 2^D), and the vectors."""
    size = len(logits)
    vectors = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * size).reshape(-1, size)
    possible = ~((vectors == 1) & (logits == -INF)).any(-1)
    terms = (vectors * logits.masked_fill(logits == -INF, 0.0)).sum(-1).masked_fill(~possible, -INF)
    joint = laws[:, vectors.sum(-1).long()] + terms
    return joint, vectors


@st.composite
def bags(draw):
    size, number = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([1.0, 10.0, 50.0]))
    logits = scale * torch.randn(size, generator=generator, dtype=torch.double)
    laws = scale * torch.randn(number, size + 1, generator=generator, dtype=torch.double)
    logits[torch.rand(size, generator=generator) < 0.2] = -INF
    laws[torch.rand(laws.shape, generator=generator) < 0.2] = -INF
    laws[0, 0] = 0.0
    return logits, laws


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(bags())
def test_labels_and_instances_by_enumeration(bag):
    logits, laws = (tensor.requires_grad_() for tensor in bag)
    d = BagLabel(logits, laws)
    joint, vectors = enumerated(logits, laws)
    weights, given_label = joint.logsumexp(-1), joint.softmax(-1)
    expected = weights.log_softmax(-1)
    torch.testing.assert_close(d.logits, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(d.log_partition_function, weights.logsumexp(-1), rtol=1e-11, atol=1e-11)
    possible = (weights > -INF).nonzero().squeeze(-1)
    direction = torch.randn(len(possible), dtype=torch.double)
    # Torch's sums have no derivatives where all terms are -inf.
    sums = [(direction * d.log_prob(possible)).sum(), (direction * joint[possible].logsumexp(-1).log_softmax(-1)).sum()]
    found, wanted = (torch.autograd.grad(total, [logits, laws]) for total in sums)
    for one, other, parameter in zip(found, wanted, (logits, laws), strict=True):
        # Autograd through the enumeration has no derivatives at infinite parameters.
        finite = parameter.isfinite()
        assert bool(one.isfinite().all())
        torch.testing.assert_close(one[finite], other[finite], rtol=1e-9, atol=1e-9)
    posterior = d.posterior(possible)
    torch.testing.assert_close(posterior.marginals, given_label[possible] @ vectors, rtol=1e-9, atol=1e-10)
    mixed = (expected.exp()[possible].unsqueeze(-1) * (given_label[possible] @ vectors)).sum(0)
    torch.testing.assert_close(d.instances.marginals, mixed, rtol=1e-9, atol=1e-10)


def test_noisy_or_in_bags_of_different_sizes():
    """log p(t = 0) = log(1 - leak) + sum over instances of log(1 - strength p_d)."""
    rows = [torch.randn(size, dtype=torch.double) * 3 for size in (1, 4, 40, 7)]
    logits = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-INF)
    leak, strength = torch.tensor(0.01).double(), torch.tensor(0.7).double()
    laws = torch.stack([noisy_or(40, outcome, leak, strength) for outcome in (False, True)])
    d = BagLabel(logits.requires_grad_(), laws)
    expected = torch.stack([torch.log1p(-leak) + torch.log1p(-strength * x.sigmoid()).sum() for x in rows])
    torch.testing.assert_close(d.logits[:, 0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(d.probs.sum(-1), torch.ones(4).double(), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(d.log_prob(torch.tensor([1, 0, 1, 0])).sum(), logits)
    assert bool(gradient.isfinite().all()) and not bool(gradient[logits == -INF].any())


def test_laws_of_bags_of_different_sizes():
    """Padded bags with the laws of their sizes equal those without padding; gradients at padding are zeros."""
    rows = [torch.randn(size, dtype=torch.double) for size in (2, 5, 1, 5)]
    knots = torch.randn(3, 3, dtype=torch.double, requires_grad=True)

    def laws(n):
        share = torch.arange(n + 1, dtype=torch.double) / n
        learned = knots[0] + knots[1] * share.unsqueeze(-1) + knots[2] * share.square().unsqueeze(-1)
        given = [normal_fraction(n, 0.7, 0.2), at_least(n, math.ceil(n / 2)), between(n, 0, n // 2), exactly(n, 1)]
        conditional = torch.stack([noisy_or(n, outcome, 0.1, 0.6) for outcome in (False, True)])
        return torch.cat([learned.T, torch.stack(given), conditional]).double()

    logits = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-INF).requires_grad_()
    together = BagLabel(logits, for_sizes(laws, [len(x) for x in rows]))
    for row, x in enumerate(rows):
        own = BagLabel(x, laws(len(x)))
        torch.testing.assert_close(together.logits[row], own.logits, rtol=1e-12, atol=1e-12)
        label = torch.tensor(row)
        found = together.posterior(label).marginals[row, : len(x)]
        torch.testing.assert_close(found, own.posterior(label).marginals, rtol=1e-10, atol=1e-12)
    gradients = torch.autograd.grad(together.log_prob(torch.arange(4)).sum(), [logits, knots])
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert not bool(gradients[0][logits == -INF].any())


def test_conditional_form_leaves_instances_independent():
    """Where laws sum to one, bags of which nothing is known say nothing about instances."""
    logits, laws = torch.randn(6, dtype=torch.double), torch.randn(3, 7, dtype=torch.double).log_softmax(-2)
    d = BagLabel(logits, laws)
    torch.testing.assert_close(d.instances.marginals, logits.sigmoid(), rtol=1e-10, atol=1e-12)
    counts = PoissonBinomial(logits=logits).log_prob(torch.arange(7).double())
    torch.testing.assert_close(d.logits, (laws + counts).logsumexp(-1), rtol=1e-10, atol=1e-12)


def test_minibatches_of_bags_in_a_plate():
    """Half of the bags, counted twice: the sums of both halves are twice that of all; a learned law gets gradients."""
    X, labels = torch.randn(8, 3, 2, dtype=torch.double), torch.arange(8) % 2

    def model(rows=None):
        weights = pyro.param("weights", torch.tensor([0.5, -0.3]).double())
        laws = pyro.param("laws", torch.stack([noisy_or(3, t, 0.1, 0.5) for t in (False, True)]).double())
        with pyro.plate("bags", 8, subsample=rows) as index:
            pyro.sample("t", BagLabel(X[index] @ weights, laws), obs=labels[index])

    losses = []
    for rows in (None, torch.arange(4), torch.arange(4, 8)):
        pyro.clear_param_store()
        losses.append(Trace_ELBO().differentiable_loss(model, lambda rows: None, rows))
        losses[-1].backward()
        assert all(bool(value.grad.any()) for value in pyro.get_param_store()._params.values())
    torch.testing.assert_close(losses[1] + losses[2], 2 * losses[0])


def test_label_proportions_are_counts():
    """Where the number of positive instances is the label, it has a Poisson-binomial distribution."""
    logits = torch.randn(3, 9, dtype=torch.double)
    laws = torch.stack([exactly(9, k) for k in range(10)]).double()
    counts = torch.arange(10).unsqueeze(-1)
    d = BagLabel(logits, laws)
    torch.testing.assert_close(d.log_prob(counts), PoissonBinomial(logits=logits).log_prob(counts))
    torch.testing.assert_close(d.posterior(torch.tensor(4)).marginals, KSubset(logits, 4).marginals)


def test_large_logits_cancel():
    """What all labels have in common is not rounded."""
    laws = torch.tensor([[0.0, -1.0, 0.3], [-2.0, 0.0, 0.1]]).double()
    certain = BagLabel(torch.tensor([1e13, 0.5]).double(), laws).logits
    torch.testing.assert_close(certain, BagLabel(torch.tensor([INF, 0.5]).double(), laws).logits)
    shifted = laws + torch.tensor([1e12]).double()
    torch.testing.assert_close(
        BagLabel(torch.tensor([0.3, 0.5]).double(), shifted).logits,
        BagLabel(torch.tensor([0.3, 0.5]).double(), shifted - 1e12).logits,
    )


def test_impossible_labels():
    laws = torch.stack([exactly(2, 2), exactly(2, 0)])
    d = BagLabel(torch.tensor([-INF, 0.0]), laws)
    assert d.log_prob(torch.tensor(0)) == -INF and d.log_prob(torch.tensor(1)) == 0
    with pytest.raises(ValueError, match="value: expected labels of positive probability, got one for which no"):
        _ = d.posterior(torch.tensor(0)).marginals
    with pytest.raises(ValueError, match="label_count_logits: expected a label of positive probability in every"):
        _ = BagLabel(torch.tensor([-INF, 0.0]), laws[:1]).probs
    with pytest.raises(ValueError, match="label_count_logits: expected a label of positive probability in every"):
        _ = BagLabel(torch.tensor([-INF, 0.0]), laws[:1]).instances.marginals


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BagLabel([0.0], torch.zeros(2, 2)), "instance_logits: expected a floating point tensor"),
        (lambda: BagLabel(torch.zeros(3), torch.zeros(4)), r"label_count_logits: expected shape \(..., T, 4\)"),
        (lambda: BagLabel(torch.zeros(3), torch.zeros(2, 3)), r"label_count_logits: expected shape .*, got \(2, 3\)"),
        (lambda: BagLabel(torch.zeros(3), torch.zeros(0, 4)), "label_count_logits: expected .* at least one label"),
        (
            lambda: BagLabel(torch.zeros(2, 3), torch.zeros(3, 2, 4)),
            "label_count_logits: expected a batch shape that broadcasts",
        ),
        (lambda: BagLabel(torch.zeros(1), torch.zeros(2, 2)).posterior(torch.tensor(2)), r"in range\(2\)"),
        (lambda: BagLabel(torch.zeros(1), torch.zeros(2, 2)).condition(None, None), "condition: .* use posterior"),
    ],
)
def test_refusals(call, message):
    with pytest.raises((ValueError, NotImplementedError), match=message):
        call()
