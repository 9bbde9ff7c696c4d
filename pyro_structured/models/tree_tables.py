"""Tables of a junction tree from rows of which entries may be missing."""

__all__ = ["TreeRows", "fit_tree_tables", "log_prior", "log_probs_of_codes", "parts_of_codes"]

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pyro_structured.distributions import JunctionTree
from pyro_structured.ops.categorical_rows import CategoricalRows
from pyro_structured.ops.clique_tables import count_cliques, log_conditionals
from pyro_structured.structures import CliqueTree

# Numbers of the beliefs of the rows that are held at once.
HELD_AT_ONCE = 2**24


class TreeRows:
    """Rows as what the tables of a junction tree are learned from, again and again, with other weights.

    Where nothing is missing, the entries of the tables that the rows have are looked up once: four bytes for each row
    and clique.

    :param CategoricalRows rows: The data.
    :param CliqueTree tree: The cliques.
    """

    def __init__(self, rows: CategoricalRows, tree: CliqueTree) -> None:
        self.rows, self.tree = rows, tree

    @cached_property
    def _entries(self) -> np.ndarray:
        """Shape ``(cliques, R)``."""
        values = torch.from_numpy(self.rows.values.T).split(max(1, HELD_AT_ONCE // self.tree.table_size))
        return np.concatenate([self.tree.plan.table_index(part).T.numpy().astype(np.int32) for part in values], 1)

    @cached_property
    def _codes(self) -> np.ndarray:
        return np.ascontiguousarray(self.rows.values.T)

    def log_probs(self, distribution: JunctionTree) -> np.ndarray:
        """Log-probabilities of the rows' observed entries, of a distribution that :meth:`fit` has found."""
        if not self.rows.is_complete:
            return log_probs_of_codes(distribution, self._codes)
        found: np.ndarray = distribution.clique_logits.numpy()[self._entries].sum(0)
        return found

    def fit(self, weights: np.ndarray, smoothing: float, current: JunctionTree | None = None) -> JunctionTree:
        """Maximises the posterior density of the tables, or increases it by an iteration where entries are missing.

        :param np.ndarray weights: Of the rows, shape ``(R,)``.
        :param float smoothing: Pseudo-observations of the prior, at least 0.
        :param JunctionTree current: The distribution of missing entries.
        """
        prior = torch.cat([torch.full((size,), smoothing / size, dtype=torch.double) for size in self.tree.table_sizes])
        return JunctionTree(log_conditionals(self.tree.plan, self._counts(weights, current) + prior), self.tree)

    def _counts(self, weights: np.ndarray, current: JunctionTree | None) -> Tensor:
        """Expected numbers of the joint states of all cliques."""
        if current is None or self.rows.is_complete:
            entries = self._entries
            return torch.from_numpy(
                np.bincount(entries.ravel(), np.tile(weights, len(entries)), minlength=self.tree.table_size)
            )
        counts, start = torch.zeros_like(current.clique_logits), 0
        known = weights > 0
        shares = torch.from_numpy(weights[known])
        for value, observed in parts_of_codes(self._codes[known], self.tree.table_size):
            share = shares[start : start + len(value)]
            counts += share @ current.condition(value, observed).clique_marginals
            start += len(value)
        return counts


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
    if rows.is_complete:
        values, weights = torch.from_numpy(rows.values.T), torch.from_numpy(rows.weights)
        return JunctionTree.from_data(values, tree, smoothing, weights), []
    entries = TreeRows(rows, tree)
    found = _start(rows, tree)
    objectives: list[float] = []
    for _ in range(max_iter):
        objectives.append((float(rows.weights @ entries.log_probs(found)) + log_prior(found, smoothing)) / rows.total)
        if len(objectives) > 1 and objectives[-1] - objectives[-2] < tol:
            break
        found = entries.fit(rows.weights, smoothing, found)
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


def log_prior(distribution: JunctionTree, smoothing: float) -> float:
    """Pseudo-observations times the mean log-probability of all joint states."""
    if not smoothing:
        return 0.0
    means = [table.mean() for table in distribution.clique_logits.split(distribution.tree.table_sizes)]
    return smoothing * math.fsum(float(mean) for mean in means)


def log_probs_of_codes(distribution: JunctionTree, codes: np.ndarray) -> np.ndarray:
    """Log-probabilities of rows of states, shape ``(N, n)``, -1 where one is missing."""
    found = []
    for values, observed in parts_of_codes(codes, distribution.tree.table_size):
        if bool(observed.all()):
            found.append(distribution.log_prob(values))
        else:
            found.append(distribution.marginal_log_prob(values, observed))
    return torch.cat(found).numpy()


def parts_of_codes(codes: np.ndarray, table_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Values and what is observed, as many rows at once as memory allows."""
    for part in torch.from_numpy(codes).split(max(1, HELD_AT_ONCE // table_size)):
        yield part.clamp(min=0), part >= 0
