"""Tables of cliques and of counts, fitted jointly to complete rows."""

__all__ = ["count_rare_states", "fit_counted_tree"]

import torch

from pyro_structured.junction_trees.distributions.counted_junction_tree import CountedJunctionTree
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.junction_trees.ops.clique_tables import count_cliques
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

# Number of variables from which a subtree is counted, where there are as many.
FEWEST_COUNTED = 6
# Price of the squares of a table's entries, relative to that of the squares of its second differences.
LEVEL_PRICE = 0.1
MAX_ITERATIONS = 200


def count_rare_states(tree: CliqueTree) -> list[list[tuple[int, int]]]:
    """Lists of pairs to be counted: of all subtrees of at least six variables, and of all variables, the states after
    each variable's first.

    :param CliqueTree tree: The cliques; variables of one state are not counted.
    """
    sets = dict.fromkeys([*tree.subtrees(FEWEST_COUNTED), tuple(range(tree.num_variables))])
    lists = ([(d, k) for d in variables for k in range(1, tree.cardinalities[d])] for variables in sets)
    return [pairs for pairs in lists if pairs]


def fit_counted_tree(
    rows: CategoricalRows, start: JunctionTree, counted: list[list[tuple[int, int]]], stiffness: float
) -> CountedJunctionTree:
    r"""Maximises the likelihood of rows, which is concave, less a penalty, by L-BFGS from tables of cliques alone.

    .. math::
        \sum_i w_i \log p(x_i) + \sum_C \sum_{x_C} p_0(x_C) \theta_C(x_C) - \log Z
        - \lambda \sum_s \Bigl(\sum_c (f_s(c - 1) - 2 f_s(c) + f_s(c + 1))^2 + .1 \sum_c f_s(c)^2\Bigr):

    a row is added whose cliques are as they were under the first distribution :math:`p_0`, and tables of counts are
    pulled to straight lines, which cliques could express as well. States that :math:`p_0` excludes stay excluded.

    :param CategoricalRows rows: Complete rows with weights.
    :param JunctionTree start: Distribution :math:`p_0`.
    :param counted: Lists of pairs, as for :class:`CountedJunctionTree`.
    :param float stiffness: Price :math:`\lambda` of second differences, more than 0.
    """
    tree, base = start.tree, start.clique_logits
    sizes = [len({d for d, _ in pairs}) + 1 for pairs in counted]
    first = CountedJunctionTree(base, tree, base.new_zeros(sum(sizes)), counted)
    values, weights = torch.from_numpy(rows.values.T).long(), torch.from_numpy(rows.weights).double()
    cliques = count_cliques(tree.plan, values, weights) + start.clique_marginals
    counts = torch.cat(
        [found.bincount(weights, size) for found, size in zip(first.counts(values).T, sizes, strict=True)]
    )
    # Excluded states have no tables to learn.
    change = torch.zeros_like(base, requires_grad=True)
    table = torch.zeros_like(counts, requires_grad=True)
    finite, total = base.masked_fill(base == -torch.inf, 0.0), float(rows.total)
    optimizer = torch.optim.LBFGS(
        [change, table], max_iter=MAX_ITERATIONS, history_size=20, tolerance_change=1e-9, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        d = CountedJunctionTree(base + change, tree, table, counted, validate_args=False)
        score = (cliques * (finite + change)).sum() + (counts * table).sum()
        bends = torch.stack([part.diff(n=2).square().sum() for part in table.split(sizes)]).sum()
        price = stiffness * (bends + LEVEL_PRICE * table.square().sum())
        value = (price - score + (total + 1) * d.log_partition_function) / total
        value.backward()
        return value

    optimizer.step(loss)
    return CountedJunctionTree((base + change).detach(), tree, table.detach(), counted)
