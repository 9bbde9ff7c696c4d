"""Structural expectation maximisation for mixtures of partitions into exchangeable blocks (Algorithm 1)."""

__all__ = ["STRUCTURES", "StructuralEM"]

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from tqdm import tqdm

from pyro_structured.models.block_mixture import BlockMixture
from pyro_structured.models.merge_partition import merge_labels
from pyro_structured.models.welch_partition import welch_partition
from pyro_structured.ops.binary_rows import BinaryRows
from pyro_structured.ops.block_mixture import BlockStatistics, accumulate, expect, fill_gaps, maximize
from pyro_structured.ops.packed_counts import PackedCounts

STRUCTURES = ("merge", "welch", "independent")


@dataclass(frozen=True)
class _State:
    """A mixture, and what it expects of the training rows."""

    mixture: BlockMixture
    posterior: np.ndarray
    log_likelihood: float
    statistics: BlockStatistics

    @property
    def objective(self) -> float:
        """The log-likelihood with the logarithm of the prior that the smoothing amounts to."""
        return self.log_likelihood + self.mixture.parameters.log_prior


class StructuralEM:
    """Alternates the steps for parameters with steps for the structure, which are taken only if they are better.

    :param BinaryRows rows: The training rows.
    :param str structure: How blocks are found; ``"welch"`` in every iteration, ``"merge"`` whenever the parameters have
        settled, ``"independent"`` never.
    :param float smoothing: Added to all counts.
    :param float tol: Nats per row; a smaller increase of the objective ends a phase.
    :param int max_iter: Largest number of iterations.
    :param np.ndarray log_allowed: Zero for the classes that a row can be of, -inf for the others, shape ``(K, R)``.
    :param welch: Level, linkage and correction of Welch's tests.
    """

    def __init__(
        self,
        rows: BinaryRows,
        structure: str,
        smoothing: float,
        tol: float,
        max_iter: int,
        log_allowed: np.ndarray | None = None,
        **welch: Any,
    ) -> None:
        self.rows, self.structure, self.smoothing = rows, structure, smoothing
        self.smallest, self.max_iter = tol * rows.weights.sum(), max_iter
        self.log_allowed, self.welch = log_allowed, welch
        self.largest_gap = rows.largest_gap

    def run(self, posterior: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[BlockMixture, float]]:
        """Mixtures whose parameters have settled, one after each change of the structure, with their log-likelihoods.

        :param np.ndarray posterior: Probabilities of the classes to start from, shape ``(K, R)``.
        :return: The last mixture has the largest objective.
        """
        labels = np.tile(np.arange(self.rows.num_variables), (len(posterior), 1))
        state = self._start(labels, posterior)
        if self.structure == "welch":
            state = self._start(self._labels(state, rng), posterior)
        for _ in tqdm(range(self.max_iter), desc="EM", unit="iteration", disable=None, leave=False):
            best = self._advance(state)
            settled = best.objective - state.objective < self.smallest
            if settled:
                yield best.mixture, best.log_likelihood
            if self.structure == "welch" or (self.structure == "merge" and settled):
                changed = self._start(self._labels(state, rng), state.posterior)
                best = max(best, changed, key=lambda each: each.objective)
            if best.objective - state.objective < self.smallest:
                return
            state = best
        warnings.warn(f"no convergence in {self.max_iter} iterations", ConvergenceWarning, stacklevel=3)
        yield state.mixture, state.log_likelihood

    def _start(self, labels: np.ndarray, posterior: np.ndarray) -> _State:
        """The best parameters for a structure and probabilities of the classes."""
        counts = PackedCounts(labels, self.largest_gap)
        statistics = accumulate(counts, self.rows, posterior)
        return self._evaluate(BlockMixture(counts, maximize(counts, statistics, self.smoothing)))

    def _advance(self, state: _State) -> _State:
        counts, parameters = state.mixture.counts, state.mixture.parameters
        return self._evaluate(BlockMixture(counts, maximize(counts, state.statistics, self.smoothing, parameters)))

    def _evaluate(self, mixture: BlockMixture) -> _State:
        return _State(mixture, *expect(mixture.counts, mixture.parameters, self.rows, self.log_allowed))

    def _labels(self, state: _State, rng: np.random.Generator) -> np.ndarray:
        """Blocks for the present probabilities of the classes."""
        if self.structure == "merge":
            return self._merged_labels(state, rng)
        statistics = state.statistics
        known = statistics.classes[:, None] - statistics.gaps
        means = np.divide(statistics.ones, known, out=np.zeros_like(known), where=known > 0).clip(0, 1)
        sizes = torch.from_numpy(statistics.classes)
        return welch_partition(torch.from_numpy(means), sizes, **self.welch).labels.numpy()

    def _merged_labels(self, state: _State, rng: np.random.Generator) -> np.ndarray:
        weights = state.posterior * self.rows.weights
        if self.rows.gaps is None:
            values = self.rows.dense()
            return np.stack([merge_labels(values, each) for each in weights])
        mixture = state.mixture
        draws = (fill_gaps(mixture.counts, mixture.parameters, self.rows, k, rng) for k in range(len(weights)))
        return np.stack([merge_labels(values, each) for values, each in zip(draws, weights, strict=True)])
