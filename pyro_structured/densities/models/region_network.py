"""One network of regions, fitted by expectation maximisation."""

__all__ = ["RegionNetwork"]

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from pyro_structured.densities.models.region_leaves import RegionLeaves
from pyro_structured.densities.models.variable_regions import variable_regions
from pyro_structured.densities.ops.region_passes import region_inward
from pyro_structured.exchangeable.structures.partition import Partition

# A variable outside of a region counts for less when rows are clustered for the region's states.
OUTSIDE_WEIGHT = 0.75
# Rows that are added to each row of the transitions, distributed like the state in all the data.
TRANSITION_ROWS = 2.0
ROWS_AT_ONCE = 2**12


class RegionNetwork:
    """A tree of regions with latent states, and leaves.

    :param Tensor values: Zeros and ones, floating point, shape ``(N, n)``, all rows different.
    :param Tensor weights: How often each row comes in the training data, shape ``(N,)``; 0 for rows only to be scored.
    :param int num_states: States of each region.
    :param int largest: Most variables in a region.
    :param float smoothing: Rows, drawn like all the data, that are added to those of every state.
    :param numpy.random.RandomState random_state: Chooses random weights of the rows that tell the regions, and the
        first clusters.
    """

    def __init__(
        self, values: Tensor, weights: Tensor, num_states: int, largest: int, smoothing: float, random_state: Any
    ) -> None:
        self.weights = weights
        # The Bayesian bootstrap (Rubin 1981), so that the regions differ between networks.
        shaken = torch.from_numpy(random_state.gamma(weights.numpy())).to(values)
        self.regions, self.parents = variable_regions(values, shaken, largest)
        self.members = [torch.nonzero(self.regions == region).squeeze(-1) for region in range(len(self.parents))]
        self.leaves = [RegionLeaves(values[:, each], weights, num_states, smoothing) for each in self.members]
        memberships = [_cluster(values, weights, each, num_states, random_state) for each in self.members]
        self._update_transitions(self._count_transitions(memberships))
        for leaves, each in zip(self.leaves, memberships, strict=True):
            leaves.start(leaves.gather(each))

    def _count_transitions(self, memberships: list[Tensor]) -> Tensor:
        """Weights of the rows in a region's state (last axis) and its parent's, shape ``(G, K, K)``; the root's are
        spread evenly over its parent's.

        :param memberships: Weights of the rows in the states they are in, shape ``(N, K)``, of all regions.
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
        """Log-probabilities of the regions' values given their states, shape ``(rows, 1, G, K)``."""
        scores = [leaves.scores for leaves in self.leaves]
        for start in range(0, len(self.weights), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            each = [score[leaves.places[part]] for score, leaves in zip(scores, self.leaves, strict=True)]
            yield part, torch.stack(each, 1).unsqueeze(1)

    def expect(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Log-probabilities of all rows, shape ``(N,)``; expected numbers of the training rows' transitions, and of
        their states for all patterns of each region.
        """
        transitions, found = self.log_transitions.clone().requires_grad_(), []
        counts = torch.zeros_like(self.log_transitions)
        weights = [torch.zeros_like(leaves.tree_scores) for leaves in self.leaves]
        for part, each in self._chunks():
            _, messages = region_inward(transitions.unsqueeze(0), each.requires_grad_(), self.parents.unsqueeze(0))
            log_prob = messages[:, 0, 0, 0]
            # Derivatives along log-probabilities are expected numbers.
            used, posterior = torch.autograd.grad(log_prob @ self.weights[part], (transitions, each))
            counts += used
            for region, leaves in enumerate(self.leaves):
                weights[region].index_add_(0, leaves.places[part], posterior[:, 0, region])
            found.append(log_prob.detach())
        counts[0] = counts[0, 0].clone()  # the first row counts for the root
        return torch.cat(found), counts, weights

    def maximize(self, counts: Tensor, weights: list[Tensor]) -> None:
        """The parameters that fit expected numbers best."""
        self._update_transitions(counts)
        for leaves, weight in zip(self.leaves, weights, strict=True):
            leaves.maximize(weight)

    def tables(self) -> dict[str, Tensor]:
        """The parameters, and regions, parents and blocks."""
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
    """Clusters rows by all variables, most of all by those of a region.

    :return: Weights of the rows in the states, each row being in one of them, shape ``(N, num_states)``.
    """
    train = torch.nonzero(weights).squeeze(-1)
    scale = values.new_full(values.shape[1:], OUTSIDE_WEIGHT)
    scale[members] = 1.0
    means = KMeans(min(num_states, len(train)), n_init=1, max_iter=10, random_state=random_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than states
        found = means.fit_predict((values[train] * scale).numpy(), sample_weight=weights[train].numpy())
    memberships = values.new_zeros(len(values), num_states)
    memberships[train, torch.from_numpy(found).long()] = weights[train]
    return memberships
