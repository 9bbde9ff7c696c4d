"""Leaves of one region: for every state a tree and a partition of its variables, fitted to weighted rows."""

__all__ = ["RegionLeaves"]

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from pyro_structured.densities.models.variable_regions import maximum_spanning_trees, pair_information
from pyro_structured.exchangeable.models.merge_partition import merge_labels
from pyro_structured.exchangeable.ops.level_sets import log_binomial
from pyro_structured.exchangeable.structures.partition import Partition

# Share of the tree in a leaf, and the rows that this prior share counts for.
TREE_SHARE, SHARE_ROWS = 0.7, 10.0


class RegionLeaves:
    """States of one region, whose parameters are found by expectation maximisation.

    Rows of the region's variables that are equal are kept once: a pattern.

    :param Tensor values: Zeros and ones, floating point, of the region's variables, shape ``(N, m)``.
    :param Tensor weights: How often each row comes in the training data, shape ``(N,)``.
    :param int num_states: Number of states K.
    :param float smoothing: Rows, drawn like all the data, that are added to those of every state.
    """

    def __init__(self, values: Tensor, weights: Tensor, num_states: int, smoothing: float) -> None:
        patterns, places = np.unique(values.numpy().astype(np.uint8), axis=0, return_inverse=True)
        self.patterns, self.places = torch.from_numpy(patterns).to(values), torch.from_numpy(places.reshape(-1))
        self.smoothing, self.num_states = smoothing, num_states
        self.shares = self.gather(weights) / weights.sum()
        size = values.shape[1]
        self.first, self.second = torch.triu_indices(size, size, 1)
        ones = self.patterns.new_ones(len(patterns), 1)
        # The log-probability of a tree is linear in these features, and they are its sufficient statistics.
        self.features = torch.cat(
            [ones, self.patterns, self.patterns[:, self.first] * self.patterns[:, self.second]], 1
        )
        self.prior = smoothing * self.shares @ self.features

    def gather(self, weights: Tensor) -> Tensor:
        """Sums weights of the rows for every pattern: from shape ``(N, ...)`` to ``(U, ...)``."""
        return weights.new_zeros(len(self.patterns), *weights.shape[1:]).index_add_(0, self.places, weights)

    def start(self, memberships: Tensor) -> None:
        """Learns the blocks, and all parameters, from weights of the states for every pattern, shape ``(U, K)``."""
        rows = self.patterns.numpy().astype(np.uint8)
        alone = np.arange(rows.shape[1])
        labels = np.stack([merge_labels(rows, weights, alone) for weights in memberships.mT.double().numpy()])
        self.partition = Partition(torch.from_numpy(labels))
        names, counts = self.partition.cell_blocks, self.partition.cell_counts
        sizes = self.partition.sizes.gather(-1, names)
        self.completions = log_binomial(sizes, counts, rows.shape[1]).to(self.patterns)
        self.used = self.completions > -torch.inf
        self.cells = self._cells()
        self.cell_prior = self._count(self.smoothing * self.shares.expand(self.num_states, -1)) + 1
        self._update(TREE_SHARE * memberships, (1 - TREE_SHARE) * memberships)

    def _cells(self) -> csr_array:
        """Which cells of the states' tables the patterns are in: a row for every state and pattern."""
        found, width = [], []
        for state, (labels, starts) in enumerate(zip(self.partition.labels, self.partition.starts, strict=True)):
            names = labels.unique()
            counts = self.patterns @ (labels.unsqueeze(-1) == names).to(self.patterns)
            found.append((counts.int() + starts[names].int() + state * self.partition.table_size).flatten())
            width.append(np.full(len(self.patterns), len(names)))
        index, ends = torch.cat(found).numpy(), np.concatenate([[0], *width]).cumsum(dtype=np.int32)
        shape = len(self.patterns) * self.num_states, self.partition.table_size * self.num_states
        return csr_array((np.ones(len(index), dtype=np.float32), index, ends), shape=shape)

    def _count(self, weights: Tensor) -> Tensor:
        """Weights of the counts of all blocks, from those of the patterns in every state, shape ``(K, U)``."""
        found = self.cells.T @ weights.flatten().numpy()
        return torch.from_numpy(found).reshape(self.num_states, self.partition.table_size)

    def maximize(self, weights: Tensor) -> None:
        """Maximises the expected objective, given weights of the states for every pattern, shape ``(U, K)``."""
        trees = weights * torch.sigmoid(self.tree_scores - self.block_scores)
        self._update(trees, weights - trees)

    def _update(self, trees: Tensor, blocks: Tensor) -> None:
        """The same from weights of the states' trees and blocks."""
        share = torch.stack([trees.sum(0) + SHARE_ROWS * TREE_SHARE, blocks.sum(0) + SHARE_ROWS * (1 - TREE_SHARE)], -1)
        self.leaf_logits = share.log() - share.sum(-1, keepdim=True).log()
        self._learn_trees(trees.mT @ self.features + self.prior)
        number = (self._count(blocks.mT) + self.cell_prior).masked_fill(~self.used, 0.0)
        names = self.partition.cell_blocks
        totals = number.new_zeros(self.partition.labels.shape).scatter_add(-1, names, number).gather(-1, names)
        self.statistic_logits = (number / totals).log()
        each = (self.statistic_logits - self.completions).masked_fill(~self.used, 0.0)
        found = torch.from_numpy(self.cells @ each.flatten().numpy()).reshape(self.num_states, -1).mT
        self.tree_scores = self.features @ self._coefficients().mT + self.leaf_logits[:, 0]
        self.block_scores = found + self.leaf_logits[:, 1]

    @property
    def scores(self) -> Tensor:
        """Log-probabilities of the patterns given the states, shape ``(U, K)``."""
        return torch.logaddexp(self.tree_scores, self.block_scores)

    def _learn_trees(self, statistics: Tensor) -> None:
        """Learns trees, and their log-odds, from the sums of the features of all states, shape ``(K, features)``."""
        single, both = self._probabilities(statistics)
        _, self.parents = maximum_spanning_trees(pair_information(single, both))
        above = single.gather(-1, self.parents)
        joint = both.gather(-1, self.parents.unsqueeze(-1)).squeeze(-1)
        given = torch.stack([(single - joint) / (1 - above), joint / above], -1)
        is_root = self.parents == torch.arange(self.parents.shape[-1])
        probs = torch.where(is_root.unsqueeze(-1), single.unsqueeze(-1), given)
        smallest = torch.finfo(probs.dtype).eps
        self.conditional_logits = torch.logit(probs.clamp(smallest, 1 - smallest))

    def _probabilities(self, statistics: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of ones, shape ``(K, m)``, and of two ones, shape ``(K, m, m)``."""
        size = self.patterns.shape[1]
        # One more row of independent, fair coins.
        total = statistics[:, 0, None] + 1
        single = (statistics[:, 1 : size + 1] + 0.5) / total
        both = torch.diag_embed(single)
        both[:, self.first, self.second] = (statistics[:, size + 1 :] + 0.25) / total
        both[:, self.second, self.first] = both[:, self.first, self.second]
        return single, both

    def _coefficients(self) -> Tensor:
        """Log-probabilities of the trees as linear functions of the features, shape ``(K, features)``."""
        size = self.patterns.shape[1]
        off = torch.nn.functional.logsigmoid(-self.conditional_logits)
        # Roots have the same log-odds twice, and so add zeros.
        change, slope = (table[..., 1] - table[..., 0] for table in (off, self.conditional_logits))
        coefficients = off.new_zeros(self.num_states, self.features.shape[1])
        coefficients[:, 0] = off[..., 0].sum(-1)
        coefficients[:, 1 : size + 1] = self.conditional_logits[..., 0]
        coefficients.scatter_add_(1, self.parents + 1, change)
        pairs = self.parents.new_zeros(size, size)
        pairs[self.first, self.second] = pairs[self.second, self.first] = size + 1 + torch.arange(len(self.first))
        coefficients.scatter_add_(1, pairs[self.parents, torch.arange(size)], slope)
        return coefficients
