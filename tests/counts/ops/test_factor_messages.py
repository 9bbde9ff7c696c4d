"""Steps of messages: extrapolation, messages that decide, rows by themselves."""

import math

import pytest
import torch

from pyro_structured.counts.ops.factor_messages import Extrapolation, FactorGraph, Schedule, propagate
from pyro_structured.counts.structures.subset_families import matching_families
from tests.counts.matrices import law


def graph_of(logits, rows, columns):
    number, height, width = logits.shape
    families = matching_families(height, width)
    tables = tuple(table.flatten().expand(number, -1) for table in (rows, columns))
    return FactorGraph(families.factors, logits.flatten(1), tables, families.crossing)


def test_extrapolation_of_linear_steps():
    """As many steps as there are unknowns, where plain ones would take thousands."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(2, 4, 4, dtype=torch.double)).Q
    step = basis @ torch.diag_embed(torch.tensor([0.999, 0.9, 0.5, -0.7], dtype=torch.double).expand(2, 4)) @ basis.mT
    fixed = torch.randn(2, 4, dtype=torch.double)
    extrapolation, point = Extrapolation(5), torch.zeros(2, 4, dtype=torch.double)
    never = torch.zeros(2, dtype=torch.bool)
    for _ in range(14):
        image = fixed + (step @ (point - fixed).unsqueeze(-1)).squeeze(-1)
        point = extrapolation(point, image, never)
    torch.testing.assert_close(point, fixed, rtol=0, atol=1e-6)


def test_jumps_are_bounded():
    """Steps that stay the same for ever are not extrapolated beyond ten of their length."""
    extrapolation, never = Extrapolation(5), torch.zeros(1, dtype=torch.bool)
    point = torch.zeros(1, 3, dtype=torch.double)
    for k in range(20):
        image = point + 2.0 + 1e-9 * k
        following = extrapolation(point, image, never)
        assert bool((following - image).abs().amax() <= 10 * (image - point).abs().amax() + 1e-9)
        point = following


def test_messages_that_decide():
    """Exactly one a row, and a column that must have all: the others are decided, by infinite messages."""
    logits = torch.randn(1, 3, 3, dtype=torch.double)
    columns = law(3, 3, (0,))
    columns[0] = law(3, 1, (3,))[0]
    graph = graph_of(logits, law(3, 3, (1,)), columns)
    found = propagate(graph, graph.no_messages, Schedule(1e-9, 20))
    assert bool(found.converged) and not bool(found.impossible)
    beliefs = graph.beliefs(found.messages).reshape(3, 3)
    assert bool((beliefs[:, 0] == math.inf).all()) and bool((beliefs[:, 1:] == -math.inf).all())
    torch.testing.assert_close(graph.log_partition(found.messages), logits[:, :, 0].sum(-1))


def test_rows_by_themselves():
    """Each row ends as it would alone; an impossible one is told, and does not disturb others."""
    torch.manual_seed(1)
    logits = torch.randn(3, 3, 3, dtype=torch.double)
    logits[1, :2, 1:] = -math.inf
    graph = graph_of(logits, law(3, 3, (1,)), law(3, 3, (1,)))
    together = propagate(graph, graph.no_messages, Schedule(1e-9, 100))
    assert together.converged.tolist() == [True, False, True]
    for row in (0, 2):
        alone_graph = graph.rows(torch.tensor([row]))
        alone = propagate(alone_graph, alone_graph.no_messages, Schedule(1e-9, 100))
        assert int(alone.num_iterations) == int(together.num_iterations[row])
        torch.testing.assert_close(alone.messages[:, 0], together.messages[:, row])


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_gradient_of_the_log_partition(share):
    """At a fixed point, along log-odds: the beliefs, also where messages are constants."""
    torch.manual_seed(2)
    logits = torch.randn(2, 3, 4, dtype=torch.double).requires_grad_()
    rows, columns = torch.randn(3, 5, dtype=torch.double), torch.randn(4, 4, dtype=torch.double)
    graph = graph_of(logits, rows, columns).with_share(share)
    messages = propagate(graph.detach(), graph.no_messages.detach(), Schedule(1e-12, 300)).messages
    (gradient,) = torch.autograd.grad(graph.log_partition(messages).sum(), logits)
    torch.testing.assert_close(gradient.flatten(1), graph.beliefs(messages).detach().sigmoid(), rtol=0, atol=1e-9)
