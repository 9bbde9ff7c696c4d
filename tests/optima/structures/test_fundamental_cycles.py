"""Paths between the ends of edges in trees."""

import torch

from pyro_structured.optima.structures.spanning_tree import fundamental_cycles


def test_cycles_are_closed():
    """Together with the edge itself, every node has an even number of the edges; and the path lies in the tree."""
    num_nodes = 12
    complete = torch.combinations(torch.arange(num_nodes))
    number = torch.zeros(num_nodes, num_nodes, dtype=torch.long)
    number[complete[:, 0], complete[:, 1]] = number[complete[:, 1], complete[:, 0]] = torch.arange(len(complete))
    # Every node of a random order hangs on one before it.
    order = torch.rand(50, num_nodes).argsort(-1)
    parents = (torch.rand(50, num_nodes - 1) * torch.arange(1, num_nodes)).long()
    trees = number[order[:, 1:], order.gather(-1, parents)]
    cycles = fundamental_cycles(complete, trees, num_nodes)
    assert cycles.shape == (50, len(complete), num_nodes - 1)
    ends = torch.nn.functional.one_hot(complete, num_nodes).sum(1).double()
    odd = cycles.double() @ ends[trees] + ends
    assert (odd % 2 == 0).all() and odd.max() == 2
    own = cycles.gather(1, trees.unsqueeze(-1).expand(-1, -1, num_nodes - 1))
    assert torch.equal(own, torch.eye(num_nodes - 1, dtype=torch.bool).expand_as(own))
