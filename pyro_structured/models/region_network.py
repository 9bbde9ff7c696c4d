"""One network of regions, fitted by expectation maximisation."""

__all__ = ["RegionNetwork"]

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from pyro_structured.models.region_leaves import RegionLeaves
from pyro_structured.models.variable_regions import variable_regions
from pyro_structured.ops.region_passes import region_inward

# A variable outside of a region counts for less when rows are clustered for the region's states.
OUTSIDE_WEIGHT = 0.75
# Rows that are added to each row of the transitions, distributed like the state in all the data.
TRANSITION_ROWS = 2.0
ROWS_AT_ONCE = 2**12


class RegionNetwork:
    """A tree of regions with latent states, and leaves.

    :param Tensor values: Zeros and ones, floating point, shape ``(N, n)``.
    :param int num_train: The first rows, from which the network is learned; the others are only scored.
    :param int num_states: States of each region.
    :param int largest: Most variables in a region.
    :param float smoothing: Rows, drawn like all the data, that are added to those of every state.
    :param numpy.random.RandomState random_state: Chooses the rows that tell the regions, and the first clusters.
    """

    def __init__(
        self, values: Tensor, num_train: int, num_states: int, largest: int, smoothing: float, random_state: Any
    ) -> None:
        self.num_rows, self.num_train = len(values), num_train
        train = values[:num_train]
        # Half of the rows, so that the regions differ between networks.
        half = torch.from_numpy(random_state.permutation(num_train)[: (num_train + 1) // 2])
        self.regions, self.parents = variable_regions(train[half], largest)
        self.members = [torch.nonzero(self.regions == region).squeeze(-1) for region in range(len(self.parents))]
        self.leaves = [RegionLeaves(values[:, each], num_train, num_states, smoothing) for each in self.members]
        clusters = [self._cluster(train, each, num_states, random_state) for each in self.members]
        hard = [torch.nn.functional.one_hot(each, num_states).to(values) for each in clusters]
        counts = [hard[above].mT @ hard[region] for region, above in enumerate(self.parents.tolist())]
        counts[0] = counts[0].sum(0).expand(num_states, num_states) / num_states
        self._update_transitions(torch.stack(counts))
        for leaves, memberships in zip(self.leaves, hard, strict=True):
            weights = memberships.new_zeros(len(leaves.patterns), num_states)
            leaves.start(weights.index_add_(0, leaves.places[:num_train], memberships))

    @staticmethod
    def _cluster(train: Tensor, members: Tensor, num_states: int, random_state: Any) -> Tensor:
        weights = torch.full(train.shape[1:], OUTSIDE_WEIGHT)
        weights[members] = 1.0
        means = KMeans(min(num_states, len(train)), n_init=1, max_iter=10, random_state=random_state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than states
            return torch.from_numpy(means.fit_predict((train * weights).numpy())).long()

    def _update_transitions(self, counts: Tensor) -> None:
        share = counts.sum(-2, keepdim=True) + 1.0
        number = counts + TRANSITION_ROWS * share / share.sum(-1, keepdim=True)
        self.log_transitions = (number / number.sum(-1, keepdim=True)).log()

    def _chunks(self, rows: range) -> Iterator[tuple[slice, Tensor]]:
        """Log-probabilities of the regions' values given their states, shape ``(rows, 1, G, K)``."""
        totals = [leaves.scores for leaves in self.leaves]
        for start in range(rows.start, rows.stop, ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, rows.stop))
            each = [total[leaves.places[part]] for total, leaves in zip(totals, self.leaves, strict=True)]
            yield part, torch.stack(each, 1).unsqueeze(1)

    def held_out(self) -> float:
        """Mean log-probability of the rows that are not for training."""
        found = [
            region_inward(self.log_transitions.unsqueeze(0), leaves, self.parents.unsqueeze(0))[1][:, 0, 0, 0]
            for _, leaves in self._chunks(range(self.num_train, self.num_rows))
        ]
        return float(torch.cat(found).mean())

    def step(self) -> float:
        """One step of expectation maximisation; the mean log-probability of the training rows before it."""
        transitions = self.log_transitions.clone().requires_grad_()
        counts, total = torch.zeros_like(self.log_transitions), 0.0
        weights = [torch.zeros_like(leaves.tree_scores) for leaves in self.leaves]
        for part, each in self._chunks(range(self.num_train)):
            each.requires_grad_()
            log_prob = region_inward(transitions.unsqueeze(0), each, self.parents.unsqueeze(0))[1][:, 0, 0, 0].sum()
            # Derivatives along log-probabilities are expected numbers of uses.
            used, posterior = torch.autograd.grad(log_prob, (transitions, each))
            counts += used
            total += float(log_prob.detach())
            for region, leaves in enumerate(self.leaves):
                weights[region].index_add_(0, leaves.places[part], posterior[:, 0, region])
        counts[0] = counts[0, 0]
        self._update_transitions(counts)
        for leaves, weight in zip(self.leaves, weights, strict=True):
            leaves.step(weight)
        return total / self.num_train

    def tables(self) -> dict[str, Tensor]:
        """Copies of the parameters, and of the parents and blocks of the variables."""
        states, size = self.log_transitions.shape[-1], len(self.regions)
        parents, labels = torch.empty(2, states, size, dtype=torch.long)
        conditional_logits, block_logits = torch.empty(states, size, 2), torch.zeros(states, size, size + 1)
        for members, leaves in zip(self.members, self.leaves, strict=True):
            parents[:, members] = members[leaves.parents]
            labels[:, members] = members[leaves.partition.labels]
            conditional_logits[:, members] = leaves.conditional_logits
            used = leaves.used.nonzero(as_tuple=True)
            place = used[0], members[leaves.partition.cell_blocks[used]], leaves.partition.cell_counts[used]
            block_logits[place] = leaves.statistic_logits[used]
        return {
            "transition_logits": self.log_transitions,
            "leaf_logits": torch.stack([leaves.leaf_logits for leaves in self.leaves]),
            "conditional_logits": conditional_logits,
            "block_logits": block_logits,
            "parents": parents,
            "labels": labels,
        }
