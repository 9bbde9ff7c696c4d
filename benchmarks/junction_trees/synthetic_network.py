"""Random Bayesian networks that are not thin, and samples of networks."""

import numpy as np

from pyro_structured.junction_trees.ops.chordal_graph import elimination_order, neighbor_sets, width_of
from pyro_structured.models import BayesianNetwork

KINDS = ("tables", "sharp", "logistic")
SHAPES = {"tables": 0.5, "sharp": 0.1}


def random_network(num_variables, kind, max_parents, widths, rng):
    """Binary variables, each with up to ``max_parents`` parents, drawn evenly from those before it.

    Parents are drawn again until the width of the moral graph, triangulated by min-fill, is in a range.

    :param str kind: ``"tables"``: probabilities are drawn from Beta(1/2, 1/2), one for each state of the parents;
        ``"sharp"``: from Beta(1/10, 1/10), nearly deterministic; both are kept in [0.01, 0.99].
        ``"logistic"``: their logits are sums of the parents' effects, each ±1, times factors from U(1, 3).
    :param widths: The smallest and the largest width.
    """
    while True:
        numbers = [int(rng.integers(1, max_parents + 1)) for _ in range(num_variables)]
        parents = [sorted(rng.permutation(d)[: numbers[d]].tolist()) for d in range(num_variables)]
        if widths[0] <= moral_width(parents) <= widths[1]:
            break
    tables = [random_table(len(above), kind, rng) for above in parents]
    return BayesianNetwork([f"x{d}" for d in range(num_variables)], [("0", "1")] * num_variables, parents, tables)


def moral_width(parents):
    """Width of the graph in which every family is a clique, by min-fill."""
    families = [(*above, d) for d, above in enumerate(parents)]
    neighbors = neighbor_sets(len(parents), [(a, b) for family in families for a in family for b in family])
    return width_of(neighbors, elimination_order(neighbors))


def random_table(num_parents, kind, rng):
    shape = (2,) * num_parents
    if kind in SHAPES:
        ones = rng.beta(SHAPES[kind], SHAPES[kind], shape).clip(0.01, 0.99)
    else:
        effects = rng.uniform(1, 3, num_parents) * rng.choice([-1, 1], num_parents)
        logits = rng.uniform(-1, 1) + (2 * np.moveaxis(np.indices(shape), 0, -1) - 1) @ effects / 2
        ones = 1 / (1 + np.exp(-logits))
    return np.stack([1 - ones, ones], -1)


def draw(network, num_rows, rng):
    """Samples, parents before their children, shape ``(num_rows, n)``."""
    rows = np.zeros((num_rows, len(network.names)), dtype=np.int64)
    for d in network.order:
        cumulative = np.cumsum(network.tables[d][tuple(rows[:, above] for above in network.parents[d])], -1)
        cumulative = np.broadcast_to(cumulative, (num_rows, cumulative.shape[-1]))
        rows[:, d] = (rng.random((num_rows, 1)) * cumulative[:, -1:] > cumulative[:, :-1]).sum(-1)
    return rows
