"""Thin junction trees and compact Bayesian networks of one bound of their tables, chosen on validation data alone."""

import numpy as np

from benchmarks.junction_trees.ordering_search import fit_network, search_orders
from pyro_structured.junction_trees.models.chordal_search import ChordalScore
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.models import ThinJunctionTree

# Factors of the Bayesian information criterion's penalty, and pseudo-observations.
PENALTIES = (1.0, 0.5, 0.25)
SMOOTHINGS = (1.0, 4.0, 16.0, 64.0)


def learn_thin(method, train, validation, cardinalities, treewidth, polish, seed):
    """A junction tree, by ``ThinJunctionTree``."""
    learner = ThinJunctionTree(
        treewidth=treewidth,
        method=method,
        smoothing=SMOOTHINGS,
        polish=polish,
        categories=[list(range(size)) for size in cardinalities],
        random_state=seed,
    )
    return learner.fit(train, X_val=validation).to_pyro()


def learn_compact(train, validation, cardinalities, max_parents, seed):
    """A Bayesian network by a search over orders."""
    rows, rng, found = CategoricalRows(train, cardinalities), np.random.default_rng(seed), []
    for penalty in PENALTIES:
        parents = search_orders(ChordalScore(rows, penalty), max_parents, rng)
        found += [fit_network(train, cardinalities, parents, smoothing) for smoothing in SMOOTHINGS]
    return max(found, key=lambda network: log_likelihood(network, validation).mean())


def log_likelihood(network, values):
    """Log-probabilities of rows under a Bayesian network."""
    families = ([*above, d] for d, above in enumerate(network.parents))
    return sum(
        np.log(table[tuple(values[:, d] for d in family)])
        for family, table in zip(families, network.tables, strict=True)
    )
