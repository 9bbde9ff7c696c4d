"""Structural expectation maximisation for mixtures of partitions into exchangeable blocks (Algorithm 1)."""

__all__ = ["STRUCTURES", "Phase", "StructuralEM"]

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from pyro_structured.exchangeable.models.block_mixture import BlockMixture
from pyro_structured.exchangeable.models.merge_partition import (
    ENOUGH_ROWS,
    NEGLIGIBLE,
    merge_labels,
    merge_rows,
    telling_rows,
)
from pyro_structured.exchangeable.models.welch_partition import welch_partition
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows, Matrix
from pyro_structured.exchangeable.ops.expectation_maximization import (
    BlockStatistics,
    accumulate,
    expect,
    fill_gaps,
    maximize,
)
from pyro_structured.exchangeable.ops.packed_counts import PackedCounts
from pyro_structured.exchangeable.ops.shared_rows import SharedRows
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.ops.process_sums import each, is_shared, rank_and_number, summed
from pyro_structured.foundation.ops.progress import progress_bar

# Gain that a phase with merged blocks needs, in units of the gain that an iteration needs.
WORTHWHILE = 10
STRUCTURES = ("merge", "welch+merge", "welch", "independent")


class Phase(NamedTuple):
    """Result of a phase of :class:`StructuralEM`.

    :ivar BlockMixture mixture: The mixture.
    :ivar float log_likelihood: Log-likelihood of the training rows, of all processes that learn together.
    :ivar int num_iterations: Number of iterations since the start.
    :ivar BlockMixture previous: The mixture before the last iteration, from which a run can go on.
    :ivar bool converged: Whether there were enough iterations.
    """

    mixture: BlockMixture
    log_likelihood: float
    num_iterations: int
    previous: BlockMixture
    converged: bool = True


@dataclass(frozen=True)
class _State:
    """A mixture, and the result of its E-step for the training rows."""

    mixture: BlockMixture
    posterior: np.ndarray
    log_likelihood: float
    statistics: BlockStatistics

    @property
    def objective(self) -> float:
        """Log-likelihood plus the logarithm of the prior that the smoothing amounts to."""
        return self.log_likelihood + self.mixture.parameters.log_prior


class StructuralEM:
    """Alternates the steps for parameters with steps for the structure, which are taken only if they are better.

    Where processes learn together, all take the same steps, each with some of the rows; classes whose blocks are merged
    are dealt to them.

    :param BinaryRows rows: The training rows.
    :param str structure: Method to find blocks: ``"welch"`` in every iteration, ``"merge"`` and ``"welch+merge"``
        whenever the parameters have settled, ``"independent"`` never.
    :param float smoothing: Number added to all counts.
    :param float tol: Nats per row; a smaller increase of the objective ends a phase.
    :param int max_iter: Largest number of iterations.
    :param np.ndarray allowed: One for the classes that a row can be of, zero for the others, shape ``(K, R)``.
    :param SharedRows shared: The rows among those of all processes; needed only where these learn together.
    :param welch: Level, linkage and correction of Welch's tests.
    """

    def __init__(
        self,
        rows: BinaryRows,
        structure: str,
        smoothing: float,
        tol: float,
        max_iter: int,
        allowed: np.ndarray | None = None,
        shared: SharedRows | None = None,
        **welch: Any,
    ) -> None:
        self.rows, self.structure, self.smoothing, self.shared = rows, structure, smoothing, shared
        self.smallest, self.max_iter = tol * each(float(rows.weights.sum())).sum(), max_iter
        self.welch = welch
        with np.errstate(divide="ignore"):
            self.log_allowed = None if allowed is None else np.log(allowed)
        self.largest_gap = int(each(rows.largest_gap).max())

    def run(self, start: np.ndarray | Phase, rng: np.random.Generator) -> Iterator[Phase]:
        """Yields mixtures whose parameters have settled, one after each change of the structure.

        :param start: Probabilities of the classes to start from, shape ``(K, R)``; or the first phase of a run that was
            not continued, which comes again.
        :return: The last mixture has the largest objective. An interrupt from the keyboard is raised after the
            mixture of the last iteration.
        """
        if isinstance(start, Phase):
            state, done = self._evaluate(start.previous), start.num_iterations - start.converged
        else:
            state, done = self._begin(start, rng), 0
        iteration, tried, reached = done, None, -np.inf
        try:
            for iteration in progress_bar(range(done, self.max_iter), desc="EM", unit="iteration"):
                best = self._advance(state)
                settled = best.objective - state.objective < self.smallest
                if settled:
                    yield Phase(best.mixture, best.log_likelihood, iteration + 1, state.mixture)
                    if "merge" in self.structure and best.objective - reached < WORTHWHILE * self.smallest:
                        return
                    reached = best.objective
                # Blocks depend on the classes' probabilities alone, which never change where all classes are known.
                looking = self.structure == "welch" or ("merge" in self.structure and settled)
                if looking and (tried is None or self._differ(tried, state.posterior)):
                    tried = state.posterior
                    changed = self._start(self._labels(state, rng), state.posterior)
                    best = max(best, changed, key=lambda candidate: candidate.objective)
                if best.objective - state.objective < self.smallest:
                    return
                state = best
        except KeyboardInterrupt:
            yield Phase(state.mixture, state.log_likelihood, iteration, state.mixture)
            raise
        yield Phase(state.mixture, state.log_likelihood, self.max_iter, state.mixture, converged=False)

    @staticmethod
    def _differ(first: np.ndarray, second: np.ndarray) -> bool:
        """Whether probabilities of the classes are others for any row."""
        return bool(each(not np.array_equal(first, second)).any())

    def _begin(self, posterior: np.ndarray, rng: np.random.Generator) -> _State:
        state = self._start(self._single_labels(len(posterior)), posterior)
        return self._start(self._labels(state, rng), posterior) if "welch" in self.structure else state

    def _start(self, labels: np.ndarray, posterior: np.ndarray) -> _State:
        """State with the best parameters for a structure and probabilities of the classes."""
        counts = PackedCounts(labels, self.largest_gap)
        statistics = accumulate(counts, self.rows, posterior)
        return self._evaluate(BlockMixture(counts, maximize(counts, statistics, self.smoothing)))

    def _advance(self, state: _State) -> _State:
        counts, parameters = state.mixture.counts, state.mixture.parameters
        return self._evaluate(BlockMixture(counts, maximize(counts, state.statistics, self.smoothing, parameters)))

    def _evaluate(self, mixture: BlockMixture) -> _State:
        return _State(mixture, *expect(mixture.counts, mixture.parameters, self.rows, self.log_allowed))

    def _labels(self, state: _State, rng: np.random.Generator) -> np.ndarray:
        """Labels of the blocks for the present probabilities of the classes, shape ``(K, n)``."""
        labels = self._welch_labels(state) if "welch" in self.structure else self._single_labels(len(state.posterior))
        if "merge" not in self.structure:
            return labels
        if is_shared():
            return self._merged_together(state, labels, rng)
        weights, mixture = state.posterior * self.rows.weights, state.mixture
        filled = (fill_gaps(mixture.counts, mixture.parameters, self.rows, k, rng) for k in range(len(weights)))
        classes = zip(filled, weights, labels, strict=True)
        shown = progress_bar(classes, desc="blocks", unit="class", total=len(weights))
        return np.stack([merge_labels(*arguments) for arguments in shown])

    def _merged_together(self, state: _State, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Labels of blocks that are merged by the rows of all processes; each merges those of some classes."""
        assert self.shared is not None
        mixture, (rank, number) = state.mixture, rank_and_number()
        every = self._all_rows if self.shared.number <= ENOUGH_ROWS else None
        merged = np.where(np.arange(len(labels))[:, None] % number == rank, labels, 0)
        own: list[tuple[int, Matrix, np.ndarray]] = []
        for k in progress_bar(range(len(labels)), desc="blocks", unit="class"):
            weights = state.posterior[k] * self.rows.weights
            if every is None:
                chosen, weights = telling_rows(*self.shared.heavy(weights, NEGLIGIBLE))
                if not len(chosen):
                    continue
                rows = self.shared.taken(chosen)
            else:
                rows, weights = every, self.shared.weights(weights)
            # All draw the same missing values; a single process would draw those of rows that are not taken, too.
            filled = fill_gaps(mixture.counts, mixture.parameters, rows, k, rng)
            if k % number == rank:
                own.append((k, filled, weights))
        # Later, so that none waits for another one that merges.
        merge = merge_rows if every is None else merge_labels
        for k, filled, weights in own:
            merged[k] = merge(filled, weights, labels[k])
        return summed(merged)

    @cached_property
    def _all_rows(self) -> BinaryRows:
        """The distinct rows of all processes."""
        assert self.shared is not None
        return self.shared.taken(np.arange(self.shared.number))

    def _welch_labels(self, state: _State) -> np.ndarray:
        """Labels by Welch's tests; variables that are never 1 in any class are left out, and are one block."""
        statistics = state.statistics
        known = statistics.classes[:, None] - statistics.gaps
        means = np.divide(statistics.ones, known, out=np.zeros_like(known), where=known > 0).clip(0, 1)
        labels, seen = np.zeros(known.shape, dtype=np.int64), np.flatnonzero(statistics.ones.any(0))
        if len(seen):
            sizes = torch.from_numpy(statistics.classes)
            labels[:, seen] = 1 + welch_partition(torch.from_numpy(means[:, seen]), sizes, **self.welch).labels.numpy()
        return Partition(torch.from_numpy(labels)).labels.numpy()

    def _single_labels(self, number: int) -> np.ndarray:
        return np.tile(np.arange(self.rows.num_variables), (number, 1))
