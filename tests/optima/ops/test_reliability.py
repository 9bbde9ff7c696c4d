"""Against enumeration of the states of all edges."""

import itertools
import math

import pytest
import torch

from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.reliability import log_components, log_connected
from pyro_structured.structures import ConnectedComponents

torch.manual_seed(0)


def logs(num_edges, *batch, low=-3.0, high=3.0):
    logits = low + (high - low) * torch.rand(*batch, num_edges, dtype=torch.double)
    return torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)


def enumerated(edges, num_nodes, log_open, log_closed):
    """Probabilities of all components that there may be, as a dictionary."""
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(edges))), dtype=torch.double)
    labels = ConnectedComponents(edges, num_nodes, 0.5).solve(states)
    weights = (states * log_open + (1 - states) * log_closed).sum(-1).exp()
    found = {}
    for label, weight in zip(labels.tolist(), weights.tolist(), strict=True):
        found[tuple(label)] = found.get(tuple(label), 0.0) + weight
    return found


@pytest.mark.parametrize("num_nodes, num_edges", [(2, 3), (4, 6), (5, 9), (6, 11), (9, 12)])
def test_equals_enumeration(num_nodes, num_edges):
    """Nine nodes are too many for a table of all sets."""
    generator = torch.Generator().manual_seed(num_edges)
    for _ in range(3):
        pairs = torch.rand(num_edges, num_nodes, generator=generator).argsort(-1)[:, :2]
        log_open, log_closed = logs(num_edges)
        expected = enumerated(pairs, num_nodes, log_open, log_closed)
        labels = torch.tensor(list(expected))
        found = log_components(pairs, log_open, log_closed, labels).exp()
        torch.testing.assert_close(found, torch.tensor(list(expected.values()), dtype=torch.double), rtol=1e-12, atol=0)


def test_complete_graph_and_improbable_edges():
    """Cayley: there are n ** (n - 2) trees, all as probable as the others if edges are rare."""
    number, rare = 8, -800.0
    log_open = torch.full((number, number), rare, dtype=torch.double)
    found = log_connected(log_open, torch.zeros_like(log_open))[-1]
    assert found.item() == pytest.approx((number - 1) * rare + (number - 2) * math.log(number), rel=1e-14)
    half = torch.full((4, 4), 0.5, dtype=torch.double).log()
    assert log_connected(half, half)[-1].exp().item() == pytest.approx(38 / 64, rel=1e-14)


def test_twelve_nodes_and_larger_trees():
    cycle = torch.tensor([[i, (i + 1) % 12] for i in range(12)])
    log_open, log_closed = logs(12, 2)
    p = log_open.exp()
    expected = p.prod(-1) * (1 + ((1 - p) / p).sum(-1))
    found = log_components(cycle, log_open, log_closed, torch.zeros(12, dtype=torch.long)).exp()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    path = torch.tensor([[i, i + 1] for i in range(29)])
    log_open, log_closed = logs(29)
    found = log_components(path, log_open, log_closed, torch.zeros(30, dtype=torch.long))
    torch.testing.assert_close(found, log_open.sum(-1))


def test_too_large_cycles_are_refused():
    cycle = torch.tensor([[i, (i + 1) % 13] for i in range(13)])
    with pytest.raises(NotImplementedError, match=r"trees or have at most 12 nodes, got one of 13 nodes and 13 pairs"):
        log_components(cycle, *logs(13), torch.zeros(13, dtype=torch.long))


@pytest.mark.parametrize("num_nodes", [4, 10])
def test_impossible_labels(num_nodes):
    edges = torch.tensor([[0, 1], [1, 2], [num_nodes - 1, 2]])
    rest = torch.arange(4, num_nodes).tolist()
    wrong = torch.tensor([[1, 1, 2, 3, *rest], [0, 1, 0, 3, *rest], [0, 0, 1, 3, *rest], [-1, 1, 2, 3, *rest]])
    assert (log_components(edges, *logs(3), wrong) < IMPOSSIBLE / 2).all()


@pytest.mark.parametrize("num_nodes", [4, 9])
def test_gradients(num_nodes):
    edges = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [0, 2]])
    labels = torch.tensor([[0, 0, 0, 0, *range(4, num_nodes)], [0, 0, 2, 2, *range(4, num_nodes)]])
    logits = torch.randn(2, 6, dtype=torch.double, requires_grad=True)

    def function(x):
        return log_components(edges, torch.nn.functional.logsigmoid(x), torch.nn.functional.logsigmoid(-x), labels)

    assert torch.autograd.gradcheck(function, logits)
    assert torch.autograd.gradgradcheck(function, logits)
