"""Passes through latent trees: single precision, lost terms, expected counts."""

import math

import pytest
import torch

from pyro_structured.densities.ops.latent_tree_passes import (
    evidence_of_states,
    evidence_of_weights,
    expected_counts,
    infer_latent_tree,
    is_rough,
    latent_marginals,
    observed_marginals,
    tree_levels,
)


def random_tables(seed, number=30, latent=5, observed=3, rows=50, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    parents = [int(torch.randint(max(v, 1), (), generator=generator)) for v in range(number)]
    shapes = (1, number, latent, latent), (1, number, latent, observed)
    tables = [(scale * torch.randn(shape, dtype=torch.double, generator=generator)).log_softmax(-1) for shape in shapes]
    states = torch.randint(observed, (1, number, rows, 1), generator=generator)
    weights = torch.zeros(1, number, rows, observed, dtype=torch.double)
    weights = weights.masked_fill(states != torch.arange(observed), -math.inf)
    missing = torch.rand(1, number, rows, 1, generator=generator) < 0.3
    return parents, (*tables, weights.masked_fill(missing, 0.0), tree_levels(parents))


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_single_precision(scale):
    for seed in range(20):
        _, (*tensors, levels) = random_tables(seed, scale=scale)
        results = []
        for transitions, emissions, weights in (tensors, [tensor.float() for tensor in tensors]):
            evidence = evidence_of_weights(emissions, weights)
            beliefs = infer_latent_tree(transitions, evidence, levels)
            latent = latent_marginals(transitions, levels, beliefs)
            observed = observed_marginals(emissions, weights, evidence, latent)
            results.append((beliefs.log_z, latent.exp(), observed.exp()))
        (double, *others), (single, *found) = results
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=0.0)
        for one, other in zip(found, others, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [300.0, 1e4])
def test_lost_terms(scale):
    """States that evidence all but excludes, far below the smallest numbers."""
    for seed in range(20):
        parents, (*tensors, levels) = random_tables(seed, 12, scale=scale)
        evidence = evidence_of_weights(*tensors[1:])
        found = infer_latent_tree(tensors[0], evidence, levels)
        torch.testing.assert_close(
            latent_marginals(tensors[0], levels, found).logsumexp(-1).exp(), torch.ones(1, 12, 50).double()
        )
        beliefs = (tensors[1].unsqueeze(2) + tensors[2].unsqueeze(3)).logsumexp(-1)
        for child in range(11, 0, -1):
            sent = (tensors[0][:, child, None] + beliefs[:, child].unsqueeze(-2)).logsumexp(-1)
            beliefs[:, parents[child]] += sent
        total = (tensors[0][:, 0, None, 0] + beliefs[:, 0]).logsumexp(-1)
        torch.testing.assert_close(found.log_z, total, rtol=1e-12, atol=1e-9)


def test_expected_counts():
    """Derivatives of log-likelihoods along the logarithms of transitions."""
    for seed in range(20):
        _, (transitions, emissions, weights, levels) = random_tables(seed, scale=3.0)
        rows = torch.rand(50, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
        transitions.requires_grad_()
        evidence = evidence_of_weights(emissions, weights)
        found = infer_latent_tree(transitions, evidence, levels)
        (gradient,) = torch.autograd.grad((found.log_z * rows).sum(), transitions)
        with torch.no_grad():
            found = infer_latent_tree(transitions, evidence, levels)
            latent = latent_marginals(transitions, levels, found)
        for exact in (False, True):
            pairs, single, least = expected_counts(transitions, evidence, levels, rows, exact)
            torch.testing.assert_close(pairs, gradient[0], rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(single, latent[0].exp() * rows.unsqueeze(-1), rtol=1e-10, atol=1e-10)
            assert not is_rough(least).any()


def test_evidence_of_states():
    _, (_, emissions, weights, _) = random_tables(0)
    states = torch.where((weights == 0).all(-1), 3, weights.argmax(-1))
    torch.testing.assert_close(evidence_of_states(emissions, states), evidence_of_weights(emissions, weights))
