"""The tree of largest likelihood: Chow and Liu (1968), Approximating discrete probability distributions with trees."""

from scipy.sparse.csgraph import minimum_spanning_tree

from pyro_structured.junction_trees.ops.categorical_rows import mutual_information
from pyro_structured.junction_trees.ops.chordal_graph import neighbor_sets


def chow_liu_tree(rows):
    """Neighbours in the spanning tree of largest mutual information."""
    information = mutual_information(rows)
    # The solver takes a zero for a missing edge: all lengths are positive.
    lengths = information.max() + 1 - information
    tree = minimum_spanning_tree(lengths).tocoo()
    return neighbor_sets(len(information), zip(tree.row.tolist(), tree.col.tolist(), strict=True))
