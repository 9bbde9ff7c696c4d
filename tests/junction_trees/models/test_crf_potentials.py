"""Potentials of conditional fields against sums over all labels."""

import itertools
import math

import numpy as np
import pytest
import torch

from pyro_structured.junction_trees.models.crf_potentials import ConditionalField, FieldWeights, coding
from pyro_structured.structures import CliqueTree

CASES = [
    ([2, 2, 2], [(0, 1), (1, 2), (0, 2)]),
    ([3, 2, 4, 1], [(0, 1), (1, 2), (2, 3)]),
    ([2, 3, 2, 3], [(0, 1), (1, 2), (2, 3), (0, 3)]),
    ([2, 3], []),
    ([1, 1], [(0, 1)]),
]


def random_field(sizes, edges, num_features=2, edge_features=True):
    field = ConditionalField(CliqueTree.from_edges(edges, sizes), edges)
    weights = FieldWeights(*map(torch.randn_like, field.zeros(num_features, edge_features)))
    return field, weights, torch.randn(3, num_features, dtype=torch.double)


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("edge_features", [False, True])
@pytest.mark.parametrize("sizes, edges", CASES)
def test_equals_brute_force(sizes, edges, edge_features):
    """The tables, whose sums over states are zero, say what the probabilities are."""
    field, weights, inputs = random_field(sizes, edges, edge_features=edge_features)
    nodes, pairs = field.node_tables(weights.nodes), field.edge_tables(weights.edges)
    for table in nodes:
        np.testing.assert_allclose(table.sum(1), 0, atol=1e-12)
    for table in pairs:
        np.testing.assert_allclose(table.sum(1), 0, atol=1e-12)
        np.testing.assert_allclose(table.sum(2), 0, atol=1e-12)
    values = list(itertools.product(*map(range, sizes)))
    labels = field.distribution(inputs, weights)
    for row, x in enumerate(np.pad(inputs.numpy(), [(0, 0), (1, 0)], constant_values=1.0)):
        scores = []
        for y in values:
            score = sum(x @ table[:, state] for table, state in zip(nodes, y, strict=True))
            for (i, j), table in zip(edges, pairs, strict=True):
                score += x[: len(table)] @ table[:, y[i], y[j]]
            scores.append(score)
        expected = torch.tensor(scores, dtype=torch.double).log_softmax(0)
        found = labels.log_prob(torch.tensor(values).unsqueeze(1))[:, row]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("known", [True, False])
def test_gradients(known):
    field, weights, inputs = random_field([2, 3, 2], [(0, 1), (1, 2)])
    y, observed = torch.tensor([1, 2, 0]), torch.tensor([True, known, True])

    def log_prob(nodes, edges):
        return field.distribution(inputs, FieldWeights(nodes, edges)).marginal_log_prob(y, observed)

    arguments = [each.requires_grad_() for each in weights]
    assert torch.autograd.gradcheck(log_prob, arguments)
    assert torch.autograd.gradgradcheck(log_prob, arguments)


def test_binary_weights_are_log_odds():
    """Weights are the log-odds of a label whose neighbours are balanced, and the log-odds ratio of an edge."""
    field = ConditionalField(CliqueTree.chain(2, 2), [(0, 1)])
    weights = FieldWeights(torch.tensor([[0.3, -0.7]]).double(), torch.tensor([[1.9]]).double())
    joint = field.distribution(torch.zeros(1, 0).double(), weights).marginals_of([0, 1])[0]
    assert math.log(joint[1, 1] * joint[0, 0] / (joint[0, 1] * joint[1, 0])) == pytest.approx(1.9)
    independent = field.distribution(torch.zeros(1, 0).double(), weights._replace(edges=torch.zeros(1, 1).double()))
    assert torch.logit(independent.marginals[0, :, 1]).tolist() == pytest.approx([0.3, -0.7])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_coding(size):
    """All log-weights that add up to zero; the smallest sum of squares is theirs, or half that of log-odds' squares."""
    rows = coding(size)
    np.testing.assert_allclose(rows.sum(1), 0, atol=1e-15)
    assert (np.linalg.matrix_rank(rows) if len(rows) else 0) == size - 1
    if size > 2:
        target = np.random.default_rng(0).normal(size=size)
        target -= target.mean()
        np.testing.assert_allclose(np.linalg.lstsq(rows.T, target, rcond=None)[0], target, atol=1e-12)
