"""Shortest paths between two nodes of a network."""

__all__ = ["ShortestPath"]

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.foundation.structures.argument_checks import (
    INTEGERS,
    check_size,
    checked_batch,
    checked_edges,
    checked_tensor,
)
from pyro_structured.optima.ops.adjacency import Adjacency
from pyro_structured.optima.solvers.network import Network
from pyro_structured.optima.solvers.path_intervals import path_intervals
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.problem import Problem

NO_EDGES = (np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


class ShortestPath(Problem):
    r"""The cheapest way from one node of a directed network to another.

    .. math::
        F(w) = \arg\min_y \sum_e w_e y_e, \qquad y \text{ a path from the source to the target, } w \ge 0.

    A value says of every edge whether the path uses it, 0 or 1, shape ``(..., E)``. No node is visited twice.

    :param Tensor edges: Tail and head of every edge, integers from 0 to ``num_nodes - 1``, shape ``(E, 2)``. Parallel
        edges are allowed.
    :param int num_nodes: Number of nodes, at least 1.
    :param source: The first node, an integer or a tensor of integers of the batch's shape.
    :param target: The last node, another one, likewise.
    :raises ValueError: if an argument has another form, or a source does not lead to its target.

    :meth:`solve` is Dijkstra's algorithm, O(E + n log n) for every vector of costs and every source, which the targets
    of one source share; with numba it is compiled, and there is one search for every row, which ends at the target.
    Costs must be finite and at least 0. The restriction of the inverse set to all out-edges of a node
    is closed-form, given two searches; edges that are too far away to matter are found together.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 7.1.

    Example::

        >>> problem = ShortestPath(torch.tensor([[0, 1], [1, 2], [0, 2]]), 3, 0, 2)
        >>> problem.solve(torch.tensor([1.0, 1.0, 3.0]))
        tensor([1., 1., 0.])
        >>> [box.high for box in problem.boxes(torch.tensor([1.0, 1.0, 3.0]).double(), torch.tensor([1, 1, 0]))][0]
        tensor([2.], dtype=torch.float64)
    """

    is_binary = True
    cost_low = 0.0
    _data = {"_source": 0, "_target": 0}
    _source: Tensor
    _target: Tensor

    def __init__(self, edges: Tensor, num_nodes: int, source: int | Tensor, target: int | Tensor) -> None:
        check_size("num_nodes", num_nodes)
        self._edges, self._num_nodes = checked_edges("edges", edges, num_nodes), num_nodes
        self.cost_shape = self.event_shape = torch.Size([len(edges)])
        ends = self._checked_node("source", source), self._checked_node("target", target)
        self.batch_shape = checked_batch(source=ends[0].shape, target=ends[1].shape)
        self._source, self._target = (node.expand(self.batch_shape) for node in ends)
        self._check_connected()

    def _checked_node(self, name: str, node: int | Tensor) -> Tensor:
        expected = f"integers from 0 to {self.num_nodes - 1}"
        nodes = checked_tensor(name, expected, node)
        if nodes.dtype not in INTEGERS or not bool(((nodes >= 0) & (nodes < self.num_nodes)).all()):
            raise ValueError(f"{name}: expected {expected}, got {node}")
        return nodes.long()

    def _check_connected(self) -> None:
        if bool((self._source == self._target).any()):
            raise ValueError("target: expected another node than the source, got the same")
        starts, row = self._source.unique(return_inverse=True)
        if not len(self.edges):
            raise ValueError("edges: expected at least one, got none")
        distances = torch.as_tensor(self._network.distances(np.zeros(len(self.edges)), starts.cpu().numpy()))
        if not bool(distances[row.cpu(), self._target.cpu()].isfinite().all()):
            raise ValueError("target: expected a node that the source leads to, got one that it does not")

    @property
    def edges(self) -> Tensor:
        """Tails and heads, shape ``(E, 2)``."""
        return self._edges

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self._num_nodes

    @property
    def source(self) -> Tensor:
        """The first nodes, of the batch's shape."""
        return self._source

    @property
    def target(self) -> Tensor:
        """The last nodes, of the batch's shape."""
        return self._target

    @property
    def support(self) -> constraints.Constraint:
        """Zeros and ones."""
        return EveryEntry(constraints.boolean, 1)

    def solve(self, costs: Tensor) -> Tensor:
        """The edges of a shortest path, 0 or 1, shape ``(..., E)``."""
        batch = self._checked_batch(costs)
        if not bool((is_valid := (costs >= 0) & costs.isfinite()).all()):
            raise ValueError(f"costs: expected finite numbers of at least 0, got {float(costs[~is_valid][0]):g}")
        vectors = np.asarray(costs.detach().double().cpu()).reshape(-1, len(self.edges))
        ends = [np.ascontiguousarray(node.expand(batch).reshape(-1).cpu()) for node in (self._source, self._target)]
        owners = np.broadcast_to(np.arange(len(vectors)).reshape(costs.shape[:-1]), batch).ravel()
        if run := compiled_function("optima.ops.path_sweep", "shortest_paths"):
            used = run(self.adjacency, vectors, owners, *ends)
        else:
            used = self._network.shortest_paths(vectors, owners, *ends)
        dtype = self._binary_dtype(costs)
        return torch.from_numpy(used).reshape(batch + self.event_shape).to(costs.device, dtype)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether edges form a path from the source to the target."""
        batch = self._batch(value=value)
        used = (value == 1).expand(batch + self.event_shape)
        source, target = (node.to(value.device).expand(batch).unsqueeze(-1) for node in (self._source, self._target))
        tails, heads = self._edges.to(value.device).T
        leaving, entering = (
            torch.zeros(batch + (self.num_nodes,), dtype=torch.long, device=value.device).index_add(
                -1, ends, used.long()
            )
            for ends in (tails, heads)
        )
        nodes = torch.arange(self.num_nodes, device=value.device)
        balanced = (leaving - entering == (nodes == source).long() - (nodes == target).long()).all(-1)
        simple = (leaving <= 1).all(-1) & (entering <= 1).all(-1)
        # Separate cycles have edges that the walk from the source does not meet.
        step = nodes.expand(leaving.shape).scatter_add(-1, tails.expand(used.shape), used * (heads - tails))
        met = self._walk(step, source, target, most=int(used.sum(-1).max()) if used.numel() else 0)
        feasible: Tensor = balanced & simple & (met == used.sum(-1)) & self.support.check(value)
        return feasible

    def _walk(self, step: Tensor, node: Tensor, target: Tensor, most: int) -> Tensor:
        """Numbers of steps to the target, at most ``most``, of the batch's shape."""
        met = torch.zeros_like(node)
        for _ in range(most):
            going = node != target
            if not bool(going.any()):
                break
            node, met = torch.where(going, step.gather(-1, node.clamp(0, self.num_nodes - 1)), node), met + going
        return met.squeeze(-1)

    @property
    def has_one_value(self) -> Tensor:
        """Whether no edge of the path can be avoided, booleans of shape ``batch_shape``; one search for each edge."""
        rows = self.flatten(self.batch_shape)
        pairs = torch.stack([rows.source, rows.target], -1).cpu()
        different, row = pairs.unique(dim=0, return_inverse=True)
        forced = [self._is_bound(int(source), int(target)) for source, target in different]
        return torch.tensor(forced, dtype=torch.bool)[row].reshape(self.batch_shape)

    def _is_bound(self, source: int, target: int) -> bool:
        path = ShortestPath(self._edges, self.num_nodes, source, target).solve(torch.zeros(len(self._edges)))
        for edge in path.nonzero().flatten().tolist():
            costs = np.zeros(len(self._edges))
            costs[edge] = np.inf
            if np.isfinite(self._network.distances(costs, source)[target]):
                return False
        return True

    def incidence(self, value: Tensor) -> Tensor:
        """Coefficients of the costs: the value itself, in double precision."""
        return value.double()

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """Boxes of the out-edges of a node, or of many unrestricted ones; on the path, the path's edge comes first.

        Rows of the batch have boxes of their own, some of which may be empty.
        """
        batch, count = costs.shape[:-1], len(self.edges)
        rows = self.flatten(batch)
        paths = np.asarray(value.expand(batch + self.event_shape).reshape(-1, count).bool().cpu())
        network = self._network
        intervals = [
            path_intervals(network, path, int(source), int(target), partial(_row, costs, row))
            for row, (path, source, target) in enumerate(zip(paths, rows.source, rows.target, strict=True))
        ]
        for parts in zip_longest(*intervals, fillvalue=NO_EDGES):
            yield self._joint_box(parts, batch, costs.device)

    def _joint_box(
        self, parts: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...], batch: torch.Size, device: torch.device
    ) -> Box:
        """One box for all rows. Rows with fewer edges are filled up with other edges, which are not free."""
        width = max(len(edges) for edges, _, _ in parts)
        index, low, high = (np.zeros((len(parts), width), kind) for kind in (np.int64, float, float))
        free = np.arange(width) < np.array([[len(edges)] for edges, _, _ in parts])
        for row, (edges, least, most) in enumerate(parts):
            others = np.delete(np.arange(len(self.edges)), edges)
            index[row] = np.append(edges, others[: width - len(edges)])
            low[row, free[row]], high[row, free[row]] = least, most
        entries = (torch.from_numpy(array).reshape(batch + (width,)).to(device) for array in (index, low, high, free))
        return Box(*entries)

    @property
    def adjacency(self) -> Adjacency:
        """The edges at every node, for compiled loops."""
        return _adjacency(self._edges, self.num_nodes)

    @property
    def _network(self) -> Network:
        return Network(np.asarray(self._edges.cpu()), self.num_nodes)


@lru_cache(maxsize=16)
def _adjacency(edges: Tensor, num_nodes: int) -> Adjacency:
    """Built once for each tensor, which hashes by its identity."""
    return Adjacency.from_edges(np.asarray(edges.cpu()), num_nodes)


def _row(costs: Tensor, row: int) -> np.ndarray:
    """The present costs of a row."""
    return np.asarray(costs.detach().reshape(-1, costs.shape[-1])[row].double().cpu())
