"""Tables of a junction tree from rows of which entries may be missing."""

__all__ = [
    "TreeRows",
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

import numpy as np
import torch
from torch import Tensor

from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.junction_trees.ops.clique_tables import count_cliques, log_conditionals
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

# Numbers of the beliefs of the rows that are held at once.
HELD_AT_ONCE = 2**24


class TreeRows:
    """Rows as what the tables of a junction tree are learned from, again and again, with other weights.

    Where nothing is missing, the entries of the tables that the rows have are looked up once: a byte for each row and
    clique of up to 256 states, two or four for more.

    :param CategoricalRows rows: The data.
    :param CliqueTree tree: The cliques.
    """

    def __init__(self, rows: CategoricalRows, tree: CliqueTree) -> None:
        self.rows, self.tree = rows, tree

    @cached_property
    def _entries(self) -> list[np.ndarray]:
        """Entries of each clique's table that the rows have."""
        found = []
        for clique, size in zip(self.tree.cliques, self.tree.table_sizes, strict=True):
            entries = np.zeros(len(self.rows.weights), dtype=np.int64)
            for d in clique:
                entries *= self.tree.cardinalities[d]
                entries += self.rows.values[d]
            # Memory is what limits how fast they are read again.
            found.append(entries.astype(np.min_scalar_type(size - 1)))
        return found

    def log_probs(self, distribution: JunctionTree) -> np.ndarray:
        """Log-probabilities of the rows' observed entries, of a distribution whose tables are conditional ones."""
        if not self.rows.is_complete:
            return log_probs_of_codes(distribution, self.rows.values.T)
        found = np.zeros(len(self.rows.weights))
        tables = distribution.clique_logits.split(self.tree.table_sizes)
        # One clique after the other: rows times cliques would be many numbers.
        for table, entries in zip(tables, self._entries, strict=True):
            found += table.numpy().take(entries)
        return found

    def counts(self, weights: np.ndarray) -> Tensor:
        """Numbers of the joint states of all cliques, packed, where nothing is missing.

        :param np.ndarray weights: Weights of the rows, shape ``(R,)``.
        """
        each = zip(self._entries, self.tree.table_sizes, strict=True)
        return torch.from_numpy(np.concatenate([np.bincount(entries, weights, size) for entries, size in each]))

    def beliefs(self, distribution: JunctionTree, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Log-probabilities of the rows' observed entries, and probabilities of the cliques' states given them.

        :param JunctionTree distribution: Its tables are conditional ones.
        :param int size: Numbers that are held for each row: there are as many rows in a pair as memory allows.
        """
        for value, observed in parts_of_codes(self.rows.values.T, size):
            given = distribution.condition(value, observed)
            # In this order, the log-probabilities come with the marginals.
            marginals = given.clique_marginals
            yield given.log_partition_function, marginals

    def tables(self, counts: Tensor, prior: Tensor) -> JunctionTree:
        """The most probable tables.

        :param Tensor counts: Numbers, or expected ones, of the joint states of all cliques.
        :param Tensor prior: Pseudo-observations of them.
        """
        return JunctionTree(log_conditionals(self.tree.plan, counts + prior), self.tree)


def pseudo_counts(tree: CliqueTree, number: float, singles: Sequence[np.ndarray] | None = None) -> Tensor:
    """Pseudo-observations of the joint states of all cliques, as if the variables were independent.

    Tables of cliques that overlap agree.

    :param CliqueTree tree: The cliques.
    :param float number: How many there are.
    :param singles: Probabilities of the states of each variable; ``None``: all alike.
    """
    if singles is None:
        singles = [np.full(size, 1 / size) for size in tree.cardinalities]
    tables = [reduce(np.multiply.outer, [singles[d] for d in clique]).ravel() for clique in tree.cliques]
    return torch.from_numpy(number * np.concatenate(tables))


def even_shares(rows: CategoricalRows) -> list[np.ndarray]:
    """Probabilities of the states of each variable, all alike; that for values to come is one among so many as rows."""
    found = []
    for size, known in zip(rows.cardinalities, rows.known.cardinalities, strict=True):
        rare = 1 / (rows.total + size)
        found.append(np.where(np.arange(size) < known, (1 - rare * (size - known)) / known, rare))
    return found


def without_rare_states(distribution: JunctionTree, known: Sequence[int]) -> JunctionTree:
    """The distribution given that all variables are in one of so many first states; its tables are not conditional."""
    tree, logits = distribution.tree, distribution.clique_logits.clone()
    for clique, table in zip(tree.cliques, tree.split(logits), strict=True):
        for axis, d in enumerate(clique):
            table.narrow(axis, known[d], tree.cardinalities[d] - known[d]).fill_(-torch.inf)
    return JunctionTree(logits, tree)


def fit_tree_tables(
    rows: CategoricalRows,
    tree: CliqueTree,
    smoothing: float,
    max_iter: int = 100,
    tol: float = 1e-6,
    singles: Sequence[np.ndarray] | None = None,
) -> tuple[JunctionTree, list[float]]:
    """The last of :func:`improve_tree_tables`."""
    (last,) = deque(improve_tree_tables(rows, tree, smoothing, max_iter, tol, singles), maxlen=1)
    return last


def improve_tree_tables(
    rows: CategoricalRows,
    tree: CliqueTree,
    smoothing: float,
    max_iter: int,
    tol: float = 1e-6,
    singles: Sequence[np.ndarray] | None = None,
) -> Iterator[tuple[JunctionTree, list[float]]]:
    """The most probable tables under a Dirichlet prior on the joint states.

    In closed form where nothing is missing; otherwise by expectation maximisation, from independent variables and the
    complete rows.

    :param CategoricalRows rows: The data.
    :param CliqueTree tree: The cliques.
    :param float smoothing: Pseudo-observations of the prior, at least 0.
    :param int max_iter: Largest number of iterations.
    :param float tol: Nats per row: a smaller increase of the objective ends the iterations.
    :param singles: Shares of single states in the prior, as :func:`pseudo_counts` takes them; ``None``:
        :func:`even_shares`.
    :return: After every iteration, and before the first, the distribution, in float64, and the objective at the start
        of every iteration: the log-likelihood of the observed entries and the prior's, over the number of rows. It
        never falls.
    """
    prior = pseudo_counts(tree, smoothing, even_shares(rows) if singles is None else singles)
    entries = TreeRows(rows, tree)
    if rows.is_complete:
        yield entries.tables(entries.counts(rows.weights), prior), []
        return
    found = _start(rows, tree)
    objectives: list[float] = []
    yield found, objectives
    for _ in range(max_iter):
        log_likelihood, counts = _expectation(entries, found)
        objectives.append((log_likelihood + log_prior(found, prior)) / rows.total)
        if len(objectives) > 1 and objectives[-1] - objectives[-2] < tol:
            return
        found = entries.tables(counts, prior)
        yield found, objectives


def _expectation(entries: TreeRows, distribution: JunctionTree) -> tuple[float, Tensor]:
    """Log-likelihood, and expected numbers of the joint states of all cliques."""
    log_likelihood, counts, start = 0.0, torch.zeros_like(distribution.clique_logits), 0
    for log_probs, marginals in entries.beliefs(distribution, entries.tree.table_size):
        weights = torch.from_numpy(entries.rows.weights[start : start + len(log_probs)])
        log_likelihood += float(weights @ log_probs)
        counts += weights @ marginals
        start += len(log_probs)
    return log_likelihood, counts


def _start(rows: CategoricalRows, tree: CliqueTree) -> JunctionTree:
    """Tables of the complete rows and of one more, of independent variables: nothing is impossible."""
    singles = [rows.counts([d]) + 1.0 for d in range(tree.num_variables)]
    one = pseudo_counts(tree, 1.0, [counts / counts.sum() for counts in singles])
    complete = rows.observed.all(0)
    values, weights = torch.from_numpy(rows.values.T[complete]), torch.from_numpy(rows.weights[complete])
    return JunctionTree(log_conditionals(tree.plan, count_cliques(tree.plan, values, weights) + one), tree)


def log_prior(distribution: JunctionTree, prior: Tensor) -> float:
    """Log-probability of pseudo-observations, under a distribution whose tables are conditional ones."""
    # Without any, tables may say that something is impossible.
    return float(torch.where(prior > 0, prior * distribution.clique_logits, 0.0).sum())


def log_probs_of_codes(distribution: JunctionTree, codes: np.ndarray) -> np.ndarray:
    """Log-probabilities of rows of states, shape ``(N, n)``, -1 where one is missing."""
    found = []
    for values, observed in parts_of_codes(codes, distribution.tree.table_size):
        if bool(observed.all()):
            found.append(distribution.log_prob(values))
        else:
            found.append(distribution.marginal_log_prob(values, observed))
    return torch.cat(found).numpy()


def parts_of_codes(codes: np.ndarray, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Values and what is observed, as many rows at once as memory allows, for so many numbers for each of them."""
    for part in torch.from_numpy(codes).split(max(1, HELD_AT_ONCE // size)):
        yield part.clamp(min=0), part >= 0
