"""Tables of a junction tree from rows of which entries may be missing."""

__all__ = [
    "TreeDensity",
    "TreeRows",
    "clique_counts",
    "even_shares",
    "fit_tree_tables",
    "improve_tree_tables",
    "log_prior",
    "log_probs_of_codes",
    "parts_of_codes",
    "pseudo_counts",
    "without_rare_states",
]

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.ops.process_sums import summed
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.junction_trees.ops.clique_tables import count_cliques, log_conditionals
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

Vector = TypeVar("Vector", bound=CategoricalVector)
# Numbers in one batch of beliefs of rows.
HELD_AT_ONCE = 2**24


class TreeDensity(Protocol):
    """Distribution of codes, with a tree that says how many numbers it holds for each row."""

    tree: Any

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities of rows."""

    def marginal_log_prob(self, value: Tensor, observed: Tensor) -> Tensor:
        """Log-probabilities of the observed entries of rows."""


class TreeRows:
    """Rows from which the tables of a junction tree are learned repeatedly, with changing weights.

    Where nothing is missing, the entries of the tables that the rows have are looked up once: a byte for each row and
    clique of up to 256 states, two or four for more.

    :param CategoricalRows rows: The data.
    :param CliqueTree tree: The cliques.
    """

    def __init__(self, rows: CategoricalRows, tree: CliqueTree) -> None:
        self.rows, self.tree = rows, tree

    @cached_property
    def _entries(self) -> list[np.ndarray]:
        """Indices of the rows' entries in the table of each clique, each of shape ``(R,)``."""
        return [self.rows.joint_states(clique) for clique in self.tree.cliques]

    def density(self, distribution: JunctionTree) -> TreeDensity:
        """Distribution of codes with some tables: the tables' own."""
        return distribution

    def log_probs(self, distribution: JunctionTree) -> np.ndarray:
        """Log-probabilities of the rows' observed entries, shape ``(R,)``, under a distribution whose tables are
        conditional log-probabilities.
        """
        if not self.rows.is_complete:
            return log_probs_of_codes(distribution, self.rows.values.T)
        log_probs = np.zeros(len(self.rows.weights))
        tables = distribution.clique_logits.split(self.tree.table_sizes)
        # One clique after the other: rows times cliques would be many numbers.
        for table, entries in zip(tables, self._entries, strict=True):
            log_probs += table.numpy().take(entries)
        return log_probs

    @cached_property
    def own_counts(self) -> Tensor:
        """Counts of the joint states of all cliques, packed, with the rows' own weights, where no entry is missing."""
        return torch.from_numpy(np.concatenate(self.rows.counts_of_all(self.tree.cliques)))

    def counts(self, weights: np.ndarray) -> Tensor:
        """Weighted counts of the joint states of all cliques, packed, where no entry is missing.

        :param np.ndarray weights: Weights of the rows, shape ``(R,)``.
        """
        columns = zip(self._entries, self.tree.table_sizes, strict=True)
        return torch.from_numpy(np.concatenate([np.bincount(entries, weights, size) for entries, size in columns]))

    def beliefs(self, distribution: JunctionTree, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Log-probabilities of the rows' observed entries, and probabilities of the cliques' states given these
        entries, in batches of rows.

        :param JunctionTree distribution: Distribution whose tables are conditional log-probabilities.
        :param int size: Number of values that are held for each row, which limits the size of batches.
        """
        for value, observed in parts_of_codes(self.rows.values.T, size):
            given = distribution.condition(value, observed)
            # In this order, the log-probabilities come with the marginals.
            marginals = given.clique_marginals
            yield given.log_partition_function, marginals

    def tables(self, counts: Tensor, prior: Tensor) -> JunctionTree:
        """Most probable tables, as a distribution.

        :param Tensor counts: Counts, or expected counts, of the joint states of all cliques, shape ``(table_size,)``.
        :param Tensor prior: Pseudo-observations of the joint states, shape ``(table_size,)``.
        """
        return JunctionTree(log_conditionals(self.tree.plan, counts + prior), self.tree)


def pseudo_counts(tree: CliqueTree, number: float, singles: Sequence[np.ndarray] | None = None) -> Tensor:
    """Pseudo-observations of the joint states of all cliques, as if the variables were independent.

    Tables of cliques that overlap agree.

    :param CliqueTree tree: The cliques.
    :param float number: Number of pseudo-observations.
    :param singles: Probabilities of the states of each variable; ``None``: all alike.
    """
    if singles is None:
        singles = [np.full(size, 1 / size) for size in tree.cardinalities]
    tables = [reduce(np.multiply.outer, [singles[d] for d in clique]).ravel() for clique in tree.cliques]
    return torch.from_numpy(number * np.concatenate(tables))


def even_shares(cardinalities: Sequence[int], known: Sequence[int], total: float) -> list[np.ndarray]:
    """Probabilities of the states of each variable: 1 / (N + r) for each state for values to come, with N rows and r
    states, and equal shares of the rest for all others.

    :param cardinalities: Numbers of states of the variables.
    :param known: Numbers of the first states of the variables, those of values that are known.
    :param float total: Number of rows.
    """
    shares = []
    for size, first in zip(cardinalities, known, strict=True):
        rare = 1 / (total + size)
        shares.append(np.where(np.arange(size) < first, (1 - rare * (size - first)) / first, rare))
    return shares


def without_rare_states(distribution: Vector, known: Sequence[int], cardinalities: Sequence[int]) -> Vector:
    """Distribution given that all variables are in their first ``known`` states, of ``cardinalities``; tables of
    junction trees are not conditional any more.
    """
    states = torch.arange(max(cardinalities))
    rare = states >= torch.tensor(known).unsqueeze(-1)
    return distribution.reweight(torch.zeros(rare.shape, dtype=torch.double).masked_fill(rare, -torch.inf))


def fit_tree_tables(
    entries: TreeRows,
    smoothing: float,
    max_iter: int = 100,
    tol: float = 1e-6,
    singles: Sequence[np.ndarray] | None = None,
) -> tuple[JunctionTree, list[float]]:
    """Last result of :func:`improve_tree_tables`."""
    (last,) = deque(improve_tree_tables(entries, smoothing, max_iter, tol, singles), maxlen=1)
    return last


def improve_tree_tables(
    entries: TreeRows,
    smoothing: float,
    max_iter: int,
    tol: float = 1e-6,
    singles: Sequence[np.ndarray] | None = None,
) -> Iterator[tuple[JunctionTree, list[float]]]:
    """Most probable tables under a Dirichlet prior on the joint states.

    In closed form where nothing is missing; otherwise by expectation maximisation, from independent variables and the
    complete rows.

    :param TreeRows entries: The data, and the cliques.
    :param float smoothing: Pseudo-observations of the prior, at least 0.
    :param int max_iter: Largest number of iterations.
    :param float tol: Nats per row: a smaller increase of the objective ends the iterations.
    :param singles: Probabilities of single states under the prior, as for :func:`pseudo_counts`; ``None``:
        :func:`even_shares`.
    :return: After every iteration, and before the first, the distribution, in float64, and the objective at the start
        of every iteration: the log-likelihood of the observed entries plus that of the prior, divided by the number of
        rows. It never falls.
    """
    rows, tree = entries.rows, entries.tree
    if singles is None:
        singles = even_shares(rows.cardinalities, rows.known.cardinalities, rows.total)
    prior = pseudo_counts(tree, smoothing, singles)
    if rows.is_complete:
        yield entries.tables(entries.own_counts, prior), []
        return
    distribution = _start(rows, tree)
    objectives: list[float] = []
    yield distribution, objectives
    for _ in range(max_iter):
        log_likelihood, counts = _expectation(entries, distribution)
        objectives.append((log_likelihood + log_prior(distribution, prior)) / rows.total)
        if len(objectives) > 1 and objectives[-1] - objectives[-2] < tol:
            return
        distribution = entries.tables(counts, prior)
        yield distribution, objectives


def clique_counts(entries: TreeRows, distribution: JunctionTree) -> Tensor:
    """Counts of the joint states of all cliques, packed; where entries are missing, the expected ones given the others.

    :param JunctionTree distribution: Distribution of the missing entries, whose tables are conditional
        log-probabilities, under which no row's observed entries are impossible.
    """
    return entries.own_counts if entries.rows.is_complete else _expectation(entries, distribution)[1]


def _expectation(entries: TreeRows, distribution: JunctionTree) -> tuple[float, Tensor]:
    """Log-likelihood, and expected counts of the joint states of all cliques, shape ``(table_size,)``, of all rows."""
    log_likelihood, counts, start = 0.0, torch.zeros_like(distribution.clique_logits), 0
    for log_probs, marginals in entries.beliefs(distribution, entries.tree.table_size):
        weights = torch.from_numpy(entries.rows.weights[start : start + len(log_probs)])
        log_likelihood += float(weights @ log_probs)
        counts += weights @ marginals
        start += len(log_probs)
    every = torch.from_numpy(summed(np.append(log_likelihood, counts.numpy())))
    return float(every[0]), every[1:]


def _start(rows: CategoricalRows, tree: CliqueTree) -> JunctionTree:
    """Distribution to start from: tables of the complete rows, and of one more row of independent variables, so that no
    state is impossible.
    """
    singles = [counts + 1.0 for counts in rows.counts_of_all([[d] for d in range(tree.num_variables)])]
    one = pseudo_counts(tree, 1.0, [counts / counts.sum() for counts in singles])
    complete = rows.observed.all(0)
    values, weights = torch.from_numpy(rows.values.T[complete]).long(), torch.from_numpy(rows.weights[complete])
    counts = torch.from_numpy(summed(count_cliques(tree.plan, values, weights).numpy()))
    return JunctionTree(log_conditionals(tree.plan, counts + one), tree)


def log_prior(distribution: JunctionTree, prior: Tensor) -> float:
    """Log-probability of pseudo-observations, under a distribution whose tables are conditional ones."""
    # States without pseudo-observations may have probability 0.
    return float(torch.where(prior > 0, prior * distribution.clique_logits, 0.0).sum())


def log_probs_of_codes(distribution: TreeDensity, codes: np.ndarray) -> np.ndarray:
    """Log-probabilities of rows, shape ``(N,)``.

    :param np.ndarray codes: States, shape ``(N, n)``, -1 where a state is missing.
    """
    batches = []
    for values, observed in parts_of_codes(codes, distribution.tree.table_size):
        if bool(observed.all()):
            batches.append(distribution.log_prob(values))
        else:
            batches.append(distribution.marginal_log_prob(values, observed))
    return torch.cat(batches).numpy()


def parts_of_codes(codes: np.ndarray, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of rows as values and booleans that mark observed ones, shape ``(rows, n)`` each.

    :param int size: Number of values that are held for each row, which limits the size of batches.
    """
    for batch in torch.from_numpy(codes).split(max(1, HELD_AT_ONCE // size)):
        yield batch.long().clamp(min=0), batch >= 0
