"""Spanning trees of a graph."""

__all__ = ["SpanningTree", "fundamental_cycles"]

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.structures.argument_checks import check_flag, check_size, checked_undirected_edges
from pyro_structured.optima.solvers.spanning_tree import connected_components, solve_spanning_tree
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.problem import Problem


def fundamental_cycles(edges: Tensor, trees: Tensor, num_nodes: int) -> Tensor:
    """Fundamental cycles: the edges of spanning trees on the path between the two ends of every edge.

    :param Tensor edges: Both ends of a graph's edges, integers of shape ``(E, 2)``.
    :param Tensor trees: The edges of every tree, integers of shape ``(N, num_nodes - 1)``.
    :param int num_nodes: Number of nodes.
    :return: Booleans of shape ``(N, E, num_nodes - 1)``. Cost O(E num_nodes) each.
    """
    tails, heads = edges[trees].unbind(-1)
    # The path from node 0 to a node is its parent's, and the edge between them. All trees grow at the same time.
    paths = torch.zeros(len(trees), num_nodes, num_nodes - 1, dtype=torch.bool, device=edges.device)
    reached = torch.zeros_like(paths[..., 0])
    reached[:, 0] = True
    for _ in range(num_nodes - 1):
        from_tail = reached.gather(-1, tails)
        rows, grown = (from_tail != reached.gather(-1, heads)).nonzero(as_tuple=True)
        forward, ends = from_tail[rows, grown], (tails[rows, grown], heads[rows, grown])
        parents, children = torch.where(forward, *ends), torch.where(forward, *ends[::-1])
        paths[rows, children] = paths[rows, parents]
        paths[rows, children, grown] = True
        reached[rows, children] = True
    return paths[:, edges[:, 0]] ^ paths[:, edges[:, 1]]


class SpanningTree(Problem):
    r"""The cheapest edges that connect all nodes of an undirected graph.

    .. math::
        F(w) = \arg\min_{y \in \{0, 1\}^E} \sum_e w_e y_e, \qquad \{e : y_e = 1\} \text{ is a spanning tree}.

    A value has a 1 for every edge of the tree, shape ``(..., num_edges)``: booleans, integers or floats; :meth:`solve`
    returns the dtype of the costs. Costs may have any sign; an infinite cost forbids an edge.

    :param Tensor edges: Both ends of the edges of a connected graph, integers of shape ``(num_edges, 2)``. There may be
        parallel edges.
    :param int num_nodes: Number of nodes, at least 2.
    :param bool maximize: Whether the costs are rewards.
    :raises ValueError: if an edge is a loop or leads out of the graph, or the graph is not connected.

    :meth:`solve` takes O(E log E) for E edges. The restrictions of the inverse set are closed-form, given the cycle
    that every other edge closes in the tree: that edge costs at least as much as every edge of its cycle. They take
    O(E num_nodes).

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Equation 4.

    Example::

        >>> triangle = SpanningTree(torch.tensor([[0, 1], [1, 2], [0, 2]]), num_nodes=3)
        >>> triangle.solve(torch.tensor([0.0, 3.0, -1.0]))
        tensor([1., 0., 1.])
        >>> triangle.contains(torch.tensor([0.0, 3.0, -1.0]), torch.tensor([1, 1, 0]))
        tensor(False)
    """

    is_binary = True

    def __init__(self, edges: Tensor, num_nodes: int, maximize: bool = False) -> None:
        check_size("num_nodes", num_nodes)
        self.edges, self.num_nodes = checked_undirected_edges("edges", edges, num_nodes), num_nodes
        self.cost_shape = self.event_shape = self.edges.shape[:1]
        check_flag("maximize", maximize)
        self.maximize = maximize
        if num_nodes > self.num_edges + 1:
            raise ValueError(
                f"edges: expected a connected graph, of {num_nodes - 1} edges at least, got {self.num_edges}"
            )
        unreached = self._components(np.ones((1, self.num_edges), dtype=bool))[0].nonzero()[0]
        if len(unreached):
            raise ValueError(f"edges: expected a connected graph, got no path from node 0 to node {unreached[0]}")

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.cost_shape[0]

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of zeros and ones."""
        return EveryEntry(constraints.boolean, 1)

    def solve(self, costs: Tensor) -> Tensor:
        """Ones for the edges of a cheapest tree, shape ``(..., num_edges)``."""
        batch = self._checked_batch(costs)
        rows = (costs.double() * self._sign).expand(batch + self.cost_shape).reshape(-1, self.num_edges)
        trees = solve_spanning_tree(self.edges.numpy(), rows.detach().cpu().numpy(), self.num_nodes)
        value = torch.from_numpy(trees).reshape(batch + self.event_shape).to(costs.device, self._binary_dtype(costs))
        return self._possible(costs, value)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether edges are as many as a tree has, and connect all nodes."""
        batch = self._batch(value=value)
        rows = (value != 0).reshape(-1, self.num_edges).cpu().numpy()
        connected = torch.from_numpy((self._components(rows) == 0).all(-1)).reshape(value.shape[:-1]).to(value.device)
        feasible: Tensor = self.support.check(value) & (value.sum(-1) == self.num_nodes - 1) & connected
        return feasible.expand(batch)

    @property
    def has_one_value(self) -> Tensor:
        """Whether the graph is a tree."""
        return torch.tensor(self.num_edges == self.num_nodes - 1)

    def incidence(self, value: Tensor) -> Tensor:
        """1 for the edges of the tree, shape ``(..., num_edges)``."""
        return value.double()

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """Two boxes: the edges of the tree, and then all others."""
        batch, others = costs.shape[:-1], (value == 0).expand(costs.shape)
        size = self.num_nodes - 1
        tree = (~others).reshape(-1, self.num_edges).nonzero()[:, 1].reshape(batch.numel(), size)
        cycles = fundamental_cycles(self.edges.to(costs.device), tree, self.num_nodes)
        cycles = cycles.reshape(*batch, self.num_edges, size) & others.unsqueeze(-1)
        tree = tree.reshape(*batch, size)
        rivals = (costs * self._sign).unsqueeze(-1).masked_fill(~cycles, torch.inf)
        high = rivals.amin(-2)
        yield self._box(tree, torch.full_like(high, -torch.inf), high)
        rivals = (costs * self._sign).gather(-1, tree).unsqueeze(-2).masked_fill(~cycles, -torch.inf)
        low = rivals.amax(-1)
        index = torch.arange(self.num_edges, device=costs.device)
        yield self._box(index, low, torch.full_like(low, torch.inf), others)

    def _components(self, is_open: np.ndarray) -> np.ndarray:
        return connected_components(self.edges.numpy(), is_open, self.num_nodes)
