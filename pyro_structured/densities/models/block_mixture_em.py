"""Structural expectation maximisation for mixtures of trees of exchangeable blocks."""

__all__ = ["BlockMixtureEM"]

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pyro_structured.densities.distributions.exchangeable_tree import ExchangeableTree
from pyro_structured.densities.models.block_merging import merge_blocks
from pyro_structured.densities.structures.block_tree import BlockTree
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.models.thin_tree_search import TreeSearch, TreeSetting
from pyro_structured.junction_trees.models.tree_fitting import TreeRows, log_probs_of_codes, pseudo_counts
from pyro_structured.junction_trees.models.tree_mixture_em import TreeComponent, TreeMixtureEM
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows


class BlockRows(TreeRows):
    """Rows as levels of blocks, from which the tables of a tree of blocks are learned.

    :param CategoricalRows rows: The data. Where entries are missing, only log-probabilities are known.
    :param BlockTree blocks: The blocks, and their cliques.
    """

    def __init__(self, rows: CategoricalRows, blocks: BlockTree) -> None:
        levels = blocks.value(torch.from_numpy(rows.values.T).long().clamp(min=0))
        super().__init__(rows.recoded(levels.numpy().T, blocks.levels.cardinalities), blocks.levels)
        self.blocks, self._codes = blocks, rows.values.T if not rows.is_complete else None
        self._log_members: np.ndarray = blocks.log_sizes.gather(-1, levels.T).sum(0).numpy()

    def density(self, distribution: JunctionTree) -> ExchangeableTree:
        """Distribution of codes with some tables of levels."""
        return ExchangeableTree(distribution.clique_logits, self.blocks)

    def log_probs(self, distribution: JunctionTree) -> np.ndarray:
        """Log-probabilities of the rows' observed entries, shape ``(R,)``."""
        if self._codes is not None:
            return log_probs_of_codes(self.density(distribution), self._codes)
        log_probs: np.ndarray = super().log_probs(distribution) - self._log_members
        return log_probs


class BlockMixtureEM(TreeMixtureEM):
    """Steps as those of :class:`TreeMixtureEM`, whose structures are blocks and trees of their levels.

    Further arguments are those of :class:`TreeMixtureEM`.

    :param int most_levels: Largest number of levels of a block of several variables.
    :param CategoricalRows training: Training rows, without missing entries.
    :param int treewidth: Largest treewidth of the trees of blocks; 0: blocks are independent.
    """

    def __init__(
        self,
        most_levels: int,
        training: CategoricalRows,
        judged: CategoricalRows,
        treewidth: int,
        penalty: float,
        smoothing: float,
        tol: float,
        max_iter: int,
    ) -> None:
        super().__init__(training, judged, treewidth, penalty, smoothing, tol, max_iter)
        self._most_levels = most_levels

    def start(self, share: np.ndarray) -> TreeComponent:
        """Component whose variables are independent."""
        return self._of_blocks(self._tree([[d] for d in range(len(self.singles))]), share)

    def proposals(
        self, component: TreeComponent, certain: CategoricalRows, penalty: float, share: np.ndarray
    ) -> Iterator[TreeComponent]:
        """Components with a new tree of single variables, of the present blocks, and of merged blocks."""
        single = [[d] for d in range(len(self.singles))]
        price = 0.5 * penalty * math.log(max(certain.total, 2.0))
        merged = merge_blocks(certain, price, self._most_levels, joined=self.treewidth > 0)
        tried: list[BlockTree] = [component.density.tree]
        partitions = dict.fromkeys(tuple(map(tuple, each)) for each in (single, tried[0].groups, merged))
        for groups in partitions:
            tree = self._tree(groups)
            if self.treewidth:
                levels = tree.value(torch.from_numpy(certain.values.T)).numpy().T
                search = TreeSearch(certain.recoded(levels, tree.levels.cardinalities))
                tree = self._tree(groups, search.tree(TreeSetting(self.treewidth, penalty)).cliques)
            if tree not in tried:
                tried.append(tree)
                yield self._of_blocks(tree, share)

    def _tree(self, groups: Sequence[Sequence[int]], cliques: Sequence[Sequence[int]] | None = None) -> BlockTree:
        sizes = self.training.cardinalities
        return BlockTree.from_counts(groups, [sizes[group[0]] for group in groups], cliques)

    def _of_blocks(self, tree: BlockTree, share: np.ndarray) -> TreeComponent:
        prior = pseudo_counts(tree.levels, self.smoothing, self._chances(tree))
        training, judged = BlockRows(self.training, tree), BlockRows(self.judged, tree)
        return TreeComponent(training, judged, training.tables(training.counts(share), prior), prior)

    def _chances(self, tree: BlockTree) -> list[np.ndarray]:
        """Probabilities of each block's levels if its variables were independent, all with their mean frequencies."""
        chances = []
        for statistic, group, sizes in zip(tree.statistics, tree.groups, _log_sizes(tree), strict=True):
            mean = np.mean([self.singles[d] for d in group], 0)
            chances.append(np.exp(statistic.counts.numpy() @ np.log(mean) + sizes))
        return chances

    def _regularisation(self, component: TreeComponent) -> float:
        # Pseudo-observations, too, are single members of level sets.
        tree = component.density.tree
        members = sum(map(np.dot, self._chances(tree), _log_sizes(tree)))
        return super()._regularisation(component) - self.smoothing * float(members)


def _log_sizes(tree: BlockTree) -> list[np.ndarray]:
    """Log-sizes of each block's level sets."""
    return [statistic.log_sizes.numpy() for statistic in tree.statistics]
