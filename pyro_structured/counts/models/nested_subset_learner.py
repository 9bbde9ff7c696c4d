"""Nested subsets learned from data, by the likelihood of the tree."""

__all__ = ["learn_nested_subsets"]

import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from pyro_structured.counts.ops.count_information import count_information
from pyro_structured.counts.structures.nested_subsets import NestedSubsets
from pyro_structured.foundation.distributions.argument_checks import check_memberships
from pyro_structured.foundation.models.argument_checks import check_binary
from pyro_structured.foundation.models.number_tables import number_tensor
from pyro_structured.foundation.ops.progress import progress_bar, verbosity

# A block of variables is an integer whose bits are its members; a tree maps every block to the two that it joins.
Tree = dict[int, tuple[int, int]]
Score = Callable[[int, int], float]
SMALLEST_GAIN = 1e-9  # relative to the scores: rounding must not move blocks to and fro
# Sizes of caches: enough for the tree of a few hundred variables, at some 100 MB.
CACHED_BLOCKS, CACHED_PAIRS = 2**14, 2**19


def learn_nested_subsets(
    values: Any, memberships: Any = None, penalty: float = 1.0, *, verbose: bool | None = None
) -> NestedSubsets:
    r"""Learns a binary tree of nested subsets for a RecursiveCardinality, or for a mixture of them.

    The score of a tree is its largest mean log-likelihood, whose part for every branching depends on the two children
    alone (:func:`pyro_structured.ops.count_information`), minus a penalty for every free number in a table. The search
    starts from hierarchical clustering by correlation, as in Section 6.4 of the paper; then blocks are cut off and put
    in elsewhere, with an approximation of the score by correlations of counts, :math:`-\tfrac12\log(1-\rho^2)`; then
    neighbours are interchanged, with the score itself, up to what 50 rounds of iterative proportional fitting leave of
    it. Each phase ends where no move improves the tree: a local optimum, not always the best tree. This takes seconds
    for a hundred variables, and minutes for several hundred.

    :param values: Zeros and ones, or booleans, shape ``(N, D)`` with at least two variables: a tensor, an array, a data
        frame or lists.
    :param memberships: For a mixture with the same subsets in all components: probabilities of the components for every
        row, shape ``(N, K)``. ``None``: one component.
    :param float penalty: Nats, of the log-likelihood of all rows, that every free number in a table has to gain. 1 is
        Akaike's criterion, :math:`\tfrac12\log N` Schwarz's. With several components a number counts once for all,
        which suits tables that are shrunk towards each other.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :return: The :math:`D - 1` blocks of two or more variables, smallest first. Deterministic. Cost about
        :math:`O(D^2)` scores a round of the first search, of O(D) each, and :math:`O(D)` scores, of up to
        :math:`O(K D^2)` each, a move of the second.
    :raises ValueError: if the values are not zeros and ones, the shapes do not fit, or the penalty is negative.

    **References**

    Tarlow, Swersky, Zemel, Adams, Frey (2012): Fast exact inference for recursive cardinality models. UAI. Section 6.4.
    Schwarz (1978): Estimating the dimension of a model. Annals of Statistics.
    Akaike (1974): A new look at the statistical model identification. IEEE Transactions on Automatic Control.

    Example::

        >>> import torch
        >>> groups = torch.randint(2, (500, 2)).repeat_interleave(2, dim=1).double()
        >>> [subset.tolist() for subset in learn_nested_subsets(groups).subsets]
        [[0, 1], [2, 3], [0, 1, 2, 3]]
    """
    values = number_tensor(values, "values")
    memberships = None if memberships is None else number_tensor(memberships, "memberships")
    _check(values, memberships)
    if not isinstance(penalty, Real) or not 0 <= penalty < math.inf:
        raise ValueError(f"penalty: expected a number of at least 0, got {penalty!r}")
    weights = values.new_ones(len(values), 1) if memberships is None else memberships
    data, weights = values.detach().double().cpu(), weights.detach().double().cpu()
    weights = weights[:, weights.sum(0) > 1e-9]  # a component without rows says nothing about the tree
    unit_penalty = float(penalty) / len(data)
    covariance = _covariance_within(data, weights)
    with verbosity(verbose):
        tree = _prune_and_regraft(_cluster(covariance), _correlation_score(covariance, unit_penalty))
        tree = _interchange(tree, _count_score(data, weights, unit_penalty))
    blocks = sorted((_members(block) for block in tree), key=lambda members: (len(members), members))
    return NestedSubsets(blocks, data.shape[1])


def _check(values: Tensor, memberships: Tensor | None) -> None:
    check_binary(values, fewest_columns=2)
    if memberships is not None:
        check_memberships(memberships, len(values))


def _covariance_within(data: Tensor, weights: Tensor) -> np.ndarray:
    sizes = weights.sum(0).unsqueeze(-1)
    means = weights.mT @ data / sizes
    covariance: np.ndarray = ((data.mT @ data - (sizes * means).mT @ means) / len(data)).numpy()
    return covariance


def _cluster(covariance: np.ndarray) -> Tree:
    """Tree by average linkage; the distance of two variables is the square of one minus their correlation."""
    deviation = np.sqrt(covariance.diagonal().clip(min=1e-9))
    distance = (1 - covariance / deviation / deviation[:, None]).clip(min=0.0) ** 2
    np.fill_diagonal(distance, 0.0)
    blocks, tree = [1 << d for d in range(len(distance))], {}
    for left, right in linkage(squareform(distance, checks=False), "average")[:, :2].astype(int).tolist():
        blocks.append(blocks[left] | blocks[right])
        tree[blocks[-1]] = blocks[left], blocks[right]
    return tree


def _correlation_score(covariance: np.ndarray, penalty: float) -> Score:
    @lru_cache(maxsize=CACHED_BLOCKS)
    def row_sums(block: int) -> tuple[list[int], np.ndarray, float]:
        members = _members(block)
        sums = covariance[members].sum(0)
        return members, sums, float(sums[members].sum())

    @_symmetric
    def score(left: int, right: int) -> float:
        _, sums, variance = row_sums(left)
        members, _, right_variance = row_sums(right)
        product = variance * right_variance
        share = min(float(sums[members].sum()) ** 2 / product, 1.0) if product > 1e-12 else 0.0
        # No two counts can tell more about each other than the smaller one's entropy.
        most = math.log(1 + min(left.bit_count(), right.bit_count()))
        gain = min(-0.5 * math.log1p(-share), most) if share < 1 else most
        return gain - penalty * ((left | right).bit_count() - 1)

    return score


def _count_score(data: Tensor, weights: Tensor, penalty: float) -> Score:
    sizes = weights.sum(0)

    @lru_cache(maxsize=CACHED_BLOCKS)
    def margin(block: int) -> Tensor:
        members = _members(block)
        counts = data[:, members].sum(-1).long()
        weights_of_counts = data.new_zeros(len(members) + 1, len(sizes)).index_add(0, counts, weights)
        return (weights_of_counts / sizes).mT

    @_symmetric
    def score(left: int, right: int) -> float:
        gains = count_information(margin(left), margin(right), margin(left | right))
        return float(gains @ sizes) / len(data) - penalty * ((left | right).bit_count() - 1)

    return score


def _symmetric(score: Score) -> Score:
    """Cached score, independent of the order of its arguments."""
    cached = lru_cache(maxsize=CACHED_PAIRS)(score)
    return lambda left, right: cached(min(left, right), max(left, right))


def _members(block: int) -> list[int]:
    return [d for d in range(block.bit_length()) if block >> d & 1]


def _by_size(block: int) -> tuple[int, int]:
    return block.bit_count(), block


def _prune_and_regraft(tree: Tree, score: Score) -> Tree:
    """Moves one block after the other to where it gains most, until none gains anything."""
    improved = True
    while improved:
        improved = False
        blocks = sorted({child for children in tree.values() for child in children}, key=_by_size)
        for moved in progress_bar(blocks, desc="moving blocks", unit="block"):
            if not any(moved in children for children in tree.values()):
                continue  # an earlier move has dissolved it
            inside = {block: children for block, children in tree.items() if not block & ~moved}
            rest = {
                block & ~moved: (left & ~moved, right & ~moved)
                for block, (left, right) in tree.items()
                if block & ~moved and moved not in (left, right)
            }
            if not rest:
                continue  # there are only two blocks
            gain, grafted = _graft(rest, moved, score)
            above = [block for block in tree if block & moved and block & ~moved]
            present = sum(score(*tree[block]) for block in above)
            present -= sum(score(*rest[block & ~moved]) for block in above if moved not in tree[block])
            if gain > present + SMALLEST_GAIN * (1 + abs(present)):
                tree, improved = {**inside, **grafted}, True
    return tree


def _graft(tree: Tree, moved: int, score: Score) -> tuple[float, Tree]:
    """Joins a block with that block of a tree where the total score rises most: the rise, and the new tree."""
    gain: dict[int, float] = {}
    way: dict[int, tuple[int, int]] = {}  # into which child the best place leads, and its sibling
    for block in sorted({child for children in tree.values() for child in children} | set(tree), key=_by_size):
        gain[block] = score(block, moved)
        left, right = tree.get(block, (0, 0))
        for child, sibling in ((left, right), (right, left)) if left else ():
            below = gain[child] + score(child | moved, sibling) - score(child, sibling)
            if below > gain[block]:
                gain[block], way[block] = below, (child, sibling)
    block = root = max(tree)
    new = dict(tree)
    while block in way:
        child, sibling = way[block]
        del new[block]
        new[block | moved] = child | moved, sibling
        block = child
    new[block | moved] = block, moved
    return gain[root], new


def _interchange(tree: Tree, score: Score) -> Tree:
    """Swaps a block with a child of its sibling where that gains most, until nothing gains."""
    tree = dict(tree)
    while True:
        best, move = 0.0, (0, 0, 0, 0)
        for parent, (left, right) in tree.items():
            for block, sibling in ((left, right), (right, left)):
                a, b = tree.get(block, (0, 0))
                for kept, swapped in ((a, b), (b, a)) if a else ():
                    new = score(swapped, sibling) + score(swapped | sibling, kept)
                    old = score(a, b) + score(block, sibling)
                    gain = new - old
                    if gain > max(best, SMALLEST_GAIN * (1 + abs(old))):
                        best, move = gain, (parent, block, swapped | sibling, kept)
        parent, block, joined, kept = move
        if not parent:
            return tree
        tree[joined] = joined & block, joined & ~block
        tree[parent] = joined, kept
        del tree[block]
