"""Labellings of a graph's nodes that cut few edges."""

__all__ = ["MinimumCut"]

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import check_last_axis, check_size, checked_edges
from pyro_structured.optima.solvers.minimum_cut import solve_minimum_cut
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.problem import Problem


class MinimumCut(Problem):
    r"""The cheapest labelling of a graph's nodes with 0 and 1, where edges between different labels cost something.

    .. math::
        F(u, w) = \arg\min_y \sum_i u_{y_i i} + \sum_e w_e [y_{e_1} \ne y_{e_2}], \qquad w \ge 0.

    A value is the label of every node, shape ``(..., n)``. The costs are one vector, ``(..., 2 n + E)``: those of label
    0, those of label 1, and those of the edges; :meth:`pack` and :meth:`split` convert.

    :param Tensor edges: Pairs of different nodes, integers from 0 to ``num_nodes - 1``, shape ``(E, 2)``. Their order
        does not matter.
    :param int num_nodes: Number of nodes n, at least 1.
    :raises ValueError: if an argument has another form.

    :meth:`solve` is one maximum flow for each vector of costs, O(n² E) at worst, in whole numbers of such a size that
    rounding them does not matter. A box of :meth:`boxes` has one entry, and the two costs of a node, or the cost of an
    edge, take one maximum flow. With numba, ``ConstrainedSlice`` needs one flow for all independent costs that can be
    drawn by inversion, and mends it as they change.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 7.1.1.

    Kohli, Torr (2008): *Measuring uncertainty in graph cut solutions.* Computer Vision and Image Understanding 112(1).

    Example::

        >>> problem = MinimumCut(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> unary0, unary1 = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([3.0, 0.0, 0.0])
        >>> problem.solve(problem.pack(unary0, unary1, torch.tensor([0.5, 0.5])))
        tensor([0., 1., 1.])
        >>> problem.solve(problem.pack(unary0, unary1, torch.tensor([2.0, 0.5])))
        tensor([0., 0., 1.])
    """

    is_binary = True

    def __init__(self, edges: Tensor, num_nodes: int) -> None:
        check_size("num_nodes", num_nodes)
        self._edges = checked_edges("edges", edges, num_nodes)
        if bool((self._edges[:, 0] == self._edges[:, 1]).any()):
            raise ValueError("edges: expected pairs of different nodes, got a node twice")
        self.event_shape = torch.Size([num_nodes])
        self.cost_shape = torch.Size([2 * num_nodes + len(edges)])
        low = torch.full(self.cost_shape, -torch.inf, dtype=torch.double)
        low[2 * num_nodes :] = 0.0
        self.cost_low = low

    @property
    def edges(self) -> Tensor:
        """Pairs of nodes, shape ``(E, 2)``."""
        return self._edges

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.event_shape[0]

    @property
    def support(self) -> constraints.Constraint:
        """Zeros and ones."""
        return EveryEntry(constraints.boolean, 1)

    def pack(self, unary0: Tensor, unary1: Tensor, edges: Tensor) -> Tensor:
        """One vector of costs from those of label 0 and of label 1, ``(..., n)``, and those of edges, ``(..., E)``."""
        vectors = {"unary0": unary0, "unary1": unary1, "edges": edges}
        for (name, vector), size in zip(vectors.items(), self._sizes(), strict=True):
            check_last_axis(name, vector, size)
        batch = broadcast_shapes(*(vector.shape[:-1] for vector in vectors.values()))
        return torch.cat([vector.expand(batch + vector.shape[-1:]) for vector in vectors.values()], -1)

    def split(self, costs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The costs of label 0 and of label 1, ``(..., n)``, and those of edges, ``(..., E)``: views."""
        check_last_axis("costs", costs, self.cost_shape[0])
        unary0, unary1, edges = costs.split(self._sizes(), -1)
        return unary0, unary1, edges

    def solve(self, costs: Tensor) -> Tensor:
        """Labels, 0 or 1, shape ``(..., n)``."""
        batch, rows = self._checked_batch(costs), math.prod(costs.shape[:-1])
        unary0, unary1, edges = self.split(costs.detach().double().cpu())
        wrong = torch.cat([costs[~costs.isfinite()].cpu(), edges[edges < 0].to(costs.dtype)])
        if len(wrong):
            raise ValueError(f"costs: expected finite numbers, and at least 0 for edges, got {float(wrong[0]):g}")
        preferences, weights = (terms.reshape(rows, terms.shape[-1]).numpy() for terms in (unary1 - unary0, edges))
        solved = torch.from_numpy(solve_minimum_cut(preferences, np.asarray(self._edges.cpu()), weights))
        dtype = self._binary_dtype(costs)
        labels = solved.reshape(costs.shape[:-1] + self.event_shape).expand(batch + self.event_shape)
        return labels.to(costs.device, dtype)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether all labels are 0 or 1."""
        batch = self._batch(value=value)
        feasible: Tensor = self.support.check(value)
        return feasible.expand(batch)

    def incidence(self, value: Tensor) -> Tensor:
        """1 at the costs of the labels and of the edges that are cut, shape ``(..., 2 n + E)``."""
        label = value.double()
        ends = label[..., self._edges.to(value.device)]
        return torch.cat([1 - label, label, (ends[..., 0] - ends[..., 1]).abs()], -1)

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """For every node the cost of its label and then that of the other label; then one edge after the other."""
        batch, nodes = costs.shape[:-1], self.num_nodes
        labels = value.expand(batch + self.event_shape).long()
        used = self.incidence(labels) > 0
        unbounded = torch.full(batch + (1,), torch.inf, dtype=torch.double, device=costs.device)
        for node in range(nodes):
            label = labels[..., node, None]
            own, opposite = label * nodes + node, (1 - label) * nodes + node
            most = self._excess(costs, labels, own, self._prohibitive(costs, own))
            # The label stays as long as its cost is not larger than the other's by more than this.
            difference = most - costs.gather(-1, opposite)
            yield Box(own, -unbounded, most)
            yield Box(opposite, costs.gather(-1, own) - difference, unbounded)
        for entry in range(2 * nodes, self.cost_shape[0]):
            index = torch.full(batch + (1,), entry, device=costs.device)
            cut = used[..., entry, None]
            excess = self._excess(costs, labels, index, self._prohibitive(costs, index).masked_fill(~cut, 0.0))
            low = (-excess).clamp(min=0.0).masked_fill(cut, 0.0)
            yield Box(index, low, torch.where(cut, excess.clamp(min=0.0), unbounded))

    def _sizes(self) -> list[int]:
        return [self.num_nodes, self.num_nodes, len(self._edges)]

    def _excess(self, costs: Tensor, labels: Tensor, index: Tensor, instead: Tensor) -> Tensor:
        """Optimum with another cost of an entry, less the objective of the labels if it costs 0, ``(..., 1)``."""
        changed = costs.scatter(-1, index, instead)
        optimum = self.objective(changed, self.solve(changed))
        return (optimum - self.objective(costs.scatter(-1, index, 0.0), labels)).unsqueeze(-1)

    def _prohibitive(self, costs: Tensor, index: Tensor) -> Tensor:
        """A cost of an entry with which no optimum uses it, shape ``(..., 1)``."""
        weight = costs.abs().sum(-1, keepdim=True)
        return costs.gather(-1, index) + torch.where(weight > 0, 2 * weight, 1.0)
