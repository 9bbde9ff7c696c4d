"""Networks of regions, fitted by expectation maximisation."""

__all__ = ["RegionLeaves", "RegionNetwork"]

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from pyro_structured.densities.models.variable_regions import maximum_spanning_trees, pair_information, variable_regions
from pyro_structured.densities.ops.region_passes import region_inward
from pyro_structured.exchangeable.models.merge_partition import merge_labels
from pyro_structured.exchangeable.ops.level_sets import log_binomial
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.ops.progress import check_time

# Prior probability of the tree in a leaf, and number of rows that the prior counts for.
TREE_SHARE, SHARE_ROWS = 0.7, 10.0


class RegionLeaves:
    """Leaves of the states of one region, whose parameters are found by expectation maximisation.

    Rows with equal values of the region's variables are kept once, as a pattern; there are U patterns.

    :param Tensor values: Zeros and ones, floating point, of the region's variables, shape ``(N, m)``.
    :param Tensor weights: Weights of the rows, their counts in the training data, shape ``(N,)``.
    :param int num_states: Number of states K.
    :param float smoothing: Number of rows, distributed like all the data, that are added to those of every state.
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
        """Learns the blocks, and all parameters, from weights of the patterns in every state, shape ``(U, K)``."""
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
        """Sparse indicators of the cells of the states' tables that the patterns are in, shape ``(K U, K cells)``: a
        row for every state and pattern.
        """
        indices, width = [], []
        for state, (labels, starts) in enumerate(zip(self.partition.labels, self.partition.starts, strict=True)):
            names = labels.unique()
            counts = self.patterns @ (labels.unsqueeze(-1) == names).to(self.patterns)
            indices.append((counts.int() + starts[names].int() + state * self.partition.table_size).flatten())
            width.append(np.full(len(self.patterns), len(names)))
        index, ends = torch.cat(indices).numpy(), np.concatenate([[0], *width]).cumsum(dtype=np.int32)
        shape = len(self.patterns) * self.num_states, self.partition.table_size * self.num_states
        return csr_array((np.ones(len(index), dtype=np.float32), index, ends), shape=shape)

    def _count(self, weights: Tensor) -> Tensor:
        """Weights of the counts of all blocks, shape ``(K, cells)``, from weights of the patterns in every state, shape
        ``(K, U)``.
        """
        cell_weights = self.cells.T @ weights.flatten().numpy()
        return torch.from_numpy(cell_weights).reshape(self.num_states, self.partition.table_size)

    def maximize(self, weights: Tensor) -> None:
        """Maximises the expected objective, given weights of the patterns in every state, shape ``(U, K)``."""
        trees = weights * torch.sigmoid(self.tree_scores - self.block_scores)
        self._update(trees, weights - trees)

    def _update(self, trees: Tensor, blocks: Tensor) -> None:
        """Maximises the expected objective, given weights of the patterns in the trees and in the blocks of every
        state, shape ``(U, K)`` each.
        """
        share = torch.stack([trees.sum(0) + SHARE_ROWS * TREE_SHARE, blocks.sum(0) + SHARE_ROWS * (1 - TREE_SHARE)], -1)
        self.leaf_logits = share.log() - share.sum(-1, keepdim=True).log()
        self._learn_trees(trees.mT @ self.features + self.prior)
        number = (self._count(blocks.mT) + self.cell_prior).masked_fill(~self.used, 0.0)
        names = self.partition.cell_blocks
        totals = number.new_zeros(self.partition.labels.shape).scatter_add(-1, names, number).gather(-1, names)
        self.statistic_logits = (number / totals).log()
        cell_scores = (self.statistic_logits - self.completions).masked_fill(~self.used, 0.0)
        block_scores = torch.from_numpy(self.cells @ cell_scores.flatten().numpy()).reshape(self.num_states, -1).mT
        self.tree_scores = self.features @ self._coefficients().mT + self.leaf_logits[:, 0]
        self.block_scores = block_scores + self.leaf_logits[:, 1]

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


# Scale of variables outside of a region when rows are clustered for the region's states.
OUTSIDE_WEIGHT = 0.75
# Number of rows, distributed like the state in all the data, that are added to each row of the transitions.
TRANSITION_ROWS = 2.0
ROWS_AT_ONCE = 2**12


class RegionNetwork:
    """Tree of regions with latent states, and leaves.

    :param Tensor values: Zeros and ones, floating point, shape ``(N, n)``, all rows different.
    :param Tensor weights: Weights of the rows, their counts in the training data, shape ``(N,)``; 0 for rows that are
        only scored.
    :param int num_states: Number of states K of each region.
    :param int largest: Largest number of variables in a region.
    :param float smoothing: Number of rows, distributed like all the data, that are added to those of every state.
    :param numpy.random.RandomState random_state: Generator of the random weights of rows with which regions are found,
        and of the first clusters.
    """

    def __init__(
        self, values: Tensor, weights: Tensor, num_states: int, largest: int, smoothing: float, random_state: Any
    ) -> None:
        self.weights = weights
        # The Bayesian bootstrap (Rubin 1981), so that the regions differ between networks.
        shaken = torch.from_numpy(random_state.gamma(weights.numpy())).to(values)
        self.regions, self.parents = variable_regions(values, shaken, largest)
        self.members = [torch.nonzero(self.regions == region).squeeze(-1) for region in range(len(self.parents))]
        self.leaves = [RegionLeaves(values[:, members], weights, num_states, smoothing) for members in self.members]
        memberships = [_cluster(values, weights, members, num_states, random_state) for members in self.members]
        self._update_transitions(self._count_transitions(memberships))
        for leaves, row_weights in zip(self.leaves, memberships, strict=True):
            leaves.start(leaves.gather(row_weights))

    def _count_transitions(self, memberships: list[Tensor]) -> Tensor:
        """Weights of the rows by a region's state (last axis) and its parent's, shape ``(G, K, K)``; those of the root
        are spread evenly over the parent's states.

        :param memberships: For every region, the weight of each row in its state, zeros elsewhere, shape ``(N, K)``.
        """
        each = zip(memberships, self.parents.tolist(), strict=True)
        counts = [(memberships[above] > 0).to(weights).mT @ weights for weights, above in each]
        counts[0] = counts[0].mean(0).expand_as(counts[0])
        return torch.stack(counts)

    def _update_transitions(self, counts: Tensor) -> None:
        share = counts.sum(-2, keepdim=True) + 1.0
        number = counts + TRANSITION_ROWS * share / share.sum(-1, keepdim=True)
        self.log_transitions = (number / number.sum(-1, keepdim=True)).log()

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Batches of rows, and log-probabilities of regions' values given their states, shape ``(rows, 1, G, K)``."""
        scores = [leaves.scores for leaves in self.leaves]
        for start in range(0, len(self.weights), ROWS_AT_ONCE):
            batch = slice(start, start + ROWS_AT_ONCE)
            batch_scores = [score[leaves.places[batch]] for score, leaves in zip(scores, self.leaves, strict=True)]
            yield batch, torch.stack(batch_scores, 1).unsqueeze(1)

    def expect(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Log-probabilities of all rows, shape ``(N,)``; expected counts of the training rows' transitions, shape ``(G,
        K, K)``; and of their patterns in all states of each region, shape ``(U, K)``.
        """
        transitions, log_probs = self.log_transitions.clone().requires_grad_(), []
        counts = torch.zeros_like(self.log_transitions)
        weights = [torch.zeros_like(leaves.tree_scores) for leaves in self.leaves]
        for batch, batch_scores in self._chunks():
            _, messages = region_inward(
                transitions.unsqueeze(0), batch_scores.requires_grad_(), self.parents.unsqueeze(0)
            )
            log_prob = messages[:, 0, 0, 0]
            # Derivatives along log-probabilities are expected counts.
            used, posterior = torch.autograd.grad(log_prob @ self.weights[batch], (transitions, batch_scores))
            counts += used
            for region, leaves in enumerate(self.leaves):
                weights[region].index_add_(0, leaves.places[batch], posterior[:, 0, region])
            log_probs.append(log_prob.detach())
        counts[0] = counts[0, 0].clone()  # only the first row is used for the root
        return torch.cat(log_probs), counts, weights

    def maximize(self, counts: Tensor, weights: list[Tensor]) -> None:
        """Sets the parameters that fit expected counts best; arguments as returned by :meth:`expect`."""
        self._update_transitions(counts)
        for leaves, weight in zip(self.leaves, weights, strict=True):
            leaves.maximize(weight)

    def tables(self) -> dict[str, Tensor]:
        """Parameters, and regions, parents and blocks, by name."""
        states, size = self.log_transitions.shape[-1], len(self.regions)
        parents, labels = torch.empty(2, states, size, dtype=torch.long)
        conditional_logits = self.log_transitions.new_empty(states, size, 2)
        for members, leaves in zip(self.members, self.leaves, strict=True):
            parents[:, members] = members[leaves.parents]
            labels[:, members] = members[leaves.partition.labels]
            conditional_logits[:, members] = leaves.conditional_logits
        partition = Partition(labels)
        statistic_logits = self.log_transitions.new_zeros(states, partition.table_size)
        for members, leaves in zip(self.members, self.leaves, strict=True):
            used = leaves.used.nonzero(as_tuple=True)
            names = members[leaves.partition.cell_blocks[used]]
            cells = partition.starts[used[0], names] + leaves.partition.cell_counts[used]
            statistic_logits[used[0], cells] = leaves.statistic_logits[used]
        return {
            "regions": self.regions,
            "region_parents": self.parents,
            "transition_logits": self.log_transitions,
            "leaf_logits": torch.stack([leaves.leaf_logits for leaves in self.leaves]),
            "conditional_logits": conditional_logits,
            "statistic_logits": statistic_logits,
            "parents": parents,
            "labels": labels,
        }


def _cluster(values: Tensor, weights: Tensor, members: Tensor, num_states: int, random_state: Any) -> Tensor:
    """Clusters rows by all variables, with the largest scales for those of a region.

    :return: Weight of each training row in the state of its cluster, zeros elsewhere, shape ``(N, num_states)``.
    """
    check_time()
    train = torch.nonzero(weights).squeeze(-1)
    scale = values.new_full(values.shape[1:], OUTSIDE_WEIGHT)
    scale[members] = 1.0
    means = KMeans(min(num_states, len(train)), n_init=1, max_iter=10, random_state=random_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than states
        clusters = means.fit_predict((values[train] * scale).numpy(), sample_weight=weights[train].numpy())
    memberships = values.new_zeros(len(values), num_states)
    memberships[train, torch.from_numpy(clusters).long()] = weights[train]
    return memberships
