"""Log-probabilities of many rows under sum-product networks, as products of matrices."""

__all__ = ["NetworkScores"]

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pyro_structured.densities.distributions.sum_product_network import SumProductNetwork
from pyro_structured.exchangeable.distributions.exchangeable_partition import (
    ExchangeablePartition,
    block_log_partitions,
    block_log_weights,
)

# Sizes of log-weights whose sums and differences keep their digits, and of those that can be exponentiated.
MODERATE, LARGEST_SPREAD = 100.0, 600.0
# Largest number of rows, networks, states and variables, multiplied, that are scored at once where numbers are extreme.
MOST_ENTRIES = 2**20
# Rows that are scored at once; largest number of log-weights of blocks.
ROWS, MOST_WEIGHTS = 512, 2**26
# Largest size of blocks whose weights are linear in variables and in products of pairs.
PAIR = 2


class NetworkScores:
    """Log-probabilities under a network without evidence or batch, for rows without gaps.

    The log-probability of a variable given its parent is linear in both values and their product, and the log-weight of
    a block of one or two variables in their values and their product: those of all states of a region are a product of
    matrices. Larger blocks, and those with extreme weights, are looked up by their counts.

    Networks with extreme log-odds, or many large blocks, are scored as by the distribution.

    Cost O(M K (n + G K)) a row, and O(K) for every pair of variables that some state of a region has.

    :param SumProductNetwork distribution: The network.
    """

    def __init__(self, distribution: SumProductNetwork) -> None:
        structure = distribution.structure
        odds = distribution.conditional_logits.double()
        transitions = distribution.transition_logits.double().log_softmax(-1)
        sizes = structure.partition.sizes
        is_moderate = bool((odds.abs() < MODERATE).all() and (transitions > -LARGEST_SPREAD).all())
        self._is_fast = is_moderate and sizes.numel() * (int(sizes.max()) + 1) <= MOST_WEIGHTS
        if not self._is_fast:
            self._distribution = distribution
            return
        conditionals = torch.stack([logsigmoid(-odds), logsigmoid(odds)], -1)
        leaves = distribution.leaf_logits.double().log_softmax(-1)
        weights = _block_weights(distribution)
        self._network_logits = distribution.network_logits.double().log_softmax(-1)
        self._parents = structure.region_parents.tolist()
        self._regions = [
            [
                _region(
                    (structure.regions[network] == region).nonzero().squeeze(-1),
                    structure.variable_parents[network],
                    conditionals[network],
                    structure.partition.labels[network],
                    weights[network],
                    leaves[network, region],
                    transitions[network, region],
                )
                for region in range(structure.num_regions)
            ]
            for network in range(structure.num_networks)
        ]

    def __call__(self, values: Tensor) -> Tensor:
        """Log-probabilities, shape ``(N,)``.

        :param Tensor values: Zeros and ones, float64, shape ``(N, n)``.
        """
        if self._is_fast:
            return torch.cat([self._score(rows.T.contiguous()) for rows in values.split(ROWS)])
        structure = self._distribution.structure
        size = structure.num_networks * structure.num_states * structure.num_variables
        return torch.cat([self._distribution.log_prob(rows) for rows in values.split(max(1, MOST_ENTRIES // size))])

    def _score(self, values: Tensor) -> Tensor:
        """Log-probabilities of the columns, which are contiguous in all steps, shape ``(N,)``."""
        totals = []
        for parents, regions in zip(self._parents, self._regions, strict=True):
            sent: list[Tensor | None] = [None] * len(regions)
            for place in reversed(range(len(regions))):
                scores, below = regions[place].leaf_scores(values), sent[place]
                if below is not None:
                    scores = scores + below
                peak = scores.amax((0, 1))
                peak = peak.masked_fill(peak == -torch.inf, 0.0)
                message = (regions[place].transitions @ torch.exp(scores - peak).sum(0)).log() + peak
                above = sent[parents[place]]
                sent[parents[place]] = message if above is None else above + message
            totals.append(message[0])
        log_probs: Tensor = (torch.stack(totals) + self._network_logits.unsqueeze(-1)).logsumexp(0)
        return log_probs


class _Region(NamedTuple):
    """What a region's states need.

    :ivar Tensor variables: Variables of the region, shape ``(V,)``.
    :ivar Tensor pairs: Pairs of them, places among the variables, shape ``(2, P)``; those of blocks come first.
    :ivar Tensor forest: Weights of the variables and of the pairs, shape ``(K, V + P)``.
    :ivar Tensor blocks: Weights of the variables and of the first pairs, shape ``(K, V + B)``.
    :ivar Tensor constants: Log-weights of zeros in both leaves, shape ``(2, K)``.
    :ivar Tensor members: Whether a variable is in a block that is looked up, shape ``(L, V)``.
    :ivar Tensor tables: Log-weights of the counts of these blocks, shape ``(L, C)``.
    :ivar Tensor states: Their states, shape ``(L,)``.
    :ivar Tensor transitions: Probabilities of the states given the parent's states, shape ``(J, K)``.
    """

    variables: Tensor
    pairs: Tensor
    forest: Tensor
    blocks: Tensor
    constants: Tensor
    members: Tensor
    tables: Tensor
    states: Tensor
    transitions: Tensor

    def leaf_scores(self, values: Tensor) -> Tensor:
        """Log-weights of both leaves of the states, shape ``(2, K, N)``, of values of shape ``(n, N)``."""
        own = values[self.variables]
        features = torch.cat([own, own[self.pairs[0]] * own[self.pairs[1]]])
        forest = self.forest @ features
        blocks = self.blocks @ features[: self.blocks.shape[1]]
        if len(self.states):
            counts = (self.members @ own).long()
            blocks = blocks.index_add(0, self.states, self.tables.gather(1, counts))
        return torch.stack([forest, blocks]) + self.constants.unsqueeze(-1)


def _block_weights(distribution: SumProductNetwork) -> Tensor:
    """Log-weights of the counts of all blocks, shape ``(M, K, n, n + 1)``, at their smallest variables."""
    partition = distribution.structure.partition
    blocks = ExchangeablePartition(distribution.statistic_logits, partition, validate_args=False)
    # Number of members of its block that are smaller than a variable.
    ordered, order = partition.labels.sort(stable=True)
    behind = torch.arange(partition.num_variables) - torch.searchsorted(ordered, ordered)
    ranks = torch.zeros_like(order).scatter_(-1, order, behind)
    tables = [block_log_weights(blocks, (ranks < count).double()) for count in range(int(partition.sizes.max()) + 1)]
    return torch.stack(tables, -1) - block_log_partitions(blocks).unsqueeze(-1)


def _region(
    variables: Tensor,
    parents: Tensor,
    conditionals: Tensor,
    labels: Tensor,
    weights: Tensor,
    leaves: Tensor,
    transitions: Tensor,
) -> _Region:
    """A region of one network.

    :param Tensor variables: Its variables, shape ``(V,)``.
    :param Tensor parents: Parents of all variables, shape ``(K, n)``.
    :param Tensor conditionals: Log-probabilities of values given the parent's value, shape ``(K, n, 2, 2)``.
    :param Tensor labels: Smallest variables of the blocks, shape ``(K, n)``.
    :param Tensor weights: Log-weights of the blocks' counts, shape ``(K, n, C)``.
    :param Tensor leaves: Log-probabilities of both leaves, shape ``(K, 2)``.
    :param Tensor transitions: Log-probabilities of the states given the parent's states, shape ``(J, K)``.
    """
    number, num_states = len(variables), len(parents)
    place = torch.zeros(parents.shape[-1], dtype=torch.long)
    place[variables] = torch.arange(number)
    above, names = place[parents[:, variables]], place[labels[:, variables]]
    tables, given, own = weights[:, variables], conditionals[:, variables], torch.arange(number).expand(above.shape)
    state = torch.arange(num_states).unsqueeze(-1).expand(above.shape)

    child = above != own
    forest = torch.zeros(num_states, number, dtype=torch.double)
    forest.index_put_((state, own), given[..., 0, 1] - given[..., 0, 0], accumulate=True)
    slope = given[..., 1, 0] - given[..., 0, 0]
    forest.index_put_((state[child], above[child]), slope[child], accumulate=True)
    joint = given[..., 1, 1] - given[..., 1, 0] - given[..., 0, 1] + given[..., 0, 0]

    sizes = torch.zeros_like(names).scatter_add_(1, names, torch.ones_like(names))
    small = tables[..., : PAIR + 1]
    is_fine = (small.abs() < MODERATE) | (torch.arange(small.shape[-1]) > sizes.unsqueeze(-1))
    is_simple = (sizes > 0) & (sizes <= PAIR) & is_fine.all(-1)
    simple = is_simple.gather(1, names)
    rise = (tables[..., 1] - tables[..., 0]).gather(1, names)
    blocks = torch.zeros(num_states, number, dtype=torch.double)
    blocks.index_put_((state[simple], own[simple]), rise[simple], accumulate=True)
    paired = simple & (names != own)
    bend = (tables[..., 2] - 2 * tables[..., 1] + tables[..., 0]).gather(1, names) if tables.shape[-1] > PAIR else rise

    lower, upper = torch.minimum(own, above), torch.maximum(own, above)
    codes = {"blocks": (names * number + own)[paired], "forest": (lower * number + upper)[child]}
    first, rest = codes["blocks"].unique(), codes["forest"].unique()
    pairs = torch.cat([first, rest[~torch.isin(rest, first)]])
    order = pairs.argsort()
    columns = {name: order[torch.searchsorted(pairs[order], code)] for name, code in codes.items()}
    of_pairs = torch.zeros(2, num_states, len(pairs), dtype=torch.double)
    of_pairs[0].index_put_((state[child], columns["forest"]), joint[child], accumulate=True)
    of_pairs[1].index_put_((state[paired], columns["blocks"]), bend[paired], accumulate=True)

    looked_up = ((sizes > 0) & ~is_simple).nonzero()
    members = (names[looked_up[:, 0]] == looked_up[:, 1:]).double()
    constants = torch.stack([given[..., 0, 0].sum(-1), tables[..., 0].masked_fill(~is_simple, 0.0).sum(-1)])
    return _Region(
        variables,
        torch.stack([pairs // max(number, 1), pairs % max(number, 1)]),
        torch.cat([forest, of_pairs[0]], 1),
        torch.cat([blocks, of_pairs[1][:, : len(first)]], 1),
        constants + leaves.T,
        members,
        tables[looked_up[:, 0], looked_up[:, 1]],
        looked_up[:, 0],
        transitions.exp(),
    )
