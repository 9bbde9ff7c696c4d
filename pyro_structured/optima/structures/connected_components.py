"""Connected components of the edges above a threshold."""

__all__ = ["ConnectedComponents"]

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.ops.enumeration import enumerate_values, is_enumerable
from pyro_structured.foundation.structures.argument_checks import check_size, checked_tensor, checked_undirected_edges
from pyro_structured.optima.solvers.spanning_tree import connected_components
from pyro_structured.optima.structures.box import Box
from pyro_structured.optima.structures.every_entry import EveryEntry
from pyro_structured.optima.structures.problem import Problem


class ConnectedComponents(Problem):
    r"""The clusters of a graph's nodes that edges of large weights connect.

    .. math::
        F(w)_i = \min \, \{j : \text{a path from } i \text{ to } j \text{ has only edges } w_e > \tau\},

    where i itself is among the j. A value is the smallest node of the component of every node, integers of shape
    ``(..., num_nodes)``, from 0 on. The "costs" are the weights of the edges.

    The objective is 0 for these labels and infinite for all others. That is what Equations 8 to 10 of the paper say
    once i belongs to its own component, and the indicators of Equation 9 change places. It is not linear in the
    weights, and the inverse sets are not convex (Proposition 4) but star-convex around :meth:`feasible_point`
    (Proposition 5): with any point, all of the rectangle between the two belongs to them. Hence there are
    :meth:`boxes` but no :meth:`chord`, and :meth:`incidence` only says which weights have to be small.

    :param Tensor edges: Both ends of the edges, integers of shape ``(num_edges, 2)``; at least one. There may be
        parallel edges.
    :param int num_nodes: Number of nodes, at least 1.
    :param threshold: :math:`\tau`, a finite number, or a tensor of the batch shape.
    :raises ValueError: if an edge is a loop or leads out of the graph, or a threshold is not finite.

    :meth:`solve` and :meth:`contains` take O(E + num_nodes) for E edges, all :meth:`boxes` together O(E log E
    num_nodes). Comparisons with the threshold are exact.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 2.1.2,
    Propositions 2, 4 and 5.

    Example::

        >>> path = ConnectedComponents(torch.tensor([[0, 1], [1, 2]]), num_nodes=3, threshold=0.5)
        >>> path.solve(torch.tensor([[0.9, 0.9], [0.5, 0.6]]))
        tensor([[0, 0, 0],
                [0, 1, 1]])
    """

    is_linear = False
    _data = {"threshold": 0}

    def __init__(self, edges: Tensor, num_nodes: int, threshold: float | Tensor) -> None:
        check_size("num_nodes", num_nodes)
        self.edges = checked_undirected_edges("edges", edges, num_nodes)
        self.cost_shape, self.event_shape = self.edges.shape[:1], torch.Size([num_nodes])
        self.threshold = checked_tensor("threshold", "finite numbers", threshold, torch.double)
        if not bool(self.threshold.isfinite().all()):
            raise ValueError(f"threshold: expected finite numbers, got {threshold}")
        self.batch_shape = self.threshold.shape

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.cost_shape[0]

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.event_shape[0]

    @property
    def support(self) -> constraints.Constraint:
        """Vectors of nodes, one for every node."""
        return EveryEntry(constraints.integer_interval(0, self.num_nodes - 1), 1)

    def solve(self, costs: Tensor) -> Tensor:
        """The smallest node of every node's component, shape ``(..., num_nodes)``."""
        self._checked_batch(costs)
        return self._labels(costs.double() > self._limits(costs))

    def objective(self, costs: Tensor, value: Tensor) -> Tensor:
        """0 for the right labels, infinite for all others, shape ``(...)``, in double precision."""
        right = self.contains(costs, value)
        return torch.zeros_like(right, dtype=torch.double).masked_fill(~right, torch.inf)

    def contains(self, costs: Tensor, value: Tensor) -> Tensor:
        """Whether values are the labels of the components, exactly; booleans of shape ``(...)``."""
        self._batch(costs, value)
        return (self.solve(costs) == value).all(-1)

    def is_feasible(self, value: Tensor) -> Tensor:
        """Whether labels are the smallest nodes of sets that the graph connects."""
        batch = self._batch(value=value)
        inside = self.incidence(value) == 0
        return (self._labels(inside) == value).all(-1).expand(batch)

    def feasible_values(self) -> Tensor | None:
        """Labels of the components of all sets of open edges, if there are few such sets."""
        if not is_enumerable(self.num_edges):
            return None
        is_open = enumerate_values(self.num_edges, 2, torch.Size(), True, like=torch.empty(0, dtype=torch.bool))
        values: Tensor = self._labels(is_open).unique(dim=0)
        return values

    def incidence(self, value: Tensor) -> Tensor:
        """1 for edges between different components, shape ``(..., num_edges)``."""
        tails, heads = self.edges.to(value.device).unbind(-1)
        return (value[..., tails] != value[..., heads]).double()

    def boxes(self, costs: Tensor, value: Tensor) -> Iterator[Box]:
        """The edges between components, and then, one by one, those within.

        An edge within is needed, and stays open, if its component falls apart without it; else it is free. Which ones
        are needed changes with every edge that opens or closes, so they come one at a time.
        """
        between = (self.incidence(value) > 0).expand(costs.shape)
        index = torch.arange(self.num_edges, device=costs.device)
        unbounded = torch.full_like(costs, torch.inf)
        yield Box(index, -unbounded, self._limits(costs).expand_as(costs), between)
        unbounded = unbounded[..., :1]
        above = torch.nextafter(self._limits(costs), unbounded)
        nodes = torch.arange(self.num_nodes, device=costs.device).expand(*costs.shape[:-1], -1)
        for edge, needed in self._needed(costs, nodes, range(self.num_edges)):
            here = index[edge, None]
            yield Box(here, above.where(needed, -torch.inf), unbounded, ~between[..., here])

    def _needed(self, costs: Tensor, labels: Tensor, edges: range) -> Iterator[tuple[int, Tensor]]:
        """Yields edges, and whether all other edges leave their ends apart, booleans of shape ``(..., 1)``.

        The labels are those of the components that the edges outside of ``edges`` leave. Halving the edges time and
        again joins the ends of each only O(log E) times; to go through all others for every edge would do it E times.
        """
        if len(edges) == 1:
            tail, head = self.edges[edges[0]].tolist()
            yield edges[0], (labels[..., tail] != labels[..., head]).unsqueeze(-1)
            return
        middle = len(edges) // 2
        for half, rest in ((edges[:middle], edges[middle:]), (edges[middle:], edges[:middle])):
            yield from self._needed(costs, self._merged(costs, labels, rest), half)

    def _merged(self, costs: Tensor, labels: Tensor, edges: range) -> Tensor:
        """Labels after the open ones among some edges have joined their ends."""
        within = slice(edges.start, edges.stop)
        is_open = (costs[..., within] > self._limits(costs)).unbind(-1)
        for ends, joins in zip(self.edges[within].tolist(), is_open, strict=True):
            tail, head = (labels[..., end, None] for end in ends)
            labels = tail.where(joins.unsqueeze(-1) & (labels == head), labels)
        return labels

    def _limits(self, costs: Tensor) -> Tensor:
        return self.threshold.to(costs.device).unsqueeze(-1)

    def _labels(self, is_open: Tensor) -> Tensor:
        rows = is_open.reshape(-1, self.num_edges).cpu().numpy()
        labels = torch.from_numpy(connected_components(self.edges.numpy(), rows, self.num_nodes))
        return labels.reshape(*is_open.shape[:-1], self.num_nodes).to(is_open.device)
