"""Tables of cliques and of counts, fitted jointly to complete rows."""

__all__ = ["STIFFNESS", "CountedTreeRows", "check_countable", "count_rare_states"]

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_structured.junction_trees.distributions.counted_junction_tree import CountedJunctionTree
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.models.tree_fitting import pseudo_counts
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.junction_trees.ops.clique_tables import count_cliques, log_conditionals
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

# Prices of second differences of tables of counts, to choose from.
STIFFNESS = (0.3, 1.0, 3.0, 10.0)
# Number of variables from which a subtree is counted, where there are as many.
FEWEST_COUNTED = 6
# Price of the squares of a table's entries, relative to that of the squares of its second differences.
LEVEL_PRICE = 0.1


def count_rare_states(tree: CliqueTree) -> list[list[tuple[int, int]]]:
    """Lists of pairs to be counted: of all subtrees of at least six variables, and of all variables, the states after
    each variable's first.

    :param CliqueTree tree: The cliques; variables of one state stand alone in theirs, and are not counted.
    """
    sets = [*tree.subtrees(FEWEST_COUNTED), tuple(range(tree.num_variables))]
    lists = (tuple((d, k) for d in variables for k in range(1, tree.cardinalities[d])) for variables in sets)
    return [list(pairs) for pairs in dict.fromkeys(lists) if pairs]


def check_countable(is_complete: bool) -> None:
    """Raises a NotImplementedError for counts of rows with missing values."""
    if not is_complete:
        raise NotImplementedError(
            "counts: expected rows without missing values, got some in X; take counts=False, or fill them in"
        )


class CountedTreeRows:
    r"""Complete rows from which tables of cliques and of counts are learned jointly, with changing weights.

    The objective is concave, and without tables of counts its maximum is that of :func:`fit_tree_tables`:

    .. math::
        \sum_i w_i \log p(x_i) + m \sum_x q(x) \log p(x)
        - \lambda \sum_s \Bigl(\sum_c (f_s(c - 1) - 2 f_s(c) + f_s(c + 1))^2 + .1 \sum_c f_s(c)^2\Bigr),

    with pseudo-observations of independent variables, distributed as q. Tables of counts are pulled to straight lines,
    which cliques could express as well.

    :param CategoricalRows rows: Rows without missing entries.
    :param CliqueTree tree: The cliques.
    :param counted: Lists of pairs, as for :class:`CountedJunctionTree`.
    :param float smoothing: Number m of pseudo-observations, at least 0.
    :param singles: Their probabilities of the states of each variable.
    """

    def __init__(
        self,
        rows: CategoricalRows,
        tree: CliqueTree,
        counted: Sequence[Sequence[tuple[int, int]]],
        smoothing: float,
        singles: Sequence[np.ndarray],
    ) -> None:
        self.tree, self.counted, self.smoothing = tree, counted, smoothing
        self.values = torch.from_numpy(rows.values.T).long()
        self._sizes = [len({d for d, _ in pairs}) + 1 for pairs in counted]
        one = pseudo_counts(tree, 1.0, singles)
        independent = self.start(JunctionTree(log_conditionals(tree.plan, one), tree))
        self._pseudo = smoothing * one, smoothing * independent.count_marginals
        self._counts = independent.counts(self.values)

    def start(self, distribution: JunctionTree) -> CountedJunctionTree:
        """The same distribution, with tables of counts that are 0."""
        return CountedJunctionTree(
            distribution.clique_logits, self.tree, torch.zeros(sum(self._sizes), dtype=torch.double), self.counted
        )

    def regularisation(self, distribution: CountedJunctionTree, stiffness: float) -> float:
        """Terms of the objective beside the log-likelihood of the rows."""
        cliques, counts = distribution.clique_logits, distribution.count_logits
        expected = (self._pseudo[0] * cliques.masked_fill(self._pseudo[0] == 0, 0.0)).sum() + self._pseudo[1] @ counts
        log_z = distribution.log_partition_function
        return float(expected - self.smoothing * log_z - self._price(counts, stiffness))

    def fit(
        self, weights: Tensor, start: CountedJunctionTree, stiffness: float, max_iter: int = 200
    ) -> CountedJunctionTree:
        r"""Maximises the objective by L-BFGS; states that the start excludes stay excluded.

        :param Tensor weights: Weights of the rows, shape ``(R,)``.
        :param CountedJunctionTree start: Tables to start from.
        :param float stiffness: Price :math:`\lambda` of second differences, more than 0.
        :param int max_iter: Largest number of iterations.
        """
        base = start.clique_logits
        cliques = count_cliques(self.tree.plan, self.values, weights) + self._pseudo[0]
        columns = zip(self._counts.T, self._sizes, strict=True)
        counts = torch.cat([found.bincount(weights, size) for found, size in columns]) + self._pseudo[1]
        finite, total = base.masked_fill(base == -torch.inf, 0.0), float(weights.sum()) + self.smoothing
        change = torch.zeros_like(base, requires_grad=True)
        table = start.count_logits.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [change, table], max_iter=max_iter, history_size=20, tolerance_change=1e-9, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            d = CountedJunctionTree(base + change, self.tree, table, self.counted, validate_args=False)
            score = (cliques * (finite + change)).sum() + counts @ table
            value: Tensor = (self._price(table, stiffness) - score + total * d.log_partition_function) / total
            value.backward()
            return value

        optimizer.step(loss)
        return CountedJunctionTree((base + change).detach(), self.tree, table.detach(), self.counted)

    def _price(self, table: Tensor, stiffness: float) -> Tensor:
        bends = torch.stack([part.diff(n=2).square().sum() for part in table.split(self._sizes)]).sum()
        price: Tensor = stiffness * (bends + LEVEL_PRICE * table.square().sum())
        return price
