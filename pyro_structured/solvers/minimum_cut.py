"""Cheapest labellings of a graph's nodes with two labels."""

__all__ = ["solve_minimum_cut"]

import numpy as np

# All capacities of a row add up to about 2 ** BITS units. A capacity of at least 2 ** 53 units is a whole number
# of them, so that only smaller ones are rounded, by half a unit: a labelling found is worse than the best by at most
# (n + E) 2 ** -BITS of the sum of all terms, which is below the rounding error of that sum for n + E < 2 ** 8, and
# below 1e-9 of the largest term for n + E < 2 ** 15.
BITS = 60


def solve_minimum_cut(preferences: np.ndarray, edges: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""Minimises :math:`\sum_i \theta_i y_i + \sum_e w_e [y_{e_1} \ne y_{e_2}]`, as a maximum flow.

    :param np.ndarray preferences: :math:`\theta`, what label 1 costs more than label 0, shape ``(N, n)``.
    :param np.ndarray edges: Pairs of different nodes, shape ``(E, 2)``.
    :param np.ndarray weights: w, at least 0, shape ``(N, E)``.
    :return: Labels, booleans of shape ``(N, n)``.
    """
    from ortools.graph.python.max_flow import SimpleMaxFlow

    num_nodes = preferences.shape[1]
    source, sink, nodes = num_nodes, num_nodes + 1, np.arange(num_nodes)
    # Nodes on the side of the source have label 0.
    tails = np.concatenate([np.full(num_nodes, source), nodes, edges[:, 0], edges[:, 1]])
    heads = np.concatenate([nodes, np.full(num_nodes, sink), edges[:, 1], edges[:, 0]])
    flow = SimpleMaxFlow()
    arcs = flow.add_arcs_with_capacity(tails.astype(np.int32), heads.astype(np.int32), np.zeros(len(tails), np.int64))
    labels = np.ones(preferences.shape, dtype=bool)
    for theta, weight, label in zip(preferences, weights, labels, strict=True):
        costs = np.concatenate([theta.clip(min=0), (-theta).clip(min=0), weight, weight])
        _, exponent = np.frexp(costs.sum())
        flow.set_arcs_capacity(arcs, np.rint(np.ldexp(costs, BITS - exponent)).astype(np.int64))
        if (status := flow.solve(source, sink)) != flow.OPTIMAL:
            raise RuntimeError(f"no maximum flow was found: {status.name}")
        side = np.asarray(flow.get_source_side_min_cut())
        label[side[side < num_nodes]] = False
    return labels
