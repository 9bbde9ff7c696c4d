"""Tables of a junction tree from rows of which entries may be missing."""

__all__ = ["fit_tree_tables"]

import math

import torch
from torch import Tensor

from pyro_structured.distributions import JunctionTree
from pyro_structured.ops.categorical_rows import CategoricalRows
from pyro_structured.ops.clique_tables import count_cliques, log_conditionals
from pyro_structured.structures import CliqueTree

# Numbers of the beliefs of the rows that are held at once.
HELD_AT_ONCE = 2**24


def fit_tree_tables(
    rows: CategoricalRows, tree: CliqueTree, smoothing: float, max_iter: int = 100, tol: float = 1e-6
) -> tuple[JunctionTree, list[float]]:
    """The most probable tables under a Dirichlet prior on the joint states, as of ``JunctionTree.from_data``.

    In closed form where nothing is missing; otherwise by expectation maximisation, from independent variables and the
    complete rows.

    :param CategoricalRows rows: The data.
    :param CliqueTree tree: The cliques.
    :param float smoothing: Pseudo-observations of the prior, at least 0.
    :param int max_iter: Largest number of iterations.
    :param float tol: Nats per row: a smaller increase of the objective ends the iterations.
    :return: The distribution, in float64, and the objective at the start of every iteration: the log-likelihood of the
        observed entries and the prior's, over the number of rows. It never falls.
    """
    values, observed, weights = (torch.from_numpy(part) for part in (rows.values.T, rows.observed.T, rows.weights))
    if rows.is_complete:
        return JunctionTree.from_data(values, tree, smoothing, weights), []
    prior = torch.cat([torch.full((size,), smoothing / size, dtype=torch.double) for size in tree.table_sizes])
    found = _start(rows, tree)
    objectives: list[float] = []
    for _ in range(max_iter):
        counts, log_likelihood = _expected_counts(found, values, observed, weights)
        objective = log_likelihood + _log_prior(found, smoothing)
        objectives.append(objective / rows.total)
        if len(objectives) > 1 and objectives[-1] - objectives[-2] < tol:
            break
        found = JunctionTree(log_conditionals(tree.plan, counts + prior), tree)
    return found, objectives


def _start(rows: CategoricalRows, tree: CliqueTree) -> JunctionTree:
    """From the complete rows, and one more, of independent variables: nothing is impossible."""
    singles = [torch.from_numpy(rows.counts([d]) + 1.0) for d in range(tree.num_variables)]
    factors = [([d], (counts / counts.sum()).log()) for d, counts in enumerate(singles)]
    independent = JunctionTree.from_factors(factors, tree.cardinalities, tree)
    complete = rows.observed.all(0)
    values, weights = torch.from_numpy(rows.values.T[complete]), torch.from_numpy(rows.weights[complete])
    counts = count_cliques(tree.plan, values, weights) + independent.clique_marginals
    return JunctionTree(log_conditionals(tree.plan, counts), tree)


def _expected_counts(
    distribution: JunctionTree, values: Tensor, observed: Tensor, weights: Tensor
) -> tuple[Tensor, float]:
    """Of the joint states of all cliques, and the log-likelihood of what is observed."""
    counts, log_likelihood = torch.zeros_like(distribution.clique_logits), 0.0
    size = max(1, HELD_AT_ONCE // distribution.tree.table_size)
    for some, known, share in zip(values.split(size), observed.split(size), weights.split(size), strict=True):
        given = distribution.condition(some.clamp(min=0), known)
        counts += share @ given.clique_marginals
        log_likelihood += float(share @ given.log_partition_function)
    return counts, log_likelihood - float(weights.sum() * distribution.log_partition_function)


def _log_prior(distribution: JunctionTree, smoothing: float) -> float:
    """Pseudo-observations times the mean log-probability of all joint states."""
    if not smoothing:
        return 0.0
    means = [table.mean() for table in distribution.clique_logits.split(distribution.tree.table_sizes)]
    return smoothing * math.fsum(float(mean) for mean in means)
