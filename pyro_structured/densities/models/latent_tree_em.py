"""Expectation maximisation of the tables of a latent tree, by batches of rows."""

__all__ = ["LatentTreeEM", "LatentTreeTables", "center_tree"]

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor

from pyro_structured.densities.ops.latent_tree_passes import (
    evidence_of_states,
    expected_counts,
    is_rough,
    log_weights,
    tree_levels,
)
from pyro_structured.foundation.ops.recorded_function import RecordedFunction
from pyro_structured.foundation.ops.requirements import any_true

# Share of the rows whose latent states are equal along an edge at the start.
EQUAL = 0.9
# Numbers of latent states in one batch of rows.
HELD_AT_ONCE = 2**22


class LatentTreeTables(NamedTuple):
    """Tables of a latent tree, or expected numbers of rows in their entries.

    :ivar Tensor transitions: Of the latent states (last axis) given the parent's, shape ``(n, K, K)``; for the root,
        only the first row is used.
    :ivar Tensor emissions: Of the observed states (last axis) given the latent ones, shape ``(n, K, R)``.
    """

    transitions: Tensor
    emissions: Tensor


class LatentTreeEM:
    r"""Tables of a latent tree, and the counts from which they are learned.

    A step replaces a share :math:`\gamma` of the counts by the expected counts of a batch of rows, scaled to all rows;
    with all rows and :math:`\gamma = 1` it is a step of expectation maximisation, which never lowers the posterior
    density of the tables.

    :param parents: Parent of each variable, the root its own.
    :param int num_states: Number K of latent states of each variable.
    :param Tensor frequencies: Frequencies of the observed states in all data, 0 for those that a variable does not
        have, shape ``(n, R)``.
    :param float total: Number of rows, or the sum of their weights.
    :param smoothing: Pseudo-observations: numbers of rows that are spread evenly over the pairs of latent states of
        neighbours, and of rows, distributed like all data, that are added to those of every latent state.
    :param torch.device device: Device of the tables.
    :param torch.dtype dtype: Precision of the tables.
    :ivar float total: Number of rows for which the counts stand.
    :ivar int num_steps: Number of steps so far.
    """

    def __init__(
        self,
        parents: Sequence[int],
        num_states: int,
        frequencies: Tensor,
        total: float,
        smoothing: tuple[float, float],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        levels = tree_levels(parents)
        # Variables are renumbered, so that passes need not look for their places.
        self.order = levels.order.tolist()
        places = levels.places.tolist()
        self.levels = tree_levels([places[parents[v]] for v in self.order]).to(device)
        self.num_states, self.total, self.smoothing, self.num_steps = num_states, total, smoothing, 0
        self.frequencies = frequencies[self.order].to(device, dtype)
        self._places = places
        shape = len(places), num_states, num_states
        likely = self.frequencies.new_zeros(shape)
        seen = self.frequencies.new_zeros(*shape[:2], frequencies.shape[-1])
        # The tensors stay where they are, because recordings read and write them.
        self.counts = LatentTreeTables(likely, seen)
        self.tables = LatentTreeTables(*map(torch.empty_like, self.counts))
        self._step, self._scores = RecordedFunction(self._advance), RecordedFunction(self._score)

    def read(self, codes: np.ndarray) -> Tensor:
        """Rows for the other methods, in a small type, from states of shape ``(N, n)``, -1 where one is missing."""
        missing = self.frequencies.shape[-1]
        states = np.where(codes < 0, np.int64(missing), codes)[:, self.order]
        states = states.astype(np.uint8 if missing < 256 else np.int32)
        return torch.from_numpy(states).to(self.frequencies.device)

    def start(self, rows: Tensor, weights: Tensor, clusters: Tensor, noise: Tensor) -> None:
        """Counts of rows whose latent states are all their clusters, for nine of ten rows, and random for the rest.

        :param Tensor rows: Rows of :meth:`read`, shape ``(N, n)``.
        :param Tensor weights: Weights of the rows, shape ``(N,)``.
        :param Tensor clusters: Integers below K, shape ``(N,)``.
        :param Tensor noise: Positive random numbers of mean 1, shape ``(n, K, K)``.
        """
        sizes = weights.new_zeros(self.num_states).index_add(0, clusters, weights)
        likely = EQUAL * sizes.diag() + (1 - EQUAL) * sizes.outer(sizes / self.total) * noise
        # The root has no parent, and so a single row.
        likely[0] = 0.0
        likely[0, 0] = sizes
        observed = torch.zeros_like(self.frequencies).unsqueeze(1).repeat(1, self.num_states, 1)
        for part in torch.arange(len(rows), device=rows.device).split(self._rows_at_once):
            member = torch.nn.functional.one_hot(clusters[part], self.num_states).to(weights)
            states = (member * weights[part].unsqueeze(-1)).expand(rows.shape[1], -1, -1)
            observed += self._observed(rows[part], states)
        self.load(LatentTreeTables(likely, observed))

    def _observed(self, rows: Tensor, states: Tensor) -> Tensor:
        """Expected numbers of observed states given the latent ones, shape ``(n, K, R)``.

        :param Tensor states: Expected numbers of the latent states, shape ``(n, N, K)``.
        """
        number, size = self.frequencies.shape
        places = torch.arange(number, device=rows.device).unsqueeze(-1) * (size + 1) + rows.mT
        table = states.new_zeros(number * (size + 1), self.num_states)
        table = table.index_add_(0, places.flatten(), states.flatten(0, 1))
        return table.reshape(number, size + 1, self.num_states)[:, :size].mT

    def maximize(self) -> None:
        """Most probable tables for the counts."""
        for table, new in zip(self.tables, self._most_probable(self.counts), strict=True):
            table.copy_(new)

    def _most_probable(self, counts: Sequence[Tensor]) -> list[Tensor]:
        even, alike = self._priors
        sums = counts[0] + even, counts[1] + alike
        return [(table / table.sum(-1, keepdim=True)).log() for table in sums]

    @property
    def _priors(self) -> tuple[float, Tensor]:
        """Pseudo-observations of the entries of both tables."""
        even, alike = self.smoothing
        return even / self.num_states**2, alike * self.frequencies.unsqueeze(1)

    def extend(self, number: float) -> None:
        """Scales the counts to so many rows more."""
        for counts in self.counts:
            counts *= 1 + number / self.total
        self.total += number

    def step(self, rows: Tensor, weights: Tensor, scale: float, share: float) -> None:
        """Replaces a share of the counts by those of some rows, and learns the tables anew.

        :param Tensor rows: Rows of :meth:`read`, shape ``(N, n)``.
        :param Tensor weights: Weights of these rows, shape ``(N,)``.
        :param float scale: Number of all rows for each of these.
        :param float share: The share, above 0 and up to 1.
        """
        arguments = rows, weights, self.frequencies.new_tensor([1 - share, scale * share])
        if any_true(*self._step(*arguments)):
            self._advance(*arguments, exact=True)
        self.num_steps += 1

    def _advance(self, rows: Tensor, weights: Tensor, factors: Tensor, exact: bool = False) -> tuple[Tensor]:
        """A step; nothing is replaced if the results may be wrong, which is returned.

        :param Tensor factors: Factors of the counts so far, and of those of the rows, shape ``(2,)``.
        :param bool exact: Whether to sum term by term; then results are good.
        """
        evidence = evidence_of_states(self.tables.emissions[None], rows.mT[None])
        arguments = self.tables.transitions[None], evidence, self.levels, weights
        pairs, single, least = expected_counts(*arguments, exact)
        rough = is_rough(least).any()
        both = zip(self.counts, (pairs, self._observed(rows, single)), strict=True)
        counts = [old * factors[0] + new * factors[1] for old, new in both]
        found = *counts, *self._most_probable(counts)
        is_kept = rough & (not exact)
        for old, new in zip((*self.counts, *self.tables), found, strict=True):
            old.copy_(torch.where(is_kept, old, new))
        return (rough,)

    def log_probs(self, rows: Tensor) -> Tensor:
        """Log-probabilities of rows of :meth:`read`, shape ``(N,)``."""
        scores = []
        for part in rows.split(self._rows_at_once):
            found, rough = self._scores(part)
            scores.append(self._score(part, exact=True)[0] if any_true(rough) else found)
        return torch.cat(scores)

    @torch.no_grad()
    def _score(self, rows: Tensor, exact: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities of rows, and whether they may be wrong."""
        evidence = evidence_of_states(self.tables.emissions[None], rows.mT[None])
        found, least = log_weights(self.tables.transitions[None], evidence, self.levels, exact)
        return found[0], is_rough(least).any()

    @property
    def _rows_at_once(self) -> int:
        return max(1, HELD_AT_ONCE // (len(self.order) * self.num_states))

    def log_prior(self) -> float:
        """Logarithm of the prior density of the tables, up to a constant."""
        even, alike = self._priors
        terms = self.tables.transitions * even, self.tables.emissions * alike
        transitions, emissions = (term.masked_fill(term.isnan(), 0.0) for term in terms)
        return float(transitions[0, 0].sum() + transitions[1:].sum() + emissions.sum())

    def state(self) -> LatentTreeTables:
        """Copies of the counts, for :meth:`load`."""
        return LatentTreeTables(*(table.clone() for table in self.counts))

    def load(self, counts: LatentTreeTables) -> None:
        """Restores counts, and learns the tables anew."""
        for table, new in zip(self.counts, counts, strict=True):
            table.copy_(new)
        self.maximize()

    def logits(self) -> tuple[Tensor, Tensor]:
        """Tables of the variables in their own order, in double precision on the processor."""
        transitions, emissions = (table[self._places].double().cpu() for table in self.tables)
        return transitions, emissions


def center_tree(information: np.ndarray) -> list[int]:
    """Parents of the variables in the tree of largest information, whose root, its own parent, is in the middle.

    :param np.ndarray information: Mutual information of all pairs of variables, at least 0, shape ``(n, n)``.

    Example::

        >>> center_tree(np.array([[0, 3, 2, 1], [3, 0, 3, 1], [2, 3, 0, 2], [1, 1, 2, 0]]))
        [1, 2, 2, 2]
    """
    # Lengths above 0, because edges of length 0 count as none.
    lengths = information.max() + 1 - information
    np.fill_diagonal(lengths, 0.0)
    tree = minimum_spanning_tree(lengths)
    tree = (tree + tree.T).tocsr()

    def path(start: int) -> list[int]:
        """Path from a variable to one that is furthest from it."""
        order, before = breadth_first_order(tree, start, directed=False)
        steps = [int(order[-1])]
        while steps[-1] != start:
            steps.append(int(before[steps[-1]]))
        return steps

    # The middle of the longest path, at whose end the furthest variable from anywhere is.
    longest = path(path(0)[0])
    root = longest[len(longest) // 2]
    _, parents = breadth_first_order(tree, root, directed=False)
    parents[root] = root
    return [int(parent) for parent in parents]
