"""Cheapest labellings of a graph's nodes with two labels."""

__all__ = ["CutNetwork", "solve_minimum_cut"]

from typing import Any

import numpy as np

from pyro_structured.foundation.ops.optional_numba import compiled_function

# All capacities of a row add up to about 2 ** BITS units. A capacity of at least 2 ** 53 units is a whole number
# of them, so that only smaller ones are rounded, by half a unit: a labelling found is worse than the best by at most
# (n + E) 2 ** -BITS of the sum of all terms, which is below the rounding error of that sum for n + E < 2 ** 8, and
# below 1e-9 of the largest term for n + E < 2 ** 15.
BITS = 60


class CutNetwork:
    r"""Minimises :math:`\sum_i \theta_i y_i + \sum_e w_e [y_{e_1} \ne y_{e_2}]` over labels of the nodes of one graph.

    One maximum flow for each call of :meth:`solve`; with numba, it begins with the flow of the call before, which makes
    no difference to the labels. Of labels with the same objective, those with the fewest nodes of label 0 are found.

    :param np.ndarray edges: Pairs of different nodes, shape ``(E, 2)``.
    :param int num_nodes: Number of nodes n.
    """

    def __init__(self, edges: np.ndarray, num_nodes: int) -> None:
        is_compiled = compiled_function("optima.ops.maximum_flow", "maximum_flow") is not None
        self._flow: Any = (_CompiledFlow if is_compiled else _LibraryFlow)(edges, num_nodes)

    def solve(self, preferences: np.ndarray, weights: np.ndarray) -> np.ndarray:
        r"""Labels y of the smallest objective, booleans of shape ``(n,)``.

        :param np.ndarray preferences: Excess :math:`\theta` of the cost of label 1 over label 0, shape ``(n,)``.
        :param np.ndarray weights: Weights w of the edges, at least 0, shape ``(E,)``.
        """
        supplies, capacities, exponent = _in_units(preferences, weights)
        self._exponent = int(exponent)
        labels: np.ndarray = self._flow.solve(supplies, capacities, self._exponent)
        return labels

    def residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """Residual capacities of the last flow: with them in place of the terms, every objective is smaller by one
        constant, the objective of the best labels.

        :return: Costs of label 1 and of label 0 of the nodes, shape ``(2, n)``; and costs of the labels 0, 1 and 1, 0
            of the ends of the edges, shape ``(2, E)``. All are at least 0.
        """
        nodes, edges = (np.ldexp(units.astype(float), self._exponent - BITS) for units in self._flow.residuals())
        return nodes, edges


class _CompiledFlow:
    """Maximum flows, each of which begins with the one before."""

    def __init__(self, edges: np.ndarray, num_nodes: int) -> None:
        from pyro_structured.optima.ops.maximum_flow import flow_network, maximum_flow, shift_flow

        self._edges, self._network = edges, flow_network(edges, num_nodes)
        self._shift, self._run = shift_flow, maximum_flow
        self._supplies, self._capacities = np.zeros(num_nodes, np.int64), np.zeros(len(edges), np.int64)
        self._excess, self._room = self._supplies.copy(), np.zeros(2 * len(edges), np.int64)
        self._exponent: int | None = None

    def solve(self, supplies: np.ndarray, capacities: np.ndarray, exponent: int) -> np.ndarray:
        """Labels, booleans of shape ``(n,)``, of supplies and capacities in units of one power of two."""
        if exponent == self._exponent:
            self._excess += supplies - self._supplies
            self._shift(self._edges, self._capacities, capacities, self._room, self._excess)
        else:
            self._excess, self._room = supplies.copy(), np.repeat(capacities, 2)
        self._supplies, self._capacities, self._exponent = supplies, capacities, exponent
        return self._run(self._network, self._room, self._excess)

    def residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """As of :class:`CutNetwork`, in units."""
        return np.stack([self._excess.clip(min=0), -self._excess.clip(max=0)]), self._room.reshape(-1, 2).T


class _LibraryFlow:
    """Maximum flows, by ortools."""

    def __init__(self, edges: np.ndarray, num_nodes: int) -> None:
        from ortools.graph.python.max_flow import SimpleMaxFlow

        self._num_nodes = num_nodes
        source, sink, nodes = num_nodes, num_nodes + 1, np.arange(num_nodes)
        # Nodes on the side of the source have label 0.
        tails = np.concatenate([np.full(num_nodes, source), nodes, edges[:, 0], edges[:, 1]])
        heads = np.concatenate([nodes, np.full(num_nodes, sink), edges[:, 1], edges[:, 0]])
        self._flow: Any = SimpleMaxFlow()
        self._arcs = self._flow.add_arcs_with_capacity(
            tails.astype(np.int32), heads.astype(np.int32), np.zeros(len(tails), np.int64)
        )

    def solve(self, supplies: np.ndarray, capacities: np.ndarray, exponent: int) -> np.ndarray:
        """As of the other class."""
        self._capacities = np.concatenate([supplies.clip(min=0), -supplies.clip(max=0), capacities, capacities])
        self._flow.set_arcs_capacity(self._arcs, self._capacities)
        status = self._flow.solve(self._num_nodes, self._num_nodes + 1)
        if status != self._flow.OPTIMAL:
            raise RuntimeError(f"no maximum flow was found: {status.name}")
        side = np.asarray(self._flow.get_source_side_min_cut())
        labels = np.ones(self._num_nodes, dtype=bool)
        labels[side[side < self._num_nodes]] = False
        return labels

    def residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """As of the other class."""
        flows = np.asarray(self._flow.flows(self._arcs))
        left, ends = self._capacities - flows, 2 * self._num_nodes
        # Flow along an edge in one direction can be sent back.
        return left[:ends].reshape(2, -1), left[ends:].reshape(2, -1) + flows[ends:].reshape(2, -1)[::-1]


def solve_minimum_cut(preferences: np.ndarray, edges: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Labels of the smallest objective of a :class:`CutNetwork`, for many rows.

    :param np.ndarray preferences: Excess of the cost of label 1 over that of label 0, shape ``(N, n)``.
    :param np.ndarray edges: Pairs of different nodes, shape ``(E, 2)``.
    :param np.ndarray weights: Weights of the edges, at least 0, shape ``(N, E)``.
    :return: Labels, booleans of shape ``(N, n)``.
    """
    preferences, weights = _without_excess(preferences, edges, weights)
    if run := compiled_function("optima.ops.maximum_flow", "minimum_cuts"):
        supplies, capacities, _ = _in_units(preferences, weights)
        labels: np.ndarray = run(edges, supplies, capacities)
        return labels
    network = CutNetwork(edges, preferences.shape[1])
    rows = [network.solve(*row) for row in zip(preferences, weights, strict=True)]
    return np.stack(rows) if rows else np.ones(preferences.shape, dtype=bool)


def _without_excess(preferences: np.ndarray, edges: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Terms with the same best labels, in which none outweighs all others together by far: units of those that no best
    labels incur would be too large for the others. Arguments as of :func:`solve_minimum_cut`.
    """
    incident = np.zeros(preferences.shape[::-1])
    for ends in edges.T:
        np.add.at(incident, ends, weights.T)
    incident = incident.T
    # Of a node without edges, the sign counts.
    alone = np.sign(preferences) * np.where((incident > 0).any(-1, keepdims=True), incident.max(-1, keepdims=True), 1.0)
    preferences = np.where(incident > 0, preferences.clip(-2 * incident, 2 * incident), alone)
    return preferences, np.minimum(weights, 4 * np.abs(preferences).sum(-1, keepdims=True))


def _in_units(preferences: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whole numbers whose sizes add up to about 2 ** BITS in each row, and the exponents of the rows.

    :param np.ndarray preferences: Shape ``(..., n)``.
    :param np.ndarray weights: Shape ``(..., E)``.
    """
    _, exponents = np.frexp(np.abs(preferences).sum(-1) + 2 * weights.sum(-1))
    shift = (BITS - exponents)[..., None]
    supplies, capacities = (np.rint(np.ldexp(costs, shift)).astype(np.int64) for costs in (preferences, weights))
    return supplies, capacities, exponents
