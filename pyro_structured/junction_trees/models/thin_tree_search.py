"""Search for junction trees of bounded treewidth that fit data, by two methods and for several settings."""

__all__ = ["TreeSetting", "TreeSearch", "shared_tree", "tree_settings"]

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from pyro_structured.junction_trees.models.chordal_search import (
    MOST_STATES,
    ChordalScore,
    CountSums,
    SharedScore,
    grow_chordal_graph,
    polish_chordal_graph,
)
from pyro_structured.junction_trees.models.graph_cut_search import cut_graph
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows, least_information, mutual_information
from pyro_structured.junction_trees.ops.chordal_graph import Neighbors, neighbor_sets
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree


class TreeSetting(NamedTuple):
    """Settings of the search for a junction tree.

    :ivar int treewidth: The largest treewidth.
    :ivar float penalty: The factor of the Bayesian information criterion.
    :ivar information: The weights of graph cuts, ``"mutual"`` or ``"least"``; ``None``: forward selection.
    :ivar discount: Discount of graph cuts; ``None`` for spanning trees.
    :ivar float polish: Seconds of polishing.
    """

    treewidth: int
    penalty: float
    information: str | None = None
    discount: float | None = None
    polish: float = 0.0


def tree_settings(
    method: str, treewidth: int, penalties: Sequence[float], discounts: Sequence[float], information: Sequence[str]
) -> list[TreeSetting]:
    """All settings that are tried, smaller treewidths included, so that more width never makes the best tree worse."""
    widths = range(treewidth, 0, -1)
    if method == "chordal":
        return [TreeSetting(*setting) for setting in product(widths, penalties)]
    # The heaviest tree is a spanning tree, and has no separators to discount.
    return [
        TreeSetting(width, penalty, kind, discount if width > 1 else None)
        for width, penalty, kind, discount in product(widths, penalties, information, discounts)
        if width > 1 or discount == discounts[0]
    ]


class TreeSearch:
    """Search for junction trees that fit rows.

    :param CategoricalRows rows: The data. States for values to come add no parameters.
    :param float tolerance: Tolerance of graph cuts, in nats.
    """

    def __init__(self, rows: CategoricalRows, tolerance: float = 0.0) -> None:
        self._rows, self._cardinalities, self._tolerance = rows.known, rows.cardinalities, tolerance

    def tree(self, setting: TreeSetting) -> CliqueTree:
        """Tree by forward selection or graph cuts."""
        sizes = self._rows.cardinalities
        if setting.information is None:
            neighbors = neighbor_sets(len(sizes), [])
            score = ChordalScore(self._rows, setting.penalty, self._sums)
            grow_chordal_graph(score, neighbors, setting.treewidth, first_gains=score.first_gains)
            return _tree_of(neighbors, self._cardinalities)
        weights = self._significant(setting)
        if setting.discount is None:
            edges = list(zip(*minimum_spanning_tree(-weights).nonzero(), strict=True))
        else:
            edges = cut_graph(
                weights,
                setting.treewidth,
                np.log(sizes).tolist(),
                setting.discount,
                self._tolerance,
                float(MOST_STATES),
            )
        return CliqueTree.from_edges([(int(first), int(second)) for first, second in edges], self._cardinalities)

    def polish(self, tree: CliqueTree, setting: TreeSetting, rng: np.random.Generator) -> CliqueTree:
        """Tree with improved penalised likelihood, by simulated annealing."""
        neighbors = neighbor_sets(tree.num_variables, tree.edges)
        score = ChordalScore(self._rows, setting.penalty, self._sums)
        polish_chordal_graph(score, neighbors, setting.treewidth, setting.polish, rng)
        return _tree_of(neighbors, tree.cardinalities)

    def _significant(self, setting: TreeSetting) -> np.ndarray:
        """Information of pairs that exceeds the price of their parameters, shape ``(n, n)``; zero for other pairs."""
        weights = self._mutual if setting.information == "mutual" else self._least
        degrees = np.array(self._rows.cardinalities) - 1.0
        total, prices = max(self._rows.total, 2.0), np.outer(degrees, degrees)
        # Information about constants is zero up to rounding errors, which are no reason for an edge.
        significant: np.ndarray = np.where(
            (2 * total * weights > setting.penalty * np.log(total) * prices) & (prices > 0), weights, 0.0
        )
        return significant

    @cached_property
    def _sums(self) -> CountSums:
        return CountSums(self._rows)

    @cached_property
    def _mutual(self) -> np.ndarray:
        information = mutual_information(self._rows)
        np.fill_diagonal(information, 0.0)
        return information

    @cached_property
    def _least(self) -> np.ndarray:
        return least_information(self._rows)


def shared_tree(parts: Sequence[CategoricalRows], treewidth: int, penalties: Sequence[float]) -> CliqueTree:
    """Tree of several data sets with tables of their own, by forward selection.

    :param parts: The data sets, with the same columns.
    :param int treewidth: The largest treewidth.
    :param penalties: For each, the factor of its Bayesian information criterion.
    """
    neighbors = neighbor_sets(len(parts[0].cardinalities), [])
    score = SharedScore(ChordalScore(rows.known, penalty) for rows, penalty in zip(parts, penalties, strict=True))
    grow_chordal_graph(score, neighbors, treewidth, first_gains=score.first_gains)
    return _tree_of(neighbors, parts[0].cardinalities)


def _tree_of(neighbors: Neighbors, cardinalities: Sequence[int]) -> CliqueTree:
    return CliqueTree.from_edges([(d, e) for d, near in enumerate(neighbors) for e in near if d < e], cardinalities)
